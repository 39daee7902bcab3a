"""The tool stream: handed cases, reasoning, what was asked for, and what each format's faults come out as."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.validate.tool_texts import TOOLS, encoded, read
from toolkit.errors import SchemaError, UsageError
from toolkit.schema import SEARCH_SECONDS
from toolkit.validate.tools.events import Called, Calling, Content, Reasoning, Refused, ToolResult
from toolkit.validate.tools.offered import MOST_TOOLS, ToolSet
from toolkit.validate.tools.stream import tool_stream
from toolkit.validate.tools.table import format_named
from toolkit.validate.tools.turn import TURN_SECONDS

CASES = Path(__file__).parents[2].parent / "shared" / "cases" / "toolcalls.jsonl"
TRAIN = '<tool_call>\n{"name": "find_train", "arguments": {"to": "Porto"}}\n</tool_call>'
HOTEL = '<tool_call>\n{"name": "find_hotel", "arguments": {"nights": 2}}\n</tool_call>'


def result_of(text: str, name: str = "hermes", **options: Any) -> ToolResult:
    return read(name, [encoded(text)], **options)[1]


def names(result: ToolResult) -> list[str]:
    return [each.name for each in result.calls]


def keywords(result: ToolResult) -> list[str]:
    return [each.keyword for each in result.errors]


@pytest.mark.conformance
def test_the_handed_cases_come_out_as_they_say_for_every_cut() -> None:
    if not CASES.exists():
        pytest.skip(f"{CASES} is absent")
    for case in map(json.loads, CASES.read_text(encoding="utf-8").splitlines()):
        data = case["text"].encode()
        whole = read(case["format"], [data])
        assert [{"name": each.name, "arguments": each.arguments} for each in whole[1].calls] == case["calls"], case["id"]
        assert whole[1].content == case["content"], case["id"]
        assert bool(whole[1].errors) == (not case["calls"]), case["id"]
        assert all(read(case["format"], [data[:at], data[at:]]) == whole for at in range(len(data))), case["id"]
        assert read(case["format"], [bytes([byte]) for byte in data]) == whole, case["id"]


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls", "errors"),
    [
        (f"<think>\nA train.\n</think>\n\n{TRAIN}", "A train.", "", ["find_train"], []),
        (f"<think>a</think>Sure.{TRAIN}\n<think>b</think>\n{HOTEL}\n", "ab", "Sure.", ["find_train", "find_hotel"], []),
        (f"{TRAIN}<think>b</think>{HOTEL}", "b", "", ["find_train", "find_hotel"], []),
        (f"<think>not closed {TRAIN}", f"not closed {TRAIN}", "", [], ["truncated"]),
        (f"<think></think>{TRAIN}", "", "", ["find_train"], []),
        (f"a </think> b {TRAIN}", "", "a  b", ["find_train"], ["format"]),
        ("Hello.\n\n<think>x</think>\n\nThere.\n", "x", "Hello.\n\n\n\nThere.\n", [], []),
    ],
)  # fmt: skip
def test_reasoning_stands_before_between_and_after_and_never_leaks_its_tags(
    text: str, reasoning: str, content: str, calls: list[str], errors: list[str]
) -> None:
    result = result_of(text)
    assert (result.content, names(result), keywords(result)) == (content, calls, errors)
    assert result.reasoning.split() == reasoning.split()
    assert "think>" not in result.content


def test_a_template_may_have_opened_the_first_reasoning_block() -> None:
    text = f"\nA train.\n</think>\n{TRAIN}<think>b</think>"
    result = result_of(text, reasoning="open")
    assert (result.reasoning, names(result), result.valid) == ("A train.\nb", ["find_train"], True)
    assert keywords(result_of("no end", reasoning="open")) == ["truncated"]
    plain = result_of("<think>x</think>", reasoning="off")
    assert (plain.content, plain.reasoning, plain.valid) == ("<think>x</think>", "", True)


def test_events_come_as_soon_as_their_bytes_do() -> None:
    stream = tool_stream("hermes", TOOLS)
    assert stream.feed(b"Let me <") == [Content("Let me")]
    assert stream.feed(b"b>look. <too") == [Content(" <b>look.")]
    assert stream.feed(b'l_call>{"name":"find_train"') == [Calling(0, "find_train")]
    assert [each.text for each in stream.feed(b',"arguments":{"to":"Po')] == ['{"to":"Po']
    assert [each.text for each in stream.feed(b'rto"}}\n')] == ['rto"}']
    (called,) = stream.feed(b"</tool_call>")
    assert isinstance(called, Called) and called.call.arguments == {"to": "Porto"} and called.call.raw.startswith('{"name"')
    assert stream.feed(b"<think>w") == [Reasoning("w")]
    assert keywords(stream.close()) == ["truncated"] == [each.keyword for each in stream.close().last_events[0].violations]


def test_arguments_that_come_before_the_name_wait_for_it() -> None:
    events, result = read("hermes", [b'<tool_call>{"arguments":{"nights":2},', b'"name":"find_hotel"}</tool_call>'])
    assert [type(each).__name__ for each in events] == ["Calling", "Arguments", "Called"] and result.valid


@pytest.mark.parametrize(
    ("choice", "text", "calls", "errors"),
    [
        ("auto", "Hi.", [], []),
        ("required", "Hi.", [], ["tool_choice"]),
        ("required", TRAIN, ["find_train"], []),
        ("none", TRAIN, [], ["tool_choice"]),
        ("none", "Hi.", [], []),
        ("find_hotel", TRAIN + HOTEL, ["find_hotel"], ["tool_choice"]),
        ("find_hotel", TRAIN, [], ["tool_choice"]),
    ],
)  # fmt: skip
def test_what_was_asked_for_is_what_is_called(choice: str, text: str, calls: list[str], errors: list[str]) -> None:
    result = result_of(text, choice=choice)
    assert (names(result), keywords(result)) == (calls, errors)


def test_calls_beyond_the_parallel_limit_are_refused() -> None:
    result = result_of(TRAIN + HOTEL + HOTEL, parallel=1)
    assert names(result) == ["find_train"] and keywords(result) == ["parallel", "parallel"]
    assert result.errors[0].path == "/calls/1" and result.errors[0].expected == "at most 1"


def test_a_call_that_was_not_offered_is_an_error_that_names_it_and_says_nothing_before() -> None:
    events, result = read("hermes", [encoded(TRAIN.replace("find_train", "rm_rf") + HOTEL)])
    assert isinstance(events[0], Refused) and names(result) == ["find_hotel"]
    assert (
        result.errors[0].path == "/calls/0/name"
        and "'rm_rf'" in result.errors[0].message
        and "find_hotel" in result.errors[0].expected
    )


def test_arguments_that_the_schema_forbids_are_errors_with_their_path() -> None:
    text = TRAIN.replace('"Porto"', '5, "bike": "yes", "x": 1')
    errors = {each.path: each.keyword for each in result_of(text).errors}
    assert errors == {
        "/calls/0/arguments/to": "type",
        "/calls/0/arguments/bike": "type",
        "/calls/0/arguments": "additionalProperties",
    }


HERMES = "hermes"
FAULTS: list[tuple[str, str, str, str]] = [
    (HERMES, '<tool_call>{{"name":"ping","arguments":{}}</tool_call>', "json", "byte 12"),
    (HERMES, '<tool_call>{"name":"ping","arguments":{}}}</tool_call>', "format", "expected '</tool_call>', found '}'"),
    (HERMES, '<tool_call><tool_call>{"name":"ping","arguments":{}}</tool_call>', "json", "byte 11"),
    (HERMES, '<tool_call>{"name":"ping","name":"ping","arguments":{}}</tool_call>', "json", "comes twice"),
    (HERMES, '<tool_call>{"name":"ping","arguments":{"a":NaN}}</tool_call>', "json", "byte 43"),
    (HERMES, '<tool_call>{"name":"note","arguments":{"text":"\\ud800"}}</tool_call>', "json", "surrogate"),
    (HERMES, '<tool_call>{"name":"ping","arguments":"{}"}</tool_call>', "type", "object"),
    (HERMES, '<tool_call>{"name":["ping"],"arguments":{}}</tool_call>', "type", "string"),
    (HERMES, '<tool_call>{"name":"ping"}</tool_call>', "required", "without arguments"),
    (HERMES, '<tool_call>{"arguments":{}}</tool_call>', "required", "without name"),
    (HERMES, '<tool_call>{"name":"ping","arguments":{},"more":1}</tool_call>', "format", "'more'"),
    (HERMES, '<tool_call>["ping"]</tool_call>', "type", "object"),
    (HERMES, '<tool_call>{"name":"ping","arguments":{}}', "truncated", "</tool_call>"),
    (HERMES, "</tool_call>", "format", "closes nothing"),
    ("llama3", '<|python_tag|>{"name":"ping","parameters":{}}}', "format", "found '}'"),
    ("llama3", '{"name":"ping","parameters":{},"arguments":{}}', "format", "'arguments'"),
    ("llama3", '<|python_tag|>brave_search.call(query="x")', "json", "found 'b'"),
    ("mistral", '[TOOL_CALLS] [{"name":"ping","arguments":{}}', "truncated", "','"),
    ("mistral", '[TOOL_CALLS] [{"name":"ping","arguments":{}},]', "json", "byte 45"),
    ("mistral", '[TOOL_CALLS]ping[ARGS]{"a":1', "truncated", "JSON value"),
    ("mistral", "[TOOL_CALLS]ping[ARGS][]", "type", "object"),
    ("mistral", "[TOOL_CALLS]" + "p" * 2000, "format", "longer than 256"),
    ("qwen3_coder", "<tool_call>\n<function=ping></tool_call>", "format", "</function>"),
    ("qwen3_coder", "<tool_call>\n<function=note>\n<parameter=text>\nx\n</parameter>\n<parameter=text>\ny\n</parameter>\n</function>\n</tool_call>", "format", "twice"),
    ("qwen3_coder", "<tool_call>\n<function=find_hotel>\n<parameter=nights>\ntwo\n</parameter>\n</function>\n</tool_call>", "type", "integer"),
    ("qwen3_coder", "<tool_call>\n<function=find_hotel>\n<parameter=nights>\n2\n", "truncated", "</parameter>"),
    ("qwen3_coder", "<tool_call>\n<function=find_hotel>\n</function>\n</tool_call>", "required", "nights"),
    ("glm45", "<tool_call>find_hotel\n<arg_key>nights</arg_key>\n<arg_value>2.5</arg_value>\n</tool_call>", "type", "integer"),
    ("glm45", "<tool_call>find_hotel\n<arg_key>nights</arg_key>\n2</tool_call>", "format", "<arg_value>"),
    ("glm45", "<tool_call>ping", "truncated", "name of a tool"),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁calls▁end｜>", "format", "<｜tool▁call▁end｜>"),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "format", "function"),
    ("json", '{"name":"ping","arguments":{}}{', "format", "the end of the turn"),
    ("json", '[{"name":"ping","arguments":{}}', "truncated", "','"),
    ("openai", "Bad gateway", "json", "byte 0"),
    ("openai", '{"error":{"message":"no"}}', "required", "no message"),
    ("openai", '{"content":5}', "type", "string or null"),
    ("openai", '{"content":null,"tool_calls":[{"function":{"name":"ping","arguments":"{\\"a\\":"}}]}', "json", "cut off"),
    ("openai", '{"content":null,"tool_calls":[{"function":{"name":"ping","arguments":"{}}"}}]}', "json", "follows"),
    ("openai", '{"content":null,"tool_calls":[{"function":{"name":"ping","arguments":{}}}]}', "type", "string"),
    ("openai", '{"content":null,"tool_calls":[{"function":{"name":"ping"}}]}', "required", "arguments"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "keyword", "why"), FAULTS)
def test_a_fault_is_an_error_that_says_where_and_why_and_never_a_call(name: str, text: str, keyword: str, why: str) -> None:
    result = result_of(text, name)
    assert not result.valid and result.errors[0].keyword == keyword
    error = result.errors[0]
    assert why in " ".join((error.message, error.expected, error.path))
    assert not result.calls or keyword in ("truncated", "format") or "byte 45" in why, "what ended before the fault stays"


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm45", "deepseek"])
def test_after_a_fault_the_next_call_is_read_where_the_format_says_where_it_begins(name: str) -> None:
    format_ = format_named(name)
    bad = format_.write(("ping", {})).replace("ping", "p\nin}g{", 1).replace("}", "", 1)
    result = result_of(f"a {bad} b {format_.write(('find_hotel', {'nights': 2}))} c", name)
    assert names(result) == ["find_hotel"] and len(result.errors) >= 1
    assert result.content == "a  b  c"


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("mistral", '[TOOL_CALLS]note[CALL_ID]abc123[ARGS]{"text": "x"}[TOOL_CALLS]note[ARGS]{"text": "y"}', [{"text": "x"}, {"text": "y"}]),
        ("mistral", '[TOOL_CALLS][{"id": "a", "name": "ping", "arguments": {}}]</s>', [{}]),
        ("mistral", "[THINK]x[/THINK][TOOL_CALLS] []", []),
        ("llama3", '{"type": "function", "name": "ping", "parameters": {}}<|eom_id|>', [{}]),
        ("llama3", '<|python_tag|>{"name": "ping", "arguments": {}};\n{"name": "ping", "parameters": {}}<|eot_id|>', [{}, {}]),
        ("qwen3_coder", "<function=note>\n<parameter=text>\n\n2\n\n</parameter>\n</function>", [{"text": "\n2\n"}]),
        ("qwen3_coder", "<tool_call>\n<function=find_train>\n<parameter=to>null</parameter>\n<parameter=bike>\nTrue\n</parameter>\n</function>\n</tool_call>", [{"to": "null", "bike": True}]),
        ("qwen3_coder", '<tool_call><function=note><parameter=text>a</b></parameter><parameter=n>{"a": [1]}</parameter></function></tool_call>', [{"text": "a</b>", "n": {"a": [1]}}]),
        ("glm45", "<tool_call>note<arg_key>text</arg_key><arg_value>\nx </arg_value></tool_call>", [{"text": "\nx "}]),
        ("glm45", "<tool_call>ping</tool_call><|observation|>", [{}]),
        ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>note\n```json\n{"text": "```"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>', [{"text": "```"}, {}]),
        ("json", ' \n{"name": "ping", "parameters": {}}\n', [{}]),
        ("openai", '{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"arguments":" {\\"nights\\": 2}\\n","name":"find_hotel"}}],"refusal":null}', [{"nights": 2}]),
        ("openai", '{"role":"assistant","content":"Hi","tool_calls":null}', []),
    ],
)  # fmt: skip
def test_the_layouts_that_models_use_are_read(name: str, text: str, arguments: list[Any]) -> None:
    result = result_of(text, name)
    assert result.valid, result.errors
    assert [each.arguments for each in result.calls] == arguments


def test_a_message_object_has_its_content_and_reasoning_as_they_are() -> None:
    result = result_of('{"reasoning_content":" r ","reasoning":" r ","content":" <think>\\n"}', "openai")
    assert (result.reasoning, result.content, result.valid) == (" r ", " <think>\n", True)


def test_a_text_may_mean_what_its_schema_allows() -> None:
    tools = [{"name": "f", "parameters": {"properties": {"a": {"type": ["integer", "string"]}, "b": {"enum": ["1", "2"]}, "c": {"anyOf": [{"type": "null"}, {"type": "number"}]}, "d": {}}}}]  # fmt: skip

    def value(key: str, text: str) -> Any:
        written = f"<tool_call>f<arg_key>{key}</arg_key><arg_value>{text}</arg_value></tool_call>"
        result = result_of(written, "glm45", tools=tools)
        return result.calls[0].arguments[key] if result.calls else keywords(result)

    assert [value("a", "2"), value("a", "2.5"), value("a", "x"), value("a", '"x"')] == [2, "2.5", "x", '"x"']
    assert [value("b", "1"), value("b", "3")] == ["1", ["enum"]]
    assert [value("c", "null"), value("c", "None"), value("c", " 1.5 "), value("c", "x")] == [None, None, 1.5, ["type"]]
    assert [value("d", "x"), value("d", "[1]"), value("d", "true")] == ["x", [1], True]


def test_bytes_that_are_no_utf8_are_named_and_replaced_in_text_and_spoil_a_call() -> None:
    _, result = read("hermes", [b"a\xff b\xe2", b"\x82"])
    assert result.content == "a\ufffd b\ufffd\ufffd" and keywords(result) == ["utf8"] and "byte 1 " in result.errors[0].message
    _, result = read("qwen3_coder", [b"<function=note><parameter=text>\xff</parameter></function></tool_call>"])
    assert not result.calls and "utf8" in keywords(result)
    _, result = read("glm45", [b"<tool_call>\xed\xa0\x80</tool_call>"])
    assert not result.calls and keywords(result)[0] == "utf8"


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45"])
def test_a_text_that_is_no_utf8_spoils_its_call_alike_for_every_cut(name: str) -> None:
    written = format_named(name).write(("note", {"text": "a~b"}), ("find_hotel", {"nights": 2})).encode()
    data = written.replace(b"~", b"\xe2\x82")
    whole = read(name, [data])
    assert names(whole[1]) == ["find_hotel"] and keywords(whole[1]) == ["utf8", "utf8"]
    assert all(read(name, [data[:at], data[at:]]) == whole for at in range(len(data)))


def test_a_stream_is_bounded_in_bytes_and_errors() -> None:
    _, result = read("hermes", [b"abc", TRAIN.encode()], max_bytes=10)
    assert keywords(result) == ["truncated", "size"] or keywords(result) == ["size"]
    for at in range(len(TRAIN)):
        data = encoded(f"<think>é</think>{TRAIN}é")
        assert read("hermes", [data[:at], data[at:]], max_bytes=70) == read("hermes", [data], max_bytes=70)
    _, result = read("hermes", [b"</tool_call>" * 500])
    assert len(result.errors) == 64 and "may be more" in result.errors[-1].message


def test_a_closed_stream_is_closed_and_options_are_checked() -> None:
    stream = tool_stream("qwen25", TOOLS)
    assert stream.close() is stream.close()
    with pytest.raises(UsageError, match="closed"):
        stream.feed(b"x")
    with pytest.raises(UsageError, match="bytes"):
        tool_stream("hermes", TOOLS).feed("x")  # type: ignore[arg-type]
    for options in ({"choice": "nothing"}, {"parallel": 0}, {"reasoning": "yes"}, {"max_bytes": 0}):
        with pytest.raises(UsageError, match=next(iter(options)).replace("_", ".")):
            tool_stream("hermes", TOOLS, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="known are"):
        tool_stream("nothing", TOOLS)
    with pytest.raises(UsageError, match="more than once"):
        tool_stream("hermes", [{"name": "a"}, {"name": "a"}])
    with pytest.raises(SchemaError, match="parameters of tool a"):
        tool_stream("hermes", [{"name": "a", "parameters": {"properties": {"x": {"$ref": "https://example.org/s"}}}}])
    with pytest.raises(SchemaError, match="parameters of tool a: the schema is no JSON"):
        tool_stream("hermes", [{"name": "a", "parameters": {"default": {1, 2}}}])
    with pytest.raises(UsageError, match="non-empty list"):
        tool_stream("hermes", [])


def test_hostile_calls_together_have_one_second_and_are_no_calls_where_it_is_over() -> None:
    slow = {"anyOf": [{"pattern": "^(a|aa)+$"}, {"type": "string"}]}  # every text fits, after a long search
    tool = {"name": "f", "parameters": {"properties": {"a": slow}}}
    text = '<tool_call>{"name":"f","arguments":{"a":"' + "a" * 26 + 'b"}}</tool_call>'
    stream, began = tool_stream("hermes", [tool]), time.thread_time()
    stream.feed((text * 30).encode())
    spent = time.thread_time() - began
    result = stream.close()
    assert spent < TURN_SECONDS + 4 * SEARCH_SECONDS, "each call had a clock of its own"
    assert len(result.calls) < 30 and {each.keyword for each in result.errors} == {"undecided"}


def test_more_tools_than_can_be_offered_are_refused_by_number() -> None:
    tools = [{"name": f"f{number}"} for number in range(MOST_TOOLS + 1)]
    with pytest.raises(UsageError, match=f"number of tools.*{MOST_TOOLS + 1}.*at most {MOST_TOOLS}"):
        ToolSet(tools)
    assert len(ToolSet(tools[1:])) == MOST_TOOLS


def test_tools_that_take_too_long_to_check_are_refused_and_not_checked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.validate.tools.offered.TOOLS_SECONDS", 0.05)
    tools = [{"name": f"f{number}", "parameters": {"title": f"slow {number}"}} for number in range(400)]
    with pytest.raises(SchemaError, match="400 tools cannot be checked"):
        ToolSet(tools)


@pytest.mark.parametrize(
    ("name", "text", "path"),
    [
        ("hermes", '<tool_call>{"a/b~c": 1}</tool_call>', "/calls/0/a~1b~0c"),
        ("glm45", "<tool_call>f<arg_key>a/b</arg_key><arg_value>1</arg_value><arg_key>a/b</arg_key><arg_value>2</arg_value></tool_call>", "/calls/0/arguments/a~1b"),
    ],
)  # fmt: skip
def test_the_place_of_a_fault_is_a_json_pointer_whatever_the_name_is(name: str, text: str, path: str) -> None:
    stream = tool_stream(name, [{"name": "f"}])
    stream.feed(text.encode())
    assert stream.close().errors[0].path == path


def test_a_model_may_open_the_reasoning_block_that_its_template_has_opened() -> None:
    for text in ("<think>so</think>Hi", "\n<think>\nso</think>\nHi", "so</think>Hi"):
        data = text.encode()
        for at in range(len(data) + 1):
            found = read("hermes", [data[:at], data[at:]], reasoning="open")[1]
            assert (found.reasoning, found.content, found.errors) == ("so", "Hi", ()), (text, at)
    assert result_of("<thin</think>Hi", reasoning="open").reasoning == "<thin"


def test_a_call_as_servers_wrote_them_before_there_were_tools_is_not_lost() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    assert keywords(result_of(json.dumps(old), "openai")) == ["type"]
    assert result_of(json.dumps({**old, "content": "Hi", "function_call": None}), "openai").valid
