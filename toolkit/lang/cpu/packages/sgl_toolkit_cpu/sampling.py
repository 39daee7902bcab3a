"""Verification that samples on a CPU: the operators that SGLang looks for and the switch that did not let it use them.

Knows nothing about: drafts.
Source: sglang 0.5.23, speculative/eagle_utils.py, `eagle_sample`.
"""

from typing import Any

import sgl_kernel


def sample_on_cpu() -> None:
    """Greedy verification is for batches of greedy requests only; a second call changes nothing."""
    from sglang.srt.speculative import eagle_utils

    for name in ("top_k_renorm_prob", "top_p_renorm_prob", "tree_speculative_sampling_target_only"):
        setattr(eagle_utils, name, getattr(sgl_kernel, name))
    eagle_utils._verify_uses_greedy = _all_greedy


def _all_greedy(*, is_all_greedy: bool, **_: Any) -> bool:
    return is_all_greedy
