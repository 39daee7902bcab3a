"""Acceptance: is a drawn draft taken, and a refused one replaced, exactly as the rule says - given what was drafted there?

    child i      taken with probability min(1, p(x_i) / q_i(x_i)), else p <- norm(max(0, p - q_i))
    correction   drawn from what is left of p when all are refused

Frequencies of tokens say little about this: a verifier that uses one random number to refuse and again to correct shifts them by less
than any affordable test sees. Given the children every step has a known distribution:
    decisions, corrections    the place of an outcome in its distribution is a uniform number, the next one whatever came before
    reuse                     a bet that a correction knows the number of its refusal (or one minus it): a likelihood ratio a step,
                              whose product exceeds 1/alarm with a probability of at most alarm where it does not (Ville)
In: a candidate whose drafter draws and runs here: its trees are noted while they are proposed.   Out: JSON. Finding: a hold.
p is what the candidate reports, q what its drafter says: both are held to the truth elsewhere (greedy.py, toolkit/sample/accept.py).
Knows nothing about: drafters, the baseline.
Invariants: whether a pass counts is decided before its outcome. Source: 2211.17192, 2305.09781; the bound on the largest distance
of n uniform numbers from their law is Massart's (1990), for every n.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from toolkit.contracts import Completion, Request, SamplingParams
from toolkit.draft.contract import Budget, Commit, Drafter
from toolkit.draft.tree import EMPTY, ROOT, DraftTree
from toolkit.engine.admission import prompt_ids
from toolkit.gate.arm import Arm
from toolkit.gate.corpus import texts
from toolkit.gate.frequencies import ALARM
from toolkit.gate.report import Findings

PART = "sampled, acceptance"
SUPPORT = 8  # tokens that can be drawn: the likeliest, whose log-probabilities are reported
TEXTS = {"quick": 64, "full": 400}
TOKENS = 24
COUNTED = {"quick": 256, "full": 1024}  # numbers of each kind that are judged; fewer are filled up with our own
_KEPT = 0.05  # of every stake
FEW = 64  # numbers of a kind that say too little
WRONG = {
    "decisions": "drafts are not taken as often as target and draft say",
    "corrections": "what replaces a refused draft is not drawn from what is left of the target",
    "reuse": "what replaces a refused draft depends on the random number that refused it",
}

Probs = Mapping[int, float]


class Step(NamedTuple):
    """One pass of one text: what stood before it, what was drafted, what came."""

    before: tuple[int, ...]
    tree: DraftTree
    emitted: tuple[int, ...]


def check_acceptance(candidate: Arm, findings: Findings, *, tier: str, seed: int) -> dict[str, Any] | None:
    """None where the drafter does not draw or runs elsewhere."""
    source = getattr(candidate.engine, "parts", (None, None))[1]
    if source is None or not source.draw:
        return None
    sampling = SamplingParams(
        temperature=1.0, top_k=SUPPORT, logprobs=SUPPORT, max_tokens=TOKENS, ignore_eos=True, n=4, seed=seed * 1_000_003
    )
    dice = random.Random(f"acceptance/{seed}")
    prompt = prompt_ids([{"role": "user", "content": texts(1, dice)[0]}], candidate.engine.tokenizer)
    steps: list[Step] = []
    requests = [
        Request(prompt=prompt, sampling=replace(sampling, seed=seed * 1_000_003 + i)) for i in range(TEXTS[tier] // sampling.n)
    ]
    with noted(source, len(prompt), steps):
        answers = candidate.ask(PART, requests, together=1)
    if failed := next((each.error for each in answers if each.error is not None), None):
        findings.holds.append(f"{PART}: the candidate failed: {failed}")
        return None
    known = dict(item for each in answers for sample in each.samples for item in probabilities(sample))
    found = judge(steps, known, dice, TOKENS, COUNTED[tier])
    for kind, row in found.items():
        if row["p"] <= ALARM / len(found):
            findings.holds.append(f"{PART}: {WRONG[kind]} (p {row['p']:.1e}, {row['count']} seen)")
        elif row["count"] < FEW:
            findings.not_checkable.append(f"{PART}: {kind}: {row['count']} seen, too few to say anything, at least {FEW}")
    return {"alarm": ALARM, **found}


@contextmanager
def noted(source: Any, prompt: int, steps: list[Step]) -> Iterator[None]:
    """Within it every pass of the source's drafters leaves a step; `prompt`: tokens of the texts before the first generated one."""
    opened: Callable[[int], Drafter] = source.open
    source.open = lambda seed: Noted(opened(seed), prompt, steps)
    try:
        yield
    finally:
        del source.open


