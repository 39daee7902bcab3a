"""bench server on a stub: what is counted, and that no seconds are given without the agreement that they stand on."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.engine.remote.stub_server import Stub, listening
from toolkit.bench import server
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.remote.engine import SGLangEngine
from toolkit.errors import UnsupportedError


def records(path: Path) -> Path:
    function = {
        "name": "f",
        "description": "F.",
        "parameters": {"type": "dict", "properties": {"on": {"type": "boolean", "description": "D."}}, "required": ["on"]},
    }
    rows = [{"id": f"r{i}", "question": f"Q{i}?", "function": function, "answers": [{"f": {"on": [True]}}]} for i in range(2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def stub() -> Any:
    served = Stub(info={"max_req_input_len": 3000})
    with listening(served):
        yield served


def measured(stub: Stub, tmp_path: Path, max_tokens: int = 14) -> tuple[dict[str, Any], str]:
    console = Console(file=io.StringIO(), width=160)
    with SGLangEngine(stub.url, tokenizer=stub.tokenizer) as engine:
        found = server.run(engine, data=records(tmp_path / "r.jsonl"), limit=1, width=2, max_tokens=max_tokens, console=console)
    return found, console.file.getvalue()  # type: ignore[attr-defined]


def test_without_the_embedded_engines_word_seconds_are_withheld(stub: Stub, tmp_path: Path) -> None:
    found, text = measured(stub, tmp_path)
    assert found["verdict"] == "HOLD" and "cannot be read" in found["reasons"][0]
    assert "withheld" in text and "seconds" not in found["arms"][0]
    assert not [name for name in found["steps"] if name.endswith("_ms")]


def test_where_no_search_found_anything_there_is_no_share_to_show(stub: Stub, tmp_path: Path) -> None:
    found, text = measured(stub, tmp_path, max_tokens=2)
    assert {arm["name"]: arm["valid"] for arm in found["arms"]}["our beam"] == 0
    assert found["steps"]["cached_share_after_first"] is None and "cached" not in text


def test_agreement_opens_the_figures(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.info["model_path"] = str(tmp_path)
    monkeypatch.setattr(server, "open_engine", lambda *_, **__: EmbeddedEngine("tiny", format="float32"))
    found, text = measured(stub, tmp_path)
    assert (found["verdict"], found["agreement"]["same"]) == ("PASS", 1)
    valid = {arm["name"]: arm["valid"] for arm in found["arms"]}
    assert valid == {"plain greedy": 0, "server beam": 0, "our beam": 1}  # a random model writes no JSON unless it must
    assert found["steps"]["requests"] == found["steps"]["passes"]
    assert found["steps"]["client_ms"] > 0 and 0.9 < found["steps"]["cached_share_after_first"] <= 1.0
    assert "PASS" in text and "our beam" in text


def test_another_answer_than_the_embedded_engines_withholds_them(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.info["model_path"] = str(tmp_path)
    monkeypatch.setattr(server, "open_engine", lambda *_, **__: EmbeddedEngine("tiny", format="float32"))
    monkeypatch.setattr(server, "SAME_SCORE", -1.0)
    found, _ = measured(stub, tmp_path)
    assert found["verdict"] == "HOLD" and "scores differ" in found["reasons"][0]


def test_an_engine_that_is_no_server_is_refused(tmp_path: Path) -> None:
    with EmbeddedEngine("tiny") as engine, pytest.raises(UnsupportedError, match="--engine URL"):
        server.run(engine, data=records(tmp_path / "r.jsonl"))
