"""Fault: two requests of one pass get each other's logits."""

from __future__ import annotations

from collections.abc import Sequence as Many
from itertools import pairwise

from torch import Tensor

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.forward import Feed

NAME = "rows of two requests swapped"
WHY = "offsets of a batch are computed for drafts of one length: texts are right alone and another user's together (vllm#48228: garbage from concurrency 8)"
CATCH = "greedy texts"


def break_(engine: EmbeddedEngine) -> None:
    run = engine._forward._run

    def swapped(feeds: Many[Feed]) -> list[Tensor]:
        found = run(feeds)
        drafted = [place for place, feed in enumerate(feeds) if len(feed.tree)]
        for one, two in pairwise(drafted):
            if found[one].shape == found[two].shape:
                found[one], found[two] = found[two], found[one]
                break
        return found

    engine._forward._run = swapped  # type: ignore[method-assign]
