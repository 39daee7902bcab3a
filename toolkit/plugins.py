"""Table: a frozen map from a name to "module:attribute", loaded on demand.

A variant (drafter, engine, grammar engine) is one file and one row. Unknown names are refused with the list of known ones.
Knows nothing about: what the rows are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from toolkit.errors import UsageError


class Table(Mapping[str, str]):
    """`Table("drafter", {"ngram": "toolkit.draft.ngram:NgramDrafter"}).load("ngram")` imports only that module."""

    def __init__(self, noun: str, rows: Mapping[str, str]) -> None:
        self.noun = noun
        self._rows = MappingProxyType(dict(rows))

    def __getitem__(self, name: str) -> str:
        if name not in self._rows:
            raise UsageError(f"{self.noun} {name!r} is unknown: known are {', '.join(sorted(self._rows))}")
        return self._rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def load(self, name: str) -> Any:
        module, _, attribute = self[name].partition(":")
        return getattr(import_module(module), attribute)
