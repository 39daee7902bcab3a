"""Lanes: a fixed number of sequences that are decoded together; whoever ends makes room for the next task.

In: tasks, a decoder.   Out: finished Lines with hidden rows, and the numbers of tasks whose drawn turn was refused.
Every pass carries one row of each running sequence and the whole prompt of each new one.
Knows nothing about: files, where tasks come from.
Invariants: what a task becomes depends on the task alone (exactly so with the int8 decoder), not on who shares its passes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.kv.blocks import BlockPool
from toolkit.kv.slots import SlotView
from toolkit.kv.store import KVStore
from toolkit.kv.table import BlockTable
from toolkit.kv.view import PagedView, Span
from toolkit.model.decoder import Decoder
from toolkit.model.native.decoder import NativeDecoder
from toolkit.train.prompts import Task, loops
from toolkit.train.shards import TOP, Line

BLOCK = 16
LONGEST_PROMPT = 448
REPLY = 192  # tokens: more prompts teach more than longer replies
LOOP = 24  # a reply whose last so many tokens stood there before is cut
_LEAST_DRAWN = 2  # tokens of a user turn, behind the words that it was given
_FLOOR = 0.02  # of the likeliest token's probability: below it nothing is drawn


@dataclass(slots=True)
class _Lane:
    line: Line
    task: Task
    table: BlockTable
    dice: random.Random
    pending: list[int]  # tokens that are not fed yet
    drawn_from: int  # where the drawn user turn begins, -1 once it is closed
    slot: int  # of the store's lanes


Accept = Callable[[Sequence[int]], bool]


class _Kept:
    """What the model told about the tokens of the running lines: room for all of it, taken once.

    As one small tensor a token it would lie between the freed logits of every pass, and no pass could use their room again (21 GB after three
    minutes with 64 lanes).
    """

    def __init__(self, lanes: int, depths: int, width: int) -> None:
        room = LONGEST_PROMPT + REPLY + BLOCK
        self._rows = torch.empty(lanes, 1 + depths, room, width, dtype=torch.float16)
        self._ids = torch.empty(lanes, room, TOP, dtype=torch.int32)
        self._logits, self._lse = torch.empty(lanes, room, TOP), torch.empty(lanes, room)
        self._fed, self._told = [0] * lanes, [0] * lanes
        self._free = list(range(lanes))

    def open(self) -> int:
        """A slot for a new line."""
        slot = self._free.pop()
        self._fed[slot] = self._told[slot] = 0
        return slot

    def feed(self, slot: int, hidden: Tensor, inner: Tensor) -> None:
        """Rows [t, D] and [K, t, D] of the tokens that were fed."""
        at = slice(self._fed[slot], self._fed[slot] + len(hidden))
        self._rows[slot, 0, at], self._rows[slot, 1:, at] = hidden, inner
        self._fed[slot] = at.stop

    def tell(self, slot: int, ids: Tensor, logits: Tensor, lse: Tensor) -> None:
        """The likeliest next tokens [16] and their logits behind a token of the reply."""
        at = self._told[slot]
        self._ids[slot, at], self._logits[slot, at], self._lse[slot, at] = ids, logits, lse
        self._told[slot] += 1

    def close(self, slot: int, line: Line) -> None:
        """The line gets what was kept; the slot is free again."""
        rows, told = self._rows[slot, :, : self._fed[slot]].clone(), slice(self._told[slot])
        line.hidden, line.depths = [rows[0]], [rows[1:]]
        line.top = list(zip(*(each[slot, told].clone() for each in (self._ids, self._logits, self._lse)), strict=True))
        self._free.append(slot)


class Lanes:
    """`width` sequences at a time. `accept(turn)` judges drawn user turns; `ends` are the tokens that end a reply."""

    def __init__(
        self,
        decoder: Decoder | NativeDecoder,
        *,
        width: int,
        depths: Sequence[int],
        vocab: int,
        ends: Sequence[int],
        accept: Accept,
    ) -> None:
        config = decoder.config
        self._decoder, self._width, self._depths, self._vocab = decoder, width, tuple(depths), vocab
        self._ends, self._accept = frozenset(ends), accept
        blocks = width * -(-(LONGEST_PROMPT + REPLY + BLOCK) // BLOCK)
        self._pool = BlockPool(blocks)
        self._store = KVStore(
            layers=config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, blocks=blocks, block_size=BLOCK,
            dtype=decoder.dtype, device=decoder.device,
        )  # fmt: skip
        self._kept = _Kept(width, len(self._depths), config.hidden_size)
        self._lanes: list[_Lane] = []

    def run(self, tasks: Iterator[Task]) -> Iterator[Line | int]:
        """Finished lines, and numbers of refused tasks, until no task is left."""
        more = True
        while more or self._lanes:
            while more and len(self._lanes) < self._width:
                task = next(tasks, None)
                more = task is not None
                if task is not None:
                    if len(task.ids) > LONGEST_PROMPT:
                        yield task.number
                    else:
                        self._open(task)
            if self._lanes:
                yield from self._step()

    def _open(self, task: Task) -> None:
        ids = list(task.ids)
        drawn = task.turn if task.turn_end >= 0 else -1
        line = Line(task.number, list(ids), len(ids))
        table = BlockTable(self._pool, BLOCK)
        self._lanes.append(_Lane(line, task, table, random.Random(task.seed), ids, drawn, self._kept.open()))

    @torch.inference_mode()
    def _step(self) -> Iterator[Line | int]:
        counts = [len(lane.pending) for lane in self._lanes]
        for lane, count in zip(self._lanes, counts, strict=True):
            lane.table.append(count)
        hidden, residuals = self._forward(counts)
        ends = torch.tensor(counts).cumsum(0) - 1
        logits = self._decoder.logits(hidden[ends])[:, : self._vocab]
        top, ids = logits.topk(TOP)
        lse = logits.logsumexp(1)
        for lane, rows, inner in zip(self._lanes, torch.split(hidden, counts), torch.split(residuals, counts, 1), strict=True):
            self._kept.feed(lane.slot, rows, inner)
        running: list[_Lane] = []
        for i, lane in enumerate(self._lanes):
            closed = lane.drawn_from < 0
            temperature = lane.task.temperature if closed else 1.0
            token = _draw(logits[i], temperature, lane.dice) if temperature > 0 else int(ids[i, 0])
            if closed:
                self._kept.tell(lane.slot, ids[i], top[i], lse[i])
            ended = self._take(lane, token)
            if ended is None:
                running.append(lane)
                continue
            lane.table.release()
            self._kept.close(lane.slot, lane.line)
            yield ended
        self._lanes = running

    def _forward(self, counts: list[int]) -> tuple[Tensor, Tensor]:
        tokens = torch.tensor([token for lane in self._lanes for token in lane.pending])
        spans = [Span(lane.table, count) for lane, count in zip(self._lanes, counts, strict=True)]
        positions = torch.cat([torch.arange(span.table.length - span.count, span.table.length) for span in spans])
        if isinstance(self._decoder, NativeDecoder):
            return self._decoder.features(tokens, positions, SlotView(self._store, spans), self._depths)
        return self._decoder.features(tokens, positions, PagedView(self._store, spans), self._depths)

    def _take(self, lane: _Lane, token: int) -> Line | int | None:
        """Append a token. The finished line, the number of a refused task, or None where the lane goes on."""
        line = lane.line
        line.tokens.append(token)
        lane.pending = [token]
        if lane.drawn_from >= 0:
            turn = line.tokens[lane.drawn_from : -1]
            if token == lane.task.turn_end:
                if len(turn) < len(lane.task.ids) - lane.task.turn + _LEAST_DRAWN or not self._accept(turn):
                    return line.task
                line.tokens += lane.task.opening
                lane.pending += lane.task.opening
                lane.drawn_from, line.reply = -1, len(line.tokens)
            elif token in self._ends or len(line.tokens) > LONGEST_PROMPT - 16 or len(turn) > 200 or loops(turn, 12):
                return line.task
            return None
        reply = len(line.tokens) - line.reply
        if token in self._ends or reply >= REPLY or loops(line.tokens[line.reply :], LOOP):
            return line
        return None


def _draw(logits: Tensor, temperature: float, dice: random.Random) -> int:
    """A token of logits [V] at a temperature, the unlikeliest left out."""
    probs = torch.softmax(logits / temperature, 0)
    probs[probs < _FLOOR * probs.max()] = 0
    total = probs.cumsum(0)
    return min(int(torch.searchsorted(total, dice.random() * float(total[-1]), right=True)), len(logits) - 1)
