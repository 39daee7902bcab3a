"""Tools: this toolkit's tool-call parsers and those of the installed SGLang on the same random partitions of the same outputs.

In: how many partitions.   Out: rows - a format, the longest piece, how many partitions each parser got wrong.
Knows nothing about: models, engines, time.
Wrong is: other calls than the two of the text. Leaked is: text beside them, where there is none. SGLang's parser is only tried on
a text that it reads rightly when it is given as a whole, outside a stream (`read`).
Source: the texts are written as the models' chat templates do, two calls each. Partitions have pieces of 1 to `longest` characters,
cut anywhere; marks with full-width bars, which are single tokens of their models, stay whole.
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from toolkit.contracts import Json
from toolkit.validate.tools.offered import ToolSet
from toolkit.validate.tools.stream import tool_stream
from toolkit.validate.tools.table import FORMATS

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.lang.peer_parsers import PeerError, PeerTurn

SIZES = (1, 32, 48, 64, 1000)  # 1000: the whole output is one piece, or nearly
PARTITIONS = 300
SEED = 5
TOOLS = [
    {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
    {"name": "get_time", "parameters": {"type": "object", "properties": {"tz": {"type": "string"}}, "required": ["tz"]}},
]
_OFFERED = ToolSet(TOOLS)
CALLS = [("get_weather", {"city": "SF"}), ("get_time", {"tz": "UTC"})]


def _objects(member: str, between: str) -> str:
    return between.join(json.dumps({"name": name, member: arguments}) for name, arguments in CALLS)


def _each(template: Callable[[str, dict[str, str]], str], between: str) -> str:
    return between.join(template(name, arguments) for name, arguments in CALLS)


def _xml(name: str, arguments: dict[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def _glm(name: str, arguments: dict[str, str]) -> str:
    inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{inner}</tool_call>"


def _v3(name: str, arguments: dict[str, str]) -> str:
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```<｜tool▁call▁end｜>"


def _v31(name: str, arguments: dict[str, str]) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments)}<｜tool▁call▁end｜>"


_HERMES = _each(lambda name, arguments: f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>", "\n")
_QWEN = _each(lambda name, arguments: f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>", "\n")
# (our format, SGLang's parser, an output)
ARMS: tuple[tuple[str, str, str], ...] = (
    ("hermes", "hermes", _HERMES),
    ("hermes", "qwen25", _QWEN),
    ("llama3", "llama3", "<|python_tag|>" + _objects("parameters", ";")),
    ("mistral", "mistral", f"[TOOL_CALLS] [{_objects('arguments', ', ')}]"),
    ("qwen3_coder", "qwen3_coder", _each(_xml, "\n")),
    ("glm45", "glm45", _each(_glm, "\n")),
    ("glm45", "glm47", _each(_glm, "").replace("\n", "")),
    ("deepseek", "deepseekv3", f"<｜tool▁calls▁begin｜>{_each(_v3, chr(10))}<｜tool▁calls▁end｜>"),
    ("deepseek", "deepseekv31", f"<｜tool▁calls▁begin｜>{_each(_v31, '')}<｜tool▁calls▁end｜>"),
)


def partition(text: str, longest: int, random_: random.Random) -> list[str]:
    """`text` in pieces of 1 to `longest` characters, of more where a mark that stays whole is longer."""
    atoms = re.findall("<｜[^｜]*｜>|.", text, re.DOTALL)
    pieces, left = [""], random_.randint(1, longest)
    for atom in atoms:
        if left <= 0:
            pieces.append("")
            left = random_.randint(1, longest)
        pieces[-1] += atom
        left -= len(atom)
    return pieces


def ours(name: str, pieces: Sequence[str]) -> tuple[bool, bool]:
    """Whether this toolkit's parser gets the calls wrong, and whether it leaks."""
    stream = tool_stream(name, _OFFERED)
    for piece in pieces:
        stream.feed(piece.encode())
    result = stream.close()
    return not result.valid or [(each.name, each.arguments) for each in result.calls] != CALLS, bool(result.content)


