"""Commands bench and demo: what the toolkit is worth, measured here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.kinds import TEXT, place
from toolkit.cli.options import engine_options, json_option, opened
from toolkit.cli.output import console, emit
from toolkit.contracts import Engine, Json
from toolkit.errors import InputError, ToolkitError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from toolkit.bench.llamacpp_peer import LlamaCppPeer

HOLD = "HOLD"
NEVER = ("invalid_accepted_after_validation", "invalid_accepted_by_strict_mask")


@click.command(short_help="12 real requests, greedy next to beam 4.")
@click.option("--limit", type=click.IntRange(1), default=12, show_default=True, help="Requests.")
@engine_options
@json_option
def demo(limit: int, as_json: bool, **options: Any) -> None:
    """User requests of the Berkeley function-calling set, each under its own function schema: both answers, who is right, alternatives."""
    from toolkit.bench.demo import run

    with opened(options) as engine:
        result = run(engine, limit=limit, console=console())
    if as_json:
        emit(result)


class _Bench(click.Group):
    """`bench --peers` is `bench peers`: scripts outside the project call it so."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(context, ["peers", *args[1:]] if args[:1] == ["--peers"] else args)


@click.group(cls=_Bench, short_help="Quality and cost; no speed without a passed check.")
def bench() -> None:
    """Measurements. Seconds are withheld, and the exit code is 1, unless what was timed was right."""


@bench.command(short_help="Greedy against beam search on records with known answers.")
@click.option("--task", type=click.Choice(["bfcl", "snips"]), default="bfcl", show_default=True)
@click.option(
    "--data",
    type=place(exists=True),
    help="File (bfcl) or folder (snips).  [default: the bfcl-eval package]",
)
@click.option("--limit", type=click.IntRange(1), help="Records.  [default: all]")
@click.option(
    "--setting",
    "settings",
    type=TEXT,
    multiple=True,
    help="greedy or beam<width>:<alpha>; repeatable.  [default: greedy, beam 4 and 8, alpha 0 and 1]",
)
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True, help="Records decoded together.")
@click.option("--style", type=click.Choice(["raw", "chat"]), help="Prompt style.  [default: the task's own]")
@click.option("--out", type=place(), default=Path("out/bench"), show_default=True, help="Folder for the rows.")
@click.option("--resume", is_flag=True, help="Take over the rows of an interrupted run.")
@engine_options
@json_option
def quality(
    as_json: bool,
    task: str,
    data: Path | None,
    limit: int | None,
    settings: tuple[str, ...],
    batch: int,
    style: Any,
    out: Path,
    resume: bool,
    **options: Any,
) -> int:
    """Exact match, n-best, log-probability and seconds a record, all settings on the same records."""
    from toolkit.bench import arms
    from toolkit.bench.extraction import run

    with _no_verdict(), opened(options) as engine:
        result = run(
            engine, task=task, data=data, limit=limit, settings=settings or arms.DEFAULT, batch=batch, console=console(),
            out=out, resume=resume, style=style,
        )  # fmt: skip
    return _verdict(result, as_json)


@bench.command(short_help="The same work in transformers, interleaved.")
@click.option("--data", type=place(exists=True), help="BFCL records.  [default: the bfcl-eval package]")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Records.")
@click.option("--width", type=click.IntRange(2), default=4, show_default=True)
@click.option("--alpha", type=float, default=1.0, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), default=128, show_default=True)
@engine_options
@json_option
def peers(as_json: bool, data: Path | None, limit: int, width: int, alpha: float, max_tokens: int, **options: Any) -> int:
    """Beam over constrained greedy, and both over transformers' generate, after checking that greedy tokens are equal."""
    from toolkit.bench.peers import run
    from toolkit.model.store import resolve

    if options["model"] == "tiny":
        raise UnsupportedError(
            "--model tiny has no folder: transformers reads the same weights out of one", hint="--model smollm2, or a folder"
        )
    with _no_verdict():
        folder = resolve(options["model"])
    if options["format"] == "auto":
        options["format"] = "float32"  # transformers computes in it, and tokens are compared
    with _no_verdict(), opened(options) as engine:
        result = run(
            engine,
            model_folder=folder,
            data=data,
            limit=limit,
            width=width,
            alpha=alpha,
            max_tokens=max_tokens,
            console=console(),
        )
    return _verdict(result, as_json)


