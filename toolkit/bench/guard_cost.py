"""Guard cost: what it takes to look at every text while it is decoded, as a share of decode time.

In: an engine with a drafter.   Out: JSON (share, ratio, verdict), a line.
Method: few-shot prompts that a small model answers with JSON; each decoded watched and unwatched, in an order that alternates; the
first pair warms up. `share`: CPU seconds inside the guard over the decode time of the same text (end to end less time to first
token); `ratio`: decode time watched over unwatched. Medians with quartiles. Building the watcher counts, reading texts again does not.
Invariants: HOLD unless the median share is below LIMIT and both arms gave the same tokens.
Knows nothing about: what the guard does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import track

from toolkit.bench.plain import quartiles
from toolkit.contracts import Completion, Engine, Request, SamplingParams, Watch
from toolkit.engine.card import card, line
from toolkit.results import only_result

LIMIT = 0.02
SCHEMA = (
    '{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},"city":{"type":"string"},"likes":{"type":"array",'
    '"items":{"type":"string"}}},"required":["name","age","city","likes"]}'
)
_SHOTS = (
    'Text: Maria is 31 years old, lives in Rome and likes chess, tea and old trains.\nJSON: {"name":"Maria","age":31,"city":"Rome",'
    '"likes":["chess","tea","old trains"]}\n'
    'Text: Tom Smith, 12, from York, likes football and drawing.\nJSON: {"name":"Tom Smith","age":12,"city":"York",'
    '"likes":["football","drawing"]}\n'
)
_PEOPLE = (
    "Anna is 38 years old, lives in Oslo and likes rowing, salsa and black coffee.",
    "Old Peter Brown, 71, from Leeds, likes gardening, dogs and long walks by the sea.",
    "Yuki, 25 years old, lives in Osaka and likes ramen, climbing, jazz and cats.",
    "Carlos Ruiz is 44, comes from Lima and likes cooking, birds and science fiction.",
)


def run(engine: Engine, *, rounds: int = 3, tokens: int = 96, console: Console | None = None) -> dict[str, Any]:
    """Measure `rounds` times over the four prompts."""
    console = console or Console(stderr=True)
    rows: list[dict[str, Any]] = []
    work = [text for _ in range(rounds) for text in _PEOPLE]
    _pair(engine, work[0], 0, tokens)
    for index, text in enumerate(track(work, "guard cost", console=console, transient=True)):
        rows.append(_pair(engine, text, index, tokens))
    share, ratio = quartiles([row["share"] for row in rows]), quartiles([row["ratio"] for row in rows])
    reasons = [] if share[1] < LIMIT else [f"the guard takes {share[1]:.2%} of decode time, {LIMIT:.0%} are allowed"]
    if not all(row["equal"] for row in rows):
        reasons.append("watched and unwatched texts differ")
    result = {"verdict": "HOLD" if reasons else "PASS", "reasons": reasons, "share": share, "ratio": ratio,
              "speculated": sum(row["proposed"] for row in rows) > 0, "texts": len(rows), "card": card(engine)}  # fmt: skip
    for why in reasons:
        console.print(f"[red]HOLD[/red] {why}")
    console.print(
        f"guard: {share[1]:.2%} of decode time (quartiles {share[0]:.2%} to {share[2]:.2%}); "
        f"watched / unwatched {ratio[1]:.3f} ({ratio[0]:.3f} to {ratio[2]:.3f})"
    )
    console.print(line(result["card"]))
    return result


def _pair(engine: Engine, text: str, index: int, tokens: int) -> dict[str, Any]:
    request = Request(prompt=f"{_SHOTS}Text: {text}\nJSON:", sampling=SamplingParams(max_tokens=tokens, stop=("\n",)))
    arms = {"watched": replace(request, watch=Watch(kind="json", schema=SCHEMA)), "bare": request}
    names = list(arms) if index % 2 else list(arms)[::-1]
    found: dict[str, Completion] = {}
    for name in names:
        result = only_result(engine.generate([arms[name]]))
        assert isinstance(result, Completion)
        found[name] = result
    watched, bare = found["watched"], found["bare"]
    decode = {name: each.timing.e2e_s - each.timing.ttft_s for name, each in found.items()}
    return {
        "share": watched.usage.guard_s / decode["watched"],
        "ratio": decode["watched"] / decode["bare"],
        "equal": watched.token_ids == bare.token_ids,
        "proposed": watched.usage.proposed,
    }
