"""Published figures: those of the run that this project grew from do not add up, figures that are made to do."""

from __future__ import annotations

import pytest

from toolkit.errors import UsageError
from toolkit.gate.figures import Figures

# github.com/Blackwellboy/qwen38-27b-is-not-one-number, results/serving: patched stack, MTP3
PUBLISHED = Figures(output=1024, proposed=834, accepted=830, draft=3, ttft_s=0.9196, e2e_s=7.6889, decode_tok_s=151.27)


def test_the_published_campaign_is_flagged_in_its_counts_its_rate_and_its_acceptance() -> None:
    counts, rate, acceptance = PUBLISHED.complaints()
    assert "278 passes" in counts and "1109 tokens" in counts and "the output has 1024" in counts
    assert "151.12" in rate and "counts the first token" in rate
    assert "99.52%" in acceptance and "nobody looked" in acceptance


def test_figures_that_add_up_are_not_flagged() -> None:
    # 257 drafts of 3: 1 + 257 + 766 = 1024
    good = Figures(
        output=1024, proposed=771, accepted=766, draft=3, ttft_s=1.0, e2e_s=7.0, decode_tok_s=1023 / 6, repetition=0.1
    )
    assert good.complaints() == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"accepted": 772}, "772 drafts were accepted and 771 proposed"),
        ({"proposed": 772}, "no whole number"),
        ({"output": 1030}, "cover something else"),
        ({"output": 1019}, "cover something else"),
        ({"decode_tok_s": 180.0}, "neither way"),
        ({"e2e_s": 0.5}, "the first token came after"),
        ({"repetition": 0.9}, "90% of the text repeats itself"),
    ],
)
def test_each_way_of_not_adding_up_is_said(changed: dict[str, float], said: str) -> None:
    good = {
        "output": 1024,
        "proposed": 771,
        "accepted": 766,
        "draft": 3,
        "ttft_s": 1.0,
        "e2e_s": 7.0,
        "decode_tok_s": 170.5,
        "repetition": 0.1,
    }
    assert any(said in why for why in Figures(**{**good, **changed}).complaints())  # type: ignore[arg-type]


def test_counts_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="draft"):
        Figures(output=1, proposed=1, accepted=0, draft=0)
