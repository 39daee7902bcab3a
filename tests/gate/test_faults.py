"""Each planted fault really changes what its engine does, on some request; without it the same requests give the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from toolkit.contracts import Delta, Done, Failed, Grammar, Request, SamplingParams
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.gate.faults import DRILLED, FAULTS
from toolkit.gate.teeth import ARMS, arm_of, open_arm

LETTERS = {ord(letter): 30.0 for letter in "abcd"}
SCHEMA = '{"type":"object","properties":{"a":{"type":"string","maxLength":6},"b":{"type":"boolean"}},"required":["a","b"],"additionalProperties":false}'
PLAIN = SamplingParams(max_tokens=24, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.0, seed=5, logit_bias=LETTERS, n=2)


def probes() -> Iterator[list[Request]]:
    """Requests of one batch run together."""
    text = "abcd abab cdcd abcd, and once more: abcd abab cdcd"
    both = [text + " a", text + " b"]
    yield [Request(prompt=each, sampling=PLAIN) for each in both]
    yield [Request(prompt=each, sampling=PLAIN) for each in both]  # now the cache is warm
    yield [Request(prompt="another beginning, as long as the first one was", sampling=PLAIN)]
    yield [Request(prompt=text, sampling=SamplingParams(max_tokens=24, ignore_eos=True, logprobs=1))]
    yield [Request(prompt=text, sampling=DRAWN)]
    for changes in (
        {"top_k": 3, "top_p": 0.7, "temperature": 3.0, "n": 6}, {"min_p": 0.6, "temperature": 3.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 1.3},
        {"temperature": 0.3},
    ):  # fmt: skip
        yield [Request(prompt=text, sampling=SamplingParams(**{**_fields(DRAWN), **changes}))]
    for token in b"abcd":
        params = SamplingParams(max_tokens=40, stop_ids=(token,), min_tokens=12, logit_bias=LETTERS, frequency_penalty=0.8)
        yield [Request(prompt=text, sampling=params)]
    ends = [SamplingParams(max_tokens=24, ignore_eos=True, stop_ids=(token,)) for token in dict.fromkeys(_written(text))]
    yield [Request(prompt=text, sampling=params) for params in ends]
    yield [Request(prompt=text, grammar=Grammar("regex", "[a-d]{9}(x|y)[a-d]{9}"), sampling=SamplingParams(max_tokens=40))]
    for number in range(6):
        yield [
            Request(prompt=f"{number} {{\"a\":\"ab\",\"b\":true}} {{\"a\":", grammar=Grammar("json_schema", SCHEMA)),
            Request(prompt=f"{number} {{\"a\":\"äöäö\",\"b\":true}} {{\"a\":", grammar=Grammar("json_schema", SCHEMA)),
        ]  # fmt: skip


@cache
def _written(text: str) -> tuple[int, ...]:
    """What the tiny model goes on with."""
    with EmbeddedEngine("tiny", format="float32") as engine:
        return engine.complete(text, max_tokens=24, ignore_eos=True).token_ids


def _fields(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in params.__dataclass_fields__}


def shown(engine: EmbeddedEngine, batch: list[Request]) -> list[Any]:
    """All that a caller sees of a batch, but for times and ids; events of one request in their order."""
    seen: dict[str, list[Any]] = {}
    for event in engine.generate(batch):
        mine = seen.setdefault(event.request_id, [])
        if isinstance(event, Delta):
            mine.append((event.index, event.text, event.token_ids))
        elif isinstance(event, Failed):
            mine.append(str(event.error))
        else:
            mine.append(_result(event))
    return sorted(map(repr, seen.values()))


def _result(event: Done) -> Any:
    result: Any = event.result
    scores = [(each.token_id, round(each.logprob, 3)) for each in result.logprobs]
    return (
        event.index,
        result.token_ids,
        result.text,
        result.finish_reason,
        scores,
        len(result.incidents),
        result.usage.accepted,
    )


@cache
def intact(arm: str) -> list[list[Any]]:
    """What an arm shows without a fault."""
    with open_arm(arm) as engine:
        return [shown(engine, batch) for batch in probes()]


@pytest.mark.parametrize("arm", list(ARMS))
def test_an_intact_engine_shows_the_same_again_and_its_speculation_is_at_work(arm: str) -> None:
    with open_arm(arm) as engine:
        assert [shown(engine, batch) for batch in probes()] == intact(arm)
        assert engine.complete("abcdabcdabcdabcd", max_tokens=20).usage.proposed > 0


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_shows_on_some_request_of_its_own_engine_and_on_none_of_another(name: str) -> None:
    arm = arm_of(name)
    with open_arm(arm) as whole, open_arm(arm) as broken:
        FAULTS.load(name)(broken)
        assert any(shown(broken, batch) != expected for batch, expected in zip(probes(), intact(arm), strict=True))
        assert shown(whole, next(probes())) == intact(arm)[0]


def test_there_are_thirty_faults_and_every_one_says_where_it_happened() -> None:
    assert len(FAULTS) >= 30 and set(DRILLED) < set(FAULTS)
    whys = [import_module(FAULTS[name].partition(":")[0]).WHY for name in FAULTS]
    assert len(set(whys)) == len(whys) and all(len(why) > 30 for why in whys)
