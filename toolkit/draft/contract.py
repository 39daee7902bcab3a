"""What a drafter is: one file with these two classes, one row in DRAFTERS; laws, benchmark and README rows follow.

    Source   the loaded weights or rules, one an engine      open(seed) -> Drafter, one a sequence
    Drafter  observe(commit) after passes, propose(budget) before the next one, close() at the end

The order of calls is: observe (prompt and first token), propose, observe, propose, ... close; where drafting does not pay, many
observes may come before the next propose, so observe only takes note and propose does the work. All calls come from the
engine's one thread, gradients off. Whatever they raise switches speculation off for that request and is told; outputs never change.
Knows nothing about: how trees are verified, grammars, other sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from toolkit.contracts import SamplingParams, Tokenizer
from toolkit.draft.tree import DraftTree
from toolkit.model.decoder import Decoder
from toolkit.model.native.decoder import NativeDecoder
from toolkit.plugins import Table

DRAFTERS = Table(
    "drafter",
    {
        "ngram": "toolkit.draft.ngram:NgramSource",
        "model": "toolkit.draft.model:ModelSource",
        "medusa": "toolkit.draft.medusa:MedusaSource",
        "mtp": "toolkit.draft.mtp:MtpSource",
        "ngram+mtp": "toolkit.draft.mixed:NgramMtpSource",
    },
)


NEVER = 2.0  # a joint probability that no guess has
Chances = Literal["all", "some", "none"]  # of guesses whose chance is known when they are made


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The model that decides. `torch` loads its torch form, for a source that needs float weights: it is slow, call it once.

    `model` is the name or path that it was opened with.
    """

    decoder: Decoder | NativeDecoder
    torch: Callable[[], Decoder]
    tokenizer: Tokenizer
    fingerprint: str
    model: str
    vocab_size: int


@dataclass(frozen=True, slots=True, eq=False)
class Commit:
    """Tokens that became part of the text, and the target's hidden rows that became known.

    tokens: new since the last commit (the first one holds the prompt and the first token). The drafter's text ends with them.
    hidden [n, D] float32, after the final norm: of the committed tokens from place `start` on. The last committed token has
    none yet, nor have tokens that a grammar forced behind it. None unless the source asked; rows may come later than their tokens, but before a
    proposal that has nodes or a `least` below NEVER. At a prefix-cache hit `start`
    jumps: what lies before was computed by another request and has no hidden rows.
    """

    tokens: tuple[int, ...]
    hidden: Tensor | None = None
    start: int = 0


class Worth(Protocol):
    """How many of the guesses to take, of these falling joint probabilities, after so many passes of a draft model."""

    def __call__(self, chances: Sequence[float], /, passes: int = 0) -> int: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """How much to propose: at most `nodes` nodes and `depth` tokens on a path, for a text drawn with `sampling`.

    A drafter that draws (q) draws at the request's temperature; at temperature 0 it is deterministic. One that draws nothing and knows the
    joint probability of every guess (`Source.chances`) may be given `worth`: told these numbers, falling, it says how many of the guesses pay for
    their rows. They are then bounded by `reach`, in number and depth, and `nodes` and `depth`, which may be 0, are for other guesses.
    Where a guess costs a pass of a draft model, `worth` is also told how many of those there were, one after the other, and `least` is the joint
    probability below which it does not pay to guess what follows, NEVER where no pass pays.
    """

    nodes: int
    depth: int
    sampling: SamplingParams
    reach: int = 0
    worth: Worth | None = None
    least: float = 0.0

    @property
    def most(self) -> tuple[int, int]:
        """(nodes, depth) that no tree of any drafter may exceed."""
        return max(self.nodes, self.reach), max(self.depth, self.reach)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one proposed token costs: multiply-adds and bytes of weights read."""

    flops: float = 0.0
    weight_bytes: float = 0.0


class Drafter(Protocol):
    """Guesses for one sequence."""

    def observe(self, commit: Commit) -> None:
        """Take in what was committed."""

    def propose(self, budget: Budget) -> DraftTree:
        """Guess what follows the last committed token; EMPTY where there is no guess worth a row."""

    def close(self) -> None:
        """Free everything; called once, also after an error."""


class Source(Protocol):
    """Built as `Source(target, options)`: options are the drafter's own, unknown ones raise UsageError."""

    name: str
    needs_hidden: bool
    lossy: bool  # only with a name that says so
    chances: Chances  # which of its guesses it sizes by `Budget.worth`: of all, of some (those of a part), of none
    draw: bool  # guesses are drawn, their trees have a q; else a seed gives the tokens of plain decoding
    cost: Cost

    def __init__(self, target: Target, options: Mapping[str, Any]) -> None: ...

    def open(self, seed: int) -> Drafter:
        """A drafter for one sequence; `seed` is for draws of its own."""
