"""Hiding: keys that SGLang takes as flags, kept out of whatever is shown or kept of its command and of its log.

SGLang 0.5.23 has no other way to be given a key, and prints its arguments when it starts.
In: a command, texts, pieces of lines.   Out: the same with `HIDDEN` in the place of every key.
Knows nothing about: processes, servers.
"""

from __future__ import annotations

from collections.abc import Sequence

SECRET_FLAGS = ("--api-key", "--admin-api-key", "--watermark-key", "--watermark-key-b")
HIDDEN = "***"


def secrets_of(command: Sequence[str]) -> tuple[str, ...]:
    """Values of the flags for keys, however they are abbreviated."""
    found = []
    for flag, following in zip(command, (*command[1:], ""), strict=False):
        name, given, value = flag.partition("=")
        if len(name) > len("--a") and any(each.startswith(name) for each in SECRET_FLAGS):
            found.append(value if given else following)
    return tuple(dict.fromkeys(each for each in found if each))


def hidden(text: str, secrets: Sequence[str]) -> str:
    """The text without the secrets, as they are or as Python writes them between quotes."""
    for written in _forms(secrets):
        text = text.replace(written, HIDDEN)
    return text


def _forms(secrets: Sequence[str]) -> list[str]:
    """The ways in which they are written, the longest first: one may be a part of another."""
    return sorted({form for each in secrets for form in (each, repr(each)[1:-1])}, key=len, reverse=True)


class Hider:
    """Hides secrets in a log that comes in pieces, one of which may end in the middle of a secret."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self._overlap = max(map(len, _forms(secrets)), default=1) - 1
        self._held = ""

    def feed(self, piece: str, *, ends: bool) -> str:
        """What may be shown now; `ends` says that the line does, and nothing is held back."""
        text = hidden(self._held + piece, self._secrets)
        shown = len(text) if ends else max(0, len(text) - self._overlap)
        self._held = text[shown:]
        return text[:shown]
