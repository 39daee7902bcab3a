"""transformers, importable next to a CPU build of torch.

PyPI's torchvision (SGLang's metadata asks for it) is linked against CUDA and cannot be imported here. No test needs it, so
transformers is told that it is absent before it loads a model.
"""

from __future__ import annotations

import warnings
from typing import Any


def transformers() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers
        import transformers.utils
        import transformers.utils.import_utils

        for module in (transformers.utils, transformers.utils.import_utils):
            module.is_torchvision_available = lambda: False  # type: ignore[attr-defined]
        import transformers.models.llama.modeling_llama
    return transformers
