"""A server with the chat completions API over a tiny embedded engine, for tests; `spoil` may change what it sends."""

from __future__ import annotations

import itertools
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from toolkit.contracts import Completion, Grammar, Request, SamplingParams
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.results import only_result

Spoil = Callable[[Completion], Completion]


@contextmanager
def served(
    engine: EmbeddedEngine, *, spoil: Spoil | None = None, has_metrics: bool = True, sglang: str | None = None
) -> Iterator[str]:  # fmt: skip
    """The URL of the server, its /v1 included. `sglang`: it is one of SGLang, with that speculation ("" = none)."""
    counts = {"proposed": 0, "accepted": 0}
    # what is drawn without a seed is another text each time, and the same ones in every run of a test
    fresh = itertools.count(zlib.crc32(f"{engine.capabilities.drafters}/{sglang}".encode()) * 1000)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                whose = {} if sglang is None else {"owned_by": "sglang", "root": "/home/me/tiny"}
                self._send(json.dumps({"data": [{"id": "tiny", "max_model_len": 2048, **whose}]}))
            elif self.path == "/server_info" and sglang is not None:
                told = {"speculative_algorithm": sglang.upper() or None, "version": "0.5.23", "dtype": "float32"}
                self._send(json.dumps({**told, "speculative_draft_model_path": "/home/me/head" if sglang else None}))
            elif self.path == "/metrics" and has_metrics:
                self._send(
                    f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {counts["proposed"]}.0\n'
                    f"vllm:spec_decode_num_accepted_tokens_total {counts['accepted']}\n"
                )
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            names = (
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "max_tokens",
                "min_tokens",
                "seed",
                "ignore_eos",
                "frequency_penalty",
            )
            told = {name: body[name] for name in (*names, "presence_penalty", "repetition_penalty") if name in body}
            form = body.get("response_format")
            request = Request(
                prompt=body["messages"], sampling=SamplingParams(**told, logprobs=2, stop=tuple(body.get("stop", ()))),
                grammar=Grammar("json_schema", json.dumps(form["json_schema"]["schema"])) if form else None,
            )  # fmt: skip
            events: list[dict[str, Any]] = []
            drafts, ids = [], []
            for index in range(body["n"]):
                drawn = request.sampling if "seed" in told else replace(request.sampling, seed=next(fresh))
                result = only_result(engine.generate([replace(request, sampling=drawn)]))
                assert isinstance(result, Completion)
                counts["proposed"] += result.usage.proposed
                counts["accepted"] += result.usage.accepted
                usage = result.usage
                if sglang:
                    drafts.append(
                        {
                            "spec_num_proposed_drafts": usage.proposed,
                            "spec_num_correct_drafts": usage.accepted,
                            "spec_verify_ct": usage.steps + usage.appended - 1,
                        }
                    )
                result = spoil(result) if spoil else result
                content = [self._row(each.token_id, each.logprob, each.top) for each in result.logprobs]
                ids.append([each.token_id for each in result.logprobs])
                scores = {"logprobs": {"content": content}} if body.get("logprobs") else {}
                events.append({"choices": [{"index": index, "delta": {"content": result.text}, **scores}]})
                events.append(
                    {
                        "choices": [
                            {"index": index, "delta": {}, "finish_reason": result.finish_reason.replace("grammar", "stop")}
                        ]
                    }
                )
            events.append({"choices": [], "usage": {"completion_tokens": sum(map(len, ids))}})
            if sglang is not None and body.get("return_output_ids_in_sglext"):
                events.append({"choices": [], "sglext": {"output_ids": ids}})
            if drafts and body.get("return_spec_tokens_details"):
                events.append({"choices": [], "sglext": {"spec_tokens_details": drafts if body["n"] > 1 else drafts[0]}})
            self._send("".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n")

        def _row(self, token: int, logprob: float, top: Any = ()) -> dict[str, Any]:
            spelled = engine.tokenizer.token_bytes(token) or b"<end>"
            found = {"token": spelled.decode(errors="replace"), "bytes": list(spelled), "logprob": logprob}
            return found | ({"top_logprobs": [self._row(*each) for each in top]} if top else {})

        def _send(self, text: str) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
