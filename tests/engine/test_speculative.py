"""Speculation never changes an output: the speculative loop against the plain one, with drafters that know, guess and misbehave."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.engine.guessers import VOCABULARY, Scripted, ScriptedDrafter, knowing
from toolkit.contracts import BeamParams, BeamResult, Completion, Done, Failed, Grammar, Request, SamplingParams
from toolkit.draft.contract import Budget, Commit
from toolkit.draft.tree import EMPTY, DraftTree, chain
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.pace import Pace
from toolkit.engine.pass_costs import PassCosts
from toolkit.results import beam_result

SCHEMA = Grammar(
    "json_schema", '{"type":"object","properties":{"a":{"enum":["xy","xz"]},"b":{"type":"integer"}},"required":["a","b"]}'
)
PARAMS = {
    "greedy": SamplingParams(max_tokens=24),
    "sampled": SamplingParams(max_tokens=24, temperature=1.0, seed=5),
    "filtered": SamplingParams(max_tokens=24, temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, seed=6),
    "penalised": SamplingParams(
        max_tokens=24, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.7, logit_bias={65: 4.0}
    ),
    "stopped": SamplingParams(max_tokens=24, temperature=1.0, seed=8, stop=("e", "\x10")),
    "stop ids": SamplingParams(max_tokens=24, temperature=1.0, seed=9, stop_ids=tuple(range(40, 90))),
    "not before": SamplingParams(max_tokens=24, min_tokens=20, temperature=1.0, seed=10, stop_ids=tuple(range(200))),
    "scored": SamplingParams(max_tokens=24, temperature=1.0, seed=11, logprobs=3, logprob_ids=(7,)),
    "short": SamplingParams(max_tokens=3, temperature=1.0, seed=12),
}


@pytest.fixture(scope="module", params=["int8", "float32"])
def engine(request: pytest.FixtureRequest) -> Iterator[EmbeddedEngine]:
    """Prefix cache off: what a request finds there must not decide whether its rows are computed as before."""
    with EmbeddedEngine("tiny", format=request.param, kv_blocks=256, block_size=4, prefix_cache=False) as opened:
        yield opened
        assert opened.kv_blocks_in_use == 0
        opened._forward.pool.check()


def plain(engine: EmbeddedEngine, *requests: Request) -> list[Completion]:
    return run(engine, None, *requests)


def run(
    engine: EmbeddedEngine, source: Any, *requests: Request, nodes: int | None = 8, tokens: int | None = 5
) -> list[Completion]:
    """Results in order of (request, sample), with a source put into the engine for this run."""
    engine._source, engine._pace = source, Pace(PassCosts(), tokens=tokens, nodes=nodes)
    found: dict[tuple[str, int], Completion] = {}
    for event in engine.generate(replace(each, id=f"r{i}") for i, each in enumerate(requests)):
        assert not isinstance(event, Failed), event
        if isinstance(event, Done):
            assert isinstance(event.result, Completion)
            found[event.request_id, event.index] = event.result
    assert engine.kv_blocks_in_use == 0
    engine._forward.pool.check()
    return [found[key] for key in sorted(found)]


def same(one: Completion, two: Completion) -> bool:
    """Everything but cost; log-probabilities within rounding of the torch path."""
    for a, b in zip(one.logprobs, two.logprobs, strict=True):
        assert a.token_id == b.token_id and a.logprob == pytest.approx(b.logprob, abs=1e-4)
        assert [i for i, _ in a.asked] == [i for i, _ in b.asked]
    assert all(incident.kind == "model" for each in (one, two) for incident in each.incidents)
    left, right = (
        replace(each, usage=type(each.usage)(), timing=type(each.timing)(), logprobs=(), trace=(), incidents=())
        for each in (one, two)
    )
    return left == right


@pytest.mark.parametrize("name", list(PARAMS))
@pytest.mark.parametrize("grammar", [None, SCHEMA], ids=["free", "schema"])
def test_a_tree_that_holds_the_truth_among_noise_gives_the_plain_result(
    engine: EmbeddedEngine, name: str, grammar: Grammar | None
) -> None:
    request = Request(prompt="Tell me: ", sampling=PARAMS[name], grammar=grammar, trace=True)
    (expected,) = plain(engine, request)
    line = [*engine.tokenizer.encode("Tell me: "), *expected.token_ids]
    accepted = 0
    for wrong in (0.0, 0.4, 1.0):
        (found,) = run(engine, Scripted(knowing(line, wrong=wrong)), request)
        assert same(found, expected)
        balanced(found)
        accepted += found.usage.accepted
    assert accepted > 0 or len(expected.token_ids) < 5 or grammar is not None


def balanced(found: Completion) -> None:
    """The books add up, and the trace tells the same story."""
    usage = found.usage
    assert usage.output_tokens == len(found.token_ids) == usage.steps + usage.accepted + usage.appended - usage.trimmed
    assert usage.proposed == sum(len(each.tokens) for each in found.trace)
    assert usage.accepted == sum(len(each.accepted) for each in found.trace) == sum(usage.accepted_by_position)
    assert usage.verify_passes == sum(bool(each.tokens) for each in found.trace)
    assert all(a >= b for a, b in zip(usage.accepted_by_position, usage.accepted_by_position[1:], strict=False))
    assert tuple(token for each in found.trace for token in each.emitted) == found.token_ids
    for each in found.trace:
        assert tuple(each.tokens[node] for node in each.accepted) == each.emitted[: len(each.accepted)]


def test_samples_and_requests_that_run_together_do_not_touch_each_other(engine: EmbeddedEngine) -> None:
    requests = [
        Request(prompt=f"{name} ", sampling=replace(params, n=3 if params.temperature else 1))
        for name, params in PARAMS.items()
    ]
    expected = plain(engine, *requests)
    truth = {tuple(engine.tokenizer.encode(each.prompt)): each for each in requests}  # type: ignore[arg-type]
    assert len(truth) == len(requests)
    found = run(engine, Scripted(lambda text, budget, noise: knowing(text, wrong=1.0)(text, budget, noise)), *requests)
    assert len(found) == len(expected) and all(same(a, b) for a, b in zip(found, expected, strict=True))


def test_beams_and_drafts_in_the_same_passes_share_nothing(engine: EmbeddedEngine) -> None:
    """One prompt for all of them: beams fork where drafts hang their trees."""
    free = [Request(prompt="Tell me: ", sampling=PARAMS[name]) for name in ("greedy", "sampled", "stop ids")]
    beam = Request(prompt="Tell me: ", beam=BeamParams(width=4, max_tokens=16), grammar=Grammar("regex", "[a-d]{3,9}"))
    expected = plain(engine, *free)
    alone = beam_result(engine.generate([beam]))
    line = [*engine.tokenizer.encode("Tell me: "), *expected[0].token_ids]
    engine._source, engine._pace = Scripted(knowing(line, wrong=0.3)), Pace(PassCosts(), tokens=5, nodes=8)
    requests = [free[0], beam, free[1], beam, free[2]]
    found = {
        event.request_id: event.result
        for event in engine.generate(replace(each, id=f"{i}") for i, each in enumerate(requests))
        if isinstance(event, Done)
    }
    for i, other in zip((0, 2, 4), expected, strict=True):
        each = found[f"{i}"]
        assert isinstance(each, Completion) and same(each, other) and each.usage.proposed > 0
    for i in (1, 3):
        each = found[f"{i}"]
        assert isinstance(each, BeamResult) and each.usage.proposed == 0
        assert [(other.token_ids, other.valid) for other in each.alternatives] == [
            (h.token_ids, h.valid) for h in alone.alternatives
        ]
        assert each.sum_logprob == pytest.approx(alone.sum_logprob, abs=1e-4)
    assert engine.kv_blocks_in_use == 0
    engine._forward.pool.check()


def test_the_drafter_is_told_every_token_and_the_hidden_row_of_all_but_the_last(engine: EmbeddedEngine) -> None:
    request = Request(prompt="Tell me: ", sampling=PARAMS["greedy"])
    (expected,) = plain(engine, request)
    line = [*engine.tokenizer.encode("Tell me: "), *expected.token_ids]
    rows = {}
    for wrong in (1.0, 0.2):
        source = Scripted(knowing(line, wrong=wrong), needs_hidden=True)
        run(engine, source, request)
        (drafter,) = source.opened
        assert drafter.text == line[: len(drafter.text)]
        at = 0
        for start, hidden in drafter.hidden:
            assert start == at
            at += len(hidden)
        assert at == len(drafter.text) - 1
        rows[wrong] = torch.cat([hidden for _, hidden in drafter.hidden])
    shared = min(map(len, rows.values()))
    tolerance = 0.0 if engine.format.startswith("int8") else 1e-4
    assert shared > 10
    torch.testing.assert_close(rows[1.0][:shared], rows[0.2][:shared], rtol=0, atol=tolerance)


def test_a_drafter_that_keeps_its_rows_keeps_none_of_other_requests(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is a part of its pass, in which others have hundreds: those who rest for long would keep them all."""
    kept: list[torch.Tensor] = []

    def observe(self: ScriptedDrafter, commit: Commit) -> None:
        self.text += commit.tokens
        kept.append(commit.hidden)  # type: ignore[arg-type]

    monkeypatch.setattr(ScriptedDrafter, "observe", observe)
    requests = [Request(prompt="x" * 40 * (i + 1), sampling=PARAMS["greedy"]) for i in range(3)]
    run(engine, Scripted(lambda text, budget, noise: EMPTY, needs_hidden=True), *requests)
    assert len(kept) > 20 and all(each.untyped_storage().nbytes() == each.nbytes for each in kept)


