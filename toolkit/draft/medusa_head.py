"""MedusaHead: heads on the target's last hidden row, head i for the token i+2 places ahead of the row's own token.

    row of token t -> target's head: token t+1;   head i: rows + silu(W rows + b), layers times -> target's head: token t+2+i

In: tensors.   Out: logits over the draft vocabulary.
Knows nothing about: sequences, trees, files.
Source: 2401.10774, section 2.1; departures: all heads share the target's own output matrix (the published ones bring their own).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class MedusaHead:
    """weight [K, L, D, D], bias [K, L, D] of K heads with L residual blocks each; ids [Vd] int64, rising: the draft vocabulary.

    outputs [K, Vd, D]: a matrix of each head's own, None = the target's rows.
    """

    weight: Tensor
    bias: Tensor
    ids: Tensor
    outputs: Tensor | None = None

    @property
    def heads(self) -> int:
        return self.weight.shape[0]

    def rows(self, hidden: Tensor) -> Tensor:
        """[K, T, D] of hidden rows [T, D]: what the output matrix reads for every head."""
        found = []
        for blocks, shifts in zip(self.weight, self.bias, strict=True):
            x = hidden
            for weight, bias in zip(blocks, shifts, strict=True):
                x = x + F.silu(F.linear(x, weight, bias))
            found.append(x)
        return torch.stack(found)
