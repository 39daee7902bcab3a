"""select: three methods, each checked against the figures it should have seen."""

from __future__ import annotations

from typing import Any

import pytest
import sglang as sgl

from tests.lang.lang_scripted import ByteTalk, ScriptedEngine
from toolkit.errors import UnsupportedError, UsageError
from toolkit.lang import EmbeddedBackend

CHOICES = ["yes", "no", "maybe so"]
METHODS = {
    "token_length_normalized": sgl.token_length_normalized,
    "greedy_token_selection": sgl.greedy_token_selection,
    "unconditional_likelihood_normalized": sgl.unconditional_likelihood_normalized,
}


def pick(engine: ScriptedEngine, text: str = "Q:", **options: Any) -> Any:
    @sgl.function
    def program(s: Any) -> None:
        s += text + sgl.select("x", **{"choices": CHOICES, **options}) + "."

    return program.run(backend=EmbeddedBackend(engine))


def logprobs(text: str, choice: str) -> list[float]:
    whole = list((text + choice).encode())
    return [ScriptedEngine.logprob(whole[:k], whole[k]) for k in range(len(text), len(whole))]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_the_default_takes_the_best_mean_logprob() -> None:
    state = pick(ScriptedEngine())
    means = [mean(logprobs("Q:", choice)) for choice in CHOICES]
    assert state["x"] == CHOICES[means.index(max(means))] and state.text() == f"Q:{state['x']}."
    assert state.get_meta_info("x")["normalized_prompt_logprobs"] == pytest.approx(means)


def test_greedy_selection_follows_the_likeliest_token_at_each_step() -> None:
    state = pick(ScriptedEngine(), choices_method=METHODS["greedy_token_selection"])
    firsts = [logprobs("Q:", choice)[0] for choice in CHOICES]
    assert len(set(firsts)) == 3 and state["x"] == CHOICES[firsts.index(max(firsts))]


def test_unconditional_normalisation_subtracts_the_choices_own_likelihood() -> None:
    state = pick(ScriptedEngine(), choices_method=METHODS["unconditional_likelihood_normalized"])
    scores = []
    for choice in CHOICES:
        alone = [0.0, *logprobs(choice[0], choice[1:])]
        scores.append(mean([a - b for a, b in zip(logprobs("Q:", choice), alone, strict=True)]))
    assert state["x"] == CHOICES[scores.index(max(scores))]
    assert state.get_meta_info("x")["normalized_unconditional_prompt_logprobs"] == pytest.approx(scores)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_one_choice_and_one_token(method: str) -> None:
    assert pick(ScriptedEngine(), choices=["a"], choices_method=METHODS[method])["x"] == "a"


def test_gen_with_choices_is_a_select() -> None:
    state = sgl.function(lambda s: s.stream_executor.submit("Q:" + sgl.gen("x", choices=CHOICES))).run(
        backend=EmbeddedBackend(ScriptedEngine())
    )
    assert state["x"] == pick(ScriptedEngine())["x"]


class Merging(ByteTalk):
    """As ByteTalk, but the bytes "ab" are one token (259)."""

    vocab_size = 260

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        ids, out = super().encode(text, control=control), []
        for i in ids:
            if i == ord("b") and out and out[-1] == ord("a"):
                out[-1] = 259
            else:
                out.append(i)
        return out

    def decode(self, ids: Any) -> str:
        return b"".join(b"ab" if i == 259 else bytes([i]) for i in ids if i < 256 or i == 259).decode()


def test_a_token_across_the_seam_belongs_to_the_choice() -> None:
    engine = ScriptedEngine(tokenizer=Merging())
    meta = pick(engine, "xa", choices=["b", "c"]).get_meta_info("x")
    assert [[text for _, _, text in entries] for entries in meta["input_token_logprobs"]] == [["ab"], ["c"]]
    assert engine.scored == [("x", ["ab"]), ("xa", ["c"])]


REFUSED: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "temperature = 0.5": (UnsupportedError, {"temperature": 0.5}),
    "choices": (UsageError, {"choices": []}),
    "non-empty strings": (UsageError, {"choices": ["a", ""]}),
    "start of a program": (UsageError, {"text": ""}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_selected_is_refused_by_name(what: str) -> None:
    kind, options = REFUSED[what]
    error = pick(ScriptedEngine(), **options).error()
    assert isinstance(error, kind) and what in str(error)


def test_an_engine_that_cannot_score_cannot_select() -> None:
    error = pick(ScriptedEngine(score=False)).error()
    assert isinstance(error, UnsupportedError) and "score" in str(error)
