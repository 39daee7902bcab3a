"""Presets: the ways in which SGLang's server guesses ahead, as the flags that ask for them.

In: a preset's name and, where it has them, a draft model, steps, branches and draft tokens.   Out: flags of `sglang.launch_server`.
Knows nothing about: processes, models on disk, devices.
Invariants: every number that SGLang would choose by itself is written out, so that what is printed is what runs; a number that a
preset has no use for is refused.
Source: sglang 0.5.23, arg_groups/fields/spec.py and arg_groups/speculative_hook.py (read, and tried where the tests start them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from toolkit.contracts import require
from toolkit.errors import UsageError

MOST_STEPS = 64
MOST_BRANCHES = 64
MOST_DRAFT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Preset:
    """One algorithm. `draft` says whether it needs a draft model: "needed", "own" (it is in the checkpoint), or "none"."""

    algorithm: str
    says: str
    draft: str
    steps: int | None = 3
    topk: int | None = 1
    tokens: int | None = None  # None: steps + 1 for a chain


_MTP = Preset("NEXTN", "the checkpoint's own multi-token-prediction layers", "own")
PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "none": Preset("", "no speculation", "none", None, None),
        "mtp": _MTP,
        "nextn": _MTP,
        "eagle": Preset("EAGLE", "an EAGLE-1/2 head: a draft layer over the target's hidden states", "needed"),
        "eagle3": Preset("EAGLE3", "an EAGLE-3 head: a draft layer over hidden states of several depths", "needed"),
        "ngram": Preset("NGRAM", "continuations of token sequences seen before; no draft model", "none", None, None, 12),
        "standalone": Preset("STANDALONE", "a small model with the same tokenizer", "needed"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A preset with its numbers. None takes the preset's; `tokens` is the size of the tree that one pass verifies, its root counted.

    UsageError, by name, for what is out of range and for what the preset has no use for.
    """

    preset: str = "none"
    draft: str | None = None  # a folder or a hub name
    steps: int | None = None  # draft passes a round: the depth of the tree
    topk: int | None = None  # branches of a node; 1 is a chain
    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise UsageError(f"speculation {self.preset!r} is unknown: known are {', '.join(PRESETS)}")
        kind = PRESETS[self.preset]
        known = f"speculation {self.preset}"
        require(self.draft is None or kind.draft != "none", f"{known}: draft model", self.draft, "it has none")
        if kind.draft == "needed" and self.draft is None:
            raise UsageError(f"{known} needs a draft model", hint="--draft-model FOLDER")
        for name, most, default in (("steps", MOST_STEPS, kind.steps), ("topk", MOST_BRANCHES, kind.topk)):
            value = getattr(self, name)
            require(value is None or default is not None, f"{known}: {name}", value, "it has no such number")
            require(value is None or _within(value, 1, most), f"{known}: {name}", value, f"an integer from 1 to {most}")
        self._check_tokens(known)

    def _check_tokens(self, known: str) -> None:
        kind, value = PRESETS[self.preset], self.tokens
        if value is None:
            return
        require(self.preset != "none", f"{known}: draft tokens", value, "it has no such number")
        require(
            _within(value, 2, MOST_DRAFT_TOKENS), f"{known}: draft tokens", value, f"an integer from 2 to {MOST_DRAFT_TOKENS}"
        )
        if kind.steps is None:
            return
        steps, topk = self.steps or kind.steps, self.topk or kind.topk
        if topk == 1:
            require(value == steps + 1, f"{known}: draft tokens", value, f"{steps + 1}, the steps and the root, for a chain")
        else:
            require(value <= _capacity(steps, topk or 1), f"{known}: draft tokens", value, f"at most {_capacity(steps, topk or 1)} "
                    f"nodes come out of {steps} steps and {topk} branches")  # fmt: skip

    @property
    def says(self) -> str:
        """What the preset is, for people."""
        return PRESETS[self.preset].says

    @property
    def layers_of_model(self) -> bool:
        """Does it draft with layers of the model itself?"""
        return PRESETS[self.preset].draft == "own" and self.draft is None

    def flags(self) -> list[str]:
        """The flags, in the order in which people read them; [] without speculation."""
        kind = PRESETS[self.preset]
        if self.preset == "none":
            return []
        flags = ["--speculative-algorithm", kind.algorithm]
        if self.draft is not None:
            flags += ["--speculative-draft-model-path", self.draft]
        steps, topk = self.steps or kind.steps, self.topk or kind.topk
        tokens = self.tokens or kind.tokens
        if steps is not None and topk is not None:
            tokens = tokens or (steps + 1 if topk == 1 else min(_capacity(steps, topk), 8))
            flags += ["--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk)]
        return [*flags, "--speculative-num-draft-tokens", str(tokens)]


def _within(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _capacity(steps: int, topk: int) -> int:
    """Nodes that the drafting gives to choose from, the root counted: topk in the first step, topk x topk in each later one."""
    return 1 + topk + (steps - 1) * topk * topk
