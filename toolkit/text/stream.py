"""TextStream: token ids one at a time -> text that is safe to show.

In: token ids of one sample.   Out: pieces of text, whole characters only, nothing that may still become a stop string.
Knows nothing about: how tokens were chosen, grammars, ids that stop.
Invariants: outputs + flush == decode(ids) cut at the first stop string, for every way of cutting the text into tokens. The
first stop string is the one that is complete first; of those complete at the same character, the longest.
Source: Knuth-Morris-Pratt string matching, one automaton a stop string; Python's incremental UTF-8 decoder.
"""

from __future__ import annotations

import codecs

from toolkit.contracts import Tokenizer


class TextStream:
    """Feeds on token ids; `matched` is the stop string that ended the text, `text` all of it before that stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._failure = [_failure(word) for word in stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._states = [0] * len(stop)  # longest prefix of each stop string that the text ends with
        self._shown = ""
        self._held = ""
        self.matched: str | None = None

    @property
    def text(self) -> str:
        """Whole characters so far, those held back included; it ends before a matched stop string."""
        return self._shown + self._held

    def feed(self, token_id: int) -> str:
        """New text to show after one more token; "" once a stop string has matched."""
        return self._take(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def flush(self) -> str:
        """The rest, when no more tokens come: what was held back, U+FFFD for an incomplete character."""
        new = self._take(self._decoder.decode(b"", True))
        rest, self._held = self._held, ""
        self._shown += rest
        return new + rest

    def _take(self, new: str) -> str:
        if self.matched is not None or not new:
            return ""
        end, self.matched = self._advance(new)
        text = self._held + new[:end]
        cut = len(text) - (len(self.matched) if self.matched else max(self._states, default=0))
        shown = text[:cut]
        self._shown += shown
        self._held = "" if self.matched else text[cut:]
        return shown

    def _advance(self, new: str) -> tuple[int, str | None]:
        """Move every automaton along `new`: (index after the character that completed a stop string, that stop string)."""
        for index, char in enumerate(new) if self._stop else ():
            complete = [word for i, word in enumerate(self._stop) if self._step(i, word, char) == len(word)]
            if complete:
                return index + 1, max(complete, key=len)
        return len(new), None

    def _step(self, i: int, word: str, char: str) -> int:
        state, failure = self._states[i], self._failure[i]
        while state and word[state] != char:
            state = failure[state - 1]
        self._states[i] = state + (word[state] == char)
        return self._states[i]


def _failure(word: str) -> list[int]:
    """For every prefix of `word`, the length of its longest proper prefix that is also its suffix."""
    table, length = [0] * len(word), 0
    for i in range(1, len(word)):
        while length and word[i] != word[length]:
            length = table[length - 1]
        length += word[i] == word[length]
        table[i] = length
    return table
