"""Faults: ways in which speculation breaks, planted on purpose into one engine. One module a fault, one row in FAULTS each.

A module has NAME, WHY (what broke where, in public), and `break_(engine)`: from then on that engine has the fault. Never on an engine
that is in use elsewhere. The canaries, laws and drills must catch each of them.
"""

from __future__ import annotations

from toolkit.plugins import Table

FAULTS = Table(
    "fault",
    {
        "token_dropped": "toolkit.gate.faults.token_dropped:break_",
        "token_duplicated": "toolkit.gate.faults.token_duplicated:break_",
        "tokens_swapped": "toolkit.gate.faults.tokens_swapped:break_",
        "tokens_fused": "toolkit.gate.faults.tokens_fused:break_",
        "stale_kv": "toolkit.gate.faults.stale_kv:break_",
        "stop_missed": "toolkit.gate.faults.stop_missed:break_",
        "brace_doubled": "toolkit.gate.faults.brace_doubled:break_",
        "utf8_cut": "toolkit.gate.faults.utf8_cut:break_",
    },
)
