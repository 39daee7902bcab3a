"""Plan: which drafter an engine has and how its draft is bounded, checked before a model is loaded.

In: the drafter's name and the options a user gave.   Out: the source over the target, the pace.
Knows nothing about: what drafters do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from toolkit.contracts import require
from toolkit.draft.contract import DRAFTERS, Source, Target
from toolkit.draft.tree import MOST_NODES
from toolkit.engine.load import Loaded
from toolkit.engine.pace import Pace
from toolkit.engine.pass_costs import PassCosts
from toolkit.errors import InputError, UsageError

MOST_TOKENS = 32  # on a path


@dataclass(frozen=True, slots=True)
class Plan:
    """`name` is "none" or a row of DRAFTERS; tokens and nodes None = left to measurement."""

    name: str
    tokens: int | None = None
    nodes: int | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, name: str, given: Mapping[str, Any]) -> Plan:
        """Raises UsageError for an unknown drafter or bounds that are none."""
        require(isinstance(name, str), "drafter", name, f"none, {', '.join(DRAFTERS)}")
        require(isinstance(given, Mapping), "draft", given, "a mapping of options")
        if name == "none" and given:
            raise UsageError(f"draft option {next(iter(given))!r} was given without a drafter", hint="name the drafter, too")
        if name != "none":
            DRAFTERS[name]
        options = dict(given)
        tokens, nodes = options.pop("tokens", None), options.pop("nodes", None)
        for what, value, most in (("tokens", tokens, MOST_TOKENS), ("nodes", nodes, MOST_NODES)):
            ok = value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most)
            require(ok, f"draft option {what}", value, f"an integer from 1 to {most}")
        return cls(name, tokens, nodes, options)

    def source(self, loaded: Loaded, model: str) -> Source | None:
        """The drafter's weights or rules, None for "none". UsageError that names it where what was given for it is malformed."""
        if self.name == "none":
            return None
        vocabulary = min(loaded.tokenizer.vocab_size, loaded.decoder.config.vocab_size)
        target = Target(loaded.decoder, loaded.torch, loaded.tokenizer, loaded.mark, model, vocabulary)
        try:
            source: Source = DRAFTERS.load(self.name)(target, self.options)
        except InputError as error:
            raise UsageError(f"drafter {self.name!r}: {error.message}", hint=error.hint) from error
        return source

    def pace(self, costs: PassCosts) -> Pace:
        return Pace(costs, tokens=self.tokens, nodes=self.nodes)