def theirs(turn: PeerTurn | PeerError) -> tuple[bool, bool]:
    """The same of a turn that SGLang's parser read; an exception is wrong."""
    from toolkit.lang.peer_parsers import PeerTurn

    if not isinstance(turn, PeerTurn):
        return True, False
    try:
        calls = [(name, json.loads(arguments)) for name, arguments in turn.calls]
    except ValueError:
        calls = []
    return calls != CALLS, bool(turn.content.strip())


def rows(partitions: int = PARTITIONS, sizes: Sequence[int] = SIZES, seed: int = SEED) -> list[dict[str, Json]]:
    """One row an arm and size: {format, peer, longest, partitions, read, ours_wrong, ours_leaked, peer_wrong, peer_leaked}."""
    from toolkit.lang.peer_parsers import peer_parser, peer_whole

    found = []
    for name, peer, text in ARMS:
        read = peer_parser(peer, TOOLS)
        reads = not theirs(peer_whole(peer, TOOLS, text))[0]
        for longest in sizes:
            random_ = random.Random(f"{seed} {peer} {longest}")
            tried = [partition(text, longest, random_) for _ in range(partitions)]
            own, other = [ours(name, pieces) for pieces in tried], [theirs(read(pieces)) for pieces in tried]
            found.append(
                {
                    "format": name, "peer": peer, "longest": longest, "partitions": partitions, "read": reads,
                    "ours_wrong": sum(wrong for wrong, _ in own), "ours_leaked": sum(leaked for _, leaked in own),
                    "peer_wrong": sum(wrong for wrong, _ in other), "peer_leaked": sum(leaked for _, leaked in other),
                }
            )  # fmt: skip
    return found


def markdown(found: Sequence[dict[str, Json]], peer: str) -> str:
    """The rows as a table: partitions that came out wrong, ours and the peer's, and the peer's that leaked."""
    sizes = list(dict.fromkeys(row["longest"] for row in found))
    heads = ["single characters" if size == 1 else f"1 to {size}" for size in sizes]
    lines = [f"| format (SGLang's name) | {' | '.join(heads)} |", "|---" * (len(sizes) + 1) + "|"]
    for name in dict.fromkeys(row["peer"] for row in found):
        mine = [row for row in found if row["peer"] == name]
        own = mine[0]["format"]
        lines.append(f"| {own if own == name else f'{own} ({name})'} | {' | '.join(map(_cell, mine))} |")
    return "\n".join(
        [
            *lines, "",
            f"Of {found[0]['partitions']} random partitions into pieces of so many characters, those with wrong calls: this toolkit / "
            f"SGLang {peer}; in brackets those in which text beside the calls came out that is not there.",
        ]
    )  # fmt: skip


def _cell(row: dict[str, Json]) -> str:
    def shown(who: str) -> str:
        leaked = f" ({row[f'{who}_leaked']})" if row[f"{who}_leaked"] else ""
        return f"{row[f'{who}_wrong']}{leaked}"

    return f"{shown('ours')} / {shown('peer') if row['read'] else 'not read'}"


def run(*, partitions: int, console: Console) -> dict[str, Json]:
    """Print the table; the verdict is PASS where this toolkit's parsers got every partition right."""
    from toolkit.lang.peer_parsers import peer_version

    with _quiet("sglang.srt.function_call"):
        found = rows(partitions)
    console.print(markdown(found, peer_version()), markup=False, highlight=False)
    wrong = sum(row["ours_wrong"] + row["ours_leaked"] for row in found)
    not_compared = sorted(set(FORMATS) - {row["format"] for row in found})
    return {
        "verdict": "HOLD" if wrong else "PASS", "peer": f"sglang {peer_version()}", "not_compared": not_compared, "rows": found,
    }  # fmt: skip


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """A peer that logs every text that it cannot read would bury the table."""
    found = logging.getLogger(logger)
    level = found.level
    found.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        found.setLevel(level)
