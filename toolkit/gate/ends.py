"""Ends: does a text end where its end was drafted? A law that finds its own requests, whatever the model writes.

    ask the candidate for greedy texts with a trace -> tokens that came out of an accepted draft and stand in no earlier place of the text
    make such a token a stop id, ask both again     -> both texts end with it, and for the same reason

A fixed canary cannot do this: which token is drafted depends on the model and its drafter, and an end in a burst goes wrong only
where it was drafted.
In: both arms.   Out: JSON: texts, ends tried. Findings: a text that goes on, or ends otherwise, is a hold.
Knows nothing about: drafters. Without a trace (a server) tokens at fixed places are taken; some of them will have been drafted. A SGLang
server takes no stop id of a text that is to go on past its end, so that such a text may end by itself.
Source: sglang#31599 (output_ids [10, 11, STOP, 20, 21]), koboldcpp#1276.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from toolkit.contracts import Completion, Request, SamplingParams
from toolkit.gate.arm import Answer, Arm
from toolkit.gate.corpus import texts
from toolkit.gate.greedy import settings
from toolkit.gate.report import Findings

PART = "greedy, ends in drafts"
_SHARES = (0.4, 0.7)  # of a text: places whose tokens are taken where nothing is known of drafts


def check_ends(baseline: Arm, candidate: Arm, findings: Findings, *, tier: str, seed: int) -> dict[str, Any]:
    """Try up to two ends a text."""
    count, tokens = (4, 32) if tier == "quick" else (12, 64)
    prompts = texts(count, random.Random(f"ends/{seed}"))
    traced = candidate.engine.capabilities.engine == "embedded"
    free = replace(settings(baseline.engine, tokens)[0].sampling, logprobs=None, ignore_eos=traced)
    requests = [Request(prompt=[{"role": "user", "content": text}], sampling=free, trace=traced) for text in prompts]
    whole = candidate.ask(PART, requests, together=1)
    wanted = [_ending(each.request, end) for each in whole if each.error is None for end in list(_drafted(each.first))[:2]]
    expected, found = (arm.ask(PART, wanted, together=1) for arm in (baseline, candidate))
    pairs = list(zip(expected, found, strict=True))
    wrong = [why for one, two in pairs if (why := _why(one, two))]
    refused = [each.error for pair in pairs for each in pair if each.is_refused]
    if refused:
        findings.not_checkable.append(f"{PART}: {refused[0]}")
    for each in whole:
        if each.error is not None and not each.is_refused:
            findings.holds.append(f"{PART}: the candidate failed: {each.error}")
    if wrong:
        findings.holds.append(f"{PART}: {len(wrong)} of {len(wanted)} texts are not the baseline's, the first: {wrong[0]}")
    if not wanted:
        findings.not_checkable.append(f"{PART}: no text has a token that could be made its end")
    tried = sum(one.error is None and not two.is_refused for one, two in pairs)
    return {"texts": len(whole), "ends": tried, "wrong": len(wrong)}


def _drafted(result: Completion) -> Iterator[int]:
    """Tokens that may be made an end: new where they stand, and drafted as far as a trace says it."""
    ids = result.token_ids
    places: list[int] = []
    at = 0
    for each in result.trace:
        places += range(at, at + len(each.accepted))
        at += len(each.emitted)
    if not result.trace:
        places = [int(len(ids) * share) for share in _SHARES]
    for place in places:
        if 0 < place < len(ids) and ids[place] not in ids[:place]:
            yield ids[place]


def _ending(request: Request, end: int) -> Request:
    sampling: SamplingParams = replace(request.sampling, stop_ids=(end,))
    return replace(request, sampling=sampling, id="", trace=False)


def _why(one: Answer, two: Answer) -> str:
    if one.error is not None or two.is_refused:
        return ""  # greedy equality says what the baseline cannot do
    if two.error is not None:
        return f"the candidate failed: {two.error}"
    end, first, second = one.request.sampling.stop_ids[0], one.first, two.first
    if (second.finish_reason, second.matched_stop) != (first.finish_reason, first.matched_stop):
        return (
            f"stop id {end} ended the baseline's text after {len(first.token_ids)} tokens ({first.finish_reason}), "
            f"the candidate's after {len(second.token_ids)} ({second.finish_reason})"
        )
    if len(second.token_ids) != len(first.token_ids):
        return f"stop id {end} came at token {len(second.token_ids)}, not {len(first.token_ids)}"
    return ""
