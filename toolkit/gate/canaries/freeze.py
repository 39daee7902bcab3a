"""Freeze: writes the SHA-256 of every canary and of the corpus into lock.json. To be run by hand, after a change on purpose."""

from __future__ import annotations

import json

from toolkit.gate.canaries import CORPUS, FOLDER, LOCK, digest


def freeze() -> None:
    """Overwrite the lock."""
    files = [*sorted(FOLDER.glob("*.toml")), CORPUS]
    LOCK.write_text(json.dumps({file.name: digest(file) for file in files}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    freeze()
