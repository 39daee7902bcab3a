"""triton for machines on which no kernel of it can run: kernels can be declared, a launch says so by name.

The real package imports without a GPU too, but is 1 GB that is never used. SGLang and torch declare kernels at import, with
decorators and names out of `triton` and its submodules; whatever name they ask for, here is something that takes its place.
Knows nothing about: what the kernels compute. Where SGLang has another way on a CPU it is in `sgl_kernel`.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

__version__ = "3.7.0"


class Kernel:
    """A declared kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__name__ = getattr(function, "__name__", "?")
        self.__doc__ = function.__doc__
        self.fn = function

    def __getitem__(self, grid: Any) -> Callable[..., NoReturn]:
        return self.run

    def run(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"triton kernel {self.__name__} has no CPU stand-in")

    __call__ = warmup = run


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Declare a kernel: as `@jit` or as `@jit(...)`."""
    return Kernel(function) if function is not None else Kernel


def autotune(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """A decorator that changes nothing; so is `heuristics`."""
    return lambda kernel: kernel


heuristics = autotune


def cdiv(dividend: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-dividend // divisor)


def next_power_of_2(number: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


class _Name(ModuleType):
    """Stands for any name: a module with further names in it, a decorator, an annotation."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return _named(self, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        alone = len(arguments) == 1 and not options and callable(arguments[0])
        return arguments[0] if alone else lambda function: function

    def __getitem__(self, item: Any) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)


def _named(parent: ModuleType, name: str) -> Any:
    """An attribute of the package: a class where it is written like one (code derives from it, catches it), else a `_Name`."""
    if name.startswith("__"):
        raise AttributeError(name)
    full = f"{parent.__name__}.{name}"
    if full not in sys.modules and name[0].isupper():
        base = Exception if name.endswith("Error") or name == "OutOfResources" else _Anything
        found: Any = type(name, (base,), {"__module__": parent.__name__})
    else:
        found = sys.modules.setdefault(full, _Name(full))
    setattr(parent, name, found)
    return found


class _Anything:
    def __init__(self, *_: Any, **__: Any) -> None:
        """Takes whatever a class of triton's takes."""


class _Finder(MetaPathFinder, Loader):
    """Imports of submodules: triton.language, triton.runtime.driver, ..."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith("triton.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Name(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


class _Constexpr:
    def __init__(self, value: Any = None) -> None:
        self.value = value


def __getattr__(name: str) -> Any:
    return _named(sys.modules[__name__], name)


sys.meta_path.insert(0, _Finder())
_named(sys.modules[__name__], "language").constexpr = _Constexpr  # the one class of a small name that SGLang makes objects of
