"""MedusaRunner: heads in the target's own format, native int8 or torch.

In: one hidden row.   Out: logits of some heads.
Knows nothing about: trees, what is committed.
Invariants: rows of the output matrix are the target's own, taken from it as it runs, unless the heads brought theirs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from toolkit.draft.contract import Cost
from toolkit.draft.medusa_head import MedusaHead
from toolkit.model.decoder import Decoder, Linear
from toolkit.model.native.decoder import NativeDecoder, linear
from toolkit.model.native.pack import pack

Product = Callable[[Tensor], Tensor]  # [R, inputs] -> [R, outputs]


class MedusaRunner:
    """ids[i] is the target's token of row i of the draft vocabulary."""

    def __init__(self, head: MedusaHead, target: Decoder | NativeDecoder) -> None:
        self.ids: list[int] = head.ids.tolist()
        self.heads = head.heads
        self._ids = head.ids
        outputs = [target.head_rows(head.ids)] if head.outputs is None else list(head.outputs)
        self._blocks = [
            [_product(target, weight, bias) for weight, bias in zip(*each, strict=True)]
            for each in zip(head.weight, head.bias, strict=True)
        ]
        self._outputs = [_product(target, rows, None) for rows in outputs]
        once = head.weight.numel() + sum(rows.numel() for rows in outputs)
        size = 1 if isinstance(target, NativeDecoder) else target.dtype.itemsize
        # one row asks all heads; a proposal of all of them is counted by the token
        self.cost = Cost(head.weight.numel() / self.heads + outputs[0].numel(), once * size / self.heads)

    def logits(self, row: Tensor, first: int, stop: int) -> Tensor:
        """[stop - first, Vd] of heads first .. stop-1 for a hidden row [D]."""
        rows = []
        for blocks in self._blocks[first:stop]:
            x = row[None]
            for block in blocks:
                x = x + F.silu(block(x))
            rows.append(x)
        if len(self._outputs) == 1:
            return self._outputs[0](torch.cat(rows)).float()
        return torch.cat([output(x) for output, x in zip(self._outputs[first:stop], rows, strict=True)]).float()

    def widened(self, logits: Tensor, vocab_size: int) -> Tensor:
        """[n, V] over the target's vocabulary: -inf for what is not in the draft vocabulary."""
        wide = logits.new_full((len(logits), vocab_size), -torch.inf)
        wide[:, self._ids.to(logits.device)] = logits
        return wide


def _product(target: Decoder | NativeDecoder, weight: Tensor, bias: Tensor | None) -> Product:
    if isinstance(target, NativeDecoder):
        packed, kernels = pack(weight, bias), target.kernel_set
        return lambda x: linear(packed, x, kernels)
    plain = weight.to(target.device, target.dtype)
    return Linear(plain, None if bias is None else bias.to(target.device, target.dtype))
