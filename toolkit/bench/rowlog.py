"""RowLog: a JSONL file of outcomes, so that an interrupted measurement goes on where it stopped.

In: a path and a key (everything that must be the same for rows to belong together).   Out: outcomes written before.
Knows nothing about: what the rows say.
Raises UsageError for a path where no file can be. Invariants: the first line is the key; a line counts only with its newline, so a torn last line is measured again.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from toolkit.bench.arms import Outcome
from toolkit.errors import InputError, UsageError


class RowLog:
    """`rows` maps (item id, setting name) to its outcome; `add` appends durably. Single writer."""

    def __init__(self, path: Path, key: dict[str, Any], *, resume: bool) -> None:
        self.path = path
        self.rows: dict[tuple[str, str], Outcome] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if resume and path.exists():
                self._take_over(key)
            else:
                self._write([json.dumps(key, ensure_ascii=False)], "wb")
        except OSError as error:
            raise UsageError(f"rows cannot be kept in {path}: {error}", hint="name a folder with --out") from error

    def add(self, outcomes: Iterable[Outcome]) -> None:
        outcomes = list(outcomes)
        self._write([json.dumps(dataclasses.asdict(outcome), ensure_ascii=False) for outcome in outcomes], "ab")
        self.rows |= {(outcome.id, outcome.setting): outcome for outcome in outcomes}

    def _write(self, lines: list[str], mode: str) -> None:
        with self.path.open(mode) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def _take_over(self, key: dict[str, Any]) -> None:
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        head, *lines = whole.decode("utf-8", "replace").split("\n")[:-1] or [""]
        if self._parse(head, 1) != json.loads(json.dumps(key)):
            raise UsageError(
                f"{self.path} holds rows of another measurement (model, records, settings or machine differ)",
                hint="measure without --resume to start over, or name another --out",
            )
        for number, line in enumerate(lines, 2):
            try:
                row = self._parse(line, number)
                outcome = Outcome(**{**row, "token_ids": tuple(row["token_ids"])})
            except (TypeError, KeyError) as error:
                raise InputError(f"{self.path}:{number} is not a row of this tool: {error}") from error
            self.rows[outcome.id, outcome.setting] = outcome
        os.truncate(self.path, len(whole))

    def _parse(self, line: str, number: int) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{self.path}:{number} is not JSON: {error}", hint="measure without --resume to start over"
            ) from error
