"""Finish: what an engine gave for a record, judged, merged, grounded, to the fields of one line.

Fields beside those of `results.result_fields`:
    id, where         of the record (file:line)
    spans             {pointer: [start, end] in characters of the text, or null}; absent with ground = "off"
    span_detail       {pointer: {method: exact | normalised | fuzzy, distance}} of those found
    needs_review      whether somebody should look, review_reasons: [{path, reason, ...}] why
    chunks            only of a text in pieces: [{start, end, tokens, value, score, confidence, alternatives}]
    provenance        only of a text in pieces: {pointer: number of the piece that the value there comes from}

In: a record, the results of its pieces.   Out: a Finished line, or StageError.
Knows nothing about: files, order, engines.
Invariants: the validator has the last word over the value that is written, whatever the engine says about its own result; a line
can be read back; needs_review comes last (jobs.lines reads it there without parsing the line). A value merged of several pieces has no score of its own: score and sum_logprob are null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from toolkit.contracts import BeamResult, Json, Timing
from toolkit.errors import InputError, NoValidError
from toolkit.jobs.chunk import Chunk
from toolkit.jobs.doubt import doubts
from toolkit.jobs.ground import Grounded, Source
from toolkit.jobs.merge import Merged, Piece, merge
from toolkit.jobs.read import Record
from toolkit.jobs.spec import JobSpec
from toolkit.results import json_text, result_fields
from toolkit.schema import MAX_DEPTH, parse_json
from toolkit.validate.check import Validator

COUNTED = ("input_tokens", "cached_tokens", "output_tokens", "forced_tokens", "passes", "rows")
PLAIN_CHARS = 10_000  # of one text in a line that is surely short enough for the reader
_SURROGATE = re.compile("[\ud800-\udfff]")
PEAKS = ("kv_blocks_peak", "kv_blocks_shared")
COUNTED_REMOTE = ("requests", "tokens_sent")  # 0 without a server, and then left out


class StageError(Exception):
    """What went wrong, and at which stage."""

    def __init__(self, stage: str, error: Exception) -> None:
        super().__init__(stage, error)
        self.stage, self.error = stage, error


@dataclass(frozen=True, slots=True)
class Finished:
    """The line of a record, and what its results cost together."""

    line: Mapping[str, Json]
    usage: Mapping[str, int]


def finished(
    record: Record, spec: JobSpec, schema: Json, judge: Validator, pieces: Sequence[Chunk], results: Sequence[BeamResult]
) -> Finished:
    """The line of a record whose pieces (one, where it was not cut) gave these results."""
    stage = "validate"
    try:
        values = [_checked(result, judge) for result in results]
        line: dict[str, Json] = {"id": record.id, "where": record.where}
        near: dict[str, tuple[int, int]] | None = None
        if len(pieces) == 1:
            line |= {**result_fields(results[0]), "value": values[0], "valid": True}
        else:
            stage = "merge"
            merged = _merged(spec, judge, values, results)
            near = {at: (pieces[from_.piece].start, pieces[from_.piece].end) for at, from_ in merged.origins.items()}
            line |= _merged_fields(merged, pieces, values, results)
        stage = "ground"
        grounded = _grounded(record.text, spec, schema, line["value"], near)
        if grounded is not None:
            line |= _span_fields(grounded)
        missing = grounded.missing if grounded is not None else []
        if missing and spec.ground == "error":
            raise InputError(f"not found in the text: {', '.join(missing[:8])}")
        reasons = doubts(line["value"], line["confidence"], spec.review_below, missing if spec.ground == "review" else ())
        line |= {"review_reasons": reasons, "needs_review": bool(reasons)}
        stage = "validate"
        _readable(line)
        return Finished(line, _cost(results))
    except Exception as error:
        raise StageError(stage, error) from None


def _checked(result: BeamResult, judge: Validator) -> Json:
    report = judge.check(result.text)
    if not report.valid:
        raise NoValidError(report.violations[0].message, texts=(result.text,))
    return report.value


def _readable(line: Mapping[str, Json]) -> None:
    """NoValidError where the strict reader would not read the written line. It is asked only where a look at the value leaves a doubt."""
    if "chunks" not in line and _plain(line, MAX_DEPTH - 2):
        return
    try:
        parse_json(json_text(line))
    except InputError as error:
        raise NoValidError(f"the output line could not be read back: {error.message}", texts=(str(line["text"]),)) from None


def _plain(value: Json, depth: int) -> bool:
    """Surely readable: not deep, whole characters, numbers of a common size. False says nothing."""
    if isinstance(value, str):
        return len(value) < PLAIN_CHARS and (value.isascii() or _SURROGATE.search(value) is None)
    if isinstance(value, Mapping):
        return depth > 0 and all(_plain(name, 1) and _plain(item, depth - 1) for name, item in value.items())
    if isinstance(value, list | tuple):
        return depth > 0 and all(_plain(item, depth - 1) for item in value)
    return value is None or isinstance(value, bool) or value == 0 or 1e-200 < abs(value) < 1e15


def _merged(spec: JobSpec, judge: Validator, values: Sequence[Json], results: Sequence[BeamResult]) -> Merged:
    sure = [{path: each.product for path, each in result.confidence.items()} for result in results]
    merged = merge([Piece(i, value, sure[i]) for i, value in enumerate(values)], spec.merge)
    report = judge.check(json_text(merged.value))
    if not report.valid:
        violation = report.violations[0]
        raise InputError(
            f"the merged value does not fit the schema at {violation.path or 'the root'}: {violation.message}",
            hint="declare another policy in merge",
        )
    return merged


def _merged_fields(
    merged: Merged, pieces: Sequence[Chunk], values: Sequence[Json], results: Sequence[BeamResult]
) -> dict[str, Json]:
    fields = [{**result_fields(result), "value": value} for result, value in zip(results, values, strict=True)]
    kept = ("value", "score", "sum_logprob", "confidence", "alternatives")
    chunks = [{**asdict(piece), **{name: each[name] for name in kept}} for piece, each in zip(pieces, fields, strict=True)]
    from_ = {at: (origin.piece, origin.pointer) for at, origin in merged.origins.items()}

    def inherited(name: str) -> dict[str, Json]:
        return {at: fields[i][name][path] for at, (i, path) in from_.items() if path in fields[i][name]}

    usage = _summed([each["usage"] for each in fields])
    return {
        "value": merged.value,
        "valid": True,
        "score": None,
        "sum_logprob": None,
        "text": json_text(merged.value),
        "alternatives": [],
        "confidence": inherited("confidence"),
        "confidence_detail": inherited("confidence_detail"),
        "partial": list(dict.fromkeys(name for each in fields for name in each["partial"])),
        "notes": list(dict.fromkeys(note for each in fields for note in each["notes"])),
        "usage": usage,
        "timing": _one_after_another([result.timing for result in results], usage["output_tokens"]),
        "chunks": chunks,
        "provenance": {at: i for at, (i, _) in from_.items()},
    }


def _summed(usages: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """Counts added up, peaks the highest; what is no number is the first one's."""
    first = usages[0]
    numbers = {name for name, value in first.items() if isinstance(value, int | float)}
    added = {name: (max if name in PEAKS else sum)(each[name] for each in usages) for name in numbers}
    return {name: added.get(name, first[name]) for name in first}


