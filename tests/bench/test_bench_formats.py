"""The comparison of formats on a model small enough to enumerate: same tokens, right numbers, a verdict that can be negative."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model.native_twin import random_decoder
from toolkit.bench import formats
from toolkit.contracts import Tokenizer
from toolkit.errors import InputError
from toolkit.model.attention import FullAttention
from toolkit.model.native.library import missing
from toolkit.text.tokenizer import ByteTokenizer

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no native path: {missing()}")


class Chatty(ByteTokenizer):
    def chat(self, messages: Any, *, generate: bool = True) -> list[int]:
        return self.encode(messages[0]["content"])


def compared(text: str = "ab" * 150, **changes: Any) -> dict[str, Any]:
    decoder = random_decoder(vocab_size=261, context=512, **changes)
    tokenizer: Tokenizer = Chatty()
    return formats.compare(decoder, tokenizer, text)


def test_perplexity_is_that_of_the_whole_text_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "QUESTIONS", ("why?",))
    found, decoder, ids = compared(), random_decoder(vocab_size=261, context=512), ByteTokenizer().encode("ab" * 150)
    losses = []
    for piece in (ids[:257], ids[256:]):
        logits = decoder.logits(decoder.forward(torch.tensor(piece[:-1]), torch.arange(len(piece) - 1), FullAttention()))
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(piece[1:]), reduction="none"))
    assert found["text"]["tokens"] == len(ids) - 1 == 299
    assert found["text"]["float32"] == pytest.approx(float(torch.cat(losses).mean().exp()), rel=1e-4)
    assert found["text"]["kl"] > 0 and 0.8 < found["text"]["top1"] <= 1
    assert 1 <= found["chat"]["tokens"] <= formats.ANSWER
    assert "hidden_size = 48" in found["int4"]["refused"]


def test_int4_is_measured_beside_int8_and_judged_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "QUESTIONS", ("why?",))
    found = compared(hidden_size=64, heads=8, intermediate=96)
    for name in ("text", "chat"):
        eight, four = found[name], found["int4"][name]
        assert four["tokens"] == eight["tokens"] and four["float32"] == eight["float32"]
        assert four["kl"] > 4 * eight["kl"] and four["ratio"] == four["int4"] / four["float32"]
    most = max(found[name]["ratio"] for name in ("text", "chat"))
    assert found["int4"]["text"]["ratio"] > most
    monkeypatch.setattr(formats, "MOST", most)
    assert compared(hidden_size=64, heads=8, intermediate=96)["verdict"] == "PASS"


def test_a_format_that_costs_more_than_allowed_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "QUESTIONS", ("why?",))
    monkeypatch.setattr(formats, "MOST", 0.5)
    assert compared()["verdict"] == "HOLD"


def test_a_text_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for content, words in ((b"\xff", "UTF-8"), (b" \n", "no text")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=words):
            formats.read_text(path)


def test_the_documentation_of_this_python_is_long_enough_to_measure_on() -> None:
    assert len(formats.documentation()) > 5000


@pytest.mark.slow
def test_int8_costs_less_than_one_percent_of_perplexity_on_the_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "QUESTIONS", formats.QUESTIONS[:3])  # float32 writes the answers, at a tenth of int8's pace
    found = formats.run()
    assert found["verdict"] == "PASS"
    for sets in (found, found["int4"]):  # the default model's file has 4-bit weights: int4 meets them exactly
        assert all(sets[name]["top1"] > 0.94 and sets[name]["kl"] < 0.01 for name in ("text", "chat"))
    assert all(found["int4"][name]["kl"] < found[name]["kl"] for name in ("text", "chat"))
