"""Two SGLang servers under the gate, as stubs: what they refuse by name is listed, speculation has to be counted, a garbled one is held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engine.remote.stub_server import Handler, Stub, listening
from toolkit.engine.remote.engine import SGLangEngine
from toolkit.gate import canary_runs, ends, greedy, sampled
from toolkit.gate.arm import Arm
from toolkit.gate.canaries import load
from toolkit.gate.identity import identity
from toolkit.gate.report import Findings
from toolkit.gate.run import run_gate
from toolkit.model.tiny import tiny_model

KEPT = {"hot_cache", "max_tokens", "repetition_penalty", "seeds"}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub computes every token anew: four canaries, one short text a setting."""
    monkeypatch.setattr(canary_runs, "load", lambda tier: [each for each in load(tier) if each.name in KEPT])
    monkeypatch.setattr(greedy, "texts", lambda count, dice: ["hi"])
    monkeypatch.setattr(ends, "texts", lambda count, dice: ["hi"])
    monkeypatch.setattr(sampled, "settings", lambda engine, seed, full=sampled.settings: full(engine, seed)[2:])
    monkeypatch.setattr(
        sampled,
        "_requests",
        lambda engine, setting, numbers, seeds, full=sampled._requests: full(engine, setting, numbers[:2], seeds),
    )
    monkeypatch.setattr(greedy, "settings", lambda engine, tokens, full=greedy.settings: full(engine, 8)[:3])


@contextmanager
def engine(**options: Any) -> Iterator[SGLangEngine]:
    # this one does not draw under speculation, which the engine finds out: there is no sampled part
    stub = Stub(**{"info": {"speculative_algorithm": "NGRAM"}, **options})
    with listening(stub), SGLangEngine(stub.url, tokenizer=stub.tokenizer, timeout_s=20, patience_s=2) as opened:
        yield opened


def test_speculation_that_a_server_claims_and_does_not_count_is_not_proven() -> None:
    with engine(info={}) as plain, engine(cut=3) as claimed:
        report = run_gate(plain, claimed)
    assert report.verdict == "INCONCLUSIVE" and all("speculation (ngram) is not proven active" in why for why in report.reasons)
    assert report.identity["candidate"]["drafter"] == "ngram" and report.identity["baseline"]["drafter"] == "none"
    results = {row["name"]: row["result"] for row in report.canaries}
    assert results == {
        "hot_cache": "pass",
        "max_tokens": "pass",
        "repetition_penalty": "not checkable",
        "seeds": "not checkable",
    }
    assert any("sampled" in why and "temperature > 0" in why for why in report.not_checkable)
    assert len(set(report.not_checkable)) == len(report.not_checkable)
    assert "127.0.0.1" not in str(report.to_json()) and any("server (candidate)" in why for why in report.not_checkable)


def test_two_servers_of_one_model_cut_their_streams_as_they_like_and_nothing_is_held() -> None:
    with engine(info={}) as plain, engine(info={"disable_radix_cache": False}, cut=4, incremental=True) as other:
        report = run_gate(plain, other)
    held = [why for why in report.reasons if "sampled" not in why and not why.startswith("nothing is under test")]
    assert report.verdict != "HOLD" and held == []


def test_another_model_is_not_compared() -> None:
    with engine(info={}) as plain, engine(info={}, decoder=tiny_model(seed=5)) as other:
        report = run_gate(plain, other)
    assert report.verdict == "INCONCLUSIVE" and any("differ in their weights" in why for why in report.reasons)


def deaf(_: Handler, body: Any) -> bool:
    """Stop ids are not heard."""
    body["sampling_params"]["stop_token_ids"] = []
    return False


@pytest.mark.parametrize("faults", [[], [deaf] * 99])
def test_ends_are_tried_on_servers_too_and_one_that_goes_on_is_held(faults: list[Any]) -> None:
    findings = Findings()
    with engine(info={}) as plain, engine(faults=faults) as other:
        found = ends.check_ends(Arm("baseline", plain), Arm("candidate", other), findings, tier="quick", seed=0)
    assert found["ends"] > 0 and findings.not_checkable == []
    assert bool(found["wrong"]) == bool(findings.holds) == bool(faults)


def test_a_draft_model_is_told_by_its_name_and_not_by_where_it_lies() -> None:
    with engine(info={"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "/home/me/heads/one"}) as other:
        assert identity(other)["speculation"]["speculative_draft_model_path"] == "one"


def test_an_identity_tells_what_is_in_effect_and_not_what_is_set_besides() -> None:
    info = {"speculative_accept_threshold_acc": 1.0, "attention_backend": "a", "decode_attention_backend": "b"}
    with engine(info=info) as half, engine(info=info | {"prefill_attention_backend": "c"}) as whole:
        found = [identity(each) for each in (half, whole)]
    assert [each["attention"] for each in found] == ["a", "c, b"] and [each["speculation"] for each in found] == [{}, {}]
