"""Spelled: grammars that would write a control token letter by letter.

In: a Lark grammar and a tokenizer.   Out: nothing, or UnsupportedError.
Knows nothing about: what the grammar is for.
Why: constrained text never holds control tokens, so a literal like <|python_tag|> would be written as ordinary text, which the
model has never seen there.
"""

from __future__ import annotations

import json
import re

from toolkit.contracts import Tokenizer
from toolkit.errors import UnsupportedError

_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def check_spelled(source: str, tokenizer: Tokenizer) -> None:
    """Refuse a literal in which the tokenizer knows a control token; schemas inside the grammar (%json) are data and not looked at."""
    for line in source.splitlines():
        for found in _LITERAL.findall(line.partition("%json")[0]):
            try:
                text = json.loads(found)
                ids = tokenizer.encode(text, control=True)
            except ValueError:  # an escape that is Lark's own
                continue
            if not tokenizer.control_ids.isdisjoint(ids):
                raise UnsupportedError(
                    f"the grammar writes {text[:80]!r}, in which this model has a control token: constrained text cannot hold it",
                    hint="write it around the segment, in the program's own text",
                )
