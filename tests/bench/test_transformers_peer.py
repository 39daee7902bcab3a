"""The transformers side on a tiny random model: greedy is the argmax of the allowed, everything stays in the grammar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.bench.transformers_peer import TransformersPeer, load_transformers
from toolkit.contracts import Grammar
from toolkit.errors import InputError
from toolkit.text.tokenizer import ByteTokenizer

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue", "grey"]}, "warm": {"type": "boolean"}},
    "required": ["colour"],
    "additionalProperties": False,
}
RULES = Grammar("json_schema", json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> TransformersPeer:
    torch = pytest.importorskip("torch")
    transformers = load_transformers()
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=261, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.5, bos_token_id=None, eos_token_id=256,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return TransformersPeer(folder, ByteTokenizer())


def argmax_of_the_allowed(peer: TransformersPeer, prompt: list[int], steps: int) -> list[int]:
    """Greedy by hand, without a KV cache: the slow twin."""
    import torch

    from toolkit.grammar.compile import compile_grammar
    from toolkit.grammar.mask import allocate, unpack

    matcher, ids = compile_grammar(RULES, peer.tokenizer).matcher(), list(prompt)
    for _ in range(steps):
        with torch.inference_mode():
            logits = peer.model(torch.tensor([ids])).logits[0, -1]
        mask = allocate(1, len(logits))
        matcher.fill(mask, 0)
        allowed: Any = torch.from_numpy(unpack(mask, len(logits)).copy())[0].bool()
        token = matcher.forced()[0] if matcher.forced() else int(logits.masked_fill(~allowed, float("-inf")).argmax())
        ids.append(token)
        if token in peer.tokenizer.eos_ids:
            break
        matcher.advance([token])
    return ids[len(prompt) :]


@pytest.mark.slow
def test_greedy_is_the_argmax_of_what_the_grammar_allows(peer: TransformersPeer) -> None:
    prompt = peer.tokenizer.encode("which colour is it?")
    found = peer.decode(prompt, RULES, 1, 1.0, 48)
    assert list(found) == argmax_of_the_allowed(peer, prompt, 48)
    assert found[-1] in peer.tokenizer.eos_ids
    assert json.loads(peer.tokenizer.decode(found))["colour"] in {"red", "green", "blue", "grey"}


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 4])
def test_beams_stay_in_the_grammar_and_find_no_less_than_greedy_on_this_model(peer: TransformersPeer, width: int) -> None:
    import torch

    prompt = peer.tokenizer.encode("which colour is it?")

    def likelihood(ids: tuple[int, ...]) -> float:
        with torch.inference_mode():
            logits = peer.model(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
        return sum(float(logits[len(prompt) - 1 + place, token]) for place, token in enumerate(ids))

    found = peer.decode(prompt, RULES, width, 0.0, 48)
    value = json.loads(peer.tokenizer.decode(found))
    assert value["colour"] in {"red", "green", "blue", "grey"} and set(value) <= {"colour", "warm"}
    assert likelihood(found) >= likelihood(peer.decode(prompt, RULES, 1, 0.0, 48)) - 1e-4


@pytest.mark.slow
def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json is absent"):
        TransformersPeer(tmp_path, ByteTokenizer())
