"""The hook that lets a program import sglang before toolkit, in interpreters of their own."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from toolkit.lang.frontend import COPY, install_hook

pytestmark = pytest.mark.skipif(find_spec("triton") is not None, reason="triton is here: sglang imports by itself")


def python(code: str, *, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    start = f"import site; site.addsitedir({str(site)!r}); " if site else ""
    drop = f"import sys; sys.meta_path[:] = [f for f in sys.meta_path if f.__module__ != {COPY!r}]; "
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", drop + start + code], capture_output=True, text=True, timeout=120
    )


def test_without_the_hook_sglang_does_not_import_on_a_machine_without_triton() -> None:
    done = python("import sglang")
    assert done.returncode != 0 and "ModuleNotFoundError" in done.stderr


def test_with_the_hook_it_does_and_leaves_no_stand_in_and_no_torch(tmp_path: Path) -> None:
    install_hook(tmp_path)
    code = "import sglang, sys; print(sglang.gen.__name__, 'torch' in sys.modules, [m for m in sys.modules if 'hf_transformers' in m])"
    done = python(code, site=tmp_path)
    assert done.stdout.strip() == "gen False []", done.stderr


def test_the_hook_is_there_once_however_often_it_is_installed(tmp_path: Path) -> None:
    install_hook(tmp_path)
    count = "sum(getattr(each, '__qualname__', '') == 'FrontEndFinder' for each in sys.meta_path)"
    code = f"import sys, toolkit.lang; from toolkit.lang import hook; hook.install(); print({count})"
    assert python(code, site=tmp_path).stdout.strip() == "1"
