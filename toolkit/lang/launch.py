"""Launch: the command that starts SGLang's server for a model, on a GPU or with the CPU stand-ins.

In: a model, a speculation, a device, an address and flags of SGLang's own.   Out: a Launch: the command, its environment, the folder.
Knows nothing about: processes, waiting, HTTP.
Invariants: nothing is started or written here; the stand-ins for what has no CPU build (`cpu/packages`) are on the PYTHONPATH of that command
and nowhere else; flags of the caller come last, so that they win over what is chosen here.
Source: sglang 0.5.23, tried on machines without AMX: both attention backends have to be named, torch_native computes a prefix anew
at every extension.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from toolkit.contracts import require
from toolkit.errors import EngineError, MissingExtraError, UnsupportedError, UsageError
from toolkit.lang.hiding import hidden, secrets_of
from toolkit.lang.mtp_layers import check_mtp
from toolkit.lang.presets import Speculation

PACKAGES = Path(__file__).parent / "cpu" / "packages"
DEVICES = ("auto", "cuda", "cpu")
CPU_ENV = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",  # two spinning OpenMP threads stall on a busy machine
}
CPU_FLAGS = (
    "--device", "cpu", "--dtype", "float32", "--sampling-backend", "pytorch", "--max-total-tokens", "16384",
    "--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx",
    "--sleep-on-idle",  # an idle scheduler spins otherwise, and takes a whole core from whoever shares the machine
)  # fmt: skip
CPU_NEEDS = (
    "torch",
    "transformers",
    "zmq",
    "fastapi",
    "uvicorn",
    "orjson",
    "torchvision",
    "xgrammar",
    "compressed_tensors",
    "psutil",
)
NO_DEPS = "pip install --no-deps sglang==0.5.23 torchvision==0.28.0 xgrammar==0.2.7 compressed-tensors==0.20.1"
OWN_FLAGS = {name: name for name in ("--model", "--host", "--port", "--device")} | {"--model-path": "--model"}
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is started: `command` (argv), `env` (added to the environment), `model` (a folder or a hub name), where it listens."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    model: str
    device: str
    host: str
    port: int

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def shell(self) -> str:
        """One line for a shell."""
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.env.items()), shlex.join(self.command)])

    @property
    def shown(self) -> tuple[str, ...]:
        """The command for whoever keeps a record of it: with its keys hidden."""
        return tuple(hidden(each, secrets_of(self.command)) for each in self.command)

    def environment(self) -> dict[str, str]:
        """The whole environment of the server; OMP_NUM_THREADS of this one stays. Programs beside this Python (ninja) are found."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        merged = {**os.environ, **self.env, "PATH": path}
        if "OMP_NUM_THREADS" in os.environ:
            merged["OMP_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
        return merged


def launch(
    model: str,
    speculation: Speculation | None = None,
    *,
    device: str = "auto",
    host: str = "127.0.0.1",
    port: int = 30000,
    flags: Sequence[str] = (),
) -> Launch:
    """The command for `model`: a stored name, a folder, a .gguf file or a hub name ("owner/name", which SGLang itself fetches).

    UsageError for a model, a device, a port or a flag that cannot be; UnsupportedError for mtp where the model has no such layers.
    """
    require(device in DEVICES, "device", device, ", ".join(DEVICES))
    require(isinstance(port, int) and 1 <= port <= 65535, "port", port, "an integer from 1 to 65535")
    require(bool(host) and not host.isspace(), "host", host, "a name or an address to listen on")
    _check_flags(flags)
    speculation = speculation or Speculation()
    if speculation.draft is not None:
        speculation = replace(speculation, draft=served_model(speculation.draft))
    device = found_device() if device == "auto" else device
    folder = served_model(model)
    if speculation.layers_of_model and not is_hub_name(folder):
        check_mtp(Path(folder))
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", folder, "--host", host, "--port", str(port)]
    command += [*(CPU_FLAGS if device == "cpu" else ()), *speculation.flags(), *flags]
    env = {**CPU_ENV, "PYTHONPATH": _python_path()} if device == "cpu" else {}
    return Launch(command=tuple(command), env=env, model=folder, device=device, host=host, port=port)


def _check_flags(flags: Sequence[str]) -> None:
    """Flags that would start another server than the one that is waited for."""
    for name in (flag.partition("=")[0] for flag in flags):
        own = next((OWN_FLAGS[each] for each in OWN_FLAGS if len(name) > len("--x") and each.startswith(name)), None)
        require(own is None, "flag", name, f"it is an option here: {own}")  # SGLang takes abbreviations, too
        if name.startswith("--ssl-") or name.endswith("grpc-mode"):
            raise UnsupportedError(f"flag {name}: a server is waited for over plain HTTP", hint="a proxy in front for TLS")


def _python_path() -> str:
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(PACKAGES), *([inherited] if inherited else [])])


def found_device() -> str:
    """cuda where torch sees a device, else cpu. MissingExtraError without torch."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", "cpu") from error
    return "cuda" if torch.cuda.is_available() else "cpu"


def served_model(model: str) -> str:
    """What SGLang gets as its model path. UsageError where that is neither on this machine nor a name on the hub."""
    from toolkit.model.store import RECORD, resolve

    if is_hub_name(model):
        return model
    path = Path(model).expanduser() if model else Path(model)
    if model and path.is_dir() and not (path / RECORD).exists():
        if not (path / "config.json").is_file():
            raise UsageError(
                f"{model} holds no config.json: it is no model's folder", hint="a folder as transformers writes it"
            )
        return str(path.resolve())  # SGLang knows more models than the embedded engine does, so that is not asked
    return str(resolve(model))


def is_hub_name(model: str) -> bool:
    """Whether it is "owner/name" and no path on this machine."""
    return bool(_HUB.fullmatch(model)) and not Path(model).exists()


def check_runnable(plan: Launch) -> None:
    """Whether this machine has what the command imports, and the port is free: MissingExtraError, EngineError."""
    if plan.device == "cpu":
        for name in CPU_NEEDS:
            if find_spec(name) is None:
                raise _missing(name)
    elif found_device() != plan.device:
        raise EngineError("there is no GPU that torch can use", hint="--device cpu, or a torch that is built for this GPU")
    _check_port(plan.host, plan.port)


def _missing(name: str) -> MissingExtraError:
    error = MissingExtraError(f"{name}, which SGLang's server imports,", "cpu")
    error.hint = f"{error.hint} && {NO_DEPS}"
    return error


def _check_port(host: str, port: int) -> None:
    with _bound(host, port):
        pass


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nothing listens on now. EngineError for an address that is none of this machine's."""
    with _bound(host, 0) as probe:
        return int(probe.getsockname()[1])


def _bound(host: str, port: int) -> socket.socket:
    """A socket at that address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        probe = socket.socket(family, socket.SOCK_STREAM)
        try:
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # as the server does: one that ended lately is no obstacle
            probe.bind((host, port))
        except BaseException:
            probe.close()
            raise
    except (OSError, ValueError) as error:  # ValueError: names that no host can have
        raise EngineError(
            f"port {port} of {host} cannot be listened on: {getattr(error, 'strerror', None) or error}",
            hint="another --port, or an address of this machine as --host",
        ) from error
    return probe
