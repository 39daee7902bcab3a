"""transformers, importable next to a CPU build of torch.

PyPI's torchvision (needed by SGLang) is linked against CUDA: its operators are not registered and importing it fails.
Declaring the operator it asks for first lets the import through; no test calls it.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

_LIBRARY: list[Any] = []


def transformers() -> Any:
    if not _LIBRARY and not hasattr(torch.ops.torchvision, "nms"):
        _LIBRARY.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            _LIBRARY[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers
        import transformers.models.llama.modeling_llama
    return transformers
