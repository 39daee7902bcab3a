"""MTP layers: whether a checkpoint holds the multi-token-prediction layers that SGLang's NEXTN drafts with.

In: a model's folder.   Out: nothing, or the UnsupportedError that a server would otherwise reach minutes later, in its own words.
Knows nothing about: processes, flags, models on the hub (SGLang itself fetches those).
Invariants: refused only where neither the config nor the name of any tensor speaks of such layers; what cannot be read is left to SGLang.
Source: published checkpoints: `num_nextn_predict_layers` (DeepSeek-V3, GLM-4.5, MiMo), `mtp_num_hidden_layers` and tensors `mtp.*` (Qwen3.5).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.errors import InputError, UnsupportedError
from toolkit.model.safetensors_header import tensor_entries

MOST_BYTES = 64 << 20  # of a config or an index of tensors
WORDS = ("nextn", "mtp")


def check_mtp(folder: Path) -> None:
    """UnsupportedError where the model in `folder` has no layers to draft with."""
    config = _json(folder / "config.json")
    if not isinstance(config, dict) or _promised(config) or any(_speaks(name) for name in _tensors(folder)):
        return
    named = config.get("architectures")
    raise UnsupportedError(
        f"speculation mtp: {folder} ({', '.join(map(str, named)) if isinstance(named, list) else 'no architecture named'}) holds no "
        "multi-token-prediction layers, neither in config.json nor among its tensors",
        hint="ngram needs no layers; eagle takes a head of --draft-model; toolkit train mtp makes one for the embedded engine",
    )


def _promised(config: dict[str, Any]) -> bool:
    """Does the config, or that of a part, promise layers?"""
    own = any(_speaks(name) and value not in (0, None, False, [], {}) for name, value in config.items())
    return own or any(_promised(each) for each in config.values() if isinstance(each, dict))


def _speaks(name: str) -> bool:
    return any(word in name.lower() for word in WORDS)


def _tensors(folder: Path) -> Iterator[str]:
    """Names of all tensors; one that speaks of such layers where the files cannot be read."""
    index = _json(folder / "model.safetensors.index.json")
    known = index.get("weight_map") if isinstance(index, dict) else None
    if isinstance(known, dict):
        yield from map(str, known)
        return
    files = sorted(folder.glob("*.safetensors"))
    try:
        yield from (entry.name for path in files for entry in tensor_entries(path))
    except InputError:
        files = []
    if not files:
        yield WORDS[0]


def _json(path: Path) -> Any:
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
