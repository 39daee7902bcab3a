"""Equality: does greedy speculation give, token for token, what plain decoding gives? Every arm, with and without a grammar.

In: how to open the engine of an arm, prompts.   Out: JSON (verdict, settings: an entry an arm, grammar and batch), a table.
Knows nothing about: drafters, speed.
Invariants: one engine is open at a time; plain texts are decoded once a grammar, by the first engine, several together. Two texts that
part are judged by the scores of the two tokens at that place, computed again: at most `tie` nats apart is a tie and counted; 0
excuses nothing. A setting in which nothing was proposed, a drafter was switched off, or a text had to be repaired, holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from toolkit.bench.equality_kept import Kept
from toolkit.bench.equality_report import show
from toolkit.bench.equality_rows import Place, Setting
from toolkit.bench.peers import gap
from toolkit.bench.promptsets import load
from toolkit.contracts import Completion, Done, Engine, Failed, Grammar, Json, Request, SamplingParams, require
from toolkit.engine.admission import prompt_ids
from toolkit.engine.card import card
from toolkit.errors import UsageError

TIE = 1e-4  # nats between two tokens that float32 may order otherwise with other rows in the pass
TOGETHER = 16  # plain texts that are decoded at a time
BATCHES = (1, 4)
GRAMMARS: Mapping[str, Grammar | None] = {
    "free": None,
    "schema": Grammar(
        "json_schema",
        '{"type":"object","properties":{"title":{"type":"string","maxLength":60},"answer":{"type":"string","maxLength":500},'
        '"keywords":{"type":"array","items":{"type":"string","maxLength":20},"maxItems":6},"sure":{"type":"boolean"},'
        '"score":{"type":"integer","minimum":0,"maximum":100}},"required":["title","answer","keywords","sure","score"],'
        '"additionalProperties":false}',
    ),
    "regex": Grammar("regex", r"([A-Z][a-z ,']{10,80}\. ){2,8}"),
}
VARIATIONS = (
    "{}",
    "{} Answer in a list.",
    "{} Keep it short.",
    "Please help me. {}",
    "{} Give an example and say why it fits.",
)

Open = Callable[[str], AbstractContextManager[Engine]]


def run(
    arms: Sequence[str], opened: Open, *, prompts: int = 200, tokens: int = 256, grammars: Sequence[str] = ("free", "schema"),
    batches: Sequence[int] = BATCHES, console: Console | None = None, kept: Kept | None = None,
    mark: Callable[[Engine], str] = lambda _: "",
) -> dict[str, Any]:  # fmt: skip
    """Decode `prompts` texts of at most `tokens` tokens under every setting. UsageError for an unknown grammar or too many prompts.

    A setting that `kept` holds for an engine of the same `mark`, which covers whatever may change a text, is not decoded again.
    """
    require(len(arms) > 0, "arms", list(arms), "one at least")
    for name in grammars:
        require(name in GRAMMARS, "grammar", name, ", ".join(GRAMMARS))
    texts = varied(prompts)
    console = console or Console(stderr=True)
    found: list[Setting] = []
    with _progress(console) as bar:
        task = bar.add_task("plain", total=prompts * len(grammars) * (1 + len(arms) * len(batches)))

        def done(what: str, count: int) -> None:
            bar.update(task, advance=count, description=what)

        plain: dict[str, list[Completion]] = {}
        about: dict[str, Any] = {}
        for arm in arms:
            with opened(arm) as engine:
                work = _Work(
                    engine, [prompt_ids([{"role": "user", "content": text}], engine.tokenizer) for text in texts], tokens
                )
                about = about or {"card": card(engine), "tie_nats": work.tie}
                marked = mark(engine)
                for grammar in grammars:
                    for batch in batches:
                        terms: dict[str, Json] = {
                            "mark": marked, "arm": arm, "grammar": grammar, "batch": batch, "prompts": texts, "tokens": tokens,
                        }  # fmt: skip
                        setting = None if kept is None else kept.find(terms)
                        if setting is None:
                            if grammar not in plain:
                                plain[grammar] = work.decode(grammar, TOGETHER, False, lambda count: done("plain", count))
                            setting = Setting(arm, grammar, batch)
                            answers = work.decode(grammar, batch, True, lambda count, name=setting.name: done(name, count))  # type: ignore[misc]
                            work.compare(setting, plain[grammar], answers)
                            if kept is not None:
                                kept.add(terms, setting)
                        else:
                            done(setting.name, prompts)
                        console.print(f"{setting.name}: {setting.equal} of {setting.texts} texts equal", markup=False)
                        found.append(setting)
    reasons = [why for setting in found for why in setting.complaints()]
    result = {
        "verdict": "HOLD" if reasons else "PASS", "reasons": reasons, "prompts": prompts, "tokens": tokens,
        "settings": [setting.record() for setting in found],
    } | about  # fmt: skip
    show(console, result)
    return result


def varied(count: int) -> list[str]:
    """So many prompts: all of the package's, then all of them in another wording, and so on."""
    known = [text for texts in load().values() for text in texts]
    if not 1 <= count <= len(known) * len(VARIATIONS):
        raise UsageError(f"prompts = {count} is not allowed: 1 to {len(known) * len(VARIATIONS)}")
    return [VARIATIONS[i // len(known)].replace("{}", known[i % len(known)]) for i in range(count)]


class _Work:
    """The texts of one open engine."""

    def __init__(self, engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        self.engine, self.prompts, self.tokens = engine, prompts, tokens
        self.tie = 0.0 if getattr(engine, "format", "").startswith(("int8", "int4")) else TIE

    def decode(self, grammar: str, batch: int, speculate: bool, done: Callable[[int], None]) -> list[Completion]:
        """Greedy texts of all prompts, `batch` at a time."""
        sampling = SamplingParams(max_tokens=self.tokens)
        found: dict[str, Completion] = {}
        for start in range(0, len(self.prompts), batch):
            requests = [
                Request(prompt=ids, id=f"{start + i}", sampling=sampling, grammar=GRAMMARS[grammar], speculate=speculate)
                for i, ids in enumerate(self.prompts[start : start + batch])
            ]
            for event in self.engine.generate(requests):
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Done):
                    assert isinstance(event.result, Completion)
                    found[event.request_id] = event.result
            done(len(requests))
        return [found[str(i)] for i in range(len(self.prompts))]

    def compare(self, setting: Setting, plain: Sequence[Completion], answers: Sequence[Completion]) -> None:
        """Count the answers of a setting."""
        for number, (expected, found) in enumerate(zip(plain, answers, strict=True)):
            usage = found.usage
            setting.texts += 1
            setting.tokens += len(found.token_ids)
            setting.notes += found.notes
            setting.counts.update(
                passes=usage.steps, proposed=usage.proposed, accepted=usage.accepted,
                repaired=any(each.kind != "model" for each in found.incidents),
            )  # fmt: skip
            if found.token_ids == expected.token_ids:
                setting.equal += 1
                continue
            place = self._place(number, expected.token_ids, found.token_ids)
            (setting.ties if 0 < self.tie >= place.nats else setting.differ).append(place)

    def _place(self, number: int, expected: Sequence[int], found: Sequence[int]) -> Place:
        pairs = zip(expected, found, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(found)))
        nats = gap(self.engine, self.prompts[number], found, expected)
        mine, other = (ids[at] if at < len(ids) else None for ids in (expected, found))
        return Place(number, at, mine, other, nats)


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)
