"""A job on several servers: one dies in the middle and comes back, nothing is lost, and the values are those of one server."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from tests.engine.remote.stub_server import Stub, listening
from toolkit.engine.engine import open_engine
from toolkit.jobs.run import Job, prepare, run_job
from toolkit.jobs.spec import make_spec

RECORDS = 12


def job_of(folder: Path) -> Job:
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": f"Say {i}"}) + "\n" for i in range(RECORDS)))
    return prepare(
        folder / "in.jsonl", make_spec({"schema": {"enum": ["yes", "no"]}, "system": "", "width": 2, "max_tokens": 8})
    )


def values(path: Path) -> list[Any]:
    return [(line["index"], line["value"]) for line in map(json.loads, path.read_text().splitlines())]


def test_one_of_two_servers_dies_and_returns_while_a_job_runs(tmp_path: Path) -> None:
    left, right = Stub(), Stub()
    job = job_of(tmp_path)
    with listening(left) as dying, listening(right):
        port = dying.server_port
        with open_engine(right.url, tokenizer=right.tokenizer) as alone:  # type: ignore[attr-defined]
            run_job(job, tmp_path / "one", alone, in_flight=4)
        reborn = threading.Event()

        def kill_and_start_again(done: int, total: int | None, failed: int) -> None:
            if done == 3:
                dying.kill()
            if done == 7:
                reborn.set()

        with open_engine(f"{left.url},{right.url}", tokenizer=left.tokenizer, patience_s=20) as both:  # type: ignore[attr-defined]
            run = threading.Thread(
                target=lambda: run_job(job, tmp_path / "two", both, in_flight="auto", on_progress=kill_and_start_again)
            )
            run.start()
            assert reborn.wait(60)
            with listening(Stub(), port) as back:
                run.join(60)
                assert not run.is_alive()
                deadline = time.monotonic() + 10
                while both._fleet.up < 2 and time.monotonic() < deadline:
                    both.beam("Say 0", schema={"enum": ["yes", "no"]}, width=2)
                    time.sleep(0.05)
                assert both._fleet.up == 2 and back.stub.url
    assert values(tmp_path / "two") == values(tmp_path / "one") and len(values(tmp_path / "one")) == RECORDS
