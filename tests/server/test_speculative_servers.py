"""Speculative servers on a CPU, one after the other: greedy ids are those of the plain server, and sampling samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.asking import generate
from tests.server.eagle_folder import write_random_eagle
from toolkit.lang.serve import Server, Speculation, serve

pytestmark = pytest.mark.server

PROMPTS = (
    "1, 2, 3, 4,",
    "Once upon a time there was a little robot who",
    "<|im_start|>user\nWrite a short poem about rain.<|im_end|>\n<|im_start|>assistant\n",
)
TOKENS = 40


@pytest.fixture(scope="module")
def plain(sglang_server: Server) -> list[dict[str, Any]]:
    """What the plain server answers, with log-probabilities."""
    return generate(sglang_server.url, PROMPTS, max_new_tokens=TOKENS, return_logprob=True)


@contextmanager
def speculating(target: Server, preset: str, **numbers: Any) -> Iterator[Server]:
    speculation = Speculation(preset=preset, **numbers)
    with serve(target.model, speculation=speculation, flags=("--random-seed", "1"), deadline=280) as server:
        yield server


def assert_greedy_is_plain(server: Server, plain: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Alone and together, ids and log-probabilities; returns the counts of the batch."""
    alone = generate(server.url, PROMPTS[:1], max_new_tokens=TOKENS)
    assert alone[0]["output_ids"] == plain[0]["output_ids"]
    found = generate(server.url, PROMPTS, max_new_tokens=TOKENS, return_logprob=True)
    for reply, expected in zip(found, plain, strict=True):
        assert reply["output_ids"] == expected["output_ids"]
        pairs = zip(*(each["meta_info"]["output_token_logprobs"] for each in (reply, expected)), strict=True)
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


def test_ngram_gives_the_plain_ids_and_is_accepted_where_text_repeats(
    sglang_server: Server, plain: list[dict[str, Any]]
) -> None:
    with speculating(sglang_server, "ngram") as server:
        counts = assert_greedy_is_plain(server, plain)
        assert_it_samples(server)
    assert counts[0]["spec_num_correct_drafts"] > 0


def test_a_model_that_drafts_a_chain_for_itself_is_always_accepted(sglang_server: Server, plain: list[dict[str, Any]]) -> None:
    with speculating(sglang_server, "standalone", draft=sglang_server.model) as server:
        counts = assert_greedy_is_plain(server, plain)
        assert_it_samples(server)
    assert [count["spec_accept_rate"] for count in counts] == [1.0] * len(PROMPTS)


def test_a_model_that_drafts_a_tree_for_itself_is_right_about_the_first_token(
    sglang_server: Server, plain: list[dict[str, Any]]
) -> None:
    """Deeper nodes of the greedy path may have been left out of the tree for likelier ones; the first never is."""
    with speculating(sglang_server, "standalone", draft=sglang_server.model, steps=3, topk=4, tokens=8) as server:
        counts = assert_greedy_is_plain(server, plain)
        assert_it_samples(server)
    assert [count["spec_correct_drafts_histogram"][0] for count in counts] == [0] * len(PROMPTS)
    assert all(count["spec_num_correct_drafts"] > count["spec_verify_ct"] for count in counts)


def test_eagle_with_a_head_that_knows_nothing_gives_the_plain_ids(
    sglang_server: Server, plain: list[dict[str, Any]], tmp_path: Path
) -> None:
    folder = write_random_eagle(Path(sglang_server.model), tmp_path)
    with speculating(sglang_server, "eagle", draft=str(folder)) as server:
        assert_greedy_is_plain(server, plain)
        assert_it_samples(server)
