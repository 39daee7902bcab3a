"""Every program of programs/: it keeps to the protocol, its schema means what its examples say, and it runs."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolkit.contracts import Engine
from toolkit.engine.engine import open_engine
from toolkit.grammar.types import grammar_of
from toolkit.lang import load_program, run_program, tools_schema
from toolkit.lang.program import list_programs
from toolkit.schema import load_schema
from toolkit.validate.check import Validator

ROOT = Path(__file__).parents[2]
PROGRAMS = list_programs(ROOT)
SCHEMAS = sorted(path.name.removesuffix(".schema.json") for path in (ROOT / "schemas").glob("*.schema.json"))
PUBLIC = {"json", "enum", "typing", "sglang", "pydantic", "toolkit", "toolkit.lang"}


def test_the_five_kinds_are_there() -> None:
    assert {"extract_order", "classify_topic", "call_tool", "reason_then_json", "map_reduce"} <= set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_reads_well(name: str) -> None:
    program = load_program(name, ROOT)
    source = program.path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 100 and len(program.doc.splitlines()) >= 3
    assert program.schema is not None
    tree = ast.parse(source)
    assert {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} <= PUBLIC
    assert {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names} <= PUBLIC
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "toolkit.lang" for a in n.names}
    assert names <= set(importlib.import_module("toolkit.lang").__all__)


@pytest.mark.parametrize("name", SCHEMAS)
def test_examples_beside_a_schema_are_judged_as_they_say(name: str) -> None:
    validator = Validator(grammar_of(load_schema(name, ROOT)))
    examples = json.loads((ROOT / "schemas" / f"{name}.examples.json").read_text(encoding="utf-8"))
    assert examples.keys() == {"valid", "invalid"} and examples["valid"] and examples["invalid"]
    assert [each for each in examples["valid"] if not validator.check(json.dumps(each)).valid] == []
    assert [each["why"] for each in examples["invalid"] if validator.check(json.dumps(each["data"])).valid] == []
    assert len({each["why"] for each in examples["invalid"]}) == len(examples["invalid"])


def attribute(program: str, name: str) -> Any:
    return load_program(program, ROOT).main.__globals__[name]


@pytest.mark.parametrize(("program", "model"), [("extract_order", "Order"), ("reason_then_json", "Appointment")])
def test_a_schema_file_is_its_models_own(program: str, model: str) -> None:
    loaded = load_program(program, ROOT)
    assert loaded.schema == json.loads(json.dumps(attribute(program, model).model_json_schema()))


def test_the_tool_schema_file_is_made_of_the_tools_own() -> None:
    schema = load_program("call_tool", ROOT).schema
    assert schema is not None
    moved = json.loads(json.dumps(tools_schema(list(attribute("call_tool", "TOOLS").values()))))
    assert schema["properties"]["call"] == moved


def test_long_paragraphs_are_read_in_pieces_and_no_word_is_lost() -> None:
    parts = attribute("map_reduce", "parts")
    text = " ".join(f"w{i}" for i in range(301)) + "\n\n" + "short one\n\n\n\n"
    pieces = parts(text)
    assert [len(piece.split()) for piece in pieces] == [120, 120, 61, 2] and " ".join(pieces).split() == text.split()


def test_a_subject_is_some_neighbouring_words_of_its_note() -> None:
    subjects = attribute("map_reduce", "subjects")
    schema = subjects(["The old bridge is shut.", "x" * 31, ""])
    assert schema["prefixItems"][0]["enum"][5:9] == ["The old", "old bridge", "bridge is", "is shut"]
    assert schema["prefixItems"][1:] == [{"type": "string", "maxLength": 30}] * 2 and schema["maxItems"] == 3


@pytest.fixture(scope="module")
def tiny() -> Iterator[Engine]:
    engine = open_engine("embedded", model="tiny")
    yield engine
    engine.close()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_a_valid_value_even_from_random_weights(name: str, tiny: Engine) -> None:
    json.dumps(run_program(name, engine=tiny, root=ROOT))


@pytest.mark.parametrize("text", ["", "Rain.", "A band plays.", "Bread and butter", "1:0", "Shares fell."])
def test_the_topic_is_the_one_whose_shown_scores_rank_first(text: str, tiny: Engine) -> None:
    returned = run_program("classify_topic", [text], engine=tiny, root=ROOT)
    assert returned["scores"][returned["value"]["topic"]] == max(returned["scores"].values())
    assert len(returned["scores"]) == 5 and len({len(row) for row in returned["scores"].values()}) == 1


@pytest.fixture(scope="module")
def real() -> Iterator[Engine]:
    engine = open_engine("embedded", model="smollm2")
    yield engine
    engine.close()


EXPECTED: dict[str, dict[str, Any]] = {
    "extract_order": {"customer": "Maria Lopez", "quantity": 12, "city": "Lisbon"},
    "classify_topic": {"topic": "sport"},
    "reason_then_json": {"day": "Friday", "hour": 7},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_makes_sense_of_its_default_input(name: str, real: Engine) -> None:
    value = run_program(name, engine=real, root=ROOT)["value"]
    assert {key: value[key] for key in EXPECTED.get(name, {})} == EXPECTED.get(name, {})
    if name == "call_tool":
        assert value["call"]["name"] == "add_to_list" and value["call"]["arguments"]["quantity"] == 6
    if name == "map_reduce":
        assert value["subjects"] == ["old bridge", "library", "market"] and len(value["notes"]) == 3
