"""SNIPS: spoken requests whose slots are optional string fields (sonos/nlu-benchmark, CC0).

In: a folder of `<Intent>.train.jsonl` and `<Intent>.test.jsonl` (id, text, slots {name: [values]}).
Out: a Task: five shots out of .train, the utterances of .test, intents interleaved so that every limit covers all of them.
Knows nothing about: engines.
Judge: micro F1 over (slot, lower-cased value) pairs. A slot counts only if it is one of the `slots` most frequent of the
intent's training file (5, as in the probe this repeats); others are neither asked for nor missed.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from toolkit.bench.task import Counts, Item, Style, Task, few_shot
from toolkit.contracts import Json
from toolkit.errors import InputError

SHOTS = 5
MAX_VALUE = 80  # characters; the longest slot value of the data has 55
BOUNDS = f"slot values <= {MAX_VALUE} characters"


def load(folder: Path, *, style: Style = "chat", slots: int = 5, max_tokens: int = 128) -> Task:
    """Task over every intent of the folder. Raises InputError for a missing or malformed file."""
    trains = sorted(folder.glob("*.train.jsonl"))
    if not trains:
        raise InputError(f"{folder} holds no <Intent>.train.jsonl", hint="give the folder of the SNIPS data with --data")
    columns = [_intent(train, style, slots) for train in trains]
    depth = max(len(column) for column in columns)
    items = tuple(column[row] for row in range(depth) for column in columns if row < len(column))
    return Task(name="snips", style=style, items=items, judge=judge, max_tokens=max_tokens, bounds=BOUNDS)


def _intent(train: Path, style: Style, slots: int) -> list[Item]:
    known = _read(train)
    test = _read(train.with_name(train.name.replace(".train.", ".test.")))
    frequency = Counter(name for record in known for name in record["slots"])
    names = [name for name, _ in frequency.most_common(slots)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "maxLength": MAX_VALUE} for name in names},
        "required": [],
        "additionalProperties": False,
    }
    instruction = f"Extract these fields from the request as JSON, if they are there: {', '.join(names)}."
    shots = tuple((f"Request: {record['text']}", _answer(record, names)) for record in known[:SHOTS])
    items = []
    for record in test:
        gold = {(name, value.lower()) for name, values in record["slots"].items() if name in names for value in values}
        prompt = few_shot(instruction, shots, f"Request: {record['text']}", style, "Fields:")
        items.append(Item(record["id"], record["text"], prompt, schema, gold))
    return items


def _answer(record: dict[str, Any], names: list[str]) -> str:
    """The shot's slots in the schema's order, written as the grammar writes JSON."""
    value = {name: record["slots"][name][0] for name in names if name in record["slots"]}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def judge(gold: set[tuple[str, str]], value: Json) -> Counts:
    """Pairs of the answer against the annotated ones."""
    given = {(name, str(text).strip().lower()) for name, text in value.items()} if isinstance(value, dict) else set()
    return Counts(len(gold & given), len(given - gold), len(gold - given))


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        for record in records:
            if not all(isinstance(values, list) and values for values in record["slots"].values()):
                raise InputError(f"{path}: slots of {record['id']} are not lists of values")
            record["text"].lower()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path} is not a SNIPS file: {error!r}", hint="lines of {id, text, slots: {name: [values]}}"
        ) from error
    return records
