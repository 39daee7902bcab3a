"""Review: the output of a job as one HTML page that holds everything and loads nothing.

In: OUT of `toolkit extract`, and its input.   Out: one file.
Knows nothing about: what a record is made of (review_record), how it is shown (page/).
Invariants: documents and model output are hostile: they travel as JSON in which "<" is spelled out, in a script block that is data,
and the page's own script puts them in as text only; the policy in its head lets no other script or style run and nothing be fetched
or sent, and makes the browser refuse markup made of strings. The page is written whole or not at all, and over nothing but a page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from toolkit.contracts import Json
from toolkit.errors import EngineError, UsageError
from toolkit.jobs.review_lines import side_by_side, texts_of
from toolkit.jobs.review_record import MAX_TEXT, kind_of, page_record
from toolkit.results import characters, json_text

MAX_RECORDS = 20_000
PAGE = Path(__file__).parent / "page"
OURS = b'<meta name="generator" content="sgl-toolkit review">'
KINDS = {"all": ("ok", "review", "error"), "review": ("review", "error"), "failed": ("error",)}
_PLACE = re.compile("%([A-Z]+)%")


def write_review(
    out: Path,
    page: Path,
    *,
    place: Path | None = None,
    only: Literal["all", "review", "failed"] = "all",
    limit: int = MAX_RECORDS,
    max_text: int = MAX_TEXT,
) -> dict[str, Json]:
    """Write the page of the job in `out`; returns {page, records, shown, kinds, source}, `source` saying why texts are not known.

    `place` is the input where it is no longer where it was; `only` review leaves out what needs no look, failed all but failures; at
    most `limit` records, and `max_text` characters of each text, go into it. UsageError for what cannot be read or written over.
    """
    _check_free(page)
    source, why = texts_of(out, place)
    seen: Counter[str] = Counter()
    wanted = (each for each in side_by_side(out, source) if _count(each[0], seen) in KINDS[only])
    head, tail = _around(out.name)
    fresh = page.with_name(page.name + ".new")
    shown = 0
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(head)
            for shown, (line, text) in enumerate(islice(wanted, limit), 1):  # noqa: B007 - the last one is the count
                file.write(script_json(page_record(line, text, max_text=max_text)) + "\n")
            about = {"source": f"The text is not known: {why}." if why else "No text.", "left": sum(1 for _ in wanted)}
            file.write(tail(about))
        fresh.replace(page)
    except OSError as error:
        raise EngineError(f"page {page} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            fresh.unlink()
    return {"page": str(page), "records": seen.total(), "shown": shown, "kinds": dict(seen), "source": why}


def script_json(value: Json) -> str:
    """One line of JSON that no HTML reader takes for the end of a script, or for a comment."""
    return json_text(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _count(line: Mapping[str, Any], seen: Counter[str]) -> str:
    kind = kind_of(line)
    seen[kind] += 1
    return kind


def _check_free(page: Path) -> None:
    """UsageError where something else than a page of ours has the name."""
    if not page.parent.is_dir():
        raise UsageError(f"the folder {page.parent} of the page does not exist", hint="make it first")
    if not page.exists():
        return
    if not page.is_file():
        raise UsageError(f"page {page} is no file", hint="name another")
    with page.open("rb") as file:
        if OURS not in file.read(4096):
            raise UsageError(f"page {page} exists and is no page of this command", hint="name another with --page")


def _around(title: str) -> tuple[str, Callable[[Json], str]]:
    """What comes before the records, and what makes the text behind them of what is to be said about them."""
    template, style, script = _parts()
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    filled = {
        "CSP": policy, "TITLE": html.escape(characters(title)), "STYLE": style, "SCRIPT": script,
    }  # fmt: skip
    head, tail = template.split("%DATA%\n")
    return _fill(head, filled), lambda about: _fill(tail, {**filled, "ABOUT": script_json(about)})


def _fill(template: str, filled: dict[str, str]) -> str:
    """Every place once: what is put in is never looked through again."""
    return _PLACE.sub(lambda place: filled[place[1]], template)


@lru_cache(maxsize=1)
def _parts() -> tuple[str, str, str]:
    html_text, style, script = ((PAGE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    return html_text, style, script


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
