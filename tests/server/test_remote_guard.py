"""The guard on the real server: policies repair a text there, programs have the verdict, and audits by its log-probabilities are right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sglang as sgl

from toolkit.contracts import Completion, Request, SamplingParams, Watch
from toolkit.engine.audit import read_logprobs
from toolkit.engine.guard import guarded
from toolkit.engine.remote.engine import SGLangEngine
from toolkit.lang import Endpoint, completion, free, watch
from toolkit.lang.serve import Server
from toolkit.results import only_result

pytestmark = pytest.mark.server

SCHEMA = {
    "type": "object",
    "properties": {"sky": {"enum": ["blue", "grey"]}},
    "required": ["sky"],
    "additionalProperties": False,
}
PROMPT = "What colour is the sky in summer? Answer: "


@pytest.fixture(scope="module")
def remote(sglang_server: Server) -> Iterator[SGLangEngine]:
    with SGLangEngine(sglang_server.url, audit=1.0) as engine:
        yield engine


def test_policies_repair_a_text_and_every_attempt_is_kept(remote: SGLangEngine) -> None:
    request = Request(
        prompt=PROMPT, sampling=SamplingParams(max_tokens=24), watch=Watch(kind="json", schema=json.dumps(SCHEMA))
    )
    found = guarded(remote, request, ("plain", "ask", "constrained"))
    assert found.valid and found.value["sky"] in ("blue", "grey")
    tried = [each.policy for each in found.attempts]
    assert tried[:2] == ["", "plain"] and [each.valid for each in found.attempts] == [False] * (len(tried) - 1) + [True]
    assert (
        found.attempts[0].text == found.attempts[1].text != found.text
    )  # the server does not speculate: plain is the same again
    assert found.audit is None and remote.metrics.value("toolkit_repairs_total", outcome="valid") == 1


def test_a_program_s_free_text_is_guarded_over_the_server(sglang_server: Server) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += PROMPT + free("sky", watch=watch(schema=SCHEMA), policies=("constrained",), temperature=0, max_tokens=24)

    backend = Endpoint(sglang_server.url)
    try:
        state = program.run(backend=backend)
        assert json.loads(state["sky"])["sky"] in ("blue", "grey")
        assert [each.policy for each in completion(state, "sky").attempts] == ["", "constrained"]
        assert state.get_meta_info("sky")["toolkit"]["valid"] is True
    finally:
        backend.shutdown()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_server_s_own_texts_pass_an_audit_and_another_token_fails_it(remote: SGLangEngine, temperature: float) -> None:
    sampling = SamplingParams(max_tokens=32, temperature=temperature, top_p=0.5 if temperature else 1.0, logprobs=64)
    request, size = Request(prompt="Once upon a time there was", sampling=sampling), remote.tokenizer.vocab_size
    done = only_result(remote.generate([request]))
    assert isinstance(done, Completion)
    honest = read_logprobs(request, done, vocab_size=size)
    assert honest.verdict == "pass" and honest.method == ("likelihood" if temperature else "argmax")
    strange = remote.tokenizer.encode(" Zürich")[0]
    prompt = [*remote.tokenizer.encode(str(request.prompt)), *done.token_ids[:8]]
    ((least, *_),) = remote.score(prompt, [[strange]])
    wrong = replace(done.logprobs[8], token_id=strange, logprob=least)
    logprobs = (*done.logprobs[:8], wrong, *done.logprobs[9:])
    failed = read_logprobs(request, replace(done, logprobs=logprobs), vocab_size=size)
    assert failed.verdict == "fail" and "token 8" in failed.why
