"""Faults: what a server does wrong gives a typed error or a recovery; no record is lost, nothing hangs."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.remote.stub_server import Fault, Stub, changed, dropped, hung, listening, status, truncated
from toolkit.contracts import BeamParams, Completion, Done, Failed, Grammar, Request, SamplingParams
from toolkit.engine.engine import open_engine
from toolkit.engine.remote.engine import SGLangEngine
from toolkit.errors import EngineError, SchemaError, ToolkitError, UnsupportedError, UsageError
from toolkit.model.tiny import tiny_model

LETTERS = Grammar("regex", "[abc]{1,4}")
BUSY = {"error": {"message": "The server is at capacity"}}


def beams(count: int) -> list[Request]:
    return [Request(prompt=f"Say {i}: ", id=str(i), grammar=LETTERS, beam=BeamParams(width=2)) for i in range(count)]


def error_of(engine: SGLangEngine, request: Request) -> ToolkitError:
    last = list(engine.generate([request]))[-1]
    assert isinstance(last, Failed)
    return last.error


@pytest.mark.parametrize("fault", [dropped, truncated, status(503, BUSY), status(429, BUSY), status(502, b"<html>")])
def test_a_step_that_does_not_come_through_is_repeated(stub: Stub, engine: SGLangEngine, fault: Fault) -> None:
    sound = engine.beam("Say 0: ", grammar=LETTERS, width=2)
    for _ in range(2):
        stub.faults += [fault]
        again = engine.beam("Say 0: ", grammar=LETTERS, width=2)
        assert (again.value, again.score) == (sound.value, sound.score)
        assert again.usage.requests == sound.usage.requests + 1


class Always(list[Any]):
    """A fault that is never used up."""

    def pop(self, _: Any = 0) -> Any:
        return self[0]


@pytest.mark.parametrize(("fault", "most"), [(dropped, 5), (status(503, BUSY), 40)])
def test_a_request_that_fails_on_a_server_that_lives_is_not_sent_without_end(
    stub: Stub, engine: SGLangEngine, fault: Fault, most: int
) -> None:
    stub.faults = Always([lambda handler, body: isinstance(body["input_ids"][0], list) and fault(handler, body)])  # probes pass
    with pytest.raises(EngineError):
        engine.beam("x", grammar=LETTERS, width=2)
    assert 2 <= len([body for body in stub.searches() if isinstance(body["input_ids"][0], list)]) <= most
    stub.faults = []
    assert engine.beam("x", grammar=LETTERS, width=2).valid


@pytest.mark.parametrize("fault", [dropped, status(503, BUSY)])
def test_a_text_is_repeated_while_nothing_of_it_was_told(stub: Stub, engine: SGLangEngine, fault: Fault) -> None:
    sound = engine.complete("Once", max_tokens=5)
    stub.faults.append(fault)
    assert engine.complete("Once", max_tokens=5).text == sound.text


@pytest.mark.parametrize("request_", [beams(1)[0], Request(prompt="Say", id="0")], ids=["beam", "text"])
def test_what_a_full_queue_turned_away_is_sent_again(stub: Stub, engine: SGLangEngine, request_: Request) -> None:
    """SGLang says so in a reply that looks like any other."""
    sound = list(engine.generate([request_]))[-1]
    stub.faults += [turned_away(503), turned_away(503)]
    again = list(engine.generate([request_]))[-1]
    assert isinstance(sound, Done) and isinstance(again, Done)
    assert outcome(again) == outcome(sound)
    stub.faults += [turned_away(400)]
    assert "gave the request up" in error_of(engine, request_).message


def outcome(done: Done) -> object:
    return done.result.text if isinstance(done.result, Completion) else done.result.value


def turned_away(code: int) -> Fault:
    def fault(handler: Any, body: Any) -> bool:
        reason = {"type": "abort", "message": "The request queue is full.", "status_code": code}
        line = {"text": "", "output_ids": [], "meta_info": {"id": "x", "completion_tokens": 0, "finish_reason": reason}}
        if not body.get("stream"):
            lines = body["input_ids"]
            handler.reply(200, line if isinstance(lines[0], int) else [line] * len(lines))
            return True
        data = b"data: " + json.dumps(line).encode() + b"\n\ndata: [DONE]\n\n"
        handler.reply(200, data)
        return True

    return fault


def test_a_stream_that_breaks_off_after_its_first_event_is_an_error(stub: Stub, engine: SGLangEngine) -> None:
    def broken(handler: Any, _: Any) -> bool:
        handler.send_response(200)
        handler.end_headers()
        meta = {"prompt_tokens": 4, "completion_tokens": 1, "finish_reason": None, "cached_tokens": 0}
        handler.wfile.write(b"data: " + json.dumps({"output_ids": [97], "meta_info": meta}).encode() + b"\n\n")
        handler.wfile.flush()
        handler.drop()
        return True

    stub.faults.append(broken)
    events = list(engine.generate([Request(prompt="Once", sampling=SamplingParams(max_tokens=5))]))
    assert isinstance(events[-1], Failed) and isinstance(events[-1].error, EngineError)
    assert len(stub.bodies) == 1


def test_a_server_that_hangs_ends_in_an_error_that_says_so(stub: Stub) -> None:
    with SGLangEngine(stub.url, tokenizer=stub.tokenizer, timeout_s=1.5, patience_s=2) as engine:
        stub.faults.append(hung(4))
        error = error_of(engine, beams(1)[0])
        assert isinstance(error, EngineError) and "did not answer within 1.5 s" in error.message
        assert engine.beam("Say 0: ", grammar=LETTERS, width=2).valid


def test_a_server_that_is_gone_for_good_ends_every_request_once_patience_is_over(stub: Stub) -> None:
    with listening(Stub()) as server, SGLangEngine(server.stub.url, tokenizer=stub.tokenizer, patience_s=0.6) as engine:
        server.kill()
        started = time.monotonic()
        events = list(engine.generate([*beams(5), Request(prompt="x", id="text")]))
    assert len(events) == 6
    assert all(isinstance(event, Failed) and isinstance(event.error, EngineError) for event in events)
    assert time.monotonic() - started < 10


def test_a_server_that_is_killed_and_started_again_loses_no_record() -> None:
    first = Stub()
    with listening(first) as server:
        port = server.server_port
        engine = SGLangEngine(first.url, tokenizer=first.tokenizer, patience_s=30)
        sound = {event.request_id: event.result for event in engine.generate(beams(6)) if isinstance(event, Done)}
        first.faults += [lambda handler, body: False, _killing(server)]
        results: dict[str, Any] = {}
        worker = threading.Thread(target=lambda: results.update((e.request_id, e) for e in engine.generate(beams(6))))
        worker.start()
        while server.open and first.faults:
            time.sleep(0.01)
        time.sleep(0.3)
    with listening(Stub(), port), engine:
        worker.join(30)
    assert all(isinstance(event, Done) for event in results.values())
    assert {name: event.result.value for name, event in results.items()} == {name: one.value for name, one in sound.items()}


def _killing(server: Any) -> Fault:
    def fault(handler: Any, _: Any) -> bool:
        threading.Thread(target=server.kill).start()
        handler.drop()
        return True

    return fault


def test_a_server_that_comes_back_with_another_model_is_an_error_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.engine.remote.fleet.IDLE_S", 0.0)  # no stub takes as long to start as a server
    first = Stub()
    with listening(first) as server:
        port = server.server_port
        engine = SGLangEngine(first.url, tokenizer=first.tokenizer, patience_s=20)
    with listening(Stub(decoder=tiny_model(seed=5)), port), engine:
        error = error_of(engine, beams(1)[0])
    assert isinstance(error, EngineError) and "another model" in error.message


def test_several_servers_share_the_work_and_one_may_die_and_return() -> None:
    left, right = Stub(), Stub()
    with listening(left) as dying, listening(right):
        port = dying.server_port
        engine = open_engine(f"{left.url},{right.url}", tokenizer=left.tokenizer, patience_s=20)
        assert isinstance(engine, SGLangEngine)
        with engine:
            list(engine.generate(beams(8)))
            assert left.searches() and right.searches()
            left.faults += [_killing(dying)]
            events = list(engine.generate(beams(8)))
            assert len(events) == 8 and all(isinstance(event, Done) for event in events)
            again = Stub()
            with listening(again, port):
                deadline = time.monotonic() + 20
                while not again.searches() and time.monotonic() < deadline:
                    assert all(isinstance(event, Done) for event in engine.generate(beams(8)))
                assert again.searches()


def test_servers_of_two_models_are_no_fleet(stub: Stub) -> None:
    with listening(Stub(decoder=tiny_model(seed=5))) as other, pytest.raises(EngineError, match="another model"):
        SGLangEngine(stub.url, urls=[other.stub.url], tokenizer=stub.tokenizer)


def test_a_wrong_key_is_named_and_the_right_one_works() -> None:
    locked = Stub(key="secret")
    with listening(locked):
        for key in (None, "wrong"):
            with pytest.raises(UsageError, match="API key") as raised:
                SGLangEngine(locked.url, tokenizer=locked.tokenizer, api_key=key)
            assert "secret" not in str(raised.value) and "wrong" not in str(raised.value)
        with SGLangEngine(locked.url, tokenizer=locked.tokenizer, api_key="secret") as engine:
            assert engine.beam("x", grammar=LETTERS, width=2).valid


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"error": {"message": "Failed to compile json grammar: bad"}}, SchemaError),
        ({"detail": "input_ids must be a list"}, UnsupportedError),
        (b"what?", UnsupportedError),
    ],
)
def test_a_400_ends_the_one_request_that_caused_it(
    stub: Stub, engine: SGLangEngine, said: Any, kind: type[ToolkitError]
) -> None:
    def refuse(handler: Any, body: Any) -> bool:
        mine = any(bytes(line[:6]) == b"Say 1:" for line in body["input_ids"])
        if mine:
            handler.reply(400, said)
        else:
            stub.faults.append(refuse)
        return mine

    stub.faults = Always([refuse])
    events = {event.request_id: event for event in engine.generate(beams(3)) if isinstance(event, Done | Failed)}
    assert isinstance(events["1"], Failed) and isinstance(events["1"].error, kind)
    assert isinstance(events["0"], Done) and isinstance(events["2"], Done)


def _set(name: str, value: Any) -> Callable[[Any], Any]:
    def change(replies: Any) -> Any:
        replies[0]["meta_info"][name] = value
        return replies

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda replies: replies[:-1],
        lambda replies: {"a": 1},
        lambda replies: b"no JSON",
        lambda replies: b"[" * 100_000,
        lambda replies: [None for _ in replies],
        _set("prompt_tokens", 1),
        _set("cached_tokens", 10_000),
        _set("cached_tokens", "3"),
        _set("output_token_ids_logprobs", None),
        _set("output_token_ids_logprobs", []),
        _set("output_token_ids_logprobs", [[[-1.0, 5, None]]]),
        _set("output_token_ids_logprobs", [[["-1", 5, None]]]),
        _set("output_token_ids_logprobs", [[[0.5, 97, None], [-1.0, 98, None], [-1.0, 99, None]]]),
        _set("finish_reason", {"type": "abort", "message": "out of memory"}),
    ],
)
def test_a_reply_that_does_not_answer_is_an_error_and_the_engine_goes_on(stub: Stub, engine: SGLangEngine, change: Any) -> None:
    stub.faults.append(changed(change))
    assert isinstance(error_of(engine, beams(1)[0]), EngineError)
    assert engine.beam("x", grammar=LETTERS, width=2).valid


def test_a_reply_without_an_end_is_cut_off(stub: Stub, engine: SGLangEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.engine.remote.connection.MOST_REPLY", 100_000)
    stub.faults.append(status(200, b'"' + b"x" * 1_000_000 + b'"'))
    error = error_of(engine, beams(1)[0])
    assert "larger than" in error.message


def test_a_tokenizer_that_is_not_the_servers_is_an_error() -> None:
    class Other(type(Stub().tokenizer)):  # type: ignore[misc]
        def _plain(self, text: str) -> list[int]:
            return [byte ^ 1 for byte in text.encode()]

    with listening(Stub()) as server, pytest.raises(EngineError, match="tokenizer is not that of"):
        SGLangEngine(server.stub.url, tokenizer=Other())


def test_a_model_that_cannot_be_read_asks_for_its_tokenizer(stub: Stub) -> None:
    with pytest.raises(UsageError, match="cannot be read from here"):
        SGLangEngine(stub.url)


def test_a_server_that_is_not_there_is_an_error_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(EngineError, match="cannot be reached"):
            open_engine(url)


@pytest.mark.parametrize("url", ["http://", "http://user:pass@host", "http://host/?a=b", "http://host:99999", "http://[::1"])
def test_what_is_no_url_of_a_server_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        open_engine(url)
    assert "pass" not in str(raised.value).replace("password", "")


def test_an_open_beam_search_is_cancelled_between_two_steps(engine: SGLangEngine) -> None:
    request = Request(prompt="open", id="b", beam=BeamParams(width=2, max_tokens=300))
    events = engine.generate([request])
    threading.Timer(0.2, engine.cancel, ["b"]).start()
    (event,) = events
    assert isinstance(event, Failed) and "cancelled" in event.error.message


def test_closing_ends_what_runs_and_what_comes(stub: Stub) -> None:
    engine = SGLangEngine(stub.url, tokenizer=stub.tokenizer, patience_s=5)
    heard: list[Any] = []
    requests = [
        Request(prompt="open", id="b", beam=BeamParams(width=2, max_tokens=300)),
        Request(prompt="open", id="t", sampling=SamplingParams(max_tokens=400, ignore_eos=True)),
    ]
    reader = threading.Thread(target=lambda: heard.extend(engine.generate(requests)))
    reader.start()
    time.sleep(0.3)
    engine.close()
    reader.join(10)
    assert not reader.is_alive()
    ends = {event.request_id: event for event in heard if isinstance(event, Done | Failed)}
    assert isinstance(ends["b"], Failed) and isinstance(ends["t"], Failed | Done)
    with pytest.raises(EngineError, match="closed"):
        list(engine.generate(beams(1)))
    engine.close()


def test_behind_a_router_nothing_is_taken_for_granted(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    router = {"router_manager": True, "routers_count": 1, "workers_count": 2}  # what sglang-router 0.3.2 says under that path
    monkeypatch.setattr(Stub, "facts", lambda self: router)
    with pytest.raises(UsageError, match="context"):
        SGLangEngine(stub.url, tokenizer=stub.tokenizer)
    with SGLangEngine(stub.url, tokenizer=stub.tokenizer, context=300) as engine:
        assert engine.capabilities.context == 300 and engine.capabilities.drafters == ("unknown",)
        stub.bodies.clear()
        found = engine.beam("x", grammar=LETTERS, width=2)
        assert all(isinstance(body["input_ids"][0], int) for body in stub.bodies)  # a router takes no lists of parameters
        assert found.usage.requests == len(stub.bodies) and any("router" in note for note in found.notes)
        assert engine.complete("x", max_tokens=2, logprobs=1, logprob_ids=(5,)).logprobs
        assert not isinstance(stub.bodies[-2]["sampling_params"], list)
        refused = Request(prompt="x", sampling=SamplingParams(presence_penalty=0.5))
        assert isinstance(error_of(engine, refused), UnsupportedError)


def test_closing_does_not_wait_for_a_server_that_hangs(stub: Stub) -> None:
    engine = SGLangEngine(stub.url, tokenizer=stub.tokenizer)
    stub.faults += [hung(60), hung(60)]
    heard: list[Any] = []
    requests = [*beams(1), Request(prompt="x", id="text", sampling=SamplingParams(max_tokens=3))]
    reader = threading.Thread(target=lambda: heard.extend(engine.generate(requests)))
    reader.start()
    while len(stub.faults) > 0:
        time.sleep(0.01)
    engine.close()
    reader.join(20)
    assert not reader.is_alive()
    assert len(heard) == 2 and all(isinstance(event, Failed) for event in heard)


def test_a_server_with_its_own_certificate_is_trusted_only_when_told_so(stub: Stub, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "1"]
    subprocess.run(
        [openssl, *made, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with listening(stub, wrap=lambda each: context.wrap_socket(each, server_side=True)) as server:
        url = f"https://localhost:{server.server_port}"
        with pytest.raises(EngineError, match="cannot be reached"):
            SGLangEngine(url, tokenizer=stub.tokenizer)
        for verify in (False, str(certificate)):
            with SGLangEngine(url, tokenizer=stub.tokenizer, verify=verify) as engine:
                assert engine.beam("x", grammar=LETTERS, width=2).valid
    with pytest.raises(UsageError, match="certificates"):
        SGLangEngine(url, verify=str(key.with_name("none.pem")))


def test_a_router_of_an_older_version_is_asked_under_the_older_paths(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.engine.remote.stub_server import Handler

    sound = Handler.do_GET

    def older(self: Handler) -> None:
        if self.path in ("/server_info", "/model_info"):
            self.reply(404, {"detail": "Not Found"})
        else:
            self.path = self.path.replace("/get_", "/")
            sound(self)

    monkeypatch.setattr(Handler, "do_GET", older)
    with SGLangEngine(stub.url, tokenizer=stub.tokenizer) as engine:
        assert isinstance(engine.complete("x", max_tokens=2), Completion)
