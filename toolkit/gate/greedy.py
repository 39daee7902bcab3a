"""Greedy: does the candidate write, token for token, what the baseline writes? A corpus, several settings, alone and together.

In: both arms, how much.   Out: JSON: a row a setting - texts, tokens, equal, ties, differences located.
Knows nothing about: speculation.
Invariants: the baseline decodes some texts twice; where it does not repeat itself nothing is said about the candidate. Texts that part
are judged by the baseline's score of both tokens (parting.py): within the tolerance it is a tie, counted and told. Log-probabilities
that are reported with a text must be the baseline's, too: a wrong row shows in them before it shows in a token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.contracts import Completion, Engine, Grammar, Request, SamplingParams
from toolkit.errors import UnsupportedError
from toolkit.gate.arm import Answer, Arm
from toolkit.gate.asking import LIFT
from toolkit.gate.corpus import texts
from toolkit.gate.parting import parting, tolerance
from toolkit.gate.report import Findings

REPEATED = 2  # texts of a setting that the baseline decodes twice
_SHOWN = 5
_LONGEST = 160  # characters of a text in a reason
_LETTERS = "abcd"
SCHEMA = (
    '{"type":"object","properties":{"title":{"type":"string","maxLength":24},"tags":{"type":"array","items":{"type":"string",'
    '"maxLength":8},"maxItems":4},"sure":{"type":"boolean"},"score":{"type":"integer","minimum":0,"maximum":100}},'
    '"required":["title","tags","sure","score"],"additionalProperties":false}'
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One way of asking; `together` requests at a time."""

    name: str
    sampling: SamplingParams
    together: int
    grammar: Grammar | None = None


def settings(engine: Engine, tokens: int) -> list[Setting]:
    """The settings of a run, `tokens` a text; ids are those of the engine's tokenizer."""
    base = SamplingParams(max_tokens=tokens, ignore_eos=True)
    few = lifted(engine, _LETTERS)
    return [
        Setting("free, alone", base, 1),
        Setting("free, together", base, 4),
        Setting("scores", replace(base, logprobs=2), 4),
        Setting("schema", replace(base, ignore_eos=False, max_tokens=2 * tokens), 2, Grammar("json_schema", SCHEMA)),
        Setting("regex", replace(base, ignore_eos=False), 2, Grammar("regex", f"[{_LETTERS}]{{{tokens // 2}}}")),
        Setting("penalties", replace(base, logit_bias=few, frequency_penalty=0.5, presence_penalty=0.3), 2),
    ]


def lifted(engine: Engine, letters: str) -> dict[int, float]:
    """A bias that leaves little but these letters; {} where an engine's token ids are not known."""
    try:
        return {token: LIFT for letter in letters for token in engine.tokenizer.encode(letter)}
    except UnsupportedError:
        return {}


def compare_greedy(baseline: Arm, candidate: Arm, findings: Findings, *, tier: str, seed: int) -> dict[str, Any]:
    """Compare under every setting; faults go into the findings."""
    count, tokens = (4, 48) if tier == "quick" else (16, 96)
    ties = tolerance(baseline.engine, candidate.engine)
    rows = []
    for place, setting in enumerate(settings(baseline.engine, tokens)):
        if findings.is_enough:
            break
        prompts = texts(count, random.Random(f"{seed}/{place}"))
        requests = [
            Request(prompt=[{"role": "user", "content": text}], sampling=setting.sampling, grammar=setting.grammar)
            for text in prompts
        ]
        rows.append(_row(setting, requests, baseline, candidate, ties, findings))
    return {"tolerance_nats": ties, "settings": rows, "texts": sum(row["texts"] for row in rows)}


