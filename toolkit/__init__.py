"""Structured generation for SGLang programs: constrained beam search, validated JSON, an embedded engine.

    engine = toolkit.open_engine("embedded", model="smollm2")
    result = engine.beam("Extract: ...", schema={"type": "object", ...}, width=4)

Loads neither torch nor sglang: an engine does when it is opened, `toolkit.lang` when it is imported.
"""

from importlib.metadata import version

from toolkit.contracts import (
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
    Report,
    Request,
    SamplingParams,
    Timing,
    TokenLogprob,
    Usage,
    Violation,
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
    UnsupportedError,
    UsageError,
)

__version__ = version("sgl-toolkit")

__all__ = [
    "BeamParams",
    "BeamResult",
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
    "InputError",
    "MissingExtraError",
    "NoValidError",
    "Report",
    "Request",
    "SamplingParams",
    "SchemaError",
    "Timing",
    "TokenLogprob",
    "ToolkitError",
    "UnsupportedError",
    "Usage",
    "UsageError",
    "Violation",
    "__version__",
    "open_engine",
]
