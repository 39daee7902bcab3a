"""Errors: what can go wrong, as one tree.

    ToolkitError
    ├── UsageError          the caller asked for something that does not exist or cannot be          (exit 2)
    │   ├── UnsupportedError    known, but this engine / model / grammar engine cannot do it: refused by name
    │   ├── SchemaError         a schema, regex or grammar that cannot be compiled; carries path and keyword
    │   └── ContextError        the prompt does not fit the context or the block budget
    ├── InputError          a document, record, model file or model output that is malformed         (exit 1)
    │   ├── NoValidError        every hypothesis was refused by the validator; carries the reasons
    │   └── TruncatedError      a text that has to be valid was cut off before it could be
    ├── MissingExtraError   an optional dependency is absent; carries the exact install command      (exit 3)
    └── EngineError         the engine could not run or died                                         (exit 3)
        └── CancelledError      the request was cancelled by the caller

Every error names the thing, the value, what is allowed, and (`hint`) the next step.
Knows nothing about: who raises it.
"""

from __future__ import annotations

from typing import ClassVar

# as in the extra cpu: pip may take a newer one in a build for GPUs of several GB
CPU_PINS = {"embedded": " torch==2.13.0", "remote": " torch==2.13.0"}


class ToolkitError(Exception):
    """Base of every error of this package; `hint` is the next step, printed after the message."""

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(ToolkitError):
    """An option, name or value that is not allowed."""

    exit_code = 2


class UnsupportedError(UsageError):
    """A feature that exists but that this engine, model or grammar engine does not have."""


class SchemaError(UsageError):
    """A schema, regex or grammar that does not compile: `path` is a JSON pointer into it, `keyword` the culprit."""

    def __init__(self, message: str, *, path: str = "", keyword: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.keyword = keyword


class ContextError(UsageError):
    """A prompt longer than the context, or a request larger than the whole block budget."""


class InputError(ToolkitError):
    """Malformed data: a record, a file, a checkpoint, a model's output."""

    exit_code = 1


class NoValidError(InputError):
    """All hypotheses of a beam search were refused; `reasons` says why, one entry a hypothesis."""

    def __init__(self, message: str, *, reasons: tuple[str, ...] = (), texts: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reasons = reasons
        self.texts = texts


class TruncatedError(InputError):
    """A text that has to be valid was cut off, by max_tokens or by a cancellation, before it could be; `texts` are what there was."""

    def __init__(self, message: str, *, texts: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.texts = texts


class MissingExtraError(ToolkitError):
    """An optional dependency is not installed; the hint is the command that installs it on a laptop."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed", hint=f"pip install 'sgl-toolkit[{extra}]'{CPU_PINS.get(extra, '')}")


class EngineError(ToolkitError):
    """The engine could not be started, or failed while running."""


class CancelledError(EngineError):
    """The request was cancelled before it finished."""
