"""Engines by name: `open_engine("embedded")`, `open_engine("embedded:ngram")` (engine:drafter), or the URL of a SGLang server.

Several URLs of one model, separated by commas, share the work.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from toolkit.contracts import Engine
from toolkit.errors import MissingExtraError, UsageError
from toolkit.plugins import Table

ENGINES = Table(
    "engine",
    {"embedded": "toolkit.engine.embedded:EmbeddedEngine", "sglang": "toolkit.engine.remote.engine:SGLangEngine"},
)
EXTRAS = {"torch": "embedded", "httpx": "remote"}  # package that an engine needs -> the extra that brings it


def is_url(name: str) -> bool:
    """Whether an engine's name is the URL of a server."""
    return name.startswith(("http://", "https://"))


def open_engine(name: str = "embedded", **options: Any) -> Engine:
    """An engine ready to run. `name` is a row of ENGINES, with ":drafter" behind it if wanted, or a URL; options are the engine's own.

    Raises UsageError for unknown names and options, UnsupportedError for a drafter that cannot be, EngineError for a server that
    cannot be reached, MissingExtraError where torch (or for a URL httpx) is not installed.
    """
    return prepare_engine(name, **options)()


def prepare_engine(name: str = "embedded", **options: Any) -> Callable[[], Engine]:
    """What starts the engine that `open_engine` would open, its name and the names of its options checked. Loads its module."""
    if not isinstance(name, str):
        raise UsageError(f"engine {name!r} is not a name: known are {', '.join(ENGINES)}")
    if is_url(name):
        first, *more = [each.strip() for each in name.split(",")]
        options = {"url": first, **({"urls": tuple(more)} if more else {}), **options}
    kind, _, drafter = ("sglang", "", "") if is_url(name) else name.partition(":")
    if drafter and options.setdefault("drafter", drafter) != drafter:
        raise UsageError(f"engine {name!r} and the drafter {options['drafter']!r} disagree", hint="name the drafter once")
    try:
        factory = ENGINES.load(kind)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        raise MissingExtraError(error.name, EXTRAS[error.name]) from error
    known = inspect.signature(factory).parameters
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UsageError(f"option {unknown[0]!r} of engine {kind!r} is unknown: known are {', '.join(known)}")
    return partial(factory, **options)
