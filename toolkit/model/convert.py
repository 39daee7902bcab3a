"""Convert: a GGUF file -> a checkpoint folder that this toolkit, transformers and SGLang read alike.

In: a .gguf file and an empty folder.   Out: config.json, generation_config.json, tokenizer.json, tokenizer_config.json,
model.safetensors in it.
Knows nothing about: the cache the folder lives in.
Invariants: weights are written as float32, because a dequantised weight (scale x integer + offset) has no exact 16-bit form
and every reader of the folder must compute with the same numbers; one tensor at a time is in memory.
Source: the safetensors format (8-byte length, JSON header, raw bytes).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

from toolkit.model.config import ModelConfig
from toolkit.model.gguf import GGUFFile
from toolkit.model.gguf_tokenizer import special_ids, tokenizer_files
from toolkit.model.layout import check_tensors

Progress = Callable[[int, int], None]  # tensors done, tensors in all


def convert_gguf(source: Path, folder: Path, progress: Progress | None = None) -> None:
    """Write the checkpoint. InputError for a damaged file, UnsupportedError for one that is not implemented."""
    file = GGUFFile(source)
    data = file.config()
    config = ModelConfig.from_hf(data)
    check_tensors(config, {name: file.shape(name) for name in file.tensor_names()}, source)
    specials = special_ids(file.fields, str(source))
    ends = {f"{name}_token_id": specials[name] for name in ("bos", "eos", "pad") if name in specials}
    _write_json(folder / "config.json", data | ends)
    _write_json(folder / "generation_config.json", {"_from_model_config": True} | ends)
    for name, text in tokenizer_files(file.fields, str(source)).items():
        (folder / name).write_text(text, encoding="utf-8")
    _write_weights(folder / "model.safetensors", file, progress)


def _write_weights(path: Path, file: GGUFFile, progress: Progress | None) -> None:
    names = file.tensor_names()
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        shape = file.shape(name)
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for done, name in enumerate(names, 1):
            out.write(file.tensor(name).astype("<f4", copy=False).data)
            if progress:
                progress(done, len(names))


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
