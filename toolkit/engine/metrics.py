"""Metrics: what an engine has done since it was opened, as counters and in Prometheus' text format.

    toolkit_requests_total                      requests that ended, by outcome (done, failed)
    toolkit_samples_total                       texts, by what the validator said (valid, invalid, cut, unjudged)
    toolkit_incidents_total                     by kind, drafter and who found it
    toolkit_audits_total                        by verdict
    toolkit_repairs_total                       attempts of `guarded`, by policy and result
    toolkit_tokens_total, toolkit_passes_total  by direction; by kind (all, verify)
    toolkit_draft_tokens_total                  proposed, accepted, discarded, rechecked
    toolkit_drafts_{proposed,accepted}_total    by position, 1 = the first token after the last committed one
    toolkit_prefix_blocks_total                 KV blocks of the prefix folder: read, written, refused, evicted, failed
    toolkit_breaker_held, toolkit_breaker_trips_total

Knows nothing about: engines. Thread-safe.
Source: Prometheus text exposition format 0.0.4.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from toolkit.contracts import Completion, Done, Event, Failed, Usage
from toolkit.engine.breaker import Breaker
from toolkit.engine.watch import is_cut
from toolkit.errors import UsageError

Labels = tuple[tuple[str, str], ...]

HELP: Mapping[str, str] = {
    "toolkit_requests_total": "Requests that ended.",
    "toolkit_samples_total": "Texts that ended, by the validator's verdict.",
    "toolkit_incidents_total": "Speculated texts that were found to be wrong.",
    "toolkit_audits_total": "Speculated texts that the target has read again.",
    "toolkit_repairs_total": "Further attempts at a valid text.",
    "toolkit_tokens_total": "Tokens of prompts and outputs.",
    "toolkit_passes_total": "Forward passes, counted once a request.",
    "toolkit_draft_tokens_total": "Draft tokens, by what became of them.",
    "toolkit_drafts_proposed_total": "Verify passes whose draft reached the position.",
    "toolkit_drafts_accepted_total": "Verify passes that accepted the position.",
    "toolkit_prefix_blocks_total": "KV blocks of the prefix folder, by what became of them; refused are damaged or foreign files.",
    "toolkit_breaker_trips_total": "Times that speculation was put on hold.",
    "toolkit_breaker_held": "1 while speculation is on hold.",
}


class Metrics:
    """Counters of one engine; `value` reads one, `prometheus` writes all."""

    def __init__(self, breaker: Breaker | None = None, prefix_blocks: Mapping[str, int] | None = None) -> None:
        """`prefix_blocks` is counted by somebody else, by outcome."""
        self._lock = threading.Lock()
        self._counts: dict[str, dict[Labels, float]] = {}
        self._breaker = breaker
        self._prefix_blocks = prefix_blocks or {}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Count. UsageError for a name that is no row of HELP."""
        _known(name)
        key = tuple(sorted(labels.items()))
        with self._lock:
            counts = self._counts.setdefault(name, {})
            counts[key] = counts.get(key, 0) + amount

    def value(self, name: str, **labels: str) -> float:
        """Sum of the counters of that name which have these labels, the breaker's among them; UsageError for a name not in HELP."""
        _known(name)
        wanted = set(labels.items())
        return sum(count for key, count in self._all().get(name, {}).items() if wanted <= set(key))

    def heard(self, tell: Callable[[Event], None], samples: int) -> Callable[[Event], None]:
        """`tell` for the events of one request that gives `samples` results, which are counted on their way."""
        left, output = samples, 0

        def hear(event: Event) -> None:
            nonlocal left, output
            if isinstance(event, Failed):
                self.add("toolkit_requests_total", outcome="failed")
            elif isinstance(event, Done):
                left -= 1
                output += event.result.usage.output_tokens
                if isinstance(event.result, Completion):
                    self._sample(event.result)
                if left == 0:
                    self.add("toolkit_requests_total", outcome="done")
                    self._usage(replace(event.result.usage, output_tokens=output))
            tell(event)

        return hear

    def prometheus(self) -> str:
        """All counters as text; ends with a line feed."""
        counts = self._all()
        lines: list[str] = []
        for name, text in HELP.items():
            if name in counts:
                kind = "counter" if name.endswith("_total") else "gauge"
                lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
                lines += [f"{name}{_labels(key)} {count}" for key, count in sorted(counts[name].items())]
        return "".join(f"{line}\n" for line in lines)

    def _all(self) -> dict[str, dict[Labels, float]]:
        """A copy of every counter, and what breaker and prefix folder say by themselves."""
        with self._lock:
            counts = {name: dict(found) for name, found in self._counts.items()}
        if self._prefix_blocks:
            counts["toolkit_prefix_blocks_total"] = {(("outcome", name),): count for name, count in self._prefix_blocks.items()}
        if self._breaker is not None:
            counts["toolkit_breaker_trips_total"] = {(): self._breaker.trips}
            counts["toolkit_breaker_held"] = {(): int(self._breaker.is_held)}
        return counts

    def _sample(self, result: Completion) -> None:
        verdict = "unjudged" if result.valid is None else "valid" if result.valid else "cut" if is_cut(result) else "invalid"
        self.add("toolkit_samples_total", verdict=verdict)
        for incident in result.incidents:
            kind, found_by, drafter = incident.kind, incident.found_by, incident.drafter
            self.add("toolkit_incidents_total", kind=kind, found_by=found_by, drafter=drafter)
        if result.audit is not None:
            self.add("toolkit_audits_total", verdict=result.audit.verdict.replace(" ", "_"))

    def _usage(self, usage: Usage) -> None:
        """The books of a request as they are at its end; its output is that of all of its samples."""
        self.add("toolkit_tokens_total", usage.input_tokens, direction="input")
        self.add("toolkit_tokens_total", usage.output_tokens, direction="output")
        self.add("toolkit_passes_total", usage.passes, kind="all")
        self.add("toolkit_passes_total", usage.verify_passes, kind="verify")
        for what in ("proposed", "accepted", "discarded", "rechecked"):
            self.add("toolkit_draft_tokens_total", getattr(usage, what), outcome=what)
        for what, counts in (("proposed", usage.proposed_by_position), ("accepted", usage.accepted_by_position)):
            for position, count in enumerate(counts, 1):
                self.add(f"toolkit_drafts_{what}_total", count, position=str(position))


def _known(name: str) -> None:
    if name not in HELP:
        raise UsageError(f"metric {name!r} is unknown: known are {', '.join(HELP)}")


def _labels(key: Labels) -> str:
    if not key:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in key) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
