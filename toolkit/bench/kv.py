"""KV: what 4-bit keys and values save in memory and cost in quality, next to those of the float32 model.

In: a model, a text file or none.   Out: bytes a token, and per set of tokens both perplexities, top-1 agreement, KL, as one dict.
Knows nothing about: speed, the gate (docs/kv-quantisation.md says what that makes of it).
Invariants: both runs have the same weights in float32 and score the same tokens; every key and value is read back from the store that
is measured, also those of the pass that wrote them. HOLD where q4 costs more than 5 % of perplexity.
The sets are those of `bench formats`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from toolkit.bench.formats import documentation, forward_of, measure, read_text, sets
from toolkit.contracts import Tokenizer
from toolkit.engine.forward import Forward
from toolkit.model.decoder import Decoder

MOST = 1.05  # q4's perplexity over float32's


def run(model: str = "smollm2", *, text: Path | None = None, console: Console | None = None) -> dict[str, Any]:
    """{verdict, bytes_per_token {auto, q4, ratio}, text {...}, chat {...}}; a set {tokens, auto, q4, ratio, top1, kl}."""
    from toolkit.model.store import resolve
    from toolkit.model.weights import load_model
    from toolkit.text.tokenizer import load_tokenizer

    folder = resolve(model)
    source = documentation() if text is None else read_text(text)
    return compare(load_model(folder), load_tokenizer(folder), source, console)


def compare(decoder: Decoder, tokenizer: Tokenizer, text: str, console: Console | None = None) -> dict[str, Any]:
    """The same for a decoder in hand."""
    exact, rounded = forward_of(decoder, tokenizer), forward_of(decoder, tokenizer, "q4")
    found: dict[str, Any] = {name: _named(measure(exact, rounded, each)) for name, each in sets(exact, tokenizer, text).items()}
    full, packed = bytes_per_token(exact), bytes_per_token(rounded)
    result = {
        "verdict": "PASS" if max(each["ratio"] for each in found.values()) <= MOST else "HOLD",
        "bytes_per_token": {"auto": full, "q4": packed, "ratio": full / packed},
    } | found
    if console is not None:
        console.print(_table(found))
        console.print(f"bytes a token: {full:.0f} as {decoder.dtype}, {packed:.0f} in q4, {full / packed:.2f} times less")
        console.print(f"{result['verdict']}: at most {100 * (MOST - 1):.0f} % of perplexity is a PASS")
    return result


def bytes_per_token(forward: Forward) -> float:
    """Bytes of keys and values that one token takes, all layers."""
    return forward.store.nbytes / (forward.pool.size * forward.block_size)


def _named(found: dict[str, Any]) -> dict[str, Any]:
    return {{"exact": "auto", "rounded": "q4"}.get(name, name): value for name, value in found.items()}


def _table(found: dict[str, Any]) -> Table:
    table = Table("set", "tokens", "perplexity", "with q4", "ratio", "top-1 agreement", "KL, nats")
    for name, each in found.items():
        table.add_row(
            name, str(each["tokens"]), f"{each['auto']:.3f}", f"{each['q4']:.3f}", f"{each['ratio']:.4f}",
            f"{each['top1']:.3f}", f"{each['kl']:.4f}",
        )  # fmt: skip
    return table
