"""Commands generate and beam: one prompt in, text or the n-best out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.options import (
    beam_of,
    beam_options,
    draft_options,
    engine_options,
    grammar_of_options,
    grammar_options,
    json_option,
    leave_out_drafter,
    opened,
    prompt_of,
    prompt_options,
    sampling_of,
    sampling_options,
)
from toolkit.cli.output import console, emit
from toolkit.cli.watching import guard_options, overseen, policies_of, require_speculation, watch_of
from toolkit.contracts import BeamParams, BeamResult, Completion, Delta, Done, Engine, Json, Request, Tokenizer, Violation
from toolkit.engine.guard import guarded
from toolkit.engine.watch import Checks, judged
from toolkit.errors import UsageError
from toolkit.jobs.named import named_compile
from toolkit.results import answered, beam_result, json_text, result_fields
from toolkit.results import token_events as split

if TYPE_CHECKING:
    from rich.table import Table


@click.command(short_help="Text from a prompt.")
@prompt_options
@grammar_options
@sampling_options
@draft_options
@guard_options
@engine_options
@click.option("--trace", is_flag=True, help="Show which tokens were drafted, the tree of every pass, and what it cost.")
@click.option("--events", is_flag=True, help="Print every event as a line of JSON as it comes, then the result as with --json.")
@click.option("--token-events", is_flag=True, help="The same with one event a token.")
@json_option
def generate(as_json: bool, trace: bool, events: bool, token_events: bool, **options: Any) -> int:
    """Continue PROMPT (`-` reads stdin, `@FILE` a file). The text streams to stdout.

    With a grammar or a --watch the text is validated; one that is not valid, or was cut off before it was, ends with exit code 1.
    A drafter makes it faster where it guesses well, and never changes the text.
    """
    prompt = prompt_of(options)
    grammar, name = grammar_of_options(options)
    request = Request(prompt=prompt, sampling=sampling_of(options), grammar=grammar, trace=trace, watch=watch_of(options))
    policies = policies_of(options, judged=grammar is not None or request.watch is not None, n=request.sampling.n)
    more = overseen(options)
    as_lines = events or token_events
    if policies and as_lines:
        raise UsageError("--policy gives one text at the end: there are no events of it", hint="--json")
    as_json = as_json or as_lines
    tell = (lambda event: emit(_event(event))) if as_lines else _write if not as_json and request.sampling.n == 1 else None
    with opened(options, **more) as engine, named_compile(name):
        require_speculation(engine, more)
        if policies:
            tell, results = None, [guarded(engine, request, policies)]
        else:
            results = _run(engine, request, tell, apart=token_events)
        tokenizer, counts = engine.tokenizer, _counts(engine, results)
    if as_json:
        shown = [asdict(result) for result in results]
        emit({**shown[0], **({"samples": shown} if len(shown) > 1 else {}), "accounting": counts})
    for index, result in enumerate(results):
        if not as_json:
            click.echo(result.text if tell is None else "")
        _end(index, result)
        if trace:
            _show_trace(result, tokenizer)
    if trace:
        _show_books(results, counts)
    wrongly_told = tell is not None and any(each.streamed for result in results for each in result.incidents)
    return int(wrongly_told or any(result.valid is False for result in results))


def _run(engine: Engine, request: Request, tell: Callable[[Delta], object] | None, *, apart: bool) -> list[Completion]:
    """Every sample, judged; `tell` hears of what comes, `apart` one token at a time."""
    samples: dict[int, Completion] = {}
    stream = answered(engine.generate([request]), results=request.sampling.n)
    for event in split(stream) if apart else stream:
        if isinstance(event, Delta) and tell is not None:
            tell(event)
        elif isinstance(event, Done) and isinstance(event.result, Completion):
            samples[event.index] = event.result
    checks = Checks.of(request)
    found = [samples[index] for index in sorted(samples)]
    return [judged(checks, each, engine.tokenizer) if each.valid is None else each for each in found]


def _write(event: Delta) -> None:
    click.echo(event.text, nl=False)


def _event(event: Delta) -> dict[str, Json]:
    fields = asdict(event)
    return {"event": "delta", **{name: fields[name] for name in ("index", "text", "token_ids", "texts", "logprobs", "usage")}}


def _counts(engine: Engine, samples: Sequence[Completion]) -> dict[str, Json]:
    """What the request cost, its samples together; the time is that of the last one."""
    from toolkit.bench import accounting

    timing = max((sample.timing for sample in samples), key=lambda timing: timing.e2e_s)
    return accounting.summary(accounting.of_request(samples), timing, accounting.model_of(engine))


def _show_trace(result: Completion, tokenizer: Tokenizer) -> None:
    from toolkit.cli import trace

    out = console()
    out.print(f"\n{trace.LEGEND}", markup=False, highlight=False)
    out.print(trace.marked(result, tokenizer), soft_wrap=True)
    for each in trace.trees(result, tokenizer):
        out.print(each)


def _show_books(results: Sequence[Completion], counts: dict[str, Json]) -> None:
    from rich.table import Table

    from toolkit.bench import accounting
    from toolkit.cli import trace

    table = Table(show_header=False, title="what it cost", title_justify="left")
    for what, figure in trace.books(asdict(accounting.of_request(results)), counts):
        table.add_row(what, figure)
    console().print(table, markup=False)


def _why(violations: Sequence[Violation]) -> str:
    """Every reason: that a text was cut off says little where it was wrong from its first byte."""
    return "; ".join(each.message for each in violations)


def _end(index: int, result: Completion) -> None:
    ended = "" if result.matched_stop is None else f" at {result.matched_stop!r}"
    text = f"sample {index}: {result.usage.output_tokens} tokens, ended by {result.finish_reason}{ended}"
    if result.seed is not None:
        text += f", seed {result.seed}"
    if result.usage.rested:
        text += f"; nothing was drafted in {result.usage.rested} of {result.usage.steps} passes, where it does not pay"
    if result.valid is False:
        text += f"; NOT VALID: {_why(result.violations)}"
    click.echo(text, err=True)
    for tried in result.attempts:
        verdict = tried.error or ("valid" if tried.valid else f"not valid: {_why(tried.violations)}")
        click.echo(f"attempt {tried.policy or 'as asked'}: {verdict}", err=True)
    for each in result.incidents:
        click.echo(f"incident: {each.kind}, found by {each.found_by} at token {each.position}: {each.why}", err=True)
    if result.audit is not None:
        click.echo(f"audit: {result.audit.verdict} ({result.audit.method}) {result.audit.why}".rstrip(), err=True)
    for note in result.notes:
        click.echo(f"note: {note}", err=True)


@click.command(short_help="The n best answers, with scores and confidences.")
@prompt_options
@grammar_options
@beam_options
@engine_options
@json_option
def beam(as_json: bool, **options: Any) -> int:
    """Beam search from PROMPT (`-` reads stdin, `@FILE` a file). The best valid value goes to stdout as JSON."""
    prompt = prompt_of(options)
    grammar, name = grammar_of_options(options)
    request = Request(prompt=prompt, beam=beam_of(options), grammar=grammar)
    with opened(options) as engine, named_compile(name):
        leave_out_drafter(engine)
        result = beam_result(engine.generate([request]))
    out = console()
    out.print(_alternatives(result))
    if result.confidence:
        out.print(_confidences(result))
    few = _few(len(result.alternatives), request.beam)
    for note in (*few, *result.notes, *(f"only the validator enforced {item}" for item in result.partial)):
        click.echo(f"note: {note}", err=True)
    emit(result_fields(result) if as_json else result.value)
    return int(not result.valid)


def _few(found: int, asked: BeamParams | None) -> list[str]:
    """Why there are fewer alternatives than were asked for, where there are."""
    wanted = 0 if asked is None else asked.n or asked.width
    why = "hypotheses of equal value count once, and the search ends where nothing better can come"
    return [f"{found} alternatives of {wanted}: {why}"] if found < wanted else []


def _alternatives(result: BeamResult) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{len(result.alternatives)} best, diversity {result.diversity:.2f}", title_justify="left")
    for name in ("score", "sum", "tokens", "valid", "value"):
        table.add_column(name, justify="left" if name == "value" else "right", overflow="fold")
    for item in result.alternatives:
        shown = json_text(item.value) if item.valid else item.text
        numbers = (f"{item.score:.4f}", f"{item.sum_logprob:.3f}", str(len(item.token_ids)))
        table.add_row(*numbers, "yes" if item.valid else "no", escape(shown))
    return table


def _confidences(result: BeamResult) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="confidence of the answer's fields", title_justify="left")
    for name in ("field", "product", "least token", "tokens", "margin"):
        table.add_column(name, justify="left" if name == "field" else "right")
    for path, item in result.confidence.items():
        margin = "all agree" if item.margin is None else f"{item.margin:.4f}"
        table.add_row(escape(path or "/"), f"{item.product:.3g}", f"{item.minimum:.3g}", str(item.tokens), margin)
    return table
