from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.contracts import Tokenizer
from toolkit.text.stream import TextStream
from toolkit.text.tokenizer import ByteTokenizer


class Pieces:
    """A tokenizer whose tokens are any byte strings."""

    eos_ids, control_ids, fingerprint = (), frozenset[int](), ""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces, self.vocab_size = pieces, len(pieces)

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", errors="replace")

    encode = chat = None


def cut(text: str, stop: tuple[str, ...]) -> tuple[str, str | None]:
    """The obvious twin: grow the text a character at a time until it ends with a stop string."""
    for end in range(1, len(text) + 1):
        complete = [word for word in stop if text[:end].endswith(word)]
        if complete:
            word = max(complete, key=len)
            return text[: end - len(word)], word
    return text, None


def run(pieces: list[bytes], stop: tuple[str, ...]) -> tuple[list[str], TextStream]:
    tokenizer: Tokenizer = Pieces(pieces)  # type: ignore[assignment]
    stream = TextStream(tokenizer, stop)
    shown = [stream.feed(i) for i in range(len(pieces))]
    return [*shown, stream.flush()], stream


def splits(data: bytes) -> Iterable[list[bytes]]:
    for cuts in itertools.product((False, True), repeat=len(data) - 1):
        edges = [0, *(i + 1 for i, here in enumerate(cuts) if here), len(data)]
        yield [data[a:b] for a, b in itertools.pairwise(edges)]


CASES = [
    ("aaab!", ("aab",)),
    ("xaaabaab", ("aab", "aaab")),
    ("ab\nstop", ("stop",)),
    ("é😀e\u0301", ("😀",)),
    ("abcd", ("abcd", "bc")),
    ("abcbcd", ("bcd", "cd")),
    ("abab", ("abac",)),
    ("stop", ("stop", "st")),
    ("a</s", ("</s>",)),
]


@pytest.mark.parametrize(("text", "stop"), CASES)
def test_every_way_of_cutting_a_text_into_tokens_gives_the_same_text_and_stop(text: str, stop: tuple[str, ...]) -> None:
    expected = cut(text, stop)
    for pieces in splits(text.encode()):
        shown, stream = run(pieces, stop)
        assert ("".join(shown), stream.matched) == expected
        assert stream.text == expected[0]


@given(
    st.lists(st.binary(max_size=4), max_size=12),
    st.lists(st.text(alphabet="ab\u00e9\ufffd", min_size=1, max_size=3), max_size=3),
)
def test_any_bytes_and_any_stop_strings_agree_with_the_obvious_twin(pieces: list[bytes], stop: list[str]) -> None:
    shown, stream = run(pieces, tuple(stop))
    expected = cut(b"".join(pieces).decode("utf-8", errors="replace"), tuple(stop))
    assert ("".join(shown), stream.matched) == expected


@given(
    st.text(alphabet="ab<>", max_size=20), st.lists(st.text(alphabet="ab<>", min_size=1, max_size=4), min_size=1, max_size=3)
)
def test_nothing_shown_is_ever_taken_back(text: str, stop: list[str]) -> None:
    kept = cut(text, tuple(stop))[0]
    stream = TextStream(ByteTokenizer(), tuple(stop))
    shown = ""
    for byte in text.encode():
        shown += stream.feed(byte)
        assert kept.startswith(shown)


def test_text_is_shown_as_soon_as_it_cannot_become_a_stop_string() -> None:
    stream = TextStream(ByteTokenizer(), ("</end>",))
    assert [stream.feed(byte) for byte in b"a<b</x"] == ["a", "", "<b", "", "", "</x"]


def test_half_a_character_is_held_and_flush_replaces_it() -> None:
    stream = TextStream(ByteTokenizer())
    assert [stream.feed(byte) for byte in "😀".encode()] == ["", "", "", "😀"]
    assert stream.feed(0xF0) == ""
    assert stream.text == "😀"
    assert stream.flush() == "\ufffd"


def test_a_token_with_a_stop_string_in_its_middle_shows_only_what_comes_before() -> None:
    shown, stream = run([b"one STOP two"], ("STOP",))
    assert (shown, stream.matched, stream.text) == (["one ", ""], "STOP", "one ")


def test_after_a_match_nothing_more_is_shown() -> None:
    shown, stream = run([b"a.", b"b", b"c"], (".",))
    assert (shown, stream.text) == (["a", "", "", ""], "a")


def test_control_tokens_show_nothing() -> None:
    stream = TextStream(ByteTokenizer())
    assert [stream.feed(i) for i in (257, 104, 256)] == ["", "h", ""]
