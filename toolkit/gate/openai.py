"""OpenAiEngine: any server with the chat completions API (vLLM, llama.cpp, SGLang's own, ...), as far as the gate can look into it.

In: requests whose prompt is a chat.   Out: events, as of every engine.
Such a server tells no token ids: where it reports log-probabilities, a token is what it is spelled like, and its id is made of that; else
there is text only. It cannot score, and shows no books; vLLM's counters of drafts are read from /metrics where they are. SGLang's counters
and its token ids stand in its own field at the end of a stream (sglext.py); log-probabilities are not asked of it, for its stream has gaps.
What has no field in that API is refused by name. Fields of vLLM's and SGLang's own (top_k, min_p, ignore_eos, ...) are sent: a server
that does not know them refuses, or shows by its answers that it ignores them.
Knows nothing about: canaries, verdicts.
Invariants: nothing that a server sends is executed or waited for without bound; a stream that breaks off is an error.
Source: the chat completions API as vLLM 0.31 and SGLang 0.5.23 serve it (read).
"""

from __future__ import annotations

import hashlib
import json
import queue
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from toolkit.contracts import (
    Capabilities,
    Completion,
    Delta,
    Done,
    Event,
    Failed,
    FinishReason,
    Json,
    Message,
    Prompt,
    Request,
    Timing,
    Tokenizer,
    TokenLogprob,
    Usage,
)
from toolkit.engine.remote.connection import Connection
from toolkit.errors import EngineError, ToolkitError, UnsupportedError, UsageError
from toolkit.gate import sglext

TOGETHER = 16  # requests under way
TOPS = 5  # likeliest tokens that are asked for with each
_MOST_TOKENS = 1 << 16  # of one answer
_MOST_TEXT = 1 << 20
_COUNTERS = {
    "vllm:spec_decode_num_draft_tokens_total": "proposed", "vllm:spec_decode_num_accepted_tokens_total": "accepted",
    "vllm:spec_decode_num_drafts_total": "verify_passes",
}  # fmt: skip
_COUNTER = re.compile(r"^([a-z_:]+)(?:\{[^}]*\})? ([0-9.eE+]+)$", re.MULTILINE)
_REASONS: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "tool_calls": "stop"}


class Spelled:
    """A tokenizer that knows only how tokens which came are spelled; ids are made of the spelling, the same for every server."""

    def __init__(self) -> None:
        self.vocab_size = 1 << 48
        self.eos_ids: tuple[int, ...] = ()
        self.control_ids: frozenset[int] = frozenset()
        self.fingerprint = ""
        self._bytes: dict[int, bytes] = {}

    def id_of(self, spelling: bytes) -> int:
        """An id for a spelling, from now on known."""
        found = int.from_bytes(hashlib.sha256(spelling).digest()[:6], "big")
        self._bytes[found] = spelling
        return found

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes.get(token_id, b"")

    def decode(self, ids: Iterable[int]) -> str:
        ids = list(ids)
        if not all(each in self._bytes for each in ids):
            self._refuse("the spelling of token ids")
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        self._refuse("token ids")

    def chat(self, messages: Sequence[Message], *, generate: bool = True) -> list[int]:
        self._refuse("token ids of a chat")

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedError(f"{what}: not known of an OpenAI-compatible server, it takes and gives text")


@dataclass(slots=True)
class _Sample:
    text: str = ""
    ids: list[int] = field(default_factory=list)
    scores: list[TokenLogprob] = field(default_factory=list)
    reason: FinishReason | None = None
    matched: str | None = None


