"""Address: where a server is and what opens it - its URL, its API key, the certificates to trust - checked before anything is sent.

In: what a caller typed.   Out: the same, or UsageError, which shows neither a password nor a key.
Knows nothing about: requests.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import httpx

from toolkit.contracts import require
from toolkit.errors import UsageError

MOST_URL = 2048  # characters


def checked_url(url: str) -> str:
    """The URL without a slash at its end; UsageError for what is no http(s) URL, or carries a password or a query."""
    require(isinstance(url, str), "engine URL", url, "such as http://127.0.0.1:30000")
    shown = url.rpartition("@")[2][:200]  # never a password
    require(_is_url(url), "engine URL", shown, "such as http://127.0.0.1:30000")
    plain = not any(sign in url for sign in "@?#")
    require(plain, "engine URL", shown, "no user, query or fragment in it: the key goes into api_key")
    return url.rstrip("/")


def _is_url(url: str) -> bool:
    """Whether a request can be sent there: the parsers of this language and of httpx agree, and the host can be looked up."""
    try:
        parts = urlsplit(url)
        host = httpx.URL(url).host
        host.encode("idna")
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and bool(host) and parts.port != 0
    except (ValueError, httpx.InvalidURL):  # of idna, too
        return False
    return known and len(url) <= MOST_URL and url.isprintable() and " " not in url


def checked_key(key: str | None) -> str | None:
    """An API key that a header can carry; UsageError, which does not show it, for any other."""
    if key is None or (isinstance(key, str) and key and all("!" <= sign <= "~" for sign in key)):
        return key
    raise UsageError(
        "the API key is empty or holds characters that no HTTP header can, such as the end of a line",
        hint="None, or printable ASCII without spaces",
    )


def trusted(verify: bool | str) -> Any:
    """What httpx takes as `verify`: a file of certificates is read now. UsageError where it holds none."""
    if isinstance(verify, bool):
        return verify
    require(
        isinstance(verify, str | os.PathLike) and str(verify) != "", "verify", verify, "True, False or a file of certificates"
    )
    import ssl

    try:
        return ssl.create_default_context(cafile=verify)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{str(verify)!r} holds no certificates: {error}") from error
