"""Books: a right answer has no complaint, and every way of not adding up has one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from toolkit.contracts import Completion, Delta, Incident, PassTrace, Request, SamplingParams, Usage
from toolkit.engine.repeats import repetition
from toolkit.gate.accounting import flags, idle
from toolkit.gate.arm import Answer
from toolkit.gate.books import balance, complaints, totals

# the first token, a pass of three drafts with two accepted, a pass of one draft refused
USAGE = Usage(
    input_tokens=4, output_tokens=5, passes=3, rows=10, steps=3, verify_passes=2, proposed=4, accepted=2,
    proposed_by_position=(2, 1, 1), accepted_by_position=(1, 1),
)  # fmt: skip
TRACE = (
    PassTrace((), (), (), (1,)),
    PassTrace((2, 3, 9), (-1, 0, 1), (0, 1), (2, 3, 4)),
    PassTrace((8,), (-1,), (), (5,)),
)
RESULT = Completion(text="abcde", token_ids=(1, 2, 3, 4, 5), finish_reason="length", usage=USAGE, trace=TRACE)
DELTAS = (
    Delta("r", 0, "a", (1,), texts=("a",), usage=replace(USAGE, output_tokens=1)),
    Delta("r", 0, "bcd", (2, 3, 4), texts=("b", "c", "d"), usage=replace(USAGE, output_tokens=4)),
    Delta("r", 0, "e", (5,), texts=("e",), usage=USAGE),
)


def answer(result: Completion = RESULT, deltas: tuple[Delta, ...] = DELTAS, **sampling: Any) -> Answer:
    request = Request(prompt=[1, 2, 3, 4], sampling=SamplingParams(**{"max_tokens": 5, **sampling}))
    return Answer(request, list(deltas), {0: result})


def test_a_right_answer_has_no_complaint() -> None:
    assert list(complaints(answer())) == []


def usage(**changed: Any) -> Callable[[], Answer]:
    return lambda: answer(replace(RESULT, usage=replace(USAGE, **changed), trace=()))


CAUGHT = Incident(kind="speculation", found_by="audit", drafter="x", position=2, offset=2, tokens=(), why="no")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (usage(steps=4), "the books explain 6 tokens, 5 came"),
        (usage(accepted=3), "the books explain 6"),
        (usage(accepted=3, accepted_by_position=(2, 1), trimmed=1), None),
        (usage(output_tokens=6), "usage says 6 tokens, 5 came"),
        (usage(proposed=1), "2 drafts were accepted and 1 proposed"),
        (usage(accepted_by_position=(1,)), "1 by position"),
        (usage(proposed_by_position=(2, 1, 2)), "grow with the position"),
        (usage(accepted_by_position=(1, 1), proposed_by_position=(2,)), "at a position more drafts were accepted"),
        (usage(verify_passes=3), "3 passes verified drafts"),
        (usage(cached_tokens=9), "9 of 4 prompt tokens were cached"),
        (usage(trimmed=-1, accepted=1, accepted_by_position=(1,)), "below 0"),
        (lambda: answer(deltas=DELTAS[:2]), "the stream has 4 tokens that are not the 5"),
        (lambda: answer(deltas=(DELTAS[0], *DELTAS)), "the stream has 6 tokens"),
        (lambda: answer(deltas=(DELTAS[1], DELTAS[0], DELTAS[2])), "the stream has 5 tokens"),
        (lambda: answer(deltas=(*DELTAS[:2], replace(DELTAS[2], text="f", texts=("f",)))), "the text of the stream"),
        (lambda: answer(deltas=(*DELTAS[:2], replace(DELTAS[2], texts=()), Delta("r", 0, ""))), None),
        (lambda: answer(deltas=(DELTAS[0], replace(DELTAS[1], texts=("x", "c", "d")), DELTAS[2])), "an event's texts"),
        (lambda: answer(max_tokens=4), "5 tokens came, 4 were asked for"),
        (lambda: answer(max_tokens=6), "cut at 5 tokens, 6 were asked for"),
        (lambda: answer(replace(RESULT, incidents=(CAUGHT,))), "speculation was caught at token 2 by its audit"),
        (lambda: answer(replace(RESULT, notes=("speculation with 'x' was switched off: no",))), "switched off"),
        (lambda: answer(replace(RESULT, trace=TRACE[:2])), "the passes of the trace emitted 4 tokens"),
        (lambda: answer(replace(RESULT, trace=(TRACE[0], replace(TRACE[1], accepted=(0,)), TRACE[2]))), "1 drafts were accepted by the trace"),
        (lambda: answer(replace(RESULT, trace=(TRACE[0], replace(TRACE[1], parent=(-1, -1, 1)), TRACE[2]))), "no path of its tree"),
        (lambda: answer(replace(RESULT, trace=(TRACE[0], replace(TRACE[1], tokens=(2, 7, 9)), TRACE[2]))), "not what it emitted"),
    ],
)  # fmt: skip
def test_every_way_of_not_adding_up_is_said(wrong: Callable[[], Answer], said: str | None) -> None:
    found = list(complaints(wrong()))
    assert (found == []) if said is None else any(said in why for why in found), found


def test_a_server_that_counts_passes_only_is_held_to_bounds() -> None:
    told = Usage(output_tokens=10, passes=3, verify_passes=3, proposed=9, accepted=6)
    assert list(balance(told)) == []
    assert list(balance(replace(told, output_tokens=11))) != []  # more than 1 + 6 + 3
    assert list(balance(replace(told, output_tokens=5))) != []  # more was trimmed than a draft holds
    assert (
        list(balance(told, 11, samples=2)) == [] != list(balance(told, 12, samples=2))
    )  # each sample's first token came with the prompt
    places = replace(told, proposed_by_position=(3, 3, 3), accepted_by_position=(3, 2, 1))
    assert list(balance(places)) == []
    assert any("7 by position" in why for why in balance(replace(places, accepted_by_position=(3, 2, 2))))


def test_totals_are_sums_by_position_too() -> None:
    found = totals([answer(), answer()])
    assert found["output_tokens"] == 10 and found["proposed_by_position"] == [4, 2, 2] and found["acceptance"] == 0.5
    assert found["tokens_per_pass"] == pytest.approx(10 / 6)


def test_acceptance_beyond_belief_on_text_that_repeats_itself_is_flagged() -> None:
    ids = tuple([1, 2] * 40)
    high = replace(USAGE, proposed=60, accepted=60)
    assert repetition(ids) > 0.9 and repetition(range(80)) == 0.0 and repetition([1]) == 0.0
    assert flags([answer(replace(RESULT, token_ids=ids, usage=high))]) and not flags([answer(replace(RESULT, usage=high))])
    assert not flags([answer(replace(RESULT, token_ids=ids))])


def test_a_drafter_that_did_nothing_in_a_part_is_named() -> None:
    rows = {
        "greedy": {"output_tokens": 5, "accepted": 2, "proposed": 4},
        "sampled": {"output_tokens": 5, "accepted": 0, "proposed": 0},
    }
    assert list(idle(rows, "mtp")) == ["speculation (mtp) is not proven active in the part sampled: no draft was counted"]
