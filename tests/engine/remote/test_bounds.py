"""Bounds: whatever a caller types and a server says, errors are typed and show no secret, requests and replies stay within limits."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.remote.stub_server import Stub, changed, dropped, hung, listening, status
from toolkit.contracts import BeamParams, Completion, Done, Event, Failed, Grammar, Request, SamplingParams
from toolkit.engine.engine import open_engine
from toolkit.engine.remote import rows
from toolkit.engine.remote.connection import Connection, FailedRequestError, _events
from toolkit.engine.remote.engine import SGLangEngine
from toolkit.engine.remote.fleet import Fleet
from toolkit.engine.remote.probe import Identity
from toolkit.errors import CancelledError, ContextError, EngineError, ToolkitError, UnsupportedError, UsageError
from toolkit.kv.blocks import BlockPool

LETTERS = Grammar("regex", "[abc]{1,4}")
KEY = "sk-very-secret"
HOSTS = (
    "a\x00b",
    "exa mple",
    f"{'a' * 70}.com",
    "\u200b",
    "..",
    "a..b",
    "xn--",
    "é\ud800",
    "a" * 70_000,
    "h/a b",
    "h?",
    "h#",
    "[::1",
)


def beams(count: int) -> list[Request]:
    return [Request(prompt=f"Say {i}: ", id=str(i), grammar=LETTERS, beam=BeamParams(width=2)) for i in range(count)]


def results(events: Sequence[Event]) -> dict[str, Any]:
    return {event.request_id: event.result for event in events if isinstance(event, Done)}


# --- what a caller types ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS, ids=range(len(HOSTS)))
def test_where_no_request_can_be_sent_is_no_url(host: str) -> None:
    with pytest.raises(UsageError, match="engine URL") as raised:
        open_engine(f"http://{host}")
    assert len(raised.value.message) < 500


def test_a_password_is_not_shown_where_the_url_is_wrong_in_another_way_either() -> None:
    with pytest.raises(UsageError) as raised:
        open_engine("http://user:hunter2@host:99999")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("key", ["", f"{KEY}\n", f" {KEY}", f"{KEY}\x00", f"{KEY}é", f"{KEY}\r\nHost: x", KEY.encode()])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(stub: Stub, key: Any) -> None:
    with pytest.raises(UsageError, match="API key") as raised:
        SGLangEngine(stub.url, tokenizer=stub.tokenizer, api_key=key)
    assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 1e30}, {"patience_s": math.inf}, {"timeout_s": True}, {"urls": "http://a"}, {"urls": None}, {"tokenizer": 5},
        {"verify": None}, {"verify": 1}, {"verify": ""}, {"context": 1},
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_is_refused_before_anything_is_asked(stub: Stub, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        SGLangEngine(stub.url, **{"tokenizer": stub.tokenizer, **options})
    assert stub.bodies == []


def test_the_same_server_twice_is_no_fleet_however_it_is_written(stub: Stub) -> None:
    with pytest.raises(UsageError, match="distinct"):
        SGLangEngine(stub.url, urls=[f"{stub.url}/"], tokenizer=stub.tokenizer)


# --- what a server says -------------------------------------------------------------------------------------------------


def test_an_error_repeats_neither_the_key_nor_what_a_terminal_would_obey() -> None:
    echo = Stub(key=KEY)
    with listening(echo), SGLangEngine(echo.url, tokenizer=echo.tokenizer, api_key=KEY) as engine:
        for code in (400, 500):
            echo.faults.append(status(code, {"error": {"message": f"\x1b[31mno\x07 to Bearer {KEY}\u202e"}}))
            with pytest.raises(ToolkitError) as raised:
                engine.score("x", [[97]])
            assert KEY not in str(raised.value) and str(raised.value).isprintable()


@pytest.mark.parametrize("shape", ['{"error":%s1%s}', "[%s1%s]", '{"error":[%s1%s]}'])
def test_an_error_body_of_any_depth_is_an_error_by_name(stub: Stub, engine: SGLangEngine, shape: str) -> None:
    for depth in (3, *range(900, 1000, 3), 100_000):
        inner = ('{"error":' * depth, "}" * depth) if "{" in shape[:1] else ("[" * depth, "]" * depth)
        stub.faults.append(status(400, (shape % inner).encode()))
        with pytest.raises(UnsupportedError):
            engine.score("x", [[97]])


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf"), True, "-1", [], 0.5])
def test_what_is_no_log_probability_is_an_error_by_name(stub: Stub, engine: SGLangEngine, value: Any) -> None:
    def change(replies: Any) -> Any:
        replies[0]["meta_info"]["input_token_logprobs"][1][0] = value
        return replies

    stub.faults.append(changed(change))
    with pytest.raises(EngineError, match="not what SGLang sends"):
        engine.score("x", [[97]])


class Always(list[Any]):
    """A fault that is never used up."""

    def pop(self, _: Any = 0) -> Any:
        return self[0]


def test_a_line_answered_wrongly_ends_its_own_record_and_no_other(stub: Stub, engine: SGLangEngine) -> None:
    """As a model does whose numbers overflow on one of the texts."""
    sound = results(list(engine.generate(beams(4))))

    def nan(handler: Any, body: Any) -> bool:
        replies = [handler._line(line, body, i) for i, line in enumerate(body["input_ids"])]
        for line, reply in zip(body["input_ids"], replies, strict=True):
            if bytes(line[:6]) == b"Say 2:":
                reply["meta_info"]["output_token_ids_logprobs"] = [[[float("nan"), 97, None]] * 3]
        handler.reply(200, replies)
        return True

    stub.faults = Always([nan])
    events = list(engine.generate(beams(4)))
    assert [event.request_id for event in events if isinstance(event, Failed)] == ["2"]
    found = results(events)
    assert {name: one.value for name, one in found.items()} == {n: one.value for n, one in sound.items() if n != "2"}


def test_likeliest_tokens_beside_a_text_are_as_many_as_asked_for_and_in_the_vocabulary(
    stub: Stub, engine: SGLangEngine
) -> None:
    for wrong in ([[-1.0, 97, None]], [[-1.0, 97, None], [-2.0, 4000, None]]):

        def change(handler: Any, body: Any, wrong: Any = wrong) -> bool:
            if body.get("stream"):
                stub.faults.append(change)
                return False
            reply = handler._line(body["input_ids"], body, 0)
            reply["meta_info"]["input_top_logprobs"][1:] = [wrong] * (len(reply["meta_info"]["input_top_logprobs"]) - 1)
            handler.reply(200, reply)
            return True

        stub.faults.append(change)
        with pytest.raises(EngineError):
            engine.complete("x", max_tokens=2, logprobs=2)


# --- streams ------------------------------------------------------------------------------------------------------------

LINES = 'data: {"a": "é\U0001f600"}\r\n\r\n: ping\ndata:{"b": 2}\n\nevent: x\ndata: [DONE]\n\n'.encode()


def _told(pieces: Sequence[bytes]) -> list[bytes]:
    return list(_events(SimpleNamespace(iter_bytes=lambda: iter(pieces)), "http://u", 60))  # type: ignore[arg-type]


def test_events_are_the_same_for_every_way_of_cutting_the_bytes() -> None:
    twin = [line[5:].strip() for line in LINES.split(b"\n") if line.startswith(b"data:")]
    assert len(twin) == 3
    assert _told([LINES]) == _told([bytes([byte]) for byte in LINES]) == twin
    for cut in range(len(LINES)):
        assert _told([LINES[:cut], b"", LINES[cut:]]) == twin


def test_a_stream_that_says_nothing_without_end_is_a_hang(stub: Stub) -> None:
    def dribble(handler: Any, _: Any) -> bool:
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            for _ in range(600):
                handler.wfile.write(b": still here\n")
                time.sleep(0.05)
        handler.drop()
        return True

    with SGLangEngine(stub.url, tokenizer=stub.tokenizer, timeout_s=0.7, patience_s=1) as engine:
        stub.faults.append(dribble)
        with pytest.raises(EngineError, match="no event within"):
            engine.complete("x", max_tokens=3)


def test_an_event_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.engine.remote.connection.MOST_REPLY", 1000)
    with pytest.raises(FailedRequestError, match="larger than"):
        _told([b"data: "] + [b"x" * 100] * 11)


def test_a_server_is_heard_of_by_its_streams_too(engine: SGLangEngine) -> None:
    """Who was not heard of for long is asked who it is, which costs two requests."""
    (server,) = engine._fleet.servers
    before = server.heard_at
    engine.complete("Once", max_tokens=2)
    assert server.heard_at > before


def test_a_stream_that_goes_on_after_the_end_of_its_text_is_left(stub: Stub, engine: SGLangEngine) -> None:
    def endless(handler: Any, body: Any) -> bool:
        meta = {
            "prompt_tokens": 4,
            "cached_tokens": 0,
            "completion_tokens": 1,
            "finish_reason": {"type": "length", "length": 1},
        }
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            while True:
                handler.wfile.write(b"data: " + json.dumps({"output_ids": [97], "meta_info": meta}).encode() + b"\n\n")
        handler.drop()
        return True

    stub.faults.append(endless)
    assert engine.complete("Once", max_tokens=1).text == "a"


# --- how much is asked for at a time -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[], [1], [9], [1, 1, 1, 1], [5, 5, 1, 9, 1, 1], [0] * 7, [3, 9, 9, 3]])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_lines_are_cut_into_requests_in_order_none_too_large(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], at_once: int
) -> None:
    monkeypatch.setattr(rows, "MOST_PAIRS", 6)
    found = [sizes[part] for part in rows.parts(sizes, at_once)]
    assert [size for part in found for size in part] == sizes
    assert all(part and len(part) <= at_once and (sum(part) <= 6 or len(part) == 1) for part in found)
    for left, right in pairwise(found):  # and no smaller than they must be
        assert len(left) == at_once or sum(left) + right[0] > 6


def test_requests_cut_small_give_what_large_ones_give(
    stub: Stub, engine: SGLangEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def everything() -> Any:
        text = engine.complete("Once", max_tokens=6, logprobs=20, logprob_ids=(5, 7))
        lines = engine.score("Say", [[97], [98, 99], [100]])
        found = results(list(engine.generate(beams(3))))
        return text.token_ids, text.logprobs, lines, {name: (one.value, one.score) for name, one in found.items()}

    monkeypatch.setattr(rows, "LISTED", 0)  # so that allowed ids are asked for a second time, too
    monkeypatch.setattr(rows, "TOP", 4)
    whole, sent = everything(), len(stub.bodies)
    monkeypatch.setattr(rows, "MOST_PAIRS", 50)
    cut = everything()
    assert (cut[0], cut[3].keys()) == (whole[0], whole[3].keys())
    assert [(one.token_id, [i for i, _ in one.top]) for one in cut[1]] == [
        (one.token_id, [i for i, _ in one.top]) for one in whole[1]
    ]
    assert [one.logprob for one in cut[1]] == pytest.approx([one.logprob for one in whole[1]], abs=1e-4)
    assert [*chain(*cut[2])] == pytest.approx([*chain(*whole[2])], abs=1e-4)
    assert {n: v[0] for n, v in cut[3].items()} == {n: v[0] for n, v in whole[3].items()}
    assert len(stub.bodies) - sent > sent
    tops = [body["top_logprobs_num"] for body in stub.bodies[sent:] if isinstance(body.get("top_logprobs_num"), list)]
    assert max(map(sum, tops)) <= 50


def test_what_fits_into_the_context_is_taken_by_the_server_in_every_way(stub: Stub, engine: SGLangEngine) -> None:
    context = engine.capabilities.context
    assert context == stub.facts()["max_req_input_len"] - 1
    prompt = [97 + i % 20 for i in range(context)]
    text = engine.complete(prompt[:-1], max_tokens=9, ignore_eos=True, logprobs=1)
    assert len(text.token_ids) == len(text.logprobs) == 1
    assert len(engine.score(prompt[:-3], [[97, 98, 99]])[0]) == 3
    assert engine.beam(prompt[:-2], grammar=Grammar("regex", "[ab]"), width=2).valid
    for ask in (
        lambda: engine.complete(prompt), lambda: engine.score(prompt[:-2], [[97, 98, 99]]), lambda: engine.beam(prompt, choices=["a"]),
    ):  # fmt: skip
        with pytest.raises(ContextError):
            ask()


# --- what it costs, and who waits ----------------------------------------------------------------------------------------


def test_several_samples_cost_what_was_sent_and_computed_for_all_of_them(stub: Stub, engine: SGLangEngine) -> None:
    for known in (0, 25):  # the second time the prompt is in the server's cache
        stub.bodies.clear()
        request = Request(prompt="Once upon a time there was", sampling=SamplingParams(n=3, max_tokens=5, ignore_eos=True))
        usages = [event.result.usage for event in engine.generate([request]) if isinstance(event, Done)]
        last = usages[-1]
        assert last.tokens_sent == sum(len(line) for body in stub.bodies for line in body["input_ids"]) == 4 * 26
        assert last.rows == (26 - known) + 3 * (26 + 4)  # the stub's streams find nothing in a cache
        assert (last.cached_tokens, last.input_tokens, last.requests) == (known, 26, len(stub.bodies))


def test_a_text_that_was_sent_again_says_so(stub: Stub, engine: SGLangEngine) -> None:
    stub.faults.append(dropped)
    usage = engine.complete("Once", max_tokens=3).usage
    assert (usage.requests, usage.tokens_sent, usage.rows) == (2, 8, 4 + 2)


def test_a_text_that_is_cancelled_before_it_began_ends_as_one_that_had_begun(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.engine.remote.engine.TEXTS", 1)
    with SGLangEngine(stub.url, tokenizer=stub.tokenizer) as engine:
        stub.faults.append(hung(1))

        def two() -> Iterator[Request]:
            yield Request(prompt="a", id="a", sampling=SamplingParams(max_tokens=2))
            yield Request(prompt="b", id="b", sampling=SamplingParams(max_tokens=2, n=2))
            engine.cancel("b")

        done = [event for event in engine.generate(two()) if isinstance(event, Done) and event.request_id == "b"]
    assert [event.index for event in done] == [0, 1]
    assert all(
        isinstance(e.result, Completion) and (e.result.finish_reason, e.result.token_ids) == ("cancelled", ()) for e in done
    )
    assert not any(body.get("input_ids") == [[98], [98]] for body in stub.bodies)


def test_a_search_that_is_cancelled_while_it_waits_leaves_nothing_behind(engine: SGLangEngine) -> None:
    engine._lanes[0].rounds.pool = BlockPool(3)  # room for one of them

    def two() -> Iterator[Request]:
        yield Request(prompt="a", id="a", beam=BeamParams(width=2, max_tokens=30))
        yield Request(prompt="b", id="b", beam=BeamParams(width=2, max_tokens=30))
        engine.cancel("b")

    failed = [event for event in engine.generate(two()) if isinstance(event, Failed)]
    assert [event.request_id for event in failed] == ["b"] and isinstance(failed[0].error, CancelledError)


def test_a_server_that_hangs_is_asked_who_it_is_once_for_all_who_wait() -> None:
    asked: list[Connection] = []

    def hang(connection: Connection) -> None:
        asked.append(connection)
        time.sleep(0.4)
        raise FailedRequestError("no answer", hang=True)

    fleet = Fleet([Connection("http://127.0.0.1:1")], hang, patience_s=0.3)
    failed: list[EngineError] = []

    def post() -> None:
        try:
            fleet.post({}, lines=1)
        except EngineError as error:
            failed.append(error)

    threads = [threading.Thread(target=post) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fleet.close()
    assert len(failed) == 12 and len(asked) < 8


def test_two_servers_with_a_probability_of_zero_in_the_same_place_may_still_be_two_models() -> None:
    mine = Identity((1, 2, 3), (-math.inf, -1.0), 0.0)
    mine.check(Identity((1, 2, 3), (-math.inf, -1.1), 0.0), "http://u")
    with pytest.raises(EngineError, match="another model"):
        mine.check(Identity((1, 2, 3), (-math.inf, -9.0), 0.0), "http://u")


def test_a_closed_engine_says_so_whatever_it_is_asked(stub: Stub) -> None:
    engine = SGLangEngine(stub.url, tokenizer=stub.tokenizer)
    engine.close()
    for ask in (
        engine.server_info, engine.flush_cache, lambda: engine.score("x", [[97]]), lambda: engine.complete("x"),
        lambda: engine.server_beam("x", width=2, max_tokens=2), lambda: engine.beam("x", choices=["a"]),
    ):  # fmt: skip
        with pytest.raises(EngineError, match="the engine is closed"):
            ask()


def test_the_text_of_a_reply_is_checked_before_it_is_used(stub: Stub, engine: SGLangEngine) -> None:
    """Events of a stream with wrong ids, counts, places and shapes."""
    meta = {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 1, "finish_reason": None}
    for event in (
        None, [], 5, "x", {}, {"meta_info": []}, {"meta_info": meta}, {"meta_info": meta, "output_ids": [5000]},
        {"meta_info": meta, "output_ids": [True]}, {"meta_info": meta, "output_ids": [97, 98]}, {"meta_info": meta, "output_ids": "a"},
        {"meta_info": meta, "output_ids": [97], "index": 1}, {"meta_info": meta, "output_ids": [97], "index": -1},
        {"meta_info": meta, "output_ids": [97], "index": "0"}, {"meta_info": {**meta, "completion_tokens": 10**9}, "output_ids": [97]},
        {"meta_info": {**meta, "prompt_tokens": 2}, "output_ids": [97]}, {"meta_info": {**meta, "cached_tokens": -1}, "output_ids": [97]},
        {"meta_info": {**meta, "finish_reason": "stop"}, "output_ids": [97]},
        {"meta_info": {**meta, "finish_reason": {"type": "stop", "matched": {}}}, "output_ids": [97]},
        {"error": {"code": [], "message": {}}}, {"error": None}, {"error": {"code": 10**30, "message": "x"}},
    ):  # fmt: skip
        data = b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"
        stub.faults.append(status(200, data))
        with pytest.raises(EngineError):
            engine.complete("x", max_tokens=3)
