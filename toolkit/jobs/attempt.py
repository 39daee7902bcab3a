"""Attempt: one record through schema, prompt, decoding and validation, to one line.

In: a Record or BadRecord.   Out: an Outcome, the line to be written and whether it is a result or a failure.
Knows nothing about: files, order, other records.
Invariants: every failure of the record becomes an Outcome with the stage it failed at (read | schema | prompt | decode | validate);
an exception leaves only when the engine does not run any more or the job was stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.contracts import BeamResult, Engine, Grammar, Json, Request, SamplingParams
from toolkit.errors import (
    CancelledError,
    ContextError,
    EngineError,
    InputError,
    MissingExtraError,
    NoValidError,
    SchemaError,
    ToolkitError,
)
from toolkit.grammar.types import grammar_of
from toolkit.jobs.prompt import PromptMaker
from toolkit.jobs.read import MAX_RAW_CHARS, BadRecord, Record
from toolkit.jobs.spec import JobSpec
from toolkit.results import beam_result, json_text, only_result, result_fields
from toolkit.schema import check_schema, parse_json
from toolkit.validate.check import Validator

COUNTED = ("input_tokens", "cached_tokens", "output_tokens", "forced_tokens", "passes", "rows")
COUNTED_REMOTE = ("requests", "tokens_sent")  # 0 without a server, and then left out


@dataclass(frozen=True, slots=True)
class Outcome:
    """`line` goes to the output where `ok`, to the errors file otherwise."""

    ok: bool
    line: Mapping[str, Json]
    usage: Mapping[str, int] = field(default_factory=dict)


class Attempt:
    """A callable for worker threads; `schema` and `grammar` are None where each record brings its own."""

    def __init__(self, engine: Engine, spec: JobSpec, schema: Json, grammar: Grammar | None) -> None:
        self._engine = engine
        self._spec = spec
        self._schema = schema
        self._grammar = grammar
        self._prompt = PromptMaker(spec)
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._stopped = False

    def __call__(self, record: Record | BadRecord, request_id: str) -> Outcome:
        """The outcome of one record; EngineError if the engine has stopped running, CancelledError after `stop`."""
        if isinstance(record, BadRecord):
            return _failure(record, "read", record.reason, record.raw)
        stage = "schema"
        try:
            schema, grammar = self._language(record)
            stage = "prompt"
            prompt = self._prompt(text=record.text, record_id=record.id, row=record.row, schema=schema)
            stage = "decode"
            result = self._decode(Request(id=request_id, prompt=prompt, beam=self._spec.beam, grammar=grammar))
            stage = "validate"
            return _checked(record, result, grammar)
        except ToolkitError as error:
            if isinstance(error, EngineError | MissingExtraError) and not self._survives(error):
                raise
            return _failure(record, _stage(error, stage), str(error), _raw(error, record), text=record.text)
        except Exception as error:
            if not self._survives(error):
                raise EngineError(
                    f"the engine stopped running: {type(error).__name__}: {error}", hint="--resume goes on"
                ) from error
            return _failure(record, stage, f"internal error: {type(error).__name__}: {error}", record.text, text=record.text)

    def stop(self) -> None:
        """End what is running; whatever is started later fails at once."""
        with self._lock:
            self._stopped = True
            running = tuple(self._running)
        for request_id in running:
            self._engine.cancel(request_id)

    def _language(self, record: Record) -> tuple[Json, Grammar]:
        if self._grammar is not None:
            return self._schema, self._grammar
        name = self._spec.schema_field
        assert name is not None  # JobSpec: a schema or a schema field
        if name not in record.row:
            raise SchemaError(f"schema field {name!r} is missing: the record has {', '.join(sorted(record.row))}")
        schema = record.row[name]
        schema = parse_json(schema) if isinstance(schema, str) else schema
        if not isinstance(schema, dict):
            raise SchemaError(f"schema field {name!r} is a {type(schema).__name__}: it must be an object, or JSON text of one")
        check_schema(schema)
        return schema, grammar_of(schema)

    def _decode(self, request: Request) -> BeamResult:
        with self._lock:
            if self._stopped:
                raise CancelledError("the job was stopped")
            self._running.add(request.id)
        try:
            return beam_result(self._engine.generate([request]))
        finally:
            with self._lock:
                self._running.discard(request.id)

    def _survives(self, error: Exception) -> bool:
        """Does the engine still decode? One that died would turn every record left into a failure."""
        if self._stopped or isinstance(error, MissingExtraError):
            return False
        try:
            only_result(self._engine.generate([Request(prompt="a", sampling=SamplingParams(max_tokens=1))]))
        except Exception:
            return False
        return True


def _checked(record: Record, result: BeamResult, grammar: Grammar) -> Outcome:
    """The validator has the last word, whatever the engine says about its own result; and the line must be one that can be read."""
    report = Validator(grammar).check(result.text)
    if not report.valid:
        raise NoValidError(report.violations[0].message, texts=(result.text,))
    line = {"id": record.id, **result_fields(result), "value": report.value, "valid": True, "where": record.where}
    try:
        parse_json(json_text(line))
    except InputError as error:
        raise NoValidError(f"the output line could not be read back: {error.message}", texts=(result.text,)) from None
    usage = {name: getattr(result.usage, name) for name in (*COUNTED, *COUNTED_REMOTE)}
    return Outcome(True, line, {name: count for name, count in usage.items() if count or name in COUNTED})


def _stage(error: ToolkitError, stage: str) -> str:
    """Engines compile grammars and measure prompts: their errors belong to the stage that made those."""
    if isinstance(error, SchemaError):
        return "schema"
    if isinstance(error, ContextError):
        return "prompt"
    return "validate" if isinstance(error, NoValidError) else stage


def _raw(error: ToolkitError, record: Record) -> str:
    return error.texts[0] if isinstance(error, NoValidError) and error.texts else record.text


def _failure(record: Record | BadRecord, stage: str, reason: str, raw: str, **more: str) -> Outcome:
    line = {
        "id": record.id,
        "where": record.where,
        "stage": stage,
        "reason": reason[:MAX_RAW_CHARS],
        "raw": raw[:MAX_RAW_CHARS],
    }
    return Outcome(False, {**line, **{name: text[:MAX_RAW_CHARS] for name, text in more.items()}})
