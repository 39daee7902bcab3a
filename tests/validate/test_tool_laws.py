"""Laws of every tool format, for every row of the table: no cut of a stream changes anything, and what is written is read back."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.validate.tool_texts import (
    CALLS,
    NAMES,
    TOOLS,
    broken_texts,
    clean_texts,
    cut,
    encoded,
    random_cuts,
    read,
    short_texts,
)
from toolkit.errors import UnsupportedError
from toolkit.validate.tools.deepseek import CALL
from toolkit.validate.tools.events import Arguments, Called, Calling, Content, Reasoning, Refused, ToolEvent, ToolResult
from toolkit.validate.tools.stream import tool_stream
from toolkit.validate.tools.table import FORMATS, format_named, format_of_template
from toolkit.validate.utf8 import size

PARTITIONS = 10_000


@pytest.mark.parametrize("name", NAMES)
def test_every_cut_into_two_single_bytes_and_one_piece_are_the_same(name: str) -> None:
    for text in [
        *clean_texts(name)[:3],
        *short_texts(name),
        *broken_texts(name, 5),
        *broken_texts(name, 20, short_texts(name)),
    ]:
        data = encoded(text)
        whole = read(name, [data])
        assert read(name, [data[i : i + 1] for i in range(len(data))]) == whole, text
        for at in range(len(data) + 1):
            assert read(name, [data[:at], data[at:]]) == whole, (text, at)


@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_random_partitions_are_the_same(name: str) -> None:
    random_ = random.Random(f"partitions {name}")
    texts = [*short_texts(name) * 5, *broken_texts(name, 10, short_texts(name))]
    samples = [(encoded(text), read(name, [encoded(text)])) for text in texts if text]
    for _ in range(PARTITIONS):
        data, whole = random_.choice(samples)
        cuts = random_cuts(random_, len(data))
        assert read(name, cut(data, cuts)) == whole, (data, cuts)


@pytest.mark.parametrize("name", NAMES)
def test_clean_texts_have_their_calls_and_no_errors_and_broken_ones_hold_no_call_that_is_not_judged(name: str) -> None:
    for text in clean_texts(name):
        _, result = read(name, [encoded(text)])
        assert result.valid, (text, result.errors)
    assert [(each.name, each.arguments) for each in read(name, [encoded(clean_texts(name)[0])])[1].calls] == list(CALLS)
    faulty = 0
    for text in broken_texts(name, 200):
        _, result = read(name, [encoded(text)])
        faulty += not result.valid
        assert all(not TOOLS[each.name].violations(each.arguments) for each in result.calls)
    assert faulty > 50


@pytest.mark.parametrize("name", NAMES)
def test_events_joined_are_the_result_and_arguments_are_their_own_json(name: str) -> None:
    for text in [*clean_texts(name), *broken_texts(name, 60)]:
        events, result = read(name, [bytes([byte]) for byte in encoded(text)])
        check_events(events, result)


def check_events(events: list[ToolEvent], result: ToolResult) -> None:
    assert "".join(each.text for each in events if isinstance(each, Content)) == result.content
    assert "".join(each.text for each in events if isinstance(each, Reasoning)) == result.reasoning
    assert tuple(each.call for each in events if isinstance(each, Called)) == result.calls
    assert tuple(each for event in events if isinstance(event, Refused) for each in event.violations) == result.errors
    for call in result.calls:
        about = [each for each in events if getattr(each, "index", None) == call.index]
        assert [type(each) for each in about] == [Calling, Arguments, Called] and about[0].name == call.name
        assert json.loads(about[1].text) == call.arguments


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "find_train": st.fixed_dictionaries({"to": TEXT}, optional={"bike": st.booleans()}),
    "find_hotel": st.fixed_dictionaries({"nights": st.integers(-(10**6), 10**6)}),
    "note": st.fixed_dictionaries(
        {"text": TEXT}, optional={"n": st.dictionaries(TEXT, st.none() | st.integers() | TEXT | st.lists(st.booleans(), max_size=2), max_size=2)}
    ),
    "ping": st.just({}),
}  # fmt: skip
A_CALL = st.sampled_from(sorted(ARGUMENTS)).flatmap(lambda name: st.tuples(st.just(name), ARGUMENTS[name]))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_calls_that_are_written_are_read_back(name: str, data: st.DataObject) -> None:
    calls = data.draw(st.lists(A_CALL, max_size=3))
    try:
        written = format_named(name).write(*calls)
    except UnsupportedError as error:
        assert "cannot be written" in str(error)
        return
    _, result = read(name, [written.encode()] if calls else [])
    assert [(each.name, dict(each.arguments)) for each in result.calls] == calls
    assert not calls or result.valid


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_bytes_are_read_without_an_exception_and_the_same_for_every_cut(name: str, data: st.DataObject) -> None:
    format_ = format_named(name)
    marks = [
        *format_.opens,
        format_.resume,
        *format_.strays,
        *format_.ends,
        *format_.think,
        *format_.think.values(),
        *clean_texts(name),
    ]
    piece = st.sampled_from([encoded(each) for each in marks]) | st.binary(max_size=4)
    pieces = data.draw(st.lists(piece, max_size=8))
    assert read(name, pieces) == read(name, [b"".join(pieces)])


@pytest.mark.parametrize("name", NAMES)
def test_the_work_is_linear_in_a_stream_of_single_bytes(name: str) -> None:
    def work(size: int, before: str, after: str) -> int:
        stream = tool_stream(name, TOOLS)
        for byte in encoded(before + "<" * size + after):
            stream.feed(bytes([byte]))
        stream.close()
        return stream._source.work

    format_ = format_named(name)
    long_call = format_.write(("note", {"text": "\x01"})).split(
        "\\u0001" if "\\u0001" in format_.write(("note", {"text": "\x01"})) else "\x01"
    )
    for before, after in (("", ""), (long_call[0], long_call[-1]), ("<think>", ""), (" ", " ")):
        small, large = work(1_000, before, after), work(8_000, before, after)
        assert large < 8 * small + 20_000


@pytest.mark.parametrize("name", NAMES)
def test_the_work_is_linear_in_the_faults_of_one_piece(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [0]

    def counted(text: str) -> int:
        measured[0] += len(text)
        return size(text)

    def work(times: int, piece: str) -> int:
        measured[0] = 0
        stream = tool_stream(name, TOOLS)
        stream.feed(encoded(piece * times))
        stream.close()
        return stream._source.work + measured[0]

    monkeypatch.setattr("toolkit.validate.tools.source.size", counted)
    format_ = format_named(name)
    opening = next(iter(format_.opens), "")
    inside = {"glm45": "f<arg_key>", "qwen3_coder": "<function=", "deepseek": CALL}.get(name, "{")
    for piece in (
        "".join(format_.strays) or "<",
        opening + "x" + format_.resume,
        opening + inside + "k" * 300 + format_.resume,
    ):
        assert work(400, piece) < 5 * work(100, piece), piece


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", '<tool_call>{"name":"note","arguments":{"text":"'])
def test_the_work_stays_linear_in_a_million_single_bytes(before: str) -> None:
    stream, size = tool_stream("hermes", TOOLS), 1_000_000
    stream.feed(before.encode())
    for _ in range(size):
        stream.feed(b"<")
    result = stream.close()
    assert stream._source.work < 4 * size
    assert len(result.content) == (0 if before else size)


@pytest.mark.parametrize("name", NAMES)
def test_no_mark_begins_inside_another_so_that_the_first_one_is_the_same_for_every_cut(name: str) -> None:
    format_ = format_named(name)
    marks = {*format_.opens, *format_.strays, *format_.ends, *format_.think, *format_.think.values()} | (
        {format_.resume} - {""}
    )
    for one in marks:
        for other in marks:
            starts = range(0 if one != other else 1, len(one))
            assert not any(other.startswith(one[at:]) or one[at:].startswith(other) for at in starts), (one, other)


def test_a_template_tells_its_format() -> None:
    templates = {
        "hermes": "{{ '<tool_call>' }}{{ '</tool_call>' }}",
        "qwen3_coder": "<tool_call>\n<function={{ name }}>\n<parameter=x>\n</tool_call>",
        "glm45": "<tool_call>{{ name }}<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>",
        "mistral": "[AVAILABLE_TOOLS] [TOOL_CALLS]",
        "llama3": '<|start_header_id|>{"name": function name, "parameters": dictionary}',
        "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    }
    assert {name: format_of_template(text) for name, text in templates.items()} == {name: name for name in templates}
    assert format_of_template("<|im_start|>user") is None
    assert {name for name in FORMATS if format_named(name).signs} == set(templates)
    assert all(format_named(name).name == name for name in FORMATS)
