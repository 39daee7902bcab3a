"""Qwen3-Coder: `<function=name>` around `<parameter=key>` text, in `<tool_call>` tags, as Qwen3-Coder and Qwen3.5+ write it.

Source: the chat template of Qwen3-Coder. One line break after an opening tag and one before a closing one are not text.
The model sometimes leaves the outer opening tag out: a call then begins with `<function=`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from toolkit.contracts import Json
from toolkit.validate.tools.calls_tagged import TaggedArguments, tagged_partial, tagged_rules, tagged_text
from toolkit.validate.tools.format import ToolFormat, checked_name, literal
from toolkit.validate.tools.offered import ToolSet
from toolkit.validate.tools.source import Reading, Source, Truncated
from toolkit.validate.tools.turn import Turn


class Qwen3Coder(ToolFormat):
    name = "qwen3_coder"
    signs = ("<tool_call>", "<function=", "<parameter=")
    opens = ("<tool_call>", "<function=")
    resume = "</tool_call>"
    strays = ("</tool_call>", "</function>", "</parameter>")
    ends = ("<|im_end|>", "<|endoftext|>")
    frame = ("<tool_call>\n", "\n</tool_call>")
    between = "\n</tool_call>\n<tool_call>\n"

    def read(self, source: Source, turn: Turn, mark: str) -> Reading[None]:
        call = turn.call()
        source.keep()
        if mark == "<tool_call>":
            yield from source.blank()
            yield from source.expect("<function=")
        name, _ = yield from source.name((">",), "the name of a tool")
        call.named(name)
        arguments = TaggedArguments(call, turn.tools.get(name))
        yield from source.blank()
        while (yield from source.accept("<parameter=")):
            key, _ = yield from source.name((">",), "the name of an argument")
            arguments.begin(key)
            yield from source.accept("\n")
            text = _WithoutLastBreak(arguments.add)
            if not (yield from source.until(("</parameter>",), text.add)):
                raise Truncated("</parameter>")
            arguments.end()
            yield from source.blank()
        yield from source.expect("</function>")
        raw = source.kept
        yield from source.blank()
        if mark == "<tool_call>":
            yield from source.expect("</tool_call>")
        else:
            yield from source.accept("</tool_call>")
        call.end(arguments.close(), raw)

    def body(self, name: str, arguments: Mapping[str, Json]) -> str:
        lines = [
            f"<parameter={checked_name(key)}>\n{tagged_text(key, value, '</parameter>')}\n</parameter>\n"
            for key, value in arguments.items()
        ]
        return f"<function={name}>\n{''.join(lines)}</function>"

    def rules(self, tools: ToolSet) -> str:
        calls = [
            f'{literal(f"<function={checked_name(name)}>" + chr(10))} args{i} "</function>"' for i, name in enumerate(tools)
        ]
        arguments = [
            tagged_rules(tool, i, "<parameter={key}>\n", ("\n", "</parameter>", "\n")) for i, tool in enumerate(tools.values())
        ]
        return "\n".join([f"call: {' | '.join(calls)}", *arguments])

    def partial(self, tools: ToolSet) -> tuple[str, ...]:
        return tuple(each for tool in tools.values() for each in tagged_partial(tool))


class _WithoutLastBreak:
    """Passes text on, a line break at its very end excepted."""

    def __init__(self, give: Callable[[str], None]) -> None:
        self._give, self._held = give, ""

    def add(self, piece: str) -> None:
        piece = self._held + piece
        self._held = "\n" if piece.endswith("\n") else ""
        self._give(piece.removesuffix("\n"))
