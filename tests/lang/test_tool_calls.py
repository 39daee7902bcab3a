"""tool_call in a model family's own format: the program writes the frame, the beam what stands inside, and the whole reads back."""

from __future__ import annotations

from typing import Any

import pytest
import sglang as sgl

from tests.lang.lang_scripted import ScriptedEngine
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import UnsupportedError, UsageError
from toolkit.lang import EmbeddedBackend, result, tool_call
from toolkit.validate.tools.stream import tool_stream
from toolkit.validate.tools.table import FORMATS, format_named

TOOLS = [{"name": "go", "parameters": {"properties": {"to": {"type": "string", "maxLength": 3}}, "required": ["to"]}}]
WRITABLE = [name for name in FORMATS if name != "openai"]


@sgl.function
def turn(s: Any, kind: str | None) -> None:
    s += "Go." + tool_call("call", TOOLS, format=kind, width=2, max_tokens=120)


@pytest.mark.parametrize("name", WRITABLE)
def test_a_call_in_a_format_is_decoded_inside_its_frame_and_the_whole_reads_back(name: str) -> None:
    with EmbeddedEngine("tiny", format="float32", kv_blocks=256, block_size=16) as engine:
        state = turn.run(kind=name, backend=EmbeddedBackend(engine))
        found = result(state, "call")
        before, after = format_named(name).frame
        assert state.text() == f"Go.{before}{state['call']}{after}" and found.valid
        stream = tool_stream(name, TOOLS)
        stream.feed(state.text().removeprefix("Go.").encode())
        assert [{"name": each.name, "arguments": each.arguments} for each in stream.close().calls] == [found.value]


def test_without_a_format_a_call_is_its_json_object() -> None:
    engine = ScriptedEngine(lambda text, request: '{"name":"go","arguments":{"to":"x"}}')
    state = turn.run(kind=None, backend=EmbeddedBackend(engine))
    assert state.text() == 'Go.{"name":"go","arguments":{"to":"x"}}'
    assert result(state, "call").value == {"name": "go", "arguments": {"to": "x"}}


def test_the_frame_is_there_while_sglang_traces_a_program_whose_tools_are_an_argument() -> None:
    @sgl.function
    def program(s: Any, tools: Any) -> None:
        s += tool_call("call", tools, format="hermes")

    engine = ScriptedEngine(lambda text, request: '{"name":"go","arguments":{"to":"x"}}')
    (state,) = program.run_batch([{"tools": TOOLS}], backend=EmbeddedBackend(engine))
    assert state.text() == '<tool_call>\n{"name":"go","arguments":{"to":"x"}}\n</tool_call>'


def test_formats_that_there_are_not_and_that_no_model_writes_are_refused_where_the_program_is_written() -> None:
    with pytest.raises(UsageError, match="known are"):
        tool_call("x", TOOLS, format="nothing")
    with pytest.raises(UnsupportedError, match="openai"):
        tool_call("x", TOOLS, format="openai")
