"""Canaries: frozen, complete, well-formed; and each kind of check has something that it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
from html import escape
from pathlib import Path
from typing import Any

import pytest

from toolkit.contracts import Completion, Grammar, Request, SamplingParams, Usage
from toolkit.errors import InputError
from toolkit.gate.asking import is_certain, request_of
from toolkit.gate.canaries import CORPUS, FOLDER, LOCK, Canary, digest, load
from toolkit.gate.checks import ACROSS, CHECKS
from toolkit.text.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()
PAGE = Path(__file__).parents[2] / "docs" / "gate.md"
WANTED = (
    "exact_output", "decimals", "json_flat", "json_nested", "json_arrays", "json_after_thinking", "tools_free", "tools_forced",
    "tools_parallel", "code", "recall", "long_prompt", "needle_8k", "hot_cache", "streaming", "stop_in_a_burst", "penalties",
    "logit_bias", "filters_meet_greedy", "filters_in_order", "min_tokens", "max_tokens", "seeds", "unicode", "repetition",
)  # fmt: skip


class Named:
    """An engine as far as a request needs one."""

    tokenizer = BYTES

    class capabilities:  # noqa: N801
        context = 4096
        engine = "embedded"


def test_every_canary_is_the_one_that_was_frozen_and_none_is_missing() -> None:
    locked = json.loads(LOCK.read_text())
    assert locked == {file.name: digest(file) for file in [*sorted(FOLDER.glob("*.toml")), CORPUS]}
    names = [each.name for each in load("full")]
    assert set(WANTED) <= set(names)
    assert {each.name for each in load("full")} - {each.name for each in load("quick")} == {"needle_8k"}


@pytest.mark.parametrize("how", ["changed", "added", "removed", "unknown key"])
def test_a_canary_that_is_not_the_frozen_one_runs_nothing(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "canaries"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    assert len(load("full", folder)) == len(load("full"))
    file = folder / "choices.toml"
    if how == "changed":
        file.write_text(file.read_text().replace("maybe", "perhaps"))
    elif how == "added":
        (folder / "new.toml").write_text(file.read_text())
    elif how == "removed":
        file.unlink()
    else:
        file.write_text(file.read_text().replace("[[ask]]", "[[ask]]\nmodel = 'x'", 1))
        (folder / LOCK.name).write_text(json.dumps(json.loads(LOCK.read_text()) | {file.name: digest(file)}))
    with pytest.raises(InputError):
        load("full", folder)


@pytest.mark.parametrize("canary", load("full"), ids=lambda each: each.name)
def test_a_canary_says_why_it_is_there_and_asks_what_can_be_asked(canary: Any) -> None:
    assert len(canary.why) > 40 and canary.tier in ("quick", "full") and canary.asks
    requests = [request_of(ask, Named, ()) for ask in canary.asks]  # type: ignore[arg-type]
    assert all(isinstance(each, Request) for each in requests)
    assert canary.checks or all(is_certain(each.sampling) for each in requests)
    for check in canary.checks:
        assert check["kind"] in CHECKS or check["kind"] in ACROSS or check["kind"] == "streamed"


def checked_by(canary: Canary) -> str:
    """Its checks, and which of its answers must be the baseline's, token for token."""
    requests = [request_of(ask, Named, ()) for ask in canary.asks]  # type: ignore[arg-type]
    kinds = dict.fromkeys(str(check["kind"]).replace("_", " ") for check in canary.checks)
    certain = all(is_certain(each.sampling) for each in requests)
    same = "the baseline's tokens" if certain else "the baseline's tokens, of drafters that draw nothing"
    return "; ".join([*kinds, same])


def table() -> str:
    rows = [
        f"| {each.name.replace('_', ' ')}{'' if each.tier == 'quick' else ' (full tier)'} | {escape(each.why, quote=False)} | {checked_by(each)} |"
        for each in load("full")
    ]
    return "\n".join(["| canary | why it is there | checked by |", "|---|---|---|", *rows, ""])


def test_the_table_of_canaries_in_the_page_is_that_of_their_files() -> None:
    """UPDATE_README=1 with this test writes it."""
    text = PAGE.read_text(encoding="utf-8")
    fresh = re.sub(r"(<!-- generated: canaries -->\n).*?(<!-- end -->)", lambda m: m[1] + table() + m[2], text, flags=re.DOTALL)
    if os.environ.get("UPDATE_README"):
        PAGE.write_text(fresh, encoding="utf-8")
    assert "<!-- generated: canaries -->" in text
    assert PAGE.read_text(encoding="utf-8") == fresh, "run UPDATE_README=1 pytest tests/gate/test_canaries.py"


