"""Ends in drafts: the law finds its own stop ids; and the books of a drafter that knows another model."""

from __future__ import annotations

import pytest

from toolkit.contracts import Completion, PassTrace
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.accounting import foreign
from toolkit.gate.arm import Arm
from toolkit.gate.ends import _drafted, check_ends
from toolkit.gate.faults import FAULTS
from toolkit.gate.report import Findings
from toolkit.gate.teeth import open_arm


@pytest.mark.parametrize("fault", ["", "end_in_draft_ignored"])
def test_a_text_ends_where_its_end_was_drafted_or_is_held(fault: str) -> None:
    findings = Findings()
    with EmbeddedEngine("tiny", format="float32") as plain, open_arm("model") as engine:
        if fault:
            FAULTS.load(fault)(engine)
        found = check_ends(Arm("baseline", plain), Arm("candidate", engine), findings, tier="quick", seed=0)
    assert found["ends"] >= 3 and bool(found["wrong"]) == bool(findings.holds) == bool(fault)


def test_only_tokens_that_were_drafted_and_stand_in_no_earlier_place_are_made_ends() -> None:
    passes = (PassTrace((), (), (), (7,)), PassTrace((8, 7), (-1, 0), (0, 1), (8, 7, 9)), PassTrace((5,), (-1,), (), (4,)))
    text = Completion(text="", token_ids=(7, 8, 7, 9, 4), finish_reason="length", trace=passes)
    assert list(_drafted(text)) == [8]


def test_without_a_trace_the_places_are_fixed() -> None:
    text = Completion(text="", token_ids=tuple(range(10)), finish_reason="length")
    assert list(_drafted(text)) == [4, 7]


@pytest.mark.parametrize(("tried", "taken", "held"), [(400, 3, True), (400, 4, False), (199, 0, False), (0, 0, False)])
def test_a_drafter_is_held_that_as_good_as_never_guesses_the_first_token(tried: int, taken: int, held: bool) -> None:
    row = {"proposed_by_position": [tried] if tried else [], "accepted_by_position": [taken] if taken else []}
    assert bool(foreign(row, "mtp")) == held
