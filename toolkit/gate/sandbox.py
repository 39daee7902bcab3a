"""Sandbox: runs Python that a model wrote, and tells whether it passed its tests. It can open nothing, start nothing, reach nothing.

    a process of its own, isolated mode, no environment, no user site; as nobody where the parent is root
    no file, pipe or socket can be opened (no free file descriptor), nothing written to disk, 2 s of CPU, 512 MiB, 5 s in all
    an audit hook refuses what works without a descriptor: signals, files by name, processes, foreign code

In: source, tests as source.   Out: "" or why not.
Knows nothing about: engines.
Invariants: the caller is never blocked for longer than WALL_S, and its group of processes is killed then; what the code prints is not kept.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading

WALL_S = 5.0
_MOST_SOURCE = 64 * 1024
_MOST_SAID = 64 * 1024  # bytes of output that are read
_SHOWN = 200
_CHILD = r"""
import builtins, collections, functools, itertools, math, operator, os, re, resource, string, sys
source = sys.stdin.buffer.read()
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
for what, most in (("CPU", 2), ("AS", 512 << 20), ("FSIZE", 0), ("CORE", 0), ("NPROC", 0), ("NOFILE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + what), (most, most))
FREE = ("compile", "exec", "object.__getattr__", "object.__setattr__", "code.__new__", "builtins.id", "import", "sys._getframe")
def refuse(event, arguments, free=frozenset(FREE)):
    if event not in free:
        raise PermissionError(event + " is not allowed")
for name in ("posix", "os", "resource", "signal", "_signal", "_thread", "threading", "_posixsubprocess"):
    sys.modules.pop(name, None)
del os, resource
sys.addaudithook(refuse)
exec(compile(source, "reply", "exec"), {"__name__": "reply"})
"""


def run(source: str, tests: str) -> str:
    """Why the source does not pass the tests; "" where it does."""
    word = secrets.token_hex(8)  # said at the end: code that just ends before its tests has not said it
    whole = f"{source}\n\n{tests}\nprint({word!r})\n".encode("utf-8", "replace")
    if len(whole) > _MOST_SOURCE:
        return f"the code has more than {_MOST_SOURCE} bytes"
    if sys.platform == "win32":
        return "code is not run on Windows: there are no limits for it"
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={}, cwd="/", start_new_session=True, close_fds=True,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    late = threading.Timer(WALL_S, _kill, [child])
    late.start()
    with child, contextlib.suppress(BrokenPipeError):
        child.stdin.write(whole)
        child.stdin.close()
        said = child.stdout.read(_MOST_SAID).decode(errors="replace").strip().splitlines()
        _kill(child)  # whatever of it still runs
    is_late = late.finished.is_set()
    late.cancel()
    if said[-1:] == [word]:
        return ""
    return (
        f"the code did not end within {WALL_S:g} s"
        if is_late
        else f"the code failed: {ascii(said[-1][:_SHOWN])[1:-1] if said else 'it said nothing'}"
    )


def _kill(child: subprocess.Popen[bytes]) -> None:
    """The whole group; a child that has ended by itself is only waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
