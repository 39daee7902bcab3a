"""Front end: makes `import sglang` work wherever the front end's own few dependencies are.

SGLang's package init imports `sglang.srt.utils` (torch, triton, the server's imports) for one thing: patches of
transformers, which the front end never uses. Where triton is absent - any machine set up for the CPU - that import fails,
so the patch module is stood in for while SGLang loads, and taken out again: `sglang.lang` then loads in a third of a second,
without torch. Where triton is present, nothing is touched.

Knows nothing about: engines, programs.
Source: sglang 0.5.23, `sglang/__init__.py` (read and tried).
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from toolkit.errors import MissingExtraError

PATCHES = "sglang.srt.utils.hf_transformers_patches"


def _no_patches() -> ModuleType:
    module = ModuleType(PATCHES)
    module.apply_all = lambda: None  # type: ignore[attr-defined]
    return module


def load_sglang() -> None:
    """Import sglang once; MissingExtraError where it, or what its front end needs, is not installed."""
    if "sglang" in sys.modules:
        return
    if find_spec("sglang") is None:
        raise MissingExtraError("sglang", "sglang")
    stand_in = _no_patches() if find_spec("triton") is None else None
    if stand_in is not None:
        sys.modules[PATCHES] = stand_in
    try:
        import_module("sglang")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{error.name} (which sglang imports)", "sglang") from error
    finally:
        if stand_in is not None and sys.modules.get(PATCHES) is stand_in:
            del sys.modules[PATCHES]
