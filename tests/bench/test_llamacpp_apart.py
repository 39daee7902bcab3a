"""llama.cpp in a process of its own: answers come back, its own libgomp settings hold, its errors and its end are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.bench.llamacpp_apart import SPIN, LlamaCppApart
from toolkit.errors import EngineError, MissingExtraError

# stands where llama-cpp-python would: it says how libgomp would be set, fails for token 5, and ends the process for token 9
FAKE = """
import os

class Llama:
    def __init__(self, **options):
        if "none" in options["model_path"]:
            raise ValueError("no such model")

    def reset(self):
        pass

    def generate(self, prompt, **options):
        if prompt[0] == 9:
            os._exit(11)
        if prompt[0] == 5:
            raise ValueError("not five")
        while True:
            yield prompt[0]
            yield "GOMP_SPINCOUNT" in os.environ

    def close(self):
        pass
"""


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LlamaCppApart]:
    (tmp_path / "llama_cpp.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(SPIN, "10000")
    peer = LlamaCppApart(Path("a.gguf"), context=64, threads=1)
    yield peer
    peer.close()


def test_a_run_comes_back_with_its_own_seconds_and_the_engines_spin_count_is_not_its(peer: LlamaCppApart) -> None:
    for token in (3, 4):
        run = peer.greedy([token], 4)
        assert run.token_ids == (token, 0, token, 0) and 0 < run.ttft_s <= run.e2e_s < 5


def test_a_failed_call_and_a_process_that_ends_by_itself_are_told_by_name(peer: LlamaCppApart) -> None:
    with pytest.raises(EngineError, match=r"llama\.cpp failed: ValueError: not five"):
        peer.greedy([5], 4)
    with pytest.raises(EngineError, match="ended by itself"):
        peer.greedy([3], 4)


def test_a_crash_in_llama_cpp_is_an_error_here(peer: LlamaCppApart) -> None:
    for _ in range(2):
        with pytest.raises(EngineError, match=r"ended by itself \(exit code 11\)"):
            peer.greedy([9], 4)


def test_a_model_that_cannot_be_loaded_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama_cpp.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EngineError, match=r"llama\.cpp failed: ValueError: no such model"):
        LlamaCppApart(Path("none.gguf"), context=64, threads=1)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.bench.llamacpp_apart.is_installed", lambda: False)
    with pytest.raises(MissingExtraError):
        LlamaCppApart(Path("a.gguf"), context=64, threads=1)
