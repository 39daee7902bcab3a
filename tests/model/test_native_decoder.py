"""The native pass against its slow twin in numpy, bit for bit, and against the torch decoder, within its rounding."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.model.native_twin import Twin, attend, meant, norm, product, quantise, random_decoder, weights, weights4
from tests.model.slot_rows import SlotLine
from toolkit.errors import EngineError, InputError, UnsupportedError, UsageError
from toolkit.model.attention import FullAttention
from toolkit.model.config import RopeScaling
from toolkit.model.decoder import Decoder, Linear
from toolkit.model.native.decoder import NativeDecoder, linear
from toolkit.model.native.library import PAD, STRETCH, kernels, library, missing
from toolkit.model.native.pack import interleave, pack
from toolkit.model.tiny import tiny_model

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no native path: {missing()}")
SETS = list(kernels()) if missing() is None else []
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied": {"tied": True},
    "one-head": {"heads": 1, "kv_heads": 1, "head_dim": 16},
    "biased": {"qkv_bias": True, "o_bias": True},
    "query-key-norm": {"qk_norm": True, "head_dim": 24},
    "wide-heads": {"head_dim": 72, "heads": 4},
    "llama3-rope": {"rope_scaling": RopeScaling(8.0, 1.0, 4.0, 64), "rope_theta": 5000.0},
    "long-sums": {"intermediate": 2 * STRETCH + 16, "layers": 1},
}
WIDTHS4 = {"hidden_size": 64, "heads": 8, "intermediate": 96}  # at 4 bits, multiples of 32
CASES = [(name, 8) for name in SHAPES] + [(name, 4) for name in ("llama", "tied", "biased", "query-key-norm", "wide-heads")]


def decoder_of(name: str, bits: int) -> Decoder:
    return random_decoder(**(WIDTHS4 if bits == 4 else {}) | SHAPES[name])


def rows(decoder: NativeDecoder, tokens: torch.Tensor, cuts: list[int] | None = None, order: list[int] | None = None) -> Any:
    """Logits [T, V] of one sequence, its tokens fed in pieces of `cuts`."""
    line, parts, at = SlotLine(decoder.config, order or list(range(len(tokens)))), [], 0
    for count in cuts or [len(tokens)]:
        positions = torch.arange(at, at + count)
        parts.append(decoder.forward(tokens[at : at + count], positions, line.grow(count)))
        at += count
    return decoder.logits(torch.cat(parts))


@pytest.mark.parametrize(("name", "bits"), CASES)
def test_hidden_rows_and_logits_equal_the_slow_twin_bit_for_bit(name: str, bits: int) -> None:
    decoder = decoder_of(name, bits)
    native, twin = NativeDecoder(decoder, bits=bits), Twin(decoder, bits)
    tokens = torch.randint(0, 97, (21,), generator=torch.Generator().manual_seed(3))
    expected = np.stack([twin.hidden(int(token), i) for i, token in enumerate(tokens)])
    line = SlotLine(decoder.config, list(range(21)))
    hidden = native.forward(tokens, torch.arange(21), line.grow(21))
    assert np.array_equal(hidden.numpy(), expected)
    assert np.array_equal(native.logits(hidden).numpy(), np.stack([twin.logits(row) for row in expected]))


def test_residual_rows_are_those_of_torch_and_asking_for_them_changes_no_bit() -> None:
    decoder = random_decoder(layers=4)
    native, tokens, places = NativeDecoder(decoder), torch.arange(19) * 5 % 97, torch.arange(19)
    hidden, residuals = native.features(tokens, places, SlotLine(decoder.config, list(range(19))).grow(19), (0, 2, 3))
    _round_all(decoder)
    expected, inner = decoder.features(tokens, places, FullAttention(), (0, 2, 3))
    assert torch.equal(hidden, native.forward(tokens, places, SlotLine(decoder.config, list(range(19))).grow(19)))
    assert torch.equal(residuals[0], native.embed(tokens))
    assert residuals.shape == inner.shape == (3, 19, 48)
    assert (residuals - inner).abs().max() < 2e-3 * inner.abs().max()
    assert (hidden - expected).abs().max() < 2e-3 * expected.abs().max()


def test_rows_that_start_a_pass_stand_for_embeddings_and_a_decoder_may_lack_norms() -> None:
    decoder = random_decoder(layers=1)
    native, tokens, places = NativeDecoder(decoder), torch.arange(19) * 5 % 97, torch.arange(19)

    def run(model: NativeDecoder, inputs: torch.Tensor | None) -> torch.Tensor:
        line = SlotLine(decoder.config, list(range(19))).grow(19)
        return model.features(torch.zeros_like(tokens) if inputs is not None else tokens, places, line, (), inputs)[0]

    assert torch.equal(run(native, native.embed(tokens)), run(native, None))
    block = replace(decoder.blocks[0], attention_norm=None)
    bare = Decoder(decoder.config, decoder.embedding, (block,), None, decoder.head.weight)
    inputs = torch.randn(19, 48, generator=torch.Generator().manual_seed(2))
    found = run(NativeDecoder(bare), inputs)
    _round_all(bare)
    expected = bare.features(tokens, places, FullAttention(), (), inputs)[0]
    assert (found - expected).abs().max() < 2e-3 * expected.abs().max()


def test_depths_and_inputs_that_do_not_fit_are_refused_by_name() -> None:
    native, line = NativeDecoder(random_decoder()), SlotLine(random_decoder().config, [0, 1]).grow(2)
    one = torch.tensor([0, 1])
    for depths in ((2,), (-1,), (1, 0), (1, 1)):
        with pytest.raises(UsageError, match="rising layer numbers from 0 to 1"):
            native.features(one, one, line, depths)
    for inputs in (torch.zeros(2, 47), torch.zeros(1, 48), torch.zeros(2, 48, dtype=torch.float64)):
        with pytest.raises(EngineError, match=r"inputs .* must be float32"):
            native.features(one, one, line, (), inputs)


@pytest.mark.parametrize(("name", "bits"), CASES)
def test_logits_equal_those_of_torch_over_the_same_packed_weights_within_the_rounding_of_activations(
    name: str, bits: int
) -> None:
    decoder = decoder_of(name, bits)
    native = NativeDecoder(decoder, bits=bits)
    _round_all(decoder, bits)
    tokens = torch.arange(60) % 97
    expected = decoder.logits(decoder.forward(tokens, torch.arange(60), FullAttention()))
    assert (rows(native, tokens) - expected).abs().max() < 3e-3 * expected.abs().max()


def _round_all(decoder: Decoder, bits: int = 8) -> None:
    """Every matrix becomes what its packed form stands for; embedding and head have 8 bits."""
    for linear_ in (each for b in decoder.blocks for each in (b.qkv, b.o, b.gate_up, b.down)):
        linear_.weight.copy_(torch.from_numpy(meant(linear_.weight.numpy(), bits)))
    for ends in (decoder.head.weight,) if decoder.config.tied else (decoder.head.weight, decoder.embedding):
        ends.copy_(torch.from_numpy(meant(ends.numpy(), 8)))


@pytest.mark.parametrize(
    ("name", "bits"), [*((name, 8) for name in ("llama", "query-key-norm", "wide-heads", "long-sums")), ("biased", 4)]
)
def test_every_kernel_set_and_thread_count_gives_the_same_bits(name: str, bits: int) -> None:
    decoder, tokens = decoder_of(name, bits), torch.arange(40) * 7 % 97
    expected = rows(NativeDecoder(decoder, bits=bits, kernels="portable", threads=1), tokens)
    for kernel_set in SETS:
        for threads in (1, 2, 3):
            found = rows(NativeDecoder(decoder, bits=bits, kernels=kernel_set, threads=threads), tokens)
            assert torch.equal(found, expected), (kernel_set, threads)


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("bits", [8, 4])
def test_every_cut_of_a_prompt_and_every_order_of_slots_gives_the_same_bits(kernel_set: str, bits: int) -> None:
    native = NativeDecoder(decoder_of("llama", bits), bits=bits, kernels=kernel_set)
    tokens = torch.arange(45) * 11 % 97
    expected = rows(native, tokens, [1] * 45)
    for cuts in ([45], [44, 1], [1, 44], [13, 13, 19], [7, 9, 2, 27]):
        assert torch.equal(rows(native, tokens, cuts), expected)
    assert torch.equal(rows(native, tokens, [20, 25], list(range(44, -1, -1))), expected)


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize(
    ("inputs", "bits"),
    [(8, 8), (576, 8), (STRETCH, 8), (STRETCH + 8, 8), (3 * STRETCH + 40, 8), (32, 4), (576, 4), (STRETCH + 32, 4)],
)
def test_a_product_is_that_of_its_twin_for_every_number_of_rows(kernel_set: str, inputs: int, bits: int) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight, x = torch.randn(70, inputs, generator=generator), torch.randn(33, inputs, generator=generator)
    bias = torch.randn(70, generator=generator)
    packed = pack(weight, bias, bits=bits)
    expected = np.stack([product(row, Linear(weight, bias), bits) for row in x.numpy()])
    for count in range(1, 34):
        found = linear(packed, x[:count], kernels()[kernel_set], threads=1 + count % 2)
        assert np.array_equal(found.numpy(), expected[:count]), count


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_possible_sum_does_not_overflow(kernel_set: str, sign: float) -> None:
    for inputs in (STRETCH, STRETCH + 8, 5 * STRETCH):
        packed = pack(torch.ones(32, inputs))
        for rows in (1, 2, 3, 9, 17):
            found = linear(packed, torch.full((rows, inputs), sign), kernels()[kernel_set])
            scale = np.float32(1 / np.float32(8191)) * (np.float32(1) / np.float32(127))
            assert found.unique().tolist() == [float(np.float32(sign * 127 * 8191 * inputs) * scale)], rows


@pytest.mark.parametrize("kernel_set", SETS)
def test_norm_quantise_and_attention_equal_their_twins_bit_for_bit(kernel_set: str) -> None:
    index, lib, rng = kernels()[kernel_set], library(), np.random.default_rng(5)

    def floats(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, np.float32)

    for n in (8, 40, 576):
        x, weight, y, X = floats(n), floats(n), np.empty(n, np.float32), np.empty(-(-n // PAD) * PAD, np.int16)
        lib.native_norm(index, x.ctypes.data, weight.ctypes.data, n, 1e-5, y.ctypes.data)
        assert np.array_equal(y, norm(x, weight, 1e-5))
        scale = lib.native_quantise(index, x.ctypes.data, n, X.ctypes.data)
        expected, expected_scale = quantise(x)
        assert np.array_equal(X[:n], expected) and scale == expected_scale and np.abs(X).max() == 8191 and not X[n:].any()
    for width, seen in ((8, 1), (64, 7), (64, 8), (72, 30), (64, 64), (16, 150)):
        q, keys, values = floats(3, width) * 4, floats(160, width), floats(160, width)
        slots = rng.permutation(160)[:seen].astype(np.int32)
        scores, out = np.empty(3 * (seen + 16), np.float32), np.empty((3, width), np.float32)
        lib.native_attend(
            index, q.ctypes.data, 3, width, keys.ctypes.data, values.ctypes.data, slots.ctypes.data, seen,
            scores.ctypes.data, out.ctypes.data,
        )  # fmt: skip
        assert np.array_equal(out, np.stack([attend(row, keys[slots], values[slots]) for row in q]))


@pytest.mark.parametrize("kernel_set", SETS)
def test_a_row_of_zeros_is_zero_and_a_row_that_is_not_finite_is_not_hidden(kernel_set: str) -> None:
    x = torch.ones(4, 64)
    x[0], x[1, 5], x[2, 63] = 0.0, torch.nan, torch.inf
    for bits in (8, 4):
        found = linear(pack(torch.ones(32, 64), bits=bits), x, kernels()[kernel_set])
        assert (found[0] == 0).all() and found[1:3].isnan().all() and torch.allclose(found[3], torch.tensor(64.0))


def test_packed_weights_are_within_half_a_step_and_lie_as_the_header_says() -> None:
    weight = torch.randn(70, 48, generator=torch.Generator().manual_seed(1))
    weight[3] = 0.0
    packed = pack(weight)
    W, scale = weights(weight.numpy())
    assert packed.tiles.shape == (3, 24, 32, 2) and np.array_equal(packed.scale[:70].numpy(), scale)
    for n, k in ((0, 0), (31, 47), (32, 1), (69, 30), (3, 5)):
        assert packed.tiles[n // 32, k // 2, n % 32, k % 2] == W[n, k]
    assert (packed.tiles[2, :, 6:] == 0).all() and (packed.scale[70:] == 0).all()
    assert (torch.from_numpy(W * scale[:, None]) - weight).abs().max() <= weight.abs().max() / 254 * 1.001


def test_weights_of_four_bits_lie_as_the_header_says() -> None:
    weight = torch.randn(70, 96, generator=torch.Generator().manual_seed(1)) * torch.logspace(-28, 36, 70)[:, None]
    weight[2], weight[3] = 1e-42, 0.0
    packed = pack(weight, bits=4)
    W, step, offset, scale = weights4(weight.numpy()[4:])
    assert packed.tiles.shape == (3, 3, 640) and np.array_equal(packed.scale[4:70].numpy(), scale)
    for n, k in ((4, 0), (31, 95), (32, 1), (69, 30), (40, 66)):
        span = packed.tiles[n // 32, k // 32].numpy().view(np.uint8)
        line = span[128:].reshape(8, 32, 2)[k % 32 // 4, n % 32]
        assert line[k % 2] >> (4 if k % 4 > 1 else 0) & 15 == W[n - 4, k // 32, k % 32]
        halves = span[:128].view(np.float16).reshape(2, 32)[:, n % 32]
        assert halves.tolist() == [step[n - 4, k // 32], offset[n - 4, k // 32]]
    assert packed.scale[2] == 2.0**-101 and packed.scale[3] == 0.5  # the least there is; that of zeros
    apart = np.abs(meant(weight.numpy()[4:], 4) - weight.numpy()[4:]).max(1) / np.abs(weight.numpy()[4:]).max(1)
    assert apart.max() < 1 / 15 + 1e-3  # half a step, and the rounding of the offset


def test_weights_on_a_grid_of_sixteen_are_met_exactly() -> None:
    generator = torch.Generator().manual_seed(4)
    step, least = torch.rand(40, 3, 1, generator=generator).half(), (torch.randn(40, 3, 1, generator=generator) * 4).half()
    fours = torch.randint(0, 16, (40, 3, 32), generator=generator)
    fours[..., 0], fours[..., 7] = 0, 15
    weight = (step.float() * fours + least.float()).view(40, 96)
    packed, x = pack(weight, bits=4), torch.eye(96)
    assert torch.equal(torch.from_numpy(meant(weight.numpy(), 4)), weight)
    assert torch.allclose(linear(packed, x, kernels()["portable"]).T, weight, rtol=1e-6, atol=1e-6)


def test_gate_and_up_rows_share_tiles() -> None:
    mixed = interleave(torch.arange(64.0)[:, None].repeat(1, 8))[:, 0]
    assert mixed.tolist() == [*range(16), *range(32, 48), *range(16, 32), *range(48, 64)]


@pytest.mark.parametrize("kernel_set", SETS)
def test_siblings_that_share_a_list_are_those_with_lists_of_their_own_bit_for_bit(kernel_set: str) -> None:
    native = NativeDecoder(random_decoder(), kernels=kernel_set)
    order = [9, 4, 7, 1, 11, 2, 8, 3, 0, 5, 10, 6]
    for known in (1, 5):  # tokens before a node and its three siblings, the last of which goes on
        tokens, places = torch.arange(20, 25), torch.tensor([known, known, known, known + 1, known + 1])
        own = np.array(order[known : known + 5], np.int64)
        lines = [SlotLine(native.config, order) for _ in range(2)]
        for line in lines:
            native.forward(torch.arange(known), torch.arange(known), line.grow(known))
        shared, apart = lines
        # the spine is node 2 and node 4 behind it; nodes 0 and 1 are siblings of 2, node 3 is one of 4
        shared.slots = np.array([*order[:known], own[2], own[4]], np.int32)
        shared.first, shared.seen = np.zeros(5, np.int64), places.numpy() + 1
        lists = [[*order[:known], own[0]], [*order[:known], own[1]], [*order[:known], own[2]]]
        lists += [[*order[:known], own[2], own[3]], [*order[:known], own[2], own[4]]]
        apart.slots = np.concatenate([np.array(each, np.int32) for each in lists])
        apart.seen = np.array([len(each) for each in lists], np.int64)
        apart.first = np.cumsum(apart.seen) - apart.seen
        for line in lines:
            line.own, line.longest = own, known + 2
        found, expected = (native.forward(tokens, places, line) for line in lines)
        assert torch.equal(found, expected)
        assert len({tuple(row.tolist()) for row in found}) == 5


FAR = 512  # slots of a list from which on threads split the attention of a few rows: pass.c


@pytest.mark.parametrize("kernel_set", SETS)
def test_attention_that_threads_split_is_that_of_a_whole_prompt_bit_for_bit(kernel_set: str) -> None:
    """A prompt's many rows attend in bunches; the same rows alone, in twos and in nines are split by slots and columns."""
    for head_dim, kv_heads in ((8, 2), (24, 1), (32, 3)):
        decoder = random_decoder(
            hidden_size=kv_heads * 2 * head_dim, heads=kv_heads * 2, kv_heads=kv_heads, head_dim=head_dim, context=FAR + 64
        )
        native = NativeDecoder(decoder, kernels=kernel_set, threads=1)
        tokens = torch.arange(FAR + 16) * 31 % 97
        before = FAR - 8
        whole = rows(native, tokens, [before, FAR + 16 - before])
        for threads, cut in ((1, 1), (2, 1), (2, 9), (6, 3)):
            native.threads = threads
            cuts = [before, *[cut] * ((FAR + 16 - before) // cut)]
            order = list(range(len(tokens)))[::-1]
            assert torch.equal(rows(native, tokens[: sum(cuts)], cuts, order), whole[: sum(cuts)]), (threads, cut)


def test_more_threads_than_ranges_of_work_and_more_than_work_change_no_bit() -> None:
    decoder = random_decoder()
    tokens = torch.arange(7) * 13 % 97
    alone = rows(NativeDecoder(decoder, threads=1), tokens)
    for threads in (3, 16, 17, 33):
        assert torch.equal(rows(NativeDecoder(decoder, threads=threads), tokens, [1, 6]), alone), threads


def test_threads_may_use_one_decoder_together() -> None:
    from concurrent.futures import ThreadPoolExecutor

    native = NativeDecoder(random_decoder(), threads=2)
    lines = [(torch.arange(30) * step) % 97 for step in range(1, 9)]
    alone = [rows(native, line) for line in lines]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(lambda line: rows(native, line), lines), alone))


