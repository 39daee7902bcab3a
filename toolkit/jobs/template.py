"""Template: text with `{name}` placeholders.

In: a text, the names that it may use, their values.   Out: text.
Knows nothing about: jobs, records, models.
Invariants: what is substituted is never read as a template again; values are strings, never attributes or formats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from toolkit.errors import UsageError

EXTRA_NAMES = ("text", "id", "schema")
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class Template:
    """`Template("Text: {text}", allowed=["text"]).render({"text": "..."})`; `{{` and `}}` are literal braces.

    UsageError at birth for a placeholder that is not allowed or a brace that stands alone.
    """

    def __init__(self, source: str, *, allowed: Sequence[str], what: str) -> None:
        self.source = source
        self.names: set[str] = set()
        for piece in _PIECE.finditer(source):
            name = piece.group(1)
            if name is not None and name not in allowed:
                known = ", ".join(f"{{{item}}}" for item in allowed)
                raise UsageError(
                    f"{what} has the placeholder {{{name}}}: allowed are {known}", hint="write {{ and }} for braces"
                )
            if name is not None:
                self.names.add(name)
            elif len(piece.group()) == 1:
                raise UsageError(f"{what} has a lone {piece.group()!r} at {piece.start()}", hint="write {{ and }} for braces")

    def render(self, values: Mapping[str, str]) -> str:
        """The text with every placeholder replaced once."""
        return _PIECE.sub(lambda piece: values[piece[1]] if piece[1] is not None else piece[0][0], self.source)
