"""The prefix folder of an engine: the same results as without it, also out of another process, and never another engine's numbers."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolkit.contracts import BeamParams, Completion, Grammar, Request, SamplingParams
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.prefix_dir import identity
from toolkit.errors import UsageError
from toolkit.model.native.library import kernels, missing
from toolkit.results import only_result

native = pytest.mark.skipif(missing() is not None, reason=f"no native path: {missing()}")
PROMPT = [random.Random(5).randrange(256) for _ in range(61)]


def engine(**options: Any) -> EmbeddedEngine:
    return EmbeddedEngine("tiny", **{"format": "int8", "kv_blocks": 512, "block_size": 4, **options})


def complete(opened: EmbeddedEngine, prompt: list[int] = PROMPT, **more: Any) -> Completion:
    sampling = SamplingParams(temperature=0.8, seed=3, max_tokens=12, logprobs=3, ignore_eos=True)
    found = only_result(opened.generate([Request(prompt=prompt, sampling=sampling, **more)]))
    assert isinstance(found, Completion)
    return found


@native
@pytest.mark.parametrize("threads", [1, 2])
def test_tokens_and_log_probabilities_are_bitwise_those_without_it(threads: int, tmp_path: Path) -> None:
    grammar = Grammar("choices", '["red", "green", "blue", "yellow"]')
    beam = Request(prompt=PROMPT, beam=BeamParams(width=3, n=3), grammar=grammar)
    with engine() as plain:
        expected, best, scores = complete(plain), only_result(plain.generate([beam])), plain.score(PROMPT, [[1, 2, 3]])
    with engine(prefix_dir=tmp_path / "d", threads=threads, drafter="ngram") as writer:
        first = complete(writer)
        assert first.usage.restored_tokens == 0 and writer.metrics.value("toolkit_prefix_blocks_total", outcome="written") == 15
    with engine(prefix_dir=tmp_path / "d") as reader:
        again = complete(reader)
        assert (again.usage.restored_tokens, again.usage.cached_tokens) == (60, 60)
        assert (
            reader.score(PROMPT, [[1, 2, 3]]) == scores
            and only_result(reader.generate([beam])).alternatives == best.alternatives
        )  # type: ignore[union-attr]
        assert complete(reader, PROMPT[:30]).usage.restored_tokens == 0  # found in memory by now
        assert reader.metrics.value("toolkit_prefix_blocks_total", outcome="read") == 15
        reader._forward.pool.check()
    for one in (first, again):
        assert (one.token_ids, one.logprobs) == (expected.token_ids, expected.logprobs)


@native
def test_every_damaged_block_is_computed_anew_and_the_text_stays_the_same(tmp_path: Path) -> None:
    with engine(prefix_dir=tmp_path / "d") as writer:
        expected = complete(writer)
    for number, path in enumerate(sorted((tmp_path / "d").glob("*.kv"))[::4]):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] if number % 2 else whole[:-1] + bytes([whole[-1] ^ 1]))
        with engine(prefix_dir=tmp_path / "d") as reader:
            found = complete(reader)
            assert found.token_ids == expected.token_ids and found.usage.restored_tokens < 60
            assert reader.metrics.value("toolkit_prefix_blocks_total", outcome="refused") == 1
        assert path.read_bytes() == whole  # written again


def test_a_second_process_finds_what_a_first_one_wrote(tmp_path: Path) -> None:
    said = []
    for _ in range(2):
        code = (
            "import sys, toolkit\n"
            "with toolkit.open_engine('embedded', model='tiny', kv_blocks=64, prefix_dir=sys.argv[1]) as engine:\n"
            "    found = engine.complete('a prompt of more than three blocks of sixteen bytes', max_tokens=8)\n"
            "print(found.usage.restored_tokens, *found.token_ids)"
        )
        arguments = [sys.executable, "-c", code, str(tmp_path / "d")]
        said.append(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split())
    assert [each[0] for each in said] == ["0", "48"] and said[0][1:] == said[1][1:]


@native
def test_engines_whose_numbers_may_differ_share_nothing_and_kernel_sets_share_all(tmp_path: Path) -> None:
    from toolkit.model.native.decoder import NativeDecoder

    def of(**options: Any) -> str:
        with engine(**options) as opened:
            return identity(opened._forward, "tiny")

    names = [
        of(),
        of(format="float32"),
        of(format="float32", kv_dtype="q4"),
        of(block_size=8),
        of(format="auto", dtype="bfloat16"),
    ]
    assert len(set(names)) == len(names)
    assert names[0] == of(kv_blocks=64, threads=2)
    with engine() as opened:
        ours = opened._forward
        packed = ours.decoder.packed  # type: ignore[union-attr]
        for name in kernels():
            ours.decoder = NativeDecoder(packed, kernels=name)
            assert identity(ours, "tiny") == names[0]
        packed.layers[0].o.scale[0] *= 2  # the same names, other numbers
        assert identity(ours, "tiny") != names[0]


def test_what_a_process_wrote_is_taken_back_when_its_speculation_is_caught(tmp_path: Path) -> None:
    with engine(format="auto", prefix_dir=tmp_path / "d") as opened:
        complete(opened)
        assert list((tmp_path / "d").glob("*.kv"))
        opened._forward.forget_prefixes()
        assert not list((tmp_path / "d").glob("*.kv"))


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    for options, said in (
        ({"prefix_bytes": 5}, "prefix_bytes = 5 is not allowed: None without prefix_dir"),
        ({"prefix_dir": tmp_path, "prefix_bytes": 5}, "prefix_bytes = 5 is not allowed: a block"),
        ({"prefix_dir": tmp_path, "prefix_bytes": True}, "prefix_bytes = True"),
        ({"prefix_dir": tmp_path, "prefix_cache": False}, "prefix_dir has no use"),
        ({"prefix_dir": ""}, "prefix_dir = ''"),
    ):
        with pytest.raises(UsageError, match=said):
            engine(format="float32", **options)