@bench.command(short_help="Plain decoding against llama.cpp, eight requests against one.")
@click.option("--tokens", type=click.IntRange(2), default=96, show_default=True, help="Greedy tokens a request.")
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="Times over the eight prompts.")
@engine_options
@json_option
def plain(as_json: bool, tokens: int, rounds: int, **options: Any) -> int:
    """Tokens per second, interleaved prompt by prompt; llama.cpp reads the same GGUF file (extra `peers`; absent: said, not measured)."""
    from toolkit.bench.llamacpp_peer import is_installed, open_peer
    from toolkit.bench.plain import run

    with opened(options) as engine:
        if is_installed():
            with open_peer(engine) as peer:
                return _verdict(run(engine, peer=peer, tokens=tokens, rounds=rounds, console=console()), as_json)
        console().print("llama.cpp is not measured: pip install 'sgl-toolkit\\[peers]'")
        return _verdict(run(engine, tokens=tokens, rounds=rounds, console=console()), as_json)


@bench.command(short_help="A SGLang server: greedy, its own beams, our constrained beams.")
@click.option("--data", type=place(exists=True), help="BFCL records.  [default: the bfcl-eval package]")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Records.")
@click.option("--width", type=click.IntRange(2), default=4, show_default=True)
@click.option("--alpha", type=float, default=1.0, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), default=96, show_default=True)
@engine_options
@json_option
def server(as_json: bool, data: Path | None, limit: int, width: int, alpha: float, max_tokens: int, **options: Any) -> int:
    """Seconds an output token and validity on --engine URL, after checking our beams against the embedded engine's in float32."""
    from toolkit.bench.server import run

    with _no_verdict(), opened(options) as engine:
        result = run(engine, data=data, limit=limit, width=width, alpha=alpha, max_tokens=max_tokens, console=console())
    return _verdict(result, as_json)


ARMS = ("ngram", "model", "medusa:nodes=12", "mtp:tokens=3,width=1", "mtp:nodes=12", "mtp", "ngram+mtp", "ngram+mtp:nodes=12")


@bench.command(short_help="Every drafter against plain decoding and llama.cpp, and where it does not pay.")
@click.option(
    "--arm",
    "names",
    type=TEXT,
    multiple=True,
    metavar="DRAFTER[:NAME=VALUE,...]",
    help=f"A drafter with its options; repeatable.  [default: {' '.join(ARMS)}]",
)
@click.option("--prompts", type=place(exists=True, folders=False), help='Lines of {"kind", "text"}.  [default: the package\'s]')
@click.option("--kind", "kinds", type=TEXT, multiple=True, help="Only prompts of this kind; repeatable.")
@click.option("--limit", type=click.IntRange(1), default=8, show_default=True, help="Prompts of a kind.")
@click.option("--tokens", type=click.IntRange(2), default=128, show_default=True, help="At most so many a text.")
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="Times over all prompts.")
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--batches", is_flag=True, help="Also 1 to 16 requests together, greedy and at temperature 1.")
@engine_options
@json_option
def speculation(
    as_json: bool,
    names: tuple[str, ...],
    prompts: Path | None,
    kinds: tuple[str, ...],
    limit: int,
    tokens: int,
    rounds: int,
    temperature: float,
    batches: bool,
    **options: Any,
) -> int:
    """Tokens a pass, acceptance, tokens a second over plain decoding's and llama.cpp's (extra `peers`), prompt by prompt in turn."""
    from toolkit.bench import promptsets, speculation, speculation_batches

    with _no_verdict():
        texts = promptsets.load(prompts, kinds=kinds, limit=limit)
    out = console()
    with ExitStack() as stack:
        engines = _arms(stack, names, options)
        peer = _llamacpp(stack, next(iter(engines.values())))
        result = speculation.run(
            engines, texts, peer=peer, tokens=tokens, rounds=rounds, temperature=temperature, console=out
        )  # fmt: skip
        if batches:
            free = next((name for name in engines if _is_free(name)), None)
            if free is None:
                raise UsageError("--batches needs an arm that chooses its own draft", hint="one without tokens= and nodes=")
            every = [text for many in texts.values() for text in many]
            result["batches"] = {
                f"temperature {heat:g}": speculation_batches.run(engines[free], every, temperature=heat, console=out)
                for heat in (0.0, 1.0)
            } | {"arm": free}
    return _verdict(result, as_json)


