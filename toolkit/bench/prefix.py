"""Prefix: how much sooner a long prompt is answered by a process that finds its keys and values in a folder.

In: a model, a length, repetitions.   Out: JSON (arms, ratios, verdict), a table.
Knows nothing about: how blocks are kept; every figure is that of a whole `toolkit generate` process.
Invariants: nothing is given unless every process wrote the same tokens and those that should have found the prompt did find it.
Method: per round one process without a folder, one with a new folder (it computes and writes), one with that folder (it reads), in
turns that rotate; a first round warms the page cache and does not count. ttft_s is from the request to its first token, after the
model was loaded; e2e_s is the whole process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from toolkit.bench.formats import documentation
from toolkit.bench.start import spread, started
from toolkit.errors import UsageError

ARMS = ("without", "first", "found")
FIGURES = ("ttft_s", "e2e_s")


def run(
    *, model: str = "smollm2", tokens: int = 2000, answer: int = 8, rounds: int = 5, console: Console | None = None
) -> dict[str, Any]:
    """EngineError where a process fails, UsageError where there is not so much text."""
    console = console or Console(stderr=True)
    found: list[dict[str, dict[str, Any]]] = []
    with TemporaryDirectory() as place:
        text = Path(place) / "prompt.txt"
        text.write_text(prompt(model, tokens), encoding="utf-8")
        command = ["generate", f"@{text}", "--raw", "--model", model, "--max-tokens", str(answer), "--json"]
        for turn in track(range(rounds + 1), "prompts", console=console, transient=True):
            kept = ["--prefix-cache", str(Path(place) / f"kept-{turn}")]
            order = ARMS if turn % 2 else (*ARMS[1:], ARMS[0])
            found.append({name: _told(started([*command, *(kept if name != ARMS[0] else [])])) for name in order})
    result = summary(found[1:]) | {"model": model, "tokens": found[0][ARMS[0]]["usage"]["input_tokens"], "rounds": rounds}
    _show(console, result)
    return result


def prompt(model: str, tokens: int) -> str:
    """The beginning of the standard library's docstrings, so many tokens of it."""
    from toolkit.model.store import resolve
    from toolkit.text.tokenizer import ByteTokenizer, load_tokenizer

    tokenizer = ByteTokenizer() if model == "tiny" else load_tokenizer(resolve(model))
    ids = tokenizer.encode(documentation())
    if len(ids) < tokens:
        raise UsageError(f"--tokens {tokens}: there are docstrings of {len(ids)} tokens only")
    return tokenizer.decode(ids[:tokens])


def summary(found: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Verdict first; figures only after a PASS."""
    reasons = []
    if len({tuple(one["token_ids"]) for each in found for one in each.values()}) > 1:
        reasons.append("processes wrote different tokens")
    if any(each["found"]["usage"]["restored_tokens"] < each["found"]["usage"]["input_tokens"] // 2 for each in found):
        reasons.append("a process did not find the prompt that an earlier one had written")
    if reasons:
        return {"bench": "prefix", "verdict": "HOLD", "reasons": reasons, "arms": [], "ratios": {}}
    seconds = {name: {key: [each[name]["timing"][key] for each in found] for key in FIGURES} for name in ARMS}
    arms = [{"name": name, **{key: spread(seconds[name][key]) for key in FIGURES}} for name in ARMS]
    ratios = {
        f"{name}_vs_without": {
            key: spread([a / b for a, b in zip(seconds[name][key], seconds[ARMS[0]][key], strict=True)]) for key in FIGURES
        }
        for name in ARMS[1:]
    }
    return {"bench": "prefix", "verdict": "PASS", "reasons": [], "arms": arms, "ratios": ratios}


def _told(process: dict[str, Any]) -> dict[str, Any]:
    """What a process printed as JSON, with the seconds of the process in place of the request's."""
    said: dict[str, Any] = json.loads(process["text"].splitlines()[-1])
    return said | {"timing": {"ttft_s": said["timing"]["ttft_s"], "e2e_s": process["e2e_s"]}}


def _show(console: Console, result: dict[str, Any]) -> None:
    table = Table("prefix folder", "first token after", "whole process", title=f"a prompt of {result['tokens']} tokens")
    for arm in result["arms"]:
        table.add_row(
            arm["name"], *(f"{arm[key]['median']:.3f} s ({arm[key]['q1']:.3f}-{arm[key]['q3']:.3f})" for key in FIGURES)
        )
    console.print(table)
    for name, each in result["ratios"].items():
        console.print(f"{name}: first token {each['ttft_s']['median']:.3f} x, process {each['e2e_s']['median']:.2f} x")
    for reason in result["reasons"]:
        console.print(f"HOLD: {reason}")
