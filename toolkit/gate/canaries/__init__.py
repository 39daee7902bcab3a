"""Canaries: small requests that broken speculation is known to garble. One file a canary: why it is there, what is asked, what must hold.

    why = "what broke, where, in public"
    tier = "quick" | "full"          together = how many of its requests run at a time (default 1)
    [[ask]]    user, system, follows (goes on with the conversation), filler + tokens + needle (a long text before the question),
               schema | regex | tools + format + parallel, sampling (fields of SamplingParams; letters, banned, end_bias become biases)
    [[check]]  kind (a row of toolkit.gate.checks.CHECKS) and what that takes

Out: Canary records, in the order of their names.
Invariants: every file is the one whose SHA-256 stands in lock.json, else nothing runs: a canary that was changed to pass is none.
Knows nothing about: engines, verdicts.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import InputError

FOLDER = Path(__file__).parent
LOCK = FOLDER / "lock.json"
CORPUS = FOLDER.parent / "corpus" / "requests.jsonl"
_KEYS = {"why", "tier", "together", "ask", "check"}
_ASK = {"user", "system", "follows", "filler", "tokens", "needle", "schema", "regex", "tools", "format", "parallel", "sampling"}


@dataclass(frozen=True, slots=True)
class Canary:
    """One file. `asks` and `checks` are its tables as they stand there."""

    name: str
    why: str
    tier: str
    together: int
    asks: tuple[Mapping[str, Any], ...]
    checks: tuple[Mapping[str, Any], ...]


def load(tier: str = "full", folder: Path = FOLDER) -> list[Canary]:
    """All canaries of a tier; those of "quick" are among those of "full". InputError for a file that is not the frozen one."""
    locked = json.loads((folder / LOCK.name).read_text(encoding="utf-8"))
    if (folder / LOCK.name) == LOCK and (name := _loose(CORPUS, locked)):
        raise InputError(name)
    files = sorted(folder.glob("*.toml"))
    if missing := sorted({name for name in locked if name.endswith(".toml")} - {file.name for file in files}):
        raise InputError(f"the canary {missing[0]} is locked and not there", hint="install the package again")
    found = []
    for file in files:
        if why := _loose(file, locked):
            raise InputError(why, hint="restore it, or after a change on purpose: python -m toolkit.gate.canaries.freeze")
        found.append(_canary(file))
    return [each for each in found if tier == "full" or each.tier == "quick"]


def digest(file: Path) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _loose(file: Path, locked: Mapping[str, str]) -> str:
    """Why a file is not the frozen one."""
    if file.name not in locked:
        return f"{file.name} is not frozen: it has no row in {LOCK.name}"
    return (
        "" if digest(file) == locked[file.name] else f"{file.name} is not the file that was frozen: its SHA-256 is another one"
    )


def _canary(file: Path) -> Canary:
    told = tomllib.loads(file.read_text(encoding="utf-8"))
    unknown = [*(told.keys() - _KEYS), *(key for ask in told["ask"] for key in ask.keys() - _ASK)]
    if unknown:
        raise InputError(f"{file.name} has the unknown key {unknown[0]!r}")
    return Canary(
        file.stem, told["why"], told.get("tier", "quick"), told.get("together", 1), tuple(told["ask"]), tuple(told.get("check", ()))
    )  # fmt: skip
