"""Books: do an engine's own figures add up, answer by answer, against its stream and its trace?

    emitted = steps + accepted + appended - trimmed - discarded      first token and correction are what a step draws itself
    proposed >= drafts by position, accepted = their sum, neither grows with the position, none accepted that was not proposed
    usage = stream = result; a trace's passes, one after the other, are the text; exported counters = the sum of the usages

In: answers of one arm.   Out: complaints, totals for JSON.
Knows nothing about: the other arm, verdicts.
Departures: a server that counts verify passes only is held to 0 <= samples + accepted + passes - output <= samples x (longest draft + 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import Any

from toolkit.contracts import Completion, Usage
from toolkit.gate.arm import Answer

_SUMMED = ("output_tokens", "steps", "verify_passes", "proposed", "accepted", "appended", "trimmed", "discarded")


def complaints(answer: Answer) -> Iterator[str]:
    """What does not add up in one answer."""
    for index, result in sorted(answer.results.items()):
        yield from _stream(answer, index, result)
        yield from _result(answer, result)
    if answer.results:
        usage = of_request(answer)
        output = sum(len(each.token_ids) for each in answer.samples) or sum(each.usage.output_tokens for each in answer.samples)
        yield from balance(usage, output, len(answer.samples))
        if answer.request.sampling.n == 1:
            yield from _trace(answer.first)


def of_request(answer: Answer) -> Usage:
    """The usage of a whole request: each sample has the books as they were at its end, with its own output."""
    return max((each.usage for each in answer.samples), key=lambda usage: (usage.steps, usage.rows, usage.passes))


def balance(usage: Usage, output: int | None = None, samples: int = 1) -> Iterator[str]:
    """Identities within one usage; `output` are the tokens of all its samples."""
    output = usage.output_tokens if output is None else output
    by_place = (usage.proposed_by_position, usage.accepted_by_position)
    if any(value < 0 for value in (usage.proposed, usage.accepted, usage.trimmed, usage.appended, *by_place[0], *by_place[1])):
        yield "a counter is below 0"
    if usage.accepted > usage.proposed:
        yield f"{usage.accepted} drafts were accepted and {usage.proposed} proposed"
    if usage.cached_tokens > usage.input_tokens:
        yield f"{usage.cached_tokens} of {usage.input_tokens} prompt tokens were cached"
    for name, counts in zip(("proposed", "accepted"), by_place, strict=True):
        if any(a < b for a, b in pairwise(counts)):
            yield f"drafts {name} by position grow with the position: {list(counts)}"
    if any(a > p for p, a in zip_longest(*by_place, fillvalue=0)):
        yield f"at a position more drafts were accepted than proposed: {list(by_place[1])} of {list(by_place[0])}"
    if usage.steps:
        yield from _exact(usage, output)
    elif usage.verify_passes:
        yield from _bounded(usage, output, samples)


def _exact(usage: Usage, output: int) -> Iterator[str]:
    told = usage.steps + usage.accepted + usage.appended - usage.trimmed - usage.discarded
    if told != output:
        yield f"the books explain {told} tokens, {output} came"
    if sum(usage.accepted_by_position) != usage.accepted:
        yield f"{usage.accepted} drafts were accepted, {sum(usage.accepted_by_position)} by position"
    if sum(usage.proposed_by_position) > usage.proposed:
        yield f"{usage.proposed} drafts were proposed, {sum(usage.proposed_by_position)} by position"
    if usage.proposed_by_position[:1] not in ((), (usage.verify_passes,)) or (usage.verify_passes and not usage.proposed):
        yield f"{usage.verify_passes} passes verified drafts, {list(usage.proposed_by_position[:1])} had a first one"
    if not usage.verify_passes <= usage.steps:
        yield f"{usage.verify_passes} of {usage.steps} steps verified a draft"


def _bounded(usage: Usage, output: int, samples: int) -> Iterator[str]:
    if usage.accepted_by_position and sum(usage.accepted_by_position) != usage.accepted:
        yield f"{usage.accepted} drafts were accepted, {sum(usage.accepted_by_position)} by position"
    most = samples * (1 - -usage.proposed // usage.verify_passes)
    trimmed = samples + usage.accepted + usage.verify_passes - output
    if not 0 <= trimmed <= most:
        yield (
            f"{samples} + {usage.accepted} accepted + {usage.verify_passes} verify passes - {output} tokens = {trimmed}: "
            f"from 0 to {most} can have been trimmed"
        )


def _stream(answer: Answer, index: int, result: Completion) -> Iterator[str]:
    mine = [each for each in answer.deltas if each.index == index]
    ids = [token for each in mine for token in each.token_ids]
    caught = any(each.streamed for each in result.incidents)
    if any(each.token_ids for each in mine) and tuple(ids) != result.token_ids and not caught:
        yield f"the stream has {len(ids)} tokens that are not the {len(result.token_ids)} of the result"
    if mine and "".join(each.text for each in mine) != result.text and not caught:
        yield "the text of the stream is not that of the result"
    for each in mine:
        if each.texts and (len(each.texts) != len(each.token_ids) or not each.text.startswith("".join(each.texts))):
            yield "an event's texts are not its text"
    told = [each.usage.output_tokens for each in mine if each.usage is not None]
    if any(a > b for a, b in pairwise(told)) or any(count > len(result.token_ids) for count in told[:-1]):
        yield f"output counted on the way is {told[-3:]}, {len(result.token_ids)} tokens came"


def _result(answer: Answer, result: Completion) -> Iterator[str]:
    params, usage = answer.request.sampling, result.usage
    if usage.output_tokens != len(result.token_ids) and result.token_ids:
        yield f"usage says {usage.output_tokens} tokens, {len(result.token_ids)} came"
    if len(result.token_ids) > params.max_tokens:
        yield f"{len(result.token_ids)} tokens came, {params.max_tokens} were asked for"
    if result.finish_reason == "length" and result.token_ids and len(result.token_ids) < params.max_tokens:
        yield f"cut at {len(result.token_ids)} tokens, {params.max_tokens} were asked for"
    times = (result.timing.ttft_s, result.timing.e2e_s, result.timing.decode_tok_s, usage.draft_s)
    if not all(math.isfinite(each) and each >= 0 for each in times):
        yield f"its times are none: {', '.join(f'{each:g}' for each in times)}"
    for each in result.incidents:
        if each.kind != "model":
            yield f"speculation was caught at token {each.position} by its {each.found_by}: {each.why}"
    for note in result.notes:
        if "speculation" in note or "drafter" in note:
            yield note


def _trace(result: Completion) -> Iterator[str]:
    if not result.trace:
        return
    emitted = tuple(token for each in result.trace for token in each.emitted)
    if emitted != result.token_ids and not result.incidents:
        yield f"the passes of the trace emitted {len(emitted)} tokens that are not the {len(result.token_ids)} of the result"
    for name, count in (
        ("proposed", sum(len(each.tokens) for each in result.trace)),
        ("accepted", sum(len(each.accepted) for each in result.trace)),
    ):
        if count != getattr(result.usage, name):
            yield f"{count} drafts were {name} by the trace, {getattr(result.usage, name)} by the usage"
    for each in result.trace:
        before, nodes = -1, list(zip(each.parent, each.tokens, strict=False))
        for place, node in enumerate(each.accepted):
            if not 0 <= node < len(nodes) or nodes[node][0] != before or each.emitted[place : place + 1] != nodes[node][1:]:
                yield "accepted nodes of a pass are no path of its tree, or not what it emitted"
                break
            before = node


def totals(answers: Sequence[Answer]) -> dict[str, Any]:
    """Sums over requests, by position too."""
    usages = [of_request(each) for each in answers if each.results]
    found: dict[str, Any] = {name: sum(getattr(usage, name) for usage in usages) for name in _SUMMED}
    found["output_tokens"] = sum(len(each.token_ids) for answer in answers for each in answer.samples)
    for name in ("proposed_by_position", "accepted_by_position"):
        found[name] = [sum(column) for column in zip_longest(*(getattr(usage, name) for usage in usages), fillvalue=0)]
    passes = found["steps"] or sum(usage.passes for usage in usages)
    found["acceptance"] = found["accepted"] / found["proposed"] if found["proposed"] else None
    found["tokens_per_pass"] = found["output_tokens"] / passes if passes else None
    return found
