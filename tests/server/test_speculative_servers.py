"""Speculative servers on a CPU, one after the other: greedy ids are those of the plain server, and sampling samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import toolkit
from tests.server.asking import PATIENCE, generate
from toolkit.contracts import Completion, Done, Grammar, Hypothesis, Request, SamplingParams
from toolkit.engine.remote.engine import SGLangEngine
from toolkit.lang.presets import Speculation
from toolkit.lang.serve import Server, serve
from toolkit.results import only_result
from toolkit.train.export import export_sglang_eagle

pytestmark = pytest.mark.server

PROMPTS = (
    "1, 2, 3, 4,",
    "Once upon a time there was a little robot who",
    "<|im_start|>user\nWrite a short poem about rain.<|im_end|>\n<|im_start|>assistant\n",
)
TOKENS, MORE = 40, 4
COLOURS = Grammar("regex", " (red|green|blue|white)( and (red|green|blue|white)){2}")
GRAMMAR = {"regex": r" (was|could) [a-z ]{10,30}\.", "max_new_tokens": 20, "ignore_eos": False}


@pytest.fixture(scope="module")
def plain(sglang_server: Server) -> list[dict[str, Any]]:
    """What the plain server answers, with log-probabilities, and a little further than the others are asked."""
    return generate(sglang_server.url, PROMPTS, max_new_tokens=TOKENS + MORE, return_logprob=True)


@pytest.fixture(scope="module")
def constrained(sglang_server: Server) -> list[int]:
    """What the plain server answers within a grammar."""
    found: list[int] = generate(sglang_server.url, PROMPTS[1:2], **GRAMMAR)[0]["output_ids"]
    return found


@contextmanager
def speculating(target: Server, preset: str, **numbers: Any) -> Iterator[Server]:
    """A server whose prompts are read in pieces of 16 tokens, so that drafting after a prompt in pieces is seen too."""
    speculation = Speculation(preset=preset, **numbers)
    flags = ("--random-seed", "1", "--chunked-prefill-size", "16")
    with serve(target.model, speculation=speculation, flags=flags, deadline=PATIENCE) as server:
        yield server


def assert_greedy_is_plain(server: Server, plain: list[dict[str, Any]], constrained: list[int]) -> list[dict[str, Any]]:
    """Alone and together, ids and log-probabilities, and within a grammar; returns the counts of the batch."""
    alone = generate(server.url, PROMPTS[:1], max_new_tokens=TOKENS)
    assert alone[0]["output_ids"] == plain[0]["output_ids"][:TOKENS]
    assert generate(server.url, PROMPTS[1:2], **GRAMMAR)[0]["output_ids"] == constrained
    found = generate(server.url, PROMPTS, max_new_tokens=TOKENS, return_logprob=True)
    for reply, expected in zip(found, plain, strict=True):
        assert reply["output_ids"] == expected["output_ids"][:TOKENS]
        pairs = zip(*(each["meta_info"]["output_token_logprobs"][:TOKENS] for each in (reply, expected)), strict=True)
        assert max(abs(ours[0] - theirs[0]) for ours, theirs in pairs) < 1e-3
        counts = reply["meta_info"]
        histogram = counts["spec_correct_drafts_histogram"]
        assert sum(histogram) == counts["spec_verify_ct"]
        assert sum(n * count for n, count in enumerate(histogram)) == counts["spec_num_correct_drafts"]
    return [reply["meta_info"] for reply in found]


def assert_it_samples(server: Server) -> None:
    """Six samples at temperature 1 are not one text, and a draw among the likeliest token alone is the greedy one."""
    drawn = generate(server.url, PROMPTS[1:2] * 6, max_new_tokens=8, temperature=1.0, top_p=0.95, top_k=50)
    assert len({tuple(reply["output_ids"]) for reply in drawn}) > 1
    greedy, narrow = (
        generate(server.url, PROMPTS[1:2], max_new_tokens=8, **sampling)[0]["output_ids"]
        for sampling in ({}, {"temperature": 1.0, "top_p": 1e-6})
    )
    assert narrow == greedy


def assert_beams_are_plain(server_url: str, plain_url: str) -> None:
    """Constrained beam searches do not see that a server speculates: what they ask for takes no draft."""
    found: list[tuple[Hypothesis, ...]] = []
    for url in (plain_url, server_url):
        with SGLangEngine(url) as engine:
            result = engine.beam("The colours of the flag are", grammar=COLOURS, width=3, max_tokens=48)
            assert result.notes == ()  # the scores are the model's own
            found.append(result.alternatives)
    plain, its = found
    assert [one.text for one in its] == [one.text for one in plain]
    assert [one.score for one in its] == pytest.approx([one.score for one in plain], abs=1e-3)


def assert_what_is_refused_is_still_otherwise(server_url: str, plain_url: str) -> None:
    """SGLang's rounds are not tokens: where one of these fails, a refusal in engine/remote/sampling.py has had its time."""
    long = {"min_new_tokens": 17, "ignore_eos": False, "max_new_tokens": TOKENS, "logit_bias": {"2": 100}}  # 2 is the end
    counts = [generate(url, PROMPTS[2:], **long)[0]["meta_info"]["completion_tokens"] for url in (plain_url, server_url)]
    assert counts[0] == 18 < counts[1]
    for url, same in ((plain_url, False), (server_url, True)):
        found = [generate(url, PROMPTS[:1], max_new_tokens=12, frequency_penalty=each)[0]["output_ids"] for each in (2.0, -2.0)]
        assert (found[0] == found[1]) == same