def _row(
    setting: Setting, requests: Sequence[Request], baseline: Arm, candidate: Arm, ties: float, findings: Findings
) -> dict[str, Any]:  # fmt: skip
    where = f"greedy, {setting.name}"
    row: dict[str, Any] = {"name": setting.name, "texts": 0, "tokens": 0, "equal": 0, "ties": [], "differ": []}
    found = candidate.ask(where, requests, together=setting.together)
    if all(
        each.is_refused for each in found
    ):  # then nothing is compared, and how the baseline does it says nothing of this pair
        findings.not_checkable.append(f"{where}: {found[0].error}")
        return row | {"differ_count": 0, "tie_count": 0}
    expected = baseline.ask(where, requests, together=setting.together)
    again = baseline.ask(where, requests[:REPEATED], together=REPEATED)
    for one, two in zip(expected, again, strict=False):
        if one.error is None and two.error is None and _differs(baseline.engine, one, two, ties) == "differ":
            findings.blocks.append(f"{where}: the baseline does not repeat itself")
    for number, (one, two) in enumerate(zip(expected, found, strict=True)):
        _compare(where, number, one, two, baseline.engine, ties, row, findings)
    if row["differ"]:
        first = row["differ"][0]
        findings.holds.append(
            f"{where}: {len(row['differ'])} of {row['texts']} texts differ, first text {first['text']}: {first['why']}"
        )
    row["differ_count"], row["tie_count"] = len(row["differ"]), len(row["ties"])
    row["differ"], row["ties"] = row["differ"][:_SHOWN], row["ties"][:_SHOWN]
    return row


def _differs(engine: Engine, one: Answer, two: Answer, ties: float) -> str:
    apart = parting(engine, one.request, one.first, two.first)
    return "equal" if apart is None else "tie" if 0 < ties >= apart.nats else "differ"


def _compare(
    where: str, number: int, one: Answer, two: Answer, engine: Engine, ties: float, row: dict[str, Any], findings: Findings
) -> None:  # fmt: skip
    if two.is_refused or one.is_refused:
        findings.not_checkable.append(f"{where}: {(two.error if two.is_refused else one.error)}")
        return
    if one.error is not None:
        findings.blocks.append(f"{where}: the baseline failed: {one.error}")
        return
    if two.error is not None:
        findings.holds.append(f"{where}: the candidate failed: {two.error}")
        return
    row["texts"] += 1
    row["tokens"] += len(two.first.token_ids)
    apart = parting(engine, one.request, one.first, two.first)
    if apart is not None and 0 < ties >= apart.nats:
        row["ties"].append({"text": number, "why": str(apart)})
        return
    why = str(apart) if apart is not None else _other(one.first, two.first, ties)
    if why:
        row["differ"].append({"text": number, "why": why, "at": apart.at if apart else None})
    else:
        row["equal"] += 1


def _other(one: Completion, two: Completion, ties: float) -> str:
    """What differs besides the tokens."""
    for name in ("text", "finish_reason", "matched_stop", "valid"):
        if getattr(one, name) != getattr(two, name):
            return f"{name} is {_short(getattr(two, name))}, not {_short(getattr(one, name))}"
    if len(one.logprobs) != len(two.logprobs):
        return f"{len(two.logprobs)} log-probabilities, not {len(one.logprobs)}"
    slack = 10 * ties + 1e-9
    for place, (a, b) in enumerate(zip(one.logprobs, two.logprobs, strict=True)):
        if a.token_id != b.token_id or not abs(a.logprob - b.logprob) <= slack or _tops(a.top, b.top, slack):
            return f"the log-probability of token {place} is {b.logprob:.6g}, not {a.logprob:.6g}"
    return ""


def _short(value: object) -> str:
    told = repr(value)
    return told if len(told) <= _LONGEST else f"{told[:_LONGEST]}... ({len(told)} characters)"


def _tops(one: Sequence[tuple[int, float]], two: Sequence[tuple[int, float]], slack: float) -> bool:
    """Whether the rivals' log-probabilities differ; their ids may change places within the slack."""
    return len(one) != len(two) or any(not abs(a - b) <= slack for (_, a), (_, b) in zip(one, two, strict=True))
