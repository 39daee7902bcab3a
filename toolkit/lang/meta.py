"""Meta: what a segment's `get_meta_info` holds, in SGLang's field names.

In: a Completion or a BeamResult.   Out: JSON-able dicts; a log-probability entry is `[logprob, token id, text or None]`.
Knows nothing about: how the text was decoded.
Source: the reply of SGLang's `/generate`, release 0.5.23; `toolkit` and `beam` are this project's own fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from toolkit.contracts import BeamResult, Completion, Json, Tokenizer, TokenLogprob, Usage
from toolkit.lang.found import BeamMeta, TextMeta
from toolkit.results import result_fields

Entry = list[Any]  # [logprob | None, token id, text | None]


def entry(logprob: float | None, token_id: int, tokenizer: Tokenizer | None) -> Entry:
    """One log-probability entry, with the token's text where a tokenizer is given."""
    return [logprob, token_id, None if tokenizer is None else tokenizer.decode([token_id])]


def completion_meta(done: Completion, *, request_id: str, tokenizer: Tokenizer | None = None) -> dict[str, Json]:
    """Meta info of a sampled segment; with log-probabilities where they were asked for."""
    meta = {**_common(request_id, done.usage), "finish_reason": _finish(done), "e2e_latency": done.timing.e2e_s}
    if done.logprobs:
        meta["output_token_logprobs"] = [entry(each.logprob, each.token_id, tokenizer) for each in done.logprobs]
        meta["output_top_logprobs"] = [_top(each, tokenizer) for each in done.logprobs]
    fields = {
        "seed": done.seed, "usage": asdict(done.usage), "timing": asdict(done.timing), "notes": list(done.notes),
        "partial": list(done.partial), "valid": done.valid, "value": done.value,
        "violations": [asdict(each) for each in done.violations], "incidents": [asdict(each) for each in done.incidents],
        "audit": None if done.audit is None else asdict(done.audit), "attempts": [asdict(each) for each in done.attempts],
    }  # fmt: skip
    meta["toolkit"] = TextMeta(fields, done)
    return meta


def beam_meta(found: BeamResult, *, request_id: str) -> dict[str, Json]:
    """Meta info of a beam search: its fields as the command line prints them, and the record itself."""
    return {
        **_common(request_id, found.usage),
        "finish_reason": {"type": "stop", "matched": None},
        "e2e_latency": found.timing.e2e_s,
        "beam": BeamMeta(result_fields(found), found),
    }


def _common(request_id: str, usage: Usage) -> dict[str, Json]:
    return {
        "id": request_id,
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
    }


def _finish(done: Completion) -> dict[str, Json]:
    if done.finish_reason == "length":
        return {"type": "length", "length": len(done.token_ids)}
    if done.finish_reason == "cancelled":
        return {"type": "abort"}
    return {"type": "stop", "matched": done.matched_stop}


def _top(each: TokenLogprob, tokenizer: Tokenizer | None) -> Sequence[Entry]:
    return [entry(logprob, token_id, tokenizer) for token_id, logprob in each.top]
