"""Audits: the evidence is worth what it says, corruption that is still valid JSON is found, good texts pass."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.engine.guessers import Scripted
from toolkit.contracts import Completion, Done, Grammar, Request, SamplingParams, TokenLogprob
from toolkit.draft.contract import Budget
from toolkit.draft.tree import EMPTY, DraftTree
from toolkit.engine.audit import ALARM, Evidence, chosen, read_logprobs, same_draw
from toolkit.engine.breaker import Breaker
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.listed import Listed, bound
from toolkit.engine.pace import Pace
from toolkit.engine.pass_costs import PassCosts
from toolkit.gate.faults.rewrite import rewriting
from toolkit.sample.draw import draw, generator
from toolkit.sample.filters import distribution

GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.0, seed=3)


def test_the_evidence_is_one_on_average_over_all_texts() -> None:
    """Every text of three tokens over three letters, the distribution depending on what came before: exact."""

    def row(text: tuple[int, ...]) -> torch.Tensor:
        return torch.softmax(torch.tensor([0.3, 1.7 * (sum(text) % 2), -1.0 + len(text)], dtype=torch.float64), 0)

    total = 0.0
    for text in itertools.product(range(3), repeat=3):
        evidence, probability = Evidence(), 1.0
        for i, token in enumerate(text):
            evidence.see(row(text[:i]), token)
            probability *= float(row(text[:i])[token])
        total += probability * math.exp(evidence.log)
    assert total == pytest.approx(1.0, abs=1e-12)


def test_honest_texts_are_not_damned_and_wrong_ones_are() -> None:
    """20,000 honest texts at an alarm of 1e-6: one damned would be a chance of 2 in 100. Power: one impossible-looking token suffices."""
    dice = torch.Generator().manual_seed(5)
    probs = torch.softmax(torch.randn(50, generator=dice, dtype=torch.float64) * 3, 0)
    draws = torch.multinomial(probs, 20_000 * 10, replacement=True, generator=dice).view(-1, 10)
    gains = []
    for token in range(50):
        one = Evidence()
        one.see(probs, token)
        gains.append(one._logs)
    logs = torch.stack(gains)[draws].sum(1)  # [texts, alternatives]
    found = torch.logsumexp(logs, 1) - math.log(logs.shape[1])
    assert float(found.max()) < -math.log(ALARM)
    damned = Evidence()
    for token in draws[0].tolist():
        damned.see(probs, token)
    tiny = torch.full((100,), 1e-12, dtype=torch.float64)
    tiny[0] = 1 - 99e-12
    damned.see(tiny, 7)
    assert damned.is_damning
    greedy = Evidence()
    for _ in range(150):
        greedy.see(torch.tensor([0.6, 0.4], dtype=torch.float64), 0)  # always the likeliest: sampling that does not sample
    assert greedy.is_damning


def test_a_share_is_chosen_by_request_sample_and_seed_alone() -> None:
    picks = [chosen(0.25, f"r{i}", 0, 7) for i in range(4000)]
    assert picks == [chosen(0.25, f"r{i}", 0, 7) for i in range(4000)]
    assert 850 < sum(picks) < 1150
    assert not any(chosen(0.0, f"r{i}", 0, 7) for i in range(99)) and all(chosen(1.0, f"r{i}", 0, 7) for i in range(99))
    assert picks != [chosen(0.25, f"r{i}", 1, 7) for i in range(4000)]


def test_the_same_number_could_draw_what_it_drew_and_hardly_anything_else() -> None:
    params = SamplingParams(temperature=0.8, top_k=20)
    dice = torch.Generator().manual_seed(1)
    for _ in range(200):
        logits = torch.randn(60, generator=dice) * 2
        at = float(torch.rand((), generator=generator(3), dtype=torch.float64))
        token = draw(logits, params, generator(3))
        near = logits + (torch.rand(60, generator=dice) - 0.5) * 1e-4
        assert same_draw(near, params, at, token, 1e-4)
        others = [other for other in range(60) if other != token and same_draw(logits, params, at, other, 1e-4)]
        assert len(others) <= 2


@pytest.fixture(params=["int8", "float32"])
def engine(request: pytest.FixtureRequest) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny", format=request.param, kv_blocks=256, block_size=4, audit=1.0, breaker=Breaker(None)) as opened:
        yield opened


def truth_source(engine: EmbeddedEngine, prompt: str, sampling: SamplingParams, *, drawn: bool = False) -> Completion:
    """Gives the engine a drafter that proposes what plain decoding writes, with a distribution of its own if `drawn`."""
    (plain,) = run(engine, Request(prompt=prompt, sampling=sampling, speculate=False))
    line = [*engine.tokenizer.encode(prompt), *plain.token_ids]

    def guess(text: list[int], budget: Budget, noise: random.Random) -> DraftTree:
        ahead = [noise.randrange(256)] if drawn else line[len(text) : len(text) + min(budget.depth, budget.nodes)]
        if not ahead:
            return EMPTY
        q = torch.full((1, engine.tokenizer.vocab_size), 0.0)
        q[:, :256] = 1 / 256
        return DraftTree(tuple(ahead), tuple(range(-1, len(ahead) - 1)), q if drawn else None)

    engine._source, engine._pace = Scripted(guess), Pace(PassCosts(), tokens=4, nodes=4)  # type: ignore[assignment]
    return plain


def run(engine: EmbeddedEngine, *requests: Request) -> list[Completion]:
    found = {}
    for event in engine.generate(replace(each, id=f"q{i}") for i, each in enumerate(requests)):
        assert isinstance(event, Done) or not hasattr(event, "error"), event
        if isinstance(event, Done):
            found[event.request_id, event.index] = event.result
    return [found[key] for key in sorted(found)]  # type: ignore[misc]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "seed"])
def test_a_good_text_passes_and_stays_as_it_is(engine: EmbeddedEngine, sampling: SamplingParams) -> None:
    plain = truth_source(engine, "Tell me: ", sampling)
    (found,) = run(engine, Request(prompt="Tell me: ", sampling=sampling, trace=True))
    assert found.audit is not None and found.audit.verdict == "pass"
    assert found.audit.method == ("argmax" if sampling.temperature == 0 else "seed")
    assert found.audit.tokens == len(found.token_ids) == found.usage.rechecked
    assert found.token_ids == plain.token_ids and found.text == plain.text and found.incidents == ()
    assert found.usage.accepted > 0 and found.usage.discarded == 0
    assert tuple(token for each in found.trace for token in each.emitted) == found.token_ids


def test_drawn_drafts_get_a_likelihood_test_which_good_texts_pass(engine: EmbeddedEngine) -> None:
    truth_source(engine, "Tell me: ", DRAWN, drawn=True)
    for found in run(engine, *(Request(prompt="Tell me: ", sampling=replace(DRAWN, seed=seed)) for seed in range(20))):
        assert found.audit is not None and found.audit.method == "likelihood" and found.audit.verdict == "pass"
        assert found.audit.alarm == ALARM and found.audit.log_evidence < -math.log(ALARM)
        assert found.usage.proposed > 0


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "seed"])
def test_corruption_that_no_parser_can_see_fails_and_plain_decoding_stands(
    engine: EmbeddedEngine, sampling: SamplingParams
) -> None:
    plain = truth_source(engine, "Tell me: ", sampling)
    rewriting("one other token", lambda burst, dice: [burst[0] ^ 1, *burst[1:]], engine)
    (found,) = run(engine, Request(prompt="Tell me: ", sampling=sampling))
    assert found.audit is not None and found.audit.verdict == "fail"
    assert found.token_ids == plain.token_ids and found.text == plain.text
    (incident,) = found.incidents
    assert (incident.kind, incident.found_by) == ("speculation", "audit")
    usage = found.usage
    assert usage.output_tokens == usage.steps + usage.accepted + usage.appended - usage.trimmed - usage.discarded
    assert usage.discarded > 0


def test_a_drawn_text_that_the_model_cannot_have_written_is_written_anew(engine: EmbeddedEngine) -> None:
    """top_k 4 leaves 4 of 261 tokens possible at each place: nearly every other token has probability 0."""
    sampling = replace(DRAWN, top_k=4)
    truth_source(engine, "Tell me: ", sampling, drawn=True)
    rewriting("one other token", lambda burst, dice: [burst[0] ^ 1, *burst[1:]], engine)
    hit = 0
    for found in run(engine, *(Request(prompt="Tell me: ", sampling=replace(sampling, seed=seed)) for seed in range(20))):
        assert found.audit is None or found.audit.method == "likelihood"
        if found.incidents:
            assert found.audit is not None and found.audit.verdict == "fail"
            assert found.incidents[0].kind == "speculation" and found.usage.discarded > 0
            hit += 1
    assert hit >= 3


FILTERS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=2.0, top_k=3),
    SamplingParams(temperature=0.7, top_p=0.8),
    SamplingParams(temperature=1.3, min_p=0.2),
    SamplingParams(temperature=0.9, top_k=4, top_p=0.7, min_p=0.05),
]


@pytest.mark.parametrize("params", FILTERS)
@pytest.mark.parametrize("listed", [1, 3, 7])
@pytest.mark.parametrize("ties", [0.0, 0.1])
def test_out_of_a_few_likeliest_tokens_no_probability_is_underestimated(
    params: SamplingParams, listed: int, ties: float
) -> None:
    """Every token of 40 rows of 8: what can be drawn is never called impossible, and the evidence is at most 1 on average."""
    dice = torch.Generator().manual_seed(11)
    for _ in range(40):
        row = torch.randn(8, generator=dice, dtype=torch.float64) * 2
        probs, ids = distribution(row, params)
        told = torch.log_softmax(row + (torch.rand(8, generator=dice, dtype=torch.float64) - 0.5) * ties, 0).tolist()
        drawn = dict(zip(ids.tolist(), probs.tolist(), strict=True))
        mean = 0.0
        for token in range(8):
            top = sorted((told[other] for other in range(8) if other != token), reverse=True)[:listed]
            most = bound(told[token], top, params, 8, ties)
            if token in drawn:
                assert most is not None and most >= drawn[token] * math.exp(-2 * ties / params.temperature) - 1e-12
                one = Listed(8, ties)
                assert one.see(told[token], top, params)
                mean += drawn[token] * math.exp(one.log)
            elif ties == 0 and listed == 7:
                assert most is None
        assert mean <= 1 + 1e-12


def test_by_a_servers_log_probabilities_honest_draws_pass_and_wrong_ones_fail() -> None:
    dice = torch.Generator().manual_seed(2)
    params = SamplingParams(temperature=0.8, top_p=0.95, logprobs=20)
    rows = torch.randn(90, 60, generator=dice, dtype=torch.float64) * 3

    def text(tokens: list[int]) -> str:
        scores = torch.log_softmax(rows[: len(tokens)], 1)
        listed = []
        for row, token in zip(scores, tokens, strict=True):
            values, ids = row.topk(20)
            listed.append(TokenLogprob(token, float(row[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True))))
        found = Completion(text="", token_ids=tuple(tokens), finish_reason="stop", logprobs=tuple(listed))
        audit = read_logprobs(Request(prompt="x", sampling=params), found, vocab_size=60, ties=1e-3)
        assert audit.method == "likelihood" and audit.alarm == ALARM
        return audit.verdict

    honest = [[draw(row, params, generator(seed, place)) for place, row in enumerate(rows)] for seed in range(50)]
    assert {text(tokens) for tokens in honest} == {"pass"}
    assert text([int(rows[0].argmin()), *honest[0][1:]]) == "fail"  # one token that top_p leaves out
    params = replace(params, top_p=1.0)
    noise = torch.randint(60, (90,), generator=dice).tolist()
    assert text(noise) == "fail"  # no filter: only the evidence speaks
    assert text(honest[0]) == "pass"
    assert text([int(row.argmax()) for row in rows]) == "fail"  # sampling that always takes the likeliest


def logprobs(*gaps: float) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(i, -1.0 - gap, ((i if gap == 0 else 99, -1.0),)) for i, gap in enumerate(gaps))


def test_log_probabilities_of_a_server_are_read() -> None:
    request = Request(prompt="x", sampling=SamplingParams(logprobs=1))

    def verdict(*gaps: float, request: Request = request) -> str:
        found = Completion(text="", token_ids=tuple(range(len(gaps))), finish_reason="stop", logprobs=logprobs(*gaps))
        return read_logprobs(request, found, vocab_size=100).verdict

    assert verdict(0, 0.05, 0) == "pass"
    assert verdict(0, 0.2) == "fail" and verdict(0, math.nan) == "fail"
    silent = Completion(text="", token_ids=(1,), finish_reason="stop")
    assert read_logprobs(request, silent, vocab_size=100).verdict == "not checkable"
    for other in (
        Request(prompt="x", sampling=SamplingParams(min_tokens=1)),
        Request(prompt="x", sampling=SamplingParams(presence_penalty=1.0)),
        Request(prompt="x", grammar=Grammar("regex", "a+")),
    ):
        assert verdict(0, 0, request=other) == "not checkable"
