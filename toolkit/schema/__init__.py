"""Schema: strict JSON text and JSON Schema documents, shared by everything above the floor.

`parse_json` reads a value, `read_spans` says where each of its parts lies, `value_key` when two are the same; `load_schema` and
`check_schema` take in schema documents. Knows nothing about: grammars, tokens, or whether an instance is valid.
"""

from toolkit.schema.clock import Keyword, OutOfTime, charge, clocked, deadline, seconds_left
from toolkit.schema.document import (
    DRAFTS,
    Draft,
    bundled,
    check_schema,
    checked_schema,
    draft_of,
    load_schema,
    schema_of,
    subschemas,
)
from toolkit.schema.equality import unique_items, value_key
from toolkit.schema.pattern import SEARCH_SECONDS, PatternError, Searcher, compile_pattern, compile_regex
from toolkit.schema.reader import MAX_CHARS, MAX_DEPTH, MAX_DIGITS, JsonError, Span, escape_pointer, parse_json, read_spans

__all__ = [
    "DRAFTS",
    "MAX_CHARS",
    "MAX_DEPTH",
    "MAX_DIGITS",
    "SEARCH_SECONDS",
    "Draft",
    "JsonError",
    "Keyword",
    "OutOfTime",
    "PatternError",
    "Searcher",
    "Span",
    "bundled",
    "charge",
    "check_schema",
    "checked_schema",
    "clocked",
    "compile_pattern",
    "compile_regex",
    "deadline",
    "draft_of",
    "escape_pointer",
    "load_schema",
    "parse_json",
    "read_spans",
    "schema_of",
    "seconds_left",
    "subschemas",
    "unique_items",
    "value_key",
]
