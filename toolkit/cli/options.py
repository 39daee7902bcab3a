"""Options: the groups of options that several commands share, and the records they become.

A decorator adds a group of options to a command; the function beside it takes that group out of the command's keyword arguments.
Defaults are those of the contracts' records, read from there.
Knows nothing about: what a command does with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import click

from toolkit.cli.kinds import TEXT, place
from toolkit.cli.output import argument_text, decoded, read_bytes
from toolkit.cli.remote import NAMES, REMOTE_OPTIONS, refuse_others, taken
from toolkit.contracts import BeamParams, Engine, Grammar, Json, Prompt, SamplingParams
from toolkit.engine.engine import is_url
from toolkit.errors import EngineError, InputError, UsageError

F = TypeVar("F", bound=Callable[..., Any])
MOST_THREADS = 1024
MOST_KV_BLOCKS = 1 << 20
EMBEDDED_OPTIONS = ("model", "threads", "dtype", "format", "kv_blocks", "kv_dtype", "prefix_dir", "prefix_bytes")
DRAFT_OPTIONS = ("drafter", "draft_tokens", "draft_nodes", "draft_more")
RESULT_OPTIONS = ("dtype", "format", "kv_dtype")  # engine options that change what comes out
GRAMMAR_OPTIONS = {"schema": "--schema", "regex": "--regex", "choices": "--choice", "lark": "--lark"}


def _group(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _default(record: type, name: str) -> Any:
    value = next(field.default for field in fields(record) if field.name == name)
    return None if value is MISSING else value


def _knob(record: type, name: str, kind: Any, text: str) -> Callable[[F], F]:
    return click.option(
        f"--{name.replace('_', '-')}", name, type=kind, default=_default(record, name), show_default=True, help=text
    )


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line of stdout.")

engine_options = _group(
    click.option(
        "--engine", default="embedded", type=TEXT, show_default=True, help="Who decodes: embedded, or a server's URL."
    ),
    click.option(
        "--model",
        default="smollm2",
        type=TEXT,
        show_default=True,
        help="A stored model, a folder, a .gguf file, or tiny (random).",
    ),
    click.option("--threads", type=click.IntRange(1, MOST_THREADS), help="CPU threads.  [default: all cores]"),
    click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True),
    click.option(
        "--format",
        type=click.Choice(["auto", "int8", "int4", "float32"]),
        default="auto",
        show_default=True,
        help="Numbers: int8 or int4 native, float32 torch; auto: int8 on the CPU where it can.",
    ),
    click.option(
        "--kv-blocks",
        type=click.IntRange(1, MOST_KV_BLOCKS),
        help="KV blocks in all: the memory for sequences decoded together.",
    ),
    click.option(
        "--kv-dtype",
        type=click.Choice(["auto", "q4"]),
        default="auto",
        show_default=True,
        help="Keys and values: as the model computes, or 4 bits a number (torch only; other outputs).",
    ),
    click.option(
        "--prefix-cache", "prefix_dir", type=place(files=False),
        help="Folder of your own that keeps prompts' keys and values for later runs: the same results, sooner.",
    ),
    click.option("--prefix-bytes", type=click.IntRange(1), help="The most that may lie there.  [default: 2 GiB]"),
    *REMOTE_OPTIONS,
)  # fmt: skip

draft_options = _group(
    click.option("--drafter", type=TEXT, help="Who guesses ahead: mtp, medusa, model, ngram, ngram+mtp.  [default: none]"),
    click.option("--tokens", "draft_tokens", type=int, help="Tokens drafted on a path.  [default: by measurement]"),
    click.option("--nodes", "draft_nodes", type=int, help="Nodes of a draft tree.  [default: by measurement]"),
    click.option(
        "--draft-option",
        "draft_more",
        type=TEXT,
        multiple=True,
        metavar="NAME=VALUE",
        help="The drafter's own, such as min_match=3 or ngram.min_match=3; repeatable.",
    ),
)


def _drafting(options: dict[str, Any]) -> dict[str, Any]:
    """`drafter` and `draft` of the draft options, as far as they were given; the options are taken out."""
    drafter, more = options.pop("drafter", None), options.pop("draft_more", ())
    draft = {name: value for name in ("tokens", "nodes") if (value := options.pop(f"draft_{name}", None)) is not None}
    for item in more:
        name, given, value = item.partition("=")
        *groups, last = name.split(".")
        place = draft
        for group in groups:
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                raise UsageError(f"--draft-option {item!r}: {group} was given a value already: it has no parts")
        if not given or not all((*groups, last)) or last in place:
            raise UsageError(f"--draft-option {item!r} is not NAME=VALUE, or its name was given before")
        place[last] = _value(value)
    return {key: value for key, value in (("drafter", drafter), ("draft", draft)) if value}


def _value(text: str) -> Json:
    """A number, true or false where the text is one, else the text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text


