"""Prompt sets: requests by kind of work, for measuring how well a drafter guesses. Their topics take no part in any training.

In: a file with one {"kind": ..., "text": ...} a line.   Out: texts by kind, kinds in the order of the file.
Knows nothing about: engines, what is measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import InputError, UsageError
from toolkit.schema import parse_json

SPECULATION = Path(__file__).parent / "prompts" / "speculation.jsonl"
SHA256 = "d1e7c70ec25ab5eb51fbffa5d9f1015da6730f332379de30c1f413b072e8cab3"  # of that file: figures are of these prompts
MOST_BYTES = 16 << 20


def load(path: Path | None = None, *, kinds: Sequence[str] = (), limit: int | None = None) -> dict[str, list[str]]:
    """Texts by kind: all kinds or those named, at most `limit` each. InputError names the line that is none of this form.

    Without a path the package's own, which must be the file that figures are told of: InputError where its SHA-256 is another.
    """
    if path is None and digest() != SHA256:
        raise InputError(
            f"{SPECULATION.name} is not the file that was frozen: its SHA-256 is another one",
            hint="install again, or name a file",
        )
    path = path or SPECULATION
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path} has more than {MOST_BYTES} bytes")
    found: dict[str, list[str]] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            kind, text = _row(line, f"{path}, line {number}")
            found.setdefault(kind, []).append(text)
    if unknown := [kind for kind in kinds if kind not in found]:
        raise UsageError(f"kind {unknown[0]!r} is unknown: {path.name} has {', '.join(found) or 'none'}")
    chosen = kinds or list(found)
    if not chosen:
        raise InputError(f"{path} holds no prompts")
    return {kind: found[kind][:limit] for kind in dict.fromkeys(chosen)}


def digest(path: Path | None = None) -> str:
    """SHA-256 of a file of prompts, by which two measurements are known to be of the same ones."""
    return hashlib.sha256((path or SPECULATION).read_bytes()).hexdigest()


def _row(line: bytes, where: str) -> tuple[str, str]:
    try:
        row = parse_json(line)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    kind, text = (row.get(name) for name in ("kind", "text")) if isinstance(row, dict) else (None, None)
    if not (isinstance(kind, str) and kind and isinstance(text, str) and text):
        raise InputError(f'{where} is not {{"kind": "...", "text": "..."}}: {line[:80]!r}')
    return kind, text
