"""Peer parsers: the tool-call parsers of the installed SGLang, fed piece by piece as its server feeds them.

In: a parser's name, pieces of text, tools.   Out: the calls that a client would have got, and the text beside them.
Knows nothing about: this toolkit's own parsers.
Source: SGLang's FunctionCallParser, `parse_stream_chunk` for every piece and `parse_stream_end`; of a call's items the first name
counts and the arguments are joined, as the server's stream does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from toolkit.errors import MissingExtraError


class PeerTurn(NamedTuple):
    """What came out: (name, arguments as text) per call in order, and the text that is no call."""

    calls: tuple[tuple[str, str], ...]
    content: str


class PeerError(NamedTuple):
    """The parser raised, and what."""

    why: str


def peer_version() -> str:
    """Version of the installed SGLang."""
    return version("sglang")


def peer_parser(name: str, tools: Sequence[Mapping[str, Any]]) -> Callable[[Iterable[str]], PeerTurn | PeerError]:
    """A reader of streams in SGLang's format `name`. MissingExtraError where SGLang's server part cannot be imported."""
    new = _parsers(name, tools)

    def read(pieces: Iterable[str]) -> PeerTurn | PeerError:
        parser = new()
        return _turn(lambda: [*map(parser.parse_stream_chunk, pieces), parser.parse_stream_end()])

    return read


def peer_whole(name: str, tools: Sequence[Mapping[str, Any]], text: str) -> PeerTurn | PeerError:
    """The same parser on a whole output, outside a stream."""
    parser = _parsers(name, tools)()
    return _turn(lambda: [parser.parse_non_stream(text)])


def _parsers(name: str, tools: Sequence[Mapping[str, Any]]) -> Callable[[], Any]:
    try:
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser
    except ImportError as error:
        raise MissingExtraError(f"{error.name or 'sglang.srt'} (which SGLang's parsers import)", "sglang") from error
    offered = [Tool(type="function", function=dict(tool)) for tool in tools]
    return lambda: FunctionCallParser(offered, name)


def _turn(steps: Callable[[], list[tuple[str, list[Any]]]]) -> PeerTurn | PeerError:
    calls: dict[int, tuple[str, str]] = {}
    texts: list[str] = []
    try:
        for text, items in steps():
            texts.append(text)
            for item in items:
                known, arguments = calls.get(item.tool_index, ("", ""))
                calls[item.tool_index] = (known or item.name or "", arguments + item.parameters)
    except Exception as error:  # whatever it is, it is the answer
        return PeerError(f"{type(error).__name__}: {error}"[:200])
    return PeerTurn(tuple(calls[index] for index in sorted(calls)), "".join(texts))
