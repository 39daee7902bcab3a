"""EmbeddedBackend: ordinary SGLang programs over a scripted engine whose every answer is known."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.global_config import global_config
from sglang.lang.interpreter import StreamExecutor

from tests.lang.lang_scripted import ByteTalk, ScriptedEngine
from toolkit.contracts import Request
from toolkit.errors import EngineError, ToolkitError, UnsupportedError, UsageError
from toolkit.lang import EmbeddedBackend


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """A scripted engine that is SGLang's default for one test; it answers with its prompt's last letter, doubled."""
    scripted = ScriptedEngine(lambda text, request: (text[-1:] or "?") * 2)
    before = global_config.default_backend
    sgl.set_default_backend(EmbeddedBackend(scripted))
    yield scripted
    sgl.set_default_backend(before)


@sgl.function
def two_steps(s: Any, start: str) -> None:
    s += start + sgl.gen("first", temperature=0) + "-" + sgl.gen("second", max_tokens=5)


def test_segments_see_the_text_before_them(engine: ScriptedEngine) -> None:
    state = two_steps.run(start="a")
    assert state.text() == "aaa---" and state["first"] == "aa" and state["second"] == "--"
    assert [engine.prompt_text(request.prompt) for request in engine.seen] == ["a", "aaa-"]


def test_sglangs_defaults_arrive_as_they_are(engine: ScriptedEngine) -> None:
    two_steps.run(start="a").sync()
    first, second = (request.sampling for request in engine.seen)
    assert (first.temperature, first.max_tokens, second.temperature, second.max_tokens) == (0, 128, 1.0, 5)
    assert (second.top_k, second.top_p, second.min_p, second.n, second.min_tokens) == (0, 1.0, 0.0, 1, 0)
    assert second.stop == () and second.stop_ids == (257,) and second.logprobs is None and not second.ignore_eos


def test_every_sampling_parameter_arrives(engine: ScriptedEngine) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen(
            "x", max_tokens=9, min_tokens=2, stop=["b", "c"], stop_token_ids=[7], temperature=0.5, top_p=0.9, top_k=3,
            min_p=0.1, frequency_penalty=0.2, presence_penalty=0.3, ignore_eos=True,
        )  # fmt: skip

    program.run().sync()
    got = engine.seen[0].sampling
    assert (got.max_tokens, got.min_tokens, got.stop, got.stop_ids) == (9, 2, ("b", "c"), (7, 257))
    assert (got.temperature, got.top_p, got.top_k, got.min_p) == (0.5, 0.9, 3, 0.1)
    assert (got.frequency_penalty, got.presence_penalty, got.ignore_eos) == (0.2, 0.3, True)


def test_parameters_given_to_run_are_the_defaults_of_its_segments(engine: ScriptedEngine) -> None:
    two_steps.run(start="a", temperature=0.25, max_new_tokens=7, stop="!").sync()
    assert [(r.sampling.temperature, r.sampling.max_tokens, r.sampling.stop) for r in engine.seen] == [
        (0, 7, ("!",)),
        (0.25, 5, ("!",)),
    ]


def test_a_list_of_stop_strings_is_left_as_the_program_wrote_it(engine: ScriptedEngine) -> None:
    stops = ["!"]

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("hi") + sgl.assistant(sgl.gen("x", stop=stops))

    program.run().sync()
    assert stops == ["!"] and engine.seen[0].sampling.stop == ("!",)


def test_several_samples_come_as_a_list_and_the_first_goes_on(engine: ScriptedEngine) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", n=3)

    state = program.run()
    assert state["x"] == ["aa"] * 3 and state.text() == "aaa"
    assert [meta["toolkit"]["seed"] for meta in state.get_meta_info("x")] == [0, 1, 2]


def test_meta_info_has_sglangs_fields(engine: ScriptedEngine) -> None:
    meta = two_steps.run(start="a").get_meta_info("first")
    assert meta["prompt_tokens"] == 1 and meta["completion_tokens"] == 3
    assert meta["finish_reason"] == {"type": "stop", "matched": 258} and "output_token_logprobs" not in meta


def test_logprobs_of_output_and_prompt_are_reported(engine: ScriptedEngine) -> None:
    def meta(**options: Any) -> Any:
        asked = sgl.gen("x", return_logprob=True, return_text_in_logprobs=True, **options)
        return sgl.function(lambda s: s.stream_executor.submit("abc" + asked)).run().get_meta_info("x")

    top = meta(top_logprobs_num=2)
    assert top["output_token_logprobs"][0] == [-1.0, 99, "c"] and "input_token_logprobs" not in top
    assert top["output_top_logprobs"][0] == [[-1.0, 99, "c"]] * 2
    assert meta(logprob_start_len=1)["input_token_logprobs"] == [[None, 98, "b"], [engine.logprob((97, 98), 99), 99, "c"]]


@pytest.mark.parametrize(
    ("dtype", "stop"),
    [(int, (" ", "\n")), ("float", (" ", "\n")), (str, ()), ("bool", ())],
    ids=["int", "float", "str", "bool"],
)
def test_a_data_type_is_a_regex_and_its_stops(engine: ScriptedEngine, dtype: Any, stop: tuple[str, ...]) -> None:
    sgl.function(lambda s: s.stream_executor.submit(sgl.gen("x", dtype=dtype, stop="!"))).run().sync()
    request = engine.seen[0]
    assert request.grammar is not None and request.grammar.kind == "regex" and request.sampling.stop == ("!", *stop)


def test_gen_int_and_gen_string_are_constrained(engine: ScriptedEngine) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen_int("i") + sgl.gen_string("t")

    program.run().sync()
    assert [r.grammar.source for r in engine.seen if r.grammar] == [r"[-+]?[0-9]+[ \n]*", r"\"[\w\d\s]*\""]


REFUSED = {
    "stop_regex": {"stop_regex": "a+"},
    "image": {},
    "one constraint": {"regex": "a", "dtype": int},
    "top_k": {"top_k": 0},
    "dtype": {"dtype": "list"},
    "return_logprob=True": {"top_logprobs_num": 2},
    "logprob_start_len = 0": {"top_logprobs_num": 2, "return_logprob": True, "logprob_start_len": 0},
    "temperature": {"temperature": -1.0},
    "max_tokens": {"max_tokens": 0},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_done_is_refused_by_name(engine: ScriptedEngine, what: str) -> None:
    @sgl.function
    def program(s: Any) -> None:
        if what == "image":
            s.stream_executor.images_.append(("picture.png", ""))
        s += "a" + sgl.gen("x", **REFUSED[what])

    error = program.run().error()
    assert isinstance(error, UsageError) and what in str(error) and engine.seen == []


def test_a_field_of_a_later_sglang_is_refused_not_dropped() -> None:
    import dataclasses

    from sglang.lang.ir import SglSamplingParams

    from toolkit.lang.params import ask

    later = dataclasses.make_dataclass("Later", [("logit_power", float, 1.0)], bases=(SglSamplingParams,))
    ask(later())
    with pytest.raises(UnsupportedError, match=r"logit_power = 2\.0"):
        ask(later(logit_power=2.0))


def test_a_fork_goes_on_from_its_parent_and_joins(engine: ScriptedEngine) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "p"
        forks = s.fork(3)
        forks += lambda i: f"{i}" + sgl.gen("x")
        forks.join()
        s += "," + sgl.gen("end")

    state = program.run()
    assert state["x"] == ["00", "11", "22"] and state.text() == "p,,,"
    assert sorted(engine.prompt_text(r.prompt) for r in engine.seen) == ["p,", "p0", "p1", "p2"]


def test_joined_branches_can_be_appended_as_text(engine: ScriptedEngine) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "p"
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sgl.gen("x")
        forks.join("concate_and_append")

    assert program.run().text() == "p000111"


def test_segments_of_forks_are_in_the_engine_at_the_same_time() -> None:
    together = ScriptedEngine(together=3)  # three requests must meet, or the barrier breaks

    @sgl.function
    def program(s: Any) -> None:
        forks = s.fork(3)
        forks += sgl.gen("x")
        forks.join()

    assert program.run(backend=EmbeddedBackend(together))["x"] == ["ok"] * 3


def test_a_batch_runs_its_programs_at_the_same_time_and_keeps_their_order() -> None:
    together = ScriptedEngine(lambda text, request: text[:1], together=4)
    states = two_steps.run_batch([{"start": c} for c in "abcd"], backend=EmbeddedBackend(together))
    assert [state["first"] for state in states] == list("abcd")


def slow(text: str, request: Request) -> str:
    time.sleep(0.2)  # SGLang's text_iter(name) gives nothing where the program is over before it is asked
    return text[-1] * 3


def test_a_streamed_program_gives_the_same_text_in_pieces() -> None:
    backend = EmbeddedBackend(ScriptedEngine(slow))
    state = two_steps.run(start="a", stream=True, backend=backend)
    assert "".join(state.text_iter()) == "aaaa----" == state.text()
    assert "".join(two_steps.run(start="a", stream=True, backend=backend).text_iter("second")) == "---"
    assert state.get_meta_info("second")["finish_reason"]["type"] == "stop"


def test_the_last_piece_of_an_asynchronous_stream_brings_the_whole_meta_info() -> None:
    async def pieces() -> list[Any]:
        state = two_steps.run(start="a", stream=True, backend=EmbeddedBackend(ScriptedEngine(slow)))
        return [piece async for piece in state.text_async_iter("second", return_meta_data=True)]

    found = asyncio.run(pieces())
    assert "".join(text for text, _ in found) == "---" and found[-1][1]["completion_tokens"] == 4


def test_roles_are_written_in_the_models_own_format() -> None:
    scripted = ScriptedEngine(tokenizer=ByteTalk(system="You are kind."))

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Hello") + sgl.assistant(sgl.gen("x")) + sgl.user("More") + sgl.assistant(sgl.gen("y"))

    program.run(backend=EmbeddedBackend(scripted)).sync()
    talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "More"}]
    assert [list(r.prompt) for r in scripted.seen] == [scripted.tokenizer.chat(talk[:1]), scripted.tokenizer.chat(talk)]
    assert scripted.seen[0].sampling.stop_ids == (257,) and scripted.seen[0].sampling.stop == ()


def test_roles_in_a_foreign_chat_template_are_refused_unless_one_is_named() -> None:
    foreign = ScriptedEngine(tokenizer=ByteTalk(frame="[{role}>{content}]"))

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Hello") + sgl.assistant(sgl.gen("x"))

    assert two_steps.run(start="a", backend=EmbeddedBackend(foreign))["first"] == "ok"
    error = program.run(backend=EmbeddedBackend(foreign)).error()
    assert isinstance(error, UnsupportedError) and "chat_template=" in str(error)
    assert program.run(backend=EmbeddedBackend(foreign, chat_template="default"))["x"] == "ok"
    with pytest.raises(UsageError, match="chatml"):
        EmbeddedBackend(foreign, chat_template="nonsense")


def test_an_engine_that_cannot_start_is_the_programs_error() -> None:
    error = two_steps.run(start="a", backend=EmbeddedBackend(model="no such model")).error()
    assert isinstance(error, ToolkitError) and "no such model" in str(error)


def test_a_backend_takes_an_engine_or_the_options_to_start_one() -> None:
    with pytest.raises(UsageError, match="not both"):
        EmbeddedBackend(ScriptedEngine(), model="tiny")


def test_an_engine_that_was_given_is_not_closed() -> None:
    scripted = ScriptedEngine()
    EmbeddedBackend(scripted).shutdown()
    assert not scripted.closed


def test_speculative_execution_of_an_interface_still_gives_every_variable(engine: ScriptedEngine) -> None:
    @sgl.function(num_api_spec_tokens=16)
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", stop="\n")

    assert program.run()["x"] == "aa"


def broken(text: str, request: Request) -> str:
    if text.endswith("!"):
        raise EngineError("out of blocks")
    return "ok"


@pytest.fixture
def broken_backend() -> EmbeddedBackend:
    return EmbeddedBackend(ScriptedEngine(broken))


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_engine_reaches_whoever_asks(broken_backend: EmbeddedBackend, stream: bool) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a!" + sgl.gen("x")
        s += "more" + sgl.gen("y")

    state = program.run(backend=broken_backend, stream=stream)
    if stream:
        with pytest.raises(EngineError, match="out of blocks"):
            list(state.text_iter())
    assert isinstance(state.error(), EngineError) and state.text() == "a!"
    for ask_for in (lambda: state["x"], lambda: state["y"], lambda: state.get_meta_info("y"), lambda: state.fork(2)):
        with pytest.raises(EngineError, match="out of blocks"):
            ask_for()
    if stream:
        with pytest.raises(EngineError, match="out of blocks"):
            list(state.text_iter("x"))


def test_a_program_that_reads_a_failed_variable_raises_its_error(broken_backend: EmbeddedBackend) -> None:
    @sgl.function
    def program(s: Any) -> str:
        s += "a!" + sgl.gen("x")
        return str(s["x"])

    with pytest.raises(EngineError, match="out of blocks"):
        program.run(backend=broken_backend)


def test_a_failed_branch_fails_the_join(broken_backend: EmbeddedBackend) -> None:
    @sgl.function
    def program(s: Any) -> None:
        forks = s.fork(2)
        forks += lambda i: "?!"[i] + sgl.gen("x")
        forks.join()

    with pytest.raises(EngineError, match="out of blocks"):
        program.run(backend=broken_backend)


@pytest.mark.parametrize("where", ["a joined branch", "SGLang itself"])
def test_an_error_of_whatever_part_of_a_program_hangs_nobody(broken_backend: EmbeddedBackend, where: str) -> None:
    @sgl.function
    def program(s: Any) -> None:
        if where == "SGLang itself":
            s += sgl.user(sgl.user("nested"))
        else:
            forks = s.fork(2)
            forks += "!" + sgl.gen("x")
            forks.join("concate_and_append")
        s += "more" + sgl.gen("y")

    state = program.run(backend=broken_backend)
    assert isinstance(state.error(), AssertionError if where == "SGLang itself" else EngineError)
    with pytest.raises(type(state.error())):
        state["y"]


def test_executors_of_other_backends_stay_sglangs_own() -> None:
    class Stock(BaseBackend):  # type: ignore[misc]
        def generate(self, s: Any, sampling_params: Any) -> Any:
            raise ValueError("theirs")

    with pytest.warns(UserWarning, match="Error in stream_executor"):
        state = sgl.function(lambda s: s.stream_executor.submit(sgl.gen("x"))).run(backend=Stock())
        assert isinstance(state.error(), ValueError)
    assert type(state.stream_executor) is StreamExecutor


def test_a_branch_that_fails_unread_is_said_on_the_log_once_a_segment(
    broken_backend: EmbeddedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    @sgl.function
    def program(s: Any) -> None:
        forks = s.fork(2)
        forks += "!" + sgl.gen("x") + sgl.gen("y")
        for fork in forks.states:
            fork.sync()

    assert program.run(backend=broken_backend).error() is None
    assert [record.getMessage() for record in caplog.records] == ["a segment failed: EngineError: out of blocks"] * 2


def test_a_failed_segment_is_one_line_on_stderr_be_the_error_the_engines_or_sglangs_own() -> None:
    code = """
