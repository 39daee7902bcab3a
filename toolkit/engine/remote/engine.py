"""SGLangEngine: one or several running SGLang servers as an engine. Wiring only: probe, fleet, lanes, a pool of threads.

Beam searches run here, in one lane (a worker thread) a server, all of a lane's live lines in one request a step. Text is sampled by
the servers, a thread a request. What a server cannot do as asked is refused by name.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from toolkit.contracts import Capabilities, Done, Engine, Event, Failed, Json, Prompt, Request, Tokenizer
from toolkit.engine.admission import admit, checked_ids, prompt_ids
from toolkit.engine.breaker import Breaker
from toolkit.engine.front import Front
from toolkit.engine.intake import Intake, Sink
from toolkit.engine.job import Job
from toolkit.engine.metrics import Metrics
from toolkit.engine.remote import rows
from toolkit.engine.remote.connection import Connection
from toolkit.engine.remote.fleet import Fleet, Server
from toolkit.engine.remote.opened import checked_options, open_servers
from toolkit.engine.remote.overseer import overseer
from toolkit.engine.remote.probe import Facts, server_info
from toolkit.engine.remote.relax import constraint
from toolkit.engine.remote.reply import batch, output_ids
from toolkit.engine.remote.rounds import Clock, Cost, Rounds
from toolkit.engine.remote.sampling import refuse
from toolkit.engine.remote.scoring import line_scores
from toolkit.engine.remote.search import search
from toolkit.engine.remote.texts import Text, run_text
from toolkit.engine.watch import Checks
from toolkit.engine.worker import Worker
from toolkit.errors import ContextError, EngineError, ToolkitError, UnsupportedError

IN_FLIGHT = 256  # requests taken from a stream before the first of them ends
TEXTS = 64  # threads that wait for a server's text


@dataclass(frozen=True, slots=True)
class _Lane:
    server: Server
    rounds: Rounds
    worker: Worker


class SGLangEngine(Front):
    """SGLang servers that serve one model.

    url: the root of a server or of SGLang's router; `urls` more of them, which share the work (least loaded first, the dead are
    left out until they answer again). tokenizer: a model folder, a stored model or a Tokenizer; None reads the server's own model path.
    api_key, verify (False or a file of certificates), timeout_s (the longest wait for a reply): see Connection. patience_s: how
    long a request waits for a server to come back when none is left. context shortens what the servers tell; a router tells none.
    audit, breaker: as in EmbeddedEngine, for servers that speculate. fallback: the URL of a server of the same model without
    speculation, or an engine: it writes again what was found to be wrong, what asks for no speculation, and all texts on hold.
    Raises EngineError for a server that cannot be reached or whose tokenizer is another, UsageError for a wrong API key.
    """

    def __init__(
        self,
        url: str,
        *,
        urls: Sequence[str] = (),
        tokenizer: Tokenizer | str | Path | None = None,
        api_key: str | None = None,
        verify: bool | str = True,
        timeout_s: float = 600.0,
        patience_s: float = 120.0,
        context: int | None = None,
        audit: float = 0.0,
        breaker: Breaker | None = None,
        fallback: Engine | str | None = None,
    ) -> None:
        names = checked_options(url, urls, tokenizer, context, timeout_s=timeout_s, patience_s=patience_s)
        options: dict[str, Any] = {"api_key": api_key, "verify": verify, "timeout_s": timeout_s}
        connections = [Connection(each, **options) for each in names]
        self._owned: SGLangEngine | None = None
        try:
            self._opened = open_servers(connections, tokenizer, context)
            if isinstance(fallback, str):
                self._owned = SGLangEngine(fallback, tokenizer=self._opened.tokenizer, **options)
            second = self._owned if isinstance(fallback, str) else fallback
            self._overseer = overseer(self._opened, second, audit=audit, breaker=breaker)
            self._open(connections, patience_s)
        except BaseException:
            for each in connections:
                each.close()
            if self._owned is not None:
                self._owned.close()
            raise

    def _open(self, connections: Sequence[Connection], patience_s: float) -> None:
        self.tokenizer: Tokenizer = self._opened.tokenizer
        self._limits, self._capabilities = self._opened.limits, self._opened.capabilities
        self._fleet = Fleet(connections, self._opened.same, patience_s=patience_s)
        self._lanes = [self._lane(each) for each in self._fleet.servers]
        self._texts = ThreadPoolExecutor(TEXTS, thread_name_prefix="toolkit-text")
        self._jobs: dict[str, Job] = {}
        self._left: dict[str, int] = {}  # results of each job still to come
        self._lock = threading.Lock()
        self._intake = Intake(self._submit, self.cancel, in_flight=IN_FLIGHT)
        self._closed = threading.Event()
        parts = (self._closed, self._fleet, [each.worker for each in self._lanes], self._texts)
        weakref.finalize(self, _close, *parts)  # also at exit: no thread may outlive the interpreter inside a request

    def _lane(self, server: Server) -> _Lane:
        alone = any(each.router for each in self._opened.facts)
        rounds = Rounds(
            self._fleet, server, vocab_size=self.tokenizer.vocab_size, context=self._limits.context,
            at_once=self._opened.at_once, alone=alone,
        )  # fmt: skip
        return _Lane(server, rounds, Worker(rounds))

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of this engine's scores must know, such as a server option that makes them another model's."""
        return self._opened.notes

    @property
    def breaker(self) -> Breaker:
        """What puts the servers' speculation on hold; `reset(reason)` lets it go on."""
        return self._overseer.breaker

    @property
    def metrics(self) -> Metrics:
        """What was done so far, as counters."""
        return self._overseer.metrics

    @property
    def facts(self) -> Facts:
        """What the first server says about itself."""
        return self._opened.facts[0]

    @property
    def urls(self) -> tuple[str, ...]:
        """The servers' addresses."""
        return tuple(each.connection.url for each in self._fleet.servers)

    @property
    def kv_blocks_in_use(self) -> int:
        """Lines of beam searches that run: 0 when nothing does. The servers keep the keys and values."""
        return sum(each.worker.blocks_held for each in self._lanes)

    @property
    def clock(self) -> Clock:
        """Rounds so far and the seconds in them, all lanes together."""
        clocks = [each.rounds.clock for each in self._lanes]
        names = [each.name for each in fields(Clock)]
        return Clock(**{name: sum(getattr(each, name) for each in clocks) for name in names})

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        """Run requests together; closing the iterator cancels the rest."""
        return self._intake.run(requests)

    def score(self, prompt: Prompt, continuations: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of every token of every continuation after the prompt; an empty continuation gives []."""
        self._refuse_closed()
        lines = [checked_ids(tokens, self.tokenizer) for tokens in continuations if len(tokens)]
        ids = prompt_ids(prompt, self.tokenizer)
        longest = max(map(len, lines), default=0)
        if len(ids) + longest > self._limits.context:
            raise ContextError(
                f"a prompt of {len(ids)} tokens and a continuation of {longest} exceed the {self._limits.context} of the server",
                hint="shorten the prompt or the continuations",
            )
        rest = iter(line_scores(self._fleet, ids, lines, self._opened.at_once))
        return [next(rest) if len(tokens) else [] for tokens in continuations]

    def server_info(self) -> Mapping[str, Json]:
        """What the first server says about itself: its effective arguments, and its state."""
        self._refuse_closed()
        return server_info(self._fleet.servers[0].connection)

    def server_beam(self, prompt: Prompt, *, width: int, max_tokens: int) -> tuple[str, int]:
        """The server's own beam search, which knows no constraint: (text of the best beam, its tokens). For comparison."""
        self._refuse_closed()
        params = {**rows.NEUTRAL, "beam_width": width, "max_new_tokens": max_tokens}
        ids = prompt_ids(prompt, self.tokenizer)
        reply, _ = self._fleet.post({"input_ids": [ids], "sampling_params": params}, lines=width)
        (one,) = batch(reply, 1)
        given = output_ids(one, self.tokenizer.vocab_size)
        return self.tokenizer.decode(given), len(given)

    def flush_cache(self) -> None:
        """Empty the servers' prefix caches; EngineError where one has work to do and does not."""
        self._refuse_closed()
        for each in self._fleet.servers:
            each.connection.call("/flush_cache")

    def cancel(self, request_id: str) -> None:
        """Ask a running request to stop; an id that is not running is left alone."""
        with self._lock:
            job = self._jobs.get(request_id)
        if job is not None:
            job.cancelled = True

    def close(self) -> None:
        """Stop; requests that still run end in EngineError."""
        if self._owned is not None:
            self._owned.close()
        _close(self._closed, self._fleet, [each.worker for each in self._lanes], self._texts)

    def __reduce__(self) -> str:
        raise UnsupportedError("an engine is running threads: it cannot be copied or pickled", hint="open one in every process")

    def __enter__(self) -> SGLangEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _refuse_closed(self) -> None:
        if self._closed.is_set():
            raise EngineError("the engine is closed", hint="open a new one")

    def _submit(self, request: Request, sink: Sink) -> None:
        """Hand a request to a lane or a thread, or tell at once why it cannot run."""
        self._refuse_closed()
        try:
            self._start(request, sink)
        except ToolkitError as error:
            self.metrics.heard(sink, 1)(Failed(request.id, error))

    def _start(self, request: Request, sink: Sink) -> None:
        admitted = admit(request, self.tokenizer, self._limits)
        cost, results = Cost(), 1 if request.beam is not None else request.sampling.n
        loop = partial(search, cost, self.notes)
        job = Job(
            request, admitted.prompt, self.tokenizer, admitted.grammar, admitted.max_tokens, admitted.reserve, loop,
            partial(self._told, request.id, self.metrics.heard(sink, results)), None if request.beam is not None else Checks.of(request),
        )  # fmt: skip
        second = self._overseer.elsewhere(request)
        text = None if request.beam is not None or second is not None else self._text(job)
        with self._lock:
            self._jobs[request.id] = job
            self._left[request.id] = results
        try:
            if second is not None:
                self._texts.submit(self._overseer.relay, second, job)
            else:
                self._hand(job, cost, text)
        except (ToolkitError, RuntimeError) as error:  # the pool's own, once it was shut down
            with self._lock:
                del self._jobs[request.id], self._left[request.id]
            raise error if isinstance(error, ToolkitError) else EngineError("the engine is closed") from error

    def _hand(self, job: Job, cost: Cost, text: Text | None) -> None:
        """A text to a thread, a beam search to the lane of the server with the least to do."""
        if text is not None:
            self._texts.submit(run_text, text)
            return
        server = self._fleet.least_loaded()
        lane = next(each for each in self._lanes if each.server is server)
        lane.rounds.costs[job] = cost
        try:
            lane.worker.submit(job)
        except ToolkitError:
            del lane.rounds.costs[job]
            raise

    def _text(self, job: Job) -> Text:
        for facts in self._opened.facts:
            refuse(job.request, facts)
        grammar = job.request.grammar
        asked = None if grammar is None else constraint(grammar, self.facts.grammar_backend)
        return Text(job, self._fleet, asked, self._overseer)

    def _told(self, request_id: str, sink: Sink, event: Event) -> None:
        """Pass an event on; a request that failed or gave its last result is forgotten."""
        with self._lock:
            if request_id not in self._left:
                return  # it ended already
            if isinstance(event, Done):
                self._left[request_id] -= 1
            if isinstance(event, Failed) or self._left[request_id] == 0:
                del self._jobs[request_id], self._left[request_id]
        sink(event)


def _close(closed: threading.Event, fleet: Fleet, workers: Sequence[Worker], texts: ThreadPoolExecutor) -> None:
    closed.set()
    fleet.wake()
    for each in workers:
        each.close()
    texts.shutdown(wait=True)
    fleet.close()
