"""Filters by hand-computed values; draws by exact probabilities, since a draw is a function of one uniform number."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.contracts import SamplingParams
from toolkit.errors import UsageError
from toolkit.sample.accept import dense
from toolkit.sample.draw import draw, generator
from toolkit.sample.filters import adjust, ban, distribution

# The distribution on which a burst-wise path and a joint path differ: top_k=4 and top_p=.82 keep token 3 only jointly.
MASSES = [0.35, 0.25, 0.20, 0.05, 0.03, 0.03, 0.03, 0.03, 0.03]
LOGITS = torch.tensor([math.log(p) for p in MASSES])


def kept(**params: float) -> list[int]:
    probs, ids = distribution(LOGITS, SamplingParams(temperature=1.0, **params))  # type: ignore[arg-type]
    assert math.isclose(float(probs.sum()), 1.0, rel_tol=1e-9)
    return sorted(ids.tolist())


def test_top_k_top_p_and_min_p_act_jointly_on_the_same_distribution() -> None:
    assert kept(top_k=4) == [0, 1, 2, 3]
    assert kept(top_p=0.82) == [0, 1, 2, 3]  # .80 is below .82, so the token that crosses it stays
    assert kept(top_p=0.80) == [0, 1, 2]
    assert kept(top_k=4, top_p=0.82) == [0, 1, 2, 3]
    assert kept(min_p=0.5) == [0, 1, 2]
    assert kept(min_p=0.15) == [0, 1, 2]
    assert kept(min_p=0.14) == [0, 1, 2, 3]
    assert kept(top_k=2, min_p=0.99) == [0]
    assert kept(top_p=1e-9) == [0]


def test_temperature_sharpens_before_the_cuts() -> None:
    probs, ids = distribution(LOGITS, SamplingParams(temperature=0.5))
    squares = [p * p for p in MASSES]
    for p, i in zip(probs.tolist(), ids.tolist(), strict=True):
        assert math.isclose(p, squares[i] / sum(squares), rel_tol=1e-5)


def test_penalties_see_every_token_and_the_inputs_stay_as_they_are() -> None:
    logits = torch.tensor([2.0, -2.0, 1.0, 0.5])
    before = logits.clone()
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5, logit_bias={3: 4.0})
    out = adjust(logits, params, prompt=[1], generated=[0, 0])
    assert out.tolist() == [2.0 / 2 - 0.25 - 2 * 0.5, -4.0, 1.0, 4.5]
    assert torch.equal(logits, before)
    assert torch.equal(ban(logits, [0, 2]), torch.tensor([-torch.inf, -2.0, -torch.inf, 0.5]))
    assert adjust(logits, SamplingParams(), [1], [2]) is logits


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.floats(0.3, 2.0))
@settings(max_examples=50, deadline=None)
def test_a_draw_inverts_the_cumulative_distribution(values: list[float], temperature: float) -> None:
    logits = torch.tensor(values)
    params = SamplingParams(temperature=temperature)
    probs, ids = distribution(logits, params)
    edges = probs.cumsum(0)
    for seed in range(5):
        uniform = float(torch.rand((), generator=generator(seed), dtype=torch.float64))
        place = sum(float(edge) <= uniform for edge in edges)
        assert draw(logits, params, generator(seed)) == int(ids[min(place, len(ids) - 1)])


CUTS = [
    {}, {"top_p": 0.3}, {"top_p": 0.95}, {"top_p": 0.9999999}, {"min_p": 0.05}, {"min_p": 1e-6}, {"top_p": 0.9, "min_p": 0.01},
    {"top_k": 40}, {"top_k": 2000, "top_p": 0.99}, {"top_k": 10**6},
]  # fmt: skip


def whole(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """`distribution`, all tokens put in order."""
    wide = logits.double()
    probs, ids = torch.softmax((wide - wide.max()) / params.temperature, -1).sort(descending=True)
    keep = (probs > 0) & (torch.arange(len(probs)) < (params.top_k or len(probs)))
    keep &= probs >= params.min_p * probs[0]
    if params.top_p < 1.0:  # sums of all may round to 1 before the last
        keep &= probs.cumsum(0) - probs < params.top_p
    keep[0] = True
    return probs[keep] / probs[keep].sum(), ids[keep]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("spread", [0.1, 2.0, 6.0])  # from nearly flat, where no small number of tokens will do, to peaked
def test_large_vocabularies_are_cut_and_drawn_from_as_if_all_tokens_were_put_in_order(
    cuts: dict[str, float], spread: float
) -> None:
    logits = spread * torch.randn(3000, generator=torch.Generator().manual_seed(3))
    logits[torch.arange(0, 3000, 7)] = -torch.inf  # what a grammar forbids
    for temperature in (0.3, 1.0, 2.0):
        params = SamplingParams(temperature=temperature, **cuts)  # type: ignore[arg-type]
        (probs, ids), (expected, wanted) = distribution(logits, params), whole(logits, params)
        assert torch.equal(ids, wanted) and torch.allclose(probs, expected, rtol=1e-12, atol=0)
        spread_out = torch.zeros(3000, dtype=torch.float64).index_copy_(0, wanted, expected)
        assert torch.allclose(dense(logits, params), spread_out, rtol=1e-12, atol=0)
        edges = expected.cumsum(0)
        for seed in range(200):
            uniform = torch.rand((), generator=generator(seed), dtype=torch.float64)
            place = min(int(torch.searchsorted(edges, uniform, right=True)), len(wanted) - 1)
            assert draw(logits, params, generator(seed)) == int(wanted[place])


def test_drawn_frequencies_match_the_distribution() -> None:
    """Pearson's chi-square over 20,000 draws from 9 tokens: false alarm below 1e-6 at 44 (8 degrees of freedom)."""
    params, random = SamplingParams(temperature=1.0), generator(7)
    n, counts = 20_000, [0] * len(MASSES)
    for _ in range(n):
        counts[draw(LOGITS, params, random)] += 1

    def statistic(masses: list[float]) -> float:
        return sum((c - n * p) ** 2 / (n * p) for c, p in zip(counts, masses, strict=True))

    assert statistic(MASSES) < 44
    assert statistic([0.33, 0.27, *MASSES[2:]]) > 44  # the negative control: two masses off by .02 are rejected


def test_greedy_takes_the_lowest_id_of_a_tie_and_no_random_number() -> None:
    random = generator(1)
    assert draw(torch.tensor([0.0, 3.0, 3.0]), SamplingParams(), random) == 1
    assert float(torch.rand((), generator=random)) == float(torch.rand((), generator=generator(1)))


def test_streams_of_seeds_and_samples_are_distinct() -> None:
    first = {float(torch.rand((), generator=generator(s, i), dtype=torch.float64)) for s in range(20) for i in range(20)}
    assert len(first) == 400


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0), ("temperature", float("nan")), ("top_p", 0.0), ("top_p", 1.5), ("top_k", -1), ("min_p", 2.0),
        ("max_tokens", 0), ("n", 0), ("seed", -3), ("stop", ("",)), ("stop", "text"), ("min_tokens", 999), ("logprobs", -1),
        ("repetition_penalty", 0.0), ("frequency_penalty", float("inf")),
    ],
)  # fmt: skip
def test_a_parameter_outside_its_range_is_refused_by_name_and_value(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]
