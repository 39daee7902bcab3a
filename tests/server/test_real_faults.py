"""Faults of a real server: a wrong key, a full queue, a hang, a death in mid-request, another model on the same address.

Every one is a typed error or a recovery, and no record is lost. The servers are this file's own: they are killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.server.asking import PATIENCE
from toolkit.contracts import BeamParams, Done, Failed, Grammar, Request, SamplingParams
from toolkit.engine.remote.engine import SGLangEngine
from toolkit.errors import EngineError, UsageError
from toolkit.lang.launch import free_port
from toolkit.lang.serve import Server, serve

pytestmark = pytest.mark.server

KEY = "sk-of-this-test"
WORDS = Grammar("regex", "(red|green|blue|white|black)( and (red|green|blue|white|black)){3}")
FLAGS = ("--random-seed", "1", "--api-key", KEY, "--max-running-requests", "4", "--max-queued-requests", "4")


@contextmanager
def started(model: str, port: int) -> Iterator[Server]:
    with serve(model, port=port, flags=FLAGS, deadline=PATIENCE) as server:
        yield server


def kill(server: Server) -> None:
    for pid in server.pids():
        os.kill(pid, signal.SIGKILL)


def beams(count: int) -> list[Request]:
    return [Request(prompt=f"Colours of flag {i}:", id=str(i), grammar=WORDS, beam=BeamParams(width=2)) for i in range(count)]


def values(events: Any) -> dict[str, Any]:
    return {event.request_id: event.result.value for event in events if isinstance(event, Done)}


def two_layers(folder: Path, target: Path) -> Path:
    """The model without all but two of its layers: the same tokenizer and shapes, another model."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    (target / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}), encoding="utf-8")
    kept = {
        name: tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < 2
    }
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    return target


def texts(count: int) -> list[Request]:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    return [Request(prompt=f"Once upon a time {i}", id=str(i), sampling=params) for i in range(count)]


def assert_a_hang_is_an_error_and_passes(server: Server) -> None:
    """All processes stand still for longer than the engine waits."""
    with SGLangEngine(server.url, api_key=KEY, timeout_s=3, patience_s=3) as engine:
        for pid in server.pids():
            os.kill(pid, signal.SIGSTOP)
        try:
            (event,) = engine.generate(beams(1))
        finally:
            for pid in server.pids():
                os.kill(pid, signal.SIGCONT)
        assert isinstance(event, Failed) and isinstance(event.error, EngineError)
        assert "did not answer within 3 s" in event.error.message
    with SGLangEngine(server.url, api_key=KEY) as engine:
        assert len(values(engine.generate(beams(1)))) == 1


def test_a_real_server_that_refuses_hangs_dies_returns_and_changes_its_model_loses_no_record(
    sglang_server: Server, tmp_path: Path
) -> None:
    """One story, because a server takes half a minute to start."""
    model, port = sglang_server.model, free_port()
    other = two_layers(Path(model), tmp_path / "other")
    with ExitStack() as engines:
        with started(model, port) as server:
            for key in (None, "sk-wrong"):
                with pytest.raises(UsageError, match="API key"):
                    SGLangEngine(server.url, api_key=key)
            engine = engines.enter_context(SGLangEngine(server.url, api_key=KEY, patience_s=PATIENCE))
            sound = values(engine.generate(beams(6)))
            assert len(sound) == 6
            crowd = [event for event in engine.generate(texts(16)) if isinstance(event, Done | Failed)]
            assert [event for event in crowd if isinstance(event, Failed)] == [] and len(crowd) == 16  # the queue takes four
            assert_a_hang_is_an_error_and_passes(server)
            found: dict[str, Any] = {}
            worker = Thread(target=lambda: found.update((event.request_id, event) for event in engine.generate(beams(6))))
            worker.start()
            time.sleep(0.3)  # a step takes some ten milliseconds: it is in the middle
            kill(server)
        with started(model, port):
            worker.join(PATIENCE)
            assert values(found.values()) == sound
        with started(str(other), port):
            (event,) = engine.generate(beams(1))
            assert isinstance(event, Failed) and "another model" in event.error.message
