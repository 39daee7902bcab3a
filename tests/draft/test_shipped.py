"""The heads that come with the package: small enough, whole, and those of the default model."""

from __future__ import annotations

import pytest

from toolkit.contracts import Done, Request, SamplingParams
from toolkit.draft.card import HEADS, WEIGHTS, find_head, read_card
from toolkit.draft.tensors import shapes_in
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.model.fingerprint import fingerprint
from toolkit.model.store import resolve

KINDS = ("medusa", "mtp")
PROMPT = [{"role": "user", "content": "Explain how a lighthouse works."}]


def test_both_kinds_are_there_and_together_below_fourteen_megabytes() -> None:
    folders = sorted(path.parent for path in HEADS.glob("*/card.json"))
    assert sorted(read_card(folder).kind for folder in folders) == list(KINDS)
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) < 14_000_000
    assert all(shapes_in(folder / WEIGHTS) for folder in folders)


def test_their_cards_tell_data_training_and_acceptance() -> None:
    for path in HEADS.glob("*/card.json"):
        card = read_card(path.parent)
        assert card.data["tokens"] > 500_000 and card.training["batches"] > 100 and card.acceptance["held_out_drafts"] > 1000
        assert card.acceptance["chain"] == sorted(card.acceptance["chain"], reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_they_belong_to_the_default_model_and_change_no_token(kind: str) -> None:
    mark = fingerprint(resolve("smollm2"))
    assert find_head(kind, "", "smollm2", mark).parent == HEADS
    request = Request(prompt=PROMPT, sampling=SamplingParams(max_tokens=48))
    results = []
    for drafter in ("none", kind):
        draft = None if drafter == "none" else {"nodes": 8, "tokens": 4}
        with EmbeddedEngine("smollm2", drafter=drafter, draft=draft) as engine:
            results += [event.result for event in engine.generate([request]) if isinstance(event, Done)]
    plain, drafted = results
    assert plain.token_ids == drafted.token_ids  # type: ignore[union-attr]
    assert drafted.usage.accepted > 5 and drafted.usage.passes < plain.usage.passes
