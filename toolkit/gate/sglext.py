"""Sglext: what a SGLang server tells beyond the chat completions API, to those who ask - who it is, its tokens, what became of its drafts.

Its stream leaves out the log-probabilities of passes without new text (the first half of a character, an end): they do not tell the
tokens of a text, and how many they leave out depends on how many tokens a pass gives. Its own field at the end has them all.
In: the server's root; an event of a stream.   Out: fields of an identity; token ids; books.
Knows nothing about: requests, verdicts.
Invariants: what is not told, or is of another shape, is left out: a server without these fields is one like any other.
Source: SGLang 0.5.23, entrypoints/openai/protocol.py (`SglExt`, `SpecTokensDetails`; read), `/server_info`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.contracts import Json, Usage
from toolkit.engine.remote.connection import Connection
from toolkit.errors import ToolkitError

ASKED: Mapping[str, Json] = {"return_spec_tokens_details": True, "return_output_ids_in_sglext": True}
_TOLD = {"version": "server", "dtype": "dtype", "kv_cache_dtype": "kv_dtype"}
_COUNTS = {"spec_num_proposed_drafts": "proposed", "spec_num_correct_drafts": "accepted", "spec_verify_ct": "verify_passes"}


def is_sglang(model: Mapping[str, Json]) -> bool:
    """Whether a row of /models is of a SGLang server."""
    return model.get("owned_by") == "sglang"


def told_of_itself(root: Connection) -> dict[str, Any]:
    """Drafter, its options, versions and numbers; {} where a gateway does not let that through."""
    try:
        told = root.get("/server_info")
    except ToolkitError:
        return {}
    if not isinstance(told, dict) or "speculative_algorithm" not in told:
        return {}
    options = {name: _name(value) for name, value in sorted(told.items()) if name.startswith("speculative_") and value}
    name = str(told["speculative_algorithm"] or "none").lower()
    found: dict[str, Any] = {"drafter": name, "speculation": {} if name == "none" else options}
    return found | {ours: told[theirs] for theirs, ours in _TOLD.items() if isinstance(told.get(theirs), str)}


def books(event: Mapping[str, Json], samples: int) -> Usage | None:
    """The books of all samples of a request together, where an event of its stream has them."""
    extension = event.get("sglext")
    told = extension.get("spec_tokens_details") if isinstance(extension, dict) else None
    rows = [row for row in (told if isinstance(told, list) else [told]) if isinstance(row, dict)]
    if len(rows) != samples or not all(_is_count(row.get(name)) for row in rows for name in _COUNTS):
        return None
    return Usage(**{ours: sum(row[theirs] for row in rows) for theirs, ours in _COUNTS.items()})


def output_ids(event: Mapping[str, Json], samples: int) -> list[list[int]] | None:
    """The token ids of every sample of a request, where an event of its stream has them."""
    extension = event.get("sglext")
    told = extension.get("output_ids") if isinstance(extension, dict) else None
    if not isinstance(told, list) or len(told) != samples:
        return None
    return told if all(isinstance(row, list) and all(map(_is_count, row)) for row in told) else None


def _is_count(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _name(value: Json) -> Json:
    """A draft model by the name of its folder: where it lies is nobody's business."""
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
