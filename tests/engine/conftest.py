"""One tiny engine, in torch as its twins are, for all engine tests; after every test each of its KV blocks must be free again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toolkit.engine.embedded import EmbeddedEngine


@pytest.fixture(scope="session")
def shared_tiny() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("tiny", format="float32", kv_blocks=512, block_size=4) as engine:
        yield engine


@pytest.fixture
def tiny(shared_tiny: EmbeddedEngine) -> Iterator[EmbeddedEngine]:
    yield shared_tiny
    assert shared_tiny.kv_blocks_in_use == 0
    shared_tiny._forward.pool.check()
