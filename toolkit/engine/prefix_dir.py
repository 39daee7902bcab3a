"""Prefix dir: which keys and values of earlier process runs are this engine's, bit for bit.

In: the engine's forward, the model's fingerprint, a folder.   Out: the PrefixFiles that the forward reads and writes.
Knows nothing about: files, requests.
Invariants: two engines share files only where the same prompt gives both the same numbers. That is named (model, format, kinds and
shapes of what is stored, torch and its instruction set, whose cosines rotate the keys), and for the native format also tried: a
short text is computed and its keys and values are part of the identity, so that a build which rounds differently shares nothing.
Its kernel set and its threads are no part of it: they change no bit. In torch they may change the last bits, as a batch does.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch

from toolkit.contracts import require
from toolkit.engine.forward import Feed, Forward
from toolkit.engine.sequence import Sequence
from toolkit.errors import UsageError
from toolkit.kv.files import PrefixFiles
from toolkit.model.native.decoder import NativeDecoder

_LAYOUT = 1  # raised when the same name stands for other numbers
_PROBE = 48  # tokens
MOST_BYTES = 2 << 30  # of a folder, unless the user says otherwise


def open_prefix_dir(forward: Forward, mark: str, folder: str | Path | None, *, most_bytes: int | None) -> PrefixFiles | None:
    """None without a folder. UsageError for one that cannot be used, a bound below one block, an engine without a prefix cache."""
    if folder is None:
        require(most_bytes is None, "prefix_bytes", most_bytes, "None without prefix_dir")
        return None
    require(isinstance(folder, str | Path) and bool(str(folder)), "prefix_dir", folder, "the path of a folder")
    ok = most_bytes is None or (isinstance(most_bytes, int) and not isinstance(most_bytes, bool) and most_bytes > 0)
    require(ok, "prefix_bytes", most_bytes, "None or an integer >= 1")
    if not forward.prefix_enabled:
        raise UsageError("prefix_dir has no use with prefix_cache=False", hint="leave one of the two out")
    path, mine = Path(folder).expanduser(), identity(forward, mark)
    return PrefixFiles(path, mine, forward.store, most_bytes=MOST_BYTES if most_bytes is None else most_bytes)


def identity(forward: Forward, mark: str) -> str:
    """All that keys and values depend on beside the tokens, as text."""
    decoder = forward.decoder
    return json.dumps({
        "layout": _LAYOUT, "model": mark, "config": str(decoder.config), "byteorder": sys.byteorder,
        "format": decoder.format if isinstance(decoder, NativeDecoder) else str(decoder.dtype),
        "device": forward.device.type,
        "stored": [[str(part.dtype), list(part.shape)] for part in forward.store.slices(0)],
        "torch": [torch.__version__, torch.backends.cpu.get_cpu_capability()],
        "probe": _probe(forward) if isinstance(decoder, NativeDecoder) else "",
    })  # fmt: skip


def _probe(forward: Forward) -> str:
    """sha256 of the keys and values of a fixed text; the cache is empty again afterwards."""
    room = min(_PROBE, forward.pool.size * forward.block_size, forward.decoder.config.context)
    vocabulary = forward.vocab_size
    sequence = Sequence([i * 7919 % vocabulary for i in range(room)], forward.table())
    try:
        forward([Feed(sequence, room, 0)])
        found = hashlib.sha256()
        for slot in range(room):
            block, at = sequence.table.blocks[slot // forward.block_size], slot % forward.block_size
            for part in forward.store.slices(block):
                found.update(part[..., at, :].contiguous().numpy().tobytes())
    finally:
        sequence.release()
    return found.hexdigest()
