"""Inquest: is what a line has written what the target means? Looks at it before it is told, and has it read again where in doubt.

    look at every pass -- a problem, an invalid end, chosen for an audit --> recheck --> conclude
                                                                        same text: the model's own, or a passed audit
                                                                        another:   incident; plain decoding's text stands

Where drafts were drawn plain decoding need not give the same text. What the model cannot have drawn, or what the evidence is
against, is written anew from the first impossible token or from the prompt; a faulty text that it may have drawn ("unclear")
from the pass in which that was noticed, which favours valid texts a little.
Knows nothing about: how drafters guess, how a text is read again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import Literal

from toolkit.contracts import Audit, Completion, Incident
from toolkit.draft.tree import DraftTree
from toolkit.engine.audit import ALARM
from toolkit.engine.job import Job
from toolkit.engine.loops.plain import Sample
from toolkit.engine.loops.recheck import Recheck
from toolkit.engine.oversight import SILENT, Oversight
from toolkit.engine.watch import Watcher, is_cut, raw_bytes

log = logging.getLogger(__name__)
_NOT_WHOLE = ("json", "regex", "choices", "truncated")  # what a judge says of a part of a text that its grammar allows
Found = Literal["parser", "validator", "audit", "grammar", "engine"]


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why a text is read again: noticed in the tokens from `start` on, at byte `offset`."""

    found_by: Found
    start: int
    offset: int
    tokens: tuple[int, ...]
    why: str


