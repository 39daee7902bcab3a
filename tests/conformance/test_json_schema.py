"""Public conformance data: JSON-Schema-Test-Suite, jsonschemabench, and inputs on which public engines failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.bench.schemas import BETTER, WORSE, accepts, measure
from toolkit.contracts import Grammar
from toolkit.errors import SchemaError
from toolkit.grammar.compile import compile_grammar
from toolkit.text.tokenizer import ByteTokenizer
from toolkit.validate.check import Validator

pytestmark = pytest.mark.conformance

SHARED = Path(__file__).parents[3] / "shared"
RATCHET = Path(__file__).parent / "ratchet.json"
TOKENIZER = ByteTokenizer()
# Valid texts that no mask here allows, because masks know one spelling: properties in the schema's order, no escaped pairs.
OTHER_SPELLINGS = {"prop-order2", "surrogate"}


def cases() -> list[dict[str, Any]]:
    path = SHARED / "cases" / "grammar.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


@pytest.mark.skipif(not cases(), reason="no ../shared/cases/grammar.jsonl")
@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_a_known_failure_of_public_engines_does_not_happen_here(case: dict[str, Any]) -> None:
    grammar = Grammar("json_schema", json.dumps(case["schema"])) if "schema" in case else Grammar("regex", case["regex"])
    if not case["ok"]:
        with pytest.raises(SchemaError):
            compile_grammar(grammar, TOKENIZER)
        return
    compiled, validator = compile_grammar(grammar, TOKENIZER), Validator(grammar)
    for text in case["ok"]:
        assert validator.check(text).valid, text
        assert accepts(compiled, TOKENIZER, text) == (case["id"] not in OTHER_SPELLINGS), text
    for text in case["bad"]:
        assert not validator.check(text).valid, text
        assert compiled.partial or case["id"] == "dup-keys" or not accepts(compiled, TOKENIZER, text), text


def regressions(found: dict[str, Any], ratchet: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(what is worse than the ratchet, what is better), one line a count."""
    worse: list[str] = []
    better: list[str] = []
    for name, counts in ratchet.items():
        for key in (*WORSE, *BETTER):
            gain = (found[name][key] - counts[key]) * (1 if key in BETTER else -1)
            line = f"{name} {key}: {counts[key]} -> {found[name][key]}"
            if gain:
                (better if gain > 0 else worse).append(line)
    return worse, better


@pytest.mark.skipif(not (SHARED / "data" / "jsonschemabench.jsonl").is_file(), reason="no ../shared/data")
def test_json_schema_coverage_never_gets_worse() -> None:
    """The counts do not depend on the tokenizer: a mask is a question about bytes. Those of the command use SmolLM2's."""
    found, ratchet = measure(SHARED / "data", TOKENIZER), json.loads(RATCHET.read_text(encoding="utf-8"))
    worse, better = regressions(found, ratchet)
    assert not worse, f"worse than {RATCHET.name}: {worse}"
    assert not better, f"better than {RATCHET.name}, well done; write these counts into it: {json.dumps(found)}"
    for counts in found.values():
        assert counts["invalid_accepted_after_validation"] == counts["invalid_accepted_by_strict_mask"] == 0


def test_the_ratchet_sees_both_directions() -> None:
    counts = {"set": dict.fromkeys(json.loads(RATCHET.read_text(encoding="utf-8"))["suite-7"], 5)}
    for key, change, side in [("refused", 1, 0), ("refused", -1, 1), ("compiled", -1, 0), ("compiled", 1, 1)]:
        found = {"set": {**counts["set"], key: 5 + change}}
        assert regressions(found, counts)[side] == [f"set {key}: 5 -> {5 + change}"]
        assert regressions(found, counts)[1 - side] == []
