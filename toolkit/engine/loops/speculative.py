"""Speculative loop: a drafter guesses, one pass of the target verifies the tree, the sample walks down it token by token.

    propose -> cut what the grammar forbids -> one pass over [pending | tree] -> walk -> settle -> look -> tell, observe
                                                                                               `-> read again, plainly

The walk is the plain loop's own step at every place, so penalties, masks, stops and limits act as if tokens had come one
at a time; a request with a seed and a drafter that draws nothing gives the very tokens of plain decoding.
What a text has to be is looked at before it is told: where it cannot be that any more, or was chosen for an audit, the whole
text is read again without speculation, and what plain decoding makes of it stands (inquest.py, recheck.py).
A drafter that fails is closed and the request goes on without; so is one that has taken a second more than all its guesses could
save (stride.py). A drafter runs on the engine's thread: one that never returns holds the engine, nothing here can stop it.
Knows nothing about: how drafters guess, block tables, other requests.
Source: chains 2211.17192; trees 2305.09781 (the mask over ancestors, the recursive rule in toolkit/sample/accept.py).
"""

from __future__ import annotations

import random as stdlib_random
import time
from collections.abc import Callable

import torch
from torch import Tensor

from toolkit.draft.contract import NEVER, Budget, Commit, Drafter, Source
from toolkit.draft.tree import EMPTY, DraftTree
from toolkit.engine.job import Ask, Job, Loop
from toolkit.engine.loops.inquest import Inquest
from toolkit.engine.loops.plain import Sample
from toolkit.engine.loops.prune import prune, vet
from toolkit.engine.loops.walk import Walk
from toolkit.engine.oversight import Oversight
from toolkit.engine.pace import Pace
from toolkit.engine.sequence import Sequence
from toolkit.engine.stride import Stride
from toolkit.errors import CancelledError, ToolkitError, UsageError
from toolkit.kv.view import WIDE

MOST_WAITING = 32  # passes of which a drafter that rests is told at once
MOST_SAID = 300  # characters of an error in a note


def speculative(job: Job, root: Sequence, source: Source, pace: Pace, oversight: Oversight, line: type[Line]) -> Loop:
    """Decode `job.request.sampling.n` samples, each with a drafter of its own; each ends in a Done event."""
    params = job.request.sampling
    seed = params.seed if params.seed is not None else stdlib_random.SystemRandom().randrange(2**31)
    lines = [line(job, root, index, seed, source, pace, oversight) for index in range(params.n)]
    live = list(lines)
    try:
        hidden: list[Tensor] | None = [] if source.needs_hidden else None
        (logits,) = yield [Ask(root, hidden=hidden)]
        for each in live[1:]:
            each.sample.sequence = job.fork(root)
        for each in live:
            each.hidden = hidden
        answers = [logits] * len(live)
        while True:
            for each, rows in zip(live, answers, strict=True):
                each.take(rows)
                if each.sample.done:
                    each.close()
                    if params.n > 1:
                        job.drop(each.sample.sequence)
            live = [each for each in live if not each.sample.done]
            if not live:
                return
            answers = yield [each.ask() for each in live]
    except CancelledError:
        for each in live:
            each.sample.cancel()
    finally:
        for each in lines:
            each.close()


