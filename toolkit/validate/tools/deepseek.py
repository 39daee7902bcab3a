"""DeepSeek: calls between marks with full-width bars, as V3, R1 (a fenced JSON block) and V3.1 (bare JSON) write them.

Source: the chat templates of DeepSeek V3-0324 and V3.1. Which of the two it is shows after the separator: V3.1 has `{` there.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.contracts import Json
from toolkit.validate.json_machine import JsonMachine
from toolkit.validate.tools.calls_json import ArgumentsOnly
from toolkit.validate.tools.format import ToolFormat, checked_name, compact, literal, schema_rule
from toolkit.validate.tools.offered import ToolSet
from toolkit.validate.tools.source import SPACE, Fault, Reading, Source
from toolkit.validate.tools.turn import Turn

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


class DeepSeek(ToolFormat):
    name = "deepseek"
    signs = (CALLS, SEPARATOR)
    opens = (CALLS,)
    resume = CALLS_END
    strays = (CALLS_END, CALL, CALL_END, SEPARATOR)
    ends = ("<｜end▁of▁sentence｜>",)
    frame = (CALLS + CALL, CALL_END + CALLS_END)
    between = CALL_END + CALL

    def read(self, source: Source, turn: Turn, mark: str) -> Reading[None]:
        yield from source.blank()
        while (yield from source.accept(CALL)):
            yield from self._one(source, turn)
            yield from source.blank()
        yield from source.expect(CALLS_END)

    def _one(self, source: Source, turn: Turn) -> Reading[None]:
        call = turn.call()
        source.keep()
        name, _ = yield from source.name((SEPARATOR,), "the name of a tool")
        is_fenced = (yield from source.blank()) != "{"
        if is_fenced:  # V3: the kind of tool stands where V3.1 has the name
            if name.strip(SPACE) != "function":
                raise Fault("format", "function", f"byte {source.offset}: expected function{SEPARATOR}, found {name[:40]!r}")
            name, _ = yield from source.name(("```json",), "the name of a tool")
            yield from source.blank()
        call.named(name.strip(SPACE))
        machine = JsonMachine(watch=0)
        yield from source.json(machine, ArgumentsOnly(call))
        yield from source.blank()
        if is_fenced:
            yield from source.expect("```")
            yield from source.blank()
        raw = source.kept
        yield from source.expect(CALL_END)
        call.end(machine.value, raw)

    def body(self, name: str, arguments: Mapping[str, Json]) -> str:
        return f"{name}{SEPARATOR}{compact(arguments)}"

    def rules(self, tools: ToolSet) -> str:
        calls = [f"{literal(checked_name(name) + SEPARATOR)} args{i}" for i, name in enumerate(tools)]
        arguments = [f"args{i}: {schema_rule(tool.parameters)}" for i, tool in enumerate(tools.values())]
        return "\n".join([f"call: {' | '.join(calls)}", *arguments])