class OpenAiEngine:
    """A server at `url`, which ends in /v1. Raises EngineError where it cannot be reached, UsageError for options that it has not."""

    def __init__(
        self, url: str, *, api_key: str | None = None, verify: bool | str = True, timeout_s: float = 600.0,
        tokenizer: object = None, patience_s: object = None,
    ) -> None:  # fmt: skip
        for name, value in (("tokenizer", tokenizer), ("patience_s", patience_s)):
            if value is not None:
                raise UsageError(f"{name} is no option of an OpenAI-compatible server", hint="leave it out")
        self._connection = Connection(url, api_key=api_key, verify=verify, timeout_s=timeout_s)
        self._root = Connection(url.rstrip("/").removesuffix("/v1"), api_key=api_key, verify=verify, timeout_s=timeout_s)
        self._spelled = Spelled()
        self.tokenizer: Tokenizer = self._spelled
        self._pool = ThreadPoolExecutor(TOGETHER, thread_name_prefix="toolkit-openai")
        self._cancelled: set[str] = set()
        try:
            self._model = self._first_model()
            self._more = sglext.ASKED if sglext.is_sglang(self._model) else {}
            self._told = sglext.told_of_itself(self._root) if self._more else {}
        except BaseException:
            self.close()
            raise

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            engine="openai", model=self._model["id"], fingerprint="", context=self._context, vocab_size=0,
            grammars=("json_schema",), beam=False, score=False,
            drafters=(self._told.get("drafter", "unknown"),),
        )  # fmt: skip

    @property
    def urls(self) -> tuple[str, ...]:
        """Its address."""
        return (self._root.url,)

    @property
    def _context(self) -> int:
        told = self._model.get("max_model_len")
        return told if isinstance(told, int) and told > 0 else 4096

    def identity(self) -> dict[str, Any]:
        """What it tells of itself: its model's name; a SGLang server more."""
        return {"drafter": "unknown", "root": Path(str(self._model.get("root", ""))).name, **self._told}

    def drafts(self) -> dict[str, float]:
        """The server's counters of drafts, all requests of everybody together; {} where it exports none."""
        try:
            text = self._root.text("/metrics")
        except ToolkitError:
            return {}
        found: dict[str, float] = {}
        for name, value in _COUNTER.findall(text):
            if name in _COUNTERS:
                found[_COUNTERS[name]] = found.get(_COUNTERS[name], 0.0) + float(value)
        return found

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        """Run requests together."""
        events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        count = 0
        for request in requests:
            self._pool.submit(self._run, request, events)
            count += 1
        while count:
            event = events.get()
            if event is None:
                count -= 1
            else:
                yield event

    def score(self, prompt: Prompt, continuations: Sequence[Sequence[int]]) -> list[list[float]]:
        raise UnsupportedError("an OpenAI-compatible server does not score given tokens")

    def cancel(self, request_id: str) -> None:
        """Its stream is left at the next event."""
        self._cancelled.add(request_id)

    def close(self) -> None:
        """End every request with an error."""
        self._connection.wake()
        self._root.wake()
        self._pool.shutdown(wait=True)
        self._connection.close()
        self._root.close()

    def _first_model(self) -> dict[str, Any]:
        told = self._connection.get("/models")
        rows = told.get("data") if isinstance(told, dict) else None
        if not isinstance(rows, list) or not rows or not isinstance(rows[0], dict) or not isinstance(rows[0].get("id"), str):
            raise EngineError(f"{self._connection.url}/models names no model: it is no OpenAI-compatible server")
        return rows[0]

    def _run(self, request: Request, events: queue.SimpleQueue[Event | None]) -> None:
        try:
            for event in self._answer(request):
                events.put(event)
        except ToolkitError as error:
            events.put(Failed(request.id, error))
        except Exception as error:  # a reply of a shape that nobody thought of
            events.put(Failed(request.id, EngineError(f"the reply cannot be read: {type(error).__name__}: {error}")))
        finally:
            events.put(None)

    def _answer(self, request: Request) -> Iterator[Event]:
        body, began, first = self._asked(request), time.perf_counter(), 0.0
        samples = [_Sample() for _ in range(request.sampling.n)]
        told, books = 0, Usage()
        for event in self._connection.stream("/chat/completions", body):
            usage = event.get("usage")
            told = usage["completion_tokens"] if isinstance(usage, dict) else told
            if self._more:
                books = sglext.books(event, len(samples)) or books
                for sample, ids in zip(samples, sglext.output_ids(event, len(samples)) or (), strict=False):
                    sample.ids = ids
            for choice in event.get("choices") or ():
                sample = samples[choice.get("index", 0)]
                delta = self._take(sample, choice)
                if delta[0] or delta[1]:
                    first = first or time.perf_counter()
                    yield Delta(request.id, choice.get("index", 0), delta[0], tuple(delta[1]))
            if request.id in self._cancelled:
                return
        end = time.perf_counter()
        yield from self._results(request, samples, told, books, Timing(ttft_s=(first or end) - began, e2e_s=end - began))

    def _asked(self, request: Request) -> dict[str, Json]:
        body = _body(request, self._model["id"])
        if not self._more:
            return {**body, "logprobs": True, "top_logprobs": TOPS}
        if request.sampling.logprobs is not None:
            raise UnsupportedError(
                "log-probabilities over SGLang's chat completions: its stream leaves some out (ask its own address)"
            )
        return {**body, **self._more}

    def _take(self, sample: _Sample, choice: Mapping[str, Json]) -> tuple[str, list[int]]:
        text = (choice.get("delta") or {}).get("content") or ""
        sample.text += text
        if len(sample.text) > _MOST_TEXT:
            raise EngineError(f"more than {_MOST_TEXT} characters came")
        before = len(sample.ids)
        for row in (choice.get("logprobs") or {}).get("content") or ():
            tops = [(self._id(each), float(each["logprob"])) for each in row.get("top_logprobs") or ()]
            sample.ids.append(self._id(row))
            sample.scores.append(TokenLogprob(sample.ids[-1], float(row["logprob"]), tuple(tops)))
        if len(sample.ids) > _MOST_TOKENS:
            raise EngineError(f"more than {_MOST_TOKENS} tokens came")
        if choice.get("finish_reason"):
            sample.reason = _REASONS.get(choice["finish_reason"], "stop")
            matched = choice.get("stop_reason", choice.get("matched_stop"))  # vLLM's name, and SGLang's
            sample.matched = matched if isinstance(matched, str) else None
        return text, sample.ids[before:]

    def _id(self, row: Mapping[str, Json]) -> int:
        spelled = row.get("bytes")
        return self._spelled.id_of(bytes(spelled) if isinstance(spelled, list) else str(row["token"]).encode())

    def _results(
        self, request: Request, samples: Sequence[_Sample], told: int, books: Usage, timing: Timing
    ) -> Iterator[Event]:
        count = sum(len(each.ids) for each in samples)
        if count and told and not 0 <= told - count <= len(samples):  # an end token may be counted and not told
            raise EngineError(f"usage says {told} tokens, the stream has {count}")
        for index, sample in enumerate(samples):
            if sample.reason is None:
                raise EngineError("the stream ended before its text did")
            size = len(sample.ids) or (told if len(samples) == 1 else 0)
            seconds = timing.e2e_s - timing.ttft_s
            rate = (size - 1) / seconds if size > 1 and seconds > 0 else 0.0
            result = Completion(
                text=sample.text, token_ids=tuple(sample.ids), finish_reason=sample.reason, matched_stop=sample.matched,
                logprobs=tuple(sample.scores), usage=replace(books, output_tokens=size, passes=books.verify_passes),
                timing=Timing(ttft_s=timing.ttft_s, e2e_s=timing.e2e_s, decode_tok_s=rate),
            )  # fmt: skip
            yield Done(request.id, index, result)


