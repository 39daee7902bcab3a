"""The shared plain server: it serves what the store resolves, and greedy decoding there is greedy decoding here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest

import toolkit
from toolkit.lang.serve import Server

pytestmark = pytest.mark.server

PROMPTS = ("The capital of France is", "def fibonacci(n):\n", "1, 2, 3, 4,")


def generated(url: str, prompt: str, tokens: int) -> list[int]:
    body: dict[str, Any] = {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}
    request = Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with build_opener(ProxyHandler({})).open(request, timeout=120) as reply:
        ids: list[int] = json.load(reply)["output_ids"]
    return ids


def test_the_server_runs_the_models_folder_in_processes_of_one_session(sglang_server: Server) -> None:
    assert (Path(sglang_server.model) / "config.json").is_file()
    assert len(sglang_server.pids()) >= 3 and sglang_server.pids()[0] == sglang_server.pid
    sglang_server.check()


def test_greedy_ids_of_the_server_are_those_of_the_embedded_engine_in_float32(server_url: str) -> None:
    engine = toolkit.open_engine("embedded", model="smollm2", format="float32")
    try:
        expected = [list(engine.complete(prompt, max_tokens=24, ignore_eos=True).token_ids) for prompt in PROMPTS]
    finally:
        engine.close()
    assert [generated(server_url, prompt, 24) for prompt in PROMPTS] == expected
