"""After every test each KV block of every engine that is open and has nothing to do must be free again, whoever opened it."""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("no times", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy
settings.load_profile("no times")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Two workers (`pytest -n 2 --dist loadgroup`) take one test at a time: the longest first, so that none is alone with it at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: 0 if item.get_closest_marker("server") else 1 if item.get_closest_marker("slow") else 2)


@pytest.fixture(scope="session", autouse=True)
def engines() -> Iterator[WeakSet[Any]]:
    """Every embedded engine that a test or a fixture opens."""
    from toolkit.engine.embedded import EmbeddedEngine

    opened: WeakSet[Any] = WeakSet()
    start = EmbeddedEngine.__init__

    @functools.wraps(start)  # with its signature, by which options are checked
    def watched(self: EmbeddedEngine, *args: Any, **options: Any) -> None:
        start(self, *args, **options)
        opened.add(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddedEngine, "__init__", watched)
        yield opened


@pytest.fixture(scope="session", autouse=True)
def no_drafter_is_slow_because_the_machine_is_busy() -> Iterator[None]:
    """What a drafter may take before it is switched off is time: tests about that say how much (`tests/engine/test_hostile_drafts.py`)."""
    from toolkit.engine import stride

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stride, "PATIENCE", 60.0)
        yield


@pytest.fixture(autouse=True)
def every_block_is_free_after_the_test(engines: WeakSet[Any]) -> Iterator[None]:
    yield
    for engine in list(engines):
        worker = engine._worker
        if worker._ended is None and worker._scheduler.idle and worker._inbox.empty():
            assert engine.kv_blocks_in_use == 0


@pytest.fixture
def shell_signals() -> Iterator[None]:
    """Signals as a shell gives them to a program: under nohup, or in a script's background, two of them are ignored by who inherits."""
    given = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in given.items():
        signal.signal(number, handler)
