"""Accounting: what speculation gave and what it cost, from a request's books; beside it what its acceptance lets expect.

    books      output = steps + accepted + appended - trimmed
    expected   (1 - a^(k+1)) / (1 - a) tokens a pass (roofline.py), from the measured a; for drafts of several lengths the mean
    work       a row is one token sent through the target: its multiply-adds, twice, are FLOPs; a pass reads every weight once

In: contracts.Usage and Timing, a Model.   Out: numbers; `summary` has all of them, ready for JSON.
Knows nothing about: engines' insides, machines.
Departures: work is counted as if a request ran alone; what a pass shares with other requests is not taken off. A drafter is
charged for what it proposed (one reading of its weights a level of the tree), not for what it computed and threw away.
Source: 2211.17192, equation 1 and section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import Any

from toolkit.contracts import Completion, Engine, Timing, Usage
from toolkit.draft.contract import Cost
from toolkit.draft.model import weights_read
from toolkit.model.config import ModelConfig
from toolkit.model.native.decoder import NativeDecoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The target's shape, bytes of its weights that a pass reads, bytes of a number in its KV cache; a proposed token's cost."""

    config: ModelConfig
    weight_bytes: float
    kv_itemsize: int
    draft: Cost = field(default_factory=Cost)

    @property
    def kv_bytes(self) -> int:
        """Of one position, all layers, keys and values."""
        return 2 * self.config.layers * self.config.kv_heads * self.config.head_dim * self.kv_itemsize

    def flops(self, position: float) -> float:
        """Of one row that sees `position` tokens: products with weights, and with keys and values."""
        attention = 2 * self.config.layers * self.config.heads * self.config.head_dim * position
        return 2 * (weights_read(self.config) + attention)


def model_of(engine: Engine) -> Model | None:
    """Shape and costs of what an engine runs; None for an engine elsewhere, which does not say."""
    parts = getattr(engine, "parts", None)
    if parts is None:
        return None
    decoder, source = parts
    itemsize = decoder.dtype.itemsize
    is_native = isinstance(decoder, NativeDecoder)
    return Model(
        config=decoder.config,
        weight_bytes=decoder.bytes_read if is_native else weights_read(decoder.config) * itemsize,
        kv_itemsize=itemsize,
        draft=Cost() if source is None else source.cost,
    )


def acceptance(usage: Usage) -> float:
    """Share of the drafts that were right among those that were put to the test: all before them were right. 0 without drafts.

    A pass whose draft was refused somewhere tests one token more than it accepts.
    """
    tested = sum(trials(usage))
    return usage.accepted / tested if tested else 0.0


def trials(usage: Usage) -> list[int]:
    """Passes that tested a draft at each position. Exact where all drafts are equally long, else at most this many."""
    before = (usage.verify_passes, *usage.accepted_by_position)
    return [min(ahead, reached) for ahead, reached in zip(before, usage.proposed_by_position, strict=False)]


def conditional(usage: Usage) -> list[float]:
    """Acceptance at each position, given that all before it were accepted."""
    pairs = zip_longest(usage.accepted_by_position, trials(usage), fillvalue=0)
    return [taken / tested if tested else 0.0 for taken, tested in pairs]


def tokens_per_pass(usage: Usage) -> float:
    """Output tokens over the passes that gave some; 1 is plain decoding without a grammar. 0 without output.

    An engine elsewhere does not count steps but passes, which are the same there.
    """
    passes = usage.steps or usage.passes
    return usage.output_tokens / passes if passes else 0.0


def expected_per_pass(usage: Usage) -> float:
    """What `acceptance`, the same at every position, lets expect for drafts of the lengths that there were."""
    a, through, total = acceptance(usage), 1.0, 0.0
    for reached in usage.proposed_by_position:
        through *= a
        total += through * reached
    return 1 + total / usage.steps if usage.steps else 0.0


def imbalance(usage: Usage) -> int:
    """Output tokens that the books do not explain: 0."""
    return usage.output_tokens - (usage.steps + usage.accepted + usage.appended - usage.trimmed - usage.discarded)


def total(usages: Iterable[Usage]) -> Usage:
    """The sum over requests; peaks are the largest."""
    found = list(usages)
    if not found:
        return Usage()
    columns: dict[str, Any] = {}
    for each in fields(Usage):
        values = [getattr(usage, each.name) for usage in found]
        if isinstance(values[0], tuple):
            columns[each.name] = tuple(sum(column) for column in zip_longest(*values, fillvalue=0))
        else:
            columns[each.name] = max(values) if each.name.startswith("kv_blocks") else sum(values)
    return Usage(**columns)


def of_request(samples: Sequence[Completion]) -> Usage:
    """The books of one request: each of its samples holds them as they were when it ended, with its own output."""
    last = max((sample.usage for sample in samples), key=lambda usage: (usage.steps, usage.rows))
    return replace(last, output_tokens=sum(len(sample.token_ids) for sample in samples))


def summary(usage: Usage, timing: Timing | None = None, model: Model | None = None) -> dict[str, Any]:
    """All of it. `timing` adds the drafter's share of the decoding time, `model` the work per committed token.

    What an engine elsewhere does not tell - acceptance by position, books - is None.
    """
    told = usage.steps > 0 or not usage.output_tokens
    found: dict[str, Any] = {
        "tokens_per_pass": tokens_per_pass(usage),
        "expected_tokens_per_pass": expected_per_pass(usage) if told else None,
        "acceptance": acceptance(usage) if told else None,
        "acceptance_by_position": conditional(usage),
        "accepted_of_proposed": usage.accepted / usage.proposed if usage.proposed else 0.0,
        "draft_s": usage.draft_s,
        "unexplained_tokens": imbalance(usage) if told else None,
    }
    if timing is not None:
        decode = timing.e2e_s - timing.ttft_s
        found["draft_share_of_time"] = usage.draft_s / decode if decode > 0 else 0.0
    if model is not None and usage.output_tokens:
        found["per_token"] = {"plain": plain_work(usage, model), "speculative": speculative_work(usage, model)}
    return found


def plain_work(usage: Usage, model: Model) -> dict[str, float]:
    """Of one token: each its own pass, but for those that a grammar forced behind another."""
    return _work(usage, model, passes=usage.output_tokens - usage.appended, rows=usage.output_tokens, nodes=0, levels=0)


def speculative_work(usage: Usage, model: Model) -> dict[str, float]:
    """Of one committed token."""
    levels = sum(usage.proposed_by_position)
    rows = usage.steps + usage.appended + usage.proposed
    return _work(usage, model, passes=usage.steps, rows=rows, nodes=usage.proposed, levels=levels)


def _work(usage: Usage, model: Model, *, passes: int, rows: int, nodes: int, levels: int) -> dict[str, float]:
    """The prompt is left out but for its last row, from which the first token comes; positions are those of the middle."""
    position = usage.input_tokens + usage.output_tokens / 2
    whole = {
        "target_flops": rows * model.flops(position),
        "draft_flops": 2 * nodes * model.draft.flops,
        "weight_bytes": passes * model.weight_bytes,
        "draft_weight_bytes": levels * model.draft.weight_bytes,
        "kv_bytes": passes * position * model.kv_bytes,
    }
    return {name: value / usage.output_tokens for name, value in whole.items()}