def _arms(stack: ExitStack, names: tuple[str, ...], options: dict[str, Any]) -> dict[str, Engine]:
    """An engine an arm. Of the default arms, those that this model has no drafter for are left out, and said."""
    engines: dict[str, Engine] = {}
    for name in names or ARMS:
        drafter, _, more = name.partition(":")
        own = {"drafter": drafter, "draft_more": tuple(filter(None, more.split(","))), "prefix_cache": False}
        try:
            engines[name] = stack.enter_context(opened({**options, **own}))
        except ToolkitError as error:
            if names:
                raise
            console().print(f"{name} is not measured: {error}", markup=False)
    if not engines:
        raise UsageError("no drafter could be opened for this model", hint="name one with --arm to see why")
    return engines


def _is_free(name: str) -> bool:
    return "tokens=" not in name and "nodes=" not in name


def _llamacpp(stack: ExitStack, engine: Engine) -> LlamaCppPeer | None:
    """llama.cpp over the same file; None, and said, where it is not installed or the model has no such file."""
    from toolkit.bench.llamacpp_peer import is_installed, open_peer

    if not is_installed():
        console().print("llama.cpp is not measured: pip install 'sgl-toolkit\\[peers]'")
        return None
    if engine.capabilities.model == "tiny":
        console().print("llama.cpp is not measured: --model tiny has no file")
        return None
    return stack.enter_context(open_peer(engine))


@bench.command(short_help="JSON Schema conformance of mask and validator.")
@click.option(
    "--data", required=True, type=place(exists=True, files=False),
    help="Folder with json_schema_test_suite/ and jsonschemabench.jsonl.",
)  # fmt: skip
@json_option
def schemas(data: Path, as_json: bool) -> int:
    """Count what is compiled, partial, refused, and wrongly accepted or refused; exit code 1 if anything invalid passed the validator."""
    from toolkit.bench.schemas import run

    with _no_verdict():
        result = run(data)
    if as_json:
        emit(result)
    return int(any(counts[name] for counts in result.values() for name in NEVER))


@bench.command(short_help="What int8 costs in quality, against float32.")
@click.option("--model", default="smollm2", type=TEXT, show_default=True)
@click.option(
    "--text", type=place(exists=True, folders=False),
    help="UTF-8 file to score.  [default: docstrings of the standard library]",
)  # fmt: skip
@json_option
def formats(model: str, text: Path | None, as_json: bool) -> int:
    """Perplexity on text and chat, top-1 agreement and KL divergence; exit code 1 where int8 costs more than 1 % of perplexity."""
    from toolkit.bench.formats import run

    with _no_verdict():
        result = run(model, text=text, console=console())
    return _verdict(result, as_json)


@bench.command(short_help="Tool-call parsers against SGLang's, on random partitions.")
@click.option("--partitions", type=click.IntRange(1), default=300, show_default=True, help="A format and size of pieces.")
@json_option
def tools(partitions: int, as_json: bool) -> int:
    """Two calls a format, cut at random: what each parser makes of them; exit code 1 if one of this toolkit's is wrong."""
    from toolkit.bench.tools import run

    return _verdict(run(partitions=partitions, console=console()), as_json)


@contextmanager
def _no_verdict() -> Iterator[None]:
    """Data or a model that cannot be read was named by an option: exit code 2, not the 1 of a verdict."""
    try:
        yield
    except InputError as error:
        raise UsageError(error.message, hint=error.hint) from error


def _verdict(result: dict[str, Json], as_json: bool) -> int:
    if as_json:
        emit(result)
    return int(result["verdict"] == HOLD)
