"""Compiling: what is refused, what is left to the validator and said so, and that nothing runs for ever."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.grammar import hostile
from toolkit.contracts import Grammar, GrammarKind
from toolkit.errors import EngineError, SchemaError
from toolkit.grammar import probe_child
from toolkit.grammar.compile import compile_grammar
from toolkit.grammar.limits import DEFAULT_LIMITS, Limits
from toolkit.grammar.llguidance_backend import unanchored
from toolkit.grammar.probe import OUT_OF_TIME, PROBE, Probe
from toolkit.schema import subschemas
from toolkit.text.tokenizer import ByteTokenizer
from toolkit.validate.check import Validator

TOKENIZER = ByteTokenizer()


def schema(value: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def masked(grammar: Grammar, text: str) -> bool:
    matcher, tokens = compile_grammar(grammar, TOKENIZER).matcher(), TOKENIZER.encode(text)
    if matcher.accepts(tokens) < len(tokens):
        return False
    matcher.advance(tokens)
    return matcher.is_accepting


# (what public engines got wrong, schema, texts of the language, texts outside it). The mask refuses every text outside unless
# it says that it is partial; the validator refuses them always.
CASES: list[tuple[str, Any, list[str], list[str]]] = [
    ("siblings of anyOf", {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "additionalProperties": False, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"a":"x"}', '{"b":"x"}'], ["42", '{"c":1}', "{}"]),
    ("items bounds", {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}, ['["a","b"]'], ['["a"]', '["a","b","c"]']),
    ("raw control characters", {"type": "string"}, ['"\\t"'], ['"\t"']),
    ("control character in a key", {"type": "object", "properties": {"k\x01": {"type": "string"}}, "required": ["k\x01"]}, ['{"k\\u0001":"v"}'], ['{"k\x01":"v"}']),
    ("quote and backslash in keys", {"type": "object", "properties": {'a"b': {"type": "integer"}, "c\\d": {"type": "integer"}}, "required": ['a"b', "c\\d"]}, ['{"a\\"b":1,"c\\\\d":2}'], ['{"a"b":1,"c\\d":2}']),
    ("open lower bound", {"type": "number", "exclusiveMinimum": 0}, ["0.1", "3"], ["0", "-1"]),
    ("closed bounds", {"type": "number", "minimum": 1, "maximum": 5}, ["5", "4.9"], ["5.7", "0.5"]),
    ("negative bound", {"type": "integer", "minimum": -5}, ["-5", "-1", "7"], ["-6"]),
    ("oneOf overlap", {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}, ["1", "2.5"], ["3"]),
    ("slash", {"const": "a/b"}, ['"a/b"'], ['"a-b"']),
    ("recursion", {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}}, "required": ["v"], "additionalProperties": False}, ['{"v":1,"kids":[{"v":2,"kids":[]}]}'], ['{"v":1,"kids":[{"kids":[]}]}']),
    ("pattern with length", {"type": "string", "pattern": "^[a-z]+$", "minLength": 3}, ['"abc"'], ['"ab"', '"ABC"']),
    ("pattern is a search", {"type": "string", "pattern": "b"}, ['"abc"'], ['"xyz"']),
    ("date", {"type": "string", "format": "date"}, ['"1990-01-01"'], ['"1990-02-30"', '"tomorrow"']),
    ("email", {"type": "string", "format": "email"}, ['"a@b.co"'], ['"nope"', '"@"', '"a@"']),
    ("unknown format", {"type": "string", "format": "path"}, ['"/x"'], ["1"]),
    ("unique items", {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, ["[1,2]"], ["[1,1]"]),
    ("if and then", {"type": "object", "properties": {"m": {"enum": ["card", "cash"]}, "n": {"type": "string"}}, "required": ["m"], "if": {"properties": {"m": {"const": "card"}}}, "then": {"required": ["n"]}}, ['{"m":"cash"}', '{"m":"card","n":"1"}'], ['{"m":"card"}']),
    ("more properties by default", {"type": "object", "properties": {"n": {"type": "number"}}}, ['{"n":1,"d":"NW"}', "{}"], ['{"n":"x"}']),
    ("anything", {}, ["1", '{"a":[null]}', '"s"'], ["{a:1}"]),
    ("true", True, ["1", "{}"], ["x"]),
    ("boolean subschema", {"type": "object", "properties": {"x": True}, "required": ["x"]}, ['{"x":[1]}'], ["{}"]),
    ("list of types", {"type": ["string", "null"]}, ["null", '"a"'], ["1"]),
    ("prefixes in an enum", {"enum": ["New York", "New York City", "New"]}, ['"New York"', '"New York City"', '"New"'], ['"New Y"']),
    ("escapes in a const", {"const": 'a"b\\c\n'}, ['"a\\"b\\\\c\\n"'], ['"abc"']),
    ("forms of numbers", {"type": "number"}, ["1", "-0.5", "1e5", "1E+2"], [".5", "1.", "NaN", "01", "Infinity", "-"]),
    ("number of properties", {"type": "object", "properties": {k: {"type": "integer"} for k in "abc"}, "minProperties": 2, "additionalProperties": False}, ['{"a":1,"b":2}'], ['{"a":1}']),
    ("duplicate keys", {"type": "object", "additionalProperties": {"type": "integer"}}, ['{"a":1,"b":2}'], ['{"a":"x"}']),
    ("property names", {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "integer"}}, ['{"ab":1}'], ['{"AB":1}']),
    ("tuple", {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2}, ['[1,"a"]'], ['["a",1]', "[1]", '[1,"a",2]']),
    ("tuple of draft 7", {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False, "minItems": 2}, ['[1,"a"]'], ['["a",1]', '[1,"a",2]']),
    ("allOf", {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}]}, ['{"a":1,"b":"x"}'], ['{"a":1}', '{"b":"x"}', "3"]),
    ("siblings of a reference", {"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "maxLength": 2}, ['"ab"'], ['"abc"']),
    ("optional that may be null", {"type": "object", "properties": {"x": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}}}, ['{"x":null}', '{"x":"abc"}', "{}"], ['{"x":"abcd"}', '{"x":1}']),
    ("hundredths", {"type": "number", "multipleOf": 0.01}, ["19.99", "0.07"], ["0.125"]),
    ("large multipleOf", {"type": "integer", "multipleOf": 99999989}, ["99999989"], ["5"]),
    ("look-ahead", {"type": "string", "pattern": "^(?!a)[a-z]+$"}, ['"ba"'], ['"ab"']),
    ("overlapping patternProperties", {"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 3}}, "additionalProperties": False}, ['{"ab":3}'], ['{"ab":1}', '{"c":1}']),
    ("count written as 2.0", {"type": "array", "maxItems": 2.0, "items": {"type": "null"}}, ["[null,null]"], ["[null,null,null]"]),
    ("options smuggled in", {"type": "array", "items": {"type": "null"}, "x-guidance": {"whitespace_flexible": True, "item_separator": ";"}}, ["[null,null]"], ["[null;null]"]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "good", "bad"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_schema_is_enforced_by_the_mask_or_named_as_partial(value: Any, good: list[str], bad: list[str]) -> None:
    grammar = schema(value)
    partial = compile_grammar(grammar, TOKENIZER).partial
    validator = Validator(grammar)
    for text in good:
        assert masked(grammar, text), text
        assert validator.check(text).valid, text
    for text in bad:
        assert partial or not masked(grammar, text), text
        assert not validator.check(text).valid, text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"uniqueItems": True}, "uniqueItems at the root"),
        ({"properties": {"a/b": {"not": {"type": "null"}}}}, "not at /properties/a~1b"),
        ({"items": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "oneOf at /items"),
        ({"properties": {"x": {"format": "semver"}}}, "format at /properties/x"),
        ({"properties": {"x": {"type": "string", "pattern": "(?=a)a"}}}, "pattern at /properties/x"),
        ({"multipleOf": 99999989}, "multipleOf at the root"),
    ],
)
def test_what_the_mask_does_not_enforce_is_named_with_its_place(value: Any, reason: str) -> None:
    assert compile_grammar(schema(value), TOKENIZER).partial == (reason,)


BAD: list[tuple[GrammarKind, str, str, str, str]] = [
    ("json_schema", "{", "not JSON", "", ""),
    ("json_schema", "false", "nothing is valid", "", "false"),
    ("json_schema", '{"type":"strin"}', "strin", "/type", "type"),
    ("json_schema", '{"properties":{"a":{"minLength":"3"}}}', "minLength", "/properties/a/minLength", "minLength"),
    ("json_schema", '{"properties":{"c":{"$ref":"/$defs/C"}},"$defs":{"C":{}}}', "/$defs/C", "/properties/c", "$ref"),
    ("json_schema", '{"items":{"$ref":"#/$defs/C"}}', "leads nowhere", "/items", "$ref"),
    ("json_schema", '{"items":{"$ref":"https://example.com/x.json"}}', "nothing is fetched", "/items", "$ref"),
    ("json_schema", '{"$ref":"file:///etc/passwd"}', "nothing is fetched", "", "$ref"),
    ("json_schema", '{"$ref":"#"}', "back to itself", "", "$ref"),
    ("json_schema", '{"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"}]}}}', "back to itself", "/$defs/a/anyOf/0", "$ref"),
    ("json_schema", '{"$schema":"http://example.com/mine"}', "not known", "", "$schema"),
    ("json_schema", '{"properties":{"a":{"pattern":"("}}}', "regular expression", "/properties/a/pattern", "pattern"),
    ("json_schema", '{"type":"object","properties":{"a":{"properties":{"b":{"enum":[]}},"required":["b"],"type":"object"}},"required":["a"]}', "nsatisfiable", "/properties/a/properties/b", "enum"),
    ("regex", "(", "regex", "", "regex"),
    ("regex", "(?=a)b", "look", "", "regex"),
    ("lark", "start: x", "unknown name", "", "lark"),
    ("lark", "hello", "neither Lark", "", "lark"),
    ("choices", "[]", "0 choices", "", "choices"),
    ("choices", "[1]", "list of strings", "", "choices"),
    ("choices", '{"a":1}', "list of strings", "", "choices"),
    ("choices", "a|b", "not JSON", "", "choices"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "source", "message", "path", "keyword"), BAD)
def test_a_bad_grammar_is_refused_with_path_and_keyword(
    kind: GrammarKind, source: str, message: str, path: str, keyword: str
) -> None:
    with pytest.raises(SchemaError, match=message.replace("$", r"\$")) as caught:
        compile_grammar(Grammar(kind, source), TOKENIZER)
    assert (caught.value.path, caught.value.keyword) == (path, keyword)


def test_a_draft_4_file_with_its_own_id_keeps_its_references() -> None:
    value = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "http://example.com/root.json",
        "definitions": {"n": {"type": "integer", "minimum": 0, "exclusiveMinimum": True}},
        "items": {"$ref": "#/definitions/n"},
        "type": "array",
    }
    assert masked(schema(value), "[1]")
    assert not masked(schema(value), "[0]")


@pytest.mark.parametrize("name", hostile.SCHEMAS)
def test_a_hostile_schema_is_refused_and_the_next_one_compiles(name: str) -> None:
    with pytest.raises(SchemaError):
        compile_grammar(hostile.grammar(name), TOKENIZER)
    assert masked(schema({"const": name}), json.dumps(name))


def costs(seconds: float, names: Iterable[str]) -> dict[str, tuple[bool, float]]:
    """What hostile grammars cost in a fresh process, with `seconds` for each."""
    command = [sys.executable, "-m", "tests.grammar.hostile", str(seconds), *names]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600, cwd=Path(__file__).parents[2])
    found: dict[str, tuple[bool, float]] = json.loads(done.stdout)
    return found


def test_no_grammar_of_any_kind_costs_more_than_twice_the_limit() -> None:
    """Twice: what runs between two looks at the clock is not cut. A large text may well get through in time."""
    found = costs(DEFAULT_LIMITS.seconds, [*hostile.SCHEMAS, *hostile.TEXTS])
    assert {name for name, (refused, _) in found.items() if not refused} <= set(hostile.TEXTS)
    assert {name: spent for name, (_, spent) in found.items() if spent > 2 * DEFAULT_LIMITS.seconds} == {}


def test_the_limit_is_what_ends_a_compile_without_an_end() -> None:
    ((refused, spent),) = costs(6 * DEFAULT_LIMITS.seconds, ["intersected patterns"]).values()
    assert refused and spent > 2 * DEFAULT_LIMITS.seconds


@pytest.mark.parametrize(
    "value",
    [
        {"enum": [f"value number {i}" for i in range(2_000)]},
        {"type": "string", "maxLength": 10_000},
        {"type": "array", "minItems": 100_000, "items": {"type": "null"}},
        {"type": "string", "pattern": "^(a{1,1000}){1,1000}$"},
        {
            "$defs": {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(25)} | {"a25": {}},
            "$ref": "#/$defs/a0",
        },
    ],
    ids=["enum", "maxLength", "minItems", "quantifiers", "doubled references"],
)
def test_large_but_honest_schemas_compile_as_a_whole_within_the_limit(value: Any) -> None:
    assert compile_grammar(schema(value), TOKENIZER).partial == ()


def test_every_choice_of_thousands_is_matched() -> None:
    words = [f"choice number {i}" for i in range(5_000)]
    grammar = Grammar("choices", json.dumps(words))
    assert [masked(grammar, word) for word in (words[0], words[-1], "choice number 5000")] == [True, True, False]


def test_a_source_longer_than_the_limit_is_refused() -> None:
    with pytest.raises(SchemaError, match="at most 10"):
        compile_grammar(Grammar("regex", "a" * 11), TOKENIZER, limits=Limits(source_chars=10))


def test_a_compile_that_has_no_end_costs_the_probe_and_not_the_caller() -> None:
    hostile = json.dumps({"grammars": [{"json_schema": {"type": "integer", "multipleOf": 9_999_991}}]})
    assert PROBE.error_of(hostile, 0.05, {}) == (OUT_OF_TIME, 0.05)
    assert PROBE.error_of(json.dumps({"grammars": [{"json_schema": {"type": "null"}}]}), 5.0, {})[0] == ""


def probe_text(value: Any) -> str:
    return json.dumps({"grammars": [{"json_schema": value}]})


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_no_answer_for_the_next_question(interrupt: type[BaseException]) -> None:
    probe = Probe()
    assert probe.error_of(probe_text({"type": "null"}), 5.0, {})[0] == ""
    child = probe._child
    assert child is not None
    child.stdout = InterruptedPipe(child.stdout, interrupt)  # type: ignore[assignment]
    with pytest.raises(interrupt):
        probe.error_of(probe_text({"type": "nonsense"}), 5.0, {})
    assert child.poll() is not None
    assert probe.error_of(probe_text({"type": "null"}), 5.0, {})[0] == ""
    probe.close()


class InterruptedPipe:
    """The child's answer has been written when the interrupt comes."""

    def __init__(self, pipe: Any, interrupt: type[BaseException]) -> None:
        self._pipe, self._interrupt = pipe, interrupt
        self.close = pipe.close

    def readline(self) -> str:
        select.select([self._pipe], [], [])
        raise self._interrupt


