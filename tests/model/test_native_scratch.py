"""Scratch: memory of native calls is the caller's alone, on a cache line, and little of it lies idle."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import pytest

from toolkit.model.native import scratch as module
from toolkit.model.native.scratch import LARGEST, MOST, scratch


@pytest.fixture(autouse=True)
def nothing_idle() -> Iterator[None]:
    kept, module._idle[:] = list(module._idle), []
    yield
    module._idle[:] = kept


def test_memory_is_used_again_where_it_is_large_enough_and_begins_on_a_cache_line() -> None:
    with scratch(1000) as first:
        assert first % 64 == 0
        with scratch(10) as other:
            assert not first <= other < first + 1000
    with scratch(10) as again, scratch(1000) as larger:
        assert again in (first, other) and larger % 64 == 0 and abs(larger - again) >= 10


def test_an_error_gives_memory_back_and_what_is_large_or_too_much_is_not_kept() -> None:
    with pytest.raises(ZeroDivisionError), scratch(100):
        raise ZeroDivisionError
    assert len(module._idle) == 1
    with scratch(LARGEST + 1):
        pass
    assert sum(count > LARGEST for _, _, count in module._idle) == 0
    held = [scratch(100) for _ in range(3 * MOST)]
    for each in held:
        each.__enter__()
    for each in held:
        each.__exit__()
    assert len(module._idle) == MOST


def test_two_threads_never_hold_the_same_memory() -> None:
    wrong: list[int] = []

    def write(mark: int) -> None:
        for _ in range(300):
            with scratch(4096) as address:
                ctypes.memset(address, mark, 4096)
                if ctypes.string_at(address, 4096) != bytes([mark]) * 4096:
                    wrong.append(mark)

    threads = [threading.Thread(target=write, args=(mark,)) for mark in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
