"""Tools, calls and texts for every row of the table of formats; a new row needs nothing here."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from toolkit.validate.tools.events import Arguments, Content, Reasoning, ToolEvent, ToolResult
from toolkit.validate.tools.offered import ToolSet
from toolkit.validate.tools.stream import tool_stream
from toolkit.validate.tools.table import FORMATS, format_named

TOOLS = ToolSet(
    [
        {"name": "find_train", "parameters": {"properties": {"to": {"type": "string"}, "bike": {"type": "boolean"}}, "required": ["to"]}},
        {"type": "function", "function": {"name": "find_hotel", "parameters": {"properties": {"nights": {"type": "integer"}}, "required": ["nights"]}}},
        {"name": "note", "parameters": {"properties": {"text": {"type": "string"}, "n": {"type": "object"}}, "required": ["text"]}},
        {"name": "ping", "parameters": {"properties": {}}},
    ]
)  # fmt: skip
Call = tuple[str, dict[str, Any]]
CALLS: tuple[Call, ...] = (
    ("find_train", {"to": "São João 🙂", "bike": True}),
    ("note", {"text": 'a\n"b" {c} ]} \\ ', "n": {"m": [1.5, None, {}]}}),
    ("find_hotel", {"nights": -2}),
    ("ping", {}),
)


def clean_texts(name: str) -> list[str]:
    """Outputs that are as they should be."""
    written = format_named(name).write(*CALLS)
    one = format_named(name).write(CALLS[0])
    if format_named(name).whole:
        return [written, one]
    think = "<think>\nWhich </thin train? <tool_call> </think>\n\n"
    return [
        written,
        think + written + "\n",
        f"Let me look.\n{one}",
        f"{think}Só <b>hot</b> 🙂<|<[\n\n{one}\n {think}{one}",
        "No call at all. ",
        "",
    ]


def short_texts(name: str) -> list[str]:
    """Two calls, and a call after reasoning and text: what is tried in very many ways."""
    calls: list[Call] = [("find_train", {"to": "Évora"}), ("find_hotel", {"nights": 2})]
    format_ = format_named(name)
    return [format_.write(*calls), ("" if format_.whole else "<think>hm</think>") + format_.write(calls[0])]


def broken_texts(name: str, count: int, of: Sequence[str] = ()) -> list[str]:
    """Outputs with faults: cut, doubled, lost and foreign pieces; the seed is fixed."""
    random_ = random.Random(name)
    texts = []
    for _ in range(count):
        text = random_.choice([each for each in of or clean_texts(name) if each])
        at, to = sorted(random_.choices(range(len(text) + 1), k=2))
        to = min(to, at + 12)
        texts.append(
            random_.choice(
                [
                    text[:at],
                    text[:to] + text[at:],
                    text[:at] + text[to:],
                    text[:at] + random_.choice('{}"<>[],;\\\x00\ud800é') + text[at:],
                ]
            )
        )
    return texts


def encoded(text: str) -> bytes:
    """UTF-8, except that half a surrogate pair becomes bytes that are none."""
    return text.encode("utf-8", "surrogatepass")


def read(name: str, pieces: Iterable[bytes], **options: Any) -> tuple[list[ToolEvent], ToolResult]:
    """All events, neighbouring texts joined, and the result."""
    stream = tool_stream(name, options.pop("tools", TOOLS), **options)
    events: list[ToolEvent] = []
    for piece in pieces:
        events += stream.feed(piece)
    result = stream.close()
    return joined([*events, *result.last_events]), result


def joined(events: Sequence[ToolEvent]) -> list[ToolEvent]:
    found: list[ToolEvent] = []
    for each in events:
        last = found[-1] if found else None
        if isinstance(each, Content | Reasoning) and type(last) is type(each):
            found[-1] = type(each)(last.text + each.text)  # type: ignore[union-attr]
        elif isinstance(each, Arguments) and isinstance(last, Arguments) and last.index == each.index:
            found[-1] = Arguments(each.index, last.text + each.text)
        else:
            found.append(each)
    return found


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def random_cuts(random_: random.Random, length: int) -> list[int]:
    """Cuts from few to many: half of the partitions have at most three pieces, where most parsers fail."""
    most = random_.choice([1, 2, 2, 3, 6, 16])
    return sorted(random_.randrange(length + 1) for _ in range(random_.randint(1, most)))


NAMES = list(FORMATS)