def test_an_answer_to_another_question_is_no_verdict() -> None:
    probe = Probe()
    assert probe.error_of(probe_text({"type": "null"}), 5.0, {})[0] == ""
    probe._asked += 1
    task = json.dumps({"number": probe._asked, "grammar": probe_text({"type": "nonsense"}), "seconds": 5, "limits": {}})
    child = probe._child
    assert child is not None and child.stdin is not None
    child.stdin.write(f"{task}\n")  # nobody reads the answer
    with pytest.raises(EngineError, match="answered question 2, not 3"):
        probe.error_of(probe_text({"type": "null"}), 5.0, {})
    assert probe.error_of(probe_text({"type": "null"}), 5.0, {})[0] == ""
    probe.close()


def test_a_probe_that_cannot_start_is_no_verdict_over_the_grammar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "child.py"
    script.write_text("import a_module_that_nobody_has\n")
    monkeypatch.setattr(probe_child, "__file__", str(script))
    with pytest.raises(EngineError, match=r"(?s)could not start \(exit 1\).*a_module_that_nobody_has"):
        Probe().error_of(probe_text({"type": "null"}), 5.0, {})


def test_the_probe_finds_a_llguidance_that_only_pythonpath_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llguidance").mkdir()
    (tmp_path / "llguidance" / "__init__.py").write_text("raise ImportError('found in the folder of the parent')\n")
    script = tmp_path / "child.py"
    script.write_text("import sys; sys.path.insert(0, sys.argv[1]); import llguidance\n")
    monkeypatch.setattr(probe_child, "__file__", str(script))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "llguidance", raising=False)
    with pytest.raises(EngineError, match="found in the folder of the parent"):
        Probe().error_of(probe_text({"type": "null"}), 5.0, {})


