"""Shown: values and messages as a violation shows them.

In: a JSON value or a message.   Out: text of at most SHOWN characters.
Knows nothing about: verdicts.
"""

from __future__ import annotations

import json

from toolkit.contracts import Json

SHOWN = 200


def shown(value: Json) -> str:
    """A value as JSON, cut."""
    return cut(json.dumps(value, ensure_ascii=False))


def cut(text: str) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
