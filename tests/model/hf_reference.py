"""transformers, importable next to a CPU build of torch."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from toolkit.bench.transformers_peer import load_transformers


def transformers() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = load_transformers()
        import_module("transformers.models.llama.modeling_llama")
    return loaded
