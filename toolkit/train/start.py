"""Start: where a head's weights begin, so that training does not start from noise.

    fc      the least-squares prediction of the base's next hidden row from embedding and hidden row (a little ridge)
    layer   the base's last layer, moved from the residual stream, where it was trained, to the space after the final norm

In the residual stream the last layer reads a row x through its norm w_a and writes into x; a head's stream is y = w_f x / rho,
with w_f the final norm's weight and rho a residual row's usual size. So its inputs are divided by w_f and its outputs multiplied
by w_f / rho; the norm that the head's attention lacks goes into the matrix. That is exact but for sizes that vary from row to row.
In: the base decoder, batches.   Out: an MtpHead of float32 tensors.
Knows nothing about: training, files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from toolkit.draft.card import WEIGHTS, read_card
from toolkit.draft.mtp_file import assemble, load_mtp, weights_of
from toolkit.draft.mtp_head import MtpHead, head_config
from toolkit.errors import InputError, UnsupportedError, UsageError
from toolkit.model.decoder import Block, Decoder, Linear
from toolkit.train.batches import Batch

RESIDUAL = 60.0  # rho: between what goes into and what comes out of the last layers of small Llama-like models
RIDGE = 1e-3  # of the mean square of an input


def draft_vocabulary(batches: Iterable[Batch], vocab_size: int, most: int) -> Tensor:
    """The `most` tokens that the base chose most often, [Vd] int64 in rising order. Of equally frequent ones those with the lower
    ids, which byte-pair merging made earlier: rare data of a small run would else decide about most of the vocabulary."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for batch in batches:
        for ids in (batch.tokens, batch.top_ids):
            if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
                raise InputError(f"the data holds token {int(ids.max())}: the base's vocabulary ends at {vocab_size - 1}")
        counts += torch.bincount(batch.top_ids[..., 0][batch.active], minlength=vocab_size)
    rank = counts.double() - torch.arange(vocab_size, dtype=torch.float64) / vocab_size
    return rank.topk(min(most, vocab_size)).indices.sort().values


def first_head(base: Decoder, ids: Tensor, batches: Iterable[Batch]) -> MtpHead:
    """A head whose rows are a linear guess at the base's next hidden row, refined by the base's last layer."""
    config, last = base.config, base.blocks[-1]
    if base.norm is None or last.attention_norm is None or last.mlp_norm is None:
        raise UnsupportedError("this base has no norms: its last layer cannot be moved into a head")
    fc, bias = _least_squares(base.embedding, batches)
    scale = base.norm
    block = Block(
        None,
        Linear(last.qkv.weight * (last.attention_norm / scale)),
        Linear(last.o.weight * (scale / RESIDUAL)[:, None]),
        last.mlp_norm / scale * scale.mean(),
        Linear(last.gate_up.weight.clone()),
        Linear(last.down.weight * (scale / RESIDUAL)[:, None]),
    )
    return MtpHead(head_config(config, len(ids), config.intermediate), fc, bias, block, ids)


def started_head(folder: Path, base: Decoder, mark: str, ids: Tensor) -> tuple[MtpHead, str]:
    """A trained head of the same base over another draft vocabulary, and the SHA-256 of its file. UsageError for another base's."""
    card = read_card(folder)
    if card.kind != "mtp" or card.fingerprint != mark:
        raise UsageError(
            f"{folder} is a head of kind {card.kind!r} for the base {card.fingerprint[:12]}, not an mtp head for {mark[:12]}",
            hint="leave --start out to begin with the base's last layer",
        )
    head = load_mtp(folder, base.config, base.config.vocab_size)
    tensors = {name: tensor.float() for name, tensor in weights_of(head).items()}
    found = assemble(head_config(base.config, len(ids), head.config.intermediate), {**tensors, "ids": ids})
    return found, hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()


def _least_squares(embedding: Tensor, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """weight [D, 2 D] and bias [D] that take [embedding of p+1 ; hidden row of p] to the hidden row of p+1."""
    D = embedding.shape[1]
    squares = torch.zeros(2 * D + 1, 2 * D + 1, dtype=torch.float64)
    products = torch.zeros(2 * D + 1, D, dtype=torch.float64)
    for batch in batches:
        known = batch.active & batch.active.roll(-1, 1)
        known[:, -1] = False
        rows = torch.cat((F.embedding(batch.tokens[:, 1:], embedding)[known], batch.hidden[known]), 1)
        rows = torch.cat((rows, rows.new_ones(len(rows), 1)), 1)
        squares += (rows.T @ rows).double()
        products += (rows.T @ batch.hidden.roll(-1, 1)[known]).double()
    squares += torch.eye(2 * D + 1, dtype=torch.float64) * (RIDGE * squares.diagonal().mean() + 1e-6)
    found = torch.linalg.solve(squares, products).float()
    return found[: 2 * D].T.contiguous(), found[2 * D].contiguous()
