"""Beam loop: constrained beam search, exact in what it prunes by and in when it stops.

One step extends every live hypothesis by one token, so all of them have the same length and are compared by their sums.
What the grammar forces is looked ahead: the tokens are appended at once and scored by one pass, then the hypothesis walks
through them step by step without further passes. The result is that of the token-by-token search, to the last hypothesis
(`lookahead=False` is that slow twin; tests compare the two).

Stopping: once `n` distinct hypotheses have ended, live ones whose bound does not exceed the best *valid* score are cut (with
diverse groups only when that holds for all of them, since groups depend on each other); the search ends when none is left, or at max_tokens. No continuation can beat the bound, so the best valid hypothesis is
never worse than that of a search that runs to the end.
Knows nothing about: other requests, block tables. Source: see toolkit/sample/beam.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from toolkit.contracts import BeamParams, Mask
from toolkit.engine.harvest import Harvest
from toolkit.engine.job import Ask, Job, Loop
from toolkit.engine.sequence import Sequence
from toolkit.errors import EngineError, SchemaError
from toolkit.grammar.mask import allocate, unpack
from toolkit.sample.beam import Candidate, best, bound, choose

Best = Callable[[list[Tensor], "Mask | None", int], list[list[tuple[int, float, float]]]]


def in_torch(rows: list[Tensor], mask: Mask | None, count: int) -> list[list[tuple[int, float, float]]]:
    """The `count` likeliest tokens of rows [V] that the mask allows, with both log-probabilities. EngineError for rows that are not finite."""
    logits = torch.stack(rows)
    if not bool(torch.isfinite(logits.sum())):
        raise EngineError("the model's logits are not finite", hint="check its weights and dtype")
    if mask is None:
        return best(logits, None, count)
    allowed = torch.from_numpy(np.ascontiguousarray(unpack(mask, logits.shape[-1])))
    return best(logits, allowed.to(logits.device), count)


@dataclass(slots=True)
class Beam:
    """A live hypothesis. `logprobs` are the model's own, `allowed` renormalised over what the grammar allowed.

    `ahead` holds forced tokens that are already in the sequence (the end token, last, is not) with both log-probabilities;
    `next` the likeliest allowed tokens after those. `seen` says that the last computed row has been looked at.
    """

    sequence: Sequence
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    allowed: list[float] = field(default_factory=list)
    total: float = 0.0
    ahead: deque[tuple[int, float, float]] = field(default_factory=deque)
    forced: list[int] = field(default_factory=list)  # appended to the sequence, not scored yet
    next: list[tuple[int, float, float]] = field(default_factory=list)
    seen: bool = False

    def child(self, candidate: Candidate, sequence: Sequence) -> Beam:
        return Beam(
            sequence,
            [*self.ids, candidate.token],
            [*self.logprobs, candidate.logprob],
            [*self.allowed, candidate.allowed_logprob],
            self.total + candidate.logprob,
            deque(list(self.ahead)[1:]),
            next=self.next if self.ahead else [],
            seen=bool(self.ahead),
        )


def beam(job: Job, root: Sequence, harvest: Harvest, *, lookahead: bool = True, likeliest: Best = in_torch) -> Loop:
    """Search; `harvest` collects what ends and decides when enough is known. `likeliest` does what `in_torch` does."""
    params = job.request.beam
    assert params is not None
    search = Search(job, params, harvest, lookahead, likeliest)
    trunk = Beam(root)
    search.look([trunk], (yield [Ask(root)]))
    groups = [[trunk]] + [[Beam(job.fork(root), next=trunk.next, seen=True)] for _ in range(params.groups - 1)]
    length = 0
    while any(groups) and length < job.max_tokens:
        waiting = [one for group in groups for one in group if not one.seen]
        if waiting:
            rows = yield [Ask(one.sequence, 1 + len(one.forced)) for one in waiting]
            search.look(waiting, rows)
        length += 1
        groups = search.step(groups, length)
        job.note_token()
    for one in (one for group in groups for one in group):
        harvest.truncated(one.ids, one.logprobs, one.allowed)


class Search:
    """What the beam loop does between passes."""

    def __init__(self, job: Job, params: BeamParams, harvest: Harvest, lookahead: bool, likeliest: Best) -> None:
        self.job = job
        self.params = params
        self.harvest = harvest
        self.lookahead = lookahead
        self.likeliest = likeliest
        self.width = params.width // params.groups
        self.ends = frozenset(job.tokenizer.eos_ids)

    def look(self, beams: list[Beam], rows: list[Tensor]) -> None:
        """Score each beam's forced tokens and find the likeliest tokens after them; rows[i] is [1 + forced, V]."""
        last = [each[-1] for each in rows]
        found = self.likeliest(last, self._mask(beams, len(last[0])), self.params.width + len(self.ends))
        for one, likeliest, each in zip(beams, found, rows, strict=True):
            one.seen = True
            if one.forced:
                norms = torch.logsumexp(each[:-1], dim=-1).tolist()
                for i, token in enumerate(one.forced):
                    one.ahead.append((token, min(float(each[i, token]) - norms[i], 0.0), 0.0))
                one.forced = []
            one.next = likeliest if self.lookahead else self._forced_only(one, likeliest, each[-1])

    def step(self, groups: list[list[Beam]], length: int) -> list[list[Beam]]:
        """Extend every group by one token; later groups pay for tokens that earlier ones took."""
        taken: dict[int, int] = {}
        after: list[list[Beam]] = []
        for group in groups:
            survivors, ended = choose(list(self._candidates(group, taken)), self.width)
            for candidate in ended:
                one = group[candidate.parent]
                self.harvest.ended(
                    [*one.ids, candidate.token], [*one.logprobs, candidate.logprob], [*one.allowed, candidate.allowed_logprob]
                )
            for candidate in survivors:
                taken[candidate.token] = taken.get(candidate.token, 0) + 1
            after.append(self._extend(group, survivors, length))
        if not self.harvest.enough:
            return after
        if self.params.groups > 1 and any(self._hopes(one) for group in after for one in group):
            return after  # a group that lost beams would take other tokens, and later groups pay for those: all go or none
        return [self._cut(group) for group in after]

    def _candidates(self, group: list[Beam], taken: dict[int, int]) -> Iterator[Candidate]:
        for parent, one in enumerate(group):
            for token, logprob, allowed in [one.ahead[0]] if one.ahead else one.next:
                key = one.total + logprob - self.params.diversity * taken.get(token, 0)
                yield Candidate(key, parent, token, logprob, allowed, token in self.ends)

    def _extend(self, group: list[Beam], survivors: list[Candidate], length: int) -> list[Beam]:
        """Children in order of rank; the last child of a parent takes its sequence over, parents without children end."""
        last = {candidate.parent: i for i, candidate in enumerate(survivors)}
        forks = [
            group[c.parent].sequence if last[c.parent] == i else self.job.fork(group[c.parent].sequence)
            for i, c in enumerate(survivors)
        ]
        for parent, one in enumerate(group):
            if parent not in last:
                self.job.drop(one.sequence)
        children = []
        for candidate, sequence in zip(survivors, forks, strict=True):
            origin = group[candidate.parent]
            one = origin.child(candidate, sequence)
            if origin.ahead or self._grow(one, self.job.max_tokens - length):
                children.append(one)
            else:
                self.job.drop(sequence)
        return children

    def _grow(self, one: Beam, room: int) -> bool:
        """Take the chosen token, and what it forces, into the sequence; False if the grammar engine gave up on it."""
        try:
            one.sequence.follow(one.ids[-1:])
            one.forced = self._force(one.sequence, room)
        except SchemaError as error:
            self.harvest.dead(error)
            return False
        return True

    def _force(self, sequence: Sequence, room: int) -> list[int]:
        """Append what the grammar forces next, at most `room` tokens; without lookahead one at a time by way of `next`."""
        if not self.lookahead or sequence.matcher is None or room < 1:
            return []
        forced = sequence.matcher.forced()[:room]
        if forced:
            sequence.follow(forced)
            self.job.books.forced_tokens += len(forced)
        return forced

    def _forced_only(self, one: Beam, likeliest: list[tuple[int, float, float]], row: Tensor) -> list[tuple[int, float, float]]:
        """The slow twin's choices: where a token is forced, that one alone."""
        forced = one.sequence.matcher.forced() if one.sequence.matcher is not None else []
        if not forced:
            return likeliest
        return [(forced[0], min(float(row[forced[0]] - torch.logsumexp(row, dim=-1)), 0.0), 0.0)]

    def _hopes(self, one: Beam) -> bool:
        """Whether a continuation could still beat the best valid hypothesis."""
        return bound(one.total, self.params) > self.harvest.best_valid

    def _cut(self, group: list[Beam]) -> list[Beam]:
        """Drop beams that cannot beat the best valid hypothesis any more."""
        alive = [one for one in group if self._hopes(one)]
        for one in group:
            if not any(one is kept for kept in alive):
                self.job.drop(one.sequence)
        return alive

    def _mask(self, beams: list[Beam], vocab_size: int) -> Mask | None:
        if beams[0].sequence.matcher is None:
            return None
        mask = allocate(len(beams), vocab_size)
        for row, one in enumerate(beams):
            assert one.sequence.matcher is not None
            try:
                one.sequence.matcher.fill(mask, row)
            except SchemaError as error:  # this hypothesis ends here, the others go on
                mask[row] = 0
                self.harvest.dead(error)
        return mask
