"""The command line: exit codes, what goes to which stream, and the promised fields, with the random tiny model."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import pytest

import toolkit
from toolkit.cli import app, main
from toolkit.contracts import Report, Violation
from toolkit.errors import EngineError, InputError, ToolkitError, UsageError

TINY = ("--model", "tiny", "--kv-blocks", "256")
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "size": {"enum": ["s", "m", "l"]}},
    "required": ["ok", "size"],
    "additionalProperties": False,
}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run one command in an empty folder that holds schemas/thing.schema.json: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "thing.schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "schemas" / "broken.schema.json").write_text("")
    (tmp_path / "latin-1.txt").write_bytes(b"caf\xe9")
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(arguments)
        return code, *capsys.readouterr()

    return call


def last(text: str) -> Any:
    return json.loads(text.splitlines()[-1])


# --- ways of ending ---------------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[..., Any]:
    def open_engine(name: str, **options: Any) -> Any:
        raise error

    return open_engine


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("bad width", hint="try 4"), 2, "error: bad width\nhint: try 4\n"),
        (InputError("bad file"), 2, "error: --model smollm2: bad file\n"),
        (EngineError("dead"), 3, "error: dead\n"),
        (MemoryError(), 3, "error: model smollm2 does not fit into memory\nhint: --dtype bfloat16, --kv-blocks\n"),
        (RuntimeError("can't allocate memory"), 3, "does not fit into memory"),
        (OverflowError("int too big to convert"), 2, "error: a number is too large: int too big to convert\n"),
        (FileNotFoundError(2, "No such file", "x/y"), 3, "error: x/y: No such file\n"),
        (PermissionError(13, "Permission denied", b"x/y"), 3, "error: x/y: Permission denied\n"),
        (ZeroDivisionError("oops"), 3, "error: ZeroDivisionError: oops (unexpected: toolkit --debug shows where)\n"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_every_way_of_failing_has_its_exit_code_and_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    monkeypatch.setattr(toolkit, "open_engine", raising(error))
    got, out, err = run("generate", "hello")
    assert (got, out) == (code, "")
    assert said in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(InputError("bad answer"), 1, "error: bad answer\n"), (MemoryError(), 3, "error: out of memory\nhint: fewer --kv-blocks")],
)
def test_so_does_failing_while_decoding(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, said: str
) -> None:
    monkeypatch.setattr("toolkit.cli.generate.answered", raising(error))
    got, out, err = run("generate", "hello", *TINY)
    assert (got, out) == (code, "") and said in err and "(unexpected" not in err


def test_debug_shows_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "open_engine", raising(ZeroDivisionError("oops")))
    code, _, err = run("--debug", "generate", "hello")
    assert code == 3 and "Traceback" in err


def test_every_error_class_has_an_exit_code_of_the_table() -> None:
    def below(kind: type[ToolkitError]) -> list[type[ToolkitError]]:
        return [kind, *(sub for child in kind.__subclasses__() for sub in below(child))]

    assert {kind.exit_code for kind in below(ToolkitError)} == {1, 2, 3}


@pytest.mark.parametrize(
    "arguments",
    [
        ("nope",),
        ("generate",),
        ("generate", "hello", "--nope"),
        ("generate", "hello", "--top-p", "2"),
        ("generate", "hello", "--logit-bias", "x"),
        ("generate", "hello", "--raw", "--system", "s"),
        ("generate", "@missing.txt"),
        ("generate", "hello", "--regex", "a", "--choice", "b"),
        ("generate", "hello", "--logit-bias", "3=1", "--logit-bias", "3=2"),
        ("generate", ""),
        ("generate", "@"),
        ("generate", "@schemas"),
        ("generate", "@/dev/zero"),
        ("generate", "hello", "--lark", "latin-1.txt"),
        ("generate", "hello", "--threads", "5000"),
        ("generate", "hello", "--kv-blocks", "99999999999"),
        ("generate", "hello", "--model", "tiny", "--seed", "-1"),
        ("bench", "peers", "--model", "tiny"),
        ("schema", "lint", "latin-1.txt"),
        ("schema", "show", "latin-1.txt"),
        ("bench", "quality", "--data", "latin-1.txt", "--model", "tiny"),
        ("bench", "quality", "--data", "no-such-file"),
        ("validate", "schemas", "--schema", "thing"),
        ("validate", "latin-1.txt", "--schema", "broken"),
        ("beam", "hello", "--schema", "broken"),
        ("extract", "in.jsonl", "--schema", "broken", "--out", "o"),
        ("extract", "-", "--schema", "thing", "--out", "o", "--resume"),
        ("extract", "in.jsonl", "--schema", "thing", "--out", "-"),
        ("extract", "in.jsonl", "--schema", "thing", "--out", "/dev/null"),
        ("extract", "in.jsonl", "--schema", "thing", "--out", "/proc/o", *TINY),
        ("extract", "in.jsonl", "--job", "latin-1.txt", "--out", "o"),
        ("generate", "hello", "--engine", "nope"),
        ("generate", "hello", "--engine", "http://localhost:1", "--model", "tiny"),
        ("generate", "hello", "--engine", "http://"),
        ("generate", "hello", *TINY, "--api-key", "k"),
        ("generate", "hello", "--model", "no-such-model"),
        ("beam", "hello", "--schema", "no-such-schema"),
        ("beam", "hello", "--schema", "thing", "--width", "0"),
        ("validate", "missing.json", "--schema", "thing"),
        ("extract", "missing.jsonl", "--schema", "thing", "--out", "o"),
        ("run", "no-such-program", *TINY),
        ("model", "show", "no-such-model"),
        ("demo", "--limit", "0"),
    ],
)
def test_a_wrong_call_is_exit_code_2_with_nothing_on_stdout(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err and "Traceback" not in err and "(unexpected" not in err


COMMANDS = {
    "generate": ("generate", "hello"),
    "beam": ("beam", "hello"),
    "extract": ("extract", "in.jsonl", "--schema", "thing", "--out", "o"),
    "validate": ("validate", "in.jsonl"),
    "quality": ("bench", "quality"),
    "formats": ("bench", "formats"),
    "kv": ("bench", "kv"),
    "jobs": ("bench", "jobs"),
    "calibrate": ("calibrate", "o", "--labels", "in.jsonl"),
    "start": ("bench", "start"),
    "prefix": ("bench", "prefix"),
    "cost": ("bench", "cost"),
    "peers": ("bench", "peers"),
    "schemas": ("bench", "schemas"),
    "plain": ("bench", "plain"),
    "speculation": ("bench", "speculation"),
    "equality": ("bench", "equality"),
    "drill": ("bench", "drill"),
    "data": ("train", "data", "--out", "o"),
    "mtp": ("train", "mtp", "--data", ".", "--out", "o"),
    "medusa": ("train", "medusa", "--data", ".", "--out", "o"),
    "export": ("train", "export", "--out", "o"),
    "server": ("bench", "server"),
    "serve": ("serve",),
    "demo": ("demo",),
    "gate": ("gate", "--candidate", "embedded:ngram"),
    "run": ("run", "no-such-program"),
    "pull": ("model", "pull"),
    "show": ("model", "show"),
    "review": ("review", "o"),
    "stats": ("stats", "o"),
    "infer": ("schema", "infer", "in.jsonl"),
    "lint": ("schema", "lint", "thing"),
}
MAY_BE_EMPTY = {"--system"}  # no system message is the default


def texts_and_paths() -> list[tuple[str, str]]:
    """Every option and argument of every command that takes a text or a path, the prompt and programs' own arguments left out."""

    def below(command: click.Command, name: str) -> list[tuple[str, str]]:
        if isinstance(command, click.Group):
            return [pair for key, each in command.commands.items() for pair in below(each, key)]
        kinds = (click.types.StringParamType, click.Path)
        taken = [each for each in command.params if isinstance(each.type, kinds) and isinstance(each, click.Option)]
        return [(name, option.opts[0]) for option in taken if option.opts[0] not in MAY_BE_EMPTY]

    return below(app.toolkit, "toolkit")


