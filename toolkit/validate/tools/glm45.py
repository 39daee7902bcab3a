"""GLM 4.5: a name, then `<arg_key>` and `<arg_value>` pairs, in `<tool_call>` tags, as GLM 4.5, 4.6 and 4.7 write it.

Source: the chat template of GLM 4.5. GLM 4.7 has no line break after the name; white space between the tags says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.contracts import Json
from toolkit.validate.tools.calls_tagged import TaggedArguments, tagged_partial, tagged_rules, tagged_text
from toolkit.validate.tools.format import ToolFormat, checked_name, literal
from toolkit.validate.tools.offered import ToolSet
from toolkit.validate.tools.source import SPACE, Reading, Source, Truncated
from toolkit.validate.tools.turn import Turn


class Glm45(ToolFormat):
    name = "glm45"
    signs = ("<tool_call>", "<arg_key>", "<arg_value>")
    opens = ("<tool_call>",)
    resume = "</tool_call>"
    strays = ("</tool_call>", "</arg_key>", "</arg_value>")
    ends = ("<|observation|>", "<|user|>", "<|endoftext|>")
    frame = ("<tool_call>", "</tool_call>")
    between = "</tool_call>\n<tool_call>"

    def read(self, source: Source, turn: Turn, mark: str) -> Reading[None]:
        call = turn.call()
        source.keep()
        name, mark = yield from source.name(("<arg_key>", "</tool_call>"), "the name of a tool")
        name = name.strip(SPACE)
        call.named(name)
        arguments = TaggedArguments(call, turn.tools.get(name))
        while mark == "<arg_key>":
            key, _ = yield from source.name(("</arg_key>",), "the name of an argument")
            yield from source.blank()
            yield from source.expect("<arg_value>")
            arguments.begin(key.strip(SPACE))
            if not (yield from source.until(("</arg_value>",), arguments.add)):
                raise Truncated("</arg_value>")
            arguments.end()
            following = yield from source.blank()
            mark = "<arg_key>" if following and (yield from source.accept("<arg_key>")) else ""
            if not mark:
                yield from source.expect("</tool_call>")
        call.end(arguments.close(), source.kept.removesuffix("</tool_call>"))

    def body(self, name: str, arguments: Mapping[str, Json]) -> str:
        lines = [
            f"<arg_key>{checked_name(key)}</arg_key>\n<arg_value>{tagged_text(key, value, '</arg_value>')}</arg_value>\n"
            for key, value in arguments.items()
        ]
        return f"{name}\n{''.join(lines)}"

    def rules(self, tools: ToolSet) -> str:
        calls = [f"{literal(checked_name(name) + chr(10))} args{i}" for i, name in enumerate(tools)]
        arguments = [
            tagged_rules(tool, i, "<arg_key>{key}</arg_key>\n<arg_value>", ("", "</arg_value>", "\n"))
            for i, tool in enumerate(tools.values())
        ]
        return "\n".join([f"call: {' | '.join(calls)}", *arguments])

    def partial(self, tools: ToolSet) -> tuple[str, ...]:
        return tuple(each for tool in tools.values() for each in tagged_partial(tool))
