"""Mistral: `[TOOL_CALLS]` before a JSON list of calls, or before a name, `[ARGS]` and the arguments.

Source: the chat templates of Mistral 7B v0.3 (list) and Mistral Small 3.2 (name, an optional `[CALL_ID]`, `[ARGS]`).
"""

from __future__ import annotations

from types import MappingProxyType

from toolkit.validate.json_machine import JsonMachine
from toolkit.validate.tools.calls_json import NAME_ARGUMENTS_ID, ArgumentsOnly, read_list
from toolkit.validate.tools.format import JsonBodied
from toolkit.validate.tools.source import SPACE, Reading, Source
from toolkit.validate.tools.turn import Turn


class Mistral(JsonBodied):
    name = "mistral"
    signs = ("[TOOL_CALLS]",)
    opens = ("[TOOL_CALLS]",)
    ends = ("</s>",)
    think = MappingProxyType({"<think>": "</think>", "[THINK]": "[/THINK]"})
    frame = ("[TOOL_CALLS] [", "]")
    between = ", "

    def read(self, source: Source, turn: Turn, mark: str) -> Reading[None]:
        if (yield from source.blank()) == "[":
            yield from read_list(source, turn, NAME_ARGUMENTS_ID)
        else:
            yield from self._named(source, turn)
        if (yield from source.blank()) not in ("", "<", "["):
            raise source.surprise("the end of the turn")

    def _named(self, source: Source, turn: Turn) -> Reading[None]:
        call = turn.call()
        source.keep()
        name, mark = yield from source.name(("[ARGS]", "[CALL_ID]"), "the name of a tool")
        if mark == "[CALL_ID]":
            yield from source.name(("[ARGS]",), "the id of a call")
        call.named(name.strip(SPACE))
        machine = JsonMachine(watch=0)
        yield from source.json(machine, ArgumentsOnly(call))
        call.end(machine.value, source.kept)
