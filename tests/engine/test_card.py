"""The card names machine and versions, and nothing private."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.bench_scripted import ScriptedEngine
from toolkit.engine.card import card, line


def test_the_card_can_be_published() -> None:
    found = card(ScriptedEngine(lambda request: []))
    assert found["cpu"] and found["cores"] >= 1 and found["fingerprint"] == "f" * 64
    assert "numpy" in found["versions"]
    assert str(Path.home()) not in json.dumps(found)
    assert "script" in line(found) and found["cpu"] in line(found)
