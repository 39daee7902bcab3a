from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tests.model.hf_reference import transformers
from toolkit.errors import InputError, ToolkitError, UnsupportedError
from toolkit.model.attention import FullAttention
from toolkit.model.convert import convert_gguf
from toolkit.model.gguf_header import check_header
from toolkit.model.weights import load_model
from toolkit.text.tokenizer import byte_map, load_tokenizer

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
THEIRS = {ours: theirs for theirs, ours in NAMES.items()}
MERGES = ["h e", "l l", "he ll", "1 2", "Ġ w"]
EOS = "tokenizer__ggml__eos_token_id"
PRE = {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2"}


def vocabulary() -> tuple[list[str], list[int]]:
    tokens = [
        *byte_map(),
        *(merge.replace(" ", "") for merge in MERGES),
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "[PAD0]",
        "[PAD1]",
    ]
    return tokens, [1] * (256 + len(MERGES)) + [3, 3, 4, 5, 5]


def model_of(architecture: str) -> Any:
    library = transformers()
    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[architecture]
    torch.manual_seed(3)
    tokens, _ = vocabulary()
    config = getattr(library, f"{kind}Config")(
        vocab_size=len(tokens), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=96, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=architecture == "qwen3",
        rope_parameters={"rope_type": "default", "rope_theta": 20000.0},
    )  # fmt: skip
    model = getattr(library, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            value.copy_(torch.randn_like(value) * 0.2 + ("norm" in key))
    return model


def interleaved(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows as llama.cpp stores them: pairs (i, i + half) of a head side by side."""
    rows = [values.reshape(heads, -1, *values.shape[1:])[h] for h in range(heads)]
    half = rows[0].shape[0] // 2
    return np.stack([row[i + offset] for row in rows for i in range(half) for offset in (0, half)])


def write(path: Path, architecture: str, skip: tuple[str, ...] = (), quant: bool = False, **fields: Any) -> Any:
    """A GGUF file of a random transformers model; `fields` replace or (None) drop metadata."""
    model, writer = model_of(architecture), gguf.GGUFWriter(path, architecture)
    tokens, types = vocabulary()
    data: dict[str, Any] = {
        f"{architecture}.block_count": 2, f"{architecture}.context_length": 128, f"{architecture}.embedding_length": 64,
        f"{architecture}.feed_forward_length": 96, f"{architecture}.attention.head_count": 4,
        f"{architecture}.attention.head_count_kv": 2, f"{architecture}.attention.key_length": 16,
        f"{architecture}.attention.value_length": 16, f"{architecture}.rope.freq_base": 20000.0,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": PRE[architecture], "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": MERGES, "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}",
    } | {key.replace("__", "."): value for key, value in fields.items()}  # fmt: skip
    add = {
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
        bool: writer.add_bool,
    }
    for key, value in data.items():
        if value is not None:
            add[type(value)](key, value)
    for name, tensor in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        layer, _, inner = module.removeprefix("model.layers.").partition(".")
        theirs = f"blk.{layer}.{THEIRS[inner]}.{kind}" if layer.isdigit() else f"{THEIRS[module]}.{kind}"
        if theirs in skip or (name == "lm_head.weight" and model.config.tie_word_embeddings):
            continue
        values = tensor.numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            values = interleaved(values, 4 if "q_proj" in name else 2)
        if quant and values.ndim == 2:
            kind8 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(theirs, gguf.quants.quantize(values, kind8), raw_dtype=kind8)
        else:
            writer.add_tensor(theirs, values)
    for write_ in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write_()
    writer.close()
    return model


def convert(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    convert_gguf(tmp_path / "m.gguf", folder)
    return folder


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_converted_file_computes_what_the_model_it_was_written_from_computes(architecture: str, tmp_path: Path) -> None:
    model = write(tmp_path / "m.gguf", architecture)
    folder = convert(tmp_path)
    tokens = torch.randint(0, 260, (40,), generator=torch.Generator().manual_seed(4))
    ours, theirs = load_model(folder), transformers().AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected, again = model(tokens[None]).logits[0], theirs(tokens[None]).logits[0]
    torch.testing.assert_close(again, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        ours.logits(ours.forward(tokens, torch.arange(40), FullAttention())), expected, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_converted_tokenizer_equals_the_one_transformers_loads(architecture: str, tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", architecture)
    folder = convert(tmp_path)
    ours, theirs = load_tokenizer(folder), transformers().AutoTokenizer.from_pretrained(folder)
    for text in ("hello world 12123", "  a\n\n b's", "é\u0301 e\u0301 😀", "<think>x", ""):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert [ours.token_bytes(i) for i in ours.encode("1212")] == (
        [b"12", b"1", b"2"] if architecture == "llama" else [b"1", b"2"] * 2
    )
    size = len(vocabulary()[0])
    assert (ours.vocab_size, ours.eos_ids) == (size, (size - 4,))
    assert ours.control_ids == {size - 5, size - 4, size - 2, size - 1}
    assert ours.decode(ours.encode("[PAD0]", control=True)) == "[PAD0]"  # unused ids are padding, not control strings
    assert ours.chat([{"role": "user", "content": "he"}]) == [*ours.encode("he"), size - 4]


def test_quantised_tensors_are_dequantised_as_the_library_does(tmp_path: Path) -> None:
    model = write(tmp_path / "m.gguf", "qwen2", quant=True)
    ours = load_model(convert(tmp_path))
    weight = model.model.layers[1].mlp.down_proj.weight.detach().numpy()
    kind = gguf.GGMLQuantizationType.Q8_0
    expected = gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)
    assert np.array_equal(ours.blocks[1].down.weight.numpy(), expected)
    assert not np.array_equal(expected, weight)


def test_llama3_frequencies_are_recognised_from_their_table_and_others_are_refused(tmp_path: Path) -> None:
    from toolkit.model.config import RopeScaling
    from toolkit.model.gguf import GGUFFile

    for bend, ok in ((1.0, True), (1.5, False)):
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
        frequencies = 500000.0 ** -(np.arange(0, 128, 2) / 128)
        wavelength = 2 * np.pi / frequencies
        smooth = (8192 / wavelength - 1) / 3
        table = np.where(wavelength < 2048, 1.0, np.where(wavelength > 8192, 32.0, 1 / ((1 - smooth) / 32 + smooth)))
        for key, value in (("block_count", 1), ("context_length", 9), ("embedding_length", 256), ("feed_forward_length", 9)):
            writer.add_uint32(f"llama.{key}", value)
        writer.add_uint32("llama.attention.head_count", 2)
        writer.add_float32("llama.rope.freq_base", 500000.0)
        writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        writer.add_array("tokenizer.ggml.tokens", ["a"])
        writer.add_tensor("rope_freqs.weight", (table**bend).astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        file = GGUFFile(tmp_path / "m.gguf")
        if ok:
            from toolkit.model.config import ModelConfig

            assert ModelConfig.from_hf(file.config()).rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)
        else:
            with pytest.raises(UnsupportedError, match="frequency scaling"):
                file.config()


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"tokenizer__ggml__model": "llama"}, UnsupportedError, r"'llama'.*gpt2.*smollm"),
        ({"tokenizer__ggml__pre": "deepseek-llm"}, UnsupportedError, "deepseek-llm"),
        ({"qwen2__rope__scaling__type": "yarn"}, UnsupportedError, r"rope\.scaling\.type = yarn"),
        ({"qwen2__expert_count": 8}, UnsupportedError, "expert_count = 8"),
        ({"qwen2__attention__sliding_window": 64}, UnsupportedError, "sliding_window = 64"),
        ({"qwen2__rope__dimension_count": 8}, UnsupportedError, "rotation"),
        ({"qwen2__block_count": 3}, InputError, "lacks 12 tensors"),
        ({"qwen2__block_count": None}, InputError, "block_count"),
        ({"qwen2__feed_forward_length": 95}, InputError, r"\[96, 64\].*\[95, 64\]"),
        ({"qwen2__attention__head_count": [4, 4]}, InputError, "head_count"),
        ({"tokenizer__ggml__merges": ["h  e"]}, InputError, "no pair"),
        ({"tokenizer__ggml__merges": ["zz top"]}, InputError, "do not fit together"),
        ({"tokenizer__ggml__tokens": ["a"] * 2, "tokenizer__ggml__token_type": [1, 1], EOS: None}, InputError, "repeats"),
        ({EOS: 9999}, InputError, "eos_token_id = 9999"),
    ],
)
def test_what_cannot_be_carried_over_is_refused_by_name(
    fields: dict[str, Any], error: type[ToolkitError], words: str, tmp_path: Path
) -> None:
    write(tmp_path / "m.gguf", "qwen2", **fields)
    with pytest.raises(error, match=words):
        convert(tmp_path)


def test_another_architecture_and_foreign_tensors_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma")
    for write_ in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write_()
    writer.close()
    with pytest.raises(UnsupportedError, match=r"'gemma'.*llama, qwen2, qwen3"):
        convert(tmp_path)
    write(tmp_path / "m.gguf", "llama", skip=("blk.1.ffn_up.weight",))
    with pytest.raises(InputError, match=r"lacks 1 tensors: model\.layers\.1\.mlp\.up_proj"):
        convert(tmp_path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "whole.gguf", "qwen2")
    data = (tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "m.gguf"
    for size in (*range(0, 64, 3), *range(64, len(data) - 1, len(data) // 40)):
        path.write_bytes(data[:size])
        with pytest.raises(InputError):
            convert(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 0),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 60),
        struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1 << 62),
        struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 8, 1 << 61),
        struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 0, (1 << 64) - 1),
        struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 50,
        struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 77),
        struct.pack("<4sIQQQ1sI", b"GGUF", 3, 1, 0, 1, b"t", 1 << 31),
        struct.pack("<4sIQQQ1sIQQIQ", b"GGUF", 3, 1, 0, 1, b"t", 2, 1 << 40, 1 << 40, 0, 0),
        struct.pack(">4sIQQ", b"GGUF", 3, 0, 0),
        b"PK\x03\x04" + bytes(60),
    ],
)
def test_a_header_that_claims_more_than_the_file_holds_is_refused_at_once(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header + bytes(64))
    with pytest.raises((InputError, UnsupportedError)):
        check_header(path)


def test_flipped_bytes_never_escape_as_other_errors(tmp_path: Path) -> None:
    write(tmp_path / "whole.gguf", "llama")
    data = bytearray((tmp_path / "whole.gguf").read_bytes())
    chance = np.random.default_rng(5)
    for _ in range(150):
        damaged = bytearray(data)
        for at in chance.integers(0, 6000, size=3):
            damaged[at] = int(chance.integers(256))
        (tmp_path / "m.gguf").write_bytes(damaged)
        with contextlib.suppress(InputError, UnsupportedError):
            convert(tmp_path)


def test_the_folder_is_written_in_the_words_of_transformers(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", "llama")
    folder = convert(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["model_type"], config["rms_norm_eps"]) == (["LlamaForCausalLM"], "llama", 1e-5)
    assert config["eos_token_id"] == json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
