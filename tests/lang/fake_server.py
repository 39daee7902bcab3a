"""What SGLang's server looks like from outside, in a script of the standard library: it is slow, dies, lingers or forks as it is told.

python fake_server.py PORT [up] [slow] [deaf] [die] [linger] [noisy]
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

PORT, TRAITS = int(sys.argv[1]), set(sys.argv[2:])
STARTED = time.monotonic()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ready = "slow" not in TRAITS or time.monotonic() - STARTED > 1.0
        self.send_response(200 if ready and self.path == "/health" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


def main() -> None:
    print("server_args={}", flush=True)
    if "linger" in TRAITS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", ignore])
    print(f"child {child.pid}", flush=True)
    if "noisy" in TRAITS:
        for i in range(20_000):
            print(f"line {i} " + "x" * 100)
        print("y" * 100_000, flush=True)
    if "die" in TRAITS:
        print("[2026-11-29 21:00:00] ValueError: Model architectures ['FooModel'] are not supported for now.", flush=True)
        os._exit(1)
    if "deaf" in TRAITS:
        time.sleep(600)
    HTTPServer(("127.0.0.1", PORT), Handler).serve_forever()


main()