@pytest.mark.parametrize(("command", "option"), texts_and_paths())
def test_an_empty_text_is_never_taken_for_an_option_that_was_left_out(
    run: Run, tmp_path: Path, command: str, option: str
) -> None:
    code, out, err = run(*COMMANDS[command], option, "")
    assert (code, out) == (2, "")
    assert option in err and "it is empty" in err


@pytest.mark.parametrize(
    "arguments", [("extract", "", "--schema", "thing", "--out", "o"), ("model", "pull", ""), ("model", "show", "")]
)
def test_an_empty_argument_is_refused_too(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and "empty" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate", "hello", "--regex", "a", "--choice", "b"), "--regex and --choice exclude each other"),
        (("generate", "@no"), "error: no cannot be read: No such file or directory\nhint: @FILE reads a file"),
        (("generate", "hello", "--lark", "latin-1.txt"), "--lark latin-1.txt is not UTF-8: byte 3 is 0xe9"),
        (("beam", "hello", "--schema", "broken"), "schema broken: JSON text, line 1"),
        (("generate", "hello", "--lark", "bad.lark", *TINY), "--lark bad.lark: "),
        (("generate", "hello", "--regex", "(", *TINY), "--regex '(': "),
        (("beam", "hello", "--schema", "never.json", *TINY), "schema never.json: "),
        (("extract", "in.jsonl", "--schema", "never.json", "--out", "o", *TINY), "schema never.json: "),
        (("validate", "in.jsonl", "--schema", "poem.json"), "schema poem.json: schema at /type"),
        (("bench", "peers", "--model", "tiny"), "--model tiny has no folder"),
        (("extract", "in.jsonl", "--job", "job.toml", "--out", "o"), "job file job.toml: job option width = True: must be a valid integer"),
    ],
)  # fmt: skip
def test_an_error_names_the_option_and_the_file(run: Run, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "poem.json").write_text('{"type": "poem"}')
    (tmp_path / "never.json").write_text('{"type": "integer", "minimum": 5, "maximum": 4}')
    (tmp_path / "bad.lark").write_text("start: nothing")
    (tmp_path / "job.toml").write_text('schema = "thing"\nwidth = true\n')
    assert said in run(*arguments)[2]


