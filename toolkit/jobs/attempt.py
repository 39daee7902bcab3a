"""Attempt: one record through schema, prompt, decoding, validation and grounding, to one line.

In: a Record or BadRecord.   Out: an Outcome, the line to be written and whether it is a result or a failure.
Knows nothing about: files, order, other records.
Invariants: every failure of the record becomes an Outcome with the stage it failed at (read | schema | prompt | decode | validate |
merge | ground); what may have been the engine's bad moment is tried again, as often as the budget allows; an exception leaves only
when the engine does not run any more or the job was stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from toolkit.contracts import BeamResult, Engine, Grammar, Json, Request, SamplingParams
from toolkit.errors import (
    CancelledError,
    ContextError,
    EngineError,
    MissingExtraError,
    NoValidError,
    SchemaError,
    ToolkitError,
)
from toolkit.grammar.types import grammar_of
from toolkit.jobs.budget import RetryBudget
from toolkit.jobs.chunk import Chunk, chunks_of
from toolkit.jobs.deadline import TimedOutError, within
from toolkit.jobs.finish import StageError, finished
from toolkit.jobs.prompt import PromptMaker
from toolkit.jobs.read import MAX_RAW_CHARS, BadRecord, Record
from toolkit.jobs.spec import JobSpec
from toolkit.results import beam_result, only_result
from toolkit.schema import check_schema, parse_json
from toolkit.validate.check import Validator

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
ALIVE_S = 60.0  # for an engine to show that it still decodes, where a record that timed out raises the question


@dataclass(frozen=True, slots=True)
class Outcome:
    """`line` goes to the output where `ok`, to the errors file otherwise. `troubled`: an engine's error or a timeout on the way."""

    ok: bool
    line: Mapping[str, Json]
    usage: Mapping[str, int] = field(default_factory=dict)
    troubled: bool = False
    index: int = -1  # of the record


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds for one try of a record (None = any), tries after the first, and the budget of the job that they are taken from."""

    record_timeout_s: float | None = None
    retries: int = 0
    budget: RetryBudget = field(default_factory=lambda: RetryBudget(0.0))


class Attempt:
    """A callable for worker threads; `schema` and `grammar` are None where each record brings its own."""

    def __init__(
        self, engine: Engine, spec: JobSpec, schema: Json, grammar: Grammar | None, patience: Patience | None = None
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._schema = schema
        self._grammar = grammar
        self._patience = patience or Patience()
        self._prompt = PromptMaker(spec)
        self._judge = None if grammar is None else Validator(grammar)
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._stopped = threading.Event()

    def __call__(self, record: Record | BadRecord, request_id: str) -> Outcome:
        """The outcome of one record; EngineError if the engine has stopped running, CancelledError after `stop`."""
        if isinstance(record, BadRecord):
            return _failure(record, "read", record.reason, record.raw)
        self._patience.budget.earn()
        tries = 0
        while True:
            name = f"{request_id}~{tries}" if tries else request_id
            tries += 1
            try:
                ok = finished(record, self._spec, *self._decoded(record, name))
                return Outcome(True, {"id": record.id, "tries": tries, **ok.line}, ok.usage, tries > 1, record.index)
            except StageError as failed:
                error = failed.error
                sick = failed.stage == "decode" and isinstance(error, EngineError)
                self._refuse_dead(error)
                if sick and tries <= self._patience.retries and self._patience.budget.spend():
                    self._stopped.wait(min(FIRST_PAUSE_S * 2 ** (tries - 1), LONGEST_PAUSE_S))
                    continue
                stage = _stage(error, failed.stage)
                more = {"text": record.text, "tries": tries}
                return _failure(record, stage, _reason(error), _raw(error, record), troubled=sick, **more)

    def stop(self) -> None:
        """End what is running; whatever is started later fails at once."""
        self._stopped.set()
        with self._lock:
            running = tuple(self._running)
        for request_id in running:
            self._engine.cancel(request_id)

    def _decoded(self, record: Record, name: str) -> tuple[Json, Validator, list[Chunk], list[BeamResult]]:
        """Schema, its judge, the pieces of the text and the result of each. StageError with whatever went wrong."""
        ends = None if self._patience.record_timeout_s is None else time.monotonic() + self._patience.record_timeout_s
        stage = "schema"
        try:
            schema, grammar, judge = self._language(record)
            stage = "prompt"
            pieces = self._pieces(record.text)
            results = []
            for number, piece in enumerate(pieces):
                stage = "prompt"
                text = record.text[piece.start : piece.end]
                prompt = self._prompt(text=text, record_id=record.id, row=record.row, schema=schema)
                stage = "decode"
                own = f"{name}.{number}" if number else name
                results.append(self._decode(Request(id=own, prompt=prompt, beam=self._spec.beam, grammar=grammar), ends))
            return schema, judge, pieces, results
        except Exception as error:
            raise StageError(stage, error) from None

    def _language(self, record: Record) -> tuple[Json, Grammar, Validator]:
        if self._grammar is not None and self._judge is not None:
            return self._schema, self._grammar, self._judge
        name = self._spec.schema_field
        assert name is not None  # JobSpec: a schema or a schema field
        if name not in record.row:
            raise SchemaError(f"schema field {name!r} is missing: the record has {', '.join(sorted(record.row))}")
        schema = record.row[name]
        schema = parse_json(schema) if isinstance(schema, str) else schema
        if not isinstance(schema, dict):
            raise SchemaError(f"schema field {name!r} is a {type(schema).__name__}: it must be an object, or JSON text of one")
        check_schema(schema)
        grammar = grammar_of(schema)
        return schema, grammar, Validator(grammar)

    def _pieces(self, text: str) -> list[Chunk]:
        size = self._spec.chunk_tokens
        if size is None:
            return [Chunk(0, len(text), 0)]
        return chunks_of(text, self._engine.tokenizer, size=size, overlap=self._spec.chunk_overlap)

    def _decode(self, request: Request, ends: float | None) -> BeamResult:
        with self._lock:
            if self._stopped.is_set():
                raise CancelledError("the job was stopped")
            self._running.add(request.id)
        try:
            left = None if ends is None else ends - time.monotonic()
            cancel = partial(self._engine.cancel, request.id)
            limit = self._patience.record_timeout_s
            return within(left, lambda: beam_result(self._engine.generate([request])), cancel, limit=limit)
        finally:
            with self._lock:
                self._running.discard(request.id)

    def _refuse_dead(self, error: Exception) -> None:
        """Raise where the engine does not decode any more: one that died would turn every record left into a failure."""
        if isinstance(error, ToolkitError) and not isinstance(error, EngineError | MissingExtraError):
            return
        if self._survives(error):
            return
        if isinstance(error, ToolkitError) and not isinstance(error, TimedOutError):
            raise error
        text = str(error) if isinstance(error, ToolkitError) else f"{type(error).__name__}: {error}"
        raise EngineError(f"the engine stopped running: {text}", hint="--resume goes on") from error

    def _survives(self, error: Exception) -> bool:
        if self._stopped.is_set() or isinstance(error, MissingExtraError):
            return False
        request = Request(prompt="a", sampling=SamplingParams(max_tokens=1))
        seconds = None if self._patience.record_timeout_s is None else max(ALIVE_S, self._patience.record_timeout_s)
        try:
            within(seconds, lambda: only_result(self._engine.generate([request])), lambda: None)
        except Exception:
            return False
        return True


def _stage(error: Exception, stage: str) -> str:
    """Engines compile grammars and measure prompts: their errors belong to the stage that made those."""
    if isinstance(error, SchemaError):
        return "schema"
    if isinstance(error, ContextError):
        return "prompt"
    return "validate" if isinstance(error, NoValidError) else stage


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ToolkitError) else f"internal error: {type(error).__name__}: {error}"


def _raw(error: Exception, record: Record) -> str:
    return error.texts[0] if isinstance(error, NoValidError) and error.texts else record.text


def _failure(record: Record | BadRecord, stage: str, reason: str, raw: str, *, troubled: bool = False, **more: Json) -> Outcome:
    line = {
        "id": record.id,
        "where": record.where,
        "stage": stage,
        "reason": reason[:MAX_RAW_CHARS],
        "raw": raw[:MAX_RAW_CHARS],
    }
    cut = {name: value[:MAX_RAW_CHARS] if isinstance(value, str) else value for name, value in more.items()}
    return Outcome(False, {**line, **cut}, troubled=troubled, index=record.index)
