"""Engines by name: `open_engine("embedded")` or `open_engine("embedded:ngram")` (engine:drafter)."""

from __future__ import annotations

from typing import Any

from toolkit.contracts import Engine
from toolkit.errors import MissingExtraError, UnsupportedError, UsageError
from toolkit.plugins import Table

ENGINES = Table("engine", {"embedded": "toolkit.engine.embedded:EmbeddedEngine"})


def open_engine(name: str = "embedded", **options: Any) -> Engine:
    """An engine ready to run. `name` is a row of ENGINES, with ":drafter" behind it if wanted; options are the engine's own.

    Raises UsageError for unknown names and options, UnsupportedError for a URL (no engine over HTTP yet) or an unknown
    drafter, MissingExtraError where torch is not installed.
    """
    if name.startswith(("http://", "https://")):
        raise UnsupportedError(f"engine {name!r}: an engine over HTTP is not available in this version", hint='use "embedded"')
    kind, _, drafter = name.partition(":")
    if drafter:
        options.setdefault("drafter", drafter)
    try:
        factory = ENGINES.load(kind)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "embedded") from error
    try:
        engine: Engine = factory(**options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise UsageError(f"engine {kind!r}: {error}") from error
    return engine
