"""Passes: reports of the gate kept by the identity of their pair, so that speed is printed only for what has passed as it is now.

    <cache>/sgl-toolkit/gate/<hash>.json       the hash covers both identities, versions and machine among them, and the canaries

In: a report; two identities.   Out: the kept PASS, or None.
Knows nothing about: engines, how speed is measured.
Invariants: only a PASS is kept; a file that is damaged, or whose content is not of its name, is no PASS.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from toolkit.errors import EngineError
from toolkit.gate.identity import key
from toolkit.gate.report import Report
from toolkit.model.store import models_folder

_MOST_BYTES = 4 << 20


def passes_folder() -> Path:
    """Where they are kept, beside the models."""
    return models_folder().parent / "gate"


def keep(report: Report) -> Path | None:
    """Keep a PASS; None for anything else. A PASS of the same pair is replaced, unless that was of the full tier and this one is not.

    Raises EngineError where the folder cannot be written.
    """
    if report.verdict != "PASS":
        return None
    file = passes_folder() / f"{report.identity['hash']}.json"
    before = found(report.identity["hash"])
    if before is not None and before["tier"] == "full" and report.tier == "quick":
        return file
    part = file.with_suffix(f".{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(report.to_json(), default=str), encoding="utf-8")
        part.replace(file)
    except OSError as error:
        raise EngineError(f"the PASS cannot be kept: {file}: {error.strerror or error}", hint="set TOOLKIT_CACHE") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return file


def found(name: str) -> dict[str, Any] | None:
    """The kept PASS of that hash: {verdict, tier, seed, identity, ...}."""
    file = passes_folder() / f"{name}.json"
    try:
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return None
        told = json.loads(file.read_text(encoding="utf-8"))
        good = (
            told["verdict"] == "PASS"
            and not told["reasons"]
            and name == told["identity"]["hash"] == key(told["identity"]["baseline"], told["identity"]["candidate"])
            and told["tier"] in ("quick", "full")
        )
        return dict(told) if good else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
