"""Engines by name: `open_engine("embedded")` or `open_engine("embedded:ngram")` (engine:drafter)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
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
    return prepare_engine(name, **options)()


def prepare_engine(name: str = "embedded", **options: Any) -> Callable[[], Engine]:
    """What starts the engine that `open_engine` would open, its name and the names of its options checked. Loads its module."""
    if not isinstance(name, str):
        raise UsageError(f"engine {name!r} is not a name: known are {', '.join(ENGINES)}")
    if name.startswith(("http://", "https://")):
        raise UnsupportedError(f"engine {name!r}: an engine over HTTP is not available in this version", hint='use "embedded"')
    kind, _, drafter = name.partition(":")
    if drafter and options.setdefault("drafter", drafter) != drafter:
        raise UsageError(f"engine {name!r} and drafter={options['drafter']!r} disagree", hint="name the drafter once")
    try:
        factory = ENGINES.load(kind)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "embedded") from error
    known = inspect.signature(factory).parameters
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UsageError(f"option {unknown[0]!r} of engine {kind!r} is unknown: known are {', '.join(known)}")
    return partial(factory, **options)
