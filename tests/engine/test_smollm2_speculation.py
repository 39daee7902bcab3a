"""The real model: greedy speculation gives plain decoding's tokens with every drafter that it has, chain and tree, with and without
grammar, alone and four together. `toolkit bench equality` runs the same over 200 prompts x 256 tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console

from toolkit.bench import equality
from toolkit.contracts import Engine
from toolkit.draft.contract import DRAFTERS
from toolkit.engine.embedded import EmbeddedEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PROMPTS, TOKENS = 4, 48
SHAPES = {"chain": {"tokens": 4}, "tree": {"nodes": 12}}


@contextmanager
def opened(arm: str) -> Iterator[Engine]:
    name, shape = arm.split(":")
    with EmbeddedEngine("smollm2", format="int8", drafter=name, draft=SHAPES[shape], kv_blocks=512) as engine:
        yield engine
        assert engine.kv_blocks_in_use == 0
        engine._forward.pool.check()


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_texts_are_plain_decodings_token_for_token(name: str) -> None:
    """int8 sums are exact: nothing is excused."""
    arms = [f"{name}:{shape}" for shape in SHAPES]
    found = equality.run(arms, opened, prompts=PROMPTS, tokens=TOKENS, console=Console(quiet=True))
    assert (found["verdict"], found["reasons"]) == ("PASS", [])
    assert len(found["settings"]) == 8
    for each in found["settings"]:
        assert each["equal"] == PROMPTS
        assert each["accepted"] > 0
