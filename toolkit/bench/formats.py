"""Formats: what weights of 8 and of 4 bits with 14-bit activations cost in quality, next to float32 of the same model.

In: a model, a text file or none.   Out: per set of tokens both perplexities, top-1 agreement and KL divergence, as one dict.
Knows nothing about: speed, tasks (bench quality measures those).
Invariants: all formats score the same tokens; the verdict is HOLD where int8, the default, costs more than 1 % of float32's
perplexity. int4's figures are told, not judged: what 4 bits cost depends on how the checkpoint's own weights were kept.
The sets: "text" is documentation that every machine has (docstrings of the standard library, or the file given), "chat"
is what the float32 model itself answers to a few questions, greedily.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from toolkit.contracts import Tokenizer
from toolkit.engine.forward import Feed, Forward
from toolkit.engine.sequence import Sequence
from toolkit.errors import InputError
from toolkit.model.decoder import Decoder
from toolkit.model.native.decoder import NativeDecoder, refusal

MOST = 1.01  # int8 perplexity over float32's
PIECE = 256  # tokens scored in one pass, each piece from an empty context
ANSWER = 96  # tokens of an answer
MODULES = ("argparse", "decimal", "statistics", "typing", "random", "dis", "heapq", "datetime", "string", "fractions", "locale")
QUESTIONS = (
    "What is the difference between a list and a tuple in Python?",
    "Write a short story about a lighthouse.",
    "How do I make a cup of tea?",
    "Summarise why the sky is blue in two sentences.",
    "Give me three tips for learning a language.",
    "What happened in the year 1969?",
    "Explain recursion to a child.",
    "Write an email that asks for a day off.",
)


class Piece(NamedTuple):
    """Tokens of which those from `first` on are scored."""

    ids: list[int]
    first: int


def run(model: str = "smollm2", *, text: Path | None = None, console: Console | None = None) -> dict[str, Any]:
    """{verdict, kernels, text, chat, int4}; a set {tokens, float32, int8, ratio, top1, kl}.

    int4 has the sets again with "int4" for "int8", or {refused} where the model's widths have no such form.
    """
    from toolkit.model.store import resolve
    from toolkit.model.weights import load_model
    from toolkit.text.tokenizer import load_tokenizer

    folder = resolve(model)
    decoder, tokenizer = load_model(folder), load_tokenizer(folder)
    return compare(decoder, tokenizer, documentation() if text is None else read_text(text), console)


def compare(decoder: Decoder, tokenizer: Tokenizer, text: str, console: Console | None = None) -> dict[str, Any]:
    """The same for a decoder in hand."""
    native, why = NativeDecoder(decoder), refusal(decoder.config, decoder.device, decoder.dtype, 4)
    rounded = {"int8": native} | ({} if why else {"int4": NativeDecoder(decoder, bits=4)})
    exact, others = forward_of(decoder, tokenizer), {name: forward_of(each, tokenizer) for name, each in rounded.items()}
    found: dict[str, dict[str, Any]] = {name: {} for name in others}
    for title, pieces in sets(exact, tokenizer, text).items():
        for name, figures in measure_all(exact, others, pieces).items():
            found[name][title] = {{"exact": "float32", "rounded": name}.get(key, key): value for key, value in figures.items()}
    if console is not None:
        console.print(_table(found))
        if why:
            console.print(f"int4 is not measured: {why}", markup=False)
    worst = max(each["ratio"] for each in found["int8"].values())
    result = {"verdict": "PASS" if worst <= MOST else "HOLD", "kernels": native.kernels} | found["int8"]
    return result | {"int4": found.get("int4", {"refused": why})}


def sets(exact: Forward, tokenizer: Tokenizer, text: str) -> dict[str, list[Piece]]:
    """What is scored: a text in pieces, and answers of the model that is exact."""
    return {"text": list(_pieces(tokenizer.encode(text))), "chat": [_answer(exact, tokenizer, each) for each in QUESTIONS]}


def measure(exact: Forward, rounded: Forward, pieces: list[Piece]) -> dict[str, Any]:
    """{tokens, exact, rounded, ratio, top1, kl}: both perplexities, the other's over the exact one's, agreement, nats."""
    return measure_all(exact, {"rounded": rounded}, pieces)["rounded"]


def measure_all(exact: Forward, others: Mapping[str, Forward], pieces: list[Piece]) -> dict[str, dict[str, Any]]:
    """`measure` of each of the others; the exact one, which is slow, scores once."""
    tokens, loss = 0, 0.0
    sums = {name: [0.0, 0.0, 0.0] for name in others}  # loss, agreements, divergence
    for piece in pieces:
        p = torch.log_softmax(_logits(exact, piece), -1)
        target = torch.tensor(piece.ids[piece.first :])[:, None]
        tokens += len(target)
        loss -= float(p.gather(1, target).double().sum())
        for name, other in others.items():
            q, found = torch.log_softmax(_logits(other, piece), -1), sums[name]
            found[0] -= float(q.gather(1, target).double().sum())
            found[1] += int((p.argmax(-1) == q.argmax(-1)).sum())
            found[2] += float((p.exp() * (p - q)).sum(dtype=torch.float64))
    first = math.exp(loss / tokens)
    return {name: _figures(tokens, first, *each) for name, each in sums.items()}


def _figures(tokens: int, exact: float, loss: float, agree: float, divergence: float) -> dict[str, Any]:
    other = math.exp(loss / tokens)
    return {
        "tokens": tokens, "exact": exact, "rounded": other, "ratio": other / exact, "top1": agree / tokens,
        "kl": divergence / tokens,
    }  # fmt: skip


def _logits(forward: Forward, piece: Piece) -> Tensor:
    """[scored, V]: row i predicts token first + i."""
    sequence = Sequence(piece.ids[:-1], forward.table())
    (rows,) = forward([Feed(sequence, len(piece.ids) - 1, len(piece.ids) - piece.first)])
    sequence.release()
    return rows


def _answer(forward: Forward, tokenizer: Tokenizer, question: str) -> Piece:
    """A question and the greedy answer to it, up to its end token."""
    prompt = tokenizer.chat([{"role": "user", "content": question}])
    sequence = Sequence(prompt, forward.table())
    while len(sequence.generated) < ANSWER and not set(sequence.generated) & set(tokenizer.eos_ids):
        (row,) = forward([Feed(sequence, sequence.pending, 1)])
        sequence.advance([int(row[0].argmax())])
    sequence.release()
    return Piece(sequence.tokens, len(prompt))


def forward_of(decoder: Decoder | NativeDecoder, tokenizer: Tokenizer, kv_dtype: str = "auto") -> Forward:
    """A pass without a prefix cache, with room for one piece."""
    return Forward(
        decoder, vocab_size=min(tokenizer.vocab_size, decoder.config.vocab_size), kv_blocks=2 * PIECE // 16, block_size=16,
        device=decoder.device, prefix_cache=False, kv_dtype=kv_dtype,
    )  # fmt: skip


def _pieces(ids: list[int]) -> Iterator[Piece]:
    for start in range(0, len(ids) - 1, PIECE):
        yield Piece(ids[start : start + PIECE + 1], 1)


def documentation() -> str:
    """Module docstrings of the standard library, read without importing."""
    texts = []
    for name in MODULES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            texts.append(ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or "")
    return "\n\n".join(texts)


def read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a readable UTF-8 text: {error}") from error
    if not text.strip():
        raise InputError(f"{path} holds no text to score")
    return text


def _table(found: dict[str, dict[str, Any]]) -> Table:
    table = Table("format", "set", "tokens", "float32 perplexity", "its perplexity", "ratio", "top-1 agreement", "KL, nats")
    for form, titles in found.items():
        for title, each in titles.items():
            table.add_row(
                form, title, str(each["tokens"]), f"{each['float32']:.3f}", f"{each[form]:.3f}", f"{each['ratio']:.4f}",
                f"{each['top1']:.3f}", f"{each['kl']:.4f}",
            )  # fmt: skip
    return table
