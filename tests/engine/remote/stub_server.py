"""A SGLang server made of the standard library and the tiny model: `/generate` as release 0.5.23 answers it, and faults on order.

It computes every line anew, without cache or batch: what it says is the slow twin's word. `cached_tokens` is that of a cache that
remembers every prompt.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from tests.engine.twins import logits_after
from toolkit.model.decoder import Decoder
from toolkit.model.tiny import tiny_model
from toolkit.text.tokenizer import ByteTokenizer

Json = Any
Fault = Callable[["Handler", Json], bool]  # True: the fault has answered


@dataclass
class Stub:
    """What the server is and what happened to it; `faults` are used up one a request to /generate."""

    decoder: Decoder = field(default_factory=tiny_model)
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    info: dict[str, Json] = field(default_factory=dict)
    key: str | None = None
    faults: list[Fault] = field(default_factory=list)
    bodies: list[Json] = field(default_factory=list)  # of /generate
    cut: int = 1  # tokens an event of a stream
    late: int = 0  # tokens that an event before the last does not count, though its ids hold them
    incremental: bool = False
    draws: bool = False  # a temperature has an effect; else the likeliest token comes, whatever is asked
    offset: float = 0.0  # added to log-probabilities of next tokens
    seen: set[tuple[int, ...]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def facts(self) -> dict[str, Json]:
        return {
            "max_req_input_len": 500, "version": "0.5.23", "grammar_backend": "xgrammar", "sampling_backend": "pytorch",
            "device": "cpu", "dtype": "float32", "speculative_algorithm": None, "enable_deterministic_inference": False, **self.info,
        }  # fmt: skip

    def chosen(self, row: torch.Tensor, params: Json, count: int) -> list[int]:
        """So many tokens after one text."""
        if self.draws and params["temperature"] > 0:
            found: list[int] = torch.softmax(row / params["temperature"], -1).multinomial(count, replacement=True).tolist()
            return found
        return [int(row.argmax())] * count

    def searches(self) -> list[Json]:
        """Bodies of steps of beam searches."""
        return [body for body in self.bodies if isinstance(body.get("input_ids"), list) and "token_ids_logprob" in body]


class Handler(BaseHTTPRequestHandler):
    """One connection; the stub is the server's attribute."""

    protocol_version = "HTTP/1.1"

    @property
    def stub(self) -> Stub:
        return self.server.stub  # type: ignore[attr-defined,no-any-return]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if not self._authorised():
            return
        if self.path == "/server_info":
            self.reply(200, self.stub.facts())
        elif self.path == "/model_info":
            known = {"model_path": "stub", "served_model_name": "stub", "is_generation": True, "weight_version": "default"}
            self.reply(200, {**known, **self.stub.info})
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._authorised():
            return
        with self.stub.lock:
            self.stub.bodies.append(body)
            fault = self.stub.faults.pop(0) if self.stub.faults and "text" not in body else None
        if fault is not None and fault(self, body):
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._generate(body)

    def reply(self, status: int, value: Json) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def drop(self) -> None:
        """Close the connection without another byte."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(2)

    def _authorised(self) -> bool:
        if self.stub.key is None or self.headers.get("Authorization") == f"Bearer {self.stub.key}":
            return True
        self.reply(401, {"error": "Unauthorized"})
        return False

    def _generate(self, body: Json) -> None:
        lines = [self.stub.tokenizer.encode(body["text"])] if "text" in body else body["input_ids"]
        single = bool(lines) and isinstance(lines[0], int)
        lines = [lines] if single else lines
        single = single or "text" in body
        longest = self.stub.facts().get("max_req_input_len", 10**6)
        if any(len(line) >= longest for line in lines):
            self.reply(400, {"error": {"message": f"Input length exceeds the maximum allowed length ({longest} tokens)."}})
            return
        if body.get("stream"):
            self._stream([(line, _nth(body["sampling_params"], i)) for i, line in enumerate(lines)])
            return
        replies = [self._line(line, body, i) for i, line in enumerate(lines)]
        self.reply(200, replies[0] if single else replies)

    def _line(self, ids: list[int], body: Json, i: int) -> Json:
        with self.stub.lock, torch.inference_mode():
            scores = torch.log_softmax(logits_after(self.stub.decoder, ids)[:, : self.stub.tokenizer.vocab_size], dim=-1)
            start, named = _nth(body.get("logprob_start_len", -1), i), _named(body.get("token_ids_logprob"), i)
            cached = max((_common(ids, known) for known in self.stub.seen), default=0)
            self.stub.seen.add(tuple(ids))
        top = _nth(body.get("top_logprobs_num", 0), i)
        count = _nth(body["sampling_params"], i)["max_new_tokens"]
        meta = _meta(ids, min(cached, len(ids) - 1, start if start >= 0 else len(ids)), count)
        chosen = self.stub.chosen(scores[-1], _nth(body["sampling_params"], i), count)
        if body.get("return_logprob"):
            tail = [*range(start, len(ids))] if start >= 0 else []
            meta["input_token_logprobs"] = [
                [None if at == start else float(scores[at - 1, ids[at]]), ids[at], None] for at in tail
            ]
            rows = [None if at == start else scores[at - 1] for at in tail]
            if top:
                meta["input_top_logprobs"] = [row if row is None else _top(row, top) for row in rows]
                meta["output_top_logprobs"] = [_top(scores[-1] + self.stub.offset, top)] * count
            if named:
                meta["input_token_ids_logprobs"] = [row if row is None else _pick(row, named) for row in rows]
                meta["output_token_ids_logprobs"] = [_pick(scores[-1] + self.stub.offset, named)] * count
        return {"text": "", "output_ids": chosen, "meta_info": meta}

    def _stream(self, lines: list[tuple[list[int], Json]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for index, (ids, params) in enumerate(lines):
            self._sample(index, ids, params)
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _sample(self, index: int, ids: list[int], params: Json) -> None:
        out: list[int] = []
        finish, sent = None, 0
        while finish is None:
            with torch.inference_mode():
                row = logits_after(self.stub.decoder, [*ids, *out])[-1, : self.stub.tokenizer.vocab_size]
            out += self.stub.chosen(row, params, 1)
            ends = [] if params["ignore_eos"] else [*self.stub.tokenizer.eos_ids, *params["stop_token_ids"]]
            text = self.stub.tokenizer.decode(out)
            matched = out[-1] if out[-1] in ends else next((stop for stop in params["stop"] if stop in text), None)
            if matched is not None:
                finish = {"type": "stop", "matched": matched}
            elif len(out) >= params["max_new_tokens"]:
                finish = {"type": "length", "length": len(out)}
            if finish is None and len(out) % self.stub.cut:
                continue
            meta = {**_meta(ids, 0, len(out) - (self.stub.late if finish is None else 0)), "finish_reason": finish}
            event = {"output_ids": out[sent:] if self.stub.incremental else out, "meta_info": meta, "index": index}
            sent = len(out)
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")


def _nth(value: Json, i: int) -> Json:
    return value[i] if isinstance(value, list) else value


def _named(value: Json, i: int) -> list[int]:
    """Ids asked for by name: one list for a single line, a list of lists for a batch."""
    return [] if not value else value if isinstance(value[0], int) else value[i]


def _meta(ids: list[int], cached: int, count: int) -> dict[str, Json]:
    return {
        "id": "x", "finish_reason": {"type": "length", "length": count}, "prompt_tokens": len(ids), "cached_tokens": cached,
        "completion_tokens": count,
    }  # fmt: skip


def _top(row: torch.Tensor, count: int) -> list[Json]:
    values, ids = row.topk(count)
    return [[value, token, None] for value, token in zip(values.tolist(), ids.tolist(), strict=True)]


def _pick(row: torch.Tensor, ids: list[int]) -> list[Json]:
    return [[float(row[token]), token, None] for token in ids]


def _common(a: list[int], b: tuple[int, ...]) -> int:
    same = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        same += 1
    return same


class Listening(ThreadingHTTPServer):
    """The listening socket; its connections die with it, as those of a killed process do."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, stub: Stub, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.stub = stub
        self.open: list[Any] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # connections that die are what is tested

    def kill(self) -> None:
        self.shutdown()
        self.server_close()
        for each in self.open:
            with contextlib.suppress(OSError):
                each.shutdown(2)
            with contextlib.suppress(OSError):
                each.close()


