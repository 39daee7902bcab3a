"""Open: how an engine under the gate is named, and what opens it.

    embedded[:drafter][@name=value,...]    engine options (model, format, kv_dtype, ...), and those of the draft (tokens, nodes, ...)
    http://host:port                       a SGLang server
    http://host:port/v1                    any OpenAI-compatible server (openai.py)

In: the text, options that hold for all.   Out: an open engine, which the caller closes.
Knows nothing about: commands, what engines are compared for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolkit.contracts import Engine
from toolkit.engine.engine import is_url, open_engine
from toolkit.errors import UsageError

OWN = ("model", "format", "dtype", "kv_dtype", "kv_blocks", "block_size", "batch_rows", "prefix_cache", "device")


def open_named(text: str, *, embedded: Mapping[str, Any], remote: Mapping[str, Any]) -> Engine:
    """UsageError for a name that is none; else whatever opening raises."""
    if is_url(text):
        if text.rstrip("/").endswith("/v1"):
            from toolkit.gate.openai import OpenAiEngine

            return OpenAiEngine(text, **remote)
        return open_engine(text, **remote)
    name, _, more = text.partition("@")
    if name.partition(":")[0] != "embedded":
        raise UsageError(f"engine {text!r} is unknown: it is embedded[:drafter][@name=value,...], or a URL")
    options = dict(embedded)
    draft: dict[str, Any] = {}
    for item in filter(None, more.split(",")):
        key, given, value = item.partition("=")
        if not given or not key or key in draft:
            raise UsageError(f"engine {text!r}: {item!r} is not NAME=VALUE, or its name was given before")
        if key in OWN:
            options[key] = _value(value)
        else:
            _put(draft, key, _value(value))
    return open_engine(name, **options, **({"draft": draft} if draft else {}))


def _put(draft: dict[str, Any], key: str, value: Any) -> None:
    """A dotted name is an option of a part: ngram.min_match."""
    *groups, last = key.split(".")
    for group in groups:
        draft = draft.setdefault(group, {})
        if not isinstance(draft, dict):
            raise UsageError(f"draft option {key!r}: {group} has a value already, it has no parts")
    draft[last] = value


def _value(text: str) -> Any:
    """A number, true or false where the text is one, else the text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text
