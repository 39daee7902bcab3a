"""PassCosts: what a pass with M rows costs here and now: measured when an engine opens (calibrate.py), corrected by the passes in use.

    seconds = by rows + list_s x tokens in the caches of its lines + slot_s x tokens that its rows see

The last two are attention's: without them a pass of some rows behind a long prompt, not yet measured there, would seem cheaper than one of one row.
They are measured once, by differences; passes in use that leave less than their rows ever took show that they are too large, and they shrink.
In: rows, what they see and seconds, pass by pass.   Out: seconds for any number of rows behind what those of the last pass saw.
Knows nothing about: drafts, but how many of the last pass' rows were some, and whether a draft model ran before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

_WEIGHT = 0.1  # of the newest measurement
_MOST = 2.0  # times what is known that a measurement counts for at most
_STALE = 64  # passes
_LARGER = 3  # sizes, itself and the next ones, the least of which a size costs
_MATTERS = 0.2  # of a pass' time: attention that is said to take more is looked at
_BACK = 0.03  # weight of a pass that leaves more room for attention than was believed
_ROWS = 0.1  # of a pass' time: what its rows take at least, whatever attention is said to


class PassCosts:
    """Seconds of a pass by its number of rows: measured at some sizes, straight lines between them.

    One pass that was held up counts for at most _MOST times what was known. A size that was not measured for _STALE passes costs
    the least that it ever did, times what the sizes in use cost over their least: or else a busy hour would stay in it for ever.
    """

    def __init__(self, list_s: float = 0.0, slot_s: float = 0.0) -> None:
        self._list_s, self._slot_s = list_s, slot_s
        self._share = 1.0  # of what is said of attention: what passes in use leave room for
        self._listed = self._context = 0.0  # of the last pass: tokens in its lines' caches, and those that a row sees
        self._seconds: dict[int, float] = {}
        self._least: dict[int, float] = {}
        self._seen: dict[int, int] = {}  # at which pass a size was last measured
        self._sizes: list[int] = []  # rising
        self._passes = 0
        self.clock = 0  # passes in all, those that nothing is learned from as well
        self._load = 1.0  # seconds of what is measured now over the least of its size
        self._took_s, self._rows = 0.0, 0  # in all, as it was
        self._disturbed = False
        self.undrafted = 0  # rows of the last pass that were no drafts

    def learn(self, rows: int, seconds: float, *, drafted: int | None = None, listed: int = 0, seen: int = 0) -> None:
        """A pass of so many rows took so long; `drafted` of them were nodes of trees, None = nobody has looked.

        listed: tokens in the caches of all its lines. seen: for every row those of its line, summed.
        """
        self.undrafted = self.undrafted if drafted is None else rows - drafted
        self._listed, self._context = listed, seen / rows
        self._took_s += seconds
        self._rows += rows
        self._bound(rows, seconds)
        seconds = max(seconds - self._attention(rows), _ROWS * seconds)
        self._passes += 1
        self.clock += 1
        disturbed, self._disturbed = self._disturbed, False
        if disturbed and not drafted and rows in self._seconds:
            return
        inside = bool(self._sizes) and self._sizes[0] <= rows <= self._sizes[-1]
        known = self._by_rows(rows) if inside else seconds
        if rows not in self._seconds:
            insort(self._sizes, rows)
        counted = min(seconds, _MOST * known)
        found = known + _WEIGHT * (counted - known)
        self._seconds[rows], self._seen[rows] = found, self._passes
        self._least[rows] = min(found, self._least.get(rows, found))
        self._load += _WEIGHT * (counted / self._least[rows] - self._load)

    def __call__(self, rows: int) -> float:
        """Rows beyond the largest measured size cost as its average row. 1 a row while nothing is known."""
        return self._by_rows(rows) + self._attention(rows) if self._sizes else float(rows)

    def disturb(self) -> None:
        """A draft model has run since the last pass: what the next one takes, if it has no drafts, is not what it takes where none runs.

        Other weights lie in the processor's caches then; taken for the price of plain decoding, that would make drafts seem worth more than they are.
        """
        self._disturbed = True

    @property
    def so_far(self) -> tuple[float, int, int]:
        """Seconds, passes and rows, for `held_up`."""
        return self._took_s, self._passes, self._rows

    def held_up(self, before: tuple[float, int, int]) -> float:
        """How many times as long as now seems right the passes took that came since, 1 at least: others want this machine."""
        took_s, passes, rows = (now - then for now, then in zip(self.so_far, before, strict=True))
        return max(1.0, took_s / passes / self(max(1, round(rows / passes)))) if passes else 1.0

    def _attention(self, rows: int) -> float:
        return self._share * self._said(rows)

    def _said(self, rows: int) -> float:
        """Attention as it was measured when the engine opened."""
        return self._list_s * self._listed + self._slot_s * self._context * rows

    def _bound(self, rows: int, seconds: float) -> None:
        """Attention takes at most what is left of a pass beside the least that so many rows, or fewer, ever took.

        A pass in a good moment leaves too little: the share comes back as others leave more.
        """
        said, place = self._said(rows), bisect_right(self._sizes, rows)
        if place and said > _MATTERS * seconds:
            allowed = min(1.0, max(0.0, seconds - self._least[self._sizes[place - 1]]) / said)
            self._share = min(allowed, self._share + _BACK * (allowed - self._share))

    def _by_rows(self, rows: int) -> float:
        sizes = self._sizes
        place = bisect_left(sizes, rows)
        if place == len(sizes):
            return self._of(place - 1) * rows / sizes[-1]
        if place == 0 or sizes[place] == rows:
            return self._of(place)
        low, high = sizes[place - 1], sizes[place]
        share = (rows - low) / (high - low)
        return self._of(place - 1) * (1 - share) + self._of(place) * share

    def _of(self, place: int) -> float:
        """Seconds of the size at a place, at most those of the next larger ones: a rare size was perhaps measured in a bad moment."""
        return min([self._alone(size) for size in self._sizes[place : place + _LARGER]])

    def _alone(self, size: int) -> float:
        is_fresh = self._passes - self._seen[size] < _STALE
        return self._seconds[size] if is_fresh else self._least[size] * self._load
