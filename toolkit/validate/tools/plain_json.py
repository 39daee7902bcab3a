"""Plain JSON: an answer that is one call object or a list of them; any other answer is content."""

from __future__ import annotations

from toolkit.validate.tools.calls_json import NAME_PARAMETERS, read_list, read_object
from toolkit.validate.tools.format import JsonBodied
from toolkit.validate.tools.source import Reading, Source
from toolkit.validate.tools.turn import Turn


class PlainJson(JsonBodied):
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
