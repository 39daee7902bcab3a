"""Schemas: how much of JSON Schema the mask enforces, and whether the validator catches the rest.

In: a folder with `json_schema_test_suite/` and `jsonschemabench.jsonl`, a tokenizer.   Out: counts per set, as one dict.
Knows nothing about: models, speed.
Invariants: `invalid_accepted_after_validation` and `invalid_accepted_by_strict_mask` (a mask that claims to enforce everything)
are 0 or the toolkit is wrong; `valid_refused_by_validator` counts what `format`, asserted here, refuses; an instance is judged in the one spelling that masks
know (compact separators, printable characters as themselves, properties in the order given).
Source: JSON-Schema-Test-Suite (required files), guidance-ai/jsonschemabench.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from toolkit.contracts import CompiledGrammar, Grammar, Json, Tokenizer
from toolkit.errors import InputError, SchemaError, UsageError
from toolkit.grammar.compile import compile_grammar
from toolkit.validate.check import Validator

SETS = {"suite-2020-12": "draft2020-12", "suite-7": "draft7"}
_DRAFT_7 = "http://json-schema.org/draft-07/schema#"
# Counts where less is better; of `compiled`, more is.
WORSE = (
    "refused",
    "partial",
    "invalid_accepted_by_mask",
    "invalid_accepted_by_strict_mask",
    "invalid_accepted_after_validation",
    "valid_refused_by_mask",
    "valid_refused_by_validator",
)
BETTER = ("compiled",)


class Case(NamedTuple):
    """A schema with instances and what each of them is."""

    name: str
    schema: Json
    instances: tuple[tuple[Json, bool], ...]


def run(data: Path, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """Counts of every set, measured with SmolLM2's tokenizer unless another is given. Prints a table to stderr."""
    found = measure(data, tokenizer or _smollm2())
    _print(found)
    return found


def measure(data: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """{set: {count: n}} over the suite's required files and the benchmark's schemas.

    UsageError where the data is absent, InputError where it is other data.
    """
    found: dict[str, Any] = {name: _count(_suite(data, folder), tokenizer) for name, folder in SETS.items()}
    found["jsonschemabench"] = _count(_benchmark(data), tokenizer)
    return found


def _smollm2() -> Tokenizer:
    from toolkit.model.store import resolve
    from toolkit.text.tokenizer import load_tokenizer

    return load_tokenizer(resolve("smollm2"))


def _suite(data: Path, folder: str) -> Iterator[Case]:
    files = sorted((data / "json_schema_test_suite" / "tests" / folder).glob("*.json"))
    if not files:
        raise UsageError(f"{data} holds no json_schema_test_suite/tests/{folder}/*.json")
    for path in files:
        with _read(path):
            cases = [
                Case(
                    f"{path.stem}: {group['description']}",
                    group["schema"],
                    tuple((t["data"], t["valid"]) for t in group["tests"]),
                )
                for group in json.loads(path.read_text(encoding="utf-8"))
            ]
        for case in cases:
            old = folder == "draft7" and isinstance(case.schema, dict)
            yield case._replace(schema={"$schema": _DRAFT_7, **case.schema}) if old else case


def _benchmark(data: Path) -> Iterator[Case]:
    path = data / "jsonschemabench.jsonl"
    if not path.is_file():
        raise UsageError(f"{path} does not exist")
    with _read(path):
        lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        with _read(f"{path}:{number}"):
            row = json.loads(line)
            instances = [(each, True) for each in row["valid"]] + [(each["data"], False) for each in row["invalid"]]
            case = Case(row["id"], row["schema"], tuple(instances))
        yield case


@contextmanager
def _read(where: object) -> Iterator[None]:
    """InputError for what cannot be read, or is not what it should be, at that place."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{where} is not the data that is expected there: {error!r:.300}") from error


def _count(cases: Iterator[Case], tokenizer: Tokenizer) -> dict[str, int]:
    counts: Counter[str] = Counter(dict.fromkeys((*BETTER, *WORSE, "schemas", "valid", "invalid"), 0))
    for case in cases:
        counts["schemas"] += 1
        grammar = Grammar("json_schema", json.dumps(case.schema))
        try:
            compiled = compile_grammar(grammar, tokenizer)
        except SchemaError:
            counts["refused"] += 1
            continue
        counts["partial" if compiled.partial else "compiled"] += 1
        validator = Validator(grammar)
        for instance, valid in case.instances:
            counts.update(_judge(instance, valid, compiled, validator, tokenizer))
    return dict(counts)


def _judge(instance: Json, valid: bool, compiled: CompiledGrammar, validator: Validator, tokenizer: Tokenizer) -> Iterator[str]:
    text = json.dumps(instance, ensure_ascii=False, separators=(",", ":"))
    masked, checked = accepts(compiled, tokenizer, text), validator.check(text).valid
    yield "valid" if valid else "invalid"
    if valid:
        yield from ["valid_refused_by_mask"] if not masked else []
        yield from ["valid_refused_by_validator"] if not checked else []
    elif masked:
        yield "invalid_accepted_by_mask"
        yield from ["invalid_accepted_by_strict_mask"] if not compiled.partial else []
        yield from ["invalid_accepted_after_validation"] if checked else []


def accepts(compiled: CompiledGrammar, tokenizer: Tokenizer, text: str) -> bool:
    """Whether the mask lets the canonical tokens of `text` pass, and end after them."""
    matcher, tokens = compiled.matcher(), tokenizer.encode(text)
    if matcher.accepts(tokens) < len(tokens):
        return False
    matcher.advance(tokens)
    return matcher.is_accepting


def _print(found: dict[str, Any]) -> None:
    table = Table("count", *found, title="JSON Schema: mask and validator")
    for key in ("schemas", *BETTER, *WORSE[:2], "valid", "invalid", *WORSE[2:]):
        table.add_row(key.replace("_", " "), *(str(counts[key]) for counts in found.values()))
    Console(stderr=True).print(table)
