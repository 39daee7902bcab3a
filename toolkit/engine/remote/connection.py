"""Connection: one SGLang server over HTTP - JSON out, checked JSON in, every failure a typed error.

In: a path and a JSON body.   Out: parsed JSON, or the events of a stream one by one.
Knows nothing about: what bodies mean, other servers, whether to repeat.
Invariants: a reply is bounded in bytes and in time and is never trusted to be JSON; redirects are not followed, so the API key
goes nowhere else; what a server says appears in errors cut and in one line.
Source: SGLang 0.5.23 `entrypoints/http_server.py` (statuses, error bodies, server-sent events) - read and tried.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import httpx

from toolkit.contracts import Json, require
from toolkit.errors import EngineError, SchemaError, ToolkitError, UnsupportedError, UsageError

MOST_REPLY = 256 << 20  # bytes of one reply, or of one event of a stream
CONNECT_S = 10.0
BUSY = frozenset((408, 425, 429, 502, 503, 504))  # the server, or a proxy before it, says: later
_SAID = 400  # characters of a server's message that an error quotes


class FailedRequestError(EngineError):
    """A request that did not come through.

    `repeat`: the same server may answer it later; `hang`: it did not answer in time; `busy`: it said so itself.
    """

    def __init__(self, message: str, *, repeat: bool = True, hang: bool = False, busy: bool = False, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.repeat = repeat
        self.hang = hang
        self.busy = busy


class Connection:
    """A pool of connections to the server at `url`; usable from any number of threads.

    timeout_s bounds the time to a whole reply, and the time between two events of a stream. `verify` False accepts any
    certificate; a path is a file of trusted ones. `api_key` goes into the Authorization header.
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, verify: bool | str = True, timeout_s: float = 600.0, pool: int = 256
    ) -> None:
        self.url = checked_url(url)
        self.timeout_s = timeout_s
        self._sockets: WeakSet[Any] = WeakSet()
        self._awake = threading.Event()
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._client = httpx.Client(
                base_url=self.url,
                headers=headers,
                verify=_context(verify),
                timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
                limits=httpx.Limits(max_connections=pool, max_keepalive_connections=pool),
                follow_redirects=False,
                trust_env=False,
            )
        except (UnicodeEncodeError, ValueError) as error:
            raise UsageError("the API key holds characters that no HTTP header can", hint="check it for stray ones") from error

    def get(self, path: str, *, timeout_s: float | None = None) -> Json:
        """The JSON at `path`."""
        return self._exchange("GET", path, None, timeout_s)

    def post(self, path: str, body: Mapping[str, Json], *, timeout_s: float | None = None) -> Json:
        """The JSON that answers `body`."""
        return self._exchange("POST", path, body, timeout_s)

    def text(self, path: str) -> str:
        """The text at `path`, such as a server's counters."""
        with self._opened("GET", path, None, None) as response:
            return _body(response, time.monotonic() + self.timeout_s, self.url).decode(errors="replace")

    def call(self, path: str) -> None:
        """POST to `path` without a body, for what it does: the answer is that it was done."""
        with self._opened("POST", path, None, None) as response:
            _body(response, time.monotonic() + self.timeout_s, self.url)

    def stream(self, path: str, body: Mapping[str, Json]) -> Iterator[Json]:
        """The events that answer `body`; FailedRequestError where the stream breaks off before its [DONE]."""
        with self._opened("POST", path, body, None) as response:
            for data in _events(response):
                if data == b"[DONE]":
                    return
                event = _parsed(data, self.url)
                if isinstance(event, dict) and "error" in event:
                    raise self._refusal(_status(event), event)
                yield event
        raise FailedRequestError(f"the stream of {self.url} broke off before its end")

    def wake(self) -> None:
        """End every request, now and later, with an error: a thread that waits for a reply wakes up."""
        self._awake.set()
        for each in list(self._sockets):
            _shut(each)

    def close(self) -> None:
        """Close every connection. To be called when no thread is inside a request any more: `wake` brings that about."""
        self.wake()
        self._client.close()

    def _noted(self, event: str, info: Mapping[str, Any]) -> None:
        """Keep hold of the sockets that httpx opens: closing its pool does not wake up who reads."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            opened = info["return_value"].get_extra_info("socket")
            self._sockets.add(opened)
            if self._awake.is_set():
                _shut(opened)

    def _exchange(self, method: str, path: str, body: Mapping[str, Json] | None, timeout_s: float | None) -> Json:
        deadline = time.monotonic() + (timeout_s or self.timeout_s)
        with self._opened(method, path, body, timeout_s) as response:
            return _parsed(_body(response, deadline, self.url), self.url)

    @contextmanager
    def _opened(
        self, method: str, path: str, body: Mapping[str, Json] | None, timeout_s: float | None
    ) -> Iterator[httpx.Response]:
        if self._awake.is_set():
            raise FailedRequestError(f"the connection to {self.url} was closed", repeat=False)
        timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else httpx.Timeout(timeout_s)
        content = None if body is None else json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
        headers = None if body is None else {"Content-Type": "application/json"}
        try:
            with self._client.stream(
                method, path, content=content, headers=headers, timeout=timeout, extensions={"trace": self._noted}
            ) as response:
                if response.status_code != 200:
                    said = _body(response, time.monotonic() + CONNECT_S, self.url)
                    raise self._refusal(response.status_code, _lenient(said))
                yield response
        except httpx.TimeoutException as error:
            within = timeout_s or self.timeout_s
            if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
                raise FailedRequestError(f"{self.url} cannot be reached: no connection in time") from error
            raise FailedRequestError(
                f"{self.url} did not answer within {within:g} s", hang=True, hint="raise timeout_s, or look at the server's log"
            ) from error
        except httpx.HTTPError as error:
            raise FailedRequestError(
                f"{self.url} cannot be reached: {_one_line(str(error) or type(error).__name__)}"
            ) from error

    def _refusal(self, status: int, said: Json) -> ToolkitError:
        """The error for a status other than 200: what the caller got wrong, or what the server cannot do now."""
        message = _one_line(_message(said))
        if status in (401, 403):
            return UsageError(f"{self.url} refuses the API key ({status})", hint="give the server's key: api_key=, --api-key")
        if status in (400, 413, 422) and "grammar" in message:
            return SchemaError(f"{self.url} refuses the grammar: {message}")
        if status in (400, 413, 422):
            return UnsupportedError(f"{self.url} refuses the request: {message}")
        if status == 404:
            return FailedRequestError(
                f"{self.url} has no such path (404): it is no SGLang server, or another version", repeat=False,
                hint="the URL is that of the server's root, such as http://host:30000",
            )  # fmt: skip
        return FailedRequestError(f"{self.url} answered {status}: {message}", repeat=status in BUSY, busy=status in BUSY)


def _shut(opened: socket.socket) -> None:
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


def checked_url(url: str) -> str:
    """The URL without a slash at its end; UsageError for what is no http(s) URL, or carries a password or a query."""
    try:
        parts = urlsplit(url)
        ok = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, ok = None, False
    require(ok and parts is not None, "engine URL", url, "such as http://127.0.0.1:30000")
    plain = parts is not None and not (parts.username or parts.password or parts.query or parts.fragment)
    require(plain, "engine URL", url.rpartition("@")[2], "no user, query or fragment in it: the key goes into api_key")
    return url.rstrip("/")


def _context(verify: bool | str) -> Any:
    if isinstance(verify, bool):
        return verify
    import ssl

    try:
        return ssl.create_default_context(cafile=verify)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{verify} holds no certificates: {error}") from error


def _body(response: httpx.Response, deadline: float, url: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    for part in response.iter_bytes():
        size += len(part)
        if size > MOST_REPLY:
            raise FailedRequestError(f"the reply of {url} is larger than {MOST_REPLY} bytes", repeat=False)
        if time.monotonic() > deadline:
            raise FailedRequestError(f"the reply of {url} did not end in time", hang=True)
        parts.append(part)
    return b"".join(parts)


def _events(response: httpx.Response) -> Iterator[bytes]:
    """The data of server-sent events, one line each, as SGLang writes them."""
    held = b""
    for part in response.iter_bytes():
        *lines, held = (held + part).split(b"\n")
        if len(held) > MOST_REPLY:
            raise FailedRequestError(f"an event of the stream is larger than {MOST_REPLY} bytes", repeat=False)
        yield from (line[5:].strip() for line in lines if line.startswith(b"data:"))


def _parsed(data: bytes, url: str) -> Json:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FailedRequestError(
            f"{url} sent no JSON: {_one_line(data[:80].decode(errors='replace'))!r}", repeat=False
        ) from error


def _lenient(data: bytes) -> Json:
    """An error's body: JSON where it is JSON, its text where it is not."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data[: 4 * _SAID].decode(errors="replace")


def _message(said: Json) -> str:
    """What an error body says, in any of the shapes of SGLang, FastAPI and routers."""
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(key):
            return _message(said[key])
    return said if isinstance(said, str) else json.dumps(said)


def _status(event: Mapping[str, Json]) -> int:
    code = event["error"].get("code") if isinstance(event["error"], dict) else None
    return code if isinstance(code, int) else 500


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_SAID]
