"""PagedView: attention of one forward pass over many sequences' block tables.

The T rows of a pass belong to several sequences. Each row attends to all slots of its sequence up to its own position:

    sequence a   [ few-shot blocks ][ record 1 ][ a's tail ]
    sequence b   [ few-shot blocks ][ record 1 ][ b's tail ]      beams of one record share two runs
    sequence c   [ few-shot blocks ][ record 2 ][ c's tail ]

Runs of blocks that several sequences share are attended to once for all of their rows, as one matrix product; what is
left of each sequence is attended to in one padded product. Parts are joined by their log-sum-exp, which is exact
(the split softmax of 2205.14135, section 3.1; over shared prefixes as in 2402.05099). Long prompts go alone. Weights and
sums of the softmax are float32 whatever the model's type is.
In: q [T, H, Dh], k, v [T, Hkv, Dh].   Out: [T, H, Dh].
Knows nothing about: tokens, masks of grammars, samplers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from toolkit.kv.store import Store
from toolkit.kv.table import BlockTable

WIDE = 16  # a sequence with more new rows than this is a prompt: attended to alone, by the fused kernel
WORTH = 256  # slots x (sequences - 1) that a shared run must save, or it is left in the sequences' own parts


@dataclass(frozen=True, slots=True)
class Span:
    """New rows of one sequence in this pass: its table already has room for them, at its end.

    The last len(paths) of them are nodes of a draft tree: node i sees what comes before all nodes and, of these, paths[i],
    itself last. Without paths each row sees all rows before it.
    """

    table: BlockTable
    count: int
    paths: tuple[tuple[int, ...], ...] = ()

    @property
    def trunk(self) -> int:
        """Rows that are no nodes."""
        return self.count - len(self.paths)


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows that all see all of `slots`; `at` is where they stand among the rows of `_Own`."""

    rows: Tensor  # [R]
    slots: Tensor | slice
    at: Tensor  # [R]


@dataclass(frozen=True, slots=True)
class _Own:
    """Each row's own slots, padded to the longest: slots [R, S], bias [R, 1, S] (0 or -inf)."""

    rows: Tensor
    slots: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class _Prompt:
    """`count` rows from `first` on of one sequence with S slots; mask [count, S] is causal."""

    first: int
    count: int
    slots: Tensor | slice
    mask: Tensor


