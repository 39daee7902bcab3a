"""Reading a checkpoint's JSON: what is no such file is refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolkit.errors import InputError
from toolkit.model.layout import read_json


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match="is no file"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize("data", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_object_of_json_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match="config"):
        read_json(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_json(tmp_path / "absent.json")
