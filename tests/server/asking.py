"""Requests to a server of a test, with the standard library alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

PATIENCE = 1200  # seconds: a server starts in half a minute, on a busy machine in many


def generate(url: str, prompts: Sequence[str], **sampling: Any) -> list[dict[str, Any]]:
    """The replies to one batched /generate: `output_ids`, `text`, `meta_info`. `return_logprob` asks for those of the output."""
    body: dict[str, Any] = {"text": list(prompts), "return_logprob": sampling.pop("return_logprob", False)}
    body["sampling_params"] = {"temperature": 0, "ignore_eos": True, **sampling}
    request = Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with build_opener(ProxyHandler({})).open(request, timeout=PATIENCE) as reply:
        found: list[dict[str, Any]] = json.load(reply)
    return found
