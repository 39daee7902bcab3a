"""Records: what a drill lets a model write - short JSON documents, each the right answer to its own prompt.

In: a number.   Out: a document of SCHEMA, the same for the same number, that the echo model copies without a slip.
`problem` judges a text without any code of the validators that it is a check on: the standard library's parser and the shape below.
Knows nothing about: engines, faults.
"""

from __future__ import annotations

import json
import random

from toolkit.contracts import Json
from toolkit.gate.echo import is_clear

_LETTERS = "abcdefghijklmnopqrstuvwxyzäöüßéñ"
_LAST = "abcdeäöü🙂"
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "text": {"type": "string", "maxLength": 16},
        "n": {"type": "integer", "minimum": 0, "maximum": 999999},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 4},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "text", "n", "tags", "ok"],
    "additionalProperties": False,
}


def document(number: int) -> str:
    """A compact document with characters of one to four bytes."""
    dice = random.Random(number)

    def word(length: int) -> str:
        return "".join(dice.choice(_LETTERS) for _ in range(length - 1)) + dice.choice(_LAST)

    while True:
        value = {
            "name": word(dice.randint(3, 8)),
            "text": word(dice.randint(3, 10)),
            "n": dice.randrange(1_000_000),
            "tags": [word(dice.randint(2, 5)) for _ in range(dice.randint(1, 2))],
            "ok": dice.random() < 0.5,
        }
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if is_clear(text.encode()):
            return text


def problem(text: str, raw: bytes) -> str | None:
    """Why a text, whose tokens stand for `raw`, is no document."""
    try:
        if not raw.decode().startswith(text):
            return "the text is not what its tokens stand for"
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse)
    except ValueError as error:  # of the parser, the decoder and the hooks
        return str(error)
    if not isinstance(value, dict) or set(value) != {"name", "text", "n", "tags", "ok"}:
        return "its members are others"
    tags = value["tags"]
    fits = {
        "name": isinstance(value["name"], str) and len(value["name"]) <= 12,
        "text": isinstance(value["text"], str) and len(value["text"]) <= 16,
        "n": type(value["n"]) is int and 0 <= value["n"] <= 999999,
        "tags": isinstance(tags, list) and len(tags) <= 4 and all(isinstance(tag, str) and len(tag) <= 8 for tag in tags),
        "ok": isinstance(value["ok"], bool),
    }
    return next((f"member {name} is not allowed" for name, good in fits.items() if not good), None)


def _distinct(pairs: list[tuple[str, Json]]) -> Json:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a member comes twice")
    return dict(pairs)


def _refuse(name: str) -> Json:
    raise ValueError(f"{name} is no JSON")