def test_a_pass_of_no_rows_and_logits_of_none_are_empty() -> None:
    native = NativeDecoder(random_decoder())
    line = SlotLine(native.config, [0, 1])
    assert native.forward(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), line.grow(0)).shape == (0, 48)
    assert native.logits(torch.empty(0, 48)).shape == (0, 97)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": torch.tensor([1, 97])}, "tokens runs from 1 to 97"),
        ({"tokens": torch.tensor([-1, 2])}, "tokens runs from -1"),
        ({"tokens": torch.tensor([1, 2], dtype=torch.int32)}, "tokens must be 2 contiguous int64"),
        ({"positions": torch.tensor([0, 128])}, "positions runs from 0 to 128"),
        ({"positions": torch.tensor([0])}, "positions must be 2"),
        ({"tokens": torch.tensor([1, 2], device="meta")}, "tokens must be 2 contiguous int64 on the CPU"),
        ({"tokens": torch._neg_view(torch.tensor([-1, -2]))}, "tokens must be 2 contiguous int64"),
        ({"positions": torch.tensor([-(2**63), 0])}, "positions runs from -9223372036854775808"),
        ({"keys": torch.zeros(2, 2, 8, 8, device="meta")}, "keys .* on the CPU"),
        ({"longest": 1}, "a row sees 2 slots, more than longest = 1"),
        ({"longest": 0}, "longest = 0 must be 1 to 2"),
        ({"longest": 3}, "longest = 3 must be 1 to 2"),
        ({"first": np.array([0, -1])}, "first runs from -1"),
        ({"first": np.array([0, 2**63 - 1])}, "first runs from 0 to 9223372036854775807"),
        ({"seen": np.array([1, -(2**63)])}, "seen runs from -9223372036854775808"),
        ({"own": np.array([0, 8])}, "own runs from 0 to 8"),
        ({"own": np.array([0, 1], np.int32)}, "own must be contiguous int64"),
        ({"slots": np.array([0, -1], np.int32)}, "slots runs from -1"),
        ({"seen": np.array([0, 1])}, "seen runs from 0"),
        ({"seen": np.array([1, 2]), "first": np.array([0, 1])}, r"first \+ seen runs from 1 to 3"),
        ({"first": np.array([0, 2])}, "first runs from 0 to 2"),
        ({"keys": torch.zeros(2, 2, 8, 16)[..., ::2]}, "keys .* must be contiguous"),
        ({"values": torch.zeros(2, 2, 8, 4)}, "values"),
        ({"values": torch.zeros(2, 2, 8, 8, dtype=torch.float64)}, "values .*float64"),
    ],
)
def test_an_index_or_tensor_that_would_lead_the_kernels_astray_is_refused(change: dict[str, Any], words: str) -> None:
    native = NativeDecoder(random_decoder())
    line = SlotLine(native.config, list(range(8))).grow(2)
    given = {"tokens": torch.tensor([1, 2]), "positions": torch.tensor([0, 1])}
    for name, value in change.items():
        if name in given:
            given[name] = value
        else:
            setattr(line, name, value)
    with pytest.raises(EngineError, match=words):
        native.forward(given["tokens"], given["positions"], line)


