"""Opened: what an engine knows of its servers once it has asked each of them who it is.

In: connections, a tokenizer or where to find it.   Out: `Opened`; EngineError where the servers are not one model.
Knows nothing about: requests, threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.contracts import Capabilities, Tokenizer, require
from toolkit.engine.admission import Limits
from toolkit.engine.remote.address import checked_url
from toolkit.engine.remote.connection import Connection
from toolkit.engine.remote.probe import KEPT, Facts, Identity, caveats, identify, read_facts
from toolkit.engine.remote.rounds import LINES
from toolkit.errors import UsageError
from toolkit.model.fingerprint import fingerprint
from toolkit.model.layout import read_json
from toolkit.model.store import show
from toolkit.text.tokenizer import load_tokenizer

LONGEST_S = 1e7  # seconds that anything may be waited for


@dataclass(frozen=True, slots=True)
class Opened:
    """`facts` are those of every server, `identity` that of the first; `notes` what a reader of scores must know."""

    facts: tuple[Facts, ...]
    tokenizer: Tokenizer
    identity: Identity
    notes: tuple[str, ...]
    context: int

    @property
    def limits(self) -> Limits:
        """A live line of a beam search is one block."""
        return Limits(self.context, LINES, self.context + 1)

    @property
    def capabilities(self) -> Capabilities:
        first = self.facts[0]
        return Capabilities(
            engine="sglang",
            model=first.served or first.model,
            fingerprint=_fingerprint(first, self.tokenizer, self.identity),
            context=self.context,
            vocab_size=self.tokenizer.vocab_size,
            grammars=("json_schema", "regex", "lark", "choices"),
            beam=True,
            score=True,
            drafters=(first.speculative.lower() or "none",),
        )

    @property
    def at_once(self) -> int:
        """Lines that one request may have: a batch that does not fit into a server's queue is refused however often it comes."""
        return min((each.queue for each in self.facts if each.queue), default=LINES)

    def same(self, connection: Connection) -> None:
        """Raise unless the server is still the one that the engine was opened on."""
        self.identity.check(identify(connection, self.tokenizer), connection.url)


def checked_options(url: str, urls: Sequence[str], tokenizer: object, context: int | None, **seconds: float) -> tuple[str, ...]:
    """The URLs, distinct; UsageError for one of them, or for another option, that cannot be."""
    for name, value in seconds.items():
        ok = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LONGEST_S
        require(ok, name, value, f"a number of seconds > 0, at most {LONGEST_S:.0f}")
    ok = context is None or (isinstance(context, int) and not isinstance(context, bool) and context > 1)
    require(ok, "context", context, "None or an integer > 1")
    require(isinstance(urls, list | tuple), "urls", urls, "a list of URLs")
    ok = tokenizer is None or isinstance(tokenizer, str | Path | Tokenizer)
    require(ok, "tokenizer", tokenizer, "a folder, a stored model, a Tokenizer or None")
    names = tuple(checked_url(each) for each in (url, *urls))
    require(len(set(names)) == len(names), "urls", names, "distinct URLs")
    return names


def open_servers(
    connections: Sequence[Connection], tokenizer: Tokenizer | str | Path | None, context: int | None = None
) -> Opened:
    """Ask all servers. EngineError for one that cannot be reached, or is another model or vocabulary than the rest."""
    facts = [read_facts(each) for each in connections]
    folder = None if isinstance(tokenizer, Tokenizer) else _folder(facts[0], tokenizer)
    found = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(folder or "")
    first = identify(connections[0], found)
    notes = list(caveats(facts[0], first))
    for connection, each in zip(connections[1:], facts[1:], strict=True):
        other = identify(connection, found)
        first.check(other, connection.url)
        notes += caveats(each, other)
    return Opened(tuple(facts), found, first, tuple(notes), _context(facts, context, folder))


def _context(facts: Sequence[Facts], given: int | None, folder: Path | None) -> int:
    """The shortest that a server tells, or the one given; behind a router that of the model, less what a server keeps for itself."""
    told = [each.context for each in facts if each.context]
    if given is not None:
        return min([given, *told])
    if not told and folder is not None:
        longest = read_json(folder / "config.json").get("max_position_embeddings")
        told = [longest - KEPT] if isinstance(longest, int) and longest > KEPT else []
    if not told:
        raise UsageError(f"{facts[0].url} is a router and does not tell its servers' context", hint="give it: context=")
    return min(told)


def _folder(facts: Facts, given: str | Path | None) -> Path:
    """The folder or stored model given, else the server's own path."""
    if given is not None:
        folder = Path(given).expanduser()
        return folder if folder.is_dir() else show(str(given)).folder
    for name in (facts.tokenizer, facts.model):
        if name and (Path(name) / "tokenizer.json").is_file():
            return Path(name)
    raise UsageError(
        f"the model of {facts.url} is {facts.model or 'unnamed'!r}, which cannot be read from here: its tokenizer is needed",
        hint="give a folder with its tokenizer.json, or a stored model: tokenizer=, --tokenizer",
    )


def _fingerprint(facts: Facts, tokenizer: Tokenizer, identity: Identity) -> str:
    """That of the model's folder where it can be read, else one of what the server says of itself."""
    folder = Path(facts.model)
    if facts.model and folder.is_dir() and any(folder.glob("*.safetensors")):
        return fingerprint(folder)
    said = (facts.model, facts.served, facts.weights, facts.dtype, tokenizer.fingerprint, identity.ids)
    return "server:" + hashlib.sha256(repr(said).encode()).hexdigest()
