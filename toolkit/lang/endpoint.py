"""Endpoint: a running SGLang server as a SGLang backend, with the segments of this toolkit.

    sgl.set_default_backend(Endpoint("http://127.0.0.1:30000"))

In place of SGLang's own RuntimeEndpoint: `gen`, `select` by all three methods, `gen(n=...)`, and `beam`, `free`, `tool_call` as on
EmbeddedBackend - a program runs unchanged on both. What RuntimeEndpoint takes and this does not is refused by name: images, video,
`stop_regex`, LoRA, sessions.
Knows nothing about: HTTP (see toolkit.engine.remote).
"""

from __future__ import annotations

from typing import Any

from toolkit.engine.engine import is_url, prepare_engine
from toolkit.errors import UsageError
from toolkit.lang.backend import EmbeddedBackend, Meta


class Endpoint(EmbeddedBackend):
    """A backend over the server at `url` (several of one model with commas between them), reached when the first program runs.

    `options` are those of toolkit.engine.remote.engine.SGLangEngine: api_key, tokenizer, verify, timeout_s, patience_s, and for servers
    that speculate audit, breaker, fallback. An unknown one is refused at once. `chat_template` as in EmbeddedBackend.
    """

    def __init__(self, url: str, *, chat_template: str | None = None, **options: Any) -> None:
        super().__init__(chat_template=chat_template)
        if not isinstance(url, str) or not is_url(url):
            raise UsageError(f"Endpoint({url!r}) is not allowed: the URL of a server, such as http://127.0.0.1:30000")
        prepare_engine(url, **options)
        self._kind, self._options = url, options

    def get_server_info(self) -> Meta:
        """What the server says about itself."""
        return dict(self.engine.server_info())  # type: ignore[attr-defined]

    def flush_cache(self) -> None:
        """Empty the server's prefix cache."""
        self.engine.flush_cache()  # type: ignore[attr-defined]
