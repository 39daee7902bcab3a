"""Watch: what the text of a request has to be, ready to be asked - while the text comes, and once more at its end.

    Checks   one a request: what its grammar and its watch say       reader() -> Reader, report(...) -> Report
    Watcher  one a sample: new tokens -> a problem or nothing        sound: what it refuses cannot become valid
    judged   the last word: the whole text, parsed and validated from scratch
    is_cut   whether a text is merely not whole

Knows nothing about: models, drafts, what happens to a text with a problem.
Invariants: no text raises anything or hangs; a cut-off text has the violation "max_tokens" (or "cancelled") unless nothing could have
been added to it, and others only where what there is of it is already wrong (a grammar's text without a reader, a regex or choice,
is whole where it matches); bytes that are no UTF-8 are a violation although their text shows U+FFFD for them.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from toolkit.contracts import Completion, FinishReason, Grammar, Report, Request, Tokenizer, Violation, Watch
from toolkit.engine.readers import READERS, Reader
from toolkit.validate.check import Validator

CUT: dict[FinishReason, str] = {"length": "max_tokens", "cancelled": "cancelled"}
AUDIT = "audit"  # keyword of the violation that a text is not the target's own, which no judge of texts can find
_MOST_CHECKS = 64


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a text cannot become valid, noticed at byte `offset` of it."""

    offset: int
    violation: Violation


class Checks:
    """Everything that one request's texts are judged by. Thread-safe; `of` gives None where there is nothing to judge by."""

    def __init__(self, watch: Watch | None, grammar: Grammar | None) -> None:
        """Raises UsageError, SchemaError or UnsupportedError for a watch or a grammar that cannot be judged by."""
        self._reports: list[Callable[[str], Report]] = []
        self._reader: Callable[[], Reader] | None = None
        if watch is None and grammar is not None and grammar.kind == "json_schema":
            watch = Watch(kind="json", schema=grammar.source)
            self._reports.append(Validator(grammar).check)
            self._reader = READERS.load(watch.kind)(watch).reader
        else:
            if watch is not None:
                kind = READERS.load(watch.kind)(watch)
                self._reports.append(kind.report)
                self._reader = kind.reader
            if grammar is not None and _has_judge(grammar):
                self._reports.append(Validator(grammar).check)

    @classmethod
    def of(cls, request: Request) -> Checks | None:
        """The checks of a request's grammar and watch. Those without the caller's own code in them are kept for the next request."""
        grammar, watch = request.grammar, request.watch
        if watch is None and (grammar is None or not _has_judge(grammar)):
            return None
        own = grammar is not None and (grammar.python_type is not None or grammar.judge is not None)
        if own or (watch is not None and watch.python_type is not None):
            return cls(watch, grammar)
        return _kept(watch, grammar)

    def watcher(self, tokenizer: Tokenizer) -> Watcher:
        """A fresh one for a sample."""
        return Watcher(tokenizer, self._reader() if self._reader is not None else None)

    def report(self, text: str, raw: bytes, reason: FinishReason) -> Report:
        """The verdict over a whole text; `raw` are the bytes of its tokens, which may go beyond it (a stop string)."""
        broken = _broken(text, raw)
        if broken is not None and not (broken.whole and reason in CUT):
            return Report(None, (broken.violation,))
        value, violations = None, list[Violation]()
        for place, check in enumerate(self._reports):
            report = check(text)
            value = report.value if place == 0 else value
            violations += report.violations
        if reason in CUT:
            reader = self._reader() if self._reader is not None else None
            read = text[:-1] if broken is not None else text  # the last character is not whole either
            problem = reader.feed(read.encode("utf-8", "surrogatepass")) if reader is not None else None
            if violations or broken is not None or not (reader is None or reader.is_whole):
                cut = Violation("", CUT[reason], "a complete text", f"{len(text)} characters", "the text was cut off")
                return Report(None, (cut,) if problem is None else (cut, problem))
        return Report(None if violations else value, tuple(violations))


def _has_judge(grammar: Grammar) -> bool:
    return grammar.kind != "lark" or grammar.judge is not None


@lru_cache(maxsize=_MOST_CHECKS)
def _kept(watch: Watch | None, grammar: Grammar | None) -> Checks:
    return Checks(watch, grammar)


class Watcher:
    """Reads one sample as it comes. `problem` stays once there is one."""

    def __init__(self, tokenizer: Tokenizer, reader: Reader | None) -> None:
        self._tokenizer, self._reader = tokenizer, reader
        self._tokens: list[int] = []
        self._bytes = 0
        self.problem: Problem | None = None

    def look(self, tokens: Iterable[int], text: str) -> Problem | None:
        """What is wrong with the text so far; `tokens` are new, `text` is what became safe to show with them."""
        self._tokens += tokens
        if self.problem is None and text:
            data = text.encode("utf-8", "surrogatepass")
            violation = self._raw() if "\ufffd" in text else None
            if violation is None and self._reader is not None:
                violation = self._reader.feed(data)
            if violation is not None:
                self.problem = Problem(self._bytes, violation)
            self._bytes += len(data)
        return self.problem

    def _raw(self) -> Violation | None:
        """Whether a U+FFFD stands for bytes that are no UTF-8."""
        try:
            codecs.getincrementaldecoder("utf-8")().decode(raw_bytes(self._tokens, self._tokenizer))
        except UnicodeDecodeError as error:
            return _utf8(error.object[error.start : error.end])
        return None


def judged(checks: Checks | None, completion: Completion, tokenizer: Tokenizer) -> Completion:
    """The completion with `value`, `valid` and `violations` as its text deserves, whatever an engine said before."""
    if checks is None:
        return completion
    raw = raw_bytes(completion.token_ids, tokenizer)
    report = checks.report(completion.text, raw, completion.finish_reason)
    return replace(completion, value=report.value, valid=report.valid, violations=report.violations)


def is_cut(completion: Completion) -> bool:
    """The text was cut off, and what there is of it is not wrong: another end could still have made it valid."""
    found = completion.violations
    return completion.valid is False and len(found) == 1 and found[0].keyword in CUT.values() and not found[0].path


def raw_bytes(tokens: Sequence[int], tokenizer: Tokenizer) -> bytes:
    """The bytes that tokens stand for."""
    return b"".join(tokenizer.token_bytes(token) for token in tokens)


@dataclass(frozen=True, slots=True)
class _Broken:
    violation: Violation
    whole: bool  # what there is of the character is right: it is only not all there


def _broken(text: str, raw: bytes) -> _Broken | None:
    """The first U+FFFD of the text that stands for bytes which are no UTF-8."""
    if "\ufffd" not in text:
        return None
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        if len(raw[: error.start].decode()) < len(text):
            return _Broken(_utf8(raw[error.start : error.end]), error.reason == "unexpected end of data")
    return None


def _utf8(found: bytes) -> Violation:
    return Violation("", "utf8", "UTF-8", found[:8].hex(), "a character is not whole")
