"""The law of the native path, at 8 and at 4 bits: for one sequence every bit of its logits is the same whatever else is in the pass.

Every case is compared, with ==, to the sequence fed alone and one token at a time, by one thread, with blocks of 16.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence as Many

import pytest
import torch

from toolkit.contracts import BeamParams, Done, Grammar, Request, SamplingParams
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.forward import Feed, Forward
from toolkit.engine.sequence import Sequence
from toolkit.model.native.decoder import NativeDecoder
from toolkit.model.native.library import missing
from toolkit.model.store import resolve
from toolkit.model.tiny import tiny_model
from toolkit.model.weights import load_model

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no native path: {missing()}")
LENGTH = 40


def texts(count: int) -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(256) for _ in range(LENGTH)] for _ in range(count)]


def new_forward(block_size: int = 16, threads: int = 1, bits: int = 8) -> Forward:
    decoder = NativeDecoder(tiny_model(hidden_size=64, layers=3, heads=8, kv_heads=2), threads=threads, bits=bits)
    blocks = 4096 // block_size
    return Forward(decoder, vocab_size=261, kv_blocks=blocks, block_size=block_size, device=torch.device("cpu"))


def feed(forward: Forward, sequence: Sequence, tokens: Many[int]) -> Feed:
    sequence.advance(tokens)
    return Feed(sequence, len(tokens), len(tokens))


def start(forward: Forward, prompt: Many[int] = ()) -> Sequence:
    return Sequence(prompt, forward.table())


@pytest.fixture(scope="module", params=[8, 4])
def bits(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def alone(bits: int) -> list[torch.Tensor]:
    """Logits [LENGTH, V] of every text."""
    found, forward = [], new_forward(bits=bits)
    for text in texts(32):
        sequence = start(forward)
        found.append(torch.cat([forward([feed(forward, sequence, [token])])[0] for token in text]))
        sequence.release()
    return found


@pytest.mark.parametrize(("block_size", "threads"), list(itertools.product((1, 4, 16), (1, 2))))
def test_every_number_of_sequences_in_a_pass_gives_the_bits_of_one(
    block_size: int, threads: int, bits: int, alone: list[torch.Tensor]
) -> None:
    forward, rng = new_forward(block_size, threads, bits), random.Random(block_size)
    for rows in range(1, 33):
        lines = texts(32)[:rows]
        sequences = [start(forward) for _ in lines]
        ahead = [rng.randrange(1, LENGTH - 1) for _ in lines]  # each row stands at a position of its own
        parts = forward([feed(forward, s, line[:n]) for s, line, n in zip(sequences, lines, ahead, strict=True)])
        single = forward([feed(forward, s, [line[n]]) for s, line, n in zip(sequences, lines, ahead, strict=True)])
        for part, one, n, expected in zip(parts, single, ahead, alone, strict=False):
            assert torch.equal(part, expected[:n])
            assert torch.equal(one, expected[n : n + 1])
        for sequence in sequences:
            sequence.release()


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_every_cut_of_a_prompt_gives_the_same_bits(block_size: int, bits: int, alone: list[torch.Tensor]) -> None:
    forward = new_forward(block_size, 2, bits)
    for pieces in ([40], [1, 39], [39, 1], [16, 24], [17, 23], [5] * 8, [3, 7, 11, 19]):
        sequence, line, found, at = start(forward), texts(1)[0], [], 0
        for count in pieces:
            found.append(forward([feed(forward, sequence, line[at : at + count])])[0])
            at += count
        assert torch.equal(torch.cat(found), alone[0])
        sequence.release()


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_attend_together_give_the_bits_of_rows_that_attend_alone(threads: int) -> None:
    forward, rng = new_forward(4, threads), random.Random(9)
    line = [rng.randrange(256) for _ in range(205)]  # several strips of values, the last one not full
    lone = start(forward)
    expected = torch.cat([forward([feed(forward, lone, [token])])[0] for token in line])
    for first in (205, 64, 131, 190):
        sequence = start(forward)
        found = [forward([feed(forward, sequence, piece)])[0] for piece in (line[:first], line[first:]) if piece]
        assert torch.equal(torch.cat(found), expected)
        sequence.release()


@pytest.mark.parametrize(("block_size", "threads"), list(itertools.product((1, 4, 16), (1, 2))))
def test_beams_over_shared_and_copied_blocks_give_the_bits_of_sequences_of_their_own(
    block_size: int, threads: int, bits: int
) -> None:
    forward, lines = new_forward(block_size, threads, bits), texts(6)
    prompt = texts(7)[6][:21]
    root = start(forward)
    forward([feed(forward, root, prompt)])
    beams = [root.fork() for _ in lines]
    found = [forward([feed(forward, b, [line[i]]) for b, line in zip(beams, lines, strict=True)]) for i in range(9)]
    for beam in beams[1:]:
        beam.rollback(4)
    again = [forward([feed(forward, b, [line[i]]) for b, line in zip(beams[1:], lines[1:], strict=True)]) for i in range(5, 9)]
    for number, line in enumerate(lines):
        lone = start(forward)
        forward([feed(forward, lone, prompt)])
        expected = [forward([feed(forward, lone, [token])])[0] for token in line[:9]]
        assert all(torch.equal(step[number], row) for step, row in zip(found, expected, strict=True))
        if number:
            assert all(torch.equal(step[number - 1], row) for step, row in zip(again, expected[5:], strict=True))
        lone.release()


def test_a_prefix_from_the_cache_gives_the_bits_of_one_computed_anew(bits: int, alone: list[torch.Tensor]) -> None:
    forward, line = new_forward(4, 2, bits), texts(1)[0]
    first = start(forward)
    forward([feed(forward, first, line[:30])])
    forward.keep_prefix(first)
    first.release()
    second = start(forward, line)
    assert forward.find_prefix(second) == 28
    assert torch.equal(forward([Feed(second, 12, 12)])[0], alone[0][28:])


def test_requests_get_the_same_tokens_and_log_probabilities_alone_and_together(bits: int) -> None:
    prompts = ["one", "and two", "a third, longer than those before it", "4", "five five five"]
    sampling = SamplingParams(temperature=0.8, seed=3, max_tokens=12, logprobs=3, ignore_eos=True)
    requests = [Request(prompt=prompt, sampling=sampling, id=prompt) for prompt in prompts]
    with EmbeddedEngine("tiny", format=f"int{bits}", kv_blocks=256, prefix_cache=False) as engine:
        together = {event.request_id: event for event in engine.generate(requests) if isinstance(event, Done)}
        for request in requests:
            (lone,) = [event for event in engine.generate([request]) if isinstance(event, Done)]
            assert lone.result.token_ids == together[request.id].result.token_ids
            assert lone.result.logprobs == together[request.id].result.logprobs


def test_a_beam_search_has_the_same_scores_alone_and_next_to_others(bits: int) -> None:
    grammar = Grammar("choices", '["red", "green", "blue", "yellow"]')
    request = Request(prompt="colour: ", beam=BeamParams(width=3, n=3), grammar=grammar, id="beam")
    others = [Request(prompt=f"text {i}", sampling=SamplingParams(max_tokens=20), id=f"other-{i}") for i in range(6)]
    with EmbeddedEngine("tiny", format=f"int{bits}", kv_blocks=512) as engine:
        (lone,) = [event for event in engine.generate([request]) if isinstance(event, Done)]
        crowd = {event.request_id: event for event in engine.generate([*others, request]) if isinstance(event, Done)}
    assert lone.result.alternatives == crowd["beam"].result.alternatives


@pytest.mark.slow
def test_the_real_model_gives_the_same_bits_for_every_number_of_rows_and_every_cut(bits: int) -> None:
    decoder = NativeDecoder(load_model(resolve("smollm2")), bits=bits)
    forward = Forward(decoder, vocab_size=49152, kv_blocks=1024, block_size=4, device=torch.device("cpu"), prefix_cache=False)
    rng = random.Random(1)
    line = [rng.randrange(17, 49152) for _ in range(60)]
    lone = start(forward)
    expected = torch.cat([forward([feed(forward, lone, [token])])[0] for token in line])
    for rows in (1, 2, 3, 5, 8, 12, 13, 16, 24, 32):
        sequences = [start(forward) for _ in range(rows)]
        ahead = [rng.randrange(1, 59) for _ in sequences]
        parts = forward([feed(forward, s, line[:n]) for s, n in zip(sequences, ahead, strict=True)])
        single = forward([feed(forward, s, [line[n]]) for s, n in zip(sequences, ahead, strict=True)])
        for part, one, n in zip(parts, single, ahead, strict=True):
            assert torch.equal(part, expected[:n]) and torch.equal(one[0], expected[n])
        for sequence in sequences:
            sequence.release()
