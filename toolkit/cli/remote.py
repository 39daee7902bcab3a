"""Options of an engine that is a running server: `--engine URL`, or several URLs with commas between them.

Knows nothing about: commands. Options of the one kind of engine are refused for the other: none is accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from toolkit.cli.kinds import TEXT, place
from toolkit.errors import UsageError

KEY = "SGLANG_API_KEY"
REMOTE_OPTIONS = (
    click.option("--tokenizer", type=TEXT, help="Model folder or stored model of a server whose own path cannot be read here."),
    click.option(
        "--api-key", type=TEXT, envvar=KEY, show_envvar=True, help="The server's key; others can read it on a command line."
    ),
    click.option("--certificates", type=place(exists=True, folders=False), help="Trusted ones, for a server's own TLS."),
    click.option("--insecure", is_flag=True, help="Accept any certificate of a server."),
    click.option("--timeout", "timeout_s", type=click.FloatRange(0.001), help="Longest wait for a reply, seconds.  [default: 600]"),
    click.option(
        "--patience", "patience_s", type=click.FloatRange(0.001),
        help="Longest wait for a server that died to come back, seconds.  [default: 120]",
    ),
)  # fmt: skip
NAMES = ("tokenizer", "api_key", "certificates", "insecure", "timeout_s", "patience_s")


def taken(options: dict[str, Any]) -> dict[str, Any]:
    """What the options of a server say, in the engine's own names; they are taken out of `options`."""
    given = {name: options.pop(name, None) for name in NAMES}
    certificates, insecure = given.pop("certificates"), given.pop("insecure")
    if certificates and insecure:
        raise UsageError("--certificates and --insecure exclude each other")
    verify = {"verify": False} if insecure else {"verify": str(certificates)} if certificates else {}
    return {**{name: value for name, value in given.items() if value is not None}, **verify}


def refuse_others(names: Mapping[str, object], *, remote: bool) -> None:
    """UsageError for an option that was typed and belongs to the other kind of engine."""
    context = click.get_current_context(silent=True)
    kind = "an engine in this process" if remote else "a server (--engine URL)"
    for name in names:
        source = context.get_parameter_source(name) if context is not None else None
        if source is click.core.ParameterSource.COMMANDLINE:
            option = next((each.opts[0] for each in context.command.params if each.name == name), name)  # type: ignore[union-attr]
            raise UsageError(f"{option} is an option of {kind}", hint="leave it out")
