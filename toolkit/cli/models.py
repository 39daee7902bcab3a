"""Command model: converted models and their fingerprints."""

from __future__ import annotations

import click

from toolkit.cli.options import json_option
from toolkit.cli.output import emit


@click.group(short_help="Converted models and their fingerprints.")
def model() -> None:
    """Models in the cache folder: TOOLKIT_CACHE, else XDG_CACHE_HOME, else ~/.cache."""
