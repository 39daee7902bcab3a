"""Named: the schema that an option or a job file names, and whose fault it is.

In: a path or a name of schemas/, or a schema.   Out: the schema and its grammar.
Knows nothing about: engines, records.
Invariants: whatever is wrong with it is for whoever named it to mend: UsageError, never InputError, and the message says which file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.contracts import Grammar, Json
from toolkit.errors import InputError, SchemaError
from toolkit.grammar.types import grammar_of
from toolkit.schema import load_schema


def schema_name(source: str | Json) -> str:
    """What errors call it."""
    return f"schema {source}" if isinstance(source, str) else "the job's schema"


def named_schema(source: str | Json, root: Path | None = None) -> tuple[Json, Grammar]:
    """Read, check and convert; `root` is where names are looked up (None: the current folder)."""
    schema = named_document(source, root) if isinstance(source, str) else source
    with named_compile(schema_name(source)):
        return schema, grammar_of(schema)


def named_document(source: str, root: Path | None = None) -> Json:
    """Read alone. SchemaError with the file's name where it is no JSON or cannot be read."""
    name = schema_name(source)
    try:
        with named_compile(name):
            return load_schema(source, root)
    except InputError as error:
        raise SchemaError(f"{name}: {error.message}", hint=error.hint) from None
    except OSError as error:
        if error.filename is None:  # not the file's fault: the current folder is gone
            raise
        raise SchemaError(f"{name} cannot be read: {error.strerror}") from None


@contextmanager
def named_compile(name: str) -> Iterator[None]:
    """Faults of a schema, regex or grammar carry the name that it goes by."""
    try:
        yield
    except SchemaError as error:
        raise SchemaError(f"{name}: {error.message}", path=error.path, keyword=error.keyword, hint=error.hint) from None