def shell(folder: Path, line: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", line.replace("toolkit", f"{sys.executable} -m toolkit")], cwd=folder, capture_output=True
    )


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("toolkit validate v.json --schema thing --json > /dev/full", 3, b"stdout cannot be written: No space left on device"),
        ("toolkit validate v.json --schema thing --json >&-", 3, b"stdout is closed"),
        ("toolkit validate - --schema thing <&-", 2, b"stdin is closed"),
        ("toolkit validate v.json --schema thing 2>&-", 0, b""),
        ("cat v.json | toolkit validate /dev/stdin --schema thing", 0, b"valid"),
        ("toolkit validate <(cat v.json) --schema thing", 0, b"valid"),
        ("mkdir gone; cd gone; rmdir ../gone; toolkit validate ../v.json --schema thing", 3, b"current folder does not exist"),
    ],
)
def test_streams_and_folders_that_are_not_there_are_said_so(
    run: Run, tmp_path: Path, line: str, code: int, said: bytes
) -> None:
    (tmp_path / "v.json").write_text('{"ok": true, "size": "s"}')
    ended = shell(tmp_path, line)
    assert (ended.returncode, said in ended.stderr) == (code, True), ended.stderr
    assert b"Traceback" not in ended.stderr and b"unexpected" not in ended.stderr and b"Exception" not in ended.stderr


def test_no_command_prints_help() -> None:
    assert main([]) == 2