def test_a_forked_process_starts_a_probe_of_its_own() -> None:
    good = json.dumps({"grammars": [{"json_schema": {"type": "null"}}]})
    assert PROBE.error_of(good, 5.0, {})[0] == ""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if PROBE.error_of(good, 5.0, {})[0] == "" else 1
            PROBE.close()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert PROBE.error_of(good, 5.0, {})[0] == ""


def test_a_grammar_is_compiled_once_and_forgets_its_python_type() -> None:
    grammar = schema({"const": "once"})
    first = compile_grammar(grammar, TOKENIZER)
    assert compile_grammar(Grammar(grammar.kind, grammar.source, int), TOKENIZER) is first
    assert compile_grammar(grammar, TOKENIZER, limits=Limits(row_items=100)) is not first


def test_threads_compile_side_by_side() -> None:
    results: list[bool] = []

    def work(name: int) -> None:
        results.extend(masked(schema({"const": [name, i % 3]}), f"[{name},{i % 3}]") for i in range(6))

    threads = [threading.Thread(target=work, args=(n % 2,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 24


def test_anchors_at_the_ends_say_nothing_and_escaped_ones_stay() -> None:
    assert unanchored(r"^a$") == unanchored(r"\Aa\Z") == "a"
    assert unanchored(r"a\$") == r"a\$"
    assert unanchored(r"a\\$") == r"a\\"


def test_subschemas_are_where_keywords_put_them_and_nowhere_else() -> None:
    value = {"properties": {"enum": {"const": {"items": 1}}, "a~b": {"items": [{}]}}, "enum": [{"items": {}}], "not": True}
    assert [pointer for pointer, _ in subschemas(value)] == ["", "/properties/enum", "/properties/a~0b", "/properties/a~0b/items/0", "/not"]  # fmt: skip
