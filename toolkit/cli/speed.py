"""Commands bench plain, bench speculation and bench peers: how fast, beside llama.cpp and transformers on the same weights."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.bound import nothing, passed, told
from toolkit.cli.kinds import TEXT, place
from toolkit.cli.options import engine_options, json_option, opened
from toolkit.cli.output import console
from toolkit.cli.verdict import no_verdict, verdict
from toolkit.contracts import Engine, Json
from toolkit.errors import ToolkitError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from toolkit.bench.llamacpp_apart import LlamaCppApart

PARTS = ("beams", "plain", "speculation")
# Trees of given nodes have no floor: they show what tokens a pass there are to be had, whatever the rows cost.
ARMS = (
    "ngram",
    "model",
    "medusa:nodes=48,width=32,floor=0",
    "mtp:tokens=3,width=1",
    "mtp:nodes=12,width=12,floor=0",
    "mtp",
    "ngram+mtp",
    "ngram+mtp:nodes=24,fill=true,mtp.width=12,mtp.floor=0",
)
BEST = ("mtp", "mtp:nodes=12", "ngram+mtp", "ngram+mtp:nodes=12", "ngram")  # arms of which one is the fastest


@click.command(short_help="Plain decoding, one text and eight: int8, int4, llama.cpp.")
@click.option("--tokens", type=click.IntRange(2), default=96, show_default=True, help="Greedy tokens a request.")
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="Times over the eight prompts.")
@engine_options
@json_option
def plain(as_json: bool, tokens: int, rounds: int, **options: Any) -> int:
    """Tokens per second of one text and of eight together, prompt by prompt in turn: int8, int4 and llama.cpp on the same GGUF file (extra `peers`)."""
    with ExitStack() as stack:
        engine = stack.enter_context(opened(dict(options)))
        return verdict(_plain(engine, _llamacpp(stack, engine), tokens, rounds, _int4(stack, engine, options)), as_json)


def _plain(
    engine: Engine, peer: LlamaCppApart | None, tokens: int, rounds: int, other: dict[str, Engine] | None = None
) -> dict[str, Json]:
    from toolkit.bench.plain import run

    return run(engine, other=other, peer=peer, tokens=tokens, rounds=rounds, console=console())


def _int4(stack: ExitStack, engine: Engine, options: dict[str, Any]) -> dict[str, Engine]:
    """The model once more with weights of 4 bits, beside one of 8; none, and said, where its widths have no such form."""
    if not getattr(engine, "format", "").startswith("int8"):
        return {}
    try:
        return {"int4": stack.enter_context(opened({**options, "format": "int4"}))}
    except UnsupportedError as error:
        console().print(f"int4 is not measured: {error.message}", markup=False)
        return {}


@click.command(short_help="Every drafter against plain decoding and llama.cpp, and where it does not pay.")
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
    """Tokens a pass, acceptance, tokens a second over plain decoding's and llama.cpp's (extra `peers`), prompt by prompt in turn.

    Only of arms that have passed the gate as they are now: a kept PASS counts, without one the quick gate runs first.
    """
    from toolkit.bench import promptsets, speculation, speculation_batches

    with no_verdict():
        texts = promptsets.load(prompts, kinds=kinds, limit=limit)
    out = console()
    with ExitStack() as stack:
        engines = _arms(stack, names or ARMS, options, optional=not names)
        if batches and not any(map(_is_free, engines)):
            raise UsageError("--batches needs an arm that chooses its own draft", hint="one without tokens= and nodes=")
        engines, records = passed(engines, out)
        if not engines:
            return verdict(nothing("speculation", records), as_json)
        peer = _llamacpp(stack, next(iter(engines.values())))
        result = told(
            speculation.run(engines, texts, peer=peer, tokens=tokens, rounds=rounds, temperature=temperature, console=out),
            records,
        )
        result["prompts_sha256"] = promptsets.digest(prompts)
        free = next((name for name in engines if _is_free(name)), None)
        if batches and free is not None:
            every = [text for many in texts.values() for text in many]
            found = {
                f"temperature {heat:g}": speculation_batches.run(engines[free], every, temperature=heat, console=out)
                for heat in (0.0, 1.0)
            }
            result["batches"] = found | {"arm": free}
            result["reasons"] += [f"{free}, {heat}: {why}" for heat, each in found.items() for why in each["reasons"]]
            result["verdict"] = "HOLD" if result["reasons"] else "PASS"
    return verdict(result, as_json)


def _arms(stack: ExitStack, names: tuple[str, ...], options: dict[str, Any], *, optional: bool) -> dict[str, Engine]:
    """An engine an arm. Where arms are `optional`, those that this model has no drafter for are left out, and said."""
    engines: dict[str, Engine] = {}
    for name in names:
        drafter, _, more = name.partition(":")
        own = {"drafter": drafter, "draft_more": tuple(filter(None, more.split(","))), "prefix_cache": False}
        try:
            engines[name] = stack.enter_context(opened({**options, **own}))
        except ToolkitError as error:
            if not optional:
                raise
            console().print(f"{name} is not measured: {error}", markup=False)
    if not engines:
        raise UsageError("no drafter could be opened for this model", hint="name one with --arm to see why")
    return engines


def _is_free(name: str) -> bool:
    return "tokens=" not in name and "nodes=" not in name


def _llamacpp(stack: ExitStack, engine: Engine) -> LlamaCppApart | None:
    """llama.cpp over the same file; None, and said, where it is not installed or the model has no such file."""
    from toolkit.bench.llamacpp_apart import open_peer
    from toolkit.bench.llamacpp_peer import is_installed

    if not is_installed():
        console().print("llama.cpp is not measured: pip install 'sgl-toolkit\\[peers]'")
        return None
    if engine.capabilities.model == "tiny":
        console().print("llama.cpp is not measured: --model tiny has no file")
        return None
    try:
        return stack.enter_context(open_peer(engine))
    except UnsupportedError as error:
        console().print(f"llama.cpp is not measured: {error.message}", markup=False)
        return None


@click.command(short_help="Everything against its peers: beams, plain decoding, speculation.")
@click.option("--data", type=place(exists=True), help="BFCL records.  [default: the bfcl-eval package]")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Records.")
@click.option("--width", type=click.IntRange(2), default=4, show_default=True)
@click.option("--alpha", type=float, default=1.0, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), default=128, show_default=True)
@click.option(
    "--prompts", "texts", type=click.IntRange(1), default=8, show_default=True, help="Prompts of a kind for speculation."
)
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="Only this; repeatable.  [default: all]")
@engine_options
@json_option
def peers(as_json: bool, parts: tuple[str, ...], texts: int, **options: Any) -> int:
    """Beams over constrained greedy and over transformers' generate; plain decoding, eight requests together and speculation over llama.cpp.

    Each part first checks that tokens are equal. The beams' part computes in float32, as transformers does, unless --format says int8.
    """
    from toolkit.bench import ratios, tables

    if options["model"] == "tiny":
        raise UnsupportedError(
            "--model tiny has no folder: transformers reads the same weights out of one", hint="--model smollm2, or a folder"
        )
    own = {name: options.pop(name) for name in ("data", "limit", "width", "alpha", "max_tokens")}
    wanted = parts or PARTS
    found = {}
    if "beams" in wanted:
        found["beams"] = _beams(dict(options), own)
    if "plain" in wanted or "speculation" in wanted:
        found |= _speeds(options, wanted, texts)
    result = ratios.combine(found)
    tables.show(console(), "ratios", ("ratio", "median", "quartiles"), ratios.lines(result))
    return verdict(result, as_json)


def _beams(options: dict[str, Any], own: dict[str, Any]) -> dict[str, Json]:
    from toolkit.bench.peers import run
    from toolkit.model.store import resolve

    with no_verdict():
        folder = resolve(options["model"])
    if options["format"] == "auto":
        options["format"] = "float32"  # transformers computes in it, and tokens are compared
    with no_verdict(), opened(options) as engine:
        return run(engine, model_folder=folder, console=console(), **own)


def _speeds(options: dict[str, Any], wanted: tuple[str, ...], texts: int) -> dict[str, dict[str, Json]]:
    from toolkit.bench import promptsets, speculation

    found = {}
    with ExitStack() as stack:
        engines = _arms(stack, BEST if "speculation" in wanted else ("ngram",), options, optional=True)
        first = next(iter(engines.values()))
        engines, records = passed(engines, console()) if "speculation" in wanted else (engines, {})
        peer = _llamacpp(stack, first)
        if "plain" in wanted:
            found["plain"] = _plain(first, peer, 96, 2)
        if "speculation" in wanted:
            prompts = promptsets.load(kinds=("chat", "copying"), limit=texts)
            found["speculation"] = (
                speculation.run(engines, prompts, peer=peer, console=console()) | {"gate": records}
                if engines else nothing("speculation", records)
            )  # fmt: skip
    return found
