"""Front end: loads SGLang's front end, and installs the hook that lets other programs load it.

Installing the hook is a step of the set-up without a GPU (see the Makefile).
Knows nothing about: engines, programs.
"""

from __future__ import annotations

import sys
import sysconfig
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from toolkit.errors import MissingExtraError
from toolkit.lang import hook

COPY = "sgl_toolkit_sglang_hook"


def load_sglang() -> None:
    """Import sglang once; MissingExtraError where it, or what its front end needs, is not installed."""
    if "sglang" in sys.modules:
        return
    if find_spec("sglang") is None:
        raise MissingExtraError("sglang", "sglang")
    hook.install()
    try:
        import_module("sglang")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{error.name} (which sglang imports)", "sglang") from error


def install_hook(folder: Path | None = None) -> None:
    """Copy the hook into a site-packages folder (None: this environment's), with the .pth line that runs it at start-up."""
    folder = folder or Path(sysconfig.get_paths()["purelib"])
    (folder / f"{COPY}.py").write_text(Path(hook.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    (folder / f"{COPY}.pth").write_text(f"import {COPY}; {COPY}.install()\n", encoding="utf-8")
