"""Acceptance: the share of drafted tokens that were right, at each position behind those before it.

In: how many tokens of a draft were right.   Out: an estimate for a position, which leans on one from elsewhere while little was seen.
Knows nothing about: drafters, costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Acceptance:
    """Conditional acceptance by position, counts fading with `memory`."""

    memory: float
    tried: list[float] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)

    def learn(self, depth: int, accepted: int) -> None:
        """A draft of `depth` tokens of which the first `accepted` were right: position accepted + 1 was wrong, if there was one."""
        for counts in (self.tried, self.taken):
            counts += [0.0] * (depth - len(counts))
            counts[:] = [count * self.memory for count in counts]
        for position in range(min(depth, accepted + 1)):
            self.tried[position] += 1
            self.taken[position] += position < accepted

    def rate(self, position: int, prior: float, weight: float) -> float:
        """Estimate at a position (0 = first), leaning on `prior` as on `weight` observations."""
        if position >= len(self.tried):
            return prior
        return (self.taken[position] + weight * prior) / (self.tried[position] + weight)
