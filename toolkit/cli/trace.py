"""Trace: what speculation did, for people - the text with its tokens marked, the tree of every pass, what it cost.

    [accepted]   drafted and right          ~corrected   drafted wrongly, the model's own token in its place
    +bonus       the model's own token behind a draft that was right throughout
    =forced      the grammar left no choice  unmarked    decoded without a draft

In: a Completion with its trace, a tokenizer.   Out: things for rich to print. Colours repeat what the marks say.
Knows nothing about: engines, commands.
Invariants: a token's text cannot move the cursor or end the line of a tree: control characters are shown by their code.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from toolkit.contracts import Completion, Json, PassTrace, Tokenizer
from toolkit.draft.tree import ROOT

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text
    from rich.tree import Tree

MARKS = {"accepted": ("[", "]"), "corrected": ("~", ""), "bonus": ("+", ""), "forced": ("=", ""), "plain": ("", "")}
STYLES = {"accepted": "green", "corrected": "red", "bonus": "cyan", "forced": "yellow", "plain": ""}
LEGEND = "[accepted] ~corrected +bonus =forced"
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")  # line feeds stay


def kinds(step: PassTrace) -> list[str]:
    """What each emitted token of a pass is: a key of MARKS."""
    accepted = len(step.accepted)
    place = step.accepted[-1] if accepted else ROOT
    own = "plain" if not step.tokens else "corrected" if place in step.parent else "bonus"
    found = ["accepted"] * accepted + [own] + ["forced"] * len(step.emitted)
    return found[: len(step.emitted)]


def marked(result: Completion, tokenizer: Tokenizer) -> Text:
    """The whole text, every run of tokens of one kind in its marks; a run ends with its pass."""
    from rich.text import Text

    texts = token_texts(result.token_ids, tokenizer)
    found = Text()
    for step in result.trace:
        for kind, run in groupby(kinds(step)):
            before, behind = MARKS[kind]
            shown = "".join(next(texts) for _ in run)
            found.append(f"{before}{visible(shown)}{behind}", style=STYLES[kind])
    return found


def token_texts(ids: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """The text of each token; one that ends inside a character has "", the one that completes it has it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in ids:
        yield decoder.decode(tokenizer.token_bytes(token))


def visible(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def trees(result: Completion, tokenizer: Tokenizer) -> Iterator[RenderableType]:
    """One tree a pass: what was drafted, which of it was right, what the model said where it was not."""
    from rich.text import Text

    for number, step in enumerate(result.trace, 1):
        if step.tokens:
            yield tree(number, step, tokenizer)
        else:
            yield Text(f"pass {number}, no draft: {' '.join(quoted(token, tokenizer) for token in step.emitted)}")


def tree(number: int, step: PassTrace, tokenizer: Tokenizer) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    taken = set(step.accepted)
    root = Tree(Text(f"pass {number}: {len(step.tokens)} drafted, {len(taken)} accepted, {len(step.emitted)} tokens"))
    branches = {ROOT: root}
    for node, (token, parent) in enumerate(zip(step.tokens, step.parent, strict=True)):
        label = Text(quoted(token, tokenizer), style=STYLES["accepted"] if node in taken else "dim")
        label.append(" accepted" if node in taken else "")
        branches[node] = branches[parent].add(label)
    end = branches[step.accepted[-1] if step.accepted else ROOT]
    for token, kind in list(zip(step.emitted, kinds(step), strict=True))[len(taken) :]:
        end.add(Text(f"{quoted(token, tokenizer)} {'' if kind == 'plain' else kind}".rstrip(), style=STYLES[kind]))
    return root


def quoted(token: int, tokenizer: Tokenizer) -> str:
    """A token as a string of JSON; one without text by its number."""
    text = tokenizer.decode([token])
    return visible(json.dumps(text, ensure_ascii=False)) if text else f"<{token}>"


def books(usage: dict[str, Json], found: dict[str, Json]) -> Iterator[tuple[str, str]]:
    """Rows (what, figure) of the accounting: `usage` is asdict(Usage), `found` accounting.summary."""
    yield "output tokens", f"{usage['output_tokens']} in {usage['steps']} passes"
    yield (
        "tokens a pass",
        f"{found['tokens_per_pass']:.3f} (expected from the acceptance: {found['expected_tokens_per_pass']:.3f})",
    )
    yield "accepted", f"{usage['accepted']} of {usage['proposed']} drafted ({100 * found['accepted_of_proposed']:.1f} %)"
    yield (
        "acceptance",
        f"{found['acceptance']:.3f} of the drafts that were reached; by position "
        + (" ".join(f"{share:.2f}" for share in found["acceptance_by_position"]) or "-"),
    )
    yield (
        "books",
        (
            f"{usage['output_tokens']} = {usage['steps']} steps + {usage['accepted']} accepted + {usage['appended']} forced behind them "
            f"- {usage['trimmed']} trimmed" + (f" (UNEXPLAINED: {left})" if (left := found["unexplained_tokens"]) else "")
        ),
    )
    if "draft_share_of_time" in found:
        yield (
            "drafter",
            f"{1e3 * found['draft_s']:.1f} ms, {100 * found['draft_share_of_time']:.1f} % of the time after the first token",
        )
    if "per_token" in found:
        yield from _work(found["per_token"])


def _work(found: dict[str, dict[str, float]]) -> Iterator[tuple[str, str]]:
    """Per committed token: without speculation -> with it."""
    for name, parts, unit, size in (
        ("arithmetic a token", ("target_flops", "draft_flops"), "MFLOP", 1e6),
        ("weights read a token", ("weight_bytes", "draft_weight_bytes"), "MB", 1e6),
        ("KV read a token", ("kv_bytes",), "MB", 1e6),
    ):
        before, after = (sum(found[way][part] for part in parts) / size for way in ("plain", "speculative"))
        drafted = found["speculative"][parts[-1]] / size if len(parts) > 1 else 0.0
        share = f", {drafted:.4g} of it the drafter's" if drafted else ""
        yield name, f"{before:.4g} {unit} plain -> {after:.4g} {unit} ({after / before if before else 0.0:.2f}x{share})"
