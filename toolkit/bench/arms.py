"""Arms: the settings that are compared, and what came out of one request under one of them.

In: items of a task and an engine.   Out: one Outcome an item, checked by the validator - the engine's word is not taken for it.
Knows nothing about: data sets, files, statistics.
Invariants: every item of a chunk gets exactly one outcome; an answer that was cut off or refused is an outcome with `error`.
Units: seconds of wall time; `seconds` is the chunk's time divided by its items, because they are decoded together.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.bench.task import Item, Task
from toolkit.contracts import (
    BeamParams,
    BeamResult,
    Completion,
    Done,
    Engine,
    Failed,
    Grammar,
    Prompt,
    Request,
    SamplingParams,
)
from toolkit.errors import EngineError, NoValidError, ToolkitError, UsageError


@dataclass(frozen=True, slots=True)
class Setting:
    """How an item is decoded: width 0 is plain constrained greedy, else a beam ranked by sum / length**alpha."""

    name: str
    width: int = 0
    alpha: float = 0.0

    def request(self, item: Item, max_tokens: int) -> Request:
        rules = grammar(item)
        if not self.width:
            return Request(prompt=item.prompt, id=item.id, grammar=rules, sampling=SamplingParams(max_tokens=max_tokens))
        beam = BeamParams(width=self.width, alpha=self.alpha, max_tokens=max_tokens)
        return Request(prompt=item.prompt, id=item.id, grammar=rules, beam=beam)


GREEDY = Setting("greedy")
TWIN = Setting("beam 1", 1)  # must equal greedy token for token: the gate of every run
DEFAULT = ("greedy", "beam4:0", "beam4:1", "beam8:0", "beam8:1")


def parse(names: Sequence[str]) -> tuple[Setting, ...]:
    """Settings by name: `greedy`, `beam<width>:<alpha>`. Greedy comes first, asked for or not: it is what others are compared with."""
    found = [GREEDY]
    for name in names:
        if name == "greedy":
            continue
        match = re.fullmatch(r"beam([0-9]{1,3}):([0-9]{1,2}(?:\.[0-9]{1,3})?)", name)
        if not match:
            raise UsageError(f"setting {name!r} is not allowed: greedy or beam<width>:<alpha>, for example beam4:0")
        found.append(Setting(f"beam {match[1]}, alpha {match[2]}", int(match[1]), float(match[2])))
    for setting in found[1:]:
        BeamParams(width=setting.width, alpha=setting.alpha)  # refuses what is out of range, by name
    return tuple(dict.fromkeys(found))


def grammar(item: Item) -> Grammar:
    return Grammar("json_schema", json.dumps(item.schema, ensure_ascii=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One item under one setting; `token_ids` and `tokens` are without end tokens.

    `delivered`: the engine gave an answer as valid; `checked`: the validator agrees.
    """

    id: str
    setting: str
    text: str
    token_ids: tuple[int, ...] = ()
    delivered: bool = False
    checked: bool = False
    exact: bool = False
    top_exact: bool = False
    right: int = 0
    wrong: int = 0
    missed: int = 0
    sum_logprob: float | None = None
    tokens: int = 0
    passes: int = 0
    rows: int = 0
    cached: int = 0
    seconds: float = 0.0
    ttft_s: float = 0.0
    decode_tok_s: float = 0.0
    error: str = ""


def run_chunk(engine: Engine, task: Task, setting: Setting, items: Sequence[Item]) -> list[Outcome]:
    """Decode items together under one setting. Raises EngineError where an item got no result at all."""
    requests = [setting.request(item, task.max_tokens) for item in items]
    start = time.perf_counter()
    events = [event for event in engine.generate(requests) if isinstance(event, Done | Failed)]
    seconds = (time.perf_counter() - start) / len(items)
    ended = {event.request_id: event for event in events}
    if absent := [item.id for item in items if item.id not in ended]:
        raise EngineError(f"the engine ended without a result for {absent[0]} under {setting.name}")
    return [_outcome(engine, task, setting, item, ended[item.id], seconds) for item in items]


def whole_logprob(engine: Engine, prompt: Prompt, result: Completion) -> float:
    """Log-probability of a greedy answer with its end token, as beams count it. It is scored afterwards, outside of the
    measured time: plain decoding spends no pass on an end that the grammar forces (of several end tokens the likeliest counts)."""
    ids, ends = result.token_ids, engine.tokenizer.eos_ids
    lines = [ids] if ids and ids[-1] in ends else [(*ids, end) for end in ends]
    return max(sum(scores) for scores in engine.score(prompt, lines))


def without_end(ids: Sequence[int], ends: Sequence[int]) -> tuple[int, ...]:
    """Ids without end tokens: whether one was written is no difference between two answers."""
    return tuple(token for token in ids if token not in ends)


def _outcome(engine: Engine, task: Task, setting: Setting, item: Item, event: Done | Failed, seconds: float) -> Outcome:
    if isinstance(event, Failed):
        return _failed(task, setting, item, event.error, seconds)
    result = event.result
    ends = engine.tokenizer.eos_ids
    if isinstance(result, BeamResult):
        best = next(h for h in result.alternatives if h.valid)
        top = any(task.judge(item.gold, h.value).exact for h in result.alternatives if h.valid)
        ids = without_end(best.token_ids, ends)
        return _answered(task, setting, item, result, ids, result.sum_logprob, seconds, top)
    cut = "cut off at max_tokens" if result.finish_reason == "length" else ""
    total = None if cut else whole_logprob(engine, item.prompt, result)
    ids = without_end(result.token_ids, ends)
    return _answered(task, setting, item, result, ids, total, seconds, None, cut)


def _failed(task: Task, setting: Setting, item: Item, error: ToolkitError, seconds: float) -> Outcome:
    if not isinstance(error, NoValidError):
        raise error  # an engine that cannot run the request measures nothing
    nothing = task.judge(item.gold, None)
    text = error.texts[0] if error.texts else ""
    return Outcome(
        id=item.id, setting=setting.name, text=text, missed=nothing.missed, seconds=seconds, error=error.message
    )  # fmt: skip


def _answered(
    task: Task, setting: Setting, item: Item, result: BeamResult | Completion, ids: tuple[int, ...],
    logprob: float | None, seconds: float, top: bool | None, cut: str = "",
) -> Outcome:  # fmt: skip
    from toolkit.validate.check import Validator

    report = Validator(grammar(item)).check(result.text)
    error = cut or "; ".join(violation.message for violation in report.violations[:3])
    counts = task.judge(item.gold, report.value if report.valid else None)
    return Outcome(
        id=item.id, setting=setting.name, text=result.text, token_ids=ids, delivered=not cut, checked=report.valid, error=error,
        exact=counts.exact, top_exact=counts.exact if top is None else top,
        right=counts.right, wrong=counts.wrong, missed=counts.missed, sum_logprob=logprob,
        tokens=len(ids), passes=result.usage.passes, rows=result.usage.rows, cached=result.usage.cached_tokens,
        seconds=seconds, ttft_s=result.timing.ttft_s, decode_tok_s=result.timing.decode_tok_s,
    )  # fmt: skip