def test_ngram_gives_the_plain_ids_and_is_accepted_where_text_repeats(
    sglang_server: Server, plain: list[dict[str, Any]], constrained: list[int]
) -> None:
    with speculating(sglang_server, "ngram") as server:
        counts = assert_greedy_is_plain(server, plain, constrained)
        assert_it_samples(server)
        assert_beams_are_plain(server.url, sglang_server.url)
        assert_what_is_refused_is_still_otherwise(server.url, sglang_server.url)
        with SGLangEngine(server.url, audit=1.0, fallback=sglang_server.url) as engine:
            fast, slow = (
                only_result(
                    engine.generate([Request(prompt=PROMPTS[0], sampling=SamplingParams(max_tokens=16), speculate=speculate)])
                )
                for speculate in (True, False)
            )
        assert isinstance(fast, Completion) and isinstance(slow, Completion)
        assert fast.audit is not None and (fast.audit.verdict, fast.audit.method) == ("pass", "argmax")
        assert fast.token_ids == slow.token_ids and fast.usage.verify_passes > 0 == slow.usage.verify_passes
    assert counts[0]["spec_num_correct_drafts"] > 0


def test_a_model_that_drafts_a_chain_for_itself_is_always_accepted(
    sglang_server: Server, plain: list[dict[str, Any]], constrained: list[int]
) -> None:
    with speculating(sglang_server, "standalone", draft=sglang_server.model) as server:
        counts = assert_greedy_is_plain(server, plain, constrained)
        assert_it_samples(server)
    assert [count["spec_accept_rate"] for count in counts] == [1.0] * len(PROMPTS)


def test_a_model_that_drafts_a_tree_for_itself_is_accepted_exactly_where_its_tree_holds_the_greedy_text(
    sglang_server: Server, plain: list[dict[str, Any]], constrained: list[int]
) -> None:
    """The tree is drafted once more by the embedded engine, every node after the whole text and its own ancestors."""
    steps, topk, tokens = 3, 4, 8
    with speculating(sglang_server, "standalone", draft=sglang_server.model, steps=steps, topk=topk, tokens=tokens) as server:
        counts = assert_greedy_is_plain(server, plain, constrained)
        assert_it_samples(server)
    assert all(count["spec_correct_drafts_histogram"][0] == 0 for count in counts)  # the likeliest token is in every tree
    engine = toolkit.open_engine("embedded", model=sglang_server.model, format="float32")
    try:
        start = engine.tokenizer.encode(PROMPTS[1], control=True)
        found = Counter(dict(enumerate(counts[1]["spec_correct_drafts_histogram"])))
        assert +found == accepted(engine, start, plain[1]["output_ids"], steps, topk, tokens)
    finally:
        engine.close()


def accepted(engine: Any, start: list[int], output: list[int], steps: int, topk: int, tokens: int) -> Counter[int]:
    """How many drafts each pass accepts until TOKENS are out; the first of them came with the prompt."""
    passes: Counter[int] = Counter()
    out = 1
    while out < TOKENS:
        tree = drafted(engine, [*start, *output[:out]], steps, topk, tokens)
        right = 0
        while tuple(output[out : out + right + 1]) in tree:
            right += 1
        passes[right] += 1
        out += right + 1
    return passes


def drafted(engine: Any, text: list[int], steps: int, topk: int, tokens: int) -> set[tuple[int, ...]]:
    """The paths of the tree: topk continuations of the best topk of each level; of all of them the best."""
    kept: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    every = []
    for _ in range(steps):
        after = likeliest(engine, [[*text, *path] for _, path in kept], topk)
        level = [(score * p, (*path, token)) for (score, path), row in zip(kept, after, strict=True) for token, p in row]
        kept = sorted(level, key=lambda node: -node[0])[:topk]
        every += level
    return {path for _, path in sorted(every, key=lambda node: -node[0])[: tokens - 1]}


def likeliest(engine: Any, texts: list[list[int]], topk: int) -> list[list[tuple[int, float]]]:
    """The likeliest next tokens of every text and their probabilities."""
    sampling = SamplingParams(max_tokens=1, logprobs=topk, ignore_eos=True)
    requests = [Request(prompt=text, id=str(i), sampling=sampling) for i, text in enumerate(texts)]
    done = {event.request_id: event.result for event in engine.generate(requests) if isinstance(event, Done)}
    return [[(token, math.exp(logprob)) for token, logprob in done[str(i)].logprobs[0].top] for i in range(len(texts))]


def test_the_trained_head_exported_for_eagle_is_accepted_as_in_the_embedded_engine(
    sglang_server: Server, plain: list[dict[str, Any]], constrained: list[int], tmp_path: Path
) -> None:
    """Greedy ids are the plain server's, and of chains of three as many tokens are accepted, up to 5 points of a hundred."""
    export_sglang_eagle(sglang_server.model, "", tmp_path)
    with speculating(sglang_server, "eagle", draft=str(tmp_path)) as server:
        counts = assert_greedy_is_plain(server, plain, constrained)
        assert_it_samples(server)
        assert_beams_are_plain(server.url, sglang_server.url)
    chains = {"tokens": 3, "width": 1, "floor": 0.0}
    with toolkit.open_engine("embedded", model=sglang_server.model, format="float32", drafter="mtp", draft=chains) as engine:
        ours = [
            engine.complete(engine.tokenizer.encode(prompt, control=True), max_tokens=TOKENS, ignore_eos=True).usage
            for prompt in PROMPTS
        ]
    theirs = sum(each["spec_num_correct_drafts"] for each in counts) / (3 * sum(each["spec_verify_ct"] for each in counts))
    embedded = sum(each.accepted for each in ours) / (3 * sum(each.verify_passes for each in ours))
    print(f"accepted by SGLang {theirs:.3f}, by the embedded engine {embedded:.3f}")
    assert embedded > 0.2 and abs(theirs - embedded) <= 0.05