def test_a_reader_that_went_away_ends_the_command_quietly(run: Run, tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text('{"ok": true, "size": "s"}')
    command = [sys.executable, "-m", "toolkit", "validate", "v.json", "--schema", "thing", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 141
    assert b"Traceback" not in err and b"Exception" not in err


# --- validate ---------------------------------------------------------------------------------------------------------


def test_a_valid_document_is_exit_code_0(run: Run, tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text('{"ok": true, "size": "s"}')
    code, out, _ = run("validate", "v.json", "--schema", "thing", "--json")
    assert code == 0
    assert last(out) == {"valid": True, "undecided": False, "violations": []}


def test_an_invalid_document_is_exit_code_1_with_every_violation(run: Run, tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text('{"ok": 1, "size": "xl"}')
    code, out, err = run("validate", "v.json", "--schema", "thing", "--json")
    found = last(out)
    assert code == 1 and found["valid"] is False
    assert {item["path"] for item in found["violations"]} == {"/ok", "/size"}
    assert all(item.keys() == {"path", "keyword", "expected", "found", "message"} for item in found["violations"])
    assert "/size" in err


UNDECIDED = Violation("", "undecided", "a verdict", "1", "not decided in time")
FAULT = Violation("/ok", "type", "boolean", "1", "1 is no boolean")


@pytest.mark.parametrize(
    ("violations", "code", "undecided"),
    [((), 0, False), ((UNDECIDED,), 3, True), ((FAULT,), 1, False), ((FAULT, UNDECIDED), 1, False)],
)
def test_no_verdict_is_neither_valid_nor_not(
    run: Run, monkeypatch: pytest.MonkeyPatch, violations: tuple[Violation, ...], code: int, undecided: bool
) -> None:
    monkeypatch.setattr("toolkit.validate.check.Validator.check", lambda self, text: Report(1, violations))
    got, out, err = run("validate", "in.jsonl", "--schema", "thing", "--json")
    assert (got, last(out)["undecided"], "undecided: neither" in err) == (code, undecided, undecided)


@pytest.mark.slow
def test_a_schema_that_runs_out_of_time_is_undecided(run: Run, tmp_path: Path) -> None:
    levels = {f"a{n}": {"anyOf": [{"items": {"$ref": f"#/$defs/a{n + 1}"}}] * 8} for n in range(12)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**levels, "a12": {"type": "string"}}}
    (tmp_path / "slow.json").write_text(json.dumps(schema))
    (tmp_path / "v.json").write_text("[" * 12 + "1" + "]" * 12)
    code, out, _ = run("validate", "v.json", "--schema", "slow.json", "--json")
    assert (code, last(out)["undecided"]) == (3, True)


def test_validate_reads_stdin_and_a_text_that_is_no_json_is_invalid(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"ok": true')))
    code, out, _ = run("validate", "-", "--schema", "thing", "--json")
    assert code == 1 and last(out)["valid"] is False


TOOLS = '{"tools": [{"type": "function", "function": {"name": "go", "parameters": {"properties": {"to": {"type": "string"}}, "required": ["to"]}}}]}'
CALL = '<tool_call>{"name": "go", "arguments": {"to": "Porto"}}</tool_call>'


def test_tool_calls_of_a_models_output_are_listed_with_its_content_and_errors(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(TOOLS)
    (tmp_path / "out.txt").write_text(f"<think>Hm.</think>On it. {CALL}")
    code, out, err = run("validate", "out.txt", "--tools", "tools.json", "--json")
    found = last(out)
    assert (code, found["calls"], found["content"], found["errors"]) == (
        0,
        [{"name": "go", "arguments": {"to": "Porto"}}],
        "On it.",
        [],
    )
    assert found["reasoning"] == "Hm." and "valid" in err
    code, out, err = run("validate", "out.txt", "--tools", "tools.json", "--format", "hermes", "--choice", "none", "--json")
    assert (
        code == 1 and last(out)["calls"] == [] and last(out)["errors"][0]["keyword"] == "tool_choice" and "/calls/0/name" in err
    )


def test_a_reply_without_a_call_is_valid_and_that_there_is_none_is_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(TOOLS)
    (tmp_path / "out.txt").write_text('<|python_tag|>{"name": "go", "parameters": {"to": "Porto"}}')  # of another format
    code, _, err = run("validate", "out.txt", "--tools", "tools.json")
    assert code == 0 and "valid: no tool call in the format hermes" in err and "--choice required" in err
    (tmp_path / "out.txt").write_text(CALL)
    assert "valid: 1 call\n" in run("validate", "out.txt", "--tools", "tools.json")[2]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "one of --schema and --tools"),
        (("--schema", "thing", "--tools", "tools.json"), "one of --schema and --tools"),
        (("--schema", "thing", "--choice", "none"), "--choice goes with --tools"),
        (("--tools", "tools.json", "--format", "nothing"), "known are deepseek"),
        (("--tools", "tools.json", "--choice", "stop"), "auto, required, none, go"),
        (("--tools", "in.jsonl"), "tools"),
        (("--tools", "no.json"), "no.json cannot be read"),
    ],
)
def test_what_validate_cannot_do_with_tools_is_exit_code_2(
    run: Run, tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    (tmp_path / "tools.json").write_text(TOOLS)
    code, out, err = run("validate", "in.jsonl", *options)
    assert (code, out) == (2, "") and why in err


# --- generate ---------------------------------------------------------------------------------------------------------


def test_generate_streams_the_text_that_json_reports(run: Run) -> None:
    arguments = ("generate", "hello", *TINY, "--max-tokens", "12", "--temperature", "1", "--seed", "3", "--ignore-eos")
    code, out, _ = run(*arguments)
    assert code == 0
    code, as_json, _ = run(*arguments, "--json")
    found = last(as_json)
    assert as_json.count("\n") == 1
    assert found["text"] + "\n" == out
    assert len(found["token_ids"]) == 12 == found["usage"]["output_tokens"]
    assert {"input_tokens", "output_tokens", "passes", "proposed", "accepted", "accepted_by_position"} <= found["usage"].keys()
    assert {"ttft_s", "e2e_s", "decode_tok_s"} <= found["timing"].keys()


def test_several_samples_are_all_reported(run: Run) -> None:
    arguments = ("generate", "hello", *TINY, "--max-tokens", "4", "--temperature", "1", "--seed", "3", "--n", "3")
    code, out, _ = run(*arguments, "--json")
    found = last(out)
    assert code == 0 and len(found["samples"]) == 3
    assert found["samples"][0]["text"] == found["text"]


def test_a_constrained_text_is_checked_and_a_cut_one_is_exit_code_1(run: Run) -> None:
    code, out, _ = run("generate", "hello", *TINY, "--schema", "thing", "--json")
    found = last(out)
    assert code == 0 and found["valid"] is True and found["value"].keys() == {"ok", "size"}
    code, out, err = run("generate", "hello", *TINY, "--schema", "thing", "--max-tokens", "5", "--json")
    assert code == 1 and last(out)["valid"] is False and "NOT VALID" in err


@pytest.mark.parametrize(
    ("option", "allowed"), [(("--regex", "[ab]{3}"), None), (("--choice", "yes", "--choice", "no"), ("yes", "no"))]
)
def test_regex_and_choices_constrain_too(run: Run, option: tuple[str, ...], allowed: tuple[str, ...] | None) -> None:
    code, out, _ = run("generate", "hello", *TINY, *option)
    assert code == 0
    assert out.strip() in allowed if allowed else set(out.strip()) <= {"a", "b"} and len(out.strip()) == 3


def test_a_prompt_can_come_from_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("hello")
    arguments = (*TINY, "--max-tokens", "4", "--raw")
    assert run("generate", "@p.txt", *arguments)[1] == run("generate", "hello", *arguments)[1]


# --- beam -------------------------------------------------------------------------------------------------------------


def test_beam_prints_the_value_and_with_json_every_promised_field(run: Run) -> None:
    arguments = ("beam", "hello", "--schema", "thing", "--width", "3", "--alpha", "0", *TINY)
    code, out, err = run(*arguments)
    assert code == 0 and "confidence" in err and "alternatives of 3" not in err
    code, _, err = run("beam", "hello", "--choice", "a", "--choice", "b", "--width", "3", *TINY)
    assert code == 0 and "note: 2 alternatives of 3: hypotheses of equal value count once" in err
    code, as_json, _ = run(*arguments, "--json")
    found = last(as_json)
    assert found["value"] == last(out)
    assert {"value", "valid", "score", "alternatives", "confidence", "confidence_detail", "usage", "timing"} <= found.keys()
    assert len(found["alternatives"]) == 3
    assert all({"value", "score", "sum_logprob", "valid"} <= item.keys() for item in found["alternatives"])
    assert set(found["confidence"]) >= {"/ok", "/size"}


# --- models -----------------------------------------------------------------------------------------------------------


def test_an_empty_store_lists_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    assert run("model", "list")[:2] == (0, "")
    assert last(run("model", "list", "--json")[1]) == {"models": []}


# --- extract ----------------------------------------------------------------------------------------------------------


def test_extract_writes_lines_in_order_and_says_what_failed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("key,body\nk1,first\nk2,second,too many\nk3,third\n")
    arguments = ("extract", "in.csv", "--schema", "thing", "--text-field", "body", "--id-field", "key", "--out", "out.jsonl")
    code, out, err = run(*arguments, "--width", "2", *TINY, "--json")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    failures = [json.loads(line) for line in (tmp_path / "out.jsonl.errors.jsonl").read_text().splitlines()]
    assert code == 1
    assert [line["id"] for line in lines] == ["k1", "k3"]
    assert [(line["stage"], line["where"]) for line in failures] == [("read", "in.csv:3")]
    assert last(out)["failures"] == {"read": 1}
    assert "3/3 records, 1 failed" in err and "failed: read" in err


def test_typed_options_win_over_the_job_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "job.toml").write_text('schema = "thing"\nwidth = 4\nmax_tokens = 64\n')
    code, _, _ = run("extract", "in.jsonl", "--job", "job.toml", "--out", "out", "--width", "1", *TINY)
    terms = json.loads((tmp_path / "out.job.json").read_text())["job"]
    assert code == 0
    assert (terms["width"], terms["max_tokens"], terms["alpha"]) == (1, 64, 1.0)
    (line,) = (tmp_path / "out").read_text().splitlines()
    assert len(json.loads(line)["alternatives"]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "exactly one of schema"),
        (("--schema", "thing", "--width", "0"), "width"),
        (("--schema", "thing", "--encoding", "utf-16"), "encoding"),
        (("--schema", "thing", "--in-flight", "0"), "in-flight"),
        (("--job", "job.toml"), "promt"),
    ],
)
def test_a_job_that_cannot_be_is_refused_and_nothing_is_written(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "job.toml").write_text('schema = "thing"\npromt = "{text}"\n')
    code, out, err = run("extract", "in.jsonl", "--out", "out", *arguments)
    assert (code, out) == (2, "") and said in err
    assert not list(tmp_path.glob("out*"))


