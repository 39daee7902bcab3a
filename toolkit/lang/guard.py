"""Guard: a small process between this one and a server, which never lets the server outlive its owner.

In: a grace period in seconds and a command, on its own command line; stdin, the lifeline, which the owner holds open.
Out: the server's process id as the first line of stdout, then everything that the server prints; its exit code, as a shell shows it.
Knows nothing about: SGLang. It imports the standard library only and runs as a script.
Invariants: when stdin ends, because the owner stops it or died in whatever way, the server gets SIGTERM, and after the grace period
every process of its session that is left gets SIGKILL; the guard exits after the last of them.
Source: own; a pipe is used because PR_SET_PDEATHSIG is Linux only and follows threads, not processes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

POLL = 0.1
REAP = 5.0  # seconds for the dead to be gone: whose parent is dead is reaped by init, which may take its time
HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(grace: float, command: list[str]) -> int:
    """Run `command` in a session of its own until it ends or the lifeline is cut; returns its exit code."""
    for number in HEARD:
        signal.signal(number, signal.SIG_IGN)  # the owner decides, by the lifeline
    try:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_hear
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)
        return 127
    try:
        os.write(1, f"{server.pid}\n".encode())
        while server.poll() is None and not _cut(POLL):
            pass
        if server.poll() is None:
            server.terminate()
            _wait(server, grace)
    finally:
        _end(server)
    code: int = server.returncode
    return code if code >= 0 else 128 - code


def _hear() -> None:
    """In the server's process: signals do what they do by default again."""
    for number in HEARD:
        signal.signal(number, signal.SIG_DFL)


def _cut(seconds: float) -> bool:
    """Whether the lifeline ends within that time; what is written into it is no message."""
    ready, _, _ = select.select([0], [], [], seconds)
    return bool(ready) and not os.read(0, 1024)


def _wait(server: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(seconds)


def _end(server: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the server's session, and wait until it is gone."""
    deadline = time.monotonic() + REAP
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(server.pid, signal.SIGKILL)
            server.poll()
            time.sleep(POLL / 10)
    server.wait()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
