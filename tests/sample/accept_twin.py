"""Slow twins of sampling in plain Python floats, and exact probabilities of code that draws uniform numbers.

`Measure` runs code with scripted uniform numbers. Between two neighbouring cuts its outcome must be constant - that is checked
at both ends and in the middle - so the width of the interval is the outcome's probability, whatever the code looks like inside.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from toolkit.contracts import SamplingParams
from toolkit.draft.tree import ROOT, DraftTree
from toolkit.sample.accept import choose
from toolkit.sample.filters import adjust, ban

Row = list[float]
Choose = Callable[..., tuple[int, int | None]]
EDGE = 1e-14  # how far from a cut the outcome is probed; float64 has 1e-16 there


FAULTS = ("p for the residual", "q ignored", "one q for all siblings", "cuts one after the other", "top-k before the mask")


def plain(logits: Sequence[float], params: SamplingParams, fault: str = "") -> Row:
    """The distribution of plain decoding, one token at a time."""
    if params.temperature == 0.0:
        best = max(range(len(logits)), key=lambda i: (logits[i], -i))
        return [float(i == best) for i in range(len(logits))]
    most = max(logits)
    powers = [math.exp((value - most) / params.temperature) for value in logits]
    probs = [power / sum(powers) for power in powers]
    order = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    if fault == "cuts one after the other" and params.top_k:
        most_likely = order[: params.top_k]
        probs = [p / sum(probs[j] for j in most_likely) if i in most_likely else 0.0 for i, p in enumerate(probs)]
    before, kept = 0.0, [0.0] * len(probs)
    for place, i in enumerate(order):
        is_in = (
            (not params.top_k or place < params.top_k) and before < params.top_p and probs[i] >= params.min_p * probs[order[0]]
        )
        if place == 0 or (is_in and probs[i] > 0.0):
            kept[i] = probs[i]
        before += probs[i]
    return [p / sum(kept) for p in kept]


def left(p: Row, q: Row) -> Row:
    """norm(max(0, p - q))."""
    rest = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    return [r / sum(rest) for r in rest] if sum(rest) > 0 else p


def plan(p: Row, children: Sequence[int], q: Sequence[Row], fault: str = "") -> tuple[Row, Row]:
    """(probability that each child is accepted once it is asked, what is drawn from when none was)."""
    accept: Row = []
    for place, token in enumerate(children):
        row = q[0 if fault == "one q for all siblings" else place]
        asked = 1.0 if fault == "q ignored" else row[token]
        accept.append(min(1.0, p[token] / asked) if asked else 1.0)
        p = p if fault == "p for the residual" else left(p, row)
    return accept, p


def cuts(
    logits: Sequence[float], params: SamplingParams, children: Sequence[int], q: Sequence[Row] | None, fault: str = ""
) -> list[Row]:
    """Where the outcome of a choice may change: one list a uniform number."""
    p = plain(logits, params, fault)
    if q is None or not children:
        order = sorted(range(len(p)), key=lambda i: (-p[i], i))
        return [_sums([p[i] for i in order])]
    accept, rest = plan(p, children, q, fault)
    return [*([a] for a in accept), _sums(rest)]


def faulty(fault: str) -> Choose:
    """`choose` for drawn children in plain floats, with a fault; without one ("") its slow twin."""

    def chooser(
        logits: Tensor, params: SamplingParams, random: Any, children: Sequence[int], q: Tensor | None
    ) -> tuple[int, int | None]:
        if q is None or not children or params.temperature == 0.0:
            return choose(logits, params, random, children, q)
        accept, rest = plan(plain(logits.tolist(), params, fault), children, q.tolist(), fault)
        for place, chance in enumerate(accept):
            if _uniform(random) < chance:
                return children[place], place
        at = _uniform(random) * sum(rest)
        return next(i for i, reached in enumerate(_sums(rest)) if reached > at), None

    return chooser


def _uniform(random: Any) -> float:
    return float(torch.rand((), generator=random, dtype=torch.float64))


def _sums(p: Row) -> Row:
    return [sum(p[: i + 1]) for i in range(len(p))]


class _SpentError(Exception):
    """The script has no further number."""


class _Script:
    """Stands in for a torch.Generator."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self.numbers = list(numbers)

    def next(self) -> float:
        if not self.numbers:
            raise _SpentError
        return self.numbers.pop(0)


def _rand(size: tuple[int, ...], *, generator: _Script, dtype: torch.dtype) -> Tensor:
    assert size == ()
    return torch.tensor(generator.next(), dtype=dtype)


def measure(call: Callable[[Any], Any], places: Sequence[Row]) -> dict[Any, float]:
    """Exact probability of every outcome of `call(generator)`; places: the cuts of the first uniform number, the second, ..."""
    found: dict[Any, float] = defaultdict(float)

    def outcome(numbers: Sequence[float]) -> Any:
        try:
            return call(_Script(numbers))
        except _SpentError:
            return _SpentError

    def explore(numbers: tuple[float, ...], weight: float) -> None:
        result = outcome(numbers)
        if result is not _SpentError:
            found[result] += weight
            return
        edges = [0.0, *sorted(cut for cut in places[len(numbers)] if 0.0 < cut < 1.0), 1.0]
        for a, b in itertools.pairwise(edges):
            if b - a > 4 * EDGE:
                probes = [outcome((*numbers, u)) for u in (a + EDGE, (a + b) / 2, b - EDGE)]
                assert probes[0] == probes[1] == probes[2], (numbers, a, b, probes)
                explore((*numbers, (a + b) / 2), weight * (b - a))

    with mock.patch.object(torch, "rand", _rand):
        explore((), 1.0)
    return dict(found)


