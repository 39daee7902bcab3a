"""Latency: how long the greedy texts took that the gate decoded one at a time. A side view, not a benchmark: nothing is interleaved.

In: both arms.   Out: JSON: seconds to the first token, tokens a second after it, by arm, in the order of the texts.
Knows nothing about: verdicts. Invariants: whoever prints it does so after a PASS only.
"""

from __future__ import annotations

from typing import Any

from toolkit.gate.arm import Arm

PART = "greedy, free, alone"


def latency(*arms: Arm) -> dict[str, Any]:
    """Rates are (tokens - 1) / (e2e - ttft), 0 where there is no second token."""
    return {
        arm.name: {
            "ttft_s": [each.first.timing.ttft_s for each in _texts(arm)],
            "decode_tok_s": [each.first.timing.decode_tok_s for each in _texts(arm)],
        }
        for arm in arms
    }


def _texts(arm: Arm) -> list[Any]:
    return [answer for what, answer in arm.answers if what == PART and answer.results]