def test_terms_that_no_record_can_meet_are_refused_before_there_is_an_output(run: Run, tmp_path: Path) -> None:
    arguments = ("extract", "in.jsonl", "--schema", "thing", "--out", "out", "--model", "tiny")
    code, out, err = run(*arguments, "--kv-blocks", "3")
    assert (code, out) == (2, "") and "kv_blocks = 3" in err
    (tmp_path / "never.json").write_text('{"type": "integer", "minimum": 5, "maximum": 4}')
    assert run(*arguments, "--schema", "never.json")[0] == 2
    (tmp_path / "in.csv").write_text("id,body\n1,a\n")
    code, _, err = run("extract", "in.csv", *arguments[2:])
    assert code == 2 and "'text' is not a column" in err and "--text-field" in err
    assert not list(tmp_path.glob("out*"))


def test_a_resume_with_another_dtype_is_refused(run: Run, tmp_path: Path) -> None:
    arguments = ("extract", "in.jsonl", "--schema", "thing", "--out", "out", *TINY)
    assert run(*arguments)[0] == 0
    code, _, err = run(*arguments, "--resume", "--dtype", "bfloat16")
    assert code == 2 and 'engine.dtype: "float32" -> "bfloat16"' in err
    assert run(*arguments, "--resume", "--threads", "1")[0] == 0


