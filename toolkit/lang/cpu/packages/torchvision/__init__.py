"""torchvision as it is installed, next to a torch without CUDA.

PyPI's torchvision holds a C extension that is linked against CUDA. Where it does not load, its operators are not registered, and
torchvision dies at import in the two registrations of fake kernels that expect them. This package declares those two schemas,
then becomes the installed torchvision: same name, its files.
Knows nothing about: images. The two operators themselves are not there.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch

_HERE = Path(__file__).resolve().parent.parent
_OPERATORS = ("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
              "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # fmt: skip

_real: Any = PathFinder.find_spec("torchvision", [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE])
if _real is None or _real.loader is None:
    raise ModuleNotFoundError("torchvision is not installed: pip install --no-deps torchvision==0.28.0", name="torchvision")

_library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
for _schema in _OPERATORS:
    if not hasattr(torch.ops.torchvision, _schema.partition("(")[0]):
        _library.define(_schema)

__path__[:] = _real.submodule_search_locations or []
__spec__, __loader__, __file__ = _real, _real.loader, _real.origin
_real.loader.exec_module(sys.modules[__name__])
