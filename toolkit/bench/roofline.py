"""Roofline: what speculation can give on a machine, from acceptance, model size, bandwidth and peak arithmetic. No measuring.

    tokens a pass     E(a, k) = 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a)
    seconds a pass    max(memory, arithmetic) of R rows: (weights + sequences x KV) / bandwidth, R x 2 x parameters / FLOP/s
    tokens a second   plain: B / pass(B);   speculative: B x E / (pass(B x (k + 1)) + k x draft pass)

While reading the weights takes longer than the arithmetic, further rows are free and speculation gives up to E; beyond
bandwidth-bound batches k + 1 rows cost k + 1 times one, and E < k + 1 loses.
In: a Machine, a Target, a Draft.   Out: numbers, `explain` all of them, ready for JSON.
Knows nothing about: engines; what this machine really takes is measured elsewhere (toolkit/engine/calibrate.py).
Source: 2211.17192, equation 1; roofline model (Williams, Waterman, Patterson 2009). Departures: launch times, sampling and the
attention's arithmetic are left out, so figures are ceilings.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from toolkit.contracts import require

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_TOKENS = 64
MOST_BATCH = 1 << 16
MOST = 1e30  # of any number: what is divided by another stays finite
FLOPS_OF_A_WEIGHT = 2  # one multiplication, one addition


@dataclass(frozen=True, slots=True)
class Machine:
    """bandwidth in bytes a second, arithmetic in floating-point operations a second."""

    bandwidth: float
    arithmetic: float

    def __post_init__(self) -> None:
        _positive(bandwidth=self.bandwidth, arithmetic=self.arithmetic)


@dataclass(frozen=True, slots=True)
class Target:
    """parameters that a token goes through; weight bytes that a pass reads; KV bytes that it reads for each sequence."""

    parameters: float
    weight_bytes: float
    kv_bytes: float = 0.0

    def __post_init__(self) -> None:
        _positive(parameters=self.parameters, bytes=self.weight_bytes)
        _not_negative(kv_bytes=self.kv_bytes)


@dataclass(frozen=True, slots=True)
class Draft:
    """Each of `tokens` drafted tokens is right with probability `acceptance` if all before it were. Its own model may be free."""

    acceptance: float
    tokens: int
    parameters: float = 0.0
    weight_bytes: float = 0.0

    def __post_init__(self) -> None:
        expected_tokens(self.acceptance, self.tokens)
        _not_negative(draft_params=self.parameters, draft_bytes=self.weight_bytes)


def expected_tokens(acceptance: float, tokens: int) -> float:
    """Tokens a pass: expected_tokens(0.8, 4) = 3.3616."""
    require(_real(acceptance) and 0.0 <= acceptance <= 1.0, "acceptance", acceptance, "a number from 0 to 1")
    whole = isinstance(tokens, int) and not isinstance(tokens, bool)
    require(whole and 0 <= tokens <= MOST_TOKENS, "tokens", tokens, f"an integer from 0 to {MOST_TOKENS}")
    if acceptance == 1.0:
        return float(tokens + 1)
    return float((1 - acceptance ** (tokens + 1)) / (1 - acceptance))


def pass_seconds(machine: Machine, target: Target, batch: int, rows: int) -> float:
    """One pass over `rows` rows of `batch` sequences."""
    return max(_memory(machine, target, batch), rows * FLOPS_OF_A_WEIGHT * target.parameters / machine.arithmetic)


def draft_seconds(machine: Machine, draft: Draft, batch: int) -> float:
    """The drafter's passes, one a token."""
    arithmetic = batch * FLOPS_OF_A_WEIGHT * draft.parameters / machine.arithmetic
    return draft.tokens * max(draft.weight_bytes / machine.bandwidth, arithmetic)


def plain_rate(machine: Machine, target: Target, batch: int) -> float:
    """Tokens a second of all sequences together."""
    return batch / pass_seconds(machine, target, batch, batch)


def speculative_rate(machine: Machine, target: Target, draft: Draft, batch: int) -> float:
    """Tokens a second of all sequences together."""
    seconds = pass_seconds(machine, target, batch, batch * (draft.tokens + 1)) + draft_seconds(machine, draft, batch)
    return batch * expected_tokens(draft.acceptance, draft.tokens) / seconds


def speedup(machine: Machine, target: Target, draft: Draft, batch: int) -> float:
    return speculative_rate(machine, target, draft, batch) / plain_rate(machine, target, batch)


def break_even(machine: Machine, target: Target, draft: Draft) -> int | None:
    """The smallest batch at which speculation no longer pays; None where it still does at 65,536."""
    return next((batch for batch in range(1, MOST_BATCH + 1) if speedup(machine, target, draft, batch) <= 1.0), None)


def free_rows(machine: Machine, target: Target) -> float:
    """Rows of one sequence's pass whose arithmetic takes as long as reading the weights: up to here a row costs nothing."""
    return _memory(machine, target, 1) * machine.arithmetic / (FLOPS_OF_A_WEIGHT * target.parameters)


def explain(machine: Machine, target: Target, draft: Draft) -> dict[str, Any]:
    """Everything that `toolkit explain speculation` says."""
    expected = expected_tokens(draft.acceptance, draft.tokens)
    flops = FLOPS_OF_A_WEIGHT * target.parameters
    batches = [
        {
            "batch": batch,
            "plain_tok_s": plain_rate(machine, target, batch),
            "speculative_tok_s": speculative_rate(machine, target, draft, batch),
            "speedup": speedup(machine, target, draft, batch),
            "bound": "arithmetic" if pass_seconds(machine, target, batch, rows) > _memory(machine, target, batch) else "memory",
        }
        for batch in BATCHES
        for rows in [batch * (draft.tokens + 1)]
    ]
    return {
        "machine": asdict(machine),
        "target": asdict(target),
        "draft": asdict(draft),
        "expected_tokens_per_pass": expected,
        "free_rows": free_rows(machine, target),
        "break_even_batch": break_even(machine, target, draft),
        "per_token": {
            "plain": {
                "target_flops": flops,
                "draft_flops": 0.0,
                "weight_bytes": target.weight_bytes,
                "draft_weight_bytes": 0.0,
            },
            "speculative": {
                "target_flops": flops * (draft.tokens + 1) / expected,
                "draft_flops": FLOPS_OF_A_WEIGHT * draft.parameters * draft.tokens / expected,
                "weight_bytes": target.weight_bytes / expected,
                "draft_weight_bytes": draft.weight_bytes * draft.tokens / expected,
            },
        },
        "batches": batches,
    }


def _memory(machine: Machine, target: Target, batch: int) -> float:
    return (target.weight_bytes + batch * target.kv_bytes) / machine.bandwidth


def _real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value <= MOST  # which nan is not


def _positive(**values: float) -> None:
    for name, value in values.items():
        require(_real(value) and value >= 1 / MOST, name, value, f"a number from {1 / MOST:g} to {MOST:g}")


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        require(_real(value) and value >= 0, name, value, f"a number from 0 to {MOST:g}")
