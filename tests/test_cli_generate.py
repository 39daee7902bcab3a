"""`toolkit generate` with a drafter: the same text, its marks, trees and books, and events as lines of JSON."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console, RenderableType

from tests.bench.bench_scripted import Bytes
from toolkit.cli import main, trace
from toolkit.contracts import Completion, PassTrace

TINY = ("--model", "tiny", "--kv-blocks", "256", "--raw", "--ignore-eos", "--max-tokens", "30")
DRAFT = ("--drafter", "model", "--tokens", "3", "--nodes", "6", "--draft-option", "width=2", "--draft-option", "floor=0")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    return main(("generate", "ab ab ab ab", *arguments)), *capsys.readouterr()


def last(text: str) -> Any:
    return json.loads(text.splitlines()[-1])


def test_a_drafter_changes_the_cost_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    _, plain, _ = run(capsys, *TINY, "--json")
    code, out, err = run(capsys, *TINY, *DRAFT, "--json")
    before, after = last(plain), last(out)
    assert code == 0 and "note:" not in err
    assert (after["text"], after["token_ids"]) == (before["text"], before["token_ids"])
    usage = after["usage"]
    assert {"input_tokens", "output_tokens", "passes", "proposed", "accepted", "accepted_by_position"} <= set(usage)
    assert usage["proposed"] > 0 == before["usage"]["proposed"] and sum(usage["accepted_by_position"]) == usage["accepted"]
    assert {"ttft_s", "e2e_s", "decode_tok_s"} <= set(after["timing"])
    books = after["accounting"]
    assert books["unexplained_tokens"] == 0 and books["tokens_per_pass"] == 30 / usage["steps"]
    assert books["per_token"]["speculative"]["target_flops"] > books["per_token"]["plain"]["target_flops"]


def test_the_engine_s_name_may_hold_the_drafter(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--engine", "embedded:ngram", "--tokens", "2", "--draft-option", "min_match=1", *TINY, "--json")
    assert code == 0 and last(out)["usage"]["draft_s"] > 0


def test_trace_goes_to_stderr_with_a_tree_a_pass_and_the_text_stays_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    _, plain, _ = run(capsys, *TINY)
    code, out, err = run(capsys, *TINY, *DRAFT, "--trace")
    assert (code, out) == (0, plain)
    assert trace.LEGEND in err and "pass 2: 6 drafted" in err and "what it cost" in err and "% of the time" in err
    _, out, _ = run(capsys, *TINY, *DRAFT, "--trace", "--json")
    assert [token for step in last(out)["trace"] for token in step["emitted"]] == last(out)["token_ids"]


def test_events_are_lines_of_json_that_hold_the_result_which_comes_last(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {}
    for option in ("--events", "--token-events"):
        code, out, _ = run(capsys, *TINY, *DRAFT, "--logprobs", "1", "--temperature", "1", "--seed", "3", "--n", "2", option)
        *events, result = map(json.loads, out.splitlines())
        assert code == 0 and {event["event"] for event in events} == {"delta"}
        for index, sample in enumerate(result["samples"]):
            own = [event for event in events if event["index"] == index]
            assert "".join(event["text"] for event in own) == sample["text"]
            assert [token for event in own for token in event["token_ids"]] == sample["token_ids"]
            assert [score for event in own for score in event["logprobs"]] == sample["logprobs"]
            assert own[-1]["usage"]["output_tokens"] == len(sample["token_ids"])
        lines[option] = events
    assert {len(event["token_ids"]) for event in lines["--token-events"]} == {1}
    assert len(lines["--events"]) <= len(lines["--token-events"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tokens", "3"), "without a drafter"),
        (("--drafter", "psychic"), "'psychic' is unknown"),
        (("--drafter", "ngram", "--tokens", "0"), "draft option tokens = 0"),
        (("--drafter", "ngram", "--nodes", "65"), "draft option nodes = 65"),
        (("--drafter", "ngram", "--draft-option", "min_match"), "is not NAME=VALUE"),
        (("--drafter", "ngram", "--draft-option", "a..b=1"), "is not NAME=VALUE"),
        (("--drafter", "ngram", "--draft-option", "width=1", "--draft-option", "width=2"), "given before"),
        (("--drafter", "ngram", "--draft-option", "width=1", "--draft-option", "width.a=2"), "has no parts"),
        (("--drafter", "ngram", "--draft-option", "width=wide"), "option 'width' of drafter 'ngram' = 'wide'"),
        (("--drafter", "ngram", "--draft-option", "colour=red"), "no option 'colour'"),
        (("--engine", "embedded:ngram", "--drafter", "model"), "disagree"),
        (("--drafter", "mtp", "--draft-option", "head=/no/such"), "error: drafter 'mtp': /no/such/card.json is no card"),
    ],
)
def test_a_draft_that_cannot_be_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = run(capsys, *TINY, *arguments)
    assert (code, out) == (2, "") and said in err and "Traceback" not in err


def test_a_beam_search_says_that_it_leaves_the_drafter_out(capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for name in ("embedded", "embedded:ngram"):
        found = main(
            ("beam", "x", "--engine", name, "--model", "tiny", "--raw", "--choice", "ab", "--choice", "cd", "--width", "2")
        )
        said[name] = (found, *capsys.readouterr())
    (code, out, err), (other_code, other_out, other_err) = said.values()
    note = "note: a beam search is never speculated: the drafter 'ngram' is left out"
    assert (code, out) == (other_code, other_out) == (0, out) and note not in err and note in other_err


# --- what a trace looks like ------------------------------------------------------------------------------------------

#   root -+- a -+- b          accepted a, b; then C
#         |     +- x
#         +- y
TREE = PassTrace(tuple(b"aybx"), (-1, -1, 0, 0), (0, 2), tuple(b"abC"))


def shown(what: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(what)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(
    ("step", "kinds"),
    [
        (PassTrace((), (), (), tuple(b"a")), ["plain"]),
        (PassTrace((), (), (), tuple(b"abc")), ["plain", "forced", "forced"]),
        (TREE, ["accepted", "accepted", "bonus"]),
        (PassTrace(TREE.tokens, TREE.parent, (0,), tuple(b"aC")), ["accepted", "corrected"]),
        (PassTrace(TREE.tokens, TREE.parent, (), tuple(b"CD")), ["corrected", "forced"]),
        (PassTrace(TREE.tokens, TREE.parent, (1,), tuple(b"yC")), ["accepted", "bonus"]),
        (PassTrace(TREE.tokens, TREE.parent, (0, 2), tuple(b"ab")), ["accepted", "accepted"]),
    ],
)
def test_every_emitted_token_is_of_one_kind(step: PassTrace, kinds: list[str]) -> None:
    assert trace.kinds(step) == kinds


def test_marks_say_without_colour_what_was_drafted() -> None:
    steps = (
        PassTrace((), (), (), tuple(b"T")),
        TREE,
        PassTrace(tuple(b"q"), (-1,), (), tuple(b"rs")),
    )
    ids = tuple(token for step in steps for token in step.emitted)
    done = Completion(text="TabCrs", token_ids=ids, finish_reason="length", trace=steps)
    assert shown(trace.marked(done, Bytes())) == "T[ab]+C~r=s\n"


def test_the_tree_of_a_pass_shows_what_was_drafted_what_was_right_and_what_came() -> None:
    assert shown(trace.tree(7, TREE, Bytes())).splitlines() == [
        "pass 7: 4 drafted, 2 accepted, 3 tokens",
        '├── "a" accepted',
        '│   ├── "b" accepted',
        '│   │   └── "C" bonus',
        '│   └── "x"',
        '└── "y"',
    ]


def test_a_token_cannot_move_the_cursor_or_forge_a_line() -> None:
    step = PassTrace((0x1B, 10), (-1, 0), (0,), (0x1B, ord("[")))
    done = Completion(text="", token_ids=step.emitted, finish_reason="length", trace=(step,))
    assert shown(trace.marked(done, Bytes())) == "[\\x1b]~[\n"
    text = shown(trace.tree(1, step, Bytes()))
    assert '"\\u001b" accepted' in text and '"\\n"' in text and "\x1b" not in text
    assert trace.visible("a\u202eb\u2028\x9b") == "a\\x202eb\\x2028\\x9b"


def test_a_character_of_several_tokens_stands_where_it_is_complete() -> None:
    assert list(trace.token_texts("é!".encode(), Bytes())) == ["", "é", "!"]