import sglang as sgl
from tests.lang.lang_scripted import ScriptedEngine
from tests.lang.test_backend import broken
from toolkit.lang import EmbeddedBackend
backend = EmbeddedBackend(ScriptedEngine(broken))
for segment in ("!" + sgl.gen("x"), sgl.user(sgl.user("nested"))):
    sgl.function(lambda s: s.stream_executor.submit(segment)).run(backend=backend).error()
    print("--", file=__import__("sys").stderr, flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, cwd=Path(__file__).parents[2], check=True
    )
    assert done.stderr.split("--\n") == [
        "a segment failed: EngineError: out of blocks\n",
        "a segment failed: AssertionError: Nested roles are not allowed.\n",
        "",
    ]


def test_one_failed_program_of_a_batch_leaves_the_others(broken_backend: EmbeddedBackend) -> None:
    states = two_steps.run_batch([{"start": "a"}, {"start": "b!"}, {"start": "c"}], backend=broken_backend)
    assert [state.error() is None for state in states] == [True, False, True]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_hangs_nobody_where_warnings_are_errors(broken_backend: EmbeddedBackend) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = two_steps.run(start="a!", backend=broken_backend)
        assert isinstance(state.error(), EngineError)
        state.stream_executor.worker.join()


def test_an_engine_that_ends_without_a_result_is_an_error() -> None:
    class Silent(ScriptedEngine):
        def _events(self, request: Request) -> Iterator[Any]:
            return iter(())

    with pytest.raises(EngineError, match="without a result"):
        sgl.function(lambda s: s.stream_executor.submit(sgl.gen("x"))).run(backend=EmbeddedBackend(Silent()), use_thread=False)


def test_several_samples_of_a_stream_are_refused(engine: ScriptedEngine) -> None:
    state = sgl.function(lambda s: s.stream_executor.submit(sgl.gen("x", n=2))).run(stream=True)
    with pytest.raises(UnsupportedError, match="n = 2"):
        list(state.text_iter())


def test_the_backend_says_what_it_is(engine: ScriptedEngine) -> None:
    backend = EmbeddedBackend(engine)
    assert backend.get_model_name() == "bytes" and sgl.get_server_info(backend)["engine"] == "scripted"
    with pytest.raises(UnsupportedError, match="flush_cache"):
        sgl.flush_cache(backend)
