"""Hermes: `<tool_call>` around a JSON object, as Hermes 2 Pro, Qwen 2.5 and Qwen 3 write it."""

from __future__ import annotations

from toolkit.validate.tools.calls_json import NAME_ARGUMENTS, read_object
from toolkit.validate.tools.format import JsonBodied
from toolkit.validate.tools.source import Reading, Source
from toolkit.validate.tools.turn import Turn


class Hermes(JsonBodied):
    name = "hermes"
    signs = ("<tool_call>", "</tool_call>")
    opens = ("<tool_call>",)
    resume = "</tool_call>"
    strays = ("</tool_call>",)
    ends = ("<|im_end|>", "<|endoftext|>")
    frame = ("<tool_call>\n", "\n</tool_call>")
    between = "\n</tool_call>\n<tool_call>\n"

    def read(self, source: Source, turn: Turn, mark: str) -> Reading[None]:
        yield from source.blank()
        call, arguments = yield from read_object(source, turn, NAME_ARGUMENTS)
        raw = source.kept
        yield from source.blank()
        yield from source.expect("</tool_call>")
        call.end(arguments, raw)
