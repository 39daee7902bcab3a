"""Long texts: pieces that cover the text and cut no character, and values that become one by policy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import InputError, UsageError
from toolkit.jobs.chunk import chunks_of
from toolkit.jobs.merge import Merged, Piece, merge
from toolkit.jobs.pointer import fits, general, leaves, lookup, parts
from toolkit.jobs.spec import make_spec
from toolkit.text.tokenizer import ByteTokenizer


@given(st.text(alphabet="ab é東🙂", max_size=60), st.integers(8, 20), st.integers(0, 7))
def test_pieces_cover_the_text_in_order_and_cut_no_character(text: str, size: int, overlap: int) -> None:
    tokenizer = ByteTokenizer()
    found = chunks_of(text, tokenizer, size=size, overlap=overlap)
    assert (found[0].start, found[-1].end) == (0, len(text))
    for before, after in pairwise(found):
        assert before.start <= after.start <= before.end < after.end
    assert all(each.tokens <= size and len(tokenizer.encode(text[each.start : each.end])) <= size + 3 for each in found)
    if len(text.encode()) <= size:
        assert len(found) == 1


def test_ascii_pieces_are_exactly_so_many_tokens_apart() -> None:
    found = chunks_of("x" * 25, ByteTokenizer(), size=10, overlap=3)
    assert [(each.start, each.end) for each in found] == [(0, 10), (7, 17), (14, 24), (21, 25)]


def test_a_tokenizer_that_changes_texts_is_refused() -> None:
    class Lower(ByteTokenizer):
        def encode(self, text: str, *, control: bool = False) -> list[int]:
            return super().encode(text.replace(" ", ""))

    with pytest.raises(InputError, match="it cannot be cut between tokens"):
        chunks_of("a b " * 10, Lower(), size=8, overlap=0)


def merged(values: list[Any], policies: dict[str, Any], *, sure: list[dict[str, float]] | None = None) -> Merged:
    confidence = sure or [{} for _ in values]
    return merge([Piece(i, value, confidence[i]) for i, value in enumerate(values)], policies)


@pytest.mark.parametrize(
    ("policy", "values", "result", "piece"),
    [
        ("first", [None, "b", "a"], "b", 1),
        ("last", ["b", "a", ""], "a", 1),
        ("longest", ["a", "ccc", "bb"], "ccc", 1),
        ("vote", ["a", "b", "b"], "b", 2),
        ("min", [3, 1.5, 2], 1.5, 1),
        ("max", [3, 1, 2], 3, 0),
        ("max_confidence", ["a", "b", "c"], "c", 2),
        ("first", [None, None], None, 0),
        ("first", [["a"], ["b"]], ["a"], 0),
    ],
)
def test_a_declared_policy_decides(policy: str, values: list[Any], result: Any, piece: int) -> None:
    sure = [{"/f": 0.1 * index} for index in range(len(values))]
    found = merged([{"f": value} for value in values], {"/f": policy}, sure=sure)
    assert found.value == {"f": result}
    assert all(origin.piece == piece for origin in found.origins.values())


def test_without_a_policy_objects_merge_by_field_lists_by_union_and_the_rest_by_confidence() -> None:
    values = [{"a": "x", "l": [1, {"k": 1}]}, {"a": "y", "l": [{"k": 1}, 2], "b": True}]
    found = merged(values, {}, sure=[{"/a": 0.5}, {"/a": 0.9}])
    assert found.value == {"a": "y", "l": [1, {"k": 1}, 2], "b": True}
    origins = {path: (each.piece, each.pointer) for path, each in found.origins.items()}
    assert origins == {"/a": (1, "/a"), "/l/0": (0, "/l/0"), "/l/1/k": (0, "/l/1/k"), "/l/2": (1, "/l/1"), "/b": (1, "/b")}


def test_concat_keeps_what_union_drops() -> None:
    values = [{"l": [1, 1]}, {"l": [1, 2]}]
    assert merged(values, {"/l": "concat"}).value == {"l": [1, 1, 1, 2]}
    assert merged(values, {"/l": "union"}).value == {"l": [1, 2]}
    assert merged(values, {"*": "first"}).value == {"l": [1, 1]}


@pytest.mark.parametrize(("policy", "value"), [("min", "text"), ("max", True), ("union", "text"), ("concat", {"a": 1})])
def test_a_policy_that_cannot_be_followed_is_an_error_that_names_the_place(policy: Any, value: Any) -> None:
    with pytest.raises(InputError, match=f"merge policy {policy} at /f"):
        merged([{"f": value}, {"f": value}], {"/f": policy})


JSON = st.recursive(st.none() | st.integers(0, 3) | st.text("ab", max_size=2), lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from("xyz"), each, max_size=3), max_leaves=6)  # fmt: skip


@given(st.lists(JSON, min_size=1, max_size=4), st.sampled_from(["first", "last", "longest", "vote", "max_confidence", "union"]))
def test_every_leaf_of_a_merged_value_stands_where_its_origin_says(values: list[Any], policy: Any) -> None:
    found = merged(values, {"*": policy})
    below = [dict(leaves(value)) for value in values]
    assert found.origins.keys() == dict(leaves(found.value)).keys()
    for path, value in leaves(found.value):
        assert below[found.origins[path].piece][found.origins[path].pointer] == value


@given(st.lists(JSON, min_size=1, max_size=1))
def test_one_piece_merges_to_itself_but_for_items_that_come_twice(values: list[Any]) -> None:
    assert merged(values, {"*": "first"}).value == values[0]


@pytest.mark.parametrize(
    ("pattern", "pointer", "does"),
    [("*", "/a/b", True), ("/a/*", "/a/0", True), ("/a/*", "/a", False), ("/a/*", "/a/0/b", False), ("", "", True), ("/a", "/b", False)],
)  # fmt: skip
def test_patterns_mean_places(pattern: str, pointer: str, does: bool) -> None:
    assert fits(pattern, pointer) is does


def test_the_most_exact_pattern_wins() -> None:
    table = {"*": 1, "/a/*": 2, "/a/0": 3, "/*/0": 4}
    assert [lookup(table, each) for each in ("/b", "/a/1", "/a/0", "/b/0")] == [("*", 1), ("/a/*", 2), ("/a/0", 3), ("/*/0", 4)]
    assert lookup({"/a": 1}, "/b") is None
    assert general("/a/0/b/12") == "/a/*/b/*" and parts("/a~1b/~0") == ["a/b", "~"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chunk_tokens": 4}, "chunk_tokens"),
        ({"chunk_tokens": 10, "chunk_overlap": 10}, "chunk_overlap = 10"),
        ({"merge": {"/a": "first"}}, "it needs chunk_tokens"),
        ({"chunk_tokens": 10, "merge": {"/a": "best"}}, "merge"),
        ({"chunk_tokens": 10, "merge": {"a": "first"}}, "names the place 'a'"),
        ({"ground_free": ["a/b"]}, "names the place 'a/b'"),
        ({"review_below": {"/a": 1.5}}, "review_below"),
        ({"ground_distance": 0.9}, "ground_distance"),
    ],
)
def test_what_cannot_be_is_refused_with_the_option(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_spec({"schema": {}, **options})
