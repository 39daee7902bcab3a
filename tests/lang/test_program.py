"""Programs as files: found, loaded, run on an engine, checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sglang as sgl
from sglang.lang.global_config import global_config

from tests.lang.lang_scripted import ScriptedEngine
from toolkit.errors import InputError, UsageError
from toolkit.lang import load_program, run_program

ECHO = '''
"""Says it again."""
import sglang as sgl

SCHEMA = "word"

@sgl.function
def echo(s, text):
    s += text + sgl.gen("again", temperature=0)

def main(text: str = "hello", mark: str = "") -> dict:
    return {"value": echo.run(text=text)["again"] + mark}
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "programs").mkdir()
    (tmp_path / "schemas").mkdir()
    (tmp_path / "programs" / "echo.py").write_text(ECHO)
    (tmp_path / "schemas" / "word.schema.json").write_text(json.dumps({"type": "string", "maxLength": 5}))
    return tmp_path


def test_a_program_runs_by_name_with_its_defaults_or_arguments(root: Path) -> None:
    engine = ScriptedEngine(lambda text, request: text[:2])
    assert run_program("echo", engine=engine, root=root) == {"value": "he"}
    assert run_program("echo", ["abc", "!"], engine=engine, root=root) == {"value": "ab!"}
    assert not engine.closed


def test_a_program_runs_by_path(root: Path) -> None:
    assert run_program(root / "programs" / "echo.py", engine=ScriptedEngine()) == {"value": "ok"}


def test_the_default_backend_is_restored(root: Path) -> None:
    marker = object()
    before = global_config.default_backend
    sgl.set_default_backend(marker)
    try:
        with pytest.raises(InputError):
            run_program("echo", ["abc", "too long"], engine=ScriptedEngine(), root=root)
        assert global_config.default_backend is marker
    finally:
        sgl.set_default_backend(before)


def test_a_loaded_program_says_what_it_is(root: Path) -> None:
    program = load_program("echo", root)
    assert program.doc == "Says it again." and program.usage == "echo [TEXT] [MARK]" and program.schema["maxLength"] == 5


@pytest.mark.parametrize("name", ["missing", "../echo", "/etc/passwd", "", "echo.txt", "other.py"])
def test_an_unknown_program_is_refused_with_the_known_ones(root: Path, name: str) -> None:
    with pytest.raises(UsageError, match="known are echo"):
        load_program(name, root)


def test_arguments_that_do_not_fit_are_refused_with_the_usage(root: Path) -> None:
    with pytest.raises(UsageError, match=r"echo \[TEXT\] \[MARK\]"):
        run_program("echo", ["a", "b", "c"], engine=ScriptedEngine(), root=root)


BROKEN = {
    "no main": ("x = 1", UsageError, "has no main"),
    "required argument": ("def main(text): return {'value': text}", UsageError, "no default for text"),
    "no value": ("def main(): return {'answer': 1}", InputError, "not an object with a value"),
    "no json": ("def main(): return {'value': {1, 2}}", InputError, "no JSON"),
    "nan": ("def main(): return {'value': float('nan')}", InputError, "no JSON"),
    "schema": ("SCHEMA = 'word'\ndef main(): return {'value': 'abcdefgh'}", InputError, "does not satisfy its schema"),
    "unknown schema": ("SCHEMA = 'nowhere'\ndef main(): return {'value': 1}", UsageError, "nowhere"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_program_that_breaks_the_protocol_is_refused(root: Path, case: str) -> None:
    source, kind, message = BROKEN[case]
    (root / "programs" / "broken.py").write_text(source)
    with pytest.raises(kind, match=message):
        run_program("broken", engine=ScriptedEngine(), root=root)


def test_a_file_that_fails_while_it_loads_leaves_nothing_behind(root: Path) -> None:
    import sys

    (root / "programs" / "broken.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        load_program("broken", root)
    assert "toolkit_program_broken" not in sys.modules
