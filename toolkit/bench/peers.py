"""Peers: wall time of beam search over constrained greedy, and of both over transformers `generate`, in one run.

In: an engine, a folder with the same weights.   Out: JSON (arms, ratios with quartiles, per-record times, verdict, card), a table.
Knows nothing about: how either side decodes.
Invariants: no ratio is given, and the verdict is HOLD, unless every value of the engine is valid and greedy token ids are
equal on both sides for every record; where the engine computes in int8 they may part at a near-tie, and such records are counted. Beam answers may differ (the stopping rules do): whose is likelier is counted.
Method: per record all four arms, one request at a time, in an order that rotates from record to record; one record warms up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import track

from toolkit.bench import bfcl, peers_report
from toolkit.bench.arms import grammar, without_end
from toolkit.bench.task import Item
from toolkit.bench.transformers_peer import TransformersPeer
from toolkit.contracts import (
    BeamParams,
    Engine,
    Grammar,
    Request,
    SamplingParams,
    require,
)
from toolkit.engine.admission import prompt_ids
from toolkit.engine.card import card
from toolkit.errors import UsageError
from toolkit.results import only_result

NEAR_TIE = 0.25  # nats between two tokens that int8 may order otherwise; the report counts every use of it


class Peer(Protocol):
    """The other side: token ids for a prompt under a grammar, greedy for width 1."""

    def decode(self, prompt: Sequence[int], grammar: Grammar, width: int, alpha: float, max_tokens: int) -> tuple[int, ...]: ...


def run(
    engine: Engine, *, model_folder: Path, data: Path | None = None, limit: int | None = 20, width: int = 4,
    alpha: float = 1.0, max_tokens: int = 128, console: Console | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Compare on the first `limit` BFCL records. Raises InputError for a folder that holds no model."""
    task = bfcl.load(data, max_tokens=max_tokens)
    peer = TransformersPeer(model_folder, engine.tokenizer)
    return compare(
        engine,
        peer,
        task.first(limit),
        width=width,
        alpha=alpha,
        max_tokens=max_tokens,
        console=console or Console(stderr=True),
    )


def compare(
    engine: Engine, peer: Peer, items: Sequence[Item], *, width: int, alpha: float, max_tokens: int, console: Console
) -> dict[str, Any]:
    """The measurement itself, for any peer."""
    require(isinstance(width, int) and width >= 2, "width", width, "an integer >= 2 (greedy is measured anyway)")
    if not items:
        raise UsageError("there is no record to compare on")
    beam = BeamParams(width=width, alpha=alpha, max_tokens=max_tokens)
    found = []
    _record(engine, peer, items[0], beam, 0)
    for index, item in enumerate(track(items, "peers", console=console, transient=True)):
        found.append(_record(engine, peer, item, beam, index))
    exact = getattr(engine, "format", "float32") == "float32"
    result = peers_report.summarise(found, width, alpha, tie=0.0 if exact else NEAR_TIE) | {"card": card(engine)}
    peers_report.show(console, result)
    return result


def _record(engine: Engine, peer: Peer, item: Item, beam: BeamParams, index: int) -> dict[str, Any]:
    ids = prompt_ids(item.prompt, engine.tokenizer)  # for both sides: how a prompt becomes tokens is not compared here
    rules = grammar(item)
    sampling = SamplingParams(max_tokens=beam.max_tokens)
    arms: dict[str, Callable[[], Any]] = {
        "greedy": lambda: only_result(engine.generate([Request(prompt=ids, id=item.id, grammar=rules, sampling=sampling)])),
        "beam": lambda: only_result(engine.generate([Request(prompt=ids, id=item.id, grammar=rules, beam=beam)])),
        "transformers_greedy": lambda: peer.decode(ids, rules, 1, beam.alpha, beam.max_tokens),
        "transformers_beam": lambda: peer.decode(ids, rules, beam.width, beam.alpha, beam.max_tokens),
    }
    names = list(arms)
    results, seconds = {}, {}
    for place in range(len(names)):
        name = names[(place + index) % len(names)]
        start = time.perf_counter()
        results[name] = arms[name]()
        seconds[name] = time.perf_counter() - start
    return {"id": item.id, "seconds": seconds} | _check(engine, ids, rules, results)


def _check(engine: Engine, ids: Sequence[int], rules: Grammar, results: dict[str, Any]) -> dict[str, Any]:
    from toolkit.validate.check import Validator

    greedy, beam = results["greedy"], results["beam"]
    eos = engine.tokenizer.eos_ids
    ours, theirs = without_end(greedy.token_ids, eos), without_end(results["transformers_greedy"], eos)
    best = next(h for h in beam.alternatives if h.valid)
    other = results["transformers_beam"]
    mine, its = engine.score(ids, [best.token_ids, other])
    return {
        "greedy_equal": ours == theirs,
        "greedy_gap": gap(engine, ids, ours, theirs),
        "valid": Validator(rules).check(beam.text).valid
        and (greedy.finish_reason == "length" or Validator(rules).check(greedy.text).valid),
        "beam_equal": without_end(best.token_ids, eos) == without_end(other, eos),
        "beam_score": normalised(mine),
        "transformers_beam_score": normalised(its),
        "input_tokens": len(ids),
        "cached_tokens": greedy.usage.cached_tokens,
        "tokens": {"greedy": len(greedy.token_ids), "beam": len(best.token_ids), "transformers_beam": len(other)},
        "passes": {"greedy": greedy.usage.passes, "beam": beam.usage.passes},
    }


def gap(engine: Engine, ids: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> float:
    """Nats between the two tokens at the first place where greedy texts part, by the engine's own scores; 0 where they do not."""
    end = engine.tokenizer.eos_ids[0]
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    if at == len(ours) == len(theirs):
        return 0.0
    rivals = [[tokens[at] if at < len(tokens) else end] for tokens in (ours, theirs)]
    (mine,), (other,) = engine.score([*ids, *ours[:at]], rivals)
    return abs(mine - other)


def normalised(logprobs: Sequence[float]) -> float:
    return sum(logprobs) / max(1, len(logprobs))
