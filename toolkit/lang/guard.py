"""Guard: a small process between this one and a server, which never lets the server outlive its owner.

In: a command on its own command line; stdin, the lifeline, which the owner holds open.
Out: the server's process id as the first line of stdout, then everything that the server prints; its exit code.
Knows nothing about: SGLang. It imports the standard library only and runs as a script.
Invariants: when stdin ends, by a request to stop or because the owner died in whatever way, the server gets SIGTERM, and after
GRACE seconds every process of its session that is left gets SIGKILL; the guard exits after the last of them.
Source: own; a pipe is used because PR_SET_PDEATHSIG is Linux only and follows threads, not processes.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

GRACE = 10.0  # seconds from SIGTERM to SIGKILL; an idle SGLang server needs one to two
POLL = 0.1


def main(command: list[str]) -> int:
    """Run `command` in a session of its own until it ends or the lifeline is cut; returns its exit code, as a shell shows it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner decides, by the lifeline
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_hear
    )
    try:
        os.write(1, f"{server.pid}\n".encode())
        while server.poll() is None and not _cut(POLL):
            pass
        if server.poll() is None:
            server.terminate()
            _wait(server, GRACE)
    except OSError:  # the owner is gone: nobody is left to tell
        pass
    finally:
        _end(server)
    code = server.returncode
    return code if code >= 0 else 128 - code


def _hear() -> None:
    """In the server's process: signals do what they do by default again."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _cut(seconds: float) -> bool:
    """Whether the lifeline ends within that time; what is written into it is no message."""
    ready, _, _ = select.select([0], [], [], seconds)
    return bool(ready) and not os.read(0, 1024)


def _wait(server: subprocess.Popen[bytes], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL)


def _end(server: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the server's session and wait for it; children that init does not reap are not waited for."""
    deadline = time.monotonic() + GRACE
    try:
        while time.monotonic() < deadline:
            os.killpg(server.pid, signal.SIGKILL)
            server.poll()
            time.sleep(POLL / 10)
    except ProcessLookupError:
        pass
    server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
