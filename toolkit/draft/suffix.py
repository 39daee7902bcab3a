"""SuffixAutomaton: every substring of a growing text, with how often each occurred and what followed it.

A state stands for the substrings that end at the same places; its link for the longest shorter suffix that ends at more of
them. So link(state of the whole text) is the longest suffix that occurred before, and its edges are what followed then.

    text  a b c a b      whole text = "abcab"  --link-->  "ab": ended at 2 places, an edge c
                                                --link-->  "": the root

In: tokens, one at a time; amortised constant work each, at most 2 states a token.   Out: states, walked by the caller.
Knows nothing about: drafts, probabilities, budgets.
Invariants: `count` and `last` of a state are exact while at most REACH states lie between it and the whole text at every
addition; beyond that (the same token over and over) the shortest suffixes are no longer brought up to date.
Source: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"; counts on the links are ours.
"""

from __future__ import annotations

from collections.abc import Iterable

REACH = 64  # states of an addition whose counts are brought up to date: bounds its work on texts like "aaaa"
ROOT_STATE = 0


class SuffixAutomaton:
    """States as parallel lists: `edges` {token: state}, `link`, `length` of the longest substring, `count`, `last` end place."""

    def __init__(self, text: Iterable[int] = ()) -> None:
        self.edges: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.count = [0]
        self.last = [-1]
        self.whole = ROOT_STATE  # the state of the whole text
        self.size = 0  # tokens
        for token in text:
            self.add(token)

    def __len__(self) -> int:
        """States."""
        return len(self.edges)

    def add(self, token: int) -> None:
        """The text grows by one token."""
        edges, link = self.edges, self.link
        state, new = self.whole, self._state({}, self.size + 1, 0)
        while state >= 0 and token not in edges[state]:
            edges[state][token] = new
            state = link[state]
        link[new] = self._suffix(state, token) if state >= 0 else ROOT_STATE
        self.whole = new
        seen = new
        for _ in range(REACH):
            if seen == ROOT_STATE:
                break
            self.count[seen] += 1
            self.last[seen] = self.size
            seen = link[seen]
        self.size += 1

    def _suffix(self, state: int, token: int) -> int:
        """The state of exactly the longest substring of `state`, then `token`: split off where the edge leads to longer ones."""
        target = self.edges[state][token]
        if self.length[target] == self.length[state] + 1:
            return target
        twin = self._state(dict(self.edges[target]), self.length[state] + 1, self.link[target])
        self.count[twin], self.last[twin] = self.count[target], self.last[target]
        self.link[target] = twin
        while state >= 0 and self.edges[state].get(token) == target:
            self.edges[state][token] = twin
            state = self.link[state]
        return twin

    def _state(self, edges: dict[int, int], length: int, link: int) -> int:
        self.edges.append(edges)
        self.length.append(length)
        self.link.append(link)
        self.count.append(0)
        self.last.append(-1)
        return len(self.edges) - 1
