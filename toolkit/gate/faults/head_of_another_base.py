"""Fault: the drafter is that of another model."""

from __future__ import annotations

from toolkit.draft.model import ModelSource
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.model.tiny import tiny_model

NAME = "head of another base"
WHY = "a head bound to other weights changes no output and costs every pass: position 0 accepted 2.4 % or 0 % (vllm#55605; vllm-ascend#16980)"
CATCH = "greedy texts"
ARM = "model"


def break_(engine: EmbeddedEngine) -> None:
    source = engine._source
    assert isinstance(source, ModelSource), "this fault needs a drafter that is a model"
    source.cache.decoder = tiny_model(7).first(source.cache.decoder.config.layers)
