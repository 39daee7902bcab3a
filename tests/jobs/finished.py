"""A finished job to look at: real files of a real job, decoded by a scripted engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.jobs.scripted_job_engine import ScriptedEngine
from toolkit.errors import NoValidError
from toolkit.jobs.run import prepare, run_job
from toolkit.jobs.spec import make_spec

SCHEMA = {"type": "object"}
HOSTILE = "</script><script>window.hit=1</script><img src=x onerror=window.hit=2><!-- \u202egnp.exe\u202c \u200b\U000e0041 ]]>"


def finished(folder: Path, values: Mapping[str, Any], *, name: str = "out.jsonl", **spec: Any) -> Path:
    """OUT of a job whose texts are the keys and whose values are the values; None is a failure."""
    texts: Sequence[str] = list(values)
    source = folder / f"{name}.in.jsonl"
    source.write_text("".join(json.dumps({"id": f"r{index}", "text": text}) + "\n" for index, text in enumerate(texts)))

    def answer(text: str) -> Any:
        if text in values and values[text] is None:
            raise NoValidError(f"no value fits: {HOSTILE}", texts=(f"what came: {HOSTILE}",))
        return values.get(text, {})  # the job asks for "a" before its first record

    job = prepare(source, make_spec({"schema": SCHEMA, **spec}))
    run_job(job, folder / name, ScriptedEngine(answer), in_flight=2)
    return folder / name
