"""Recheck: a text that was speculated is read again by the target, from the prompt on, as plain decoding would write it.

    restart -> prompt -> [pending | next old tokens] -> ...      keys and values anew (but for the full blocks of a prompt
                                                                 that several samples share), no tree, no settled branches
              plain step, plain step, ...  as long as it gives the old token; where it does not, the text goes on from there

Tokens are drawn by the plain loop's own step from one row at a time, whatever the speculative walk had made of it. If drafts
were drawn, plain decoding need not give the same: an old token then stands while the model can draw it, and evidence is gathered.
In: a sample that has spoken, or is about to.   Out: another sample that holds what plain decoding makes of it, and where they part.
Knows nothing about: drafters, why it is done, what follows from it.
Invariants: nothing is told meanwhile; the books count a token once, however often it is read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolkit.draft.tree import EMPTY, MOST_NODES, DraftTree, chain
from toolkit.engine.audit import Evidence, same_draw
from toolkit.engine.job import Ask
from toolkit.engine.loops.plain import Sample
from toolkit.engine.loops.walk import Walk
from toolkit.sample.draw import generator
from toolkit.sample.filters import distribution

_FRESH = 1 << 62  # sets a seed's other random numbers apart: those of the old text are used up


class Again(Sample):
    """The sample that is written again. `upto`: how many of the old tokens it tries to write."""

    def __init__(self, old: Sample, *, ties: float, drawn: bool, upto: int) -> None:
        super().__init__(old.job, old.sequence, old.index, old.seed)
        self.old, self.upto = old, upto
        self.notes, self.incidents = old.notes, old.incidents
        self.evidence = Evidence() if drawn else None
        self.is_reading = True
        self._told = old._told
        self._ties = ties
        if drawn:
            self._random = generator(old.seed ^ _FRESH, old.index)

    def wrong_told(self) -> bool:
        """Whether something was told that is not in this text."""
        told, old = self._told, self.old
        return self.ids[:told] != old.ids[:told] or self._texts[:told] != old._texts[:told]

    def parts_at(self) -> int | None:
        """Index of the first token that differs from the old text, None where nothing does."""
        old = self.old
        mine, theirs = list(zip(self.ids, self._texts, strict=False)), list(zip(old.ids, old._texts, strict=False))
        place = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
        if place is not None or len(mine) < len(theirs):
            return len(mine) if place is None else place
        other_end = self.reason != old.reason if len(mine) == len(theirs) else old.reason is not None
        return len(theirs) if other_end else None

    def _choose(self, row: Tensor, walk: Walk) -> tuple[int, int | None]:
        place = len(self.ids)
        if not self.is_reading or place >= self.upto:
            return super()._choose(row, walk)
        expected = self.old.ids[place]
        stands = self._can_be_drawn(row, expected) if self.evidence is not None else self._is_tie(row, expected)
        return (expected, None) if stands else super()._choose(row, walk)

    def _can_be_drawn(self, row: Tensor, token: int) -> bool:
        assert self.evidence is not None
        probs, ids = distribution(row, self.params)
        match = (ids == token).nonzero()
        if len(match):
            self.evidence.see(probs.cpu(), int(match[0, 0]))
        return len(match) > 0

    def _is_tie(self, row: Tensor, token: int) -> bool:
        """Whether rounding alone may have made `token` of what plain decoding draws here; uses up no random number if not."""
        if not self._ties:
            return False
        if self.params.temperature == 0:
            return bool(row[token] >= row.max() - self._ties)
        state = self._random.get_state()
        at = float(torch.rand((), generator=self._random, dtype=torch.float64))
        if same_draw(row, self.params, at, token, self._ties):
            return True
        self._random.set_state(state)
        return False

    def _count(self, walk: Walk, emitted: int) -> None:
        if not self.is_reading:
            super()._count(walk, emitted)


class Recheck:
    """Drives one sample's second reading: `ask`, `take`, ... until `take` says that it is over."""

    def __init__(self, old: Sample, *, ties: float, drawn: bool, upto: int | None = None) -> None:
        self.drawn = drawn
        self.sample = Again(old, ties=ties, drawn=drawn, upto=len(old.ids) if upto is None else upto)
        self._chain: DraftTree = EMPTY
        grammar = old.job.grammar
        sequence = old.sequence
        full = (sequence.prompt_length - 1) // sequence.table.block_size * sequence.table.block_size
        trusted = full if old.params.n > 1 else 0  # samples share these blocks; there is no memory for one copy each
        sequence.restart(grammar.matcher() if grammar is not None else None, trusted=trusted)

    def ask(self) -> Ask:
        """The prompt, then what is pending with the next old tokens behind it."""
        sample = self.sample
        self._chain = EMPTY
        if sample.sequence.computed:
            ahead = sample.old.ids[len(sample.ids) : sample.upto][:MOST_NODES]
            end = next((i for i, token in enumerate(ahead) if token in sample._ends), len(ahead))
            self._chain = chain(ahead[:end]) if end else EMPTY
        return Ask(sample.sequence, sample.rows_wanted, tree=self._chain)

    def take(self, rows: Tensor) -> bool:
        """Step through the rows [trunk + chain, V], plainly, one at a time. True once the old text is read or left."""
        sample, old = self.sample, self.sample.old
        trunk, start = len(rows) - len(self._chain), len(sample.ids)
        window, right = rows[:trunk], 0  # right: tokens of this pass that are the old ones
        while True:
            before = len(sample.ids)
            sample.is_reading = before < sample.upto
            walk = sample.walk(window)
            new, wanted = sample.ids[before:], old.ids[before : sample.upto]
            right += next(
                (i for i, pair in enumerate(zip(new, wanted, strict=False)) if pair[0] != pair[1]), min(len(new), len(wanted))
            )
            if sample.is_reading and new != wanted[: len(new)]:
                sample.is_reading = False
                sample._count(walk, len(new))
                self._discard(before)
            elif not sample.is_reading:
                self._discard(before)
            elif sample.reason is not None:
                sample.is_reading = False
                self._discard(len(sample.ids))
            come = len(sample.ids) - start
            if not sample.is_reading or come > len(self._chain):
                break
            window = rows[trunk + come - sample.rows_wanted : trunk + come]
        self._settle(right)
        return not sample.is_reading

    def _discard(self, kept: int) -> None:
        """The old text counts up to `kept`; what follows is written anew."""
        books = self.sample.job.books
        books.rechecked += kept
        books.discarded += self.sample.old.counted - kept
        self.sample.counted = len(self.sample.ids)

    def _settle(self, right: int) -> None:
        """Keep the keys and values of old tokens that stand, but for those whose rows are still wanted."""
        sample, sequence = self.sample, self.sample.sequence
        if sequence.nodes:
            most = len(sequence.tokens) - sequence.computed - 1 - len(sample._unscored)
            sequence.settle(range(max(0, min(right, len(self._chain), most))))
