"""What of a proposed tree is worth a row: against trying every path on a fresh matcher, and what a drafter has no right to propose."""

from __future__ import annotations

import random

import pytest
import torch

from toolkit.contracts import CompiledGrammar, Grammar, SamplingParams
from toolkit.draft.contract import Budget
from toolkit.draft.tree import EMPTY, ROOT, DraftTree, chain
from toolkit.engine.loops.prune import prune, vet
from toolkit.errors import EngineError, UsageError
from toolkit.grammar.compile import compile_grammar
from toolkit.text.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
END = TOKENIZER.eos_ids[0]
ENDS = frozenset(TOKENIZER.eos_ids)
V = TOKENIZER.vocab_size
GRAMMAR = compile_grammar(Grammar("regex", "(ab|ac|b)*c?"), TOKENIZER)


def some_tree(dice: random.Random) -> DraftTree:
    nodes: list[tuple[int, int]] = []  # parent, token
    for _ in range(dice.randint(1, 14)):
        node = dice.randrange(ROOT, len(nodes)), dice.choice([97, 98, 99, 100, END])
        if node not in nodes:
            nodes.append(node)
    return DraftTree(tuple(token for _, token in nodes), tuple(parent for parent, _ in nodes))


def can_be_taken(grammar: CompiledGrammar | None, before: list[int], path: list[int]) -> bool:
    """Token by token from the start, an end token last and only where the text may end."""
    if END in path[:-1]:
        return False
    if grammar is None:
        return True
    matcher = grammar.matcher()
    matcher.advance(before)
    for token in path:
        if token == END:
            return matcher.is_accepting
        try:
            matcher.advance([token])
        except UsageError:
            return False
    return True


@pytest.mark.parametrize("grammar", [None, GRAMMAR], ids=["free", "regex"])
@pytest.mark.parametrize("seed", range(60))
def test_exactly_the_nodes_that_could_be_taken_are_kept(grammar: CompiledGrammar | None, seed: int) -> None:
    dice = random.Random(seed)
    tree, before = some_tree(dice), dice.choice([[], [97], [97, 98], [98, 98]])
    matcher = grammar.matcher() if grammar is not None else None
    if matcher is not None:
        matcher.advance(before)
    found = prune(tree, matcher, ENDS)
    paths = [[tree.tokens[i] for i in path] for path in tree.paths]
    hoped = [path for path in paths if can_be_taken(grammar, before, path)]
    assert [[found.tokens[i] for i in path] for path in found.paths] == hoped
    if matcher is not None and grammar is not None:
        fresh = grammar.matcher()
        fresh.advance(before)
        assert [matcher.accepts([token]) for token in range(97, 101)] == [fresh.accepts([token]) for token in range(97, 101)]


def test_of_drawn_siblings_none_is_cut_alone_but_what_hangs_below_a_forbidden_one_is() -> None:
    """To be refused by the target is part of a draw: without it the residual would be another."""
    tokens, parent = (97, 100, 98, 99, 98), (ROOT, ROOT, 0, 1, ROOT)
    q = torch.zeros(5, V)
    for node in range(5):
        family = [i for i in range(node) if parent[i] == parent[node]]
        q[node, 97:101] = 1.0
        q[node, [tokens[i] for i in family]] = 0.0
        q[node] /= q[node].sum()
    found = prune(DraftTree(tokens, parent, q), GRAMMAR.matcher(), ENDS)
    assert (found.tokens, found.parent) == ((97, 100, 98, 98), (ROOT, ROOT, 0, ROOT))
    assert found.q is not None and torch.equal(found.q, q[[0, 1, 2, 4]])


def test_a_tree_that_loses_nothing_is_the_same_object() -> None:
    tree = chain([97, 98])
    assert prune(tree, GRAMMAR.matcher(), ENDS) is tree
    assert prune(EMPTY, GRAMMAR.matcher(), ENDS) is EMPTY


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (chain([V]), "vocabulary"),
        (chain([-1]), "vocabulary"),
        (chain([1, 2, 3]), "at most 4 in depth 2"),
        (DraftTree((1, 2, 3, 4, 5), (ROOT,) * 5), "at most 4 in depth 2"),
        (chain([1], torch.zeros(1, V)), "no distribution"),
        (chain([1], torch.full((1, V), torch.nan)), "no distribution"),
        (chain([1], torch.ones(1, 3) / 3), "one row"),
    ],
)
def test_what_a_drafter_has_no_right_to_propose_is_refused(tree: DraftTree, why: str) -> None:
    with pytest.raises(EngineError, match=why):
        vet(tree, Budget(4, 2, SamplingParams(temperature=1.0)), V)


def test_what_is_worth_its_rows_may_be_larger_than_the_rest_of_the_budget() -> None:
    wide = Budget(1, 1, SamplingParams(), reach=3, worth=len)
    assert len(vet(chain([1, 2, 3]), wide, V)) == 3
    with pytest.raises(EngineError, match="at most 3 in depth 3"):
        vet(chain([1, 2, 3, 4]), wide, V)