class Inquest:
    """One a line. While `recheck` is there, its asks and answers are the line's."""

    def __init__(self, job: Job, drafter: str, oversight: Oversight) -> None:
        self.job, self.drafter, self.oversight = job, drafter, oversight
        self.recheck: Recheck | None = None
        began = time.thread_time()
        self._watcher: Watcher | None = job.checks.watcher(job.tokenizer) if job.checks is not None else None
        job.books.guard_s += time.thread_time() - began
        self._seen = 0  # tokens looked at
        self._speculated = self._drawn = self._closed = self._counted = False
        self._cause: _Cause | None = None
        self._second = False

    def opens(self, sample: Sample, tree: DraftTree) -> bool:
        """Look at what one pass gave; True if the whole text is now to be read again."""
        if self._closed:
            return False
        self._speculated |= len(tree) > 0
        self._drawn |= tree.q is not None and sample.params.temperature > 0
        start, self._seen = self._seen, len(sample.ids)
        cause = self._look(sample, start) if self._watcher is not None or sample.is_over else None
        if cause is None or not self._speculated:
            return False
        self._open(sample, cause)
        return True

    def opens_over(self, by_grammar: bool, why: str, sample: Sample, tree: DraftTree) -> bool:
        """The engine failed while it verified a draft: True if the text is now to be read again, False where that cannot help."""
        if self._closed or not (self._speculated or len(tree)):
            return False
        start = min(self._seen, len(sample.ids))
        tokens, size = tuple(sample.ids[start:]), len(raw_bytes(sample.ids[:start], self.job.tokenizer))
        self._speculated = True
        self._drawn |= tree.q is not None and sample.params.temperature > 0
        self._open(sample, _Cause("grammar" if by_grammar else "engine", start, size, tokens, why))
        return True

    def _open(self, sample: Sample, cause: _Cause) -> None:
        self._cause, self._closed = cause, True
        self.recheck = Recheck(sample, ties=self.oversight.ties, drawn=self._drawn)

    def conclude(self) -> Sample:
        """The recheck is over: the sample that stands. `recheck` is a second one where it has to be written anew after all."""
        assert self.recheck is not None and self._cause is not None
        again, cause = self.recheck.sample, self._cause
        parts = None if self._second else again.parts_at()
        damning = again.evidence is not None and again.evidence.is_damning and not self._second
        if cause.found_by == "audit" and not self._second:
            again.audit = self._audit(parts is None and not damning)
        failed = cause.found_by in ("grammar", "engine") and not self._second
        if parts is not None or damning or failed:
            self._incident("speculation", again.old, parts)
            self.job.is_tainted = self._counted = True
            self.oversight.breaker.count(True)
        elif not self._second:
            again.trace = again.old.trace + again.trace[len(again.trace) - (len(again.ids) > len(again.old.ids)) :]
            if cause.found_by != "audit":
                self._incident("unclear" if self.recheck.drawn else "model", again.old, None)
        upto = self._anew(parts, damning)
        self.recheck = None
        if upto is not None:
            self._second = True
            self.recheck = Recheck(again, ties=self.oversight.ties, drawn=True, upto=upto)
            self.recheck.sample.audit = again.audit
        elif again.wrong_told():
            again.is_silent = True
            again.notes.append(SILENT)
            again.incidents[-1] = replace(again.incidents[-1], streamed=True)
        return again

    def close(self) -> None:
        """The sample has ended."""
        if self._speculated and not self._counted:
            self.oversight.breaker.count(False)

    def _look(self, sample: Sample, start: int) -> _Cause | None:
        tokens = tuple(sample.ids[start:])
        if self._watcher is not None and self._watcher.problem is None:
            began = time.thread_time()
            problem = self._watcher.look(tokens, "".join(sample._texts[start:]))
            self.job.books.guard_s += time.thread_time() - began
            if problem is not None:
                return _Cause("parser", start, problem.offset, tokens, problem.violation.message)
        if not sample.is_over:
            return None
        result = sample.result()
        if result.valid is False and not is_cut(result) and not self._stopped_inside(result):
            worst = result.violations[-1]
            return _Cause("validator", start, self._size(sample), tokens, f"{worst.keyword}: {worst.message}")
        if self.oversight.wants(self.job.id, sample.index, sample.seed):
            return _Cause("audit", start, self._size(sample), tokens, "plain decoding gives another text")
        return None

    def _size(self, sample: Sample) -> int:
        return len(raw_bytes(sample.ids, self.job.tokenizer))

    def _stopped_inside(self, result: Completion) -> bool:
        """A stop string or stop id ended the text inside its grammar: right up to there, as the mask made it, and not whole by wish."""
        stopped = result.matched_stop is not None and result.matched_stop not in self.job.tokenizer.eos_ids
        return self.job.grammar is not None and stopped and result.violations[0].keyword in _NOT_WHOLE

    def _anew(self, parts: int | None, damning: bool) -> int | None:
        """How much of a drawn text stands before it is written anew; None = nothing has to be."""
        assert self.recheck is not None and self._cause is not None
        if not self.recheck.drawn or self._second or parts is not None:
            return None
        if damning:
            return 0
        return self._cause.start if self._cause.found_by in ("parser", "validator") else None

    def _incident(self, kind: Literal["speculation", "model", "unclear"], old: Sample, parts: int | None) -> None:
        cause = self._cause
        assert cause is not None
        position = cause.start if parts is None else parts
        offset = cause.offset if parts is None else len(raw_bytes(old.ids[:parts], self.job.tokenizer))
        incident = Incident(
            kind=kind, found_by=cause.found_by, drafter=self.drafter, position=position, offset=offset,
            tokens=cause.tokens, why=cause.why,
        )  # fmt: skip
        old.incidents.append(incident)
        log.info("%s incident in request %r at token %d, found by %s", kind, self.job.id, position, cause.found_by)

    def _audit(self, passed: bool) -> Audit:
        assert self.recheck is not None and self._cause is not None
        again = self.recheck.sample
        verdict: Literal["pass", "fail"] = "pass" if passed else "fail"
        why = "" if passed else self._cause.why
        count, ties = len(again.old.ids), self.oversight.ties
        if again.evidence is not None:
            log = again.evidence.log
            return Audit(verdict=verdict, method="likelihood", tokens=count, log_evidence=log, alarm=ALARM, why=why)
        method: Literal["argmax", "seed"] = "argmax" if again.params.temperature == 0 else "seed"
        return Audit(verdict=verdict, method=method, tokens=count, ties=ties, why=why)
