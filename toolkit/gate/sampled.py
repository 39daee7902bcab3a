"""Sampled: is what the candidate draws distributed as what the baseline draws? By frequencies, and by seed where that is exact.

    frequencies   texts of both arms, seeds all distinct (frequencies.py)
    seeded        the same seeds on both: a drafter that draws nothing must give the very same tokens
    acceptance    of a drafter that draws: what becomes of each draft, given the draft (acceptance.py)
    control       the baseline at another temperature, without filters: a test that does not refuse it proves nothing, and is given
                  more texts once; a candidate is judged once all the same, by every text there is, at half the rate

In: both arms, how much.   Out: JSON. Findings: a difference is a hold, a control that is not refused a doubt.
Knows nothing about: drafters, but for whether they draw.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.contracts import Engine, Grammar, Request, SamplingParams
from toolkit.engine.admission import prompt_ids
from toolkit.errors import ToolkitError
from toolkit.gate.acceptance import check_acceptance
from toolkit.gate.arm import Answer, Arm
from toolkit.gate.corpus import texts
from toolkit.gate.frequencies import ALARM, Comparison, Heap, Text, compare
from toolkit.gate.greedy import lifted
from toolkit.gate.report import Findings

WARMER = 2.5  # times the temperature of a control
LOOKS = 2  # times that a setting may be looked at: where the control is missed, more is drawn
MORE = 3  # times as many texts again for the second look
TOGETHER = 4  # samples of one request: few, so that speculation pays
_LETTERS = "abcdefgh"
_SCORED = 32  # texts that are scored at a time
_FLOAT_SHARE = 0.02  # of seeded float texts that may part: sums differ in the last bits, and so may a draw on a border


@dataclass(frozen=True, slots=True)
class Setting:
    """One way of drawing; requests of `texts` samples in all."""

    name: str
    sampling: SamplingParams
    prompt: str
    grammar: Grammar | None = None


def settings(engine: Engine, seed: int) -> list[Setting]:
    """Two ways to draw from few tokens, where frequencies tell most, and one from all of them; without a bias where there are no ids."""
    dice = random.Random(f"sampled/{seed}")
    few = lifted(engine, _LETTERS)
    spelled = "".join(dice.choice(_LETTERS) for _ in range(48))
    base = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True)
    return [
        *([Setting("few tokens", replace(base, logit_bias=few), spelled)] if few else ()),
        Setting(
            "filters",
            replace(base, ignore_eos=False, temperature=1.2, top_k=3, top_p=0.9, min_p=0.02, frequency_penalty=0.4, max_tokens=10),
            spelled, Grammar("regex", f"[{_LETTERS}]{{6,8}}"),
        ),
        Setting("free", replace(base, temperature=0.8, top_p=0.95), texts(1, dice)[0]),
    ]  # fmt: skip


def compare_sampled(baseline: Arm, candidate: Arm, findings: Findings, *, tier: str, seed: int) -> dict[str, Any]:
    """Compare every setting; a setting that one engine refuses is not checkable."""
    count = 96 if tier == "quick" else 400
    seeded = _seeded(baseline, candidate, tier, seed, findings)
    acceptance = check_acceptance(candidate, findings, tier=tier, seed=seed)
    rows = []
    for place, setting in enumerate(settings(baseline.engine, seed)):
        if findings.is_enough:
            break
        rows.append(_row(setting, baseline, candidate, count, (seed * 10 + place) * 1_000_000, findings))
    return {"alarm": ALARM, "settings": [row for row in rows if row], "seeded": seeded, "acceptance": acceptance}


def _row(setting: Setting, baseline: Arm, candidate: Arm, count: int, seeds: int, findings: Findings) -> dict[str, Any] | None:
    where = f"sampled, {setting.name}"
    warmer = replace(
        setting,
        sampling=replace(setting.sampling, temperature=WARMER * setting.sampling.temperature, top_k=0, top_p=1.0, min_p=0.0),
    )
    heaps: list[Heap] = [(), (), ()]  # the candidate's first: what it refuses need not be asked of the baseline
    asked = ((candidate, setting, 250_000), (baseline, setting, 0), (baseline, warmer, 500_000))
    for numbers in (range(count // TOGETHER), range(count // TOGETHER, (1 + MORE) * count // TOGETHER)):
        for place, (arm, each, offset) in enumerate(asked):
            answers = arm.ask(where, _requests(arm.engine, each, numbers, seeds + offset), together=arm.at_once)
            if _stopped(where, arm, answers, findings, blame=arm is candidate):
                return None
            heaps[place] = [*heaps[place], *_heap(baseline.engine, answers)]
        control = compare(heaps[1], heaps[2], looks=LOOKS)
        if control.differs:  # which the candidate has no part in
            break
    found = compare(heaps[1], heaps[0], looks=LOOKS)
    _judge(where, found, control, findings)
    return {"name": setting.name, **found.record(), "control": control.record()}


def _heap(baseline: Engine, answers: Sequence[Answer]) -> Heap:
    """The texts with their log-probabilities: by the baseline, whoever drew them; where it cannot score, as they were reported."""
    samples = [sample for each in answers for sample in each.samples]
    ids = [sample.token_ids for sample in samples]
    try:
        prompt = prompt_ids(answers[0].request.prompt, baseline.tokenizer)
        scores = [sum(line) for i in range(0, len(ids), _SCORED) for line in baseline.score(prompt, ids[i : i + _SCORED])]
    except ToolkitError:
        return [Text(each.token_ids, sum(row.logprob for row in each.logprobs) if each.logprobs else None) for each in samples]
    return [Text(each, score) for each, score in zip(ids, scores, strict=True)]


def _judge(where: str, found: Comparison, control: Comparison, findings: Findings) -> None:
    if found.differs:
        findings.holds.append(
            f"{where}: another distribution (corrected p {found.p:.1e}): {found.feature} = {found.value} in {found.one} texts of the "
            f"baseline and {found.two} of the candidate, of {found.texts} each"
        )
    if not control.differs:
        findings.doubts.append(
            f"{where}: the control ({WARMER:g} times the temperature, no filters) was not refused: the test sees too little"
        )


def _requests(engine: Engine, setting: Setting, numbers: range, seeds: int) -> list[Request]:
    return [
        Request(
            prompt=[{"role": "user", "content": setting.prompt}],
            sampling=replace(setting.sampling, n=TOGETHER, seed=seeds + i if has_seeds(engine) else None),
            grammar=setting.grammar,
        )
        for i in numbers
    ]


def has_seeds(engine: Engine) -> bool:
    """Whether a seed decides a text; other engines draw fresh ones, and their frequencies are compared all the same."""
    return engine.capabilities.engine == "embedded"


def is_drawless(engine: Engine) -> bool:
    """Whether its drafter, if it has one, draws nothing: a seed then gives the tokens of plain decoding."""
    source = getattr(engine, "parts", (None, None))[1]
    return has_seeds(engine) and (source is None or not source.draw)


def _stopped(where: str, arm: Arm, answers: Sequence[Answer], findings: Findings, *, blame: bool) -> bool:
    """Whether a setting cannot be judged, and why."""
    refused = next((each for each in answers if each.is_refused), None)
    if refused is not None:
        findings.not_checkable.append(f"{where}: {arm.name}: {refused.error}")
        return True
    failed = next((each for each in answers if each.error is not None), None)
    if failed is not None:
        (findings.holds if blame else findings.blocks).append(f"{where}: the {arm.name} failed: {failed.error}")
    return failed is not None


def _seeded(baseline: Arm, candidate: Arm, tier: str, seed: int, findings: Findings) -> dict[str, Any] | None:
    """The same seeds on both arms."""
    where = "sampled, seeded"
    if not (has_seeds(baseline.engine) and has_seeds(candidate.engine)):
        findings.not_checkable.append(f"{where}: not both engines repeat a text by its seed")
        return None
    if not is_drawless(candidate.engine):
        findings.not_checkable.append(f"{where}: the drafter draws, so that a seed gives other tokens, equally distributed")
        return None
    requests = [
        replace(request, sampling=replace(request.sampling, n=2, max_tokens=3 * request.sampling.max_tokens))
        for place, setting in enumerate(settings(baseline.engine, seed))
        for request in _requests(baseline.engine, setting, range(4 if tier == "quick" else 16), seed * 1000 + 100 * place)
    ]
    expected, found = (arm.ask(where, requests, together=2) for arm in (baseline, candidate))
    if _stopped(where, baseline, expected, findings, blame=False) or _stopped(where, candidate, found, findings, blame=True):
        return None
    pairs = [
        (one.token_ids, two.token_ids)
        for a, b in zip(expected, found, strict=True)
        for one, two in zip(a.samples, b.samples, strict=True)
    ]
    differ = sum(one != two for one, two in pairs)
    exact = getattr(candidate.engine, "format", "").startswith(("int8", "int4"))
    if differ > (0 if exact else max(1, _FLOAT_SHARE * len(pairs))):
        findings.holds.append(
            f"{where}: {differ} of {len(pairs)} texts are not those that the baseline draws with the same seed"
        )
    return {"texts": len(pairs), "differ": differ, "exact": exact}
