"""Harvest: the hypotheses that a beam search has finished - parsed, validated, made distinct, ranked.

In: token ids with log-probabilities of every hypothesis that ended.   Out: a BeamResult, or NoValidError with the reasons.
The answer is the best-scoring *valid* hypothesis; distinct means distinct parsed values (texts where there is no JSON).
Knows nothing about: how the search runs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from toolkit.contracts import BeamParams, BeamResult, FinishReason, Grammar, Hypothesis, Report, Timing, Tokenizer, Usage
from toolkit.engine.confidence import field_confidence, with_margins
from toolkit.errors import NoValidError, SchemaError
from toolkit.sample.beam import diversity, score
from toolkit.schema import value_key
from toolkit.validate.check import Validator

OPEN_TEXT = "beams over open text collapse into near-duplicates: for free text use a `free` segment (sampling)"


@dataclass(frozen=True, slots=True)
class _Finished:
    hypothesis: Hypothesis
    allowed: tuple[float, ...]


class Harvest:
    """Collects hypotheses; `best_valid` and `enough` tell the search when it may cut."""

    def __init__(
        self, params: BeamParams, tokenizer: Tokenizer, grammar: Grammar | None, *, room: int, partial: tuple[str, ...] = ()
    ) -> None:
        self.params = params
        self.room = room  # tokens that a hypothesis may have: max_tokens, or less where the context ends before
        self.tokenizer = tokenizer
        self.grammar = grammar
        self.partial = partial
        self.best_valid = -math.inf
        self._n = params.n or params.width
        self._validator = Validator(grammar) if grammar is not None else None
        self._found: dict[Hashable, _Finished] = {}
        self._truncated: list[_Finished] = []
        self._dead: list[str] = []

    @property
    def enough(self) -> bool:
        """As many distinct hypotheses as are to be returned, one of them valid at least."""
        return len(self._found) >= self._n and self.best_valid > -math.inf

    def ended(self, ids: Sequence[int], logprobs: Sequence[float], allowed: Sequence[float]) -> None:
        """A hypothesis chose its end token, the last of `ids`."""
        finished = self._finish(ids, logprobs, allowed, "stop" if self.grammar is None else "grammar")
        key = self._key(finished.hypothesis)
        known = self._found.get(key)
        if known is None or known.hypothesis.score < finished.hypothesis.score:
            self._found[key] = finished
        if finished.hypothesis.valid:
            self.best_valid = max(self.best_valid, finished.hypothesis.score)

    def truncated(self, ids: Sequence[int], logprobs: Sequence[float], allowed: Sequence[float]) -> None:
        """A hypothesis had no more room: it counts only where nothing valid ended, and only if its text is valid as it is."""
        self._truncated.append(self._finish(ids, logprobs, allowed, "length"))

    def dead(self, error: SchemaError) -> None:
        """A hypothesis ended because the grammar engine met a dead end or its own limits."""
        self._dead.append(str(error))

    @property
    def answer_tokens(self) -> int:
        """Tokens of the best hypothesis so far, the end token included."""
        best = max(self._ranked(), key=lambda finished: finished.hypothesis.valid, default=None)
        return len(best.hypothesis.token_ids) if best is not None else 0

    def result(self, usage: Usage, timing: Timing) -> BeamResult:
        """The n-best; NoValidError if the validator refused all of them."""
        ranked = self._ranked()
        valid = [finished for finished in ranked if finished.hypothesis.valid]
        if not valid:
            raise self._no_valid(ranked)
        chosen = ranked[: self._n]
        if valid[0] not in chosen:
            chosen = [*chosen[:-1], valid[0]]
        alternatives = [
            replace(f.hypothesis, confidence=field_confidence(f.hypothesis, f.allowed, self.tokenizer, self._is_json))
            for f in chosen
        ]
        alternatives = [with_margins(one, alternatives) for one in alternatives]
        answer = alternatives[chosen.index(valid[0])]
        return BeamResult(
            value=answer.value,
            text=answer.text,
            valid=True,
            score=answer.score,
            sum_logprob=answer.sum_logprob,
            alternatives=tuple(alternatives),
            confidence=answer.confidence,
            diversity=diversity([hypothesis.token_ids for hypothesis in alternatives]),
            partial=self.partial,
            notes=(OPEN_TEXT,) if self.grammar is None and self.params.width > 1 else (),
            usage=usage,
            timing=timing,
        )

    @property
    def _is_json(self) -> bool:
        return self.grammar is not None and self.grammar.kind == "json_schema"

    def _finish(
        self, ids: Sequence[int], logprobs: Sequence[float], allowed: Sequence[float], reason: FinishReason
    ) -> _Finished:
        text = self.tokenizer.decode(ids)
        report = self._validator.check(text) if self._validator is not None else Report(text)
        total = math.fsum(logprobs)
        hypothesis = Hypothesis(
            text=text,
            token_ids=tuple(ids),
            token_logprobs=tuple(logprobs),
            score=score(total, len(ids), self.params),
            sum_logprob=total,
            value=report.value,
            valid=report.valid,
            violations=report.violations,
            finish_reason=reason,
        )
        return _Finished(hypothesis, tuple(allowed))

    def _ranked(self) -> list[_Finished]:
        """What ended, best first; with what was cut off if nothing valid ended."""
        found = list(self._found.values())
        if self.best_valid == -math.inf:
            found += self._truncated
        return sorted(found, key=lambda finished: -finished.hypothesis.score)

    def _key(self, hypothesis: Hypothesis) -> Hashable:
        parsed = self._is_json and (hypothesis.valid or hypothesis.value is not None)
        return value_key(hypothesis.value) if parsed else ("text", hypothesis.text)

    def _no_valid(self, ranked: Sequence[_Finished]) -> NoValidError:
        reasons = (*(_reason(finished.hypothesis, self.params, self.room) for finished in ranked), *dict.fromkeys(self._dead))
        return NoValidError(
            f"none of {len(ranked)} hypotheses is valid: {'; '.join(dict.fromkeys(reasons)) or 'nothing was decoded'}",
            reasons=reasons,
            texts=tuple(finished.hypothesis.text for finished in ranked),
            hint="truncated: raise max_tokens or shorten the prompt; refused: raise the width or loosen the schema",
        )


def _reason(hypothesis: Hypothesis, params: BeamParams, room: int) -> str:
    if hypothesis.finish_reason == "length" and room < params.max_tokens:
        return f"truncated after {room} tokens, where the context ends (max_tokens = {params.max_tokens})"
    if hypothesis.finish_reason == "length":
        return f"truncated at max_tokens = {params.max_tokens}"
    first = hypothesis.violations[0]
    return f"{first.path or '(root)'}: {first.message}"
