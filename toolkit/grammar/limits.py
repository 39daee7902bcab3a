"""Limits: what a grammar may cost before it is refused.

Knows nothing about: grammars. Invariant: no compile costs more CPU time than twice its `seconds` (what runs between two
looks at the clock is not cut), and no mask more than that.
Source: the counts are llguidance's own units and defaults; the speeds are those its documentation gives.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on a grammar's source and on the engine's work; each is an error, never a truncation."""

    seconds: float = 1.5  # of CPU time for one grammar: reading and checking it, and all attempts to compile, in both processes
    source_chars: int = 1024 * 1024
    multiple_of: int = 10_000  # digits of `multipleOf` as a whole number: the work grows with its square
    choices: int = 10_000
    lexer_fuel: int = 1_000_000  # building regexes: about 50,000 a millisecond
    step_fuel: int = 200_000  # regexes within one mask: about 14,000 a millisecond
    step_items: int = 50_000  # Earley items of one mask: about 20,000 a millisecond
    row_items: int = 2_000  # Earley items after one byte
    lexer_states: int = 250_000  # of 1 to 2 kB each
    grammar_size: int = 500_000  # symbols in productions


DEFAULT_LIMITS = Limits()
