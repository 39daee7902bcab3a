"""Page: a report as one HTML file that loads nothing - verdict, reasons, canaries, settings, three plots as inline SVG.

In: a report.   Out: text of an HTML document.
Knows nothing about: engines.
Invariants: no script, no address, no font from elsewhere; whatever a model or a server wrote is escaped. Times stand in it after a PASS
only, as everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from toolkit.gate.plots import bars, points, steps
from toolkit.gate.report import Report

_COLOURS = {"PASS": "#1a7f37", "HOLD": "#b42318", "INCONCLUSIVE": "#8a6100"}
_HASH = re.compile(r"(?:server:)?[0-9a-f]{64}")
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c1e21;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%;font-size:.88rem}
td,th{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid #ddd;overflow-wrap:anywhere}
.mark{display:inline-block;padding:.1rem .7rem;border-radius:.3rem;color:#fff;font-weight:600}
.fail{color:#b42318;font-weight:600}.pass{color:#1a7f37}figure{margin:1rem 0}figcaption{font-size:.85rem;color:#555}
th{overflow-wrap:normal;vertical-align:bottom}tr.differs{background:#fff8e5}table.pair{table-layout:fixed}table.pair th:first-child{width:9rem}
td:first-child,td.pass,td.weak,td.fail,td.not{white-space:nowrap}svg{max-width:100%;height:auto}
"""


def page(report: Report) -> str:
    """The whole document."""
    told = report.to_json()
    parts = [
        f'<h1>Gate: <span class="mark" style="background:{_COLOURS[report.verdict]}">{report.verdict}</span></h1>',
        f"<p>tier {escape(report.tier)}, seed {report.seed}, {report.seconds:.0f} s</p>",
        _list("Reasons", report.reasons),
        _list("Not checkable, and no part of the verdict", report.not_checkable),
        _identity(told["identity"]),
        _canaries(report.canaries),
        _greedy(told["equivalence"].get("greedy", {})),
        _sampled(told["equivalence"].get("sampled", {})),
        _accounting(told["accounting"]),
        _latency(report),
    ]
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return f"{head}<title>Gate: {report.verdict}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"


def _list(title: str, lines: Sequence[str]) -> str:
    body = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>{escape(title)}</h2><ul>{body}</ul>" if lines else ""


def _table(
    head: Sequence[str], rows: Iterable[Sequence[object]], mark: int | None = None, *, differs: bool = False
) -> str:  # fmt: skip
    """`mark`: the column whose first word is its class. `differs`: rows whose last two cells are not the same are coloured."""

    def cell(place: int, value: object) -> str:
        text = escape(str(value))
        return f'<td class="{text.split()[0] if text else ""}">{text}</td>' if place == mark else f"<td>{text}</td>"

    top = "".join(f"<th>{escape(name)}</th>" for name in head)

    def line(row: Sequence[object]) -> str:
        kind = ' class="differs"' if differs and row[-1] != row[-2] else ""
        return f"<tr{kind}>{''.join(cell(i, value) for i, value in enumerate(row))}</tr>"

    body = "".join(map(line, rows))
    kind = ' class="pair"' if differs else ""
    return f"<table{kind}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _identity(told: Mapping[str, Any]) -> str:
    if not told:
        return ""
    one, two = told["baseline"], told["candidate"]
    rows = [(name, _shown(one.get(name)), _shown(two.get(name))) for name in dict.fromkeys((*one, *two))]
    rows = [row for row in rows if row[1] or row[2]]  # what neither tells has no row
    return f"<h2>Identity</h2>{_table(('', 'baseline', 'candidate'), rows, differs=True)}"


def _shown(value: object) -> str:
    """Plain words for a value of an identity; a hash by its beginning."""
    if isinstance(value, Mapping):
        return ", ".join(f"{str(name).removeprefix('speculative_')} {_shown(each)}" for name, each in value.items())
    text = "" if value is None else str(value)
    return f"{text[:16]}..." if _HASH.fullmatch(text) else text


def _canaries(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    body = [(row["name"], row["result"], row["why"], row["reason"]) for row in rows]
    return f"<h2>Canaries</h2>{_table(('canary', 'result', 'why', 'what it is there for'), body, mark=1)}"


def _greedy(told: Mapping[str, Any]) -> str:
    if not told:
        return ""
    rows = [
        (row["name"], row["texts"], row["tokens"], row["equal"], row["tie_count"], row["differ_count"], "; ".join(each["why"] for each in row["differ"][:1]))
        for row in told["settings"]
    ]  # fmt: skip
    places = [each["at"] for row in told["settings"] for each in row["differ"] if each.get("at") is not None]
    plot = steps(
        "share of texts that are still the baseline's, by token",
        places,
        sum(row["texts"] for row in told["settings"]),
        max((row["tokens"] // row["texts"] for row in told["settings"] if row["texts"]), default=1),
    )
    head = ("setting", "texts", "tokens", "equal", "ties", "differ", "first difference")
    return f"<h2>Greedy texts, tolerance {told['tolerance_nats']:g} nats</h2>{_table(head, rows)}{plot}"


def _sampled(told: Mapping[str, Any]) -> str:
    if not told:
        return ""
    rows = [
        (row["name"], row["texts"], row["tests"], f"{row['p']:.2g}", f"{row['control']['p']:.2g}", row["power"]["detects_at_0.5"], row["where"])
        for row in told["settings"]
    ]  # fmt: skip
    head = (
        "setting",
        "texts an arm",
        "tests",
        "corrected p",
        "p of the control",
        "shift of a share of 0.5 seen in 9 of 10",
        "where p is smallest",
    )
    return f"<h2>Sampled texts, false alarm rate {told['alarm']:g} a setting</h2>{_table(head, rows)}"


def _accounting(told: Mapping[str, Any]) -> str:
    if not told:
        return ""
    whole = told["candidate"]
    names = (
        "output_tokens",
        "steps",
        "verify_passes",
        "proposed",
        "accepted",
        "appended",
        "trimmed",
        "discarded",
        "tokens_per_pass",
    )
    rows = [(name, *(_rounded(each[name]) for each in (told["baseline"], whole))) for name in names]
    shares = [a / p if p else 0.0 for p, a in zip(whole["proposed_by_position"], whole["accepted_by_position"], strict=False)]
    plot = bars("share of drafts accepted, by position", shares) if shares else ""
    return f"<h2>Books</h2>{_table(('', 'baseline', 'candidate'), rows)}{plot}{_list('Flags', told['flags'])}"


def _rounded(value: object) -> object:
    return f"{value:.2f}" if isinstance(value, float) else "" if value is None else value


def _latency(report: Report) -> str:
    if report.verdict != "PASS" or not report.latency:
        return ""
    first = points("seconds to the first token, text by text", {name: each["ttft_s"] for name, each in report.latency.items()})
    rate = points("tokens a second after it", {name: each["decode_tok_s"] for name, each in report.latency.items()})
    return f"<h2>Latency of the greedy texts, one at a time; no benchmark</h2>{first}{rate}"
