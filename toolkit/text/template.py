"""ChatTemplate: a chat -> token ids, in the words of the model's own template.

In: messages, a Jinja template that came with the model, the control tokens.   Out: token ids.
Knows nothing about: vocabularies (it is given `encode`).
Invariants: the content of a message cannot forge a control token; without control strings in contents the ids are those of
the whole rendered string; a template from a stranger is bounded in time and size (see sandbox).
Source: the chat template convention of Hugging Face transformers (names, globals, whitespace rules).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolkit.contracts import Message
from toolkit.errors import InputError, UsageError
from toolkit.text.sandbox import Sandbox

ROLES = ("system", "user", "assistant", "tool")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_PRIVATE_USE = range(0xE000, 0xF900)


class ChatTemplate:
    """A compiled template. `control` maps control strings to ids; `variables` are names the template may read (bos_token)."""

    def __init__(self, source: str, control: Mapping[str, int], variables: Mapping[str, str]) -> None:
        self._template = Sandbox().compile(source)
        self._control = dict(control)
        self._variables = dict(variables)
        self._split = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True)))) if control else None

    def ids(self, messages: Sequence[Message], encode: Callable[[str], list[int]], *, generate: bool) -> list[int]:
        """Token ids; `encode` turns a piece of ordinary text into ids and knows no control tokens."""
        checked = [check_message(message, i) for i, message in enumerate(messages)]
        mark = _unused_mark(repr(checked))
        text = self._render([_each_text(message, lambda text: self._guard(text, mark)) for message in checked], generate)
        return join_ids(text, self._control, self._split, lambda piece: encode(piece.replace(mark, "")))

    def _render(self, messages: list[dict[str, Any]], generate: bool) -> str:
        if not messages:
            raise UsageError("messages = [] is not allowed: a chat has at least one message")
        return self._template.render({**self._variables, "messages": messages, "add_generation_prompt": generate})

    def _guard(self, text: str, mark: str) -> str:
        """`text` with `mark` inside every control string, and at an edge that could complete one with its neighbours."""
        if self._split is not None:
            text = self._split.sub(lambda found: found[0][0] + mark + found[0][1:], text)
        core = text.strip()
        if not core:
            return text
        start = len(text) - len(text.lstrip())
        before, after = text[:start], text[start + len(core) :]
        inner = any(core in word for word in self._control)
        if inner or any(core.startswith(word[i:]) for word in self._control for i in range(1, len(word))):
            core = mark + core
        if inner or any(core.endswith(word[:i]) for word in self._control for i in range(1, len(word))):
            core += mark
        return before + core + after


def check_message(message: Message, index: int) -> dict[str, Any]:
    """A plain copy of a message; UsageError for a role, InputError for a content that is not allowed."""
    if not isinstance(message, Mapping):
        raise InputError(f"messages[{index}] is {type(message).__name__}: an object with role and content is needed")
    if message.get("role") not in ROLES:
        raise UsageError(f"messages[{index}].role = {str(message.get('role'))[:80]!r} is not allowed: {', '.join(ROLES)}")
    if not isinstance(message.get("content"), str):
        raise InputError(f"messages[{index}].content is {type(message.get('content')).__name__}: a string is needed")
    return {key: _plain(value, f"messages[{index}].{key}", 16) for key, value in message.items()}


def join_ids(
    text: str, control: Mapping[str, int], split: re.Pattern[str] | None, encode: Callable[[str], list[int]]
) -> list[int]:
    """Ids of `text`: control strings become their ids, the pieces between them go through `encode`."""
    ids: list[int] = []
    at = 0
    for found in split.finditer(text) if split is not None else ():
        ids += [*(encode(text[at : found.start()]) if found.start() > at else ()), control[found[0]]]
        at = found.end()
    return ids + (encode(text[at:]) if at < len(text) else [])


def _plain(value: Any, where: str, depth: int) -> Any:
    """A copy made of JSON values only, so that a template never holds an object with behaviour."""
    if value is None or type(value) in (str, bool, int, float):
        return value
    if depth and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): _plain(item, where, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list | tuple):
        return [_plain(item, where, depth - 1) for item in value]
    raise InputError(f"{where} holds {type(value).__name__}: JSON values, at most 16 levels deep, are needed")


def _each_text(message: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, dict):
            return {change(key): walk(item) for key, item in value.items()}
        return [walk(item) for item in value] if isinstance(value, list) else value

    return {key: value if key == "role" else walk(value) for key, value in message.items()}


def _unused_mark(text: str) -> str:
    for code in _PRIVATE_USE:
        if chr(code) not in text and f"\\u{code:04x}" not in text:
            return chr(code)
    raise InputError("messages use every private-use character from U+E000 to U+F8FF: none is left to mark contents with")
