"""One plain SGLang server for the whole session, over the converted SmolLM2 in float32, with the CPU stand-ins where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.asking import PATIENCE
from toolkit.lang.serve import Server, serve


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that starts servers may wait for them longer than other tests may take."""
    for item in items:
        if item.get_closest_marker("server") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(2 * PATIENCE))


@pytest.fixture(scope="session")
def sglang_server() -> Iterator[Server]:
    """The server: `.url`, `.model` (the folder it serves; the embedded engine takes it as `model=`), `.pid`, `.pids()`, `.log()`.

    Starts with the first test that asks for it and stops with the session; it is shared, so tests must leave it as it is: no flush of
    its cache, no out-of-range ids, nothing that ends it. Mark every such test `@pytest.mark.server`.
    """
    with serve("smollm2", device="auto", flags=("--random-seed", "1"), deadline=PATIENCE) as server:
        yield server


@pytest.fixture(scope="session")
def server_url(sglang_server: Server) -> str:
    """http://host:port of the shared server."""
    return sglang_server.url
