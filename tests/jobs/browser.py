"""A headless Chromium, spoken to over its debugging pipe: no driver, no network, no library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-background-networking",
    "--disable-dev-shm-usage", "--remote-debugging-pipe", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
CODES = {"Escape": 27, "Enter": 13}


def browser() -> str | None:
    """The browser on this machine, if there is one."""
    return next((found for found in map(shutil.which, NAMES) if found), None)


class Page:
    """One open page: `run` gives the value of an expression in it."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._number = 0
        self._rest = b""
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []  # requests, exceptions, console messages, in the order they came
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._receive, 1 << 20)
            assert piece, "the browser ended"
            self._rest += piece
        whole, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(whole))

    def open(self, address: str, *, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        self.call("Page.navigate", url="about:blank")  # the same file with another #hash would only be scrolled
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def keys(self, *names: str) -> None:
        """Key presses, one after the other; each is a character or a key's name."""
        for name in names:
            text: dict[str, Any] = {"text": name} if len(name) == 1 else {"windowsVirtualKeyCode": CODES[name]}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=name, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=name)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def said(self, method: str) -> list[dict[str, Any]]:
        """The events of one kind so far."""
        return [event["params"] for event in self.events if event.get("method") == method]


@contextmanager
def opened() -> Iterator[Page]:
    """A page in a browser of its own, ended at the end."""
    found = browser()
    assert found is not None
    to_it, send = os.pipe()
    receive, from_it = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = ["bash", "-c", f'exec "$@" 3<&{to_it} 4>&{from_it}', "bash", found, *FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            command, pass_fds=(to_it, from_it), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        os.close(to_it)
        os.close(from_it)
        try:
            yield Page(send, receive)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
            os.close(send)
            os.close(receive)
