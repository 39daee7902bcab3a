"""Kills: one job on the tiny engine, begun again and killed (SIGKILL) until it has been killed so often, then left alone.

Run as a program: FOLDER RECORDS KILLS SEED. Everything is imported once; every life of the job is a fork, so that a kill costs little.
Kills come at random moments: after so many seconds, from the first instruction on, or as soon as so many lines are there.
Prints {"kills": n, "lives": n, "at": [records done when killed]}.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from toolkit.engine.embedded import EmbeddedEngine
from toolkit.jobs.prepare import preflight
from toolkit.jobs.run import prepare, run_job
from toolkit.jobs.spec import make_spec

SPEC: dict[str, Any] = {"schema": {"enum": ["yes", "no", "maybe"]}, "system": "", "width": 2, "max_tokens": 10}
EARLY_S = 0.25  # kills by the clock come in this time


def prepare_input(folder: Path, records: int) -> None:
    rows = [json.dumps({"id": f"r{index}", "text": f"text {index}"}) for index in range(records)]
    rows[7] = "not json"
    rows[records // 2] = json.dumps({"id": "long", "text": "x" * 20_000})  # longer than the tiny model's context
    (folder / "in.jsonl").write_text("\n".join(rows))


def warm(folder: Path) -> None:
    """Compile the grammar, which every life inherits: it would take most of a life's time."""
    engine = EmbeddedEngine(model="tiny", threads=1)
    preflight(prepare(folder / "in.jsonl", make_spec(SPEC)), engine)
    engine.close()


def life(folder: Path, name: str, *, retry: bool = False) -> None:
    """One process of the job, to its end."""
    engine = EmbeddedEngine(model="tiny", threads=1)
    try:
        job = prepare(folder / "in.jsonl", make_spec(SPEC))
        run_job(job, folder / name, engine, resume=True, retry_failed=retry, in_flight=4)
    finally:
        engine.close()


def fork(folder: Path, name: str, *, retry: bool = False) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        life(folder, name, retry=retry)
        code = 0
    finally:
        os._exit(code)


def written(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(child: int, path: Path, *, lines: int | None, seconds: float) -> bool:
    """Until so many lines are there, or the seconds have passed; False if it ended before."""
    until = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if (lines is not None and written(path) >= lines) or (lines is None and time.monotonic() > until):
            return True
        time.sleep(0.002)
    return False


def main(folder: Path, records: int, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    prepare_input(folder, records)
    warm(folder)
    out = folder / "killed"
    at: list[int] = []
    lives = 0
    while len(at) < kills and lives < 10 * kills:
        lives += 1
        retry = chance.random() < 0.2
        child = fork(folder, "killed", retry=retry)
        left = records - written(out)
        step = max(1, round(left / (kills - len(at)) * chance.uniform(0.2, 1.6)))
        by_clock = chance.random() < 0.4 or left < 3
        if wait_for(child, out, lines=None if by_clock else written(out) + step, seconds=chance.uniform(0, EARLY_S)):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            at.append(written(out))
    for name in ("killed", "whole"):
        assert os.waitpid(fork(folder, name), 0)[1] == 0
    print(json.dumps({"kills": len(at), "lives": lives, "at": at}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
