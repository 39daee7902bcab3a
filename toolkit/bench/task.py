"""Task: records with a right answer, and how an answer to one of them is judged.

In: a data set's own module (bfcl, snips) builds it.   Out: items to send to an engine, counts of right and wrong fields.
Knows nothing about: engines, settings, timing.
Invariants: `skipped` accounts for every record of the source that is not in `items`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolkit.contracts import Json, Prompt
from toolkit.errors import UsageError

Style = Literal["raw", "chat"]
Shot = tuple[str, str]  # what is shown, what the answer is (compact JSON)


@dataclass(frozen=True, slots=True)
class Counts:
    """Fields of one answer: given and right, given but wrong or invented, expected but not given (or given wrong)."""

    right: int
    wrong: int
    missed: int

    @property
    def exact(self) -> bool:
        return not self.wrong and not self.missed


@dataclass(frozen=True, slots=True)
class Item:
    """One request: `text` for people, `prompt` for the model, the JSON Schema of its answer, and what is accepted."""

    id: str
    text: str
    prompt: Prompt
    schema: Json
    gold: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Items and their judge. `skipped` counts records left out by reason; `bounds` says what the schemas limit."""

    name: str
    items: tuple[Item, ...]
    judge: Callable[[Any, Json], Counts]
    max_tokens: int
    bounds: str
    style: Style
    skipped: Mapping[str, int] = field(default_factory=dict)

    def first(self, limit: int | None) -> tuple[Item, ...]:
        """The first `limit` items (None = all)."""
        if limit is not None and limit < 1:
            raise UsageError(f"limit = {limit} is not allowed: an integer >= 1, or none for all {len(self.items)} records")
        return self.items[:limit]


def few_shot(instruction: str, shots: tuple[Shot, ...], question: str, style: Style, cue: str) -> Prompt:
    """A prompt whose part before `question` is the same for every record, so that an engine may compute it once.

    raw: one text ending in `cue` on a line of its own; chat: instruction as system turn, shots as user/assistant turns.
    """
    if style == "chat":
        turns = [{"role": "system", "content": instruction}]
        for shown, answer in shots:
            turns += [{"role": "user", "content": shown}, {"role": "assistant", "content": answer}]
        return [*turns, {"role": "user", "content": question}]
    if style == "raw":
        done = "".join(f"{shown}\n{cue}\n{answer}\n\n" for shown, answer in shots)
        return f"{instruction}\n\n{done}{question}\n{cue}\n"
    raise UsageError(f"prompt style {style!r} is unknown: known are chat, raw")