@contextmanager
def opened(options: dict[str, Any], **more: Any) -> Iterator[Engine]:
    """The engine that the engine options ask for (taken out of `options`), with `more` options of its own, closed at the end.

    UsageError where the model is damaged, or the KV blocks asked for do not fit into memory.
    """
    engine = _engine(options, more)
    try:
        yield engine
    finally:
        engine.close()


def leave_out_drafter(engine: Engine) -> None:
    """An engine's name may hold a drafter, which a beam search has no use for: say so."""
    source = getattr(engine, "parts", (None, None))[1]
    if source is not None:
        click.echo(f"note: a beam search is never speculated: the drafter {source.name!r} is left out", err=True)


def _engine(options: dict[str, Any], more: dict[str, Any]) -> Engine:
    from toolkit import open_engine

    name = options.pop("engine")
    served = taken(options)
    if is_url(name):
        refuse_others({key: options.pop(key, None) for key in (*EMBEDDED_OPTIONS, *DRAFT_OPTIONS)}, remote=True)
        return open_engine(name, **served, **more)
    refuse_others(dict.fromkeys(NAMES), remote=False)
    wanted = {key: options.pop(key) for key in EMBEDDED_OPTIONS} | _drafting(options) | more
    try:
        return open_engine(name, **{key: value for key, value in wanted.items() if value is not None})
    except InputError as error:
        raise UsageError(f"--model {wanted['model']}: {error.message}", hint=error.hint) from error
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or "memory" in str(error)):  # torch's own are RuntimeErrors
            raise
        if wanted["kv_blocks"] is not None:
            raise UsageError(f"--kv-blocks {wanted['kv_blocks']} do not fit into memory", hint="fewer of them") from error
        raise EngineError(f"model {wanted['model']} does not fit into memory", hint="--dtype bfloat16, --kv-blocks") from error


def result_options(options: dict[str, Any]) -> dict[str, Json]:
    """Those of the engine options that change results; they stay in `options`. A server has none: it is what it is."""
    if is_url(options["engine"]):
        return {}
    kept = {name: options[name] for name in RESULT_OPTIONS if name in options}
    if kept.get("kv_dtype") == "auto":  # as it was before there was a choice: older jobs go on
        del kept["kv_dtype"]
    return kept


sampling_options = _group(
    _knob(SamplingParams, "temperature", float, "0 is greedy."),
    _knob(SamplingParams, "top_k", int, "Only the k likeliest tokens; 0 is off."),
    _knob(SamplingParams, "top_p", float, "Only the likeliest tokens that make up this probability."),
    _knob(SamplingParams, "min_p", float, "Only tokens at least this likely, relative to the likeliest."),
    _knob(SamplingParams, "repetition_penalty", float, "Divides the logits of tokens seen."),
    _knob(SamplingParams, "presence_penalty", float, "Taken off the logits of tokens generated."),
    _knob(SamplingParams, "frequency_penalty", float, "The same, for every time generated."),
    click.option("--logit-bias", type=TEXT, multiple=True, metavar="ID=BIAS", help="Added to a token's logit; repeatable."),
    click.option("--stop", type=TEXT, multiple=True, help="Text that ends generation; repeatable."),
    click.option("--stop-id", "stop_ids", type=int, multiple=True, help="Token id that ends generation; repeatable."),
    click.option("--ignore-eos", is_flag=True, help="Go on after the end token."),
    _knob(SamplingParams, "min_tokens", int, "No end before this many tokens."),
    _knob(SamplingParams, "max_tokens", int, "End after this many tokens."),
    _knob(SamplingParams, "n", int, "Samples."),
    _knob(SamplingParams, "seed", int, "Same seed, same tokens.  [default: a fresh one, reported]"),
    _knob(SamplingParams, "logprobs", int, "Log-probabilities of each token and its k likeliest rivals (--json)."),
    click.option(
        "--logprob-id", "logprob_ids", type=int, multiple=True, help="Log-probability of this id at every step; repeatable."
    ),
)


