"""Diagnose: what a server's log says, in this project's words.

In: lines that SGLang printed, an exit code.   Out: a milestone of its start, or the error that tells why it ended.
Knows nothing about: processes.
Source: log lines and exceptions of sglang 0.5.23 (provoked where it runs without a GPU, else read). A line that is not known
here is shown as it is.
"""

from __future__ import annotations

import re

from toolkit.errors import EngineError, ToolkitError, UsageError

SHOWN_LINES = 25
LINE_CHARS = 500
KILLED = 137
BAD_FLAGS = 2  # argparse's exit code
HARMLESS = "Ignore import error"  # SGLang tries to import every model it knows

_MILESTONES = tuple(
    (re.compile(pattern), says)
    for pattern, says in (
        (r"server_args=", "arguments accepted"),
        (r"Init (?:parallel|torch distributed) begin", "scheduler started"),
        (r"Load weight begin", "loading weights"),
        (r"Load weight end", "weights loaded"),
        (r"KV Cache is allocated", "KV memory allocated"),
        (r"Capture .*graph begin", "capturing graphs"),
        (r"Uvicorn running on", "listening, warming up"),
        (r"fired up and ready to roll", "ready"),
    )
)

# What ends a server, the most telling first: a pattern, what it means ({} is what the pattern caught), the next step.
_LESS = "after -- a smaller --max-total-tokens, --context-length or --mem-fraction-static"
_WHOLE = "a folder with config.json, a tokenizer and safetensors"
_CAUSES = tuple(
    (re.compile(pattern), says, hint)
    for pattern, says, hint in (
        (r"NotImplementedError: (.*CPU stand-in.*)", "this model needs more than a CPU can do here: {}", "a dense Llama-like model, or a GPU"),
        (r"'_OpNamespace' 'sgl_kernel' object has no attribute '(\w+)'", "this model needs the operator {}, which has no CPU stand-in",
         "a dense Llama-like model, or a GPU"),
        (r"error: (unrecognized arguments: .*|argument .*)", "SGLang refuses its flags: {}", "python -m sglang.launch_server --help"),
        (r"((?:Model )?[Aa]rchitectures? .* (?:not supported|no SGLang implementation).*)", "SGLang has no such model: {}", "another model"),
        (r"('\w+' is not a registered model .*|model type `.*` but Transformers does not recognize .*)", "SGLang has no such model: {}",
         "another model"),
        (r"[Aa]ddress already in use", "its port is taken", "another --port"),
        (r"CUDA out of memory|OutOfMemoryError|Not enough memory|[Cc]an't allocate memory|Cannot allocate memory|\bMemoryError\b",
         "it is out of memory", _LESS),
        (r"No such file or directory: '(ninja|c\+\+|g\+\+)'|\b(c\+\+|g\+\+): (?:command )?not found",
         "{} is not installed, with which SGLang compiles its n-gram index", "pip install ninja, and a C++ compiler"),
        (r"ModuleNotFoundError: No module named '([\w.]+)'", "the package {} is not installed", "pip install it into this environment"),
        (r"(?:OSError|HFValidationError|RepositoryNotFoundError|LocalEntryNotFoundError|SafetensorError): (.*)", "the model cannot be read: {}",
         _WHOLE),
        (r"(Cannot find any model weights.*)", "the model cannot be read: {}", _WHOLE),
        (r"^(?:\[.*?\] )?((?:\w+\.)*\w*(?:Error|Exception): .*)", "{}", ""),
    )
)  # fmt: skip


def milestone(line: str) -> str:
    """What the server has reached with this line, "" for most."""
    return next((says for pattern, says in _MILESTONES if pattern.search(line)), "")


def explain(what: str, code: int | None, lines: list[str]) -> ToolkitError:
    """The error for a server that ended with `code` (None: it still runs), with its last log lines.

    UsageError where it refused its flags, else EngineError.
    """
    ended = what if code is None else f"{what} (exit code {code})"
    if not lines:
        return EngineError(f"{ended}, and printed nothing", hint=_cause([], code)[1])
    why, hint = _cause(lines, code)
    shown = "\n".join(f"  | {line[:LINE_CHARS]}" for line in lines[-SHOWN_LINES:])
    kind = UsageError if code == BAD_FLAGS else EngineError
    return kind(f"{ended}{f': {why}' if why else ''}; its last lines:\n{shown}", hint=hint)


def _cause(lines: list[str], code: int | None) -> tuple[str, str]:
    for pattern, says, hint in _CAUSES:
        for line in reversed(lines):
            found = None if HARMLESS in line else pattern.search(line[:LINE_CHARS])
            if found:
                return says.format(found.group(found.lastindex or 0)), hint
    if code == KILLED:
        return "it was killed, as the system does for want of memory", _LESS
    return "", "" if code is not None else "a longer --deadline"