# --- run --------------------------------------------------------------------------------------------------------------


def test_what_a_program_prints_goes_to_stderr(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("print('loading')\ndef main():\n    print('running')\n    return {'value': 1}\n")
    assert run("run", "p.py", *TINY) == (0, '{"value":1}\n', "loading\nrunning\n")


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("    return 1 / 0", 3, "program p.py failed: ZeroDivisionError: division by zero (PATH:3)"),
        ("    open('no-such-file')", 3, "FileNotFoundError: [Errno 2] No such file or directory: 'no-such-file' (PATH:3)"),
        ("    sys.exit(0)", 3, "program p.py called sys.exit(0) (PATH:3)"),
        ("    return (", 3, "(PATH:3)"),
        ("    raise toolkit.UsageError('bad', hint='do')", 2, "error: bad (PATH:3)\nhint: do"),
        ("    toolkit.SamplingParams(top_p=2)", 2, "top_p = 2 is not allowed: a number in (0, 1] (PATH:3)"),
        ("    return {'value': float('nan')}", 1, "no JSON"),
    ],
)
def test_an_error_in_a_program_names_its_file_and_line(run: Run, tmp_path: Path, body: str, code: int, said: str) -> None:
    (tmp_path / "p.py").write_text(f"import sys, toolkit\ndef main():\n{body}\n")
    got, out, err = run("run", "p.py", *TINY)
    assert (got, out) == (code, "")
    assert said.replace("PATH", str(tmp_path / "p.py")) in err and "(unexpected" not in err