class Noted:
    """A drafter that notes what it is told about what it proposed."""

    def __init__(self, drafter: Drafter, prompt: int, steps: list[Step]) -> None:
        self._drafter, self._prompt, self._steps = drafter, prompt, steps
        self._text: list[int] = []
        self._tree = EMPTY

    def observe(self, commit: Commit) -> None:
        """What came of the last tree, then on to the drafter."""
        if self._tree:
            self._steps.append(Step(tuple(self._text[self._prompt :]), self._tree, commit.tokens))
        self._tree = EMPTY
        self._text += commit.tokens
        self._drafter.observe(commit)

    def propose(self, budget: Budget) -> DraftTree:
        """The drafter's tree."""
        self._tree = self._drafter.propose(budget)
        return self._tree

    def close(self) -> None:
        """Close the drafter."""
        self._drafter.close()


def probabilities(sample: Completion) -> Iterator[tuple[tuple[int, ...], Probs]]:
    """What could be drawn at each place of a text, by the text before it."""
    for place, row in enumerate(sample.logprobs):
        weights = {token: math.exp(logprob) for token, logprob in row.top[:SUPPORT]}
        whole = math.fsum(weights.values())
        yield sample.token_ids[:place], {token: weight / whole for token, weight in weights.items()}


def judge(
    steps: Sequence[Step], known: Mapping[tuple[int, ...], Probs], dice: random.Random, tokens: int, counted: int
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """p-values of all three kinds. `tokens`: length at which the texts end."""
    seen: dict[str, list[Any]] = {"decisions": [], "corrections": [], "reuse": []}
    for step in steps:
        if len(step.before) + step.tree.depth + 1 < tokens:  # else the text may end here, and be missing for what came
            for kind, number in _numbers(step, known, dice):
                seen[kind].append(number)
    bets = seen.pop("reuse")
    reuse = {"count": len(bets), "log_evidence": (log := _evidence(bets)), "p": math.exp(min(0.0, -log))}
    return {kind: _row(found, dice, counted) for kind, found in seen.items()} | {"reuse": reuse}


def _numbers(step: Step, known: Mapping[tuple[int, ...], Probs], dice: random.Random) -> Iterator[tuple[str, Any]]:
    """What the outcomes on the way down the tree say."""
    node, tree = ROOT, step.tree
    for depth, token in enumerate(step.emitted):
        children, p = tree.children.get(node, ()), known.get((*step.before, *step.emitted[:depth]))
        if tree.q is None or not children or p is None:
            return
        refused = 0.0  # the largest share that was not taken
        for child in children:
            drawn, q = tree.tokens[child], tree.q[child]
            share = min(1.0, p.get(drawn, 0.0) / float(q[drawn]))
            if 0.0 < share < 1.0:
                yield "decisions", share * dice.random() if drawn == token else share + (1 - share) * dice.random()
            if drawn == token:
                node = child
                break
            refused = max(refused, share)
            p = _left(p, {each: float(q[each]) for each in p})
        else:
            below, own = math.fsum(share for each, share in p.items() if each < token), p.get(token, 0.0)
            yield "corrections", below + own * dice.random() if own > 0.0 else 0.0  # what cannot be drawn: all at one end
            if own > 0.0 and refused < 1.0:
                yield "reuse", _bets(below, own, refused)
            return


def _left(p: Probs, q: Probs) -> Probs:
    rest = {token: max(0.0, share - q[token]) for token, share in p.items()}
    mass = math.fsum(rest.values())
    return {token: share / mass for token, share in rest.items()} if mass > 0 else p


def _bets(below: float, own: float, refused: float) -> tuple[float, float]:
    """Logs of how much likelier a token in [below, below + own) is than by the rule if it was drawn by a number above `refused`, or by
    one below 1 - `refused`. Some of the stake stays on the rule, and the expectation under it is 1."""
    above = max(0.0, below + own - max(below, refused))
    under = max(0.0, min(below + own, 1.0 - refused) - below)
    low, high = (math.log(_KEPT + (1.0 - _KEPT) * each / (own * (1.0 - refused))) for each in (above, under))
    return low, high


def _evidence(bets: Sequence[tuple[float, float]]) -> float:
    """Log of the mean of what both bets have come to."""
    sums = [math.fsum(column) for column in zip(*bets, strict=True)]
    return max(sums) + math.log(math.fsum(math.exp(each - max(sums)) for each in sums) / len(sums)) if sums else 0.0


def _row(found: Sequence[float], dice: random.Random, counted: int) -> dict[str, Any]:
    first = sorted([*found[:counted], *(dice.random() for _ in range(counted - len(found)))])
    away = max(max((i + 1) / counted - number, number - i / counted) for i, number in enumerate(first))
    return {"count": len(found), "distance": away, "p": min(1.0, 2 * math.exp(-2 * counted * away**2))}
