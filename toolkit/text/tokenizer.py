"""Tokenizers: HFTokenizer (tokenizer.json of a model folder) and ByteTokenizer (no files, for tests and tiny models).

In: text or a chat.   Out: token ids, and back.
Knows nothing about: models, grammars.
Invariants: byte-level, so that token_bytes concatenate to the bytes of the text; text given without `control` never becomes a
control token; ids without a token (padding of the vocabulary) are control ids.
Source: GPT-2's byte map; tokenizer.json of the tokenizers library; departures: tokenizers that are not byte-level, and control
tokens that swallow blanks, are refused by name.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.contracts import Message
from toolkit.errors import InputError, UnsupportedError, UsageError
from toolkit.text.folder import TextFiles, read_text_files
from toolkit.text.template import ChatTemplate, join_ids


class ByteLevelTokenizer(ABC):
    """What both tokenizers share: a table of token bytes, control tokens, a chat template. Implements contracts.Tokenizer."""

    def __init__(
        self, table: Sequence[bytes], control: Mapping[str, int], hidden_ids: Iterable[int], eos_ids: Sequence[int],
        template: ChatTemplate | None, fingerprint: str,
    ) -> None:  # fmt: skip
        self.vocab_size = len(table)
        self.eos_ids = tuple(eos_ids)
        self.control_ids = frozenset(hidden_ids) | frozenset(control.values())
        self.fingerprint = fingerprint
        self._table = tuple(table)
        self._absent = bytes(set(range(256)) - {token[0] for token in table if len(token) == 1})
        self._control = dict(control)
        self._template = template
        self._split = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True)))) if control else None

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """Ids of `text`, nothing added; control strings in it are ordinary text unless `control`.

        InputError for a character of which the vocabulary lacks a byte (SmolLM2 lacks U+0004, say): nothing is dropped.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"text holds a lone surrogate at character {error.start}: it is no Unicode text") from error
        if len(data.translate(None, self._absent)) != len(data):
            where = next(i for i, char in enumerate(text) if not set(char.encode()).isdisjoint(self._absent))
            raise InputError(
                f"text holds {text[where]!r} at character {where}, which the vocabulary of this model cannot express",
                hint="remove or replace it",
            )
        return join_ids(text, self._control, self._split, self._plain) if control else self._plain(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`, control tokens left out, U+FFFD for bytes that are no UTF-8."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of a token, b"" for control ids; UsageError for an id outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            raise UsageError(f"token id {token_id} is not allowed: 0 to {self.vocab_size - 1}")
        return self._table[token_id]

    def chat(self, messages: Sequence[Message], *, generate: bool = True) -> list[int]:
        """Ids of a chat in the model's template, with `generate` opened for the assistant. Contents forge nothing."""
        if self._template is None:
            raise UsageError("this model has no chat template", hint="give the prompt as text or as token ids")
        return self._template.ids(messages, self.encode, generate=generate)

    @abstractmethod
    def _plain(self, text: str) -> list[int]:
        """Ids of ordinary text."""


class HFTokenizer(ByteLevelTokenizer):
    """A byte-level BPE tokenizer of a model folder; `load_tokenizer` makes it."""

    def __init__(self, backend: Any, files: TextFiles) -> None:
        backend.encode_special_tokens = True  # control strings in text stay text
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        table, control, hidden = _tables(backend, files)
        eos = files.eos_ids(backend.token_to_id)
        template = files.chat_template(control)
        super().__init__(table, control, hidden, eos, template, files.fingerprint())

    def _plain(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        if not self.control_ids.isdisjoint(ids):  # a control token that the merges can reach by themselves
            found = next(i for i in ids if i in self.control_ids)
            raise InputError(f"ordinary text becomes control token {found} in this tokenizer: it cannot be kept apart")
        return ids


class ByteTokenizer(ByteLevelTokenizer):
    """Ids 0-255 are the bytes; 256 <|end|> (ends a turn and the text), 257-260 open a turn. V = 261, not padded."""

    CONTROL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
    TEMPLATE = (
        "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )

    def __init__(self) -> None:
        control = {name: 256 + i for i, name in enumerate(self.CONTROL)}
        table = [bytes([i]) for i in range(256)] + [b""] * len(control)
        template = ChatTemplate(self.TEMPLATE, control, {})
        stamp = hashlib.sha256(repr(("bytes", self.CONTROL, self.TEMPLATE)).encode()).hexdigest()
        super().__init__(table, control, (), (256,), template, stamp)

    def _plain(self, text: str) -> list[int]:
        return list(text.encode())


def load_tokenizer(folder: Path | str) -> HFTokenizer:
    """Tokenizer of a model folder. InputError for damaged files, UnsupportedError for a tokenizer that is not byte-level."""
    from tokenizers import Tokenizer as Backend

    files = read_text_files(Path(folder))
    _check_kind(files.tokenizer, files.folder)
    try:
        backend = Backend.from_str(json.dumps(files.tokenizer))
    except BaseException as error:  # the library panics on some malformed files, and its panics are no Exceptions
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise InputError(f"{files.folder / 'tokenizer.json'} cannot be read: {error}") from error
        raise
    return HFTokenizer(backend, files)


def _check_kind(data: Mapping[str, Any], folder: Path) -> None:
    model, decoder = data.get("model"), data.get("decoder")
    kinds = [part.get("type") if isinstance(part, dict) else None for part in (model, decoder)]
    if kinds != ["BPE", "ByteLevel"] or (isinstance(model, dict) and model.get("byte_fallback")):
        raise UnsupportedError(
            f"{folder / 'tokenizer.json'}: model {str(kinds[0])[:40]} with decoder {str(kinds[1])[:40]} is not implemented: "
            "known is byte-level BPE (model BPE, decoder ByteLevel)"
        )


def byte_map() -> dict[str, int]:
    """GPT-2's map from the character that stands for a byte in a vocabulary to that byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _tables(backend: Any, files: TextFiles) -> tuple[list[bytes], dict[str, int], list[int]]:
    """(bytes of every id, control string -> id, ids that stand for nothing)."""
    added = backend.get_added_tokens_decoder()
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    size = max([*vocabulary.values(), *added], default=-1) + 1
    size = max(size, files.padded_size(size))
    table, known, characters = [b""] * size, set(added), byte_map()
    for token, number in vocabulary.items():
        if number in added:
            continue
        known.add(number)
        try:
            table[number] = bytes(characters[char] for char in token)
        except KeyError as error:
            raise InputError(f"{files.folder}: token {number} {token!r} holds {error}, which stands for no byte") from error
    control = {}
    for number, token in added.items():
        if not token.special:
            table[number] = token.content.encode()
        elif token.lstrip or token.rstrip or token.single_word:
            raise UnsupportedError(f"{files.folder}: control token {token.content!r} swallows its neighbours: not implemented")
        else:
            control[token.content] = number
    return table, control, [number for number in range(size) if number not in known]
