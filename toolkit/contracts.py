"""Contracts: the frozen records and protocols that cross layers.

Letters for shapes: B batch, T tokens, N tree nodes, V vocabulary, L layers, H heads, D width.
Units: seconds for times, natural logarithms for log-probabilities, blocks and tokens as plain counts.
Knows nothing about: torch, SGLang, or any grammar engine. Records are checked at birth and passed whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from toolkit.errors import ToolkitError, UsageError

Json: TypeAlias = Any  # a parsed JSON value: None, bool, int, float, str, list, dict with str keys
Message: TypeAlias = Mapping[str, Any]  # {"role": "system" | "user" | "assistant" | "tool", "content": str}
Prompt: TypeAlias = "str | Sequence[int] | Sequence[Message]"  # raw text as it is, token ids, or a chat for the template
Mask: TypeAlias = "npt.NDArray[np.int32]"  # [B, ceil(V/32)], bit 1 = allowed
FinishReason = Literal["stop", "length", "grammar", "cancelled"]
GrammarKind = Literal["json_schema", "regex", "lark", "choices"]
WatchKind = Literal["json", "tools", "code"]


def require(ok: bool, what: str, value: object, allowed: str) -> None:
    """Raise UsageError naming the thing, the value and what is allowed, unless `ok`."""
    if not ok:
        raise UsageError(f"{what} = {value!r} is not allowed: {allowed}")


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_real(value: object, least: float, most: float = math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and least <= value <= most


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn. temperature 0 is greedy; every default is neutral.

    Order of effect, the same on every path: logit bias, repetition / presence / frequency penalty, min_tokens (no end),
    grammar mask, temperature, top-k, top-p, min-p. `min_tokens` bans end tokens and stop ids; a stop string, or a grammar that
    nothing can follow, still ends the text. `seed` None draws a fresh seed; it is then reported in the result.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # CTRL (1909.05858): divides positive, multiplies negative logits of seen tokens
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int = 256
    n: int = 1
    seed: int | None = None
    logprobs: int | None = None  # None = none; k >= 0 = chosen token plus the k likeliest
    logprob_ids: tuple[int, ...] = ()  # log-probabilities of these ids at every step

    def __post_init__(self) -> None:
        require(_is_real(self.temperature, 0.0, 100.0), "temperature", self.temperature, "a number from 0 (greedy) to 100")
        require(_is_count(self.top_k, 0), "top_k", self.top_k, "an integer >= 0 (0 = off)")
        require(_is_real(self.top_p, 0.0, 1.0) and self.top_p > 0, "top_p", self.top_p, "a number in (0, 1]")
        require(_is_real(self.min_p, 0.0, 1.0), "min_p", self.min_p, "a number in [0, 1]")
        require(_is_real(self.repetition_penalty, 1e-6, 100.0), "repetition_penalty", self.repetition_penalty, "a number > 0")
        for name in ("presence_penalty", "frequency_penalty"):
            require(_is_real(getattr(self, name), -100.0, 100.0), name, getattr(self, name), "a number from -100 to 100")
        require(_is_count(self.max_tokens, 1), "max_tokens", self.max_tokens, "an integer >= 1")
        require(
            _is_count(self.min_tokens, 0) and self.min_tokens <= self.max_tokens,
            "min_tokens", self.min_tokens, f"an integer from 0 to max_tokens = {self.max_tokens}",
        )  # fmt: skip
        require(_is_count(self.n, 1) and self.n <= 256, "n", self.n, "an integer from 1 to 256")
        require(
            isinstance(self.logit_bias, Mapping) and all(_is_count(i, 0) and _is_real(v, -1e4, 1e4) for i, v in self.logit_bias.items()),
            "logit_bias", self.logit_bias, "a mapping of token ids to numbers from -10000 to 10000",
        )  # fmt: skip
        for name in ("stop_ids", "logprob_ids"):
            ids = getattr(self, name)
            require(isinstance(ids, tuple) and all(_is_count(i, 0) for i in ids), name, ids, "a tuple of token ids")
        require(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "True or False")
        require(self.seed is None or _is_count(self.seed, 0), "seed", self.seed, "None or an integer >= 0")
        require(self.logprobs is None or _is_count(self.logprobs, 0), "logprobs", self.logprobs, "None or an integer >= 0")
        is_tuple = isinstance(self.stop, tuple)
        require(
            is_tuple and all(isinstance(s, str) and s for s in self.stop), "stop", self.stop, "a tuple of non-empty strings"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamParams:
    """How a beam search runs and how its hypotheses are ranked.

    `penalty`: "length" is sum / length**alpha (SGLang's server with alpha 1, transformers with length_penalty = alpha; the
    end token counts), "gnmt" is sum / ((5+length)/6)**alpha (1609.08144, eq. 14). alpha 0 is the pure sequence likelihood. `groups` > 1 is diverse beam search (1610.02424):
    a token that earlier groups took at this step costs `diversity` nats in the choice, never in the reported score.
    """

    width: int = 4
    alpha: float = 1.0
    penalty: Literal["length", "gnmt"] = "length"
    n: int | None = None  # hypotheses returned; None = width
    groups: int = 1
    diversity: float = 0.0
    max_tokens: int = 256

    def __post_init__(self) -> None:
        require(_is_count(self.width, 1) and self.width <= 256, "width", self.width, "an integer from 1 to 256")
        require(_is_real(self.alpha, 0.0, 10.0), "alpha", self.alpha, "a number from 0 (pure likelihood) to 10")
        require(self.penalty in ("length", "gnmt"), "penalty", self.penalty, "length or gnmt")
        require(self.n is None or (_is_count(self.n, 1) and self.n <= self.width), "n", self.n, f"1 to width = {self.width}")
        require(
            _is_count(self.groups, 1) and self.width % self.groups == 0, "groups", self.groups, f"a divisor of {self.width}"
        )
        require(_is_real(self.diversity, 0.0), "diversity", self.diversity, "a number >= 0")
        require(self.groups > 1 or self.diversity == 0, "diversity", self.diversity, "0 unless groups > 1")
        require(_is_count(self.max_tokens, 1), "max_tokens", self.max_tokens, "an integer >= 1")


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language that a segment must be in. `source` is canonical text: JSON for json_schema and choices (a list).

    `python_type` is what pydantic validates the parsed value with (None = schema only); `judge` has the last word over a text
    in place of the source; `partial` is what the source is known not to say and the judge decides. Neither python_type nor
    judge takes part in equality.
    """

    kind: GrammarKind
    source: str
    python_type: object | None = field(default=None, compare=False, repr=False)
    judge: Callable[[str], Report] | None = field(default=None, compare=False, repr=False)
    partial: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.kind in get_args(GrammarKind), "grammar kind", self.kind, ", ".join(get_args(GrammarKind)))
        require(isinstance(self.source, str), "grammar source", self.source, "text (see toolkit.grammar_of for Python types)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a text has to be, whether or not a grammar makes it so: it is read while it comes and judged again at its end.

    json: one JSON value, of `schema` (JSON text) where given. tools: a turn in a tool format, `tools` the offered functions as
    JSON text (a list), `choice`, `parallel` and `reasoning` as in `tool_stream`. code: Python or JSON that parses; where the text has a
    fence of three backticks, what stands in the first one. `python_type` as in Grammar, with a schema.
    """

    kind: WatchKind
    schema: str | None = None
    format: str = ""
    tools: str = ""
    choice: str = "auto"
    parallel: int = 64
    reasoning: Literal["tags", "open", "off"] = "tags"
    language: Literal["python", "json"] = "python"
    python_type: object | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        require(self.kind in get_args(WatchKind), "watch kind", self.kind, ", ".join(get_args(WatchKind)))
        require(self.schema is None or isinstance(self.schema, str), "watch schema", self.schema, "JSON text or None")
        require(self.schema is None or self.kind == "json", "watch schema", self.schema, "None unless kind is json")
        for name in ("format", "tools"):
            value = getattr(self, name)
            require(isinstance(value, str), f"watch {name}", value, "text")
            require(bool(value) == (self.kind == "tools"), f"watch {name}", value, "given exactly where kind is tools")
        require(isinstance(self.choice, str), "watch choice", self.choice, "auto, required, none or the name of a tool")
        require(_is_count(self.parallel, 1), "watch parallel", self.parallel, "an integer >= 1")
        require(self.reasoning in ("tags", "open", "off"), "watch reasoning", self.reasoning, "tags, open or off")
        require(self.language in ("python", "json"), "watch language", self.language, "python or json")
        require(self.language == "python" or self.kind == "code", "watch language", self.language, "python unless kind is code")
        require(
            self.python_type is None or self.schema is not None, "watch python_type", self.python_type, "None without schema"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One unit of work: sampled text (`beam` None) or a beam search (`sampling` then only contributes nothing).

    The text of a json_schema grammar is watched by itself: a mask proves nothing once what verifies drafts is at fault.
    """

    prompt: Prompt
    id: str = ""  # "" = the engine gives one
    sampling: SamplingParams = field(default_factory=SamplingParams)
    beam: BeamParams | None = None
    grammar: Grammar | None = None
    speculate: bool = True  # False decodes without the engine's drafter
    trace: bool = False  # keep what every pass verified (Completion.trace)
    watch: Watch | None = None

    def __post_init__(self) -> None:
        is_prompt = isinstance(self.prompt, Sequence) and not isinstance(self.prompt, bytes | bytearray | memoryview)
        require(is_prompt, "prompt", self.prompt, "text, a sequence of token ids, or a sequence of messages")
        require(isinstance(self.id, str), "request id", self.id, "a string")
        require(isinstance(self.sampling, SamplingParams), "sampling", self.sampling, "SamplingParams")
        require(self.beam is None or isinstance(self.beam, BeamParams), "beam", self.beam, "None or BeamParams")
        require(self.grammar is None or isinstance(self.grammar, Grammar), "grammar", self.grammar, "None or a Grammar")
        require(self.watch is None or isinstance(self.watch, Watch), "watch", self.watch, "None or a Watch")
        for name in ("speculate", "trace"):
            require(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a generated token under the unmasked model at temperature 1, with the likeliest and asked-for ids."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    asked: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a request has cost so far, all of its samples together.

    Rows are token rows sent through the model, passes are forward passes it took part in. The books of sampled text balance:
    output_tokens = steps + accepted + appended - trimmed - discarded (summed over all samples of the request).
    """

    input_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens whose KV was found, not computed
    restored_tokens: int = 0  # of those: read from files that an engine wrote before (prefix_dir)
    output_tokens: int = 0
    forced_tokens: int = 0  # tokens that the grammar left no choice about, over all lines of the request
    passes: int = 0
    rows: int = 0
    steps: int = 0  # passes from which a sample drew, the one of the prompt included
    appended: int = 0  # tokens that the grammar forced behind a step's own token
    verify_passes: int = 0  # steps that verified a draft
    rested: int = 0  # steps in which nothing was drafted, because looking ahead did not pay there
    proposed: int = 0  # draft tokens verified: nodes of all trees, after what a grammar forbids was cut
    accepted: int = 0
    proposed_by_position: tuple[int, ...] = ()  # passes whose draft reached so far: entry 0 is the first token after the root
    accepted_by_position: tuple[int, ...] = ()
    trimmed: int = 0  # steps that gave no token of their own: the text ended before it
    discarded: int = 0  # tokens that a recovery took back: plain decoding would not have written them
    rechecked: int = 0  # tokens that recoveries and audits read again
    draft_s: float = 0.0  # seconds inside the drafter
    guard_s: float = 0.0  # CPU seconds spent on looking at the text and judging it; reading it again not counted
    kv_blocks_peak: int = 0
    kv_blocks_shared: int = 0  # at the peak: blocks referenced by more than one sequence or also by the prefix cache
    requests: int = 0  # HTTP requests it took part in, repeated ones included; 0 without a server
    tokens_sent: int = 0  # prompt tokens of its lines in those requests; rows of them were computed, the rest was cached


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds. decode_tok_s = (output tokens - 1) / (e2e_s - ttft_s), 0 when there is no second token."""

    queue_s: float = 0.0
    ttft_s: float = 0.0
    e2e_s: float = 0.0
    decode_tok_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PassTrace:
    """What one pass verified and emitted: the tree (tokens [N], parent [N], -1 = root), the nodes accepted, the tokens that came.

    `emitted` are all new tokens in order: those of the accepted nodes (forced ones among them) first, then the correction or
    bonus token, then what the grammar forced behind it.
    """

    tokens: tuple[int, ...]
    parent: tuple[int, ...]
    accepted: tuple[int, ...]
    emitted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a value is not valid: where (JSON pointer, "" = the root), which keyword, what was expected, what was found."""

    path: str
    keyword: str
    expected: str
    found: str
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """A validator's verdict over a text: the parsed value (None where it did not parse) and every violation."""

    value: Json
    violations: tuple[Violation, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.violations


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Speculated text that was found to be wrong. `position` counts tokens, `offset` bytes of the generated text: where the text first
    parts from plain decoding; where it does not, or cannot be compared, where the fault was noticed.

    kind "speculation": plain decoding gives another text, and that is what the result holds. "model": it gives the same, the fault is
    the model's own. found_by "grammar", "engine": the grammar refused a token of it, or the engine failed on it. "unclear": the drafts were drawn, so that plain decoding need not give the same; the model may have meant it.
    """

    kind: Literal["speculation", "model", "unclear"]
    found_by: Literal["parser", "validator", "audit", "grammar", "engine"]
    drafter: str
    position: int
    offset: int
    tokens: tuple[int, ...]  # of the pass in which it was noticed
    why: str
    streamed: bool = False  # wrong text had been told already and could not be taken back


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Speculated text that the target has read again without speculation. "not checkable" is no pass.

    method "argmax": every token is the likeliest up to `ties` (nats). "seed": plain decoding with the same random numbers draws the
    same tokens. "likelihood": no test against the model's distribution is failed; `log_evidence` is the natural logarithm of the
    evidence against it, and exceeds log(1 / alarm) with a probability of at most `alarm` where nothing is wrong.
    """

    verdict: Literal["pass", "fail", "not checkable"]
    method: Literal["argmax", "seed", "likelihood", "none"]
    tokens: int = 0
    ties: float = 0.0
    log_evidence: float = 0.0
    alarm: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a valid text. `policy` "" is the first; `error` says why a try gave nothing."""

    policy: str
    text: str = ""
    finish_reason: FinishReason | None = None
    valid: bool | None = None
    violations: tuple[Violation, ...] = ()
    incidents: tuple[Incident, ...] = ()
    usage: Usage = field(default_factory=Usage)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished sample. `text` stops before stop strings.

    `valid` is None where there was nothing to judge the text by, else what the validator says of it at its end, from scratch;
    `value` is then the parsed value (tools: content, reasoning and calls). A text that was cut off has the violation "max_tokens".
    `token_ids` holds every generated token, a chosen end token included. finish_reason "grammar" means that nothing could
    follow: the end token was then not decoded. `partial` lists what the grammar could not enforce and a validator decided.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    matched_stop: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    seed: int | None = None
    notes: tuple[str, ...] = ()  # what the caller should know, such as speculation that was switched off
    trace: tuple[PassTrace, ...] = ()  # one entry a pass, only where the request asked for it
    usage: Usage = field(default_factory=Usage)
    timing: Timing = field(default_factory=Timing)
    partial: tuple[str, ...] = ()
    value: Json = None
    valid: bool | None = None
    violations: tuple[Violation, ...] = ()
    incidents: tuple[Incident, ...] = ()
    audit: Audit | None = None  # None = not chosen for one
    attempts: tuple[Attempt, ...] = ()  # every try of `guarded`, the one that is returned among them


@dataclass(frozen=True, slots=True)
class FieldConfidence:
    """Confidence of one value: probabilities of its tokens renormalised over what the grammar allowed at each of them.

    `margin` is this hypothesis' score less the best score among the valid n-best that hold another value there (None = all
    agree). A number's probability includes that of ending there: no closing quote does that for it.
    """

    product: float
    minimum: float
    tokens: int
    margin: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One finished beam: scores are natural logs, `score` normalised, `sum_logprob` not; the end token is counted in both."""

    text: str
    token_ids: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    score: float
    sum_logprob: float
    value: Json = None
    valid: bool = True
    violations: tuple[Violation, ...] = ()
    finish_reason: FinishReason = "grammar"
    confidence: Mapping[str, FieldConfidence] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamResult:
    """The best valid hypothesis and the n-best it was chosen from (best first, distinct values).

    `diversity` is the mean share of differing tokens over pairs of alternatives, 0 (all alike) to 1.
    `partial` lists what the grammar could not enforce and the validator decided.
    """

    value: Json
    text: str
    valid: bool
    score: float
    sum_logprob: float
    alternatives: tuple[Hypothesis, ...]
    confidence: Mapping[str, FieldConfidence] = field(default_factory=dict)
    diversity: float = 0.0
    partial: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of sample `index` of a request: any number of tokens. A delta is not a token (`results.token_events`).

    `text` is what they made safe to show, whole characters, never a part of a stop string; it may be "". `texts` has each token's
    share of it (a token that ends inside a character or a possible stop string has ""), () where the engine does not say.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()  # one a token, where asked for and known by then (a server's: in the result alone)
    usage: Usage | None = None  # what the request has cost so far


@dataclass(frozen=True, slots=True)
class Done:
    """A sample (Completion) or a beam search (BeamResult) ended."""

    request_id: str
    index: int
    result: Completion | BeamResult


@dataclass(frozen=True, slots=True)
class Failed:
    """A request ended in an error; other requests go on."""

    request_id: str
    error: ToolkitError


Event: TypeAlias = Delta | Done | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do; anything else it refuses with UnsupportedError."""

    engine: str
    model: str
    fingerprint: str
    context: int  # tokens, prompt and output together
    vocab_size: int
    grammars: tuple[GrammarKind, ...]
    beam: bool
    score: bool
    drafters: tuple[str, ...] = ("none",)


@runtime_checkable
class Tokenizer(Protocol):
    """Strings to token ids and back. Byte-level: every token is a byte string, and ids concatenate to the text's bytes."""

    vocab_size: int
    eos_ids: tuple[int, ...]
    control_ids: frozenset[int]  # never legal inside a constrained segment, never shown as text
    fingerprint: str

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """Token ids of `text`. Control tokens are recognised only with `control`: user text cannot forge them."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`, control tokens left out, invalid UTF-8 replaced by U+FFFD."""

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that a token stands for (b"" for control tokens)."""

    def chat(self, messages: Sequence[Message], *, generate: bool = True) -> list[int]:
        """Ids of a chat in the model's template; with `generate`, opened for the assistant's turn."""


@runtime_checkable
class Matcher(Protocol):
    """State of one grammar over one sequence: which token may come next.

    Laws: a fork never changes its parent; advance then rollback is the identity; a refused `advance` changes nothing.
    `is_accepting` (the end is legal now) is not `is_stopped` (nothing but the end is legal).
    """

    def fill(self, mask: Mask, row: int) -> None:
        """Write the allowed set into mask[row]. The end tokens are allowed exactly where `is_accepting`."""

    def advance(self, tokens: Sequence[int]) -> None:
        """Consume tokens (no end token). Raises UsageError, unchanged, if one is not allowed."""

    def accepts(self, tokens: Sequence[int]) -> int:
        """How many leading tokens could be consumed now; changes nothing."""

    def rollback(self, n: int) -> None:
        """Undo the last n tokens; UsageError beyond what was consumed."""

    def fork(self) -> Matcher:
        """An independent copy."""

    def forced(self) -> list[int]:
        """Tokens that must follow (canonical tokenisation of forced text), [] where there is a choice; no end token."""

    @property
    def is_accepting(self) -> bool: ...

    @property
    def is_stopped(self) -> bool: ...


class CompiledGrammar(Protocol):
    """A grammar ready for one tokenizer; `matcher()` gives a fresh state. `partial` says what only the validator enforces."""

    partial: tuple[str, ...]

    def matcher(self) -> Matcher: ...


@runtime_checkable
class Engine(Protocol):
    """What runs requests. Thread-safe: requests of several callers are decoded together."""

    tokenizer: Tokenizer

    @property
    def capabilities(self) -> Capabilities: ...

    def generate(self, requests: Iterable[Request]) -> Iterator[Event]:
        """Run requests together; deltas and results as they come, each request ends in Done (one a sample) or Failed."""

    def score(self, prompt: Prompt, continuations: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of every token of every continuation after the prompt."""

    def cancel(self, request_id: str) -> None:
        """Ask a request to stop: its samples end with finish_reason "cancelled", a beam search in Failed(CancelledError)."""

    def close(self) -> None:
        """Stop and free everything; further calls raise EngineError."""
