"""Data: the base model's own replies to many prompts, with what its layers and its head said, as shards in a folder.

In: a base model, a folder, a number of tokens.   Out: shards (see shards.py) until the folder holds that many reply tokens.
Knows nothing about: what is trained on them.
Invariants: a folder holds one recipe (base fingerprint, seed, depths) and refuses another; a run that was cut goes on with the
tasks that no shard holds; the same recipe asks the same prompts. A user turn that the model wrote before is refused (within a
run: a turn of an earlier run may come again).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from toolkit.contracts import Json, Tokenizer
from toolkit.engine.formats import formatted
from toolkit.errors import UsageError
from toolkit.model.decoder import Decoder
from toolkit.model.fingerprint import fingerprint
from toolkit.model.native.decoder import NativeDecoder
from toolkit.model.native.library import trim
from toolkit.model.store import resolve
from toolkit.model.weights import load_model
from toolkit.text.tokenizer import load_tokenizer
from toolkit.train.lanes import Lanes
from toolkit.train.prompts import Prompts, Task
from toolkit.train.shards import Line, read_about, read_shard, shard_paths, write_shard

SHARD = 1 << 16  # reply tokens of a shard, at least
VERSION = 2


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a folder of training data was made with."""

    base: str  # fingerprint
    seed: int
    depths: tuple[int, ...]
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Progress:
    """Reply tokens in the folder, sequences, refused tasks, and this run's reply tokens a second."""

    tokens: int
    sequences: int
    refused: int
    rate: float


Tell = Callable[[Progress], None]


def make_data(base: str, folder: Path, tokens: int, *, seed: int = 0, width: int = 64, tell: Tell | None = None) -> Progress:
    """Write shards until the folder holds `tokens` reply tokens. UsageError where it holds data of another recipe."""
    source = resolve(base)
    tokenizer = load_tokenizer(source)
    loaded = load_model(source)
    recipe = Recipe(fingerprint(source), seed, inner_depths(loaded.config.layers))
    decoder = formatted(loaded, "auto")
    del loaded
    if isinstance(decoder, NativeDecoder):
        trim()
    return fill(folder, recipe, decoder, tokenizer, tokens, width=width, tell=tell)


def fill(
    folder: Path, recipe: Recipe, decoder: Decoder | NativeDecoder, tokenizer: Tokenizer, tokens: int, *, width: int = 64,
    tell: Tell | None = None,
) -> Progress:  # fmt: skip
    """`make_data` with what it loads."""
    folder.mkdir(parents=True, exist_ok=True)
    books = _Books(folder, recipe)
    prompts = Prompts(tokenizer, recipe.seed)

    def accept(turn: Sequence[int]) -> bool:
        if tuple(turn) in books.turns or not prompts.accept(turn):
            return False
        books.turns.add(tuple(turn))
        return True

    def tasks() -> Iterator[Task]:
        for number in itertools.count():
            if books.held >= tokens:
                return
            if number not in books.done:
                yield prompts.task(number)

    vocab = min(tokenizer.vocab_size, decoder.config.vocab_size)
    lanes = Lanes(decoder, width=width, depths=recipe.depths, vocab=vocab, ends=tokenizer.eos_ids, accept=accept)
    began, before = time.monotonic(), books.held
    for found in lanes.run(tasks()):
        books.enter(found)
        if tell is not None and isinstance(found, Line):
            tell(books.progress((books.held - before) / (time.monotonic() - began)))
    books.flush()
    return books.progress((books.held - before) / max(time.monotonic() - began, 1e-9))


def inner_depths(layers: int) -> tuple[int, ...]:
    """The layers before which residual rows are kept: low, middle, high, as EAGLE-3 (2503.01840) draws them."""
    return tuple(sorted({min(2, layers - 1), layers // 2, max(layers - 3, 0)}))


class _Books:
    """What the folder holds and what waits to be written."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self._folder, self._recipe = folder, recipe
        self.done: set[int] = set()
        self.turns: set[tuple[int, ...]] = set()  # user turns that the model wrote
        self._written = self._waiting = self._sequences = self._refused_all = self._shards = 0
        self._lines: list[Line] = []
        self._refused: list[int] = []
        for path in shard_paths(folder):
            self._recall(path)

    @property
    def held(self) -> int:
        """Reply tokens, written or not."""
        return self._written + self._waiting

    def enter(self, found: Line | int) -> None:
        """Take in a finished line or a refused task."""
        if isinstance(found, int):
            self._refused.append(found)
            self._refused_all += 1
            return
        self._lines.append(found)
        self._waiting += len(found.top)
        if self._waiting >= SHARD:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if not self._lines:
            return
        write_shard(self._folder, self._shards, self._lines, self._refused, self._json())
        self._shards += 1
        self._written += self._waiting
        self._sequences += len(self._lines)
        self._lines, self._refused, self._waiting = [], [], 0

    def progress(self, rate: float) -> Progress:
        return Progress(self.held, self._sequences + len(self._lines), self._refused_all, rate)

    def _json(self) -> dict[str, Json]:
        return {**asdict(self._recipe), "depths": list(self._recipe.depths)}

    def _recall(self, path: Path) -> None:
        about = read_about(path)
        if about["recipe"] != self._json():
            raise UsageError(
                f"{path} was made with {about['recipe']}, not with {self._json()}", hint="another --out folder for other data"
            )
        held = read_shard(path, ("tokens", "bounds", "reply", "lse"))
        self.done |= {*about["tasks"], *about["refused"]}
        self._written += len(held["lse"])
        self._sequences += len(held["reply"])
        self._refused_all += len(about["refused"])
        self._shards = int(path.stem.rpartition("-")[2]) + 1
