"""Guarded texts: tried again in stated ways, bounded, every attempt kept, on any engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from toolkit.contracts import Completion, Done, Event, Failed, Grammar, Request, SamplingParams, Usage, Violation, Watch
from toolkit.engine.guard import guarded
from toolkit.engine.metrics import Metrics
from toolkit.engine.watch import is_cut
from toolkit.errors import ContextError, EngineError, NoValidError, ToolkitError, UnsupportedError, UsageError
from toolkit.text.tokenizer import ByteTokenizer

SCHEMA = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}'
JSON = Watch(kind="json", schema=SCHEMA)
TOOLS = '[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"c":{"type":"string"}},"required":["c"]}}}]'
GOOD, BAD = '{"a":1}', '{"a":1}}'


class Told:
    """An engine that answers with the texts (or errors) it was given, in order, and keeps the requests."""

    def __init__(self, *answers: str | ToolkitError) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.tokenizer = ByteTokenizer()
        self.metrics = Metrics()

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        for request in requests:
            self.requests.append(request)
            answer = self.answers.pop(0)
            if isinstance(answer, ToolkitError):
                yield Failed(request.id, answer)
            else:
                ids = tuple(answer.encode())
                yield Done(request.id, 0, Completion(text=answer, token_ids=ids, finish_reason="stop", valid=True, usage=Usage(passes=1)))  # fmt: skip


class Ended(Told):
    """The same with whole completions."""

    def __init__(self, *completions: Completion) -> None:
        super().__init__()
        self.completions = list(completions)

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        for request in requests:
            yield Done(request.id, 0, self.completions.pop(0))


def run(engine: Any, request: Request, *policies: Any, fallback: Any = None) -> Completion:
    return guarded(engine, request, policies, fallback=fallback)


def test_a_valid_text_is_taken_at_once_whatever_may_be_tried() -> None:
    engine = Told(GOOD)
    found = run(engine, Request(prompt="x", watch=JSON), "plain", "ask")
    assert found.valid and found.value == {"a": 1} and [each.policy for each in found.attempts] == [""]


def test_without_a_policy_nothing_is_tried_again_and_the_fault_is_said() -> None:
    engine = Told(BAD)
    found = run(engine, Request(prompt="x", watch=JSON))
    assert found.valid is False and found.violations and found.value is None and len(engine.requests) == 1


def test_policies_are_tried_in_their_order_until_one_helps_and_each_attempt_is_kept() -> None:
    engine = Told(BAD, '{"a":"x"}', BAD, GOOD)
    found = run(engine, Request(prompt="x", id="mine", watch=JSON), "plain", "constrained", "ask")
    assert found.valid and [(each.policy, each.valid) for each in found.attempts] == [
        ("", False), ("plain", False), ("constrained", False), ("ask", True),
    ]  # fmt: skip
    first, plain, constrained, asked = engine.requests
    assert first.id == "mine" and first.speculate and not plain.speculate and plain.grammar is None
    assert constrained.grammar == Grammar("json_schema", SCHEMA) and constrained.speculate
    assert (
        isinstance(asked.prompt, str) and asked.prompt.startswith("x" + BAD) and "expected the end of the text" in asked.prompt
    )
    assert found.attempts[1].violations[0].keyword == "type" and found.attempts[0].text == BAD
    assert engine.metrics.value("toolkit_repairs_total", policy="ask", outcome="valid") == 1


def test_where_nothing_helps_the_first_text_comes_back_as_invalid_as_it_is() -> None:
    engine = Told(BAD, "{", "[]")
    found = run(engine, Request(prompt="x", watch=JSON), "plain", "ask")
    assert found.valid is False and found.text == BAD and len(found.attempts) == 3


def test_plain_goes_to_the_second_engine_where_there_is_one() -> None:
    engine, second = Told(BAD), Told(GOOD)
    found = run(engine, Request(prompt="x", watch=JSON), "plain", fallback=second)
    assert found.valid and len(engine.requests) == len(second.requests) == 1 and not second.requests[0].speculate


def test_what_an_engine_refuses_or_fails_on_is_an_attempt_and_the_next_one_is_made() -> None:
    refusal = UnsupportedError("speculate = False is not supported by the server")
    engine = Told(BAD, refusal, EngineError("gone"), GOOD)
    found = run(engine, Request(prompt="x", watch=JSON), "plain", "ask", "constrained")
    assert found.valid and "speculate" in found.attempts[1].error and "gone" in found.attempts[2].error
    assert engine.metrics.value("toolkit_repairs_total", outcome="refused") == 2


def test_an_endpoint_that_cannot_decode_plainly_is_asked_for_a_constrained_text() -> None:
    refusal = UnsupportedError("speculate = False is not supported by the server")
    engine = Told(BAD, refusal, GOOD)
    found = run(engine, Request(prompt="x", watch=JSON), "plain")
    assert found.valid and [each.policy for each in found.attempts] == ["", "plain", "constrained"]
    assert engine.requests[2].grammar == Grammar("json_schema", SCHEMA)


def test_a_text_that_was_cut_off_is_not_tried_again_and_is_cut_off_not_wrong() -> None:
    cut = Completion(text='{"a":', token_ids=tuple(b'{"a":'), finish_reason="length")
    found = run(Ended(cut), Request(prompt="x", watch=JSON), "plain", "constrained", "ask")
    assert found.valid is False and is_cut(found) and [each.policy for each in found.attempts] == [""]
    wrong = Completion(text='{"a":"x', token_ids=tuple(b'{"a":"x'), finish_reason="length")
    engine = Ended(wrong, Completion(text=GOOD, token_ids=tuple(GOOD.encode()), finish_reason="stop"))
    found = run(engine, Request(prompt="x", watch=JSON), "plain")
    assert found.valid and [each.keyword for each in found.attempts[0].violations] == ["max_tokens", "json"]


def test_a_text_that_failed_its_audit_is_not_valid_though_it_parses() -> None:
    failed = Violation("", "audit", "the target's own text", "another", "token 3 is 9 nats less likely than 5")
    bad = Completion(text=GOOD, token_ids=tuple(GOOD.encode()), finish_reason="stop", valid=False, violations=(failed,))
    found = run(Ended(bad, replace(bad, violations=())), Request(prompt="x", watch=JSON), "plain")
    assert found.valid and [each.valid for each in found.attempts] == [False, True]
    assert run(Ended(bad), Request(prompt="x", watch=JSON)).valid is False


def test_what_a_model_is_shown_of_its_faults_is_bounded() -> None:
    long = '{"a":1,"' + "k" * 100_000 + '":[1]}'
    engine = Told(long, GOOD)
    assert run(engine, Request(prompt="x", watch=JSON), "ask").valid
    assert len(str(engine.requests[1].prompt)) < 8_000


def test_an_engine_that_refuses_its_own_text_has_made_an_attempt() -> None:
    engine = Told(NoValidError("the server's text is not valid", texts=(BAD,)), ContextError("too long"), GOOD)
    found = run(engine, Request(prompt="x", watch=JSON), "ask", "plain")
    assert found.valid and found.attempts[0].text == BAD and "too long" in found.attempts[1].error


def test_the_first_try_raises_what_it_raises() -> None:
    with pytest.raises(EngineError, match="gone"):
        run(Told(EngineError("gone")), Request(prompt="x", watch=JSON), "plain")


def test_a_tool_turn_is_constrained_in_its_own_format_and_code_cannot_be() -> None:
    bad = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
    good = '<tool_call>{"name": "f", "arguments": {"c": "x"}}</tool_call>'
    engine = Told(bad, good)
    found = run(engine, Request(prompt="x", watch=Watch(kind="tools", format="hermes", tools=TOOLS)), "constrained")
    assert found.valid and found.value["calls"] == [{"name": "f", "arguments": {"c": "x"}}]
    assert engine.requests[1].grammar is not None and engine.requests[1].grammar.kind == "lark"
    engine = Told("x = (", "x = 1")
    found = run(engine, Request(prompt="x", watch=Watch(kind="code")), "constrained", "ask")
    assert found.valid and "no grammar of python" in found.attempts[1].error


def test_asking_again_keeps_the_form_of_the_prompt() -> None:
    chat = [{"role": "user", "content": "hi"}]
    for prompt in (chat, [1, 2, 3]):
        engine = Told(BAD, GOOD)
        assert run(engine, Request(prompt=prompt, watch=JSON), "ask").valid
        again = engine.requests[1].prompt
        assert list(again)[: len(prompt)] == prompt and len(again) > len(prompt)


@pytest.mark.parametrize(
    ("request_", "policies"),
    [
        (Request(prompt="x"), ()),
        (Request(prompt="x", watch=JSON, sampling=SamplingParams(n=2)), ()),
        (Request(prompt="x", watch=JSON), ("again",)),
        (Request(prompt="x", watch=JSON), ("ask", "ask")),
    ],
)
def test_what_makes_no_sense_is_refused(request_: Request, policies: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError):
        run(Told(), request_, *policies)
