"""Hook: lets `import sglang` work on a machine without triton, whoever imports it first.

SGLang's package init imports `sglang.srt.utils` (torch, triton, the server's imports) for one thing: patches of
transformers, which the front end never uses. Where triton is absent that import fails, so while SGLang's init runs an empty
module stands in for the patches, and is taken out again afterwards: the front end then loads in a third of a second,
without torch. Where triton is present nothing is touched.

This file stands alone: `toolkit.lang.frontend.install_hook` copies it into site-packages, where a .pth file installs it at
start-up, so that programs may import sglang before toolkit.
Source: sglang 0.5.23, `sglang/__init__.py` (read and tried).
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

TYPE_CHECKING = False  # every start of Python runs this file: typing is not worth its milliseconds
if TYPE_CHECKING:
    from typing import Any

PATCHES = "sglang.srt.utils.hf_transformers_patches"


class FrontEndFinder:
    """A meta-path finder for the one name `sglang`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "sglang" or PATCHES in sys.modules or find_spec("triton") is not None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            _stand_in_while(spec.loader)
        return spec


def _stand_in_while(loader: Any) -> None:
    """Wrap `loader.exec_module`: the patches are an empty module while it runs."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        stand_in = sys.modules[PATCHES] = ModuleType(PATCHES)
        stand_in.apply_all = lambda: None  # type: ignore[attr-defined]
        try:
            execute(module)
        finally:
            if sys.modules.get(PATCHES) is stand_in:
                del sys.modules[PATCHES]

    loader.exec_module = exec_module


def install() -> None:
    """Put the finder first; a second call changes nothing."""
    if not any(getattr(each, "__qualname__", "") == "FrontEndFinder" for each in sys.meta_path):
        sys.meta_path.insert(0, FrontEndFinder)
