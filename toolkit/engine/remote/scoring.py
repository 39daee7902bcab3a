"""Scoring: raw log-probabilities of tokens that are given, asked for as those of input tokens.

In: a fleet, a prompt, what follows it.   Out: a number a token, with the likeliest and the named ids where asked for.
Knows nothing about: threads, who asks.
Invariants: one request holds a bounded number of ids and asks for a bounded number of log-probabilities, whatever the caller wants: a
server makes and sends a reply as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from toolkit.contracts import Json, TokenLogprob
from toolkit.engine.remote import rows
from toolkit.engine.remote.fleet import Fleet
from toolkit.engine.remote.reply import batch, checked, costs, likeliest, pairs, row, scores

Spend = Callable[[int, int, int], object]  # hears of requests, of the tokens sent in them, and of those that were cached


def line_scores(fleet: Fleet, prompt: Sequence[int], lines: Sequence[Sequence[int]], at_once: int) -> list[list[float]]:
    """Log-probabilities of every token of every line after the prompt; the first line leaves the prompt in the server's cache."""
    found: list[list[float]] = []
    sizes = [len(prompt) + len(tokens) for tokens in lines[1:]]
    later = [lines[1:][part] for part in rows.parts(sizes, at_once)]
    for some in [lines[:1], *later] if lines else []:
        body = {
            "input_ids": [[*prompt, *tokens] for tokens in some],
            "sampling_params": rows.WARM,
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 1,
        }
        reply, _ = fleet.post(body, lines=len(some))
        for one, tokens in zip(batch(reply, len(some)), some, strict=True):
            found.append(list(scores(one["meta_info"], [prompt[-1], *tokens])))
    return found


def token_logprobs(
    fleet: Fleet, prompt: Sequence[int], ids: Sequence[int], *, top: int, named: Sequence[int], vocab_size: int, spend: Spend
) -> tuple[TokenLogprob, ...]:
    """Those of `ids` after the prompt, each with the `top` likeliest and the `named` ids at its place."""
    found: list[TokenLogprob] = []
    step = max(1, rows.MOST_PAIRS // (1 + top + len(named)))
    for start in range(0, len(ids), step):
        some, before = ids[start : start + step], [*prompt, *ids[:start]]
        asked: dict[str, Json] = {"token_ids_logprob": list(named)} if named else {}
        body = {
            "input_ids": [*before, *some], "sampling_params": rows.WARM, "return_logprob": True,
            "logprob_start_len": len(before) - 1, "top_logprobs_num": top, **asked,
        }  # fmt: skip
        reply, requests = fleet.post(body, lines=1)
        one, sent = checked(reply), len(before) + len(some)
        spend(requests, sent, costs(one, sent))
        meta = one["meta_info"]
        for at, (token, logprob) in enumerate(zip(some, scores(meta, [before[-1], *some]), strict=True), 1):
            best = likeliest(row(meta, "input_top_logprobs", at), "input_top_logprobs", top, vocab_size) if top else {}
            others = pairs(row(meta, "input_token_ids_logprobs", at), "input_token_ids_logprobs", named) if named else {}
            found.append(TokenLogprob(token, logprob, tuple(best.items()), tuple((each, others[each]) for each in named)))
    return tuple(found)