class PagedView:
    """The `KVView` of the model over a store, built anew for every pass."""

    def __init__(self, store: Store, spans: Sequence[Span]) -> None:
        self.store = store
        device = store.device
        starts = [0]
        for span in spans:
            starts.append(starts[-1] + span.count)
        new = [slot for span in spans for slot in span.table.slots(span.table.length - span.count, span.table.length)]
        self.slots = torch.tensor(new, dtype=torch.long, device=device)
        self._runs: list[_Run] = []
        self._prompts = [_prompt(span, first, device) for span, first in zip(spans, starts, strict=False) if span.count > WIDE]
        narrow = [i for i, span in enumerate(spans) if span.count <= WIDE]
        seen = [0] * len(spans)  # leading blocks of each sequence that a shared run covers
        self._place = {row: i for i, row in enumerate(row for i in narrow for row in range(starts[i], starts[i + 1]))}
        self._share(spans, starts, narrow, seen)
        self._own = _own(spans, starts, narrow, seen, device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write this pass's k, v of `layer`, then attend."""
        self.store.write(layer, self.slots, k, v)
        q = self.store.inward(q)
        out = torch.empty_like(q)
        for prompt in self._prompts:
            rows = q[prompt.first : prompt.first + prompt.count].transpose(0, 1)
            seen_k, seen_v = self.store.read(layer, prompt.slots)
            part = F.scaled_dot_product_attention(rows[None], seen_k[None], seen_v[None], prompt.mask, enable_gqa=True)
            out[prompt.first : prompt.first + prompt.count] = part[0].transpose(0, 1)
        if self._own is not None:
            self._attend_narrow(self._own, layer, q, out)
        return self.store.outward(out)

    def _attend_narrow(self, own: _Own, layer: int, q: Tensor, out: Tensor) -> None:
        T, H, D = q.shape
        Hkv = self.store.kv_heads
        grouped = (q * D**-0.5).view(T, Hkv, H // Hkv, D)
        total, weight = _own_part(own, grouped, *self.store.read(layer, own.slots.view(-1)))  # [Hkv, R, G, D], [Hkv, R, G]
        for run in self._runs:
            part, lse = _run_part(run, grouped, *self.store.read(layer, run.slots))
            before = weight[:, run.at]
            joint = torch.logaddexp(before, lse)
            total[:, run.at] = total[:, run.at] * (before - joint).exp_()[..., None] + part * (lse - joint).exp_()[..., None]
            weight[:, run.at] = joint
        out[own.rows] = total.transpose(0, 1).reshape(-1, H, D).to(out.dtype)

    def _share(self, spans: Sequence[Span], starts: Sequence[int], members: list[int], seen: list[int]) -> None:
        """Walk the tries of block tables from the root: one run for each shared stretch that is worth it."""
        if len(members) < 2:
            return
        depth = seen[members[0]]
        tables = [spans[i].table.blocks for i in members]
        full = min((spans[i].table.length - spans[i].count) // spans[i].table.block_size for i in members)
        common = depth
        while common < full and all(table[common] == tables[0][common] for table in tables):
            common += 1
        size = spans[members[0]].table.block_size
        if (common - depth) * size * (len(members) - 1) >= WORTH:
            device = self.store.device
            rows = [row for i in members for row in range(starts[i], starts[i + 1])]
            slots = _slots(spans[members[0]].table.slots(depth * size, common * size), device)
            at = torch.tensor([self._place[row] for row in rows], dtype=torch.long, device=device)
            self._runs.append(_Run(torch.tensor(rows, dtype=torch.long, device=device), slots, at))
            for i in members:
                seen[i] = common
        branches: dict[int, list[int]] = {}
        for i, table in zip(members, tables, strict=True):
            if len(table) > common:
                branches.setdefault(table[common], []).append(i)
        for branch in branches.values():
            self._share(spans, starts, branch, seen)


def _slots(slots: list[int], device: torch.device) -> Tensor | slice:
    """A slice where the slots are one run, else an index tensor."""
    if slots[-1] - slots[0] == len(slots) - 1 and slots == list(range(slots[0], slots[-1] + 1)):
        return slice(slots[0], slots[-1] + 1)
    return torch.tensor(slots, dtype=torch.long, device=device)


def _prompt(span: Span, first: int, device: torch.device) -> _Prompt:
    length, count = span.table.length, span.count
    position = torch.arange(length, device=device)
    mask = position[None, :] <= position[length - count :, None]
    for node, path in enumerate(span.paths):
        row, nodes = span.trunk + node, length - len(span.paths)
        mask[row, nodes:] = False
        mask[row, [nodes + each for each in path]] = True
    return _Prompt(first, count, _slots(span.table.slots(0, length), device), mask)


def _own(
    spans: Sequence[Span], starts: Sequence[int], members: list[int], seen: list[int], device: torch.device
) -> _Own | None:
    rows: list[int] = []
    lists: list[list[int]] = []
    for i in members:
        table, count, paths = spans[i].table, spans[i].count, spans[i].paths
        mine = table.slots(seen[i] * table.block_size, table.length)
        rows += range(starts[i], starts[i] + count)
        lists += [mine[: len(mine) - (count - 1 - j)] for j in range(spans[i].trunk)]
        before = len(mine) - len(paths)
        lists += [mine[:before] + [mine[before + each] for each in path] for path in paths]
    if not rows:
        return None
    longest = max(map(len, lists))
    slots = torch.tensor([each + [each[0]] * (longest - len(each)) for each in lists], dtype=torch.long, device=device)
    lengths = torch.tensor([len(each) for each in lists], device=device)
    bias = torch.zeros(len(rows), 1, longest, device=device)
    bias.masked_fill_(torch.arange(longest, device=device)[None, None, :] >= lengths[:, None, None], -torch.inf)
    return _Own(torch.tensor(rows, dtype=torch.long, device=device), slots, bias)


def _own_part(own: _Own, grouped: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Partial softmax of every narrow row over its own slots, k, v [Hkv, R*S, D]: [Hkv, R, G, D] and log-sum-exp [Hkv, R, G]."""
    R, S = own.slots.shape
    Hkv, _, D = k.shape
    k, v = k.view(Hkv, R, S, D), v.view(Hkv, R, S, D)
    scores = (grouped[own.rows].transpose(0, 1) @ k.transpose(2, 3)).float() + own.bias  # [Hkv, R, G, S]
    lse = torch.logsumexp(scores, dim=-1)
    return ((scores - lse[..., None]).exp_().to(v.dtype) @ v).float(), lse


def _run_part(run: _Run, grouped: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Partial softmax of the run's rows over its slots, k, v [Hkv, S, D]."""
    R = len(run.rows)
    Hkv, _, D = k.shape
    mine = grouped[run.rows].transpose(0, 1).reshape(Hkv, -1, D)  # [Hkv, R*G, D]
    scores = (mine @ k.transpose(1, 2)).float()  # [Hkv, R*G, S]
    lse = torch.logsumexp(scores, dim=-1)
    part = ((scores - lse[..., None]).exp_().to(v.dtype) @ v).float()
    return part.view(Hkv, R, -1, D), lse.view(Hkv, R, -1)
