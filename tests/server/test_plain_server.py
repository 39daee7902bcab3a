"""The shared plain server: it serves what the store resolves, and greedy decoding there is greedy decoding here."""

from __future__ import annotations

from pathlib import Path

import pytest

import toolkit
from tests.server.asking import generate
from toolkit.lang.serve import Server

pytestmark = pytest.mark.server

PROMPTS = ("The capital of France is", "def fibonacci(n):\n", "1, 2, 3, 4,")


def test_the_server_runs_the_models_folder_in_processes_of_its_own(sglang_server: Server) -> None:
    assert (Path(sglang_server.model) / "config.json").is_file()
    assert len(sglang_server.pids()) >= 3 and sglang_server.pids()[0] == sglang_server.pid
    sglang_server.wait(0.0)  # it has not ended


def test_greedy_ids_of_the_server_are_those_of_the_embedded_engine_in_float32(sglang_server: Server) -> None:
    engine = toolkit.open_engine("embedded", model=sglang_server.model, format="float32")
    try:
        expected = [list(engine.complete(prompt, max_tokens=24, ignore_eos=True).token_ids) for prompt in PROMPTS]
    finally:
        engine.close()
    alone = [generate(sglang_server.url, [prompt], max_new_tokens=24)[0]["output_ids"] for prompt in PROMPTS]
    together = [reply["output_ids"] for reply in generate(sglang_server.url, PROMPTS, max_new_tokens=24)]
    assert alone == expected and together == expected
