"""Stats: what the lines of a job look like together.

In: lines of `review_lines.job_lines`.   Out: one plain JSON object.
Knows nothing about: files, how it is printed.
Invariants: one pass, bounded memory whatever the number of lines: at most MAX_FIELDS fields, MAX_VALUES different values each, and
MAX_AMOUNTS different amounts; what no longer fits is counted under "(others)", or in bins of equal ratio. Counts are exact.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.contracts import Json
from toolkit.jobs.pointer import general
from toolkit.jobs.review_record import MOST, cells, listing, mapping, number

MAX_FIELDS = 1000
MAX_VALUES = 500
MAX_AMOUNTS = 1000
MAX_KEY = 80
BINS = 10  # of a confidence, from 0 to 1
STEPS = 20  # bins of a factor of 10: neighbours differ by 12 %
OTHERS = "(others)"


@dataclass(slots=True)
class Spread:
    """Count, least, mean, quantiles, most of amounts >= 0: exact up to MAX_AMOUNTS different ones, then to within half a bin."""

    count: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf
    coarse: bool = False
    amounts: Counter[float] = field(default_factory=Counter)

    def add(self, amount: float) -> None:
        self.count += 1
        self.total += amount
        self.least, self.most = min(self.least, amount), max(self.most, amount)
        self.amounts[_middle(amount) if self.coarse else amount] += 1
        if not self.coarse and len(self.amounts) > MAX_AMOUNTS:
            self.coarse = True
            fine, self.amounts = self.amounts, Counter()
            for each, count in fine.items():
                self.amounts[_middle(each)] += count

    def quantile(self, share: float) -> float:
        """The least amount that at least this share of all is not above."""
        left = share * self.count
        for amount in sorted(self.amounts):
            left -= self.amounts[amount]
            if left <= 0:
                return min(max(amount, self.least), self.most)
        return self.most

    def fields(self) -> dict[str, Json] | None:
        """As plain JSON; None where nothing was added."""
        if not self.count:
            return None
        shares = {name: self.quantile(share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
        return {"count": self.count, "min": self.least, "mean": self.total / self.count, **shares, "max": self.most}


def _middle(amount: float) -> float:
    """The middle of an amount's bin."""
    return 10 ** ((math.floor(STEPS * math.log10(amount)) + 0.5) / STEPS) if amount > 0 else 0.0


@dataclass(slots=True)
class FieldStats:
    """One field: in how many records, of which types, with which values, how long, how sure, how well grounded."""

    records: int = 0
    last: int = -1  # index of the record that was counted last: an array has many places in one
    types: Counter[str] = field(default_factory=Counter)
    values: Counter[str] = field(default_factory=Counter)
    length: Spread = field(default_factory=Spread)
    amount: Spread = field(default_factory=Spread)
    negative: int = 0
    confidence: list[int] = field(default_factory=lambda: [0] * BINS)
    sure: Spread = field(default_factory=Spread)
    grounded: Counter[str] = field(default_factory=Counter)

    def add(self, index: int, path: str, value: Json, line: Mapping[str, Any]) -> None:
        self.records += index != self.last
        self.last = index
        kind = _kind(value)
        self.types[kind] += 1
        if kind == "string":
            self.length.add(len(value))
        elif kind in ("integer", "number"):
            self.negative += value < 0
            self.amount.add(float(min(abs(value), MOST)))
        _count(self.values, value if kind == "string" else json.dumps(value))
        sure = number(mapping(line.get("confidence")).get(path))
        if sure is not None:
            self.sure.add(min(max(sure, 0.0), 1.0))
            self.confidence[int(min(BINS * max(sure, 0.0), BINS - 1))] += 1
        spans = mapping(line.get("spans"))
        if path in spans:
            self.grounded["found" if spans[path] else "not found"] += 1

    def fields(self, records: int) -> dict[str, Json]:
        """As plain JSON; `records` had a value."""
        return {
            "present": self.records,
            "missing": records - self.records,
            "types": dict(self.types),
            "distinct": None if OTHERS in self.values else len(self.values),  # None: more than are counted
            "values": dict(self.values.most_common(10)),
            "length": self.length.fields(),
            "amount": self.amount.fields(),
            "negative": self.negative,
            "confidence": {**(self.sure.fields() or {}), "histogram": self.confidence} if self.sure.count else None,
            "grounded": dict(self.grounded),
        }


def stats_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Json]:
    """records, valid, failed, needs_review, errors by stage and reason, fields by pattern, seconds, tokens, alternatives."""
    table: dict[str, FieldStats] = {}
    stages: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    review: Counter[str] = Counter()
    usage: Counter[str] = Counter()
    seconds, outputs = Spread(), Spread()
    valid = flagged = 0
    for line in lines:
        if "stage" in line:
            stages[str(line["stage"])] += 1
            _count(reasons, f"{line['stage']}: {line.get('reason', '')}")
            continue
        valid += 1
        flagged += line.get("needs_review") is True
        for why in _why(line):
            _count(review, why)
        for path, value in cells(line.get("value")):
            name = general(path)
            if name not in table and len(table) >= MAX_FIELDS:
                name = OTHERS
            table.setdefault(name, FieldStats()).add(int(line["index"]), path, value, line)
        _amount(line.get("timing"), "e2e_s", seconds)
        _amount(line.get("usage"), "output_tokens", outputs)
        usage.update({name: count for name, count in mapping(line.get("usage")).items() if type(count) is int})
    return {
        "records": valid + stages.total(),
        "valid": valid,
        "failed": stages.total(),
        "needs_review": flagged,
        "review_reasons": dict(review.most_common(50)),
        "errors": {"by_stage": dict(stages), "reasons": dict(reasons.most_common(20))},
        "fields": {name: each.fields(valid) for name, each in table.items()},
        "seconds": seconds.fields(),
        "output_tokens": outputs.fields(),
        "usage": {name: usage[name] for name in ("input_tokens", "output_tokens", "passes") if name in usage},
    }


def _count(counts: Counter[str], key: str) -> None:
    key = key[:MAX_KEY]
    counts[key if key in counts or len(counts) < MAX_VALUES else OTHERS] += 1


def _why(line: Mapping[str, Any]) -> set[str]:
    """The kinds of reasons to look at a record, each once."""
    reasons = [each for each in listing(line.get("review_reasons")) if isinstance(each, dict)]
    return {f"{general(str(each.get('path', '')))}: {each.get('reason', '')}" for each in reasons}


def _amount(source: Json, name: str, spread: Spread) -> None:
    value = number(mapping(source).get(name))
    if value is not None and value >= 0:
        spread.add(value)


def _kind(value: Json) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", dict: "object", list: "array"}
    return names[type(value)]
