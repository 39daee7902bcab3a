"""Program: a file of `programs/`, loaded by name or path and run on an engine.

The protocol of `programs/<name>.py`, whole:

    '''What it does; the first line is its title.'''
    SCHEMA = "order"                       optional: schemas/order.schema.json describes result["value"]
    @sgl.function
    def extract(s, text): ...              one or more SGLang functions
    def main(text: str = TEXT) -> dict:    arguments are strings, every one with a default; returns {"value": ..., ...}

`toolkit run NAME [ARGS]` calls `main(*ARGS)` with the engine's backend set as SGLang's default.

A program is code and runs as such: load only files that you would run.
Knows nothing about: the command line, what a program asks of the model.
Invariants: the default backend is what it was before, whatever happened; a value that its schema refuses is an error.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import sglang as sgl
from sglang.lang.global_config import global_config

from toolkit.contracts import Engine, Json
from toolkit.errors import InputError, UsageError
from toolkit.grammar.types import grammar_of
from toolkit.lang.backend import EmbeddedBackend
from toolkit.schema import load_schema
from toolkit.validate.check import Validator

FOLDER = "programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A loaded program. `schema` is the checked schema of its value, None where it names none."""

    name: str
    path: Path
    doc: str
    main: Callable[..., Json]
    schema: Json | None = None

    @property
    def usage(self) -> str:
        """`name [PARAMETER] ...`"""
        return " ".join([self.name, *(f"[{name.upper()}]" for name in inspect.signature(self.main).parameters)])


def list_programs(root: Path | None = None) -> list[str]:
    """Names of the programs under `root` (the current folder)."""
    return sorted(path.stem for path in _folder(root).glob("*.py") if not path.name.startswith("_"))


def load_program(name: str | Path, root: Path | None = None) -> Program:
    """The program `programs/<name>.py` under `root` (the current folder), or the file at that path.

    Raises UsageError where there is none or it does not keep to the protocol; errors of the file itself pass through.
    """
    path = _locate(str(name), root)
    module = _execute(path)
    main = getattr(module, "main", None)
    if not callable(main):
        raise UsageError(f"program {path} has no main()", hint="def main(text: str = TEXT) -> dict: return {'value': ...}")
    required = [p.name for p in inspect.signature(main).parameters.values() if p.default is p.empty]
    if required:
        raise UsageError(f"main() of program {path} has no default for {', '.join(required)}: every argument needs one")
    return Program(name=path.stem, path=path, doc=inspect.getdoc(module) or "", main=main, schema=_schema(module, path))


def run_program(name: str | Path, args: Sequence[str] = (), *, engine: Engine | None = None, root: Path | None = None) -> Json:
    """What `main(*args)` of the program returns: a JSON object with `value`, checked against the program's schema.

    `engine` None starts the embedded engine with its default model and closes it afterwards.
    Raises UsageError for a program or arguments that do not fit, InputError for a value that its schema refuses.
    """
    program = load_program(name, root)
    try:
        inspect.signature(program.main).bind(*args)
    except TypeError as error:
        raise UsageError(f"arguments {list(args)!r} do not fit program {program.name}: {error}", hint=program.usage) from None
    with _default_backend(engine):
        returned = program.main(*args)
    _check(program, returned)
    return returned


def _folder(root: Path | None) -> Path:
    return (root or Path.cwd()) / FOLDER


def _locate(name: str, root: Path | None) -> Path:
    """A bare name is looked up in the folder; what ends in .py is a path."""
    path = Path(name) if name.endswith(".py") else _folder(root) / f"{name}.py"
    if not (name.endswith(".py") or re.fullmatch(r"\w+", name)) or not path.is_file():
        known = ", ".join(list_programs(root)) or "none"
        raise UsageError(f"program {name!r} is neither a file nor a name in {_folder(root)}: known are {known}")
    return path.resolve()


def _execute(path: Path) -> ModuleType:
    """Run the file as a module of its own name space; the module stays findable, as dataclasses and pydantic need."""
    spec = importlib.util.spec_from_file_location(f"toolkit_program_{path.stem}", path)
    assert spec is not None  # a path that ends in .py always has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _schema(module: ModuleType, path: Path) -> Json | None:
    name = getattr(module, "SCHEMA", None)
    return None if name is None else load_schema(name, path.parent.parent)


@contextmanager
def _default_backend(engine: Engine | None) -> Iterator[None]:
    before = global_config.default_backend
    backend = EmbeddedBackend(engine)
    sgl.set_default_backend(backend)
    try:
        yield
    finally:
        sgl.set_default_backend(before)
        backend.shutdown()


def _check(program: Program, returned: Json) -> None:
    if not isinstance(returned, dict) or "value" not in returned:
        raise InputError(f"program {program.name} returned {returned!r:.200}, not an object with a value")
    try:
        json.dumps(returned, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"program {program.name} returned what is no JSON: {error}") from None
    if program.schema is None:
        return
    report = Validator(grammar_of(program.schema, kind="json_schema")).check(json.dumps(returned["value"], ensure_ascii=False))
    if not report.valid:
        reasons = "; ".join(f"{each.path or 'the value'}: {each.message}" for each in report.violations)
        raise InputError(f"the value of program {program.name} does not satisfy its schema: {reasons}")
