"""Diagnose: what a server's log says, in this project's words.

In: lines that SGLang printed, an exit code.   Out: a milestone of its start, or the error that tells why it ended.
Knows nothing about: processes.
Source: log lines and exceptions of sglang 0.5.23 (read and provoked). A line that is not known here is shown as it is.
"""

from __future__ import annotations

import re

from toolkit.errors import EngineError

SHOWN_LINES = 25
LINE_CHARS = 500
KILLED = 137

_MILESTONES = (
    (re.compile(r"server_args="), "arguments accepted"),
    (re.compile(r"Init parallel begin|Init torch distributed begin"), "scheduler started"),
    (re.compile(r"Load weight begin"), "loading weights"),
    (re.compile(r"Load weight end"), "weights loaded"),
    (re.compile(r"KV Cache is allocated"), "KV memory allocated"),
    (re.compile(r"Capture cuda graph begin"), "capturing CUDA graphs"),
    (re.compile(r"Uvicorn running on"), "listening, warming up"),
    (re.compile(r"fired up and ready to roll"), "ready"),
)

# What ends a server, most telling first: a pattern in its log, what it means, the next step.
_CAUSES = (
    (r"sgl_kernel\.(\w+) is not among the CPU stand-ins", "it needs the kernel {0}, which has no CPU stand-in", "a dense Llama-like model, or a GPU"),
    (r"triton kernel (\w+) has no CPU stand-in", "it needs the triton kernel {0}, which has no CPU stand-in", "a dense Llama-like model, or a GPU"),
    (r"error: (unrecognized arguments: .*|argument .*)", "SGLang refuses the flags: {0}", "python -m sglang.launch_server --help"),
    (r"(?:Model architectures?|model architectures?) (.+?) (?:are|is) not supported", "SGLang has no such model: {0}", "another model"),
    (r"[Aa]ddress already in use", "its port is taken", "another --port"),
    (r"CUDA out of memory|OutOfMemoryError|Not enough memory|can't allocate memory|Cannot allocate memory|MemoryError", "it is out of memory",
     "smaller --mem-fraction-static, --max-total-tokens or --context-length after --"),
    (r"(?:OSError|HFValidationError|RepositoryNotFoundError|LocalEntryNotFoundError): (.*)", "the model cannot be read: {0}", "a folder with config.json and safetensors"),
    (r"ModuleNotFoundError: No module named '([\w.]+)'", "the package {0} is not installed", "pip install it"),
    (r"^(?:\[.*?\] )?((?:\w+\.)*\w*(?:Error|Exception): .*)", "{0}", ""),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), says, hint) for pattern, says, hint in _CAUSES)


def milestone(line: str) -> str:
    """What the server has reached with this line, "" for most."""
    return next((says for pattern, says in _MILESTONES if pattern.search(line)), "")


def explain(what: str, code: int | None, lines: list[str]) -> EngineError:
    """The error for a server that ended with `code` (None: it still runs), with its last log lines."""
    why, hint = _cause(lines, code)
    ended = "" if code is None else f" (exit code {code})"
    shown = "\n".join(f"  | {line[:LINE_CHARS]}" for line in lines[-SHOWN_LINES:])
    message = (
        f"{what}{ended}{': ' + why if why else ''}; its last lines:\n{shown}"
        if lines
        else f"{what}{ended}, and printed nothing"
    )
    return EngineError(message, hint=hint)


def _cause(lines: list[str], code: int | None) -> tuple[str, str]:
    for pattern, says, hint in _COMPILED:
        for line in reversed(lines):
            found = pattern.search(line[:LINE_CHARS])
            if found:
                return says.format(*(group[:200] for group in found.groups())), hint
    if code == KILLED:
        return "it was killed, mostly by the system for want of memory", "less memory: --max-total-tokens after --"
    if code is None:
        return "", "a longer --deadline"
    return "", ""
