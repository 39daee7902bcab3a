"""Connection: one SGLang server over HTTP - JSON out, checked JSON in, every failure a typed error.

In: a path and a JSON body.   Out: parsed JSON, or the events of a stream one by one.
Knows nothing about: what bodies mean, other servers, whether to repeat.
Invariants: a reply is bounded in bytes and in time and is never trusted to be JSON; redirects are not followed, so the API key
goes nowhere else and stands in no error; what a server says appears in errors cut, printable and in one line.
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
from weakref import WeakSet

import httpx

from toolkit.contracts import Json
from toolkit.engine.remote.address import checked_key, checked_url, trusted
from toolkit.errors import EngineError, SchemaError, ToolkitError, UnsupportedError, UsageError

MOST_REPLY = 256 << 20  # bytes of one reply, or of one event of a stream
CONNECT_S = 10.0
MOST_ERROR = 64 << 10  # bytes of an error's body that are read
BUSY = frozenset((408, 425, 429, 502, 503, 504))  # the server, or a proxy before it, says: later
MOST_NESTED = 4  # objects in each other that lead to a server's message
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
        self._key = checked_key(api_key)
        self._sockets: WeakSet[Any] = WeakSet()
        self._noting = threading.Lock()
        self._awake = threading.Event()
        self._client = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self._key}"} if self._key is not None else {},
            verify=trusted(verify),
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            limits=httpx.Limits(max_connections=pool, max_keepalive_connections=pool),
            follow_redirects=False,
            trust_env=False,
        )

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
            for data in _events(response, self.url, self.timeout_s):
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
        with self._noting:
            opened = list(self._sockets)
        for each in opened:
            _shut(each)

    def close(self) -> None:
        """Close every connection. To be called when no thread is inside a request any more: `wake` brings that about."""
        self.wake()
        self._client.close()

    def _noted(self, event: str, info: Mapping[str, Any]) -> None:
        """Keep hold of the sockets that httpx opens: closing its pool does not wake up who reads."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            opened = info["return_value"].get_extra_info("socket")
            with self._noting:
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
                    raise self._refusal(response.status_code, _lenient(_beginning(response)))
                yield response
        except httpx.TimeoutException as error:
            within = timeout_s or self.timeout_s
            if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
                raise FailedRequestError(f"{self.url} cannot be reached: no connection in time") from error
            raise FailedRequestError(
                f"{self.url} did not answer within {within:g} s", hang=True, hint="raise timeout_s, or look at the server's log"
            ) from error
        except httpx.HTTPError as error:
            if self._awake.is_set():
                raise FailedRequestError(f"the connection to {self.url} was closed", repeat=False) from error
            raise FailedRequestError(f"{self.url} cannot be reached: {one_line(str(error) or type(error).__name__)}") from error

    def _refusal(self, status: int, said: Json) -> ToolkitError:
        """The error for a status other than 200: what the caller got wrong, or what the server cannot do now."""
        message = one_line(_message(said))
        if self._key is not None:
            message = message.replace(self._key, "***")
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


def _beginning(response: httpx.Response) -> bytes:
    """As much of an error's body as is of use."""
    found, deadline = b"", time.monotonic() + CONNECT_S
    for part in response.iter_bytes():
        found += part
        if len(found) >= MOST_ERROR or time.monotonic() > deadline:
            break
    return found[:MOST_ERROR]


def _events(response: httpx.Response, url: str, within_s: float) -> Iterator[bytes]:
    """The data of server-sent events, one line each, as SGLang writes them; what else a server writes keeps nobody waiting."""
    held: list[bytes] = []
    size, heard = 0, time.monotonic()
    for part in response.iter_bytes():
        *ended, rest = part.split(b"\n")
        if ended:
            ended[0] = b"".join((*held, ended[0]))
            held, size = [], 0
        for line in ended:
            if line.startswith(b"data:"):
                yield line[5:].strip()
                heard = time.monotonic()
        held.append(rest)
        size += len(rest)
        if size > MOST_REPLY:
            raise FailedRequestError(f"an event of the stream of {url} is larger than {MOST_REPLY} bytes", repeat=False)
        if time.monotonic() - heard > within_s:
            raise FailedRequestError(f"the stream of {url} brought no event within {within_s:g} s", hang=True)


def _parsed(data: bytes, url: str) -> Json:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FailedRequestError(
            f"{url} sent no JSON: {one_line(data[:80].decode(errors='replace'))!r}", repeat=False
        ) from error


def _lenient(data: bytes) -> Json:
    """An error's body: JSON where it is JSON, its text where it is not."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data[: 4 * _SAID].decode(errors="replace")


def _message(said: Json) -> str:
    """What an error body says, in any of the shapes of SGLang, FastAPI and routers."""
    for _ in range(MOST_NESTED):
        key = next((key for key in ("error", "message", "detail") if isinstance(said, dict) and said.get(key)), None)
        if key is None:
            break
        said = said[key]
    if isinstance(said, str):
        return said
    try:
        return json.dumps(said)
    except RecursionError:
        return "an error without a message"


def _status(event: Mapping[str, Json]) -> int:
    code = event["error"].get("code") if isinstance(event["error"], dict) else None
    return code if isinstance(code, int) else 500


def one_line(text: str) -> str:
    """A server's words for an error: one line, cut, nothing in it that a terminal would obey."""
    line = " ".join(text[: 4 * _SAID].split())[:_SAID]
    return "".join(sign if sign.isprintable() else "?" for sign in line)
