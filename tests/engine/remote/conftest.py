"""A stub server and an engine on it; after every test no line of a beam search may be left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.remote.stub_server import Stub, listening
from toolkit.engine.remote.engine import SGLangEngine


@pytest.fixture
def stub() -> Iterator[Stub]:
    served = Stub()
    with listening(served):
        yield served


@pytest.fixture
def engine(stub: Stub) -> Iterator[SGLangEngine]:
    with SGLangEngine(stub.url, tokenizer=stub.tokenizer, timeout_s=20, patience_s=2) as opened:
        stub.bodies.clear()
        yield opened
        assert opened.kv_blocks_in_use == 0
        assert not opened._jobs and not any(lane.rounds.costs for lane in opened._lanes)
