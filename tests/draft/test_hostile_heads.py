"""Heads from strangers: whatever a folder holds, it is a head or it is refused by name - nothing hangs, crashes or is executed."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.draft.heads import medusa_folder, mtp_folder, random_mtp
from tests.draft.sources import torch_target
from toolkit.contracts import SamplingParams
from toolkit.draft.card import CARD, WEIGHTS
from toolkit.draft.contract import Budget, Commit
from toolkit.draft.eagle import write_eagle
from toolkit.draft.medusa import MedusaSource
from toolkit.draft.mtp import MtpSource
from toolkit.errors import InputError, UnsupportedError

Harm = Callable[[Path], object]
REFUSED = (InputError, UnsupportedError)
VALUES = (None, 0, -1, 10**12, 10**400, "x", [], {}, 1.5, True, float("nan"), float("inf"), [1, 2])


def retyped(name: str, how: Callable[[Tensor], Tensor]) -> Harm:
    def harm(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        save_file(tensors | {name: how(tensors[name])}, folder / WEIGHTS)

    return harm


def told(**what: Any) -> Harm:
    return lambda folder: (folder / CARD).write_text(json.dumps(json.loads((folder / CARD).read_text()) | what))


def pipe(name: str) -> Harm:
    """Opening one waits for a writer that never comes."""

    def harm(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return harm


def header(size: int) -> Harm:
    return lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", size) + b"{" + b" " * 99)


def endless(name: str) -> Harm:
    return lambda folder: os.truncate(folder / name, 1 << 40)


HARMS: dict[str, tuple[Harm, str]] = {
    "whole numbers for weights": (retyped("fc", lambda t: t.to(torch.int32)), "fc is int32"),
    "truth values for norms": (retyped("mlp_norm", lambda t: t > 0), "mlp_norm is bool"),
    "halves of token ids": (retyped("ids", lambda t: t + 0.5), "ids are float32"),
    "ids that fall": (retyped("ids", lambda t: t.flip(0)), "rising order"),
    "infinity": (retyped("o", lambda t: t.fill_(torch.inf)), "o holds NaN or infinity"),
    "a pipe for a card": (pipe(CARD), "not a file"),
    "a pipe for weights": (pipe(WEIGHTS), "not a file"),
    "a header of nothing": (header(0), "not a readable safetensors file"),
    "a header larger than the file": (header(99_000_000), "not a readable safetensors file"),
    "a header larger than any file": (header(2**64 - 1), "not a readable safetensors file"),
    "a card of a terabyte": (endless(CARD), "more than 1048576 bytes"),
    "a card that drives a terminal": (told(base="\x1b[2J", fingerprint="f" * 64), r"for '\\x1b\[2J'"),
    "a card of another version": (told(version=2), "version 1"),
    "a card whose base is no text": (told(base=["x"]), "must be text"),
    "no card": (lambda folder: (folder / CARD).unlink(), "is no card of a head"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "not a readable safetensors file"),
}


@pytest.mark.parametrize("name", list(HARMS))
def test_a_head_that_is_not_what_it_says_is_refused_and_nothing_waits(tmp_path: Path, name: str) -> None:
    harm, words = HARMS[name]
    folder = tmp_path / "head"
    shutil.copytree(mtp_folder("tiny", torch_target()), folder)
    harm(folder)
    with pytest.raises(REFUSED, match=words):
        MtpSource(torch_target(), {"head": str(folder)})


@pytest.mark.parametrize("name", ["", "x" * 5000, "\0", "/dev/null"])
def test_a_name_that_no_folder_can_have_is_refused(name: str) -> None:
    with pytest.raises(REFUSED):
        MtpSource(torch_target(), {"head": name})


def test_weights_too_large_to_compute_with_give_a_draft_or_none_and_no_crash(tmp_path: Path) -> None:
    for kind, make, source in (("mtp", mtp_folder, MtpSource), ("medusa", medusa_folder, MedusaSource)):
        folder = tmp_path / kind
        shutil.copytree(make("tiny", torch_target()), folder)
        tensors = load_file(folder / WEIGHTS)
        large = {name: t.float().mul(3e38).nan_to_num() if t.is_floating_point() else t for name, t in tensors.items()}
        save_file(large, folder / WEIGHTS)
        drafter = source(torch_target(), {"head": str(folder), "floor": 0.0}).open(0)
        drafter.observe(Commit((1, 2, 3), torch.ones(2, 32), 0))
        assert all(0 <= token < 261 for token in drafter.propose(Budget(6, 3, SamplingParams())).tokens)
        drafter.close()


def test_a_published_config_that_lies_is_refused_or_changes_nothing_that_could_crash(tmp_path: Path) -> None:
    """Every number and word of an EAGLE-1 config, replaced by values that do not belong there."""
    config = torch_target().decoder.config
    write_eagle(tmp_path, random_mtp(config, 261), config)
    path = tmp_path / "config.json"
    honest = json.loads(path.read_text())
    refused = 0
    for key in honest:
        for value in VALUES:
            path.write_text(json.dumps(honest | {key: value}))
            try:
                MtpSource(torch_target(), {"head": str(tmp_path)})
            except REFUSED:
                refused += 1
    assert refused > len(honest) * len(VALUES) // 2
    for text in ("", "[]", "{", "[" * 10_000, "{}"):
        path.write_text(text)
        with pytest.raises(REFUSED):
            MtpSource(torch_target(), {"head": str(tmp_path)})
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(REFUSED):
        MtpSource(torch_target(), {"head": str(tmp_path)})
