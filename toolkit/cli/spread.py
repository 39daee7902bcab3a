"""Options of a job that other machines decode: --ray ADDRESS, and who works there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.kinds import TEXT
from toolkit.cli.options import EMBEDDED_OPTIONS, F
from toolkit.cli.remote import taken
from toolkit.engine.engine import is_url
from toolkit.errors import UsageError

if TYPE_CHECKING:
    from toolkit.jobs.prepare import Job
    from toolkit.jobs.ray_run import RayPool

PATHS = ("model", "tokenizer", "verify")  # what may be a file or folder of here


def ray_options(function: F) -> F:
    """--ray and --ray-actors."""
    actors = click.option(
        "--ray-actors", type=click.IntRange(1, 10_000), help="Engines on the cluster.  [default: one a node of it]"
    )
    where = click.option(
        "--ray",
        type=TEXT,
        metavar="ADDRESS",
        help="Decode on a Ray cluster: local, auto or host:port. Each actor opens --engine, an embedded one with --threads (1).",
    )
    return where(actors(function))


def ray_pool(options: dict[str, Any], job: Job) -> RayPool | None:
    """Who decodes `job` in place of this process, None without --ray; the two options are taken out, those of the engine stay."""
    address, actors = options.pop("ray"), options.pop("ray_actors")
    if address is None:
        if actors is not None:
            raise UsageError("--ray-actors goes with --ray", hint="--ray local, auto or host:port")
        return None
    from toolkit.jobs.ray_run import RayPool

    pool = RayPool(address, options["engine"], _engine_options(options), actors)
    pool.check(job)
    return pool


def _engine_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What `open_engine` gets on every node: a file or folder of here goes by its whole path."""
    served = is_url(options["engine"])
    found = (
        taken(dict(options)) if served else {name: options[name] for name in EMBEDDED_OPTIONS if options.get(name) is not None}
    )
    for name in PATHS:
        if isinstance(found.get(name), str) and Path(found[name]).exists():
            found[name] = str(Path(found[name]).resolve())
    return found
