"""What a program writes into gen, select, beam and free is refused where it is written, by the toolkit's own errors."""

from __future__ import annotations

from typing import Any

import pytest
import sglang as sgl
from sglang.lang import api
from sglang.lang.ir import SglGen, SglSelect

from tests.lang.lang_scripted import ScriptedEngine
from toolkit.contracts import Grammar
from toolkit.errors import SchemaError, ToolkitError, UsageError
from toolkit.lang import EmbeddedBackend, beam, free
from toolkit.lang.frontend import load_sglang

NO_CHOICES: list[Any] = [[], (), "ab", b"ab", ["a", ""], ["a", 1], 5, {"ab"}]


@pytest.mark.parametrize("choices", NO_CHOICES, ids=repr)
def test_choices_that_are_none_are_refused_wherever_they_are_written(choices: Any) -> None:
    with pytest.raises(UsageError, match="choices"):
        sgl.gen("x", choices=choices)
    engine = ScriptedEngine()
    select = sgl.function(lambda s: s.stream_executor.submit("Q:" + sgl.select("x", choices)))
    error = select.run(backend=EmbeddedBackend(engine)).error()
    assert isinstance(error, UsageError) and "choices" in str(error) and engine.scored == []


@pytest.mark.parametrize("choices", [[], "ab", ["a", 1], 5], ids=repr)
def test_a_beam_takes_a_list_of_choices_only(choices: Any) -> None:
    with pytest.raises(UsageError, match="choices"):
        beam("x", choices=choices)


def test_gen_is_sglangs_own_for_everything_else() -> None:
    plain, choice = sgl.gen("x", 7, temperature=0.5, regex="a+"), sgl.gen("x", choices=["a", "b"], temperature=0.5)
    assert isinstance(plain, SglGen) and isinstance(choice, SglSelect)
    assert (plain.sampling_params.max_new_tokens, plain.sampling_params.regex, choice.temperature) == (7, "a+", 0.5)
    before = sgl.gen
    load_sglang()
    assert sgl.gen is before is api.gen


def test_a_batch_may_bring_choices_and_regexes_as_arguments() -> None:
    @sgl.function
    def program(s: Any, choices: Any, regex: Any) -> None:
        s += "Q:" + sgl.gen("x", choices=choices) + sgl.gen("y", regex=regex)

    batch = [{"choices": ["a", "b"], "regex": "o+"}, {"choices": ["c"], "regex": "k+"}]
    engine = ScriptedEngine()
    states = program.run_batch(batch, backend=EmbeddedBackend(engine))
    assert [state["x"] in each["choices"] for state, each in zip(states, batch, strict=True)] == [True, True]
    assert {request.grammar.source for request in engine.seen if request.grammar} == {"o+", "k+"}


@pytest.mark.parametrize("regex", ["(", "*a", "[b-a]", "(" * 5000])
def test_a_regex_that_is_none_is_a_schema_error_where_it_is_written(regex: str) -> None:
    for write in (sgl.gen, beam):
        with pytest.raises(SchemaError, match="regular expression"):
            write("x", regex=regex)


LANGUAGES: dict[str, dict[str, Any]] = {
    "no schema": {"schema": {"type": "nonsense"}},
    "a reference to elsewhere": {"schema": {"$ref": "https://example.org/x.json"}},
    "a reference to nothing": {"schema": {"$ref": "#/$defs/absent"}},
    "a grammar of no schema": {"grammar": Grammar("json_schema", "{")},
    "a grammar of no choices": {"grammar": Grammar("choices", "ab")},
    "a grammar of no regex": {"grammar": Grammar("regex", "(")},
}


@pytest.mark.parametrize("case", LANGUAGES)
def test_a_language_that_is_none_is_refused_where_the_program_is_built(case: str) -> None:
    with pytest.raises(SchemaError):
        beam("x", **LANGUAGES[case])


def test_a_parameter_that_there_is_not_is_refused_by_name() -> None:
    for write in (lambda: sgl.gen("x", bogus=1), lambda: free("x", bogus=1)):
        with pytest.raises(UsageError, match=r"bogus.*known are name, max_tokens"):
            write()


VALUES: dict[str, dict[str, Any]] = {
    "stop = 5": {"stop": 5},
    "stop = ''": {"stop": ""},
    "stop = ['']": {"stop": [""]},
    "stop = [1]": {"stop": [1]},
    "stop_regex": {"stop_regex": ""},
    "stop_token_ids = 5": {"stop_token_ids": 5},
    "stop_token_ids = ['a']": {"stop_token_ids": ["a"]},
    "ignore_eos": {"ignore_eos": "no"},
}


@pytest.mark.parametrize("what", VALUES)
@pytest.mark.parametrize("kind", [sgl.gen, free])
def test_a_value_that_is_none_is_the_states_error_by_name(kind: Any, what: str) -> None:
    engine = ScriptedEngine()
    state = sgl.function(lambda s: s.stream_executor.submit(kind("x", **VALUES[what]))).run(backend=EmbeddedBackend(engine))
    assert isinstance(state.error(), ToolkitError) and what in str(state.error()) and engine.seen == []


def test_an_option_that_no_engine_has_is_refused_before_a_program_runs() -> None:
    with pytest.raises(UsageError, match=r"'bogus'.*kv_blocks"):
        EmbeddedBackend(bogus=1)
    with pytest.raises(UsageError, match="'bogus'"):
        EmbeddedBackend(model="tiny", kv_blocks=8, bogus=1)
