"""Progress: a bar on a terminal, few plain lines elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from toolkit.jobs import progress as module
from toolkit.jobs.progress import progress


def shown(*, terminal: bool, steps: int = 5) -> str:
    file = io.StringIO()
    with progress(Console(file=file, force_terminal=terminal, width=120)) as show:
        for done in range(steps + 1):
            show(done, steps, done // 5)
    return file.getvalue()


def test_without_a_terminal_only_the_end_is_told_of_a_short_job() -> None:
    assert shown(terminal=False) == "5/5 records, 1 failed\n"


def test_without_a_terminal_a_long_job_tells_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN_EVERY_S", 0.0)
    lines = shown(terminal=False).splitlines()
    assert len(lines) == 6
    assert lines[1].startswith("1/5 records, 0 failed, about ") and lines[1].endswith(" s left")


def test_a_terminal_gets_a_bar_that_ends_full() -> None:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(terminal=True))
    assert "5/5 1 failed" in plain
