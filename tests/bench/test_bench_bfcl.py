"""BFCL: types become schemas, answers are judged, records come from a file or the package's data files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from toolkit.bench import bfcl
from toolkit.bench.bfcl_judge import judge
from toolkit.bench.bfcl_schema import MAX_ITEMS, MAX_STRING, to_schema
from toolkit.bench.task import Counts
from toolkit.errors import InputError, MissingExtraError, SchemaError, UsageError

SHARED = Path(__file__).parents[3] / "shared" / "data"


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "dict", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize(
    ("node", "good", "bad"),
    [
        ({"type": "string"}, "a" * MAX_STRING, "a" * (MAX_STRING + 1)),
        ({"type": "string"}, "", 1),
        ({"type": "integer"}, -999_999_999_999, 10**12),
        ({"type": "integer"}, 3, 3.5),
        ({"type": "float"}, 3.5, "3.5"),
        ({"type": "float"}, 3, True),
        ({"type": "boolean"}, True, 1),
        ({"type": "any"}, "x", None),
        ({"type": "any"}, 1.5, []),
        ({"type": "array", "items": {"type": "integer"}}, [1, 2], ["1"]),
        ({"type": "array", "items": {"type": "integer"}}, [0] * MAX_ITEMS, [0] * (MAX_ITEMS + 1)),
        ({"type": "tuple", "items": {"type": "float"}}, [33.4, -112.0], 33.4),
        ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, [[1], []], [1]),
        ({"type": "string", "enum": ["a", "b", "a"]}, "b", "c"),
        ({"type": "array", "items": {"type": "string", "enum": ["a"]}}, ["a"], ["b"]),
        ({"type": "dict", "properties": {"k": {"type": "string"}}}, {}, {"other": 1}),
        ({"type": "dict", "properties": {"k": {"type": "string"}}, "required": ["k"]}, {"k": "v"}, {}),
    ],
)
def test_every_type_becomes_a_schema_that_takes_its_values_and_no_others(node: Any, good: Any, bad: Any) -> None:
    schema = to_schema(of(x=node))
    jsonschema.Draft202012Validator.check_schema(schema)
    checker = jsonschema.Draft202012Validator(schema)
    assert checker.is_valid({"x": good})
    assert not checker.is_valid({"x": bad})


def test_properties_keep_their_order_and_only_required_ones_are_required() -> None:
    parameters = of(zeta={"type": "string"}, alpha={"type": "integer"}, late={"type": "integer", "optional": True})
    parameters["required"] = ["zeta", "late"]
    schema = to_schema(parameters)
    assert list(schema["properties"]) == ["zeta", "alpha", "late"]
    assert schema["required"] == ["zeta"] and schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"type": "dict"}, "dict of any keys"),
        ({"type": "array"}, "array without items"),
        ({"type": "complex"}, "unknown type complex"),
        ({"description": "nothing"}, "no type"),
        ({"type": "string", "enum": []}, "empty enum"),
    ],
)
def test_what_has_no_faithful_schema_is_refused_with_its_path(node: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason) as caught:
        to_schema(of(x=node))
    assert caught.value.path == "/x"


def test_parameters_nested_without_end_are_refused() -> None:
    node: dict[str, Any] = {"type": "string"}
    for _ in range(500):
        node = {"type": "array", "items": node}
    with pytest.raises(SchemaError, match="nested deeper"):
        to_schema(of(x=node))


@pytest.mark.parametrize(
    ("accepted", "value", "counts"),
    [
        ({"a": [10], "u": ["units", ""]}, {"a": 10}, (1, 0, 0)),
        ({"a": [10], "u": ["units", ""]}, {"a": 10, "u": " UNITS "}, (2, 0, 0)),
        ({"a": [10], "u": ["units", ""]}, {"a": 10, "u": "cm"}, (1, 1, 1)),
        ({"a": [10]}, {"a": 10, "invented": 1}, (1, 1, 0)),
        ({"a": [10], "b": ["x"]}, {"a": 10}, (1, 0, 1)),
        ({"a": [10]}, {"a": 10.0}, (1, 0, 0)),
        ({"a": [10]}, {"a": "10"}, (0, 1, 1)),
        ({"a": [1]}, {"a": True}, (0, 1, 1)),
        ({"a": [True]}, {"a": True}, (1, 0, 0)),
        ({"a": [[1.0, 3.0]]}, {"a": [1, 3]}, (1, 0, 0)),
        ({"a": [["Fiction", "Wi-Fi"], ["Wi-Fi", "Fiction"]]}, {"a": ["wi-fi", "fiction"]}, (1, 0, 0)),
        ({"a": [["Fiction", "Wi-Fi"]]}, {"a": ["Fiction"]}, (0, 1, 1)),
        ({"a": [{"name": ["John"], "mail": ["j@x", ""]}]}, {"a": {"name": "john"}}, (1, 0, 0)),
        ({"a": [{"name": ["John"]}]}, {"a": {"name": "John", "extra": 1}}, (0, 1, 1)),
        ({"a": [[{"f": ["age"], "v": ["25"]}]]}, {"a": [{"f": "age", "v": "25"}]}, (1, 0, 0)),
        ({"a": [10]}, None, (0, 0, 1)),
        ({"a": [10]}, [10], (0, 0, 1)),
    ],
)
def test_an_answer_is_right_if_every_argument_is_accepted_and_none_invented(accepted: Any, value: Any, counts: Any) -> None:
    assert judge([accepted], value) == Counts(*counts)


def test_of_several_accepted_calls_the_fitting_one_counts() -> None:
    assert judge([{"a": [1]}, {"a": [2]}], {"a": 2}).exact


def record(**changes: Any) -> dict[str, Any]:
    function = {"name": "f", "description": "Does.", "parameters": of(n={"type": "integer", "description": "A number."})}
    return {"id": "one", "question": "Do 3.", "function": function, "answers": [{"f": {"n": [3]}}], **changes}


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in records), encoding="utf-8")
    return path


def test_records_that_cannot_be_converted_are_counted_by_reason(tmp_path: Path) -> None:
    open_dict = record(id="two", function={"name": "f", "description": "", "parameters": of(d={"type": "dict"})})
    task = bfcl.load(write(tmp_path / "b.jsonl", record(), open_dict))
    assert [item.id for item in task.items] == ["one"]
    assert task.skipped == {"dict of any keys": 1}
    assert task.judge(task.items[0].gold, {"n": 3}).exact


def test_prompts_share_everything_before_the_function_and_end_where_the_answer_starts(tmp_path: Path) -> None:
    path = write(tmp_path / "b.jsonl", record())
    raw = bfcl.load(path, style="raw").items[0].prompt
    assert isinstance(raw, str)
    assert raw.startswith(bfcl.INSTRUCTION) and raw.endswith("Request: Do 3.\nArguments:\n")
    assert "- n (integer): A number." in raw
    chat = bfcl.load(path, style="chat").items[0].prompt
    assert [turn["role"] for turn in chat] == ["system", *["user", "assistant"] * 3, "user"]  # type: ignore[index, call-overload]


def test_a_malformed_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    path = write(tmp_path / "b.jsonl", record())
    path.write_text(path.read_text() + "{oops\n")
    with pytest.raises(InputError, match=r"b\.jsonl:2 is not JSON"):
        bfcl.load(path)
    with pytest.raises(InputError, match=r"lacks.*question"):
        bfcl.load(write(path, {"id": "x"}))
    with pytest.raises(InputError, match="cannot be read"):
        bfcl.load(tmp_path / "absent.jsonl")


@pytest.mark.parametrize(
    "changes",
    [
        {"function": 3},
        {"answers": [{}]},
        {"answers": []},
        {"answers": [{"f": {"n": 3}}]},
        {"function": {"parameters": of(n={"type": "float"})}},
    ],
)
def test_a_record_of_another_shape_is_named_by_its_id(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="record 'one' is not a BFCL record"):
        bfcl.load(write(tmp_path / "b.jsonl", record(**changes)))


def test_a_limit_below_one_is_refused(tmp_path: Path) -> None:
    task = bfcl.load(write(tmp_path / "b.jsonl", record()))
    with pytest.raises(UsageError, match="limit = 0"):
        task.first(0)


def test_without_the_package_the_error_is_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfcl, "PACKAGE", "bfcl-eval-that-is-absent")
    with pytest.raises(MissingExtraError, match="pip install --no-deps"):
        bfcl.load()


def test_the_installed_package_gives_all_but_the_open_dict() -> None:
    pytest.importorskip("importlib.metadata").distribution("bfcl-eval")
    task = bfcl.load()
    assert (len(task.items), task.skipped) == (399, {"dict of any keys": 1})
    for item in task.items:
        jsonschema.Draft202012Validator.check_schema(item.schema)


@pytest.mark.conformance
def test_the_shared_file_converts_whole_and_accepted_answers_fit_their_schemas() -> None:
    path = SHARED / "bfcl_simple.jsonl"
    if not path.exists():
        pytest.skip(f"{path.name} is not in ../shared/data")
    task = bfcl.load(path)
    assert (len(task.items), task.skipped) == (250, {})
    unfit = []
    for item in task.items:
        best = {name: values[0] for name, values in item.gold[0].items() if "" not in values}
        if any(
            isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict))
            for value in best.values()
        ):
            continue  # accepted objects hold lists of values, not values
        if not jsonschema.Draft202012Validator(item.schema).is_valid(best):
            unfit.append(item.id)
        assert task.judge(item.gold, best).exact
    assert len(unfit) <= 5, unfit  # answers of the set that break their own function's types
