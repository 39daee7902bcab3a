"""Named: the schema that an option or a job file names.

In: a path or a name of schemas/, or a schema.   Out: the schema and its grammar.
Knows nothing about: engines, records.
Invariants: whatever is wrong with it is for whoever named it to mend: UsageError, never InputError, and the message says which file.
"""

from __future__ import annotations

from pathlib import Path

from toolkit.contracts import Grammar, Json
from toolkit.errors import InputError, SchemaError
from toolkit.grammar.types import grammar_of
from toolkit.schema import load_schema


def named_schema(source: str | Json, root: Path | None = None) -> tuple[Json, Grammar]:
    """Read, check and convert; `root` is where names are looked up (None: the current folder)."""
    what = f"schema {source}" if isinstance(source, str) else "the job's schema"
    try:
        schema = load_schema(source, root) if isinstance(source, str) else source
        return schema, grammar_of(schema)
    except SchemaError as error:
        raise SchemaError(f"{what}: {error.message}", path=error.path, keyword=error.keyword, hint=error.hint) from None
    except InputError as error:
        raise SchemaError(f"{what}: {error.message}", hint=error.hint) from None
    except OSError as error:
        if error.filename is None:  # not the file's fault: the current folder is gone
            raise
        raise SchemaError(f"{what} cannot be read: {error.strerror}") from None
