"""Canary runs: every canary is asked of both arms and judged.

    pass            every check holds on the candidate, and it says what the baseline says wherever one answer is right
    weak            a check fails on the baseline, too: the model is too weak for it; the candidate says the same, which is all that counts
    fail            a check holds on the baseline only, or the answers differ by more than a tie
    not checkable   one of the engines refuses, by name, something that is asked

In: both arms.   Out: [{name, result, why, reason}]. Findings: a failure holds.
Knows nothing about: what canaries are about.
Invariants: the checks' word is not enough for a pass: text that is certain is compared with the baseline's token by token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from toolkit.contracts import Message
from toolkit.errors import ContextError, UnsupportedError
from toolkit.gate.arm import Answer, Arm
from toolkit.gate.asking import is_certain, request_of
from toolkit.gate.books import complaints
from toolkit.gate.canaries import Canary, load
from toolkit.gate.checks import ACROSS, CHECKS
from toolkit.gate.parting import parting, tolerance
from toolkit.gate.report import Findings
from toolkit.gate.sampled import is_drawless

PART = "canary"


def run_canaries(baseline: Arm, candidate: Arm, findings: Findings, *, tier: str) -> list[dict[str, Any]]:
    """Every canary of the tier."""
    ties = tolerance(baseline.engine, candidate.engine)
    rows = []
    for canary in load(tier):
        if findings.is_enough:
            break
        result, why = _run(canary, baseline, candidate, ties, findings)
        if result == "fail":
            findings.holds.append(f"canary {canary.name}: {why}")
        elif result == "not checkable":
            findings.not_checkable.append(f"canary {canary.name}: {why}")
        rows.append({"name": canary.name, "result": result, "why": why, "reason": canary.why})
    return rows


def _run(canary: Canary, baseline: Arm, candidate: Arm, ties: float, findings: Findings) -> tuple[str, str]:
    try:
        expected, found = (_ask(canary, arm) for arm in (baseline, candidate))
    except UnsupportedError as error:  # what is asked cannot even be written for that engine
        return "not checkable", str(error)
    for one in expected:
        if one.error is not None and not _is_refused(one):
            findings.blocks.append(f"canary {canary.name}: the baseline failed: {one.error}")
            return "not checkable", f"the baseline failed: {one.error}"
    for number, two in enumerate(found):
        if two.error is not None and not _is_refused(two):
            return "fail", f"answer {number}: the candidate failed: {two.error}"
    apart, ties_seen = _compare(baseline, candidate, expected, found, ties)
    if apart:
        return "fail", apart
    wrong = list(_wrong(canary, candidate, found, ties))
    own = list(_wrong(canary, baseline, expected, ties)) if wrong else []
    if wrong and not own:
        return "fail", wrong[0]
    refused = next((each.error for each in (*found, *expected) if _is_refused(each)), None)
    if refused is not None:
        return "not checkable", str(refused)
    if wrong:
        return "weak", f"the baseline fails as well ({own[0]}); judged by equality with it"
    return "pass", ", ".join(ties_seen)


def _ask(canary: Canary, arm: Arm) -> list[Answer]:
    """Conversations turn by turn, all else as many at a time as the canary says."""
    what = f"{PART}, {canary.name}"
    if not any(ask.get("follows") for ask in canary.asks):
        return arm.ask(what, [request_of(ask, arm.engine, ()) for ask in canary.asks], together=canary.together)
    found: list[Answer] = []
    chat: list[Message] = []
    for ask in canary.asks:
        request = request_of(ask, arm.engine, chat)
        found += arm.ask(what, [request])
        if found[-1].error is not None:
            break
        chat = [*request.prompt, {"role": "assistant", "content": found[-1].first.text}]
    return found


def _compare(
    baseline: Arm, candidate: Arm, expected: Sequence[Answer], found: Sequence[Answer], ties: float
) -> tuple[str, list[str]]:  # fmt: skip
    """The first difference that is no tie, and the ties."""
    seen: list[str] = []
    drawless = is_drawless(candidate.engine)
    for number, (one, two) in enumerate(zip(expected, found, strict=False)):
        params = one.request.sampling
        if one.error or two.error or not (is_certain(params) or (drawless and params.seed is not None)):
            continue
        apart = parting(baseline.engine, one.request, one.first, two.first)
        if apart is not None and 0 < ties >= apart.nats:
            seen.append(f"answer {number}: a tie at {apart}")
        elif apart is not None:
            return f"answer {number} is not the baseline's: {apart}", seen
        elif one.first.text != two.first.text or one.first.finish_reason != two.first.finish_reason:
            return f"answer {number} has the baseline's tokens and another text or end", seen
    return "", seen


def _wrong(canary: Canary, arm: Arm, answers: Sequence[Answer], ties: float) -> Iterator[str]:
    """Every check that does not hold."""
    for check in canary.checks:
        kind = check["kind"]
        if kind in ACROSS:
            asked = [number for number in check["asks"] if number < len(answers) and answers[number].results]
            texts = {number: answers[number].first for number in asked}
            if (
                len(asked) == len(check["asks"])
                and (why := ACROSS[kind](texts, asked))
                and not _are_ties(kind, answers, asked, arm, ties)
            ):
                yield why
            continue
        for number, answer in enumerate(answers):
            if answer.results and check.get("ask", number) == number:
                why = (
                    next(complaints(answer), "")
                    if kind == "streamed"
                    else CHECKS[kind](answer.request, answer.first, check, arm.engine.tokenizer)
                )
                if why:
                    yield f"answer {number}: {why}"


def _are_ties(kind: str, answers: Sequence[Answer], asked: Sequence[int], arm: Arm, ties: float) -> bool:
    """Whether texts that should be the same part at ties only, by the arm's own scores: a cached prompt is computed in other pieces."""
    first = answers[asked[0]]
    apart = [parting(arm.engine, first.request, first.first, answers[number].first) for number in asked[1:]]
    return kind == "same" and ties > 0 and all(each is None or each.nats <= ties for each in apart)


def _is_refused(answer: Answer) -> bool:
    """Refused by name, or longer than the engine's context."""
    return answer.is_refused or isinstance(answer.error, ContextError)