def _explode(text: list[int], budget: Budget, noise: random.Random) -> DraftTree:
    if len(text) > 14:
        raise ValueError("no idea")
    return chain([1, 2])


@pytest.mark.parametrize(
    ("guess", "why"),
    [
        (_explode, "no idea"),
        (lambda text, budget, noise: chain([VOCABULARY + 3]), "vocabulary"),
        (lambda text, budget, noise: chain([1] * (budget.depth + 1)), "at most"),
        (lambda text, budget, noise: chain([1], torch.zeros(1, VOCABULARY)), "no distribution"),
    ],
)
def test_a_drafter_that_misbehaves_is_switched_off_and_said_so(engine: EmbeddedEngine, guess: Any, why: str) -> None:
    request = Request(prompt="Tell me: ", sampling=PARAMS["sampled"])
    (expected,) = plain(engine, request)
    source = Scripted(guess)
    (found,) = run(engine, source, request)
    assert same(replace(found, notes=()), expected)
    (note,) = found.notes
    assert "switched off" in note and why in note
    assert [drafter.closed for drafter in source.opened] == [1]


def test_a_cancelled_request_closes_its_drafters_and_frees_its_blocks(engine: EmbeddedEngine) -> None:
    source = Scripted(lambda text, budget, noise: chain([noise.randrange(200)]))
    engine._source, engine._pace = source, Pace(PassCosts(), tokens=5, nodes=8)
    events = engine.generate([Request(prompt="x", id="gone", sampling=SamplingParams(max_tokens=200, ignore_eos=True, n=2))])
    for i, event in enumerate(events):
        if i == 3:
            engine.cancel("gone")
        if isinstance(event, Done):
            assert isinstance(event.result, Completion)
    assert [drafter.closed for drafter in source.opened] == [1, 1]
    assert engine.kv_blocks_in_use == 0
    engine._forward.pool.check()


def test_a_request_may_ask_to_be_decoded_plainly(engine: EmbeddedEngine) -> None:
    source = Scripted(lambda text, budget, noise: chain([1]))
    (found,) = run(engine, source, Request(prompt="x", sampling=PARAMS["greedy"], speculate=False))
    assert source.opened == [] and found.usage.proposed == 0


def test_no_guess_costs_no_row(engine: EmbeddedEngine) -> None:
    request = Request(prompt="x", sampling=PARAMS["greedy"])
    (expected,) = plain(engine, request)
    (found,) = run(engine, Scripted(lambda text, budget, noise: EMPTY), request)
    assert (found.usage.rows, found.usage.passes) == (expected.usage.rows, expected.usage.passes)
