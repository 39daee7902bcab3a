"""Rows: what to ask a server about one line of a beam search, and its sparse answer as the rows of logits that the loop expects.

In: a sequence with its matcher, the number of candidates a step needs.   Out: `Question`; from the reply to it, rows [1 + forced, V].

    row of a forced token    its own log-probability, the rest of the mass spread over all other ids
    last row                 every id that was reported, the rest of the mass spread over the others

Where the grammar allows few ids, all of them are asked for by name, so choice and confidence are exact. Where it allows many,
the `TOP` likeliest are asked for: no id outside can be likelier, so the choice is exact as soon as enough of them are allowed
(`lacks` says when not). A confidence is then right up to the mass that was not reported: it counts as allowed in the share of
ids that are.
Knows nothing about: HTTP, other lines.
Invariants: a row's probabilities sum to 1, so its entries are log-probabilities; entries are finite, as the loop demands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from toolkit.contracts import Json
from toolkit.engine.remote.reply import entries, likeliest, row, scores
from toolkit.engine.sequence import Sequence
from toolkit.errors import SchemaError
from toolkit.grammar.mask import allocate, unpack

LISTED = 512  # allowed ids that are asked for by name: what more cost is the client's time to read them (1 ms a row at 1,024)
TOP = 128  # likeliest ids asked for otherwise
MOST_PAIRS = 1 << 20  # log-probabilities, or ids, in one request: some 40 MB of JSON, a sixth of what a reply may have
FLOOR = -1e4  # stands for a probability of 0, which a server may report: the loop takes finite numbers only

Flags = npt.NDArray[np.bool_]


class Question(NamedTuple):
    """One line: its ids, how many forced ones at its end want a log-probability, what is wanted of the next token."""

    ids: tuple[int, ...]
    forced: int
    top: int
    named: tuple[int, ...]
    allowed: Flags | None  # [V]; None = no grammar

    @property
    def start(self) -> int:
        """`logprob_start_len`: the server's entries begin there, the first of them without a number; -1 = none."""
        return len(self.ids) - 1 - self.forced if self.forced else -1

    @property
    def pairs(self) -> int:
        """Log-probabilities that the reply holds."""
        return self.top + len(self.named) + self.forced


def question(sequence: Sequence, forced: int, count: int, vocab_size: int) -> Question:
    """Ask for the best `count` allowed ids after the sequence, and for its last `forced` ids."""
    allowed = allowed_ids(sequence, vocab_size)
    ids = tuple(sequence.tokens)
    size = vocab_size if allowed is None else int(allowed.sum())
    if allowed is not None and size <= max(LISTED, count):
        return Question(ids, forced, 0, tuple(np.flatnonzero(allowed).tolist()), allowed)
    return Question(ids, forced, min(max(TOP, 2 * count), vocab_size), (), allowed)


def whole(asked: Question) -> Question:
    """The same line once more, every allowed id by name (its forced ids are known already)."""
    assert asked.allowed is not None
    return asked._replace(forced=0, top=0, named=tuple(np.flatnonzero(asked.allowed).tolist()))


def allowed_ids(sequence: Sequence, vocab_size: int) -> Flags | None:
    """[V] ids that the grammar allows next; none where it gave up (the loop then ends that hypothesis); None without a grammar."""
    if sequence.matcher is None:
        return None
    mask = allocate(1, vocab_size)
    try:
        sequence.matcher.fill(mask, 0)
    except SchemaError:
        mask[:] = 0
    found: Flags = unpack(mask, vocab_size)[0]
    return found


class Answer(NamedTuple):
    """What a server said about a question: log-probabilities of its forced ids, and of ids that may come next."""

    forced: tuple[float, ...]
    next: dict[int, float]


def read(reply: Json, asked: Question, vocab_size: int) -> Answer:
    """A checked reply; EngineError where it does not answer the question."""
    meta = reply["meta_info"]
    after = entries(meta, "output_token_ids_logprobs", asked.named) if asked.named else {}
    if asked.top:
        name = "output_top_logprobs"
        after |= likeliest(row(meta, name, 0), name, asked.top, vocab_size)
    given = scores(meta, asked.ids[asked.start :]) if asked.forced else ()
    return Answer(given, after)


def lacks(asked: Question, found: Answer, count: int) -> bool:
    """Whether an allowed id that was not reported might belong to the best `count`."""
    if asked.named or asked.allowed is None:
        return False
    known = sum(bool(asked.allowed[token]) for token in found.next)
    return known < min(count, int(asked.allowed.sum()))


def rows(asked: Question, found: Answer, vocab_size: int) -> Tensor:
    """Logits [1 + forced, V] float32."""
    out = np.empty((1 + len(found.forced), vocab_size), dtype=np.float32)
    forced_ids = asked.ids[len(asked.ids) - len(found.forced) :]
    for place, (token, logprob) in enumerate(zip(forced_ids, found.forced, strict=True)):
        out[place] = _spread(math.exp(logprob), vocab_size - 1)
        out[place, token] = max(logprob, FLOOR)
    ids = np.fromiter(found.next, dtype=np.int64, count=len(found.next))
    known = np.maximum(np.fromiter(found.next.values(), dtype=np.float64, count=len(found.next)), FLOOR)
    out[-1] = _spread(float(np.exp(known).sum()), vocab_size - len(ids))
    out[-1, ids] = known
    return torch.from_numpy(out)


def _spread(mass: float, others: int) -> float:
    """Log-probability of each of `others` ids that share what `mass` leaves."""
    left = 1.0 - mass
    return max(math.log(left / others), FLOOR) if left > 0.0 and others > 0 else FLOOR


def parts(sizes: Many[int], at_once: int) -> list[slice]:
    """Lines cut into requests of at most `at_once` lines and, unless one alone has more, `MOST_PAIRS` log-probabilities."""
    found: list[slice] = []
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and (i - start == at_once or total + size > MOST_PAIRS):
            found.append(slice(start, i))
            start, total = i, 0
        total += size
    return [*found, slice(start, len(sizes))] if sizes else []


def body(asked: Many[Question]) -> dict[str, Json]:
    """The request that asks all of `asked` at once: raw log-probabilities, one token that nobody looks at."""
    return {
        "input_ids": [list(each.ids) for each in asked],
        "sampling_params": RAW,
        "return_logprob": True,
        "logprob_start_len": [each.start for each in asked],
        "top_logprobs_num": [each.top for each in asked],
        "token_ids_logprob": [list(each.named) for each in asked],
    }


def single(asked: Question) -> dict[str, Json]:
    """The request that asks one line alone, in the form that routers take, too."""
    return {
        "input_ids": list(asked.ids),
        "sampling_params": RAW,
        "return_logprob": True,
        "logprob_start_len": asked.start,
        "top_logprobs_num": asked.top,
        **({"token_ids_logprob": list(asked.named)} if asked.named else {}),
    }


# Every parameter by name: a server may have been started with preferred ones that change scores.
NEUTRAL: dict[str, Json] = {
    "temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
    "repetition_penalty": 1.0, "min_new_tokens": 0, "n": 1, "stop": [], "stop_token_ids": [], "ignore_eos": False,
    "skip_special_tokens": True, "spaces_between_special_tokens": True, "no_stop_trim": False,
}  # fmt: skip
RAW: dict[str, Json] = {**NEUTRAL, "max_new_tokens": 1}
WARM: dict[str, Json] = {**NEUTRAL, "max_new_tokens": 0}
