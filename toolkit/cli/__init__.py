"""Command line: one module a command, over the same public functions that Python callers use.

Data on stdout, text for people on stderr; `--json` prints one JSON object as the last line of stdout. Exit codes: 0 ok, 1 a negative
verdict, 2 usage, 3 could not run, 130 interrupted, 141 the reader of stdout went away.
"""

from toolkit.cli.app import main

__all__ = ["main"]
