"""EmbeddedEngine: a real model in this process, no server. Wiring only: model, KV, scheduler, a worker thread.

Requests of any number of threads are decoded together. `generate` takes a stream of requests and keeps a bounded number
of them in flight; everything else (`complete`, `beam`, `score`) is one request.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from toolkit.contracts import Capabilities, Done, Event, Failed, Prompt, Request, require
from toolkit.draft.contract import DRAFTERS, Source
from toolkit.engine.admission import Limits, admit, checked_ids, prompt_ids, reserve_blocks
from toolkit.engine.audit import ties_of
from toolkit.engine.breaker import Breaker
from toolkit.engine.calibrate import calibrate
from toolkit.engine.forward import KV_DTYPES, Forward
from toolkit.engine.front import Front
from toolkit.engine.harvest import Harvest
from toolkit.engine.intake import Intake, Sink
from toolkit.engine.job import Job, Loop
from toolkit.engine.load import load
from toolkit.engine.loops.beam import Best, beam, in_torch
from toolkit.engine.loops.plain import plain
from toolkit.engine.loops.score import Scores, score
from toolkit.engine.loops.speculative import Line as Speculated
from toolkit.engine.loops.speculative import speculative
from toolkit.engine.metrics import Metrics
from toolkit.engine.oversight import Oversight
from toolkit.engine.pace import Pace
from toolkit.engine.plan import Plan
from toolkit.engine.prefix_dir import open_prefix_dir
from toolkit.engine.scheduler import Scheduler
from toolkit.engine.sequence import Sequence as Line
from toolkit.engine.watch import Checks
from toolkit.engine.worker import Worker
from toolkit.errors import ContextError, ToolkitError, UnsupportedError
from toolkit.kv.quantised import QuantisedStore
from toolkit.kv.view import WIDE
from toolkit.model.decoder import Decoder
from toolkit.model.native.best import best
from toolkit.model.native.decoder import NativeDecoder
from toolkit.model.weights import DTYPES

IN_FLIGHT = 256  # requests that `generate` takes from its stream before the first of them ends
MOST_THREADS = 1024


class EmbeddedEngine(Front):
    """A model run in this process.

    model: "smollm2", a stored name, a GGUF file or a safetensors folder, or "tiny" (random weights, byte tokenizer).
    kv_blocks x block_size tokens of KV memory bound what runs together; batch_rows bounds the token rows of one pass.
    format: "int8" (native, exact integer sums), "int4" (the same with weights of 4 bits, head and embedding of 8), "float32" (torch), or
    "auto": int8 on the CPU where it was compiled and takes the model, torch otherwise. dtype is that of torch; int8 and int4 are
    packed from float32.
    kv_dtype: "auto" (keys and values as the model computes) or "q4" (4 bits a number, rotated: a seventh of float32's memory, and
    other outputs; a drafter's own keys stay as they are). q4 runs in torch: format "auto" then is float32, "int8" and "int4" are refused.
    drafter: a row of toolkit.draft.contract.DRAFTERS guesses ahead of sampled text (never of beams); outputs stay the same. draft:
    "tokens" (how far), "nodes" (how many in a tree), both left to measurement where not given, and the drafter's own options.
    audit: the share of speculated texts that the target reads again before their result is given; breaker: when speculation is put on
    hold (None: at the third fault among the last 1,000 speculated texts). `engine.breaker` and `engine.metrics` tell.
    prefix_dir: a folder that keeps full KV blocks of prompts across process runs, at most prefix_bytes of them (None: 2 GiB); results
    are the same, prompts that begin like earlier ones start sooner. Of this user alone: it holds what prompts said, in numbers.
    threads sets torch's thread count, which is one for the whole process (None leaves it alone).
    """

    def __init__(
        self,
        model: str | Path = "smollm2",
        *,
        drafter: str = "none",
        draft: Mapping[str, Any] | None = None,
        audit: float = 0.0,
        breaker: Breaker | None = None,
        device: str = "cpu",
        dtype: str = "float32",
        format: str = "auto",  # noqa: A002 - the word users know
        kv_blocks: int = 1024,
        block_size: int = 16,
        batch_rows: int = 512,
        prefix_cache: bool = True,
        prefix_dir: str | Path | None = None,
        prefix_bytes: int | None = None,
        kv_dtype: str = "auto",
        threads: int | None = None,
    ) -> None:
        plan = self._plan = Plan.of(drafter, draft or {})
        ok = isinstance(audit, int | float) and not isinstance(audit, bool) and 0.0 <= audit <= 1.0
        require(ok, "audit", audit, "a share from 0 to 1")
        require(breaker is None or isinstance(breaker, Breaker), "breaker", breaker, "None or a Breaker")
        require(dtype in DTYPES, "dtype", dtype, ", ".join(DTYPES))
        for name, value, least in (
            ("kv_blocks", kv_blocks, 1),
            ("block_size", block_size, 1),
            ("batch_rows", batch_rows, 2 * WIDE),
        ):
            require(isinstance(value, int) and value >= least, name, value, f"an integer >= {least}")
            require(not isinstance(value, bool), name, value, f"an integer >= {least}")
        ok = threads is None or (isinstance(threads, int) and 1 <= threads <= MOST_THREADS)
        require(ok, "threads", threads, f"None or an integer from 1 to {MOST_THREADS}")
        if threads is not None:
            torch.set_num_threads(threads)
        require(kv_dtype in KV_DTYPES, "kv_dtype", kv_dtype, ", ".join(KV_DTYPES))
        if kv_dtype != "auto" and format == "auto" and dtype == "float32":
            format = "float32"  # noqa: A001
        loaded = load(model, device=device, dtype=dtype, format=format)
        decoder, self.tokenizer, mark = loaded.decoder, loaded.tokenizer, loaded.mark
        self._source = plan.source(loaded, str(model))
        self._forward = Forward(
            decoder,
            vocab_size=min(self.tokenizer.vocab_size, decoder.config.vocab_size),
            kv_blocks=kv_blocks,
            block_size=block_size,
            device=torch.device(device),
            prefix_cache=prefix_cache,
            kv_dtype=kv_dtype,
        )
        self._forward.files = open_prefix_dir(self._forward, mark, prefix_dir, most_bytes=prefix_bytes)
        costs = calibrate(self._forward, batch_rows=batch_rows) if self._source is not None else None
        self._pace = plan.pace(costs) if costs is not None else None
        self._oversight = Oversight(share=float(audit), ties=ties_of(self.format, kv_dtype), breaker=breaker or Breaker())
        self.metrics = Metrics(self._oversight.breaker, self._forward.files.counts if self._forward.files is not None else {})
        self._line = Speculated  # what one sample's speculation is
        self._likeliest = _likeliest(decoder)
        self._limits = Limits(decoder.config.context, kv_blocks, block_size)
        self._capabilities = Capabilities(
            engine="embedded",
            model=str(model),
            fingerprint=mark,
            context=decoder.config.context,
            vocab_size=self.tokenizer.vocab_size,
            grammars=("json_schema", "regex", "lark", "choices"),
            beam=True,
            score=True,
            drafters=("none", *DRAFTERS),
        )
        self._worker = Worker(Scheduler(self._forward, batch_rows=batch_rows, costs=costs), torch.inference_mode)
        weakref.finalize(self, self._worker.close)  # also at exit: a thread inside torch must not outlive the interpreter
        self._numbers = itertools.count(1)
        self._jobs: dict[str, Job] = {}
        self._intake = Intake(self._submit, self.cancel, in_flight=IN_FLIGHT)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def format(self) -> str:
        """What runs: "int8 (kernel set)", "int4 (kernel set)" or torch's dtype."""
        decoder = self._forward.decoder
        if isinstance(decoder, NativeDecoder):
            return f"{decoder.format} ({decoder.kernels})"
        return str(decoder.dtype).removeprefix("torch.")

    @property
    def kv_dtype(self) -> str:
        """What keys and values are kept in: torch's name of a dtype, or "q4"."""
        store = self._forward.store
        return f"q{store.bits}" if isinstance(store, QuantisedStore) else str(store.keys.dtype).removeprefix("torch.")

    @property
    def parts(self) -> tuple[Decoder | NativeDecoder, Source | None]:
        """What computes and who guesses for it, for those who count what they cost; only the engine's thread may run them."""
        return self._forward.decoder, self._source

    @property
    def draft(self) -> dict[str, Any]:
        """How far it looks ahead (None = by measurement), and the options of the drafter's own that were given."""
        return {"tokens": self._plan.tokens, "nodes": self._plan.nodes, **self._plan.options}

    @contextlib.contextmanager
    def drafting(self, *, tokens: int, nodes: int) -> Iterator[None]:
        """Within it a draft that is left to measurement is so large, whether or not that pays: for those who check what drafts do."""
        pace = self._pace
        if pace is not None and pace.fixed(1) is None:
            self._pace = Pace(pace.costs, tokens=tokens, nodes=nodes)
        try:
            yield
        finally:
            self._pace = pace

    @property
    def breaker(self) -> Breaker:
        """What puts speculation on hold; `reset(reason)` lets it go on."""
        return self._oversight.breaker

    @property
    def kv_blocks_in_use(self) -> int:
        """Blocks held by requests when the last one ended: 0 when nothing runs. What only the prefix cache keeps is free."""
        return self._worker.blocks_held

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        """Run requests together; closing the iterator cancels the rest.

        Requests are taken from the stream one by one while events come, at most IN_FLIGHT at a time.
        """
        return self._intake.run(requests)

    def score(self, prompt: Prompt, continuations: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of every token of every continuation after the prompt; an empty continuation gives []."""
        lines = [checked_ids(tokens, self.tokenizer) for tokens in continuations if len(tokens)]
        ids = prompt_ids(prompt, self.tokenizer)
        longest = max(map(len, lines), default=0)
        if len(ids) + longest > self._limits.context:
            raise ContextError(
                f"a prompt of {len(ids)} tokens and a continuation of {longest} exceed the context of {self._limits.context}",
                hint="shorten the prompt or the continuations",
            )
        heard: queue.SimpleQueue[Scores | Event] = queue.SimpleQueue()
        reserve = reserve_blocks(len(ids), [0, *map(len, lines)], self._limits)
        request = Request(prompt=ids, id=f"score-{next(self._numbers)}")
        self._worker.submit(
            Job(
                request,
                ids,
                self.tokenizer,
                None,
                longest,
                reserve,
                lambda job, root: score(job, root, lines),
                heard.put,
            )
        )
        answer = heard.get()
        if isinstance(answer, Failed):
            raise answer.error
        assert isinstance(answer, list)
        found = iter(answer)
        return [next(found) if len(tokens) else [] for tokens in continuations]

    def cancel(self, request_id: str) -> None:
        """Ask a running request to stop at its next token; an id that is not running is left alone."""
        job = self._jobs.get(request_id)
        if job is not None:
            job.cancelled = True

    def close(self) -> None:
        """Stop the worker; requests that still run end in EngineError."""
        self._worker.close()
        if self._forward.files is not None:
            self._forward.files.close()

    def __reduce__(self) -> str:
        raise UnsupportedError(
            "an engine is a running thread: it cannot be copied or pickled", hint="open one in every process"
        )

    def __enter__(self) -> EmbeddedEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _submit(self, request: Request, sink: Sink) -> None:
        """Hand a request to the worker, or tell at once why it cannot run."""
        results = 1 if request.beam else request.sampling.n
        try:
            loop, spare, note = self._loop(request)
            checks = Checks.of(request) if request.beam is None else None
            admitted = admit(request, self.tokenizer, self._limits, spare=spare, apart=spare > 0 and request.sampling.n > 1)
        except ToolkitError as error:
            self.metrics.heard(sink, results)(Failed(request.id, error))
            return
        job = Job(
            request, admitted.prompt, self.tokenizer, admitted.grammar, admitted.max_tokens, admitted.reserve, loop, sink,
            checks, note,
        )  # fmt: skip
        left = itertools.count(results - 1, -1)

        def tell(event: Event) -> None:
            """Pass an event on; a job is forgotten with its last one."""
            over = isinstance(event, Failed) or (isinstance(event, Done) and next(left) == 0)
            if over and self._jobs.get(request.id) is job:
                del self._jobs[request.id]
            sink(event)

        job.sink = self.metrics.heard(tell, results)
        self._jobs[request.id] = job
        self._worker.submit(job)

    def _loop(self, request: Request) -> tuple[Callable[[Job, Line], Loop], int, tuple[str, ...]]:
        """The loop that decodes a request, the cache slots that its drafts may take beside its text, what to tell the caller."""
        if request.beam is not None:
            return partial(_beam, self._likeliest), 0, ()
        source, pace, oversight, line = self._source, self._pace, self._oversight, self._line
        if source is None or pace is None or not request.speculate:
            return plain, 0, ()
        if oversight.breaker.is_held:
            return plain, 0, (f"decoded without speculation, which is on hold: {oversight.breaker.reason}",)
        return lambda job, root: speculative(job, root, source, pace, oversight, line), pace.widest(source.chances), ()


def _likeliest(decoder: Decoder | NativeDecoder) -> Best:
    """What finds the likeliest tokens of a beam."""
    if isinstance(decoder, NativeDecoder):
        return partial(best, kernels=decoder.kernel_set, threads=decoder.threads)
    return in_torch


def _beam(likeliest: Best, job: Job, root: Line) -> Loop:
    """The beam loop with a harvest of its own, its result told when the search ends."""
    params = job.request.beam
    assert params is not None
    partial = job.grammar.partial if job.grammar else ()
    harvest = Harvest(params, job.tokenizer, job.request.grammar, room=job.max_tokens, partial=partial)
    yield from beam(job, root, harvest, likeliest=likeliest)
    tokens = harvest.answer_tokens
    job.tell(Done(job.id, 0, harvest.result(job.usage(tokens), job.timing(tokens))))
