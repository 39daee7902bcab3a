"""The command that starts a server: presets, devices, models, addresses; and what a log means."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from toolkit.errors import EngineError, UnsupportedError, UsageError
from toolkit.lang.diagnose import LINE_CHARS, SHOWN_LINES, explain, milestone
from toolkit.lang.launch import PACKAGES, free_port, is_hub_name, launch, served_model
from toolkit.lang.presets import PRESETS, Speculation

HUB = "Qwen/Qwen3.8-27B"


def flags(**given: object) -> str:
    return " ".join(Speculation(**given).flags())  # type: ignore[arg-type]


# --- presets ----------------------------------------------------------------------------------------------------------


def test_three_steps_of_mtp_are_a_chain_of_four_tokens() -> None:
    expected = (
        "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    )
    assert flags(preset="mtp", steps=3) == flags(preset="mtp") == flags(preset="nextn") == expected


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_writes_out_every_number_or_is_empty(preset: str) -> None:
    draft = "d" if PRESETS[preset].draft == "needed" else None
    found = flags(preset=preset, draft=draft)
    assert found == "" if preset == "none" else "--speculative-num-draft-tokens" in found
    assert ("--speculative-draft-model-path d" in found) == (draft is not None)
    assert ("--speculative-num-steps" in found) == (PRESETS[preset].steps is not None)
    assert Speculation(preset=preset, draft=draft).says


@pytest.mark.parametrize(
    ("given", "tail"),
    [
        ({"steps": 5}, "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6"),
        ({"topk": 4}, "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"),
        ({"steps": 1, "topk": 2}, "--speculative-num-steps 1 --speculative-eagle-topk 2 --speculative-num-draft-tokens 3"),
        ({"steps": 3, "topk": 4, "tokens": 37}, "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 37"),
    ],
)  # fmt: skip
def test_numbers_of_a_draft_model(given: dict[str, int], tail: str) -> None:
    assert flags(preset="eagle", draft="d", **given) == f"--speculative-algorithm EAGLE --speculative-draft-model-path d {tail}"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"preset": "medusa"}, "'medusa' is unknown: known are none, mtp"),
        ({"preset": "eagle"}, "eagle needs a draft model"),
        ({"preset": "ngram", "draft": "d"}, "ngram: draft model = 'd'"),
        ({"preset": "none", "draft": "d"}, "none: draft model"),
        ({"preset": "none", "tokens": 4}, "none: draft tokens"),
        ({"preset": "none", "steps": 4}, "none: steps"),
        ({"preset": "ngram", "steps": 2}, "ngram: steps = 2"),
        ({"preset": "ngram", "topk": 2}, "ngram: topk = 2"),
        ({"preset": "ngram", "tokens": 1}, "ngram: draft tokens = 1"),
        ({"preset": "mtp", "steps": 0}, "mtp: steps = 0"),
        ({"preset": "mtp", "steps": True}, "mtp: steps = True"),
        ({"preset": "mtp", "topk": 65}, "mtp: topk = 65"),
        ({"preset": "mtp", "steps": 3, "tokens": 5}, "mtp: draft tokens = 5 is not allowed: 4, the steps and the root"),
        ({"preset": "mtp", "steps": 2, "topk": 2, "tokens": 8}, "draft tokens = 8 is not allowed: at most 7 nodes"),
    ],
)  # fmt: skip
def test_a_number_that_a_preset_has_no_use_for_is_refused(given: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        Speculation(**given)  # type: ignore[arg-type]
    assert named in caught.value.message


# --- the command ------------------------------------------------------------------------------------------------------


def test_on_a_gpu_the_command_is_sglangs_own() -> None:
    plan = launch(HUB, Speculation(preset="mtp"), device="cuda", port=31000, flags=("--tp", "2"))
    speculative = Speculation(preset="mtp").flags()
    start = [sys.executable, "-m", "sglang.launch_server", "--model-path", HUB, "--host", "127.0.0.1", "--port", "31000"]
    assert plan.command == (*start, *speculative, "--tp", "2")
    assert dict(plan.env) == {} and plan.url == "http://127.0.0.1:31000"
    assert plan.shell() == shlex.join(plan.command)


def test_on_a_cpu_the_stand_ins_are_on_the_path_of_the_command_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = dict(os.environ)
    plan = launch(HUB, device="cpu", flags=("--dtype", "bfloat16"))
    assert plan.env["PYTHONPATH"] == f"{PACKAGES}{os.pathsep}/mine" and plan.env["OMP_NUM_THREADS"] == "1"
    path = f"{Path(sys.executable).parent}{os.pathsep}{before['PATH']}"
    assert plan.environment() == {**before, **plan.env, "PATH": path} and dict(os.environ) == before
    assert plan.command[-2:] == ("--dtype", "bfloat16")  # SGLang takes the last of two
    assert plan.command[plan.command.index("--device") + 1] == "cpu"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert plan.environment()["OMP_NUM_THREADS"] == "7"


def test_the_shell_line_quotes_what_a_shell_would_take_apart(tmp_path: Path) -> None:
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    line = launch(str(folder), device="cpu").shell()
    words = shlex.split(line)
    assert str(folder) in words and words[0].startswith("SGLANG_USE_CPU_ENGINE=")


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://127.0.0.1:5"), ("::", "http://[::1]:5"), ("box", "http://box:5")]
)
def test_a_server_on_all_addresses_is_asked_on_the_own_one(host: str, url: str) -> None:
    assert launch(HUB, device="cuda", host=host, port=5).url == url


@pytest.mark.parametrize(
    "given", [{"device": "tpu"}, {"port": 0}, {"port": 65536}, {"host": ""}, {"host": " "}], ids=lambda given: next(iter(given))
)
def test_an_address_or_device_that_is_none_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        launch(HUB, **{"device": "cuda", **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "flag", ["--port", "--port=4000", "--host", "--model-path", "--model", "--device", "--por", "--hos=0.0.0.0", "--model-p"]
)
def test_a_flag_that_is_an_option_here_is_refused(flag: str) -> None:
    with pytest.raises(UsageError, match="it is an option here: --"):
        launch(HUB, device="cuda", flags=("--tp", "2", flag, "x"))


@pytest.mark.parametrize("flag", ["--ssl-keyfile", "--grpc-mode", "--smg-grpc-mode"])
def test_a_server_that_is_not_asked_over_plain_http_is_refused_by_name(flag: str) -> None:
    with pytest.raises(UnsupportedError, match=flag):
        launch(HUB, device="cuda", flags=(flag,))


def test_a_free_port_is_one_and_two_differ() -> None:
    assert 1 <= free_port() <= 65535


# --- models -----------------------------------------------------------------------------------------------------------


def test_a_folder_is_served_as_it_is_whatever_its_architecture(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle"]}')
    assert served_model(str(tmp_path)) == str(tmp_path.resolve())


@pytest.mark.parametrize("name", ["no-such-model", "/no/such/folder", "", "./nothing", "a/b/c"])
def test_a_model_that_is_nowhere_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        served_model(name)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json"):
        served_model(str(tmp_path))


def test_a_path_that_exists_is_no_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("owner/model") and served_model("owner/model") == "owner/model"
    (tmp_path / "owner" / "model").mkdir(parents=True)
    assert not is_hub_name("owner/model")


# --- what a log means -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        ("[2026] Load weight begin. avail mem=20.59 GB", "loading weights"), ("[2026] The server is fired up and ready to roll!", "ready"),
        ("INFO:     Uvicorn running on http://127.0.0.1:1 (Press CTRL+C to quit)", "listening, warming up"), ("anything else", ""),
    ],
)  # fmt: skip
def test_milestones(line: str, reached: str) -> None:
    assert milestone(line) == reached


@pytest.mark.parametrize(
    ("line", "means"),
    [
        ("NotImplementedError: attention with a sliding window is not among the CPU stand-ins of sgl_kernel", "needs more than a CPU can do"),
        ("NotImplementedError: triton kernel add_one has no CPU stand-in", "triton kernel add_one"),
        ("AttributeError: '_OpNamespace' 'sgl_kernel' object has no attribute 'fused_experts_cpu'", "the operator fused_experts_cpu"),
        ("launch_server.py: error: unrecognized arguments: --nonsense 3", "refuses its flags: unrecognized arguments: --nonsense 3"),
        ("[2026-11-29 21:00:00] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of memory"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried", "out of memory"),
        ("ValueError: Cannot find model module. 'FooModel' is not a registered model in the Transformers library", "has no such model: 'FooModel'"),
        ("ValueError: The checkpoint you load has model type `foo` but Transformers does not recognize this architecture.", "has no such model"),
        ("OSError: Incorrect path_or_model_id: 'x'", "the model cannot be read: Incorrect path_or_model_id"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "ninja is not installed, with which"),
        ("/bin/sh: 1: c++: not found", "c++ is not installed, with which"),
        ("RuntimeError: Cannot find any model weights with `/a/b`", "the model cannot be read: Cannot find any model weights with `/a/b`"),
        ("ModuleNotFoundError: No module named 'zmq'", "the package zmq is not installed"),
        ("[2026-11-29 21:00:00 TP0] ValueError: something of its own", "ValueError: something of its own"),
    ],
)  # fmt: skip
def test_the_cause_is_found_among_other_lines(line: str, means: str) -> None:
    noise = "[2026] Ignore import error when loading sglang.srt.models.grok: '_OpNamespace' 'sgl_kernel' object has no attribute 'x'"
    error = explain("the server ended", 1, [noise, "before", line, "after", noise])
    first, *rest = error.message.splitlines()
    assert first.startswith("the server ended (exit code 1): ") and means in first
    assert f"  | {line}" in rest


def test_an_end_without_a_known_cause_shows_the_lines_and_no_more_than_a_few() -> None:
    error = explain("it ended", 3, [f"line {i} " + "z" * 5000 for i in range(100)])
    first, *rest = error.message.splitlines()
    assert first == "it ended (exit code 3); its last lines:"
    assert len(rest) == SHOWN_LINES and rest[-1].startswith("  | line 99") and max(map(len, rest)) <= LINE_CHARS + 4


def test_an_end_without_a_word_says_so_and_a_killed_one_why() -> None:
    assert explain("it ended", 1, []).message == "it ended (exit code 1), and printed nothing"
    assert (
        "want of memory" in explain("it ended", 137, ["x"]).message
        and "--max-total-tokens" in explain("it ended", 137, []).hint
    )


def test_flags_that_sglang_refuses_are_a_mistake_of_usage() -> None:
    assert isinstance(explain("it ended", 2, ["x.py: error: argument --dtype: invalid choice: 'int3'"]), UsageError)
    assert isinstance(explain("it ended", 1, ["x"]), EngineError)


def test_braces_in_a_log_are_text() -> None:
    assert "ValueError: {0} {x}" in explain("it ended", 1, ["ValueError: {0} {x}"]).message
