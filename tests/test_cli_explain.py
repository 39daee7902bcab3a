"""`toolkit explain`: the example's numbers, the fields of --json, what is refused."""

from __future__ import annotations

import json

import pytest

from toolkit.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    return main(("explain", "speculation", *arguments)), *capsys.readouterr()


def test_the_example_is_there_without_options_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    for said in (
        "54 GB / 1.79 TB/s = 30.17 ms", "33.15 tokens a second", "= 3.362 tokens", "1 + 0.8 + 0.64 + 0.512 + 0.4096",
        "111.4 tokens a second", "116.8 rows", "from 79 sequences on it does not pay", "1.49x", "0.297x",
    ):  # fmt: skip
        assert said in out


def test_the_same_as_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "--json", "--acceptance", "0.5", "--tokens", "2", "--draft-bytes", "1e9", "--draft-params", "5e8"
    )
    found = json.loads(out)
    assert code == 0 and out.count("\n") == 1
    assert found["expected_tokens_per_pass"] == 1.75 and found["draft"]["weight_bytes"] == 1e9
    assert {"batch", "plain_tok_s", "speculative_tok_s", "speedup", "bound"} == set(found["batches"][0])
    assert found["batches"][0]["speedup"] < 1.75


def test_a_certain_draft_and_one_that_always_pays_have_words_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--acceptance", "1", "--flops", "1e30")
    assert code == 0 and "gives 5." in out and "still pays at 65536" in out


def test_a_drafter_that_computes_more_than_it_reads_is_charged_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--tokens", "1", "--draft-params", "1e12")
    assert "The drafter takes 9.569 ms" in out and "verifies 1 drafted token. " in out and "one further row is free" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--acceptance", "1.5"),
        ("--tokens", "0"),
        ("--bandwidth", "0"),
        ("--bytes", "nan"),
        ("--kv-bytes", "-1"),
        ("--bandwidth", "1e-300"),
        ("--params", "1e300"),
        ("--bytes", "1e308"),
        ("--draft-params", "inf"),
    ],
)
def test_numbers_that_mean_nothing_are_a_wrong_call(capsys: pytest.CaptureFixture[str], arguments: tuple[str, str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "") and err
