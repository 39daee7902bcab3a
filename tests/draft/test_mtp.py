"""MTP: the drafter against the plainest way to run a head; heads that do not fit are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.draft.heads import NORMS, plain_features, random_mtp
from tests.draft.sources import TARGETS, build
from toolkit.contracts import SamplingParams
from toolkit.draft.card import Card
from toolkit.draft.contract import Budget, Commit, Target
from toolkit.draft.mtp import MtpDrafter, MtpSource
from toolkit.draft.mtp_file import save_mtp
from toolkit.draft.mtp_head import MtpHead
from toolkit.draft.tree import DraftTree
from toolkit.errors import InputError, UnsupportedError
from toolkit.model.native.decoder import NativeDecoder

GREEDY = SamplingParams()


def opened(place: str, folder: Path, *, norms: Sequence[str] = (), **options: object) -> tuple[MtpSource, MtpHead, Target]:
    target = TARGETS[place]()
    head = random_mtp(target.decoder.config, target.vocab_size, seed=3, norms=norms)
    save_mtp(folder, head, Card(kind="mtp", base="base", fingerprint=target.fingerprint))
    return MtpSource(target, {"head": str(folder), **options}), head, target


def noise(count: int, width: int) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(7)) * 2


def best(target: Target, head: MtpHead, row: Tensor) -> int:
    """The likeliest token behind a feature."""
    return int(head.ids[(target.torch().head.weight[head.ids] @ row).argmax()])


@pytest.mark.parametrize("norms", [(), NORMS])
def test_a_chain_is_what_the_head_gives_when_everything_is_computed_again_for_every_token(
    tmp_path: Path, norms: Sequence[str]
) -> None:
    source, head, target = opened("torch", tmp_path, norms=norms, width=1, floor=0.0)
    text, rows = [5 * i % 250 for i in range(31)], noise(30, target.decoder.config.hidden_size)
    drafter = source.open(0)
    for first, last in ((0, 20), (20, 23), (23, 24), (24, 30)):  # tokens known when the next proposal is made
        drafter.observe(Commit(tuple(text[first and first + 1 : last + 1]), rows[first:last], first))
        tree = drafter.propose(Budget(4, 4, GREEDY))
        drafted: list[int] = []
        embedding = target.torch().embedding
        for _ in range(4):
            features = plain_features(head, embedding, text, rows[:last], 0, drafted)
            drafted.append(best(target, head, features[-1]))
        assert tree.is_chain and list(tree.tokens) == drafted
    drafter.close()


def test_every_path_of_a_tree_has_the_features_it_would_have_alone(tmp_path: Path) -> None:
    source, head, target = opened("torch", tmp_path, width=3, floor=0.0)
    text, rows = [3 * i % 250 for i in range(12)], noise(11, target.decoder.config.hidden_size)
    drafter = source.open(0)
    drafter.observe(Commit(tuple(text), rows, 0))
    tree = drafter.propose(Budget(20, 3, GREEDY))
    assert tree.depth == 3 and not tree.is_chain
    embedding, matrix = target.torch().embedding, target.torch().head.weight[head.ids]
    place = {int(token): i for i, token in enumerate(head.ids)}
    odds: dict[tuple[int, ...], float] = {(): 0.0}
    expected: set[tuple[int, ...]] = set()
    level: list[tuple[int, ...]] = [()]
    for _ in range(3):  # the likeliest paths, level by level, three children each, three expanded
        found = []
        for path in level:
            row = plain_features(head, embedding, text, rows, 0, path)[-1]
            share = torch.log_softmax(matrix @ row, -1)
            for token in head.ids[share.topk(3).indices].tolist():
                odds[(*path, token)] = odds[path] + float(share[place[token]])
                found.append((*path, token))
        expected.update(found)
        level = sorted(found, key=lambda path: -odds[path])[:3]
    paths = {tuple(tree.tokens[node] for node in path) for path in tree.paths}
    assert paths <= expected
    assert paths == set(sorted(expected, key=lambda path: -odds[path])[: len(paths)])
    drafter.close()


def test_the_native_head_guesses_as_its_torch_twin_does_within_its_rounding(tmp_path: Path) -> None:
    source, head, target = opened("native", tmp_path)
    assert isinstance(target.decoder, NativeDecoder)
    rows, tokens = noise(9, target.decoder.config.hidden_size), [11 * i % 250 for i in range(9)]
    runner = source.runner
    line = runner.line()
    line.reach(9)
    line.end = 9
    found = runner.rows(tokens, rows, range(9), line.rows(runner.store, 9))
    expected = plain_features(head, target.decoder.embed(torch.arange(264)), [0, *tokens], rows, 0, ())
    assert (found - expected).abs().max() < 0.03 * expected.abs().max()
    logits = runner.logits(found)
    plain = found @ target.decoder.head_rows(head.ids).T
    assert (logits - plain).abs().max() < 2e-3 * plain.abs().max()
    line.release()


def test_tokens_that_a_grammar_forced_are_places_the_head_drafts_through_and_forgets_again(tmp_path: Path) -> None:
    source, head, target = opened("torch", tmp_path, width=1, floor=0.0)
    text, rows = [7 * i % 250 for i in range(16)], noise(15, target.decoder.config.hidden_size)
    drafter = source.open(0)
    drafter.observe(Commit(tuple(text[:14]), rows[:10], 0))  # three tokens are forced: rows of 10 .. 12 are not known
    tree = drafter.propose(Budget(1, 1, GREEDY))
    features = plain_features(head, target.torch().embedding, text[:11], rows[:10], 0, text[11:14])
    assert tree.tokens == (best(target, head, features[-1]),)
    drafter.observe(Commit(tuple(text[14:]), rows[10:15], 10))
    again = drafter.propose(Budget(1, 1, GREEDY))
    known = plain_features(head, target.torch().embedding, text, rows, 0, ())
    assert again.tokens == (best(target, head, known[-1]),)
    drafter.close()


def test_places_without_a_row_are_absent_and_a_text_without_any_row_gets_no_guess(tmp_path: Path) -> None:
    source, head, target = opened("torch", tmp_path, width=1, floor=0.0)
    text, rows = [7 * i % 250 for i in range(16)], noise(15, target.decoder.config.hidden_size)
    drafter = source.open(0)
    drafter.observe(Commit(tuple(text[:3]), None))
    assert len(drafter.propose(Budget(4, 4, GREEDY))) == 0
    drafter.observe(Commit(tuple(text[3:]), rows[8:], 8))
    tree = drafter.propose(Budget(1, 1, GREEDY))
    features = plain_features(head, target.torch().embedding, text, rows[8:], 8, ())
    assert tree.tokens == (best(target, head, features[-1]),)
    drafter.close()


def test_a_draft_never_goes_beyond_the_targets_context(tmp_path: Path) -> None:
    source, _, target = opened("native", tmp_path, floor=0.0)
    context = target.decoder.config.context
    text = [i % 250 for i in range(context)]
    drafter: MtpDrafter = source.open(0)
    drafter.observe(Commit(tuple(text[: context - 2]), noise(context - 3, target.decoder.config.hidden_size), 0))
    assert drafter.propose(Budget(12, 8, GREEDY)).depth <= 3
    drafter.close()


def test_a_drawn_chain_has_the_heads_own_distribution_as_q(tmp_path: Path) -> None:
    source, head, target = opened("torch", tmp_path, width=1, floor=0.0, draw=True)
    text, rows = [7 * i % 250 for i in range(9)], noise(8, target.decoder.config.hidden_size)
    drafter = source.open(4)
    drafter.observe(Commit(tuple(text), rows, 0))
    tree: DraftTree = drafter.propose(Budget(3, 3, SamplingParams(temperature=0.7)))
    assert tree.q is not None
    for depth in range(3):
        row = plain_features(head, target.torch().embedding, text, rows, 0, tree.tokens[:depth])[-1]
        share = torch.softmax((target.torch().head.weight[head.ids] @ row).double() / 0.7, -1)
        assert torch.allclose(tree.q[depth, head.ids], share, rtol=0.05, atol=1e-4)
        assert float(tree.q[depth].sum()) == pytest.approx(1.0)
    drafter.close()


def test_a_head_of_another_base_is_refused_with_the_command_that_trains_one(tmp_path: Path) -> None:
    target = TARGETS["torch"]()
    head = random_mtp(target.decoder.config, target.vocab_size)
    save_mtp(tmp_path, head, Card(kind="mtp", base="other", fingerprint="f" * 64))
    with pytest.raises(UnsupportedError, match=r"was trained for 'other' \('ffffffffffff'\).*toolkit train mtp --base tiny"):
        build("mtp", target, {"head": str(tmp_path)})
    with pytest.raises(UnsupportedError, match=r"no 'mtp' head for tiny .*toolkit train data --base tiny"):
        MtpSource(target, {})
    with pytest.raises(UnsupportedError, match="holds a 'mtp' head, not a 'medusa' head"):
        build("medusa", target, {"head": str(tmp_path)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"o": torch.zeros(3, 3)}, r"o has shape \[3, 3\]"),
        ({"fc": torch.full((32, 64), torch.nan)}, "fc holds NaN"),
        ({"ids": torch.tensor([3, 3, 4], dtype=torch.int32)}, "ids are not distinct"),
        ({"ids": torch.tensor([3, 900], dtype=torch.int32)}, "ids are not distinct"),
        ({"ids": torch.zeros(0, dtype=torch.int32)}, "draft vocabulary of 0"),
        ({"more": torch.zeros(1)}, "has unknown tensors: more"),
        ({"qkv": None}, "lacks tensors: qkv"),
    ],
)
def test_a_damaged_head_is_refused_by_name(tmp_path: Path, change: dict[str, Tensor | None], words: str) -> None:
    from safetensors.torch import load_file, save_file

    target = TARGETS["torch"]()
    save_mtp(
        tmp_path, random_mtp(target.decoder.config, target.vocab_size),
        Card(kind="mtp", base="tiny", fingerprint=target.fingerprint),
    )  # fmt: skip
    path = tmp_path / "head.safetensors"
    tensors = {name: tensor for name, tensor in {**load_file(path), **change}.items() if tensor is not None}
    save_file(tensors, path)
    with pytest.raises(InputError, match=words):
        build("mtp", target, {"head": str(tmp_path)})
    path.write_bytes(b"no weights")
    with pytest.raises(InputError, match="not a readable safetensors file"):
        build("mtp", target, {"head": str(tmp_path)})


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"kind": 1}', '{"kind": "mtp", "base": "b", "fingerprint": "f", "version": 2}', "[" * 9999]
)
def test_a_card_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "card.json").write_text(text)
    with pytest.raises(InputError, match="is no card of a head"):
        build("mtp", TARGETS["torch"](), {"head": str(tmp_path)})
