"""A job over a null engine, which gives every record the same value at once: what is left is the job layer itself."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

from toolkit.bench.null_engine import SCHEMA, NullEngine
from toolkit.jobs.run import prepare, run_job
from toolkit.jobs.spec import make_spec
from toolkit.jobs.summary import Summary


def run(folder: str, *, resume: bool) -> Summary:
    """FOLDER/in.jsonl to FOLDER/out."""
    job = prepare(Path(folder) / "in.jsonl", make_spec({"schema": SCHEMA}))
    return run_job(job, Path(folder) / "out", NullEngine(), resume=resume)


if __name__ == "__main__":  # FOLDER: prints how many MiB the process grew by while it ran, and the seconds
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    done = run(sys.argv[1], resume=False).done
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(done, f"{grown:.1f}", f"{time.perf_counter() - began:.1f}")
