"""sgl_kernel for machines without a GPU, AVX512 or AMX: the operators that a dense, Llama-like model needs, in plain torch.

PyPI carries only CUDA builds of sgl_kernel. SGLang 0.5.23 looks most operators up here at import, so every other name exists and
raises NotImplementedError with its name when it is called.
Knows nothing about: SGLang's classes. Tensors come in, tensors are written.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.pool import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
)
from sgl_kernel.sampling import top_k_renorm_prob, top_p_renorm_prob
from sgl_kernel.tree import build_tree_kernel_efficient_cpu
from sgl_kernel.verify import fill_bonus_tokens_cpu, tree_speculative_sampling_target_only, verify_tree_greedy_cpu

__version__ = "0.0.cpu"
__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy_cpu",
]

# The attention backend takes these two from torch's namespace of operators.
for _operator in (decode_attention_cpu, extend_attention_cpu):
    setattr(torch.ops.sgl_kernel, _operator.__name__, _operator)


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is not among the CPU stand-ins")

    missing.__name__ = name
    return missing
