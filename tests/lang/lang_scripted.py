"""A scripted engine over raw bytes: small enough to know every answer in advance."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from toolkit.contracts import (
    BeamResult,
    Capabilities,
    Completion,
    Delta,
    Done,
    Event,
    Failed,
    FieldConfidence,
    Hypothesis,
    Message,
    Prompt,
    Request,
    TokenLogprob,
    Usage,
)
from toolkit.errors import EngineError, ToolkitError

OPEN, CLOSE, END = 256, 257, 258
CONTROL = {"<|im_start|>": OPEN, "<|im_end|>": CLOSE, "<|end|>": END}


class ByteTalk:
    """Bytes are tokens; ChatML's control strings are three more. `system` is what the template adds by itself."""

    vocab_size = 259
    eos_ids = (END,)
    control_ids = frozenset(CONTROL.values())
    fingerprint = "bytes"

    def __init__(self, system: str = "", frame: str = "<|im_start|>{role}\n{content}<|im_end|>\n") -> None:
        self.system, self.frame = system, frame

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        for string, token in CONTROL.items() if control else ():
            head, found, tail = text.partition(string)
            if found:
                return [*self.encode(head, control=True), token, *self.encode(tail, control=True)]
        return list(text.encode())

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def chat(self, messages: Sequence[Message], *, generate: bool = True) -> list[int]:
        if self.system and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self.system}, *messages]
        text = "".join(self.frame.format(**each) for each in messages)
        return self.encode(text + (self.frame.split("{content}")[0].format(role="assistant") if generate else ""), control=True)


class ScriptedEngine:
    """`answer(prompt text, request)` gives the text of a sample or raises; requests are kept in `seen`, scored prompts too."""

    def __init__(
        self,
        answer: Callable[[str, Request], str] = lambda text, request: "ok",
        *,
        tokenizer: ByteTalk | None = None,
        score: bool = True,
        together: int = 1,
    ) -> None:
        self.tokenizer = tokenizer or ByteTalk()
        self.answer = answer
        self.seen: list[Request] = []
        self.scored: list[tuple[str, list[str]]] = []
        self.closed = False
        self.capabilities = Capabilities(
            engine="scripted", model="bytes", fingerprint="bytes", context=4096, vocab_size=259,
            grammars=("json_schema", "regex", "lark", "choices"), beam=True, score=score,
        )  # fmt: skip
        self._meet = threading.Barrier(together, timeout=20) if together > 1 else None

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        for request in requests:
            self.seen.append(request)
            if self._meet:
                self._meet.wait()
            yield from self._events(request)

    def _events(self, request: Request) -> Iterator[Event]:
        prompt = self.prompt_text(request.prompt)
        for index in range(request.sampling.n if request.beam is None else 1):
            try:
                text = self.answer(prompt, request)
            except ToolkitError as error:
                yield Failed(request.id, error)
                return
            if request.beam is not None:
                yield Done(request.id, 0, beam_result(text, request))
                return
            for letter in text:
                yield Delta(request.id, index, letter, tuple(letter.encode()))
            yield Done(request.id, index, self._completion(text, request, index))

    def _completion(self, text: str, request: Request, index: int) -> Completion:
        ids = (*text.encode(), END)
        wanted = request.sampling.logprobs
        logprobs = () if wanted is None else tuple(TokenLogprob(i, -1.0, ((i, -1.0),) * wanted) for i in ids)
        usage = Usage(input_tokens=len(request.prompt), output_tokens=len(ids))
        return Completion(
            text=text, token_ids=ids, finish_reason="stop", matched_stop=END, logprobs=logprobs, seed=index, usage=usage
        )  # fmt: skip

    def prompt_text(self, prompt: Prompt) -> str:
        """The prompt with its control tokens written out."""
        names = {token: string for string, token in CONTROL.items()}
        assert isinstance(prompt, tuple)
        out, run = "", b""
        for i in prompt:
            assert isinstance(i, int)
            if i in names:
                out, run = out + run.decode() + names[i], b""
            else:
                run += bytes([i])
        return out + run.decode(errors="replace")

    def score(self, prompt: Prompt, continuations: Sequence[Sequence[int]]) -> list[list[float]]:
        before = self.prompt_text(tuple(prompt))  # type: ignore[arg-type]
        self.scored.append((before, [self.tokenizer.decode(each) for each in continuations]))
        return [[self.logprob(tuple(prompt) + tuple(each[:k]), each[k]) for k in range(len(each))] for each in continuations]

    @staticmethod
    def logprob(before: Sequence[object], token: int) -> float:
        """Any fixed function of the context will do."""
        digest = hashlib.sha256(repr((tuple(before), token)).encode()).digest()
        return -0.1 - digest[0] / 64

    def cancel(self, request_id: str) -> None:
        raise EngineError("never called")

    def close(self) -> None:
        self.closed = True


def beam_result(text: str, request: Request) -> BeamResult:
    import json

    value = json.loads(text) if request.grammar is not None and request.grammar.kind == "json_schema" else text
    best = Hypothesis(text=text, token_ids=(1,), token_logprobs=(-1.0,), score=-0.5, sum_logprob=-1.0, value=value)
    return BeamResult(
        value=value, text=text, valid=True, score=-0.5, sum_logprob=-1.0, alternatives=(best,),
        confidence={"/a": FieldConfidence(0.5, 0.25, 2)}, usage=Usage(input_tokens=3, output_tokens=2),
    )  # fmt: skip