def test_hidden_rows_of_another_width_or_dtype_are_refused() -> None:
    native = NativeDecoder(random_decoder())
    for wrong in (torch.zeros(2, 47), torch.zeros(48), torch.zeros(2, 48, dtype=torch.float64)):
        with pytest.raises(EngineError, match="must be float32"):
            native.logits(wrong)


@pytest.mark.parametrize(
    ("decoder", "words"),
    [
        (lambda: random_decoder(head_dim=12), "head_dim = 12 is no multiple of 8"),
        (lambda: random_decoder(intermediate=72), "intermediate = 72 is no multiple of 16"),
        (lambda: random_decoder(hidden_size=20), "hidden_size = 20"),
        (lambda: tiny_model(dtype=torch.bfloat16), "bfloat16"),
        (lambda: random_decoder(context=1 << 23), "context of 8388608"),
    ],
)
def test_a_model_the_kernels_do_not_take_is_refused_by_name(decoder: Any, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        NativeDecoder(decoder())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 48}, "int4 path .* hidden_size = 48 is no multiple of 32"),
        ({"heads": 6}, "heads x head_dim = 48"),
        ({"intermediate": 80}, "intermediate = 80"),
    ],
)
def test_widths_that_have_no_form_of_four_bits_are_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        NativeDecoder(random_decoder(**WIDTHS4 | change), bits=4)
    with pytest.raises(UnsupportedError, match="matrix of 40 inputs"):
        pack(torch.ones(32, 40), bits=4)


