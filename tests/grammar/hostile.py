"""Hostile: grammars whose compile has no end, or hardly one, and what each costs in a process of its own.

Run as a script it compiles each of them and prints, as JSON, name -> [refused?, seconds of CPU time of both processes].
Why a process of its own: in one that has run thousands of tests, their threads and the collector's walk over all that they left
count as well.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from toolkit.contracts import Grammar, GrammarKind
from toolkit.errors import SchemaError
from toolkit.grammar.compile import compile_grammar
from toolkit.grammar.limits import Limits
from toolkit.grammar.probe import PROBE
from toolkit.text.tokenizer import ByteTokenizer


def nested(depth: int) -> Any:
    """anyOf within anyOf, doubled at each of `depth` levels."""
    value: Any = {"type": "string"}
    for _ in range(depth):
        value = {"anyOf": [value, {"type": "array", "items": value}]}
    return value


SCHEMAS: dict[str, Any] = {
    "intersected patterns": {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(30)]},
    "product of anyOfs": {"allOf": [{"anyOf": [{"properties": {f"p{i}": {"const": j}}} for j in range(4)]} for i in range(9)]},
    "many multiples": {"allOf": [{"type": "integer", "multipleOf": n} for n in (9973, 9967, 9949)]},
    "doubled nesting": nested(11),
    "too many subschemas": {"anyOf": [{}] * 30_000},
    "many constants": {"anyOf": [{"const": i} for i in range(15_000)]},
    "many names": {"properties": {str(i): True for i in range(19_000)}},
    "many patterns": {"properties": {f"p{i}": {"pattern": f"^[a-z]{{{i}}}$"} for i in range(6_000)}},
    "many references": {"$defs": {f"d{i}": {"$id": f"http://x/{i}", "$ref": f"http://x/{i // 2}"} for i in range(6_000)}},
    "many values": {"enum": [[i] for i in range(130_000)]},
    "many objects": {"oneOf": [{"type": "object", "properties": {f"p{i}": {"const": i}}, "required": [f"p{i}"]} for i in range(6_000)]},
    "a fault among large definitions": {"$defs": {"x": {"enum": list(range(100_000))}}, "type": "object", "required": ["p299"], "properties": {f"p{i}": {"type": "object", "required": ["z"], "properties": {"z": {"enum": []}}} for i in range(300)}},
    "a fault among many keywords": {"type": "object", "properties": {"z": {"enum": []}}, "required": ["z"]} | {f"k{i}": 1 for i in range(70_000)},
}  # fmt: skip
TEXTS: dict[str, tuple[GrammarKind, str]] = {
    "choices": ("choices", json.dumps([""] * 250_000)),
    "lark rules": ("lark", "start: " + " | ".join(f"a{i}" for i in range(20_000)) + "".join(f'\na{i}: "{i}"' for i in range(20_000))),
    "gbnf brackets": ("lark", "root ::= " + "[" * 1_000_000),
    "regex stars": ("regex", "(a|b)*" * 150_000),
}  # fmt: skip


def grammar(name: str) -> Grammar:
    """A hostile grammar by its name."""
    return Grammar(*TEXTS[name]) if name in TEXTS else Grammar("json_schema", json.dumps(SCHEMAS[name]))


def cpu_seconds() -> float:
    """CPU time of this process and of the probe it holds or held: other work on the machine does not count."""
    times = os.times()
    child = PROBE._child
    if child is None or child.poll() is not None:
        return times.user + times.system + times.children_user + times.children_system
    user, system = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    ticks = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return times.user + times.system + times.children_user + times.children_system + ticks


def cost(name: str, limits: Limits) -> tuple[bool, float]:
    """(refused?, seconds) of one compile; the probe's start is not on its account."""
    PROBE.error_of('{"grammars":[{"json_schema":{"type":"null"}}]}', 5.0, {})
    source, started = grammar(name), cpu_seconds()
    try:
        compile_grammar(source, ByteTokenizer(), limits=limits)
    except SchemaError:
        return True, cpu_seconds() - started
    return False, cpu_seconds() - started


if __name__ == "__main__":
    most = Limits(seconds=float(sys.argv[1]))
    print(json.dumps({name: cost(name, most) for name in sys.argv[2:]}))
