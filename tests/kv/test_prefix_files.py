"""Prefix files: what one process wrote another finds bit for bit, and nothing else is ever read for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from toolkit.errors import UsageError
from toolkit.kv.files import PrefixFiles
from toolkit.kv.folder import HEAD, KEY, OVERHEAD, BlockFolder
from toolkit.kv.quantised import QuantisedStore
from toolkit.kv.store import KVStore

SIZE, BLOCKS = 4, 8
SHAPE: dict[str, Any] = {
    "layers": 2, "kv_heads": 2, "head_dim": 8, "blocks": BLOCKS, "block_size": SIZE, "device": torch.device("cpu"),
}  # fmt: skip
PROMPT = list(range(100, 100 + 3 * SIZE + 1))  # three full blocks and the token whose logits are needed
STORES = {
    "float32": lambda: KVStore(dtype=torch.float32, **SHAPE),
    "bfloat16": lambda: KVStore(dtype=torch.bfloat16, **SHAPE),
    "q4": lambda: QuantisedStore(dtype=torch.float32, bits=4, **SHAPE),
}


def filled(kind: str, seed: int) -> KVStore | QuantisedStore:
    store = STORES[kind]()
    random = torch.Generator().manual_seed(seed)
    for block in range(BLOCKS):
        for part in store.slices(block):
            part.copy_((torch.rand(part.shape, generator=random) * 200).to(part.dtype))
    return store


def opened(folder: Path, store: KVStore | QuantisedStore, identity: str = "m", most_bytes: int = 1 << 20) -> PrefixFiles:
    return PrefixFiles(folder, identity, store, most_bytes=most_bytes)


def taker(*blocks: int) -> Callable[[], int | None]:
    left = list(blocks)
    return lambda: left.pop(0) if left else None


def same(a: KVStore | QuantisedStore, one: int, b: KVStore | QuantisedStore, other: int) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.slices(one), b.slices(other), strict=True))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with the three blocks of PROMPT, as blocks 5, 1 and 3 of the store of seed 1 hold them."""
    opened(tmp_path / "d", filled("float32", 1)).save(PROMPT, [5, 1, 3])
    return tmp_path / "d"


@pytest.mark.parametrize("kind", list(STORES))
def test_blocks_come_back_bit_for_bit_in_other_places_of_another_store(kind: str, tmp_path: Path) -> None:
    first, second = filled(kind, 1), filled(kind, 2)
    opened(tmp_path / "d", first).save(PROMPT, [5, 1, 3])
    files = opened(tmp_path / "d", second)
    assert files.load(PROMPT, 0, taker(0, 7, 2)) == [0, 7, 2]
    assert [same(first, a, second, b) for a, b in ((5, 0), (1, 7), (3, 2))] == [True] * 3
    untouched = filled(kind, 2)
    assert all(same(second, block, untouched, block) for block in (1, 3, 4, 5, 6))
    assert files.counts == {"read": 3, "written": 0, "refused": 0, "evicted": 0, "failed": 0}


def test_only_the_same_beginning_of_the_same_identity_is_found(written: Path) -> None:
    files = opened(written, filled("float32", 2))
    assert len(files.load([*PROMPT[:9], 0, 0, 0, 0], 0, taker(0, 1, 2))) == 2
    assert files.load([0, *PROMPT[1:]], 0, taker(0)) == []
    assert files.load([*PROMPT[4:8], 1], 0, taker(0)) == []  # known tokens, at another place
    assert len(files.load(PROMPT[:12], 0, taker(0, 1, 2))) == 2  # the last token is never covered
    assert len(files.load(PROMPT, 2, taker(0, 1, 2))) == 1  # two blocks are there already
    assert files.load(PROMPT, 0, taker()) == []  # no block is free
    assert opened(written, filled("float32", 2), "n").load(PROMPT, 0, taker(0)) == []


def spoil(path: Path, how: str) -> None:
    whole = path.read_bytes()
    path.unlink()
    if how == "link":
        (path.parent / "elsewhere").write_bytes(whole)
        path.symlink_to(path.parent / "elsewhere")
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "longer":
        path.write_bytes(whole + b"\0")
    elif how == "zeros":
        path.write_bytes(bytes(len(whole)))
    elif how == "another block":
        path.write_bytes(next(other.read_bytes() for other in path.parent.glob("*.kv")))


