"""Prompts: the messages or text that a record becomes.

In: a JobSpec, a record's text, id and fields, its schema.   Out: a contracts.Prompt.
Knows nothing about: files, engines, grammars.
Invariants: system text and examples come first and are the same for every record that shares a schema, so the engine computes
them once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from toolkit.contracts import Json, Message, Prompt
from toolkit.errors import InputError
from toolkit.jobs.spec import JobSpec
from toolkit.jobs.template import EXTRA_NAMES, Template
from toolkit.results import json_text


def field_text(row: Mapping[str, Json], name: str) -> str:
    """A record's field as text; InputError where it is absent or not a string, number or truth value."""
    if name not in row:
        raise InputError(f"field {name!r} is missing: the record has {', '.join(sorted(row)) or 'none'}")
    value = row[name]
    if not isinstance(value, str | int | float):
        raise InputError(f"field {name!r} is a {type(value).__name__}: a prompt takes strings, numbers and truth values")
    return value if isinstance(value, str) else json.dumps(value)


class PromptMaker:
    """Turns records into prompts by one JobSpec."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._system = Template(spec.system, allowed=("schema",), what="system")
        self._turn = Template(spec.prompt, allowed=(*EXTRA_NAMES, *spec.fields), what="prompt")

    def __call__(self, *, text: str, record_id: str, row: Mapping[str, Json], schema: Json) -> Prompt:
        """The prompt of one record; InputError where a declared field is missing."""
        shown = json_text(schema)
        fields = {name: field_text(row, name) for name in self._spec.fields}
        system = self._system.render({"schema": shown})
        turns = [(self._example(number, shown), json_text(item.value)) for number, item in enumerate(self._spec.examples)]
        last = self._turn.render({**fields, "text": text, "id": record_id, "schema": shown})
        return _chat(system, turns, last) if self._spec.style == "chat" else _raw(system, turns, last)

    def _example(self, number: int, shown: str) -> str:
        item = self._spec.examples[number]
        own = shown if item.schema_ is None else json_text(item.schema_)
        return self._turn.render({**item.fields, "text": item.text, "id": f"example-{number + 1}", "schema": own})


def _chat(system: str, turns: Sequence[tuple[str, str]], last: str) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for asked, answered in turns:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return [*messages, {"role": "user", "content": last}]


def _raw(system: str, turns: Sequence[tuple[str, str]], last: str) -> str:
    parts = [system] if system else []
    return "\n\n".join([*parts, *(asked + answered for asked, answered in turns), last])