class Line:
    """One sample, who guesses for it, and who looks at it."""

    def __init__(
        self, job: Job, root: Sequence, index: int, seed: int, source: Source, pace: Pace, oversight: Oversight
    ) -> None:
        self.job = job
        self.sample = Sample(job, root, index, seed)
        self.hidden: list[Tensor] | None = None
        self.inquest = Inquest(job, source.name, oversight)
        self._source = source
        self._drafter: Drafter | None = None
        self._stride: Stride = Stride(pace, job.request.sampling, source.chances)
        self._tree = EMPTY
        self._heard = 0  # tokens of the text after the last pass
        self._known = 0  # of which the drafter has been told
        self._waiting: list[Tensor] = []  # hidden rows that it has not, of passes without a tree
        self._rests = False  # the pass that is under way goes without the drafter, whatever it would bring
        self._handled = 0.0  # seconds with the pass that is under way, less the drafter's own
        self._guard(self._open, seed * 1_000_003 + index)
        self._handled = 0.0  # to open a drafter is no part of a pass

    def ask(self) -> Ask:
        """The next pass: what is pending, with a tree behind it where that pays."""
        if self.inquest.recheck is not None:
            return self.inquest.recheck.ask()
        sample = self.sample
        self._tree = EMPTY
        if self._drafter is not None and self._stride.rests:
            self.job.books.rested += 1
            self._rests, self.hidden = True, [] if self._source.needs_hidden else None
            return Ask(sample.sequence, sample.rows_wanted, hidden=self.hidden)
        self._handled = -time.perf_counter()
        if self._drafter is not None and self.inquest.oversight.breaker.is_held:
            sample.notes.append(f"speculation is on hold: {self.inquest.oversight.breaker.reason}")
            self._drop()
        self._hear()
        if self._drafter is not None and (why := self._stride.is_too_slow):
            self._switch_off(why)
        if self._drafter is not None and sample.room > 1 and sample.sequence.pending <= WIDE and not sample.reason:
            budget = self._stride.budget(sample.room - 1)
            if budget.nodes or budget.reach:
                self._tree = self._guard(self._propose, budget) or EMPTY
            if not budget.nodes and not self._tree:
                self.job.books.rested += 1
        self.hidden = [] if self._drafter is not None and self._source.needs_hidden else None
        self._handled += time.perf_counter()
        return Ask(sample.sequence, sample.rows_wanted, tree=self._tree, hidden=self.hidden)

    def take(self, rows: Tensor) -> None:
        """Walk, keep what was accepted, look at it, tell the caller and the drafter."""
        rests, self._rests = self._rests, False
        if not rests:
            self._handled -= time.perf_counter()
        inquest = self.inquest
        if inquest.recheck is not None:
            if inquest.recheck.take(rows):
                self.sample = inquest.conclude()
        else:
            try:
                walk = self.verify(rows)
                found = inquest.opens(self.sample, self._tree)
            except Exception as error:
                found = inquest.opens_over(isinstance(error, UsageError), _what(error), self.sample, self._tree)
                if not found:
                    raise
            if found:
                self._drop()
                return
        if inquest.recheck is not None:
            return
        self.sample.report()
        if self.sample.done:
            inquest.close()
        elif self._drafter is not None and not self.sample.reason:
            if self.hidden is not None:
                self._waiting += self.hidden
            if not rests or len(self._waiting) >= MOST_WAITING:
                self._note(walk)
            if not rests:
                self._stride.handle(self._handled + time.perf_counter(), drafted=len(self._tree) > 0)

    def _note(self, walk: Walk) -> None:
        """Count what became text, and tell the drafter of it where it had a part or too much has gathered."""
        self._hear()
        if self._tree or len(self._waiting) >= MOST_WAITING:
            self._guard(self._observe, walk, self._source.needs_hidden)

    def _hear(self) -> None:
        heard, self._heard = self._heard, len(self.sample.sequence.tokens)
        self._stride.hear(self._heard - heard)

    def verify(self, rows: Tensor) -> Walk:
        """The sample goes down the tree; keys and values of what it took are kept."""
        sample, tree = self.sample, self._tree
        walk = sample.walk(rows, tree)
        if sample.sequence.nodes:
            sample.sequence.settle(walk.path)
            self._stride.learn(tree, len(walk.taken))
        return walk

    def close(self) -> None:
        """The sample has ended; harmless when said twice."""
        self._stride.close()
        self._drop()

    def _drop(self) -> None:
        drafter, self._drafter = self._drafter, None
        self._waiting = []
        if drafter is not None:
            try:
                drafter.close()
            except BaseException as error:
                self.sample.notes.append(f"the drafter {self._source.name!r} failed while closing: {_what(error)}")

    def _switch_off(self, why: str) -> None:
        self.sample.notes.append(f"speculation with {self._source.name!r} was switched off: {why}")
        self._drop()

    def _guard(self, call: Callable[..., DraftTree | None], *args: object) -> DraftTree | None:
        """Run the drafter's code: whatever it raises ends speculation for this sample, and is said."""
        began = time.perf_counter()
        try:
            return call(*args)
        except BaseException as error:  # also SystemExit and panics of native code: the request goes on
            self._switch_off(_what(error))
            return None
        finally:
            seconds = time.perf_counter() - began
            self._handled -= seconds
            self.job.books.draft_s += seconds
            self._stride.spend(seconds)

    def _open(self, seed: int) -> None:
        self._drafter = self._source.open(seed % 2**63)

    def _propose(self, budget: Budget) -> DraftTree:
        assert self._drafter is not None
        self._catch_up(budget)
        tree = vet(self._drafter.propose(budget), budget, self._vocab_size)
        ends = frozenset() if self.job.request.sampling.ignore_eos else frozenset(self.job.tokenizer.eos_ids)
        pruned = prune(tree, self.sample.sequence.matcher, ends)
        if budget.worth is not None and not budget.nodes:
            promised = sum(tree.chances or ())
            self._stride.asked(sum(pruned.chances or ()) / promised if promised else 1.0)
        return pruned

    def _catch_up(self, budget: Budget) -> None:
        """Tell the drafter of passes in which it had no part; of their hidden rows only where it may now make use of them."""
        with_rows = len(self._waiting) > 0 and (budget.nodes > 0 or budget.least < NEVER)
        if with_rows or self._known < len(self.sample.sequence.tokens):
            self._observe(None, with_rows)

    def _observe(self, walk: Walk | None, with_rows: bool) -> None:
        """Tell the drafter what became text since; `walk` is the way down the last pass' tree, if it had one."""
        assert self._drafter is not None
        sequence, tree = self.sample.sequence, self._tree if walk is not None else EMPTY
        tokens = tuple(sequence.tokens[self._known :])
        self._known = len(sequence.tokens)
        if not with_rows:
            self._drafter.observe(Commit(tokens))
            return
        is_part, hidden = len(self._waiting) == 1, self._waiting[0] if len(self._waiting) == 1 else torch.cat(self._waiting)
        self._waiting = []
        path = [] if walk is None else walk.path
        trunk = hidden.shape[0] - len(tree)
        # a copy: a part of a pass keeps the rows of all others alive, and drafters may keep what they are told for long
        if path == list(range(len(path))):
            hidden = hidden[: trunk + len(path)].clone() if is_part else hidden[: trunk + len(path)]
        else:
            hidden = hidden[[*range(trunk), *(trunk + node for node in path)]]
        self._drafter.observe(Commit(tokens, hidden, sequence.computed - len(hidden)))

    @property
    def _vocab_size(self) -> int:
        return self.job.tokenizer.vocab_size


def _what(error: BaseException) -> str:
    """One short line of printable characters, whatever the error says of itself."""
    try:
        text = str(error) if isinstance(error, ToolkitError) else f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return "".join(each if each.isprintable() else " " for each in text[:MOST_SAID])
