"""Samples: one text that a server samples, out of the events of its stream.

In: checked events of `/generate`, cut in any way.   Out: token ids, what each of them made safe to show, how the text ended.
The text is made here out of token ids, by the same code as in the embedded engine: stop strings, whole characters and held-back
text are the same for every way in which a server cuts its stream.
Knows nothing about: HTTP, other samples, who is told.
Invariants: ids only ever grow, and not beyond what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from toolkit.contracts import FinishReason, Json
from toolkit.engine.job import Job
from toolkit.engine.remote.reply import bad, costs, count_of, output_ids
from toolkit.text.stream import TextStream

MOST_DRAFTED = 1024  # drafts of a pass that are told one by one


@dataclass(slots=True)
class Sample:
    """One sample in the making."""

    job: Job
    index: int
    stream: TextStream
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # what each of `ids` made safe to show
    told: int = 0
    reason: FinishReason | None = None
    matched: str | int | None = None
    meta: Mapping[str, Json] = field(default_factory=dict)
    computed: int = 0  # tokens of its prompt that the server did not have in its cache

    @property
    def ended(self) -> bool:
        return self.reason is not None

    def take(self, event: Mapping[str, Json]) -> None:
        """Commit the tokens that are new in one event of the server."""
        new = self._new_ids(event)
        self.meta = event["meta_info"]
        self.computed = len(self.job.prompt) - costs(event, len(self.job.prompt))
        for token in new:
            if self.stream.matched is None:
                self._commit(token)
        finish = self.meta.get("finish_reason")
        if self.stream.matched is not None:
            self.reason, self.matched = "stop", self.stream.matched
        elif finish is not None:
            self.reason, self.matched = _ending(finish)

    def count(self, name: str) -> int:
        """A count that servers of some kinds report; 0 where it is absent."""
        value = self.meta.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

    @property
    def accepted_by_position(self) -> tuple[int, ...] | None:
        """Passes whose draft was accepted up to each place, out of the server's count of passes by drafts accepted; None without it."""
        told = self.meta.get("spec_correct_drafts_histogram")
        if not isinstance(told, list) or len(told) > MOST_DRAFTED or not all(type(each) is int and each >= 0 for each in told):
            return None
        return tuple(reversed([*accumulate(reversed(told[1:]))]))

    @property
    def passes(self) -> int:
        """Passes of the server that gave it tokens."""
        return self.count("spec_verify_ct") or len(self.ids)

    @property
    def rows(self) -> int:
        """Token rows that were computed for it: its prompt's, and one for every token but the last."""
        return self.computed + max(len(self.ids) - 1, 0)

    def _new_ids(self, event: Mapping[str, Json]) -> list[int]:
        """Ids that are new: a server sends all of a sample's every time, or (incremental) the new ones.

        All of them may be more than the event counts where the text goes on: SGLang sends the list that it goes on writing to
        (`tokenizer_manager.py`, read), and a busy server has written more by then. Those come again, counted.
        """
        given = output_ids(event, self.job.tokenizer.vocab_size)
        total = count_of(event["meta_info"], "completion_tokens", self.job.max_tokens)
        goes_on = event["meta_info"].get("finish_reason") is None
        most = self.job.max_tokens if goes_on else total
        if len(self.ids) <= total <= len(given) <= most and given[: len(self.ids)] == self.ids:
            return given[len(self.ids) : total]
        if len(self.ids) + len(given) == total:
            return given
        raise bad(f"output_ids of {total} tokens after {len(self.ids)}", given[:8])

    def _commit(self, token: int) -> None:
        ends = self.job.request.sampling.stop_ids + self.job.tokenizer.eos_ids
        self.ids.append(token)
        self.texts.append("" if token in ends else self.stream.feed(token))


def _ending(finish: Json) -> tuple[FinishReason, str | int | None]:
    kind = finish.get("type") if isinstance(finish, dict) else None
    matched = finish.get("matched") if isinstance(finish, dict) else None
    if kind not in ("stop", "length"):
        raise bad("finish_reason", finish)
    if matched is not None and not isinstance(matched, int | str):
        raise bad("what a text stopped at", matched)
    return ("length", None) if kind == "length" else ("stop", matched)
