"""Slow, obvious twins of the engine: no cache, no batch, no cut, no lookahead, everything enumerated."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator
from typing import Any

import torch

from toolkit.contracts import BeamParams, BeamResult, Failed, Grammar, Request, Tokenizer
from toolkit.engine.admission import admit
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.harvest import Harvest
from toolkit.engine.job import Job, Loop
from toolkit.engine.loops.beam import beam
from toolkit.engine.sequence import Sequence
from toolkit.grammar.compile import compile_grammar
from toolkit.grammar.mask import allocate, unpack
from toolkit.model.attention import FullAttention
from toolkit.model.decoder import Decoder


def logits_after(decoder: Decoder, ids: list[int]) -> torch.Tensor:
    """Logits [T, V] of every position, the whole sequence recomputed."""
    hidden = decoder.forward(torch.tensor(ids), torch.arange(len(ids)), FullAttention())
    return decoder.logits(hidden)


def greedy(decoder: Decoder, tokenizer: Tokenizer, prompt: list[int], count: int, grammar: Grammar | None = None) -> list[int]:
    """Greedy ids, one recomputation a token, the mask applied to every one of them (no forced runs)."""
    ids: list[int] = []
    matcher = compile_grammar(grammar, tokenizer).matcher() if grammar is not None else None
    while len(ids) < count:
        row = logits_after(decoder, prompt + ids)[-1, : tokenizer.vocab_size]
        if matcher is not None:
            if matcher.is_stopped:
                break
            mask = allocate(1, len(row))
            matcher.fill(mask, 0)
            row = row.masked_fill(~torch.from_numpy(unpack(mask, len(row))[0]), -torch.inf)
        token = int(row.argmax())
        if matcher is not None and (forced := matcher.forced()):
            token = forced[0]
        ids.append(token)
        if token in tokenizer.eos_ids:
            break
        if matcher is not None:
            matcher.advance([token])
    return ids


def every_text(alphabet: str, longest: int) -> Iterator[str]:
    for length in range(1, longest + 1):
        for letters in itertools.product(alphabet, repeat=length):
            yield "".join(letters)


def search(
    engine: EmbeddedEngine,
    prompt: str,
    grammar: Grammar | None,
    params: BeamParams,
    *,
    lookahead: bool = True,
    cut: bool = True,
) -> BeamResult:
    """A beam search of `engine` with its fast ways switched off one by one."""

    class RunsToTheEnd(Harvest):
        enough = property(lambda self: False)  # type: ignore[assignment]

    admitted = admit(Request(prompt=prompt, beam=params, grammar=grammar), engine.tokenizer, engine._limits)
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def loop(job: Job, root: Sequence) -> Loop:
        harvest = (Harvest if cut else RunsToTheEnd)(params, job.tokenizer, grammar, room=job.max_tokens)
        yield from beam(job, root, harvest, lookahead=lookahead)
        job.tell(harvest.result(job.usage(0), job.timing(0)))

    request = Request(prompt=prompt, beam=params, grammar=grammar, id="twin")
    engine._worker.submit(
        Job(
            request, admitted.prompt, engine.tokenizer, admitted.grammar, admitted.max_tokens, admitted.reserve, loop, heard.put
        )
    )
    answer = heard.get(timeout=120)
    if isinstance(answer, Failed):
        raise answer.error
    assert isinstance(answer, BeamResult)
    return answer
