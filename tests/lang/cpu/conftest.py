"""`sgl_kernel` as the server process finds it. It is put on the path for its import only: triton and torchvision stay what they are here."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from toolkit.lang.launch import PACKAGES


@pytest.fixture(scope="session")
def kernels() -> ModuleType:
    sys.path.insert(0, str(PACKAGES))
    try:
        import sgl_kernel
        import sgl_kernel.speculative
    finally:
        sys.path.remove(str(PACKAGES))
    return sgl_kernel
