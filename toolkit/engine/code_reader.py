"""Code reader: a block of code inside a text, held against its language's parser.

    text with a fence of three backticks -> what stands in the first one; without a fence -> the text itself

In: a Watch once, then bytes as they come, or a whole text.   Out: a Violation or None; a Report whose value is the code.
Knows nothing about: tokens, engines.
Invariants: code is parsed, never run; a refusal is sound: the first fence stays the first one, and once it is closed nothing that
follows can change what stands in it. JSON in a fence is read byte by byte; Python is judged where its fence closes, or at the end.
"""

from __future__ import annotations

import ast
import codecs
import warnings
from collections.abc import Callable

from toolkit.contracts import Report, Violation, Watch
from toolkit.engine.readers import Reader
from toolkit.errors import InputError
from toolkit.plugins import Table
from toolkit.schema import parse_json
from toolkit.validate.json_machine import JsonError
from toolkit.validate.json_stream import JsonStream
from toolkit.validate.shown import shown

MOST_CODE = 1 << 18  # characters of code that is parsed
_FENCE = "```"
CHECKERS = Table(
    "language",
    {"python": "toolkit.engine.code_reader:python_fault", "json": "toolkit.engine.code_reader:json_fault"},
)


class CodeKind:
    """Code in one language; what it means is not looked at."""

    def __init__(self, watch: Watch) -> None:
        self._language = watch.language
        self._fault: Callable[[str], str | None] = CHECKERS.load(watch.language)

    def report(self, text: str) -> Report:
        """The value is the code."""
        code = fenced(text)
        violation = self._violation(code)
        return Report(code, () if violation is None else (violation,))

    def reader(self) -> Reader:
        return _FenceReader(self._violation, JsonStream() if self._language == "json" else None)

    def _violation(self, code: str) -> Violation | None:
        if len(code) > MOST_CODE:
            return Violation("", "code", f"at most {MOST_CODE} characters", str(len(code)), "the code is too long")
        why = self._fault(code)
        return None if why is None else Violation("", "code", f"{self._language} that parses", shown(code), why)


class _FenceReader:
    """Looks for the first fence, then at what stands in it; `stream`, where there is one, reads that as it comes."""

    def __init__(self, judge: Callable[[str], Violation | None], stream: JsonStream | None) -> None:
        self._judge, self._stream = judge, stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""  # what is not yet known to be before, in or behind the fence
        self._code: list[str] = []
        self._step: Callable[[], Violation | None] = self._before

    def feed(self, data: bytes) -> Violation | None:
        self._text += self._decoder.decode(data)
        return self._step()

    @property
    def is_whole(self) -> bool:
        return self._step == self._behind

    def _before(self) -> Violation | None:
        _, fence, rest = self._text.partition(_FENCE)
        self._text = rest if fence else self._text[-2:]
        self._step = self._line if fence else self._before
        return self._step() if fence else None

    def _line(self) -> Violation | None:
        """The rest of the fence's own line: the language's name, or all of the code and the closing fence."""
        line, newline, rest = self._text.partition("\n")
        code, closed, _ = line.partition(_FENCE)
        if closed:
            return self._close(code)
        if not newline:
            return None
        self._text, self._step = rest, self._inside
        return self._inside()

    def _inside(self) -> Violation | None:
        code, closed, _ = self._text.partition(_FENCE)
        held = "" if closed else code[len(code.rstrip("`")) :]  # what may be the beginning of the closing fence
        self._code.append(code[: len(code) - len(held)])
        self._text = held
        refused = self._read(self._code[-1])
        return refused or (self._close("".join(self._code)) if closed else None)

    def _close(self, code: str) -> Violation | None:
        self._step = self._behind
        return self._judge(code)

    def _behind(self) -> Violation | None:
        self._text = ""
        return None

    def _read(self, code: str) -> Violation | None:
        try:
            if self._stream is not None:
                self._stream.feed(code.encode("utf-8", "surrogatepass"))
        except JsonError as error:
            return Violation("", "code", "json that parses", f"byte {error.offset} of the code", error.why)
        return None


def fenced(text: str) -> str:
    """What stands in the first fence, without the language behind it; the text itself where there is no fence."""
    _, fence, rest = text.partition(_FENCE)
    line, newline, below = rest.partition("\n")
    inside = line if _FENCE in line or not newline else below
    return inside.partition(_FENCE)[0] if fence else text


def python_fault(code: str) -> str | None:
    """Why a text is no Python, None where it is."""
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(code)
    except SyntaxError as error:
        return f"line {error.lineno or 1}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte; what is nested beyond the parser's limits
        return f"{type(error).__name__}: {error}"[:200]
    return None


def json_fault(code: str) -> str | None:
    """Why a text is no strict JSON, None where it is."""
    try:
        parse_json(code)
    except InputError as error:
        return error.message
    return None
