"""Identity: what an engine is - model, numbers, what guesses for it, versions, machine - and what two engines may differ in.

In: an open engine.   Out: a flat dict of plain values, "" where the engine does not tell; its hash.
`speculation` holds what the engine says about its own: whether that is in effect is shown by counters that move (books.py).
Knows nothing about: outputs.
Invariants: a pair is comparable where it differs in UNDER_TEST alone, and tested only where it does. What one side does not tell is no
difference, and is said. The hash of a pair covers the code that runs here: a PASS is of these very sources.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from toolkit.contracts import Engine
from toolkit.engine.card import card
from toolkit.errors import EngineError, ToolkitError
from toolkit.gate.canaries import LOCK, digest

PACKAGE = Path(__file__).parents[1]
UNDER_TEST = ("drafter", "speculation", "kv_dtype", "graphs", "attention")
MACHINE = ("cpu", "cores", "torch_threads", "accelerator", "python", "system", "versions")
# what a SGLang server says in /server_info about parts that change numbers
_SERVER = {
    "quantization": "quantization", "kv_cache_dtype": "kv_dtype", "attention_backend": "attention", "tp_size": "tensor_parallel",
    "sampling_backend": "sampling", "grammar_backend": "grammar", "enable_deterministic_inference": "deterministic",
}  # fmt: skip
_WEIGHTS = (".safetensors", ".gguf", ".json")
_GRAPHS = ("disable_cuda_graph", "disable_piecewise_cuda_graph", "enable_torch_compile")


def identity(engine: Engine) -> dict[str, Any]:
    """Everything that is known about what runs."""
    facts, machine = engine.capabilities, card(engine)
    found: dict[str, Any] = {
        "engine": facts.engine, "model": machine["model"], "fingerprint": facts.fingerprint, "vocabulary": facts.vocab_size,
        "tokenizer": getattr(engine.tokenizer, "fingerprint", ""), "context": facts.context, "format": "", "dtype": "",
        "quantization": "", "kv_dtype": "", "drafter": "none", "speculation": {}, "graphs": "", "attention": "",
    }  # fmt: skip
    own = getattr(engine, "identity", None)  # an engine of another project's server tells it by itself
    if callable(own):
        found |= own()
    elif hasattr(engine, "server_info"):
        found |= _server(engine)
    elif hasattr(engine, "parts"):
        found |= _embedded(engine)
    return found | {name: machine[name] for name in MACHINE}


def _embedded(engine: Any) -> dict[str, Any]:
    decoder, source = engine.parts
    name = "none" if source is None else source.name
    return {
        "format": engine.format, "dtype": str(decoder.dtype).removeprefix("torch."),
        "kv_dtype": getattr(engine, "kv_dtype", ""), "drafter": name,
        "speculation": {} if source is None else {"algorithm": name, **_marked(engine.draft)},
    }  # fmt: skip


def _marked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a draft; a folder of weights by its last name and what is in it, since another head may lie there tomorrow."""
    return {
        name: _marked(value) if isinstance(value, Mapping) else _weights(value) if isinstance(value, str) else value
        for name, value in options.items()
    }


def _weights(told: str) -> str:
    folder = Path(told)
    files = (
        sorted(each for each in folder.glob("*") if each.suffix in _WEIGHTS and each.is_file())
        if told and folder.is_dir()
        else []
    )
    marks = "".join(f"{each.name}\0{digest(each)}\n" for each in files)
    return f"{folder.name} ({hashlib.sha256(marks.encode()).hexdigest()})" if files else told


def _server(engine: Any) -> dict[str, Any]:
    facts = engine.facts
    found: dict[str, Any] = {"dtype": facts.dtype, "drafter": facts.speculative.lower() or "none", "server": facts.version}
    try:
        told = engine.server_info()
    except ToolkitError:
        return found  # a router tells nothing of its servers
    found |= {ours: told[theirs] for theirs, ours in _SERVER.items() if told.get(theirs) not in (None, "")}
    options = {name: _named(value) for name, value in sorted(told.items()) if name.startswith("speculative_") and value}
    found["speculation"] = options if facts.speculative else {}  # a server without it has options all the same
    apart = [told.get(f"{kind}_attention_backend") for kind in ("prefill", "decode")]
    if all(apart):  # what is said of both gives way to what is said of each
        found["attention"] = ", ".join(map(str, apart))
    found["graphs"] = ", ".join(f"{name}={told[name]}" for name in _GRAPHS if name in told)
    return found


def _named(value: Any) -> Any:
    """A folder by its last name: a report is there to be shown, and where a draft model lies is not what it is."""
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def differences(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[str]:
    """What forbids a comparison."""
    names = [name for name in dict.fromkeys((*baseline, *candidate)) if name not in UNDER_TEST]
    pairs = [(name, baseline.get(name, ""), candidate.get(name, "")) for name in names]
    return [
        f"baseline and candidate differ in {name}: {one!r} and {two!r}"
        for name, one, two in pairs
        if one != two and one not in ("", None) and two not in ("", None)
    ]


def probed(baseline: Any, candidate: Any) -> list[str]:
    """Whether two servers that tell the same of themselves score a probe text alike: weights have no name in what a server tells."""
    one, two = (getattr(each, "_opened", None) for each in (baseline, candidate))
    if one is None or two is None:
        return []
    try:
        one.identity.check(two.identity, "the candidate")
    except EngineError as error:
        return [f"baseline and candidate differ in their weights: {error.message}"]
    return []


def untold(found: Mapping[str, Any]) -> list[str]:
    """What makes up an identity and is not known."""
    wanted = (
        ("fingerprint", "tokenizer", "kv_dtype")
        if found["engine"] == "embedded"
        else ("fingerprint", "tokenizer", "dtype", "kv_dtype", "graphs")
    )
    return [name for name in wanted if found.get(name) in ("", None)]


def under_test(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[str]:
    """In what the pair differs, of what it may differ in. Empty: whatever the gate finds equal is equal to itself."""
    return [
        f"{name} {baseline.get(name)} -> {candidate.get(name)}"
        for name in UNDER_TEST
        if baseline.get(name) != candidate.get(name)
    ]


def key(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    """Hash of a pair, of the canaries and of this package's code, by which a PASS is kept and found again."""
    told = [baseline, candidate, digest(LOCK), sources()]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


@cache
def sources(folder: Path = PACKAGE) -> str:
    """SHA-256 over every file of the package as it is when first asked for: Python, C, the compiled library, heads, canaries."""
    whole = hashlib.sha256()
    for file in sorted(each for each in folder.rglob("*") if each.is_file() and "__pycache__" not in each.parts):
        whole.update(f"{file.relative_to(folder).as_posix()}\0{digest(file)}\n".encode())
    return whole.hexdigest()
