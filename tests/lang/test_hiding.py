"""Keys on a server's command line are in nothing that is shown or kept."""

from __future__ import annotations

import os
import sys

import pytest

from toolkit.lang.hiding import HIDDEN, Hider, hidden, secrets_of
from toolkit.lang.launch import launch
from toolkit.lang.supervise import Supervised

KEY = "sk-it's\\secret"
PRINTS = "import sys; print({'api_key': sys.argv[2]}); print('x' * 4090 + sys.argv[2]); print(sys.argv[2], end='')"


@pytest.mark.parametrize("given", [["--api-key", KEY], [f"--api-key={KEY}"], ["--admin-api-key", KEY], ["--api-k", KEY]])
def test_a_key_is_found_however_its_flag_is_written(given: list[str]) -> None:
    assert secrets_of(["python", "-m", "x", *given, "--tp", "2"]) == (KEY,)
    assert KEY not in " ".join(hidden(each, (KEY,)) for each in given)


@pytest.mark.parametrize("command", [[], ["--api-key"], ["--tp", "2"], ["--api-key="], ["--a", KEY]])
def test_where_there_is_no_key_nothing_is_hidden(command: list[str]) -> None:
    assert secrets_of(command) == ()
    assert hidden("text", secrets_of(command)) == "text"


def test_of_keys_that_hold_each_other_none_shows_a_part() -> None:
    assert hidden("abcdef abc", ("abc", "abcdef")) == f"{HIDDEN} {HIDDEN}"


@pytest.mark.parametrize("text", [f"a {KEY} b", KEY, f"{KEY}{KEY}", f"{KEY!r}", "nothing here", ""])
def test_a_line_in_pieces_hides_what_the_whole_line_hides(text: str) -> None:
    whole = hidden(text, (KEY,))
    for size in (1, 2, 3, 7, 100):
        hider = Hider((KEY,))
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        assert "".join(hider.feed(piece, ends=False) for piece in pieces) + hider.feed("", ends=True) == whole


def test_the_log_of_a_server_that_prints_its_key_does_not_hold_it() -> None:
    heard: list[str] = []
    process = Supervised([sys.executable, "-c", PRINTS, "--api-key", KEY], os.environ, watch=heard.append)
    assert process.wait(60) == 0
    process.stop()
    assert "".join(heard).count(HIDDEN) == 3 and process.lines == heard
    assert KEY not in "".join(heard) and "secret" not in "".join(heard)


def test_a_command_is_run_with_its_key_and_shown_without() -> None:
    plan = launch("owner/name", device="cuda", flags=("--api-key", KEY))
    assert KEY in plan.command and KEY not in plan.shown
    assert [shown if shown != HIDDEN else KEY for shown in plan.shown] == list(plan.command)