@pytest.mark.parametrize("how", ["link", "pipe", "folder", "longer", "zeros", "another block"])
def test_a_strange_file_is_counted_and_computed_anew(how: str, written: Path) -> None:
    store = filled("float32", 2)
    files = opened(written, store)
    keys = [key.hex() for key, _ in files._chain(PROMPT)]
    spoil(written / f"{keys[1]}.kv", how)
    assert files.load(PROMPT, 0, taker(0, 1, 2)) == [0] and files.counts["refused"] == 1
    assert same(store, 1, filled("float32", 2), 1)
    files.save(PROMPT, [0, 1, 2])
    again = opened(written, filled("float32", 3))
    assert len(again.load(PROMPT, 0, taker(0, 1, 2))) == (1 if how == "folder" else 3)  # a folder cannot be replaced


def test_every_truncation_and_a_flipped_bit_in_every_byte_is_refused(tmp_path: Path) -> None:
    payload = bytes(range(16))
    folder = BlockFolder(tmp_path / "d", len(payload), most_bytes=4096)
    key = bytes(range(KEY))
    assert folder.write({key: [payload[:7], payload[7:]]}) == {key} and folder.read(key) == payload
    path = tmp_path / "d" / f"{key.hex()}.kv"
    whole = path.read_bytes()
    assert len(whole) == OVERHEAD + len(payload) and whole.startswith(HEAD)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert folder.read(key) is None
        path.write_bytes(whole[:length] + bytes(len(whole) - length))  # the pages behind never reached the disk
        assert folder.read(key) is None
    for place, byte in enumerate(whole):
        path.write_bytes(whole[:place] + bytes([byte ^ 1 << place % 8]) + whole[place + 1 :])
        assert folder.read(key) is None
    path.write_bytes(whole)
    assert folder.read(key) == payload


def test_the_least_recently_used_leaf_goes_first_and_the_bound_holds(tmp_path: Path) -> None:
    store = filled("float32", 1)
    one = OVERHEAD + SIZE * 8 + sum(part.nbytes for part in store.slices(0))
    files = opened(tmp_path / "d", store, most_bytes=5 * one)
    other = [0, *PROMPT[1:]]
    files.save(PROMPT, [0, 1, 2])
    files.save(other, [3, 4, 5])
    assert len(list((tmp_path / "d").glob("*.kv"))) == 5 and files.counts["evicted"] == 1
    assert len(files.load(PROMPT, 0, taker(0, 1, 2))) == 2  # it lost its last block
    files.save([9] * SIZE, [6])  # and was used last: the other one loses its own
    assert len(files.load(PROMPT, 0, taker(0, 1, 2))) == 2 and len(files.load(other, 0, taker(0, 1, 2))) == 2
    files.save(list(range(8 * SIZE)), list(range(8)))  # more than fits: its beginning is kept
    assert len(list((tmp_path / "d").glob("*.kv"))) == 5
    assert len(files.load([*range(8 * SIZE), 0], 0, taker(*range(8)))) == 5


def test_what_another_process_is_writing_is_left_to_it_and_its_leftovers_are_removed(tmp_path: Path) -> None:
    import fcntl

    folder, key = BlockFolder(tmp_path / "d", 4, most_bytes=4096), bytes(KEY)
    (tmp_path / "d" / "00.part").write_bytes(b"half")
    with (tmp_path / "d" / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert folder.write({key: [b"abcd"]}) == set() and folder.read(key) is None and folder.counts["failed"] == 1
    assert folder.write({key: [b"abcd"]}) == {key} and not list((tmp_path / "d").glob("*.part"))


def test_what_this_process_wrote_can_be_taken_back(written: Path) -> None:
    files = opened(written, filled("float32", 2))
    files.save([7] * SIZE, [0])
    files.forget()
    assert len(list(written.glob("*.kv"))) == 3 and files.load([7] * (SIZE + 1), 0, taker(0)) == []


def test_a_folder_that_others_may_write_to_or_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UsageError, match="other users"):
        BlockFolder(tmp_path / "open", 4, most_bytes=4096)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be used"):
        BlockFolder(tmp_path / "file", 4, most_bytes=4096)
    with pytest.raises(UsageError, match="takes 84"):
        BlockFolder(tmp_path / "d", 4, most_bytes=83)


def test_a_folder_that_vanished_costs_the_blocks_and_nothing_else(written: Path) -> None:
    files = opened(written, filled("float32", 2))
    for path in written.iterdir():
        path.unlink()
    written.rmdir()
    assert files.load(PROMPT, 0, taker(0)) == []
    files.save(PROMPT, [0, 1, 2])
    assert files.counts["failed"] == 3
