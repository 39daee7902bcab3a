"""The real model: guesses of the n-gram drafter come true about as often as it says, which is what their rows are weighed by.

`pytest -s tests/engine/test_ngram_chances.py` prints the table.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from toolkit.bench import promptsets
from toolkit.contracts import Completion, Done, Request, SamplingParams
from toolkit.draft.contract import Budget, Commit
from toolkit.draft.ngram import NgramDrafter
from toolkit.engine.embedded import EmbeddedEngine

pytestmark = pytest.mark.slow

KINDS = ("chat", "code", "extraction", "copying", "languages")
PROMPTS, TOKENS = 6, 128
ENOUGH = 60  # guesses of a tenth


def outcomes(prompt: list[int], output: list[int]) -> list[tuple[float, bool]]:
    """(chance, whether it came true) of the likeliest first guess at every place of an output that has one."""
    drafter = NgramDrafter(min_match=3)
    drafter.observe(Commit(tuple(prompt)))
    found: list[tuple[float, bool]] = []
    for token, following in itertools.pairwise(output):
        drafter.observe(Commit((token,)))
        told: list[float] = []
        tree = drafter.propose(Budget(0, 0, SamplingParams(), 1, lambda chances, told=told: told.extend(chances) or 1))  # type: ignore[misc,func-returns-value]
        if len(tree):
            found.append((told[0], tree.tokens[0] == following))
    return found


def test_guesses_come_true_about_as_often_as_they_say() -> None:
    seen: dict[str, Counter[int]] = {kind: Counter() for kind in ("all", *KINDS)}
    right: dict[str, Counter[int]] = {kind: Counter() for kind in seen}
    with EmbeddedEngine("smollm2", kv_blocks=2048) as engine:
        for kind, texts in promptsets.load(kinds=KINDS, limit=PROMPTS).items():
            chats = {f"{i}": [{"role": "user", "content": text}] for i, text in enumerate(texts)}
            requests = [Request(prompt=chat, id=i, sampling=SamplingParams(max_tokens=TOKENS)) for i, chat in chats.items()]
            for event in engine.generate(requests):
                if isinstance(event, Done) and isinstance(event.result, Completion):
                    for chance, is_right in outcomes(engine.tokenizer.chat(chats[event.request_id]), [*event.result.token_ids]):
                        for name in ("all", kind):
                            seen[name][int(10 * chance)] += 1
                            right[name][int(10 * chance)] += is_right
    for name, counts in seen.items():
        print(name, {each / 10: f"{right[name][each] / counts[each]:.2f} of {counts[each]}" for each in sorted(counts)})
    tenths = [each for each in seen["all"] if seen["all"][each] >= ENOUGH and each >= 6]
    assert {6, 7, 8, 9} <= {*tenths}
    for each in tenths:
        assert abs(right["all"][each] / seen["all"][each] - (each + 0.5) / 10) <= 0.12, each