def _body(request: Request, model: str) -> dict[str, Json]:
    """The request in that API's fields; UnsupportedError for what has none."""
    params, grammar = request.sampling, request.grammar
    messages = [dict(each) for each in request.prompt if isinstance(each, Mapping)]
    refused = {
        "a prompt that is no chat": len(messages) != len(request.prompt),
        "a beam search": request.beam is not None,
        f"a grammar of kind {grammar.kind if grammar else ''}": grammar is not None and grammar.kind != "json_schema",
        "logit_bias": bool(params.logit_bias), "stop_ids": bool(params.stop_ids), "logprob_ids": bool(params.logprob_ids),
        "trace": request.trace, "speculate = False": not request.speculate,
    }  # fmt: skip
    for what in (what for what, holds in refused.items() if holds):
        raise UnsupportedError(f"{what} is not part of the chat completions API")
    body: dict[str, Json] = {
        "model": model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}, "n": params.n,
        "temperature": params.temperature, "max_tokens": params.max_tokens,
    }  # fmt: skip
    given: dict[str, tuple[Json, Json]] = {
        "top_p": (params.top_p, 1.0), "top_k": (params.top_k, 0), "min_p": (params.min_p, 0.0), "seed": (params.seed, None),
        "frequency_penalty": (params.frequency_penalty, 0.0), "presence_penalty": (params.presence_penalty, 0.0),
        "repetition_penalty": (params.repetition_penalty, 1.0), "min_tokens": (params.min_tokens, 0),
        "ignore_eos": (params.ignore_eos, False), "stop": (list(params.stop), []),
    }  # fmt: skip
    body |= {name: value for name, (value, neutral) in given.items() if value != neutral}
    if grammar is not None:
        schema = {"name": "answer", "strict": True, "schema": json.loads(grammar.source)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body
