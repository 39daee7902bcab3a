"""Manifest: what a job was and what came of it, for people and programs that find its output.

OUT.manifest.json, one JSON object:
    format, state (running | complete | stopped | failed), reason
    input {path, sha256, records}, output {path, lines, errors}, job_file {path, sha256} | null
    schema_sha256, prompt_sha256, engine {name, model, fingerprint, options}, versions {package: version}
    counts {records, done, valid, failed, failures, needs_review}
    timing {started, ended, elapsed_s, runs}, usage {...}; these two of all runs together, but for what a kill took of the last seconds

In: the terms of a job, its summary.   Out: the file, replaced whole, every few seconds and at the end.
Knows nothing about: records. Nothing reads it to go on: a damaged one costs the times of earlier runs, and that is said.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from toolkit.contracts import Json
from toolkit.errors import EngineError, InputError
from toolkit.jobs.places import manifest_path
from toolkit.schema import parse_json

FORMAT = 1
EVERY_S = 5.0
PACKAGES = ("sgl-toolkit", "torch", "sglang", "llguidance", "jsonschema", "tokenizers", "pyarrow")
MAX_BYTES = 4 << 20


def now() -> str:
    """This moment, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def digest(value: Json) -> str:
    """sha256 of a JSON value in one spelling."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Python and the packages that decide what comes out, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


class Manifest:
    """The manifest of one run over what earlier runs left. `facts` are the fields that do not change."""

    def __init__(self, out: Path, facts: Mapping[str, Json], *, on_note: Callable[[str], None]) -> None:
        self._path = manifest_path(out)
        self._facts = facts
        before = _before(self._path, on_note)
        timing = before.get("timing", {})
        self._started = str(timing.get("started", now()))
        self._elapsed_s = float(timing.get("elapsed_s", 0.0))
        self._runs = int(timing.get("runs", 0)) + 1
        self._usage = Counter({str(name): count for name, count in before.get("usage", {}).items() if isinstance(count, int)})
        self._written_at = float("-inf")

    def write(
        self, counts: Mapping[str, Json], usage: Mapping[str, int], elapsed_s: float, state: str, reason: str = ""
    ) -> None:
        """Replace the file; EngineError where it cannot be."""
        total = self._usage + Counter(usage)
        timing = {"started": self._started, "ended": now(), "elapsed_s": self._elapsed_s + elapsed_s, "runs": self._runs}
        whole = {
            "format": FORMAT, "state": state, "reason": reason, **self._facts,
            "counts": counts, "timing": timing, "usage": dict(total),
        }  # fmt: skip
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            fresh.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
            os.replace(fresh, self._path)  # noqa: PTH105 - one call for both names
        except OSError as error:
            with suppress(OSError):
                fresh.unlink()
            raise EngineError(f"output {self._path} cannot be written: {error.strerror}", hint="--resume goes on") from None
        self._written_at = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time to write it again."""
        return time.monotonic() - self._written_at > EVERY_S


def _before(path: Path, on_note: Callable[[str], None]) -> dict[str, Json]:
    """The fields that an earlier run wrote, {} where there are none."""
    if not path.exists():
        return {}
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"it has {path.stat().st_size} bytes")
        found = parse_json(path.read_bytes())
        if not (isinstance(found, dict) and isinstance(found["timing"], dict) and isinstance(found["usage"], dict)):
            raise InputError("it is no manifest")
        float(found["timing"]["elapsed_s"]), int(found["timing"]["runs"])
    except (InputError, KeyError, TypeError, ValueError) as error:
        on_note(f"{path}: the times of earlier runs are lost: {error}")
        return {}
    return found