@dataclass
class Model:
    """Logits of every history, random but fixed; the last token ends a text. A grammar may forbid tokens by history."""

    size: int
    seed: int
    spread: float = 1.5
    grammar: bool = False
    prompt: tuple[int, ...] = (0, 1)

    @property
    def end(self) -> int:
        return self.size - 1

    def logits(self, history: Sequence[int]) -> Tensor:
        noise = random.Random(f"{self.seed} {list(history)}")
        return torch.tensor([noise.gauss(0.0, self.spread) for _ in range(self.size)], dtype=torch.float64)

    def allowed(self, history: Sequence[int]) -> list[bool]:
        noise = random.Random(f"grammar {self.seed} {list(history)}")
        allowed = [noise.random() < 0.6 for _ in range(self.size)]
        allowed[noise.randrange(self.size)] = True
        return allowed

    def ready(self, history: Sequence[int], params: SamplingParams, *, cut_first: bool = False) -> Tensor:
        """What a token is drawn from, in the order of the plain loop: bias and penalties, ban, mask. `cut_first` is a fault."""
        row = adjust(self.logits(history), params, self.prompt, history)
        if cut_first:
            row = torch.where(row >= row.topk(params.top_k or len(row)).values[-1], row, row - 50.0)
        if self.grammar:
            row = row.masked_fill(~torch.tensor(self.allowed(history)), -torch.inf)
        if len(history) < params.min_tokens and not bool(torch.isinf(ban(row, [self.end])).all()):
            row = ban(row, [self.end])
        return row


def twin_ready(model: Model, history: Sequence[int], params: SamplingParams) -> Row:
    """`Model.ready` in plain Python, for the reference side."""
    row = model.logits(history).tolist()
    counts = Counter(history)
    for i in range(len(row)):
        row[i] += params.logit_bias.get(i, 0.0)
        if i in model.prompt or counts[i]:
            row[i] = row[i] / params.repetition_penalty if row[i] > 0 else row[i] * params.repetition_penalty
        if counts[i]:
            row[i] -= params.presence_penalty + params.frequency_penalty * counts[i]
    if model.grammar:
        row = [value if ok else -math.inf for value, ok in zip(row, model.allowed(history), strict=True)]
    if len(history) < params.min_tokens and any(value > -math.inf for value in row[:-1]):
        row[model.end] = -math.inf
    return row


def plain_texts(model: Model, params: SamplingParams, length: int) -> dict[tuple[int, ...], float]:
    """Probability of every text of at most `length` tokens under plain decoding; a shorter one has ended."""
    return dict(_finish(model, params, length, (), 1.0))


def _finish(
    model: Model, params: SamplingParams, length: int, history: tuple[int, ...], weight: float
) -> Iterator[tuple[tuple[int, ...], float]]:
    if len(history) == length or (history and history[-1] == model.end):
        yield history, weight
        return
    for token, p in enumerate(plain(twin_ready(model, history, params), params)):
        if p > 0.0:
            yield from _finish(model, params, length, (*history, token), weight * p)


def burst_texts(
    model: Model, params: SamplingParams, length: int, trees: Iterable[tuple[float, DraftTree]], fault: str | None = None
) -> dict[tuple[int, ...], float]:
    """The same when the first tokens come from one verify pass over a tree, drawn with its probability, the rest plainly.

    fault None: by `choose`; else by its twin, with that fault.
    """
    chooser = choose if fault is None else faulty(fault)
    found: dict[tuple[int, ...], float] = defaultdict(float)
    known: dict[Any, dict[tuple[int, int | None], float]] = {}

    def choices(history: tuple[int, ...], tokens: list[int], q: Tensor | None) -> dict[tuple[int, int | None], float]:
        key = (history, tuple(tokens), None if q is None else q.numpy().tobytes())
        if key not in known:
            row = model.ready(history, params, cut_first=fault == "top-k before the mask")
            places = cuts(row.tolist(), params, tokens, None if q is None else q.tolist(), fault or "")
            known[key] = measure(lambda script: chooser(row, params, script, tokens, q), places)
        return known[key]

    def walk(tree: DraftTree, place: int, history: tuple[int, ...], weight: float) -> None:
        if len(history) == length or (history and history[-1] == model.end):
            found[history] += weight
            return
        nodes = tree.children.get(place, ())
        q = None if tree.q is None else tree.q[list(nodes)]
        for (token, child), p in choices(history, [tree.tokens[node] for node in nodes], q).items():
            if child is None:
                for text, mass in _finish(model, params, length, (*history, token), weight * p):
                    found[text] += mass
            else:
                assert tree.tokens[nodes[child]] == token
                walk(tree, nodes[child], (*history, token), weight * p)

    for mass, tree in trees:
        walk(tree, ROOT, (), mass)
    return dict(found)


def difference(a: dict[tuple[int, ...], float], b: dict[tuple[int, ...], float]) -> float:
    """Total variation distance times two."""
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys())
