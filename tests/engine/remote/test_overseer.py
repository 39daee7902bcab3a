"""What is held against servers that speculate: audits over HTTP, a second server without speculation, the breaker, metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engine.remote.stub_server import Handler, Stub, listening
from toolkit.cli.watching import require_speculation
from toolkit.contracts import Completion, Delta, Done, Failed, Request, Watch
from toolkit.contracts import SamplingParams as Params
from toolkit.engine.breaker import Breaker
from toolkit.engine.guard import guarded
from toolkit.engine.remote.engine import SGLangEngine
from toolkit.errors import EngineError, UnsupportedError, UsageError

NGRAM = {"speculative_algorithm": "NGRAM"}
PROMPT = "Once upon a time"


@pytest.fixture
def servers() -> Iterator[tuple[Stub, Stub]]:
    """One that speculates, and one of the same model that does not."""
    fast, plain = Stub(info=NGRAM.copy()), Stub()
    with listening(fast), listening(plain):
        yield fast, plain


def run(engine: SGLangEngine, **more: Any) -> tuple[Completion, str]:
    """The result of one request, and what was streamed of it."""
    request = Request(prompt=PROMPT, sampling=more.pop("sampling", Params(max_tokens=12)), **more)
    events = list(engine.generate([request]))
    failed = [event.error for event in events if isinstance(event, Failed)]
    if failed:
        raise failed[0]
    (done,) = [event.result for event in events if isinstance(event, Done)]
    assert isinstance(done, Completion)
    return done, "".join(event.text for event in events if isinstance(event, Delta))


def saying(*ids: int) -> Callable[[Handler, Any], bool]:
    """A stream of these ids, whatever the model means."""

    def fault(handler: Handler, body: Any) -> bool:
        if not body.get("stream"):
            return False
        meta = {"prompt_tokens": len(body["input_ids"]), "cached_tokens": 0, "completion_tokens": len(ids),
                "finish_reason": {"type": "length", "length": len(ids)}}  # fmt: skip
        data = (
            b"data: " + json.dumps({"output_ids": list(ids), "meta_info": meta, "index": 0}).encode() + b"\n\ndata: [DONE]\n\n"
        )
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
        return True

    return fault


def opened(fast: Stub, **options: Any) -> SGLangEngine:
    engine = SGLangEngine(fast.url, tokenizer=fast.tokenizer, timeout_s=20, patience_s=2, **options)
    fast.bodies.clear()
    return engine


def test_an_honest_greedy_text_passes_its_audit_and_a_corrupted_one_is_not_valid(servers: tuple[Stub, Stub]) -> None:
    fast, _ = servers
    with opened(fast, audit=1.0) as engine:
        honest, _ = run(engine)
        assert honest.audit is not None and (honest.audit.verdict, honest.audit.method) == ("pass", "argmax")
        assert honest.valid is None and honest.incidents == ()
        assert honest.usage.requests == len(fast.bodies) == 2 and honest.usage.rechecked == len(honest.token_ids)
        assert honest.usage.tokens_sent == sum(len(body["input_ids"]) for body in fast.bodies)
        wrong = [*honest.token_ids[:4], honest.token_ids[4] ^ 1, *honest.token_ids[5:]]
        fast.faults.append(saying(*wrong))
        found, streamed = run(engine)
        assert found.token_ids == tuple(wrong) and streamed == found.text
        assert found.audit is not None and found.audit.verdict == "fail" and "token 4" in found.audit.why
        assert found.valid is False and [each.keyword for each in found.violations] == ["audit"]
        assert [(each.kind, each.found_by, each.drafter) for each in found.incidents] == [("speculation", "audit", "ngram")]
        assert engine.metrics.value("toolkit_audits_total", verdict="fail") == 1
        assert engine.metrics.value("toolkit_incidents_total", kind="speculation") == 1
        assert "toolkit_breaker_held 0" in engine.metrics.prometheus()


def test_a_drawn_text_gets_a_likelihood_test(servers: tuple[Stub, Stub]) -> None:
    fast, _ = servers
    fast.info |= {"speculative_algorithm": "EAGLE", "device": "cuda"}
    with opened(fast, audit=1.0) as engine:
        found, _ = run(engine, sampling=Params(max_tokens=4, temperature=1.0, top_k=1))
        assert found.audit is not None and (found.audit.verdict, found.audit.method) == ("pass", "likelihood")
        assert found.audit.alarm == 1e-6
        fast.faults.append(saying(found.token_ids[0] ^ 1, *found.token_ids[1:]))
        wrong, _ = run(engine, sampling=Params(max_tokens=4, temperature=1.0, top_k=1))
        assert wrong.audit is not None and wrong.audit.verdict == "fail" and "cannot be drawn" in wrong.audit.why


def test_the_command_line_refuses_to_oversee_a_server_that_does_not_speculate(servers: tuple[Stub, Stub]) -> None:
    fast, plain = servers
    with SGLangEngine(plain.url, tokenizer=plain.tokenizer) as engine:
        with pytest.raises(UsageError, match="--audit and --fallback: the server does not speculate"):
            require_speculation(engine, {"audit": 0.5, "fallback": fast.url})
        require_speculation(engine, {"audit": 0.0})
    with opened(fast) as engine:
        require_speculation(engine, {"audit": 0.5})


def test_nothing_is_audited_where_nothing_speculates_or_no_number_could_show_anything(servers: tuple[Stub, Stub]) -> None:
    fast, plain = servers
    with SGLangEngine(plain.url, tokenizer=plain.tokenizer, audit=1.0) as engine:
        assert run(engine)[0].audit is None
    with opened(fast, audit=1.0) as engine:
        asked = len(fast.bodies)
        found, _ = run(engine, sampling=Params(max_tokens=3, logit_bias={5: -1.0}))
        assert found.audit is not None and found.audit.verdict == "not checkable" and len(fast.bodies) == asked + 1


def test_the_fallback_writes_what_was_found_to_be_wrong(servers: tuple[Stub, Stub]) -> None:
    fast, plain = servers
    with opened(fast, audit=1.0, fallback=plain.url) as engine:
        honest, _ = run(engine)
        wrong = [*honest.token_ids[:2], ord("x"), *honest.token_ids[3:]]
        fast.faults.append(saying(*wrong))
        found, streamed = run(engine)
        assert (found.text, found.token_ids) == (honest.text, honest.token_ids) and streamed != found.text
        assert found.audit is not None and found.audit.verdict == "fail" and found.valid is None
        (incident,) = found.incidents
        assert (incident.kind, incident.position, incident.streamed) == ("speculation", 2, True)
        assert "streamed" in " ".join(found.notes) and found.usage.discarded == len(wrong)
        assert found.usage.output_tokens == len(found.token_ids) and found.usage.requests == 3


def test_a_text_that_is_not_valid_on_the_second_server_either_is_the_models_own(servers: tuple[Stub, Stub]) -> None:
    fast, plain = servers
    with opened(fast, fallback=plain.url) as engine:
        found, streamed = run(engine, watch=Watch(kind="json"))
        assert found.valid is False and streamed == found.text
        assert [(each.kind, each.found_by, each.streamed) for each in found.incidents] == [("model", "validator", False)]
    with opened(fast) as engine:
        found, _ = run(engine, watch=Watch(kind="json"))
        assert [each.kind for each in found.incidents] == ["unclear"] and found.valid is False


def test_what_asks_for_no_speculation_is_written_by_the_fallback_and_refused_without_one(servers: tuple[Stub, Stub]) -> None:
    fast, plain = servers
    with opened(fast, fallback=plain.url) as engine:
        plain.bodies.clear()
        found, streamed = run(engine, speculate=False, id="mine")
        assert found.text == streamed and "fallback" in " ".join(found.notes)
        assert not fast.bodies and len(plain.bodies) == 1 and not engine._jobs
    with opened(fast) as engine, pytest.raises(UnsupportedError, match="speculate = False"):
        run(engine, speculate=False)


def test_on_hold_texts_go_to_the_fallback_or_nowhere_until_the_breaker_is_reset(servers: tuple[Stub, Stub]) -> None:
    fast, plain = servers
    for fallback in (plain.url, None):
        with opened(fast, audit=1.0, breaker=Breaker(0), fallback=fallback) as engine:
            honest, _ = run(engine)
            fast.faults.append(saying(*(token ^ 1 for token in honest.token_ids)))
            run(engine)
            assert engine.breaker.is_held and "toolkit_breaker_held 1" in engine.metrics.prometheus()
            fast.bodies.clear()
            if fallback is None:
                with pytest.raises(EngineError, match="on hold"):
                    run(engine)
            else:
                assert run(engine)[0].text == honest.text
            assert not fast.bodies
            engine.breaker.reset("the test says so")
            assert run(engine)[0].text == honest.text and fast.bodies


def test_a_fallback_that_fails_leaves_the_text_as_invalid_as_it_is(servers: tuple[Stub, Stub]) -> None:
    fast, plain = servers
    with opened(fast, fallback=plain.url) as engine:
        plain.faults.append(lambda handler, body: handler.reply(400, {"error": {"message": "no"}}) or True)  # type: ignore[func-returns-value]
        found, _ = run(engine, watch=Watch(kind="json"))
        assert found.valid is False and [each.kind for each in found.incidents] == ["unclear"]


def test_guarded_texts_use_the_fallback_of_the_engine_itself(servers: tuple[Stub, Stub]) -> None:
    fast, plain = servers
    with opened(fast, fallback=plain.url) as engine:
        found = guarded(engine, Request(prompt=PROMPT, sampling=Params(max_tokens=8), watch=Watch(kind="json")), ("plain",))
        assert [(each.policy, each.valid, each.error) for each in found.attempts] == [("", False, ""), ("plain", False, "")]
        assert engine.metrics.value("toolkit_repairs_total", policy="plain", outcome="invalid") == 1


def test_a_second_server_that_is_none_is_refused(servers: tuple[Stub, Stub]) -> None:
    fast, _ = servers
    with pytest.raises(UsageError, match="speculates itself"):
        opened(fast, fallback=fast.url)
    with pytest.raises(EngineError):
        opened(fast, fallback="http://127.0.0.1:9")
    for wrong in ({"audit": 2}, {"breaker": 3}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            opened(fast, **wrong)
