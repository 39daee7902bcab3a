"""What a text has to be: found out while it comes, judged once more at its end, by two parsers that must agree."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from toolkit.contracts import Completion, Grammar, Report, Request, Watch
from toolkit.engine.watch import Checks, judged
from toolkit.errors import SchemaError, UsageError
from toolkit.text.stream import TextStream
from toolkit.text.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
)
TOOLS = json.dumps(
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"c": {"type": "string"}}, "required": ["c"]}}}]
)  # fmt: skip
JSON = Watch(kind="json", schema=SCHEMA)
HERMES = Watch(kind="tools", format="hermes", tools=TOOLS)
CODE = Watch(kind="code")


def checks(watch: Watch | None = None, grammar: Grammar | None = None) -> Checks:
    found = Checks.of(Request(prompt="x", watch=watch, grammar=grammar))
    assert found is not None
    return found


def report(found: Checks, text: str, reason: str = "stop") -> Report:
    return found.report(text, text.encode(), reason)  # type: ignore[arg-type]


def noticed(found: Checks, data: bytes, cut: int = 1) -> int | None:
    """Offset at which a watcher that is shown `data` in pieces sees a problem."""
    watcher, text = found.watcher(BYTES), TextStream(BYTES)
    for at in range(0, len(data), cut):
        piece = data[at : at + cut]
        problem = watcher.look(list(piece), "".join(map(text.feed, piece)))
        if problem is not None:
            return at
    return None


@pytest.mark.parametrize(
    ("watch", "good", "bad", "at"),
    [
        (JSON, '{"a":1,"b":"x"}', '{"a":1,"a":2}', 9),
        (JSON, '{"a":1}', '{"a":1}}', 7),
        (JSON, '{"a":1}', '{{"a":1}', 1),
        (JSON, ' {"a" : 1}\n', '{"a":"1"}', 5),
        (JSON, '{"a":1}', '{"a":1,"c":2}', 9),
        (Watch(kind="json"), "[1, true]", "[1, NaN]", 4),
        (HERMES, 'so: <tool_call>{"name": "f", "arguments": {"c": "x"}}</tool_call>', '<tool_call>{"name": "g", "arguments": {}}', 21),
        (HERMES, "no call", '<tool_call>{{"name": "f"', 12),
    ],
)  # fmt: skip
def test_the_first_byte_that_cannot_lead_to_a_valid_text_is_seen(watch: Watch, good: str, bad: str, at: int) -> None:
    found = checks(watch)
    assert report(found, good).valid and noticed(found, good.encode()) is None
    assert not report(found, bad).valid
    assert abs((noticed(found, bad.encode()) or 0) - at) <= 1  # a scalar is judged with the byte after it


def test_code_has_to_parse_and_may_stand_in_a_fence() -> None:
    found = checks(CODE)
    for text in ("x = 1\n", "Here it is:\n```python\nx = 1\n```\nDone (so I hope.", ""):
        assert report(found, text).valid, text
    for text in ("x = (\n", "```python\nx = = 1\n```", "\0", "-" * 100_000 + "1", "a" + "+a" * 100_000, "(" * 10_000):
        assert not report(found, text).valid
    assert report(found, "Here:\n```\ny = 2\n```").value == "y = 2\n"


FENCED = [
    ("python", "So:\n```python\nx = 1\n```\nDone (.", True),
    ("python", "```\nx = (\n```\nx = 1", False),
    ("python", "``x`` and ```x = 1``` on one line", True),
    ("python", "```x = (``` on one line", False),
    ("python", "```python\nx = '``'\n", True),
    ("json", '```json\n{"a": [1, "é"]}\n```\nthat is it {', True),
    ("json", "```json\n{'a': 1}\n```", False),
    ("json", '```json\n{"a": 1, "a": 2}\n```', False),
    ("json", '```json\n{"a": 1}', True),
    ("json", "[1, 2]", True),
    ("json", "", False),
    ("json", '```\n{"a": 1\n```', False),
    ("json", '```\n{"a": 1}}\n```', False),
]


@pytest.mark.parametrize(("language", "text", "valid"), FENCED)
def test_code_in_a_fence_is_judged_alike_for_every_cut_and_refused_before_its_end(
    language: str, text: str, valid: bool
) -> None:
    found, data = checks(Watch(kind="code", language=language)), text.encode()  # type: ignore[arg-type]
    assert report(found, text).valid is valid
    seen = {cut: noticed(found, data, cut) is not None for cut in (1, 2, 3, 7, len(data) or 1)}
    closed = text.count("```") > 1
    assert set(seen.values()) == {not valid and closed}


def test_json_in_a_fence_is_refused_at_its_first_wrong_byte() -> None:
    text = "Here: ```json\n{'a': 1}, and so on for a long time"
    assert noticed(checks(Watch(kind="code", language="json")), text.encode()) == text.index("'")


def test_code_is_never_run(tmp_path: object) -> None:
    assert report(checks(CODE), f"open({str(tmp_path)!r} + '/there', 'w').close()\n").valid
    assert list(tmp_path.iterdir()) == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("reason", ["length", "cancelled"])
def test_a_text_that_was_cut_off_is_cut_off_and_not_wrong(reason: str) -> None:
    keyword = {"length": "max_tokens", "cancelled": "cancelled"}[reason]
    for watch, text in ((JSON, '{"a":1,"b":"x'), (HERMES, '<tool_call>{"name": "f", "argu'), (CODE, "def f(")):
        found = report(checks(watch), text, reason)
        assert [each.keyword for each in found.violations] == [keyword] and found.value is None
    assert report(checks(JSON), '{"a":1}', reason).valid
    both = report(checks(JSON), '{"a":"1",', reason)
    assert both.violations[0].keyword == keyword and len(both.violations) == 2


@pytest.mark.parametrize("reason", ["length", "cancelled"])
def test_what_could_have_gone_on_is_cut_off_though_it_would_do_as_it_is(reason: str) -> None:
    call = '<tool_call>{"name": "f", "arguments": {"c": "x"}}</tool_call>'
    number, code = Watch(kind="json"), "So:\n```python\nx = comp"
    for watch, text in ((number, "12"), (CODE, "x = 1\n"), (CODE, code), (HERMES, call), (HERMES, call + "\n<tool_c")):
        found = report(checks(watch), text, reason)
        assert len(found.violations) == 1 and "cut off" in found.violations[0].message and found.value is None, text
        assert report(checks(watch), text, "stop").valid, text
    for watch, text in ((number, "12 "), (number, '"12"'), (CODE, code + "\n```"), (CODE, code + "\n```\nThis is")):
        assert report(checks(watch), text, reason).valid, text


def test_bytes_that_are_no_utf8_are_no_text_though_their_text_looks_like_one() -> None:
    found = checks(Watch(kind="json"))
    raw = b'["\xc3"]'
    assert [each.keyword for each in found.report(raw.decode(errors="replace"), raw, "stop").violations] == ["utf8"]
    assert noticed(found, raw) == 3
    honest = '["\ufffd"]'
    assert report(found, honest).valid and noticed(found, honest.encode(), cut=9) is None
    half = '["ü"]'.encode()[:3]  # cut off inside a character
    assert [each.keyword for each in found.report(half.decode(errors="replace"), half, "length").violations] == ["max_tokens"]


@pytest.mark.parametrize("watch", [JSON, HERMES, CODE, Watch(kind="code", language="json"), Watch(kind="json")])
@pytest.mark.parametrize("reason", ["stop", "length", "cancelled"])
def test_a_text_with_half_a_surrogate_pair_gets_a_verdict_and_raises_nothing(watch: Watch, reason: str) -> None:
    for text in ("\ud800", '{"a":1,"b":"\ud800"}', "<tool_call>\ud800", "```\n\ud800"):
        found = checks(watch).report(text, b"", reason)  # type: ignore[arg-type]
        assert not found.valid and all(each.message for each in found.violations)
        checks(watch).watcher(BYTES).look([], text)


def test_bytes_behind_a_stop_string_are_nobodys_text() -> None:
    raw = b'{"a":1}###\xff'
    assert checks(JSON).report('{"a":1}', raw, "stop").valid


def test_a_json_schema_grammar_is_watched_by_itself_and_other_grammars_are_judged() -> None:
    found = checks(grammar=Grammar("json_schema", SCHEMA))
    assert noticed(found, b'{"a":1}}') == 7 and report(found, '{"a":1}').value == {"a": 1}
    assert not report(checks(grammar=Grammar("regex", "[ab]+")), "abc").valid
    assert report(checks(grammar=Grammar("choices", '["x","y"]')), "y").valid
    assert Checks.of(Request(prompt="x", grammar=Grammar("lark", 'start: "x"'))) is None
    assert Checks.of(Request(prompt="x")) is None


def test_a_watch_and_a_grammar_are_both_asked() -> None:
    found = checks(watch=JSON, grammar=Grammar("regex", r"\{.{1,9}\}"))
    assert report(found, '{"a":1}').value == {"a": 1}
    assert {each.keyword for each in report(found, '{"a":1,"b":"long"}').violations} == {"regex"}
    assert {each.keyword for each in report(found, "{}").violations} == {"required", "regex"}


class Small(BaseModel):
    """Its validator refuses what its schema allows."""

    a: int

    @field_validator("a")
    @classmethod
    def small(cls, value: int) -> int:
        if value > 3:
            raise ValueError("too large")
        return value


def test_a_python_type_behind_a_grammar_is_never_taken_for_another() -> None:
    schema = json.dumps(Small.model_json_schema())
    assert report(checks(grammar=Grammar("json_schema", schema)), '{"a":9}').valid
    assert not report(checks(grammar=Grammar("json_schema", schema, Small)), '{"a":9}').valid


def test_a_python_type_behind_a_watch_is_asked_and_never_taken_for_another() -> None:
    schema = json.dumps(Small.model_json_schema())
    assert report(checks(Watch(kind="json", schema=schema)), '{"a":9}').valid
    assert not report(checks(Watch(kind="json", schema=schema, python_type=Small)), '{"a":9}').valid
    assert report(checks(Watch(kind="json", schema=schema)), '{"a":9}').valid


@pytest.mark.parametrize(
    "make",
    [
        lambda: Watch(kind="xml"),  # type: ignore[arg-type]
        lambda: Watch(kind="json", tools="[]"),
        lambda: Watch(kind="tools", format="hermes"),
        lambda: Watch(kind="code", schema="{}"),
        lambda: Watch(kind="code", language="cobol"),  # type: ignore[arg-type]
        lambda: Watch(kind="json", language="json"),
        lambda: Watch(kind="json", python_type=int),
        lambda: checks(Watch(kind="json", schema="{")),
        lambda: checks(Watch(kind="json", schema='{"type":"nothing"}')),
        lambda: checks(Watch(kind="tools", format="nobody's", tools=TOOLS)),
        lambda: checks(Watch(kind="tools", format="hermes", tools="{}")),
        lambda: checks(Watch(kind="tools", format="hermes", tools=TOOLS, choice="g")),
    ],
)
def test_a_watch_that_cannot_be_watched_is_refused(make: object) -> None:
    with pytest.raises((UsageError, SchemaError)):
        make()  # type: ignore[operator]


def test_what_an_engine_says_of_a_text_is_not_believed() -> None:
    text = '{"a":"x"}'
    said = Completion(text=text, token_ids=tuple(text.encode()), finish_reason="stop", value={"a": 1}, valid=True)
    found = judged(checks(JSON), said, BYTES)
    assert found.valid is False and found.value is None and found.violations


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4), lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3), max_leaves=6
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(_VALUES, st.integers(0, 10_000))
def test_watcher_and_last_word_agree_about_damaged_json_for_every_cut(value: object, seed: int) -> None:
    """A damaged text: if the watcher refuses it, so does the validator; if it is valid, the watcher never spoke."""
    dice = random.Random(seed)
    data = bytearray(json.dumps(value, ensure_ascii=False).encode())
    place, what = dice.randrange(len(data)), dice.randrange(4)
    if what == 0:
        del data[place]
    elif what == 1:
        data.insert(place, data[place])
    elif what == 2:
        data[place] = dice.randrange(256)
    found, raw = checks(Watch(kind="json")), bytes(data)
    text = raw.decode(errors="replace")
    valid = found.report(text, raw, "stop").valid
    seen = [noticed(found, raw, cut) is not None for cut in (1, 3, len(raw) or 1)]
    assert not (valid and any(seen))
    assert len(set(seen)) == 1
