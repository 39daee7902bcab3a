"""Formats: what `format` asserts about a string.

In: a format's name and a string.   Out: a checker for `jsonschema`, which knows the published formats of draft 2020-12.
Knows nothing about: schemas.
Invariants: every check is bounded in time; an unknown format asserts nothing, as the specification asks.
Source: JSON Schema validation 7.3; the library's checks, save `email` (it only looks for an @) and `regex` (it can crash).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from urllib.parse import quote

import jsonschema

from toolkit.schema import PatternError, compile_pattern

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_EMAIL = re.compile(rf"(?:{_ATOM}(?:\.{_ATOM})*+|{_QUOTED})@(?:{_LABEL}(?:\.{_LABEL})*+|\[[0-9A-Za-z:.]+\])")  # RFC 5321, 4.1.2
MAX_CHARS = 10_000  # of a string whose format is checked


def _email(value: object) -> bool:
    return not isinstance(value, str) or (len(value) <= 320 and _EMAIL.fullmatch(value) is not None)


def _regex(value: object) -> bool:
    try:
        return not isinstance(value, str) or bool(compile_pattern(value))
    except PatternError:
        return False


def _iri(rule: str) -> Callable[[object], bool]:
    """RFC 3987, 3.1: an IRI is a URI whose characters beyond ASCII are percent-encoded as UTF-8."""
    from rfc3986_validator import validate_rfc3986

    def check(value: object) -> bool:
        if not isinstance(value, str):
            return True
        if not all(char.isascii() or char.isprintable() for char in value):
            return False
        return bool(validate_rfc3986("".join(char if char.isascii() else quote(char) for char in value), rule=rule))

    return check


@cache
def checker() -> jsonschema.FormatChecker:
    """The format checker of this project."""
    found = jsonschema.FormatChecker(())
    found.checkers = {
        name: (_bounded(check), raises)
        for name, (check, raises) in jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers.items()
    }
    own: dict[str, Callable[[object], bool]] = {
        "email": _email, "regex": _regex, "iri": _bounded(_iri("URI")), "iri-reference": _bounded(_iri("URI_reference")),
    }  # fmt: skip
    found.checkers |= {name: (check, ()) for name, check in own.items()}
    return found


def _bounded(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: (not isinstance(value, str) or len(value) <= MAX_CHARS) and check(value)