def sampling_of(options: dict[str, Any]) -> SamplingParams:
    """SamplingParams of the options, which are taken out."""
    taken = {field.name: options.pop(field.name) for field in fields(SamplingParams)}
    biases: dict[int, float] = {}
    for item in taken["logit_bias"]:
        token, bias = _bias(item)
        if token in biases:
            raise UsageError(f"--logit-bias {item!r}: token {token} already has {biases[token]}: give each token once")
        biases[token] = bias
    return SamplingParams(**{**taken, "logit_bias": biases})


def _bias(item: str) -> tuple[int, float]:
    token, _, bias = item.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise UsageError(f"--logit-bias {item!r} is not ID=BIAS, such as 42=-1.5") from None


beam_options = _group(
    _knob(BeamParams, "width", int, "Hypotheses kept at every step."),
    _knob(BeamParams, "alpha", float, "Length normalisation; 0 is the pure likelihood."),
    _knob(BeamParams, "penalty", click.Choice(["length", "gnmt"]), "Form of the normalisation."),
    _knob(BeamParams, "n", int, "Hypotheses returned.  [default: the width]"),
    _knob(BeamParams, "groups", int, "Groups of a diverse beam search."),
    _knob(BeamParams, "diversity", float, "What a token costs that an earlier group took."),
    _knob(BeamParams, "max_tokens", int, "Longest hypothesis."),
)


def beam_of(options: dict[str, Any]) -> BeamParams:
    """BeamParams of the options, which are taken out."""
    return BeamParams(**{field.name: options.pop(field.name) for field in fields(BeamParams)})


grammar_options = _group(
    click.option("--schema", type=TEXT, help="JSON Schema: a path, or a name of schemas/."),
    click.option("--regex", type=TEXT, help="A regular expression for the whole text."),
    click.option("--choice", "choices", type=TEXT, multiple=True, help="One of these texts; repeat for each."),
    click.option("--lark", type=place(exists=True, folders=False), help="A file with a Lark grammar."),
)


def grammar_of_options(options: dict[str, Any]) -> tuple[Grammar | None, str]:
    """The grammar that the options ask for (None without) and what errors call it; the options are taken out."""
    taken = {key: options.pop(key) for key in GRAMMAR_OPTIONS}
    named = [GRAMMAR_OPTIONS[key] for key, value in taken.items() if value not in (None, ())]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} exclude each other: a segment has one grammar")
    if taken["schema"]:
        from toolkit.jobs.named import named_schema, schema_name

        return named_schema(taken["schema"])[1], schema_name(taken["schema"])
    if taken["choices"]:
        return Grammar("choices", json.dumps(list(taken["choices"]), ensure_ascii=False)), "--choice"
    if taken["regex"]:
        return Grammar("regex", taken["regex"]), f"--regex {taken['regex']!r}"
    if taken["lark"]:
        name = f"--lark {taken['lark']}"
        return Grammar("lark", decoded(read_bytes(str(taken["lark"])), name)), name
    return None, ""


prompt_options = _group(
    click.argument("prompt"),
    click.option("--raw", is_flag=True, help="Continue the prompt as it is, without the chat template."),
    click.option("--system", default="", help="System message."),
)


def prompt_of(options: dict[str, Any]) -> Prompt:
    """The prompt as a chat (with a system message if there is one), or with --raw as it is; the options are taken out."""
    text, raw, system = argument_text(options.pop("prompt")), options.pop("raw"), options.pop("system")
    if raw and system:
        raise UsageError("--system goes into a chat: it excludes --raw")
    messages = [{"role": "system", "content": system}] if system else []
    return text if raw else [*messages, {"role": "user", "content": text}]
