"""Export: a trained head as a draft checkpoint that SGLang serves.

In: a base, a head's folder, an output folder.   Out: config.json and model.safetensors; the command that serves them.
Knows nothing about: how SGLang runs it.
"""

from __future__ import annotations

from pathlib import Path

from toolkit.draft.card import find_head, is_published
from toolkit.draft.eagle import write_eagle
from toolkit.draft.mtp_file import load_mtp
from toolkit.errors import UnsupportedError
from toolkit.model.fingerprint import fingerprint
from toolkit.model.layout import read_config
from toolkit.model.store import resolve

STEPS, TOPK, NODES = 3, 1, 4  # a chain of three tokens, as SGLang counts it: the root is a draft token


def export_sglang_eagle(base: str, head: str, out: Path) -> str:
    """Write an MTP head ("" = the one that comes with the package) for SGLang's EAGLE. UnsupportedError where it is not the base's."""
    source = resolve(base)
    config = read_config(source)
    folder = find_head("mtp", head, base, fingerprint(source))
    if is_published(folder):
        raise UnsupportedError(f"{folder} is no head of this toolkit: it is a checkpoint already", hint="toolkit train mtp")
    write_eagle(out, load_mtp(folder, config, config.vocab_size), config)
    return (
        f"python -m sglang.launch_server --model-path {source} --speculative-algorithm EAGLE --speculative-draft-model-path {out} "
        f"--speculative-num-steps {STEPS} --speculative-eagle-topk {TOPK} --speculative-num-draft-tokens {NODES}"
    )
