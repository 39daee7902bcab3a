"""Found: what became of a segment - the record behind its text, out of a program's state.

In: a state and a segment's name; results of a request.   Out: the BeamResult or Completion; an error where there is none to trust.
Knows nothing about: engines, how a segment is written.
Invariants: a text that had to be valid and is not ends its program, unless the segment says `keep_invalid`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sglang.lang.interpreter import ProgramState

from toolkit.contracts import BeamResult, Completion, Json
from toolkit.engine.watch import is_cut
from toolkit.errors import NoValidError, TruncatedError, UnsupportedError, UsageError

_RUN_ON = "run the program on toolkit.lang.EmbeddedBackend or Endpoint"


class BeamMeta(dict[str, Json]):
    """What `state.get_meta_info(name)["beam"]` holds: JSON-able fields, and the whole `result`."""

    def __init__(self, fields: Mapping[str, Json], result: BeamResult) -> None:
        super().__init__(fields)
        self.result = result


class TextMeta(dict[str, Json]):
    """What `state.get_meta_info(name)["toolkit"]` of a sampled segment holds: JSON-able fields, and the whole `result`."""

    def __init__(self, fields: Mapping[str, Json], result: Completion) -> None:
        super().__init__(fields)
        self.result = result


def result(state: ProgramState, name: str) -> BeamResult:
    """What the beam search of segment `name` found; waits for it, and raises its error if it failed.

    UsageError if the program has no such segment, UnsupportedError if it was not decoded by a beam search of this toolkit.
    """
    meta = _meta(state, name)
    found = meta.get("beam") if isinstance(meta, dict) else None
    if not isinstance(found, BeamMeta):
        raise UnsupportedError(
            f"segment {name!r} was not decoded by a beam search of this toolkit",
            hint=f"write it with beam() or tool_call() and {_RUN_ON}; what was sampled is in completion(state, name)",
        )
    return found.result


def completion(state: ProgramState, name: str) -> Completion:
    """The sampled text of segment `name` with its verdict (`valid`, `value`, `violations`), `incidents`, `audit` and `attempts`.

    Waits and raises as `result` does; of several samples the first valid one, else the first.
    """
    meta = _meta(state, name)
    metas = meta if isinstance(meta, list) else [meta]
    found = [each.get("toolkit") for each in metas if isinstance(each, dict)]
    results = [each.result for each in found if isinstance(each, TextMeta)]
    if not results:
        raise UnsupportedError(
            f"segment {name!r} was not sampled by this toolkit",
            hint=f"write it with free(), sgl.gen() or tool_call(speculate=True) and {_RUN_ON}",
        )
    return next((each for each in results if each.valid), results[0])


def require_valid(results: Sequence[Completion]) -> None:
    """Raise unless one of the samples is valid or none had to be: TruncatedError where they were merely cut off, else NoValidError."""
    wrong = [each for each in results if each.valid is False]
    if not wrong or len(wrong) < len(results):
        return
    texts = tuple(each.text for each in wrong)
    if all(map(is_cut, wrong)):
        raise TruncatedError(
            f"the text was cut off after {len(wrong[0].token_ids)} tokens, before it could be valid", texts=texts,
            hint="raise max_tokens, or bound strings and lists in the schema",
        )  # fmt: skip
    reasons = tuple(reason for each in wrong for reason in _reasons(each))
    raise NoValidError(
        f"no text is valid: {'; '.join(dict.fromkeys(reasons))}", reasons=reasons, texts=texts,
        hint='give policies=("plain", "constrained", "ask"), or take it as it is: keep_invalid=True',
    )  # fmt: skip


def _reasons(found: Completion) -> list[str]:
    """Of every attempt where there were several, what was wrong with it."""
    tries = [(f"{each.policy or 'first'}: ", each.error, each.violations) for each in found.attempts]
    told = tries if len(tries) > 1 else [("", "", found.violations)]
    return [who + (error or f"{(w := violations[0]).path or '(root)'}: {w.message}") for who, error, violations in told]


def _meta(state: ProgramState, name: str) -> object:
    meta = state.get_meta_info(name)
    if meta is None and state.error() is not None:
        raise state.error()
    if meta is None:
        raise UsageError(f"segment {name!r} is unknown", hint=f"the program has {', '.join(_names(state)) or 'no segments'}")
    return meta


def _names(state: ProgramState) -> list[str]:
    return sorted(str(name) for name in state.stream_executor.variable_event)
