"""Front end: loads SGLang's front end, and installs the hook that lets other programs load it.

Installing the hook is a step of the set-up without a GPU (see the Makefile). One function of SGLang is replaced once it is
loaded: `sglang.gen`, by itself with its arguments checked (`toolkit.lang.checks`); a program that took `gen` out of sglang before
keeps the unchecked one.
Knows nothing about: engines, programs.
"""

from __future__ import annotations

import sys
import sysconfig
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from toolkit.errors import MissingExtraError
from toolkit.lang import hook

COPY = "sgl_toolkit_sglang_hook"


def load_sglang() -> None:
    """Import sglang once; MissingExtraError where it, or what its front end needs, is not installed."""
    if "sglang" not in sys.modules:
        if find_spec("sglang") is None:
            raise MissingExtraError("sglang", "sglang")
        hook.install()
        try:
            import_module("sglang")
        except ModuleNotFoundError as error:
            raise MissingExtraError(f"{error.name} (which sglang imports)", "sglang") from error
    _check_gen(sys.modules["sglang"], import_module("sglang.lang.api"))


def _check_gen(package: Any, api: Any) -> None:
    """Put the checked `gen` where programs find SGLang's; a second call changes nothing."""
    from toolkit.lang.checks import checked

    if not hasattr(api.gen, "__wrapped__"):
        package.gen = api.gen = checked(api.gen)


def install_hook(folder: Path | None = None) -> None:
    """Copy the hook into a site-packages folder (None: this environment's), with the .pth line that runs it at start-up."""
    folder = folder or Path(sysconfig.get_paths()["purelib"])
    (folder / f"{COPY}.py").write_text(Path(hook.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    (folder / f"{COPY}.pth").write_text(f"import {COPY}; {COPY}.install()\n", encoding="utf-8")
