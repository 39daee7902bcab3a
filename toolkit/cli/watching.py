"""Watching: options that say what a text has to be although no grammar makes it so, and what is tried where it is not.

In: the options of a command.   Out: a Watch, policies, options of the engine; the options are taken out.
Knows nothing about: what a command does with them.
"""

from __future__ import annotations

import json
from typing import Any

import click

from toolkit.cli.kinds import TEXT
from toolkit.cli.validate import tools_in
from toolkit.contracts import Engine, Request, Watch
from toolkit.engine.engine import is_url
from toolkit.engine.watch import Checks
from toolkit.errors import UsageError
from toolkit.jobs.named import named_compile, named_schema

_TURN = {"tool_format": "--tool-format", "tool_choice": "--tool-choice", "parallel": "--parallel", "reasoning": "--reasoning"}
_OPTIONS = (
    click.option("--watch-json", is_flag=True, help="The text has to be JSON; it is read while it comes, no mask makes it so."),
    click.option("--watch-schema", type=TEXT, help="The same, of this JSON Schema: a path, or a name of schemas/."),
    click.option("--watch-code", type=click.Choice(["python", "json"]), help="Its first fenced block has to be that and parse."),
    click.option("--watch-tools", type=TEXT, help="JSON file of tools: calls in the text have to be calls of these."),
    click.option("--tool-format", type=TEXT, help="How the model writes calls: hermes, llama3, ...  [default: hermes]"),
    click.option("--tool-choice", type=TEXT, help="auto, required, none, or the tool that must be called.  [default: auto]"),
    click.option("--parallel", type=click.IntRange(1), help="The most calls.  [default: 64]"),
    click.option(
        "--reasoning", type=click.Choice(["tags", "open", "off"]), help="open: the template opened <think>.  [default: tags]"
    ),
    click.option(
        "--policy", "policies", type=click.Choice(["plain", "constrained", "ask"]), multiple=True,
        help="What to try where the text is not valid, in order; repeatable.",
    ),
    click.option("--audit", type=click.FloatRange(0, 1), help="Share of speculated texts that the target reads again.  [default: 0]"),
    click.option("--fallback", type=TEXT, help="URL of a server without speculation, for what was found to be wrong."),
)  # fmt: skip


def guard_options(command: Any) -> Any:
    """Add them to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def watch_of(options: dict[str, Any]) -> Watch | None:
    """What the text has to be, None where nothing was said."""
    given = {name: options.pop(f"watch_{name}") for name in ("json", "schema", "code", "tools")}
    turn = {name: options.pop(name) for name in _TURN}
    named = [f"--watch-{name}" for name, value in given.items() if value]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} exclude each other: a text is one thing")
    extra = next((_TURN[name] for name, value in turn.items() if value is not None and not given["tools"]), None)
    if extra is not None:
        raise UsageError(f"{extra} goes with --watch-tools")
    if given["schema"]:
        return Watch(kind="json", schema=named_schema(given["schema"])[1].source)
    if given["code"]:
        return Watch(kind="code", language=given["code"])
    if given["tools"]:
        names = {"tool_format": "format", "tool_choice": "choice"}
        asked = {names.get(name, name): value for name, value in turn.items() if value is not None}
        watch = Watch(kind="tools", tools=json.dumps(tools_in(given["tools"])), **{"format": "hermes", **asked})
        with named_compile(f"tools {given['tools']}"):
            Checks.of(Request(prompt="", watch=watch))  # refuses here what would be refused once the model is there
        return watch
    return Watch(kind="json") if given["json"] else None


def policies_of(options: dict[str, Any], *, judged: bool, n: int) -> tuple[Any, ...]:
    """The policies; UsageError where there is nothing to judge by, or more than one sample."""
    policies: tuple[Any, ...] = options.pop("policies")
    if policies and not judged:
        raise UsageError("--policy says nothing without a watch or a grammar", hint="--watch-schema S")
    if policies and n != 1:
        raise UsageError(f"--policy takes one sample, not --n {n}")
    if len(set(policies)) < len(policies):
        raise UsageError("--policy: each at most once")
    return policies


def overseen(options: dict[str, Any]) -> dict[str, Any]:
    """Options of the engine that say how it is held to its speculation."""
    audit, fallback = options.pop("audit"), options.pop("fallback")
    plain = options["engine"] == "embedded" and options["drafter"] in (None, "none")
    if audit and plain:
        raise UsageError("--audit says nothing without a drafter: there are no speculated texts", hint="--drafter ngram")
    if fallback and not is_url(options["engine"]):
        raise UsageError("--fallback is an option of a server (--engine URL)", hint="leave it out")
    if fallback and not is_url(fallback):
        raise UsageError(f"--fallback {fallback!r} is not the URL of a server")
    return {name: value for name, value in (("audit", audit), ("fallback", fallback)) if value is not None}


def require_speculation(engine: Engine, asked: dict[str, Any]) -> None:
    """UsageError where an engine, which is a server, has no speculation to be held to; `asked` is what `overseen` gave."""
    if any(asked.values()) and engine.capabilities.drafters == ("none",):
        raise UsageError(
            f"{' and '.join(f'--{name}' for name, value in asked.items() if value)}: the server does not speculate, there is nothing to oversee",
            hint="leave it out",
        )
