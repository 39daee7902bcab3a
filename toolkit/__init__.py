"""Structured generation for SGLang programs: constrained beam search, validated JSON, an embedded engine.

    engine = toolkit.open_engine("embedded", model="smollm2")
    result = engine.beam("Extract: ...", schema={"type": "object", ...}, width=4)

Loads neither torch nor sglang: an engine does when it is opened, `toolkit.lang` when it is imported. `grammar_of` and `Validator`
load at first use: what checks JSON Schema's formats takes a second to import.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from toolkit.contracts import (
    Attempt,
    Audit,
    BeamParams,
    BeamResult,
    Capabilities,
    Completion,
    Delta,
    Done,
    Engine,
    Event,
    Failed,
    FieldConfidence,
    Grammar,
    Hypothesis,
    Incident,
    Report,
    Request,
    SamplingParams,
    Timing,
    TokenLogprob,
    Usage,
    Violation,
    Watch,
)
from toolkit.engine.engine import open_engine
from toolkit.errors import (
    CancelledError,
    ContextError,
    EngineError,
    InputError,
    MissingExtraError,
    NoValidError,
    SchemaError,
    ToolkitError,
    TruncatedError,
    UnsupportedError,
    UsageError,
)
from toolkit.plugins import Table
from toolkit.results import token_events

if TYPE_CHECKING:
    from toolkit.engine.breaker import Breaker
    from toolkit.engine.guard import guarded
    from toolkit.grammar.types import grammar_of
    from toolkit.validate.check import Validator
    from toolkit.validate.json_stream import JsonStream
    from toolkit.validate.tools.stream import tool_stream

__version__ = version("sgl-toolkit")
_LATER = Table(
    "name",
    {
        "Breaker": "toolkit.engine.breaker:Breaker",
        "JsonStream": "toolkit.validate.json_stream:JsonStream",
        "Validator": "toolkit.validate.check:Validator",
        "grammar_of": "toolkit.grammar.types:grammar_of",
        "guarded": "toolkit.engine.guard:guarded",
        "tool_stream": "toolkit.validate.tools.stream:tool_stream",
    },
)

__all__ = [
    "Attempt",
    "Audit",
    "BeamParams",
    "BeamResult",
    "Breaker",
    "CancelledError",
    "Capabilities",
    "Completion",
    "ContextError",
    "Delta",
    "Done",
    "Engine",
    "EngineError",
    "Event",
    "Failed",
    "FieldConfidence",
    "Grammar",
    "Hypothesis",
    "Incident",
    "InputError",
    "JsonStream",
    "MissingExtraError",
    "NoValidError",
    "Report",
    "Request",
    "SamplingParams",
    "SchemaError",
    "Timing",
    "TokenLogprob",
    "ToolkitError",
    "TruncatedError",
    "UnsupportedError",
    "Usage",
    "UsageError",
    "Validator",
    "Violation",
    "Watch",
    "__version__",
    "grammar_of",
    "guarded",
    "open_engine",
    "token_events",
    "tool_stream",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _LATER.load(name)