@contextlib.contextmanager
def listening(stub: Stub, port: int = 0, wrap: Callable[[Any], Any] | None = None) -> Iterator[Listening]:
    """The stub on a port of this machine for as long as the block runs; `wrap` makes its socket another kind."""
    server = Listening(stub, port)
    if wrap is not None:
        server.socket = wrap(server.socket)
    stub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.kill()
        thread.join()


def status(code: int, value: Json) -> Fault:
    """Answer with that status."""

    def fault(handler: Handler, _: Json) -> bool:
        handler.reply(code, value)
        return True

    return fault


def dropped(handler: Handler, _: Json) -> bool:
    """The connection dies before a byte of the reply."""
    handler.drop()
    return True


def truncated(handler: Handler, _: Json) -> bool:
    """The connection dies in the middle of the reply."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'[{"meta_info":')
    handler.wfile.flush()
    handler.drop()
    return True


def hung(seconds: float) -> Fault:
    """No answer for a while, then the right one."""

    def fault(_: Handler, __: Json) -> bool:
        time.sleep(seconds)
        return False

    return fault


def changed(change: Callable[[Json], Json]) -> Fault:
    """The right reply, changed."""

    def fault(handler: Handler, body: Json) -> bool:
        handler.reply(200, change([handler._line(line, body, i) for i, line in enumerate(body["input_ids"])]))
        return True

    return fault
