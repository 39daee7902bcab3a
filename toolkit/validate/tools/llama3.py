"""Llama 3: `<|python_tag|>` before JSON objects with `parameters`, `;` between them; the small models leave the tag out.

Source: the chat templates of Llama 3.1 and 3.2. A `"type": "function"` member is read over. `arguments` is taken as well.
"""

from __future__ import annotations

from toolkit.validate.tools.calls_json import NAME_PARAMETERS, read_object
from toolkit.validate.tools.format import JsonBodied
from toolkit.validate.tools.source import Reading, Source
from toolkit.validate.tools.turn import Turn


class Llama3(JsonBodied):
    name = "llama3"
    signs = ("<|start_header_id|>", '"parameters"')
    opens = ("<|python_tag|>",)
    bare = "{"
    ends = ("<|eom_id|>", "<|eot_id|>", "<|end_of_text|>")
    frame = ("<|python_tag|>", "")
    between = "; "
    arguments = "parameters"

    def read(self, source: Source, turn: Turn, mark: str) -> Reading[None]:
        while True:
            yield from source.blank()
            call, arguments = yield from read_object(source, turn, NAME_PARAMETERS)
            call.end(arguments, source.kept)
            following = yield from source.blank()
            if following != ";":
                break
            source.take(source.at + 1)
        if following not in ("", "<"):  # whatever mark it is, prose knows it
            raise source.surprise("';' or the end of the turn")