# --- demo and bench ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verdict", "code"), [("PASS", 0), ("HOLD", 1)])
def test_a_bench_that_holds_is_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch, verdict: str, code: int) -> None:
    monkeypatch.setattr("toolkit.bench.extraction.run", lambda engine, **options: {"verdict": verdict, "task": options["task"]})
    got, out, _ = run("bench", "quality", *TINY, "--json")
    assert got == code and last(out) == {"verdict": verdict, "task": "bfcl"}


def test_quality_asks_in_the_style_of_the_task_unless_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "toolkit.bench.extraction.run", lambda engine, **options: {"verdict": "PASS", "style": options["style"]}
    )
    assert last(run("bench", "quality", *TINY, "--json")[1])["style"] is None
    assert last(run("bench", "quality", *TINY, "--json", "--style", "raw")[1])["style"] == "raw"


@pytest.mark.parametrize("name", [("peers",), ("--peers",)])
@pytest.mark.parametrize(
    ("chosen", "parts"),
    [((), ["beams", "plain", "speculation"]), (("--part", "beams"), ["beams"]), (("--part", "speculation"), ["speculation"])],
)
def test_peers_has_two_spellings_and_measures_every_part_unless_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: tuple[str, ...], chosen: tuple[str, ...], parts: list[str]
) -> None:
    def part(arms: Any, **seen: Any) -> dict[str, Any]:
        return {"verdict": "PASS", "reasons": [], "arms": arms, "ratios": {}, "quartiles": {}, **seen}

    monkeypatch.setattr("toolkit.model.store.resolve", lambda name: tmp_path)
    monkeypatch.setattr("toolkit.cli.speed.opened", lambda options: nullcontext())
    monkeypatch.setattr("toolkit.cli.speed._llamacpp", lambda stack, engine: None)
    monkeypatch.setattr("toolkit.cli.speed.passed", lambda engines, out: (engines, {}))
    monkeypatch.setattr("toolkit.bench.peers.run", lambda engine, **options: part([], limit=options["limit"]))
    monkeypatch.setattr("toolkit.bench.plain.run", lambda engine, **options: part({}))
    monkeypatch.setattr("toolkit.bench.speculation.run", lambda engines, prompts, **options: part([], kinds=list(prompts)))
    code, out, _ = run("bench", *name, "--limit", "2", "--json", *chosen)
    found = last(out)
    assert (code, found["verdict"], list(found["parts"])) == (0, "PASS", parts)
    if "beams" in parts:
        assert found["parts"]["beams"]["limit"] == 2
    if "speculation" in parts:
        assert found["parts"]["speculation"]["kinds"] == ["chat", "copying"]


@pytest.mark.parametrize(("passed", "code"), [(0, 0), (1, 1)])
def test_an_invalid_instance_that_passes_is_exit_code_1(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, passed: int, code: int
) -> None:
    counts = {"invalid_accepted_after_validation": passed, "invalid_accepted_by_strict_mask": 0}
    monkeypatch.setattr("toolkit.bench.schemas.run", lambda data: {"suite": counts})
    got, out, _ = run("bench", "schemas", "--data", str(tmp_path), "--json")
    assert got == code and last(out) == {"suite": counts}


def test_demo_hands_its_options_over(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "toolkit.bench.demo.run", lambda engine, *, limit, console: {"limit": limit, "on_stderr": console.stderr}
    )
    code, out, _ = run("demo", "--limit", "3", *TINY, "--json")
    assert code == 0 and last(out) == {"limit": 3, "on_stderr": True}
