"""Backend: any engine of this toolkit as a SGLang backend.

    sgl.set_default_backend(EmbeddedBackend())

In: a program's text and the parameters of its next segment.   Out: text and meta info, as SGLang's interpreter wants them.
Every segment is one request: segments of forks and of `run_batch`, whose threads run at once, are decoded together by the
engine. A program's text is a string with the chat template's control strings in it, so they are recognised wherever they
stand; text from outside that must not open or close a turn has to be cleaned before it is put into a program.
An error ends the program: see `toolkit.lang.failure`. What cannot be done is refused by name.

Knows nothing about: models, sampling, how beams are searched.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.chat_template import ChatTemplate
from sglang.lang.choices import ChoicesDecision, ChoicesSamplingMethod, token_length_normalized
from sglang.lang.interpreter import StreamExecutor
from sglang.lang.ir import SglSamplingParams

from toolkit.contracts import BeamResult, Completion, Delta, Done, Engine, Json, Request
from toolkit.engine.engine import open_engine, prepare_engine
from toolkit.engine.guard import guarded
from toolkit.engine.watch import Checks, judged
from toolkit.errors import EngineError, UnsupportedError, UsageError
from toolkit.lang.choices import choose
from toolkit.lang.failure import close_on_error
from toolkit.lang.found import require_valid
from toolkit.lang.meta import beam_meta, completion_meta, entry
from toolkit.lang.params import Asked, ask
from toolkit.lang.template import NO_ROLES, check_name, end_ids, template_of
from toolkit.results import answered

Meta = dict[str, Json]
close_on_error(StreamExecutor)


class EmbeddedBackend(BaseBackend):
    """A SGLang backend over `engine`, or over an embedded engine that is started when the first program runs.

    `model` and further `options` are those of `toolkit.engine.embedded.EmbeddedEngine`; an unknown one is refused at once, a value
    when the engine starts. `chat_template` names one of SGLang's
    templates; None takes the one that agrees with the model's own.
    """

    is_chat_model = False  # SGLang then completes text; roles are text here
    closes_failed = True  # an executor ends with its first error: see toolkit.lang.failure

    def __init__(
        self, engine: Engine | None = None, *, model: str = "smollm2", chat_template: str | None = None, **options: Any
    ) -> None:
        super().__init__()
        if engine is not None and (options or model != "smollm2"):
            raise UsageError("EmbeddedBackend takes an engine or the options to start one, not both")
        if options:  # and with them the engine's module, which takes seconds: without options it is loaded when it starts
            prepare_engine("embedded", model=model, **options)
        if chat_template is not None:
            check_name(chat_template)
        self._engine, self._owned = engine, engine is None
        self._kind, self._options = "embedded", {"model": model, **options}
        self._template_name = chat_template
        self._lock = threading.Lock()

    @property
    def engine(self) -> Engine:
        """The engine, started at first use."""
        with self._lock:
            if self._engine is None:
                self._engine = open_engine(self._kind, **self._options)
            return self._engine

    # What SGLang asks of a backend

    def get_model_name(self) -> str:
        """The engine's name of its model."""
        return self.engine.capabilities.model

    def get_server_info(self) -> Meta:
        """The engine's capabilities."""
        return asdict(self.engine.capabilities)

    def get_chat_template(self) -> ChatTemplate:
        """The template that roles are written with; SGLang asks for it while it builds an executor."""
        try:
            return self._template
        except Exception:  # no engine: the first segment will raise it again, where SGLang can report it
            return NO_ROLES

    @cached_property
    def _template(self) -> ChatTemplate:
        return template_of(self.engine.tokenizer, name=self._template_name)

    @cached_property
    def _end_ids(self) -> tuple[int, ...]:
        return end_ids(self._template, self.engine.tokenizer)

    def flush_cache(self) -> None:
        """Refused: an engine's prefix cache has no such verb."""
        raise UnsupportedError("flush_cache is not supported: the engine evicts unused prefixes by itself")

    def shutdown(self) -> None:
        """Close the engine if this backend started it."""
        if self._owned and self._engine is not None:
            self._engine.close()

    def generate(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> tuple[str | list[str], Meta | list[Meta]]:
        """Text and meta info of the next segment; lists of both where n > 1 samples are asked for."""
        asked = self._ask(s, sampling_params)
        request = self._request(s, asked)
        results = self._results(request, asked)
        texts = [each.text for each in results]
        metas = [self._meta(each, request, asked) for each in results]
        return (texts, metas) if asked.beam is None and asked.sampling.n > 1 else (texts[0], metas[0])

    def generate_stream(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> Iterator[tuple[str, Meta]]:
        """Pieces of the next segment's text as they come; the last one with the whole meta info.

        A piece is held until the next one or the end is there, so that the last piece and its meta info are one step:
        SGLang's asynchronous iterator never shows meta info that comes without text. What comes in one piece: a beam search, a
        segment with policies, whose first text may not be the one that stands.
        """
        asked = self._ask(s, sampling_params)
        if asked.sampling.n > 1:
            raise UnsupportedError(f"n = {asked.sampling.n} in a streamed program is not supported: a stream is one sample")
        request = self._request(s, asked)
        if asked.policies:
            (result,) = self._results(request, asked)
            yield result.text, self._meta(result, request, asked)
            return
        held, shown, tokens = "", "", 0
        for event in answered(self.engine.generate([request]), request.sampling.n):
            if isinstance(event, Done):
                result = self._judged(event.result, request)
                _check_streamed(result, shown, asked)
                yield result.text[len(shown) :], self._meta(result, request, asked)
            elif isinstance(event, Delta):
                if held and event.text:
                    yield held, {"id": request.id, "completion_tokens": tokens, "finish_reason": None}
                    shown += held
                held, tokens = event.text or held, tokens + len(event.token_ids)

    def select(
        self,
        s: StreamExecutor,
        choices: list[str],
        temperature: float,
        choices_method: ChoicesSamplingMethod | None = None,
    ) -> ChoicesDecision:
        """The choice that is likeliest by `choices_method`."""
        self._check(s)
        return choose(self.engine, s.text_, choices, temperature, choices_method or token_length_normalized)

    # From a segment to a request and back

    def _results(self, request: Request, asked: Asked) -> list[Completion | BeamResult]:
        """Every sample of a request, or what the last of its attempts gave; raises for texts that are not what they have to be."""
        if asked.policies:
            texts = [guarded(self.engine, request, asked.policies)]
            require_valid([] if asked.keep_invalid else texts)
            return list(texts)
        events = answered(self.engine.generate([request]), request.sampling.n)
        done = {event.index: self._judged(event.result, request) for event in events if isinstance(event, Done)}
        results = [done[index] for index in sorted(done)]
        require_valid([] if asked.keep_invalid else [each for each in results if isinstance(each, Completion)])
        return results

    def _judged(self, done: Completion | BeamResult, request: Request) -> Completion | BeamResult:
        """With a verdict, also where the engine leaves that to us."""
        if isinstance(done, BeamResult) or done.valid is not None:
            return done
        return judged(Checks.of(request), done, self.engine.tokenizer)

    def _ask(self, s: StreamExecutor, params: SglSamplingParams) -> Asked:
        self._check(s)
        return ask(params, end_ids=self._end_ids)

    def _check(self, s: StreamExecutor) -> None:
        """Refuse what the program did before this segment and this backend cannot take in."""
        if s.images_:
            raise UnsupportedError(
                f"images and videos are not supported: model {self.get_model_name()} reads text only",
                hint="leave sgl.image and sgl.video out of the program",
            )
        if self._template is NO_ROLES and (s.messages_ or s.cur_role):
            raise UnsupportedError(
                f"roles are not supported: the chat template of model {self.get_model_name()} agrees with none of SGLang's",
                hint="name one of SGLang's, as in EmbeddedBackend(chat_template='chatml'), or write the program without roles",
            )

    def _request(self, s: StreamExecutor, asked: Asked) -> Request:
        ids = tuple(self.engine.tokenizer.encode(s.text_, control=True))
        name = f"sgl-{uuid.uuid4().hex[:12]}"
        return Request(
            prompt=ids, id=name, sampling=asked.sampling, beam=asked.beam, grammar=asked.grammar, speculate=asked.speculate,
            watch=asked.watch,
        )  # fmt: skip

    def _meta(self, done: Completion | BeamResult, request: Request, asked: Asked) -> Meta:
        if isinstance(done, BeamResult):
            return beam_meta(done, request_id=request.id)
        tokenizer = self.engine.tokenizer if asked.logprob_text else None
        meta = completion_meta(done, request_id=request.id, tokenizer=tokenizer)
        if asked.input_logprobs_from is not None:
            meta["input_token_logprobs"] = self._input_logprobs(request.prompt, asked)
        return meta

    def _input_logprobs(self, prompt: Any, asked: Asked) -> list[list[Any]]:
        """Entries of the prompt's tokens from a position on; the first of them is null, as SGLang's server has it."""
        start = min(asked.input_logprobs_from or 0, len(prompt) - 1)
        rest: Sequence[int] = prompt[start + 1 :]
        scored = self.engine.score(prompt[: start + 1], [rest])[0] if rest else []
        tokenizer = self.engine.tokenizer if asked.logprob_text else None
        return [entry(logprob, i, tokenizer) for logprob, i in zip([None, *scored], prompt[start:], strict=True)]


def _check_streamed(done: Completion | BeamResult, shown: str, asked: Asked) -> None:
    """A stream is not taken back: an error where what it has shown is not the text, or not what it has to be."""
    if not done.text.startswith(shown):
        raise EngineError(
            "speculation was found to be wrong after its text had been streamed", hint="run this program without stream=True"
        )
    if isinstance(done, Completion) and not asked.keep_invalid:
        require_valid([done])
