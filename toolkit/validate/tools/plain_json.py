"""Plain JSON: an answer that is one call object or a list of them; any other answer is content."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.contracts import Json
from toolkit.validate.tools.calls_json import NAME_PARAMETERS, read_list, read_object
from toolkit.validate.tools.format import ToolFormat, compact, schema_rule
from toolkit.validate.tools.offered import ToolSet
from toolkit.validate.tools.source import Reading, Source
from toolkit.validate.tools.turn import Turn


class PlainJson(ToolFormat):
    name = "json"
    signs = ()  # no template says so
    bare = "{["
    frame = ("[", "]")
    between = ","

    def read(self, source: Source, turn: Turn, mark: str) -> Reading[None]:
        if (yield from source.peek()) == "[":
            yield from read_list(source, turn, NAME_PARAMETERS)
        else:
            call, arguments = yield from read_object(source, turn, NAME_PARAMETERS)
            call.end(arguments, source.kept)
        if (yield from source.blank()) not in ("", "<"):
            raise source.surprise("the end of the turn")

    def body(self, name: str, arguments: Mapping[str, Json]) -> str:
        return compact({"name": name, "arguments": arguments})

    def rules(self, tools: ToolSet) -> str:
        return f"call: {schema_rule(tools.call_schema())}"