def _one_after_another(timings: Sequence[Timing], tokens: int) -> dict[str, Json]:
    decoding = sum(each.e2e_s - each.ttft_s for each in timings)
    whole = Timing(
        queue_s=sum(each.queue_s for each in timings),
        ttft_s=timings[0].ttft_s,
        e2e_s=sum(each.e2e_s for each in timings),
        decode_tok_s=(tokens - len(timings)) / decoding if decoding > 0 else 0.0,
    )
    return asdict(whole)


def _grounded(
    text: str, spec: JobSpec, schema: Json, value: Json, near: Mapping[str, tuple[int, int]] | None
) -> Grounded | None:
    if spec.ground == "off":
        return None
    return Source(text).ground(value, schema, most=spec.ground_distance, free=spec.ground_free, near=near)


def _span_fields(grounded: Grounded) -> dict[str, Json]:
    found = {path: place for path, place in grounded.places.items() if place is not None}
    return {
        "spans": {path: None if place is None else [place.start, place.end] for path, place in grounded.places.items()},
        "span_detail": {path: {"method": each.method, "distance": each.distance} for path, each in found.items()},
    }


def _cost(results: Sequence[BeamResult]) -> dict[str, int]:
    total = {name: sum(getattr(each.usage, name) for each in results) for name in (*COUNTED, *COUNTED_REMOTE)}
    return {name: count for name, count in total.items() if count or name in COUNTED}
