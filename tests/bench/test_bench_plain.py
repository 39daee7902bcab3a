"""Plain decoding is timed only where a batch gives what each request gives alone; the arithmetic of its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from toolkit.bench import llamacpp_peer, plain
from toolkit.bench.llamacpp_peer import LlamaCppPeer, Run, Together, is_installed
from toolkit.cli import main
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.errors import UsageError
from toolkit.model.store import resolve, show
from toolkit.text.tokenizer import load_tokenizer

QUIET = Console(quiet=True)


class StandIn:
    """In place of llama.cpp: twice the tokens per second that the engine can have."""

    def greedy(self, prompt: list[int], count: int) -> Run:
        return Run(tuple(range(count)), 0.1, 0.1 + (count - 1) / 100.0)

    def together(self, prompts: list[list[int]], count: int) -> Together:
        return Together(tuple(tuple(range(i, i + count)) for i in range(len(prompts))), len(prompts) * count / 400.0)


def test_a_batch_that_equals_its_requests_alone_gives_ratios_against_the_peer_one_to_one_and_eight_to_eight() -> None:
    with EmbeddedEngine("tiny") as engine, EmbeddedEngine("tiny", format="int4") as four:
        found = plain.run(engine, other={"int4": four}, peer=StandIn(), tokens=4, rounds=1, console=QUIET)  # type: ignore[arg-type]
    assert found["verdict"] == "PASS" and set(found["ratios"]) == {
        "batch8_vs_1", "plain_vs_llamacpp", "batch8_vs_llamacpp8", "int4_vs_plain", "int4_vs_llamacpp", "int4_batch8_vs_1",
        "int4_batch8_vs_batch8", "int4_batch8_vs_llamacpp8",
    }  # fmt: skip
    assert found["arms"]["llamacpp"] == pytest.approx((100.0, 100.0, 100.0))
    assert found["arms"]["llamacpp8"] == pytest.approx((400.0, 400.0, 400.0))
    assert found["ratios"]["plain_vs_llamacpp"][1] == pytest.approx(found["arms"]["plain"][1] / 100.0, rel=0.5)
    assert found["ratios"]["int4_batch8_vs_llamacpp8"][1] == pytest.approx(found["arms"]["int4_batch8"][1] / 400.0)
    assert found["llamacpp_equal"] == [8, 8]


def test_no_speed_is_given_where_a_batch_changes_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"plain": 10.0, "batch8": 40.0, "plain whole": 10.0, "equal": False}
    monkeypatch.setattr(plain, "_row", lambda *_: row)
    with EmbeddedEngine("tiny") as engine:
        found = plain.run(engine, tokens=4, rounds=1, console=QUIET)
    assert found["verdict"] == "HOLD" and found["arms"] == found["ratios"] == {} and "8 of 8" in found["reasons"][0]


def test_the_command_sets_int4_beside_int8_and_says_what_it_cannot_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("bench", "plain", "--model", "tiny", "--tokens", "2", "--rounds", "1", "--json")) == 0
    out, told = capsys.readouterr()
    assert set(json.loads(out.splitlines()[-1])["arms"]) == {"plain", "batch8", "int4", "int4_batch8"}
    why = "--model tiny has no file" if is_installed() else "pip install 'sgl-toolkit[peers]'"
    assert f"llama.cpp is not measured: {why}" in " ".join(told.split())


@pytest.mark.slow
@pytest.mark.skipif(not is_installed(), reason="llama-cpp-python (extra `peers`) is not installed")
def test_llama_cpp_writes_in_a_batch_what_it_writes_alone_as_far_as_its_rounding_lets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llamacpp_peer, "_BATCH", 64)  # prompts then come in several passes, cut anywhere
    tokenizer = load_tokenizer(resolve("smollm2"))
    prompts = [tokenizer.chat([{"role": "user", "content": text}]) for text in plain.PROMPTS[:4]]
    file = Path(show("smollm2").source)
    peer = LlamaCppPeer(file, context=256, threads=1)
    found, again = peer.together(prompts, 5), peer.together(prompts[::-1], 5)
    alone = [peer.greedy(prompt, 5).token_ids for prompt in prompts]
    for count, context in ((9, 3), (2, 300)):
        with pytest.raises(UsageError, match=r"at most 8, 256 with their texts"):
            peer.together([[1] * context] * count, 5)
    peer.close()
    assert found.e2e_s > 0 and all(len(text) == 5 for text in found.token_ids)
    for other in (alone, again.token_ids[::-1]):
        assert sum(one[:2] == two[:2] for one, two in zip(found.token_ids, other, strict=True)) >= 3