def test_options_and_weights_that_are_not_allowed_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"kernels = 'sse9' is not allowed: .*portable"):
        NativeDecoder(random_decoder(), kernels="sse9")
    with pytest.raises(UsageError, match="threads = 0"):
        NativeDecoder(random_decoder(), threads=0)
    with pytest.raises(UsageError, match=r"bits = 5 is not allowed: None, 8 or 4"):
        NativeDecoder(random_decoder(), bits=5)
    with pytest.raises(UsageError, match=r"bits = 4 is not allowed: None or the packed model's 8"):
        NativeDecoder(NativeDecoder(random_decoder()).packed, bits=4)
    broken = random_decoder()
    broken.blocks[0].o.weight[3, 3] = torch.nan
    with pytest.raises(InputError, match="not finite"):
        NativeDecoder(broken)


def test_the_kernel_set_in_use_can_be_printed_and_is_the_first_of_those_that_run_here() -> None:
    decoder: Decoder = random_decoder()
    assert NativeDecoder(decoder).kernels == SETS[0] and SETS[-1] == "portable"
    assert [NativeDecoder(decoder, kernels=name).kernels for name in SETS] == SETS


@pytest.mark.parametrize(("bits", "each"), [(8, 1), (4, 5 / 8)])
def test_packed_weights_take_about_a_byte_each_and_five_bits_at_int4(bits: int, each: float) -> None:
    decoder = random_decoder(hidden_size=512, intermediate=1024, heads=8, tied=True)
    count = sum(one.weight.numel() for b in decoder.blocks for one in (b.qkv, b.o, b.gate_up, b.down))
    least = each * count + decoder.head.weight.numel()
    assert least <= NativeDecoder(decoder, bits=bits).nbytes <= 1.2 * least


def test_one_openmp_runtime_serves_torch_and_the_kernels() -> None:
    library()
    torch.ones(100_000).sum()
    maps = Path("/proc/self/maps").read_text().splitlines()
    loaded = {line.split()[-1] for line in maps if any(name in line for name in ("libgomp", "libomp", "libiomp"))}
    assert len(loaded) == 1


def test_idle_threads_do_not_spin_long_unless_the_user_says_so() -> None:
    show = "import os, toolkit.engine; print(os.environ['GOMP_SPINCOUNT'])"
    clean = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    for given, expected in (({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7")):
        run = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, env=clean | given, check=True)
        assert run.stdout.strip() == expected


def test_a_build_without_the_compiled_part_says_so_and_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from toolkit.model.native import library as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    module.library.cache_clear()
    try:
        assert "not compiled" in (missing() or "")
        with pytest.raises(UnsupportedError, match="gcc"):
            NativeDecoder(random_decoder())
    finally:
        module.library.cache_clear()
