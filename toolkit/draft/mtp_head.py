"""MtpHead: the weights of a multi-token-prediction module, and the decoder of one layer that runs them.

    x = fc [embedding of token t+1 ; feature of token t] + bias      y = layer(x), with keys and values of its own
    logits over the draft vocabulary = head y                        y is the feature of token t+1 in the next step

The feature of a committed token is the target's hidden row after its final norm, that of a drafted one is y. The heads trained
here norm neither input and not y, as in EAGLE-1 (2401.15077) and in SGLang's LlamaForCausalLMEagle: so they are exported weight
by weight. Modules of other families (DeepSeek-V3 2412.19437, section 2.2) bring such norms.
In: tensors.   Out: rows and logits.
Knows nothing about: sequences, trees, files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from toolkit.model.config import ModelConfig
from toolkit.model.decoder import Block, Decoder


@dataclass(frozen=True, slots=True, eq=False)
class MtpHead:
    """fc [D, 2 D], fc_bias [D], one layer, and ids [Vd] int64, rising: the target's token of every row of the draft vocabulary.

    embed_norm, hidden_norm, norm [D]: of the two inputs and of y, None = none.
    """

    config: ModelConfig  # of the layer as a decoder: layers = 1, vocab_size = Vd
    fc: Tensor
    fc_bias: Tensor
    block: Block
    ids: Tensor
    embed_norm: Tensor | None = None
    hidden_norm: Tensor | None = None
    norm: Tensor | None = None

    def joined(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """What fc reads: [T, 2 D] of embeddings and features [T, D]."""
        return torch.cat((self._normed(embeddings, self.embed_norm), self._normed(features, self.hidden_norm)), -1)

    def enter(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """Rows [T, D] that the layer starts from."""
        return F.linear(self.joined(embeddings, features), self.fc, self.fc_bias)

    def decoder(self, rows: Tensor) -> Decoder:
        """The layer, with `rows` [Vd, D] of the target's head, as a decoder that is given rows to start from."""
        return Decoder(self.config, rows, (self.block,), self.norm, rows)

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else F.rms_norm(x, weight.shape, weight, self.config.rms_eps)


def head_config(target: ModelConfig, vocab: int, intermediate: int) -> ModelConfig:
    """The shape of a head's layer: attention as in the target, without biases and query-key norms."""
    return replace(
        target, layers=1, vocab_size=vocab, intermediate=intermediate, qkv_bias=False, o_bias=False, qk_norm=False, tied=True
    )