def asked(grammar: Grammar | None = None, **sampling: Any) -> Request:
    return Request(prompt="x", sampling=SamplingParams(**sampling), grammar=grammar)


def said(text: str, **more: Any) -> Completion:
    return Completion(**{"text": text, "token_ids": tuple(BYTES.encode(text)), "finish_reason": "stop", **more})


SCHEMA = Grammar("json_schema", '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}')
TOOLS = '[{"name":"go","parameters":{"type":"object","properties":{"to":{"type":"string"}},"required":["to"]}}]'
CALL = '<tool_call>{"name": "go", "arguments": {"to": "x"}}</tool_call>'
HERMES = {"format": "hermes", "tools": TOOLS}
END = BYTES.eos_ids[0]
STOP = asked(stop=("ab",), max_tokens=9)


@pytest.mark.parametrize(
    ("kind", "request_", "told", "good", "bad"),
    [
        ("exact", asked(), {"text": "A-1"}, said(" A-1\n"), said("A-1.")),
        ("begins", asked(), {"text": "9.9"}, said("9.9 is"), said("9.11")),
        ("contains", asked(), {"text": "Marlin"}, said("It is marlin."), said("It is Martin.")),
        ("one_of", asked(), {"texts": ["yes", "no"]}, said("no"), said("nono")),
        ("json", asked(SCHEMA), {}, said('{"a":1}'), said('{{"a":1}')),
        ("json", asked(SCHEMA), {}, said('{"a":1}'), said('{"a":"1"}')),
        ("json", asked(), {"after": "</t>"}, said("<t>x</t>[1]"), said("[1]")),
        ("json", asked(), {"value": "[1, 2]"}, said("[1,2]"), said("[1,2,2]")),
        ("calls", asked(), {**HERMES, "names": ["go"]}, said(CALL), said("I would go.")),
        ("calls", asked(), {**HERMES, "least": 2}, said(CALL + CALL), said(CALL)),
        ("calls", asked(), {**HERMES, "least": 0}, said("no"), said("<tool_call><tool_call>{}")),
        ("code", asked(), {"tests": "assert f(1) == 2"}, said("```python\ndef f(x):\n    return x + 1\n```"), said("def f(x) return")),
        ("code", asked(), {"tests": "assert f(1) == 2"}, said("def f(x): return 2"), said("def f(x): return x")),
        ("stop", STOP, {}, said("x", token_ids=tuple(BYTES.encode("xab")), matched_stop="ab"), said("xab", finish_reason="length")),
        ("stop", STOP, {}, said("xa", finish_reason="length"), said("x", token_ids=tuple(BYTES.encode("xcab")), matched_stop="ab")),
        ("banned", asked(), {"texts": ["e"]}, said("abc"), said("abce")),
        ("length", asked(max_tokens=3), {}, said("abc", usage=Usage(output_tokens=3)), said("abcd", usage=Usage(output_tokens=4))),
        ("ends_after", asked(min_tokens=2), {}, said("ab", token_ids=(97, 98, END)), said("a", token_ids=(97, END))),
        ("ends_after", asked(min_tokens=1), {}, said("a", token_ids=(97, END)), said("ab", token_ids=(97, 98, END))),
        ("whole_characters", asked(), {}, said("ä🙂"), said("ä\ufffd")),
        ("varied", asked(), {"most": 0.5}, said("abcdefghijklmnop"), said("abababababababab")),
    ],
)  # fmt: skip
def test_every_kind_of_check_accepts_and_refuses(
    kind: str, request_: Request, told: dict[str, Any], good: Completion, bad: Completion
) -> None:
    assert CHECKS[kind](request_, good, told, BYTES) == ""
    assert CHECKS[kind](request_, bad, told, BYTES) != ""


def test_answers_are_compared_with_each_other() -> None:
    texts = {0: said("a"), 1: said("a"), 2: said("b")}
    assert ACROSS["same"](texts, [0, 1]) == "" and ACROSS["same"](texts, [0, 2])
    assert ACROSS["different"](texts, [0, 2]) == "" and ACROSS["different"](texts, [0, 1])


@pytest.mark.parametrize("text", ["", "\ufffd", "\x00", "{" * 3000, "```python\n" + "(" * 3000, "\ud800", "<tool_call>" * 500])
@pytest.mark.parametrize("kind", list(CHECKS))
def test_no_text_that_a_model_may_write_raises_anything(kind: str, text: str) -> None:
    told = {"text": "x", "texts": ["x"], **HERMES, "least": 1, "tests": "assert False", "most": 0.5}
    result = Completion(text=text, token_ids=(), finish_reason="length")
    assert isinstance(CHECKS[kind](asked(SCHEMA), result, told, BYTES), str)
