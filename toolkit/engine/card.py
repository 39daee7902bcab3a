"""Card: the machine and the versions that a number was measured with.

In: an engine (for the model's name and fingerprint).   Out: a flat dict for JSON, one line for people.
Knows nothing about: what is measured.
Invariants: no host name, user or path: a card can be published.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from toolkit.contracts import Engine

PACKAGES = ("sgl-toolkit", "torch", "transformers", "tokenizers", "llguidance", "sglang", "numpy")


def card(engine: Engine) -> dict[str, Any]:
    """CPU, cores, threads, accelerator, versions, model."""
    facts = engine.capabilities
    found = {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": None,
        "accelerator": None,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: at for name in PACKAGES if (at := _version(name))},
        "engine": facts.engine,
        "model": Path(facts.model).name,
        "fingerprint": facts.fingerprint,
    }
    if torch := sys.modules.get("torch"):  # an engine that runs elsewhere has not loaded it, and neither does the card
        found["torch_threads"] = torch.get_num_threads()
        found["accelerator"] = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return found


def line(found: dict[str, Any]) -> str:
    """The card in one line for the foot of a table."""
    versions = ", ".join(f"{name} {at}" for name, at in found["versions"].items())
    chip = f", {found['accelerator']}" if found["accelerator"] else ""
    threads = f", {found['torch_threads']} torch threads" if found["torch_threads"] else ""
    return (
        f"{found['cpu']}{chip}, {found['cores']} cores{threads}; Python {found['python']}, {versions}; "
        f"{found['model']} ({found['fingerprint'][:12]})"
    )


def cpu_model() -> str:
    try:
        for row in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = row.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # not Linux: the standard library's answer is what there is
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
