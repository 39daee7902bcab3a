"""TextFiles: the text side of a model folder, read once and checked.

In: a folder.   Out: tokenizer.json parsed, end tokens, chat template, padded vocabulary size, fingerprint.
Knows nothing about: how text is encoded.
Invariants: files are bounded in size; what is absent is absent, only ChatML is assumed, and only where its tokens exist.
Source: the files Hugging Face transformers writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import InputError
from toolkit.text.template import CHATML, ChatTemplate

_MOST_BYTES = 128 << 20
_MOST_VOCABULARY = 1 << 24
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Parsed JSON of the folder's files ({} where a file is absent) and the chat template's text."""

    folder: Path
    tokenizer: Mapping[str, Any]
    settings: Mapping[str, Any]  # tokenizer_config.json
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    template: str | None

    def eos_ids(self, id_of: Callable[[str], int | None]) -> tuple[int, ...]:
        """End tokens that any of the files names, as SGLang takes them together; generation_config.json first."""
        found: list[int] = []
        for data in (self.generation, self.config):
            value = data.get("eos_token_id")
            found += value if isinstance(value, list) else [] if value is None else [value]
        name = self.variables().get("eos_token")
        number = id_of(name) if name else None
        found += [] if number is None else [number]
        if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < _MOST_VOCABULARY for i in found):
            raise InputError(f"{self.folder}: eos_token_id = {str(found)[:80]} is not allowed: token ids")
        return tuple(dict.fromkeys(found))

    def variables(self) -> dict[str, str]:
        """Named tokens that templates may read."""
        values = {name: self.settings.get(name) for name in _NAMED}
        texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in values.items()}
        return {name: text for name, text in texts.items() if isinstance(text, str)}

    def chat_template(self, control: Mapping[str, int]) -> ChatTemplate | None:
        """The folder's template; without one ChatML where its control tokens exist, else None."""
        source = self.template
        if source is None and {"<|im_start|>", "<|im_end|>"} <= set(control):
            source = CHATML
        return None if source is None else ChatTemplate(source, control, self.variables())

    def padded_size(self, size: int) -> int:
        """Vocabulary size of the model, which may be padded beyond the tokenizer's."""
        value = self.config.get("vocab_size", size)
        if isinstance(value, int) and not isinstance(value, bool) and size <= value <= _MOST_VOCABULARY:
            return value
        raise InputError(f"{self.folder}: vocab_size = {str(value)[:40]} in config.json, but the tokenizer has {size} tokens")

    def fingerprint(self) -> str:
        """sha256 over everything that decides ids: tokenizer.json in canonical form, vocabulary order aside."""
        parts = {key: value for key, value in self.tokenizer.items() if key not in ("version", "truncation", "padding")}
        return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def read_text_files(folder: Path) -> TextFiles:
    """Read the folder. InputError where tokenizer.json is absent or a file is malformed."""
    if not (folder / "tokenizer.json").exists():
        raise InputError(f"{folder} has no tokenizer.json", hint="a model folder with a tokenizers-format tokenizer is needed")
    settings = _object(folder / "tokenizer_config.json")
    return TextFiles(
        folder=folder, tokenizer=_object(folder / "tokenizer.json"), settings=settings, config=_object(folder / "config.json"),
        generation=_object(folder / "generation_config.json"), template=_template(folder, settings.get("chat_template")),
    )  # fmt: skip


def _template(folder: Path, value: Any) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return _text(path)
    if isinstance(value, list):  # several by name; "default" is the one for plain chats
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    if value is None or isinstance(value, str):
        return value
    raise InputError(f"{folder / 'tokenizer_config.json'}: chat_template must be text or a list of named texts")


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path} is larger than {_MOST_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _object(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        data = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} must hold a JSON object, not {type(data).__name__}")
    return data
