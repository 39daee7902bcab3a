"""Scale: from the measured cost of a record to machines, hours and power for a million and a billion of them.

In: seconds of one machine's time a record, machines, efficiency, price and power of a machine.   Out: one plain JSON object.
Knows nothing about: engines, clusters. Nothing is measured here: whoever asks has measured (docs/scale.md says how).
Invariants: records that failed cost as much as the others; the efficiency is what is left of a machine's time once records have to
be handed out and lines written, and is the caller's to measure; the one writer of a job is a bound of its own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from toolkit.contracts import Json, require

AMOUNTS = (1_000_000, 1_000_000_000)
DAY_S = 86_400.0
FLEETS = (1, 10, 100, 1000)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a record costs on one machine that has enough to do, and what that machine costs.

    seconds_per_record: seconds of the machine a record, many in flight (elapsed / records of a job). efficiency: share of it that is
    left with many machines, 0 to 1. writer_s: seconds of the one process that writes the lines, a record. price_per_hour: in any
    currency. watts: of the machine while it works. bytes_per_record: of a line on the disk.
    """

    seconds_per_record: float
    efficiency: float = 0.9
    writer_s: float = 0.0005
    price_per_hour: float = 0.0
    watts: float = 0.0
    bytes_per_record: float = 2000.0

    def __post_init__(self) -> None:
        require(0 < self.seconds_per_record < 1e9, "seconds_per_record", self.seconds_per_record, "a number > 0")
        require(0 < self.efficiency <= 1, "efficiency", self.efficiency, "a number in (0, 1]")
        for name in ("writer_s", "price_per_hour", "watts", "bytes_per_record"):
            require(0 <= getattr(self, name) < 1e12, name, getattr(self, name), "a number >= 0")


def scale(cost: Cost, *, days: float = 1.0) -> dict[str, Json]:
    """For each amount: machine hours, price, energy, bytes; the time with each number of machines; machines for `days`.

    A job has one writer, so it cannot be faster than writer_s a record whatever the number of machines: `jobs` says into how many
    jobs (shards of the input) the work must be cut for the fleet to be the bound.
    """
    require(0 < days < 1e6, "days", days, "a number > 0")
    return {"cost": asdict(cost), "days": days, "amounts": [_amount(cost, records, days) for records in AMOUNTS]}


def _amount(cost: Cost, records: int, days: float) -> dict[str, Json]:
    busy = records * cost.seconds_per_record / cost.efficiency
    machines = max(1, -int(-busy // (days * DAY_S)))
    return {
        "records": records,
        "machine_hours": busy / 3600,
        "price": busy / 3600 * cost.price_per_hour,
        "kwh": busy / 3600 * cost.watts / 1000,
        "output_bytes": records * cost.bytes_per_record,
        "fleets": [_fleet(cost, records, size, busy) for size in FLEETS],
        "wanted": _fleet(cost, records, machines, busy),
    }


def _fleet(cost: Cost, records: int, machines: int, busy: float) -> dict[str, Json]:
    decoding = busy / machines
    writing = records * cost.writer_s
    jobs = max(1, -int(-writing // decoding))
    return {"machines": machines, "hours": decoding / 3600, "hours_in_one_job": max(decoding, writing) / 3600, "jobs": jobs}
