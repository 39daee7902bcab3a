"""Commands generate and beam: one prompt in, text or the n-best out."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.options import (
    beam_of,
    beam_options,
    engine_options,
    grammar_of_options,
    grammar_options,
    json_option,
    opened,
    prompt_of,
    prompt_options,
    sampling_of,
    sampling_options,
)
from toolkit.cli.output import console, emit
from toolkit.contracts import BeamResult, Completion, Delta, Done, Grammar, Json, Report, Request
from toolkit.jobs.named import named_compile
from toolkit.results import answered, beam_result, json_text, result_fields

if TYPE_CHECKING:
    from rich.table import Table


@click.command(short_help="Text from a prompt.")
@prompt_options
@grammar_options
@sampling_options
@engine_options
@json_option
def generate(as_json: bool, **options: Any) -> int:
    """Continue PROMPT (`-` reads stdin, `@FILE` a file). The text streams to stdout.

    With a grammar the text is validated; a text that is cut off before it is valid ends with exit code 1.
    """
    prompt = prompt_of(options)
    grammar, name = grammar_of_options(options)
    request = Request(prompt=prompt, sampling=sampling_of(options), grammar=grammar)
    samples: dict[int, Completion] = {}
    streams = not as_json and request.sampling.n == 1
    with opened(options) as engine, named_compile(name):
        for event in answered(engine.generate([request])):
            if isinstance(event, Delta) and streams:
                click.echo(event.text, nl=False)
            elif isinstance(event, Done) and isinstance(event.result, Completion):
                samples[event.index] = event.result
    results = [samples[index] for index in sorted(samples)]
    reports = [_report(grammar, result.text) for result in results]
    if as_json:
        shown = [_sample(result, report) for result, report in zip(results, reports, strict=True)]
        emit({**shown[0], **({"samples": shown} if len(shown) > 1 else {})})
    for index, (result, report) in enumerate(zip(results, reports, strict=True)):
        if not as_json:
            click.echo("" if streams else result.text)
        _end(index, result, report)
    return int(any(report is not None and not report.valid for report in reports))


def _report(grammar: Grammar | None, text: str) -> Report | None:
    if grammar is None:
        return None
    from toolkit.validate.check import Validator

    return Validator(grammar).check(text)


def _sample(result: Completion, report: Report | None) -> dict[str, Json]:
    verdict = {} if report is None else {"valid": report.valid, "value": report.value}
    return {**asdict(result), **verdict}


def _end(index: int, result: Completion, report: Report | None) -> None:
    ended = "" if result.matched_stop is None else f" at {result.matched_stop!r}"
    text = f"sample {index}: {result.usage.output_tokens} tokens, ended by {result.finish_reason}{ended}"
    if result.seed is not None:
        text += f", seed {result.seed}"
    if report is not None and not report.valid:
        text += f"; NOT VALID: {report.violations[0].message}"
    click.echo(text, err=True)


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
        result = beam_result(engine.generate([request]))
    out = console()
    out.print(_alternatives(result))
    if result.confidence:
        out.print(_confidences(result))
    for note in (*result.notes, *(f"only the validator enforced {item}" for item in result.partial)):
        click.echo(f"note: {note}", err=True)
    emit(result_fields(result) if as_json else result.value)
    return int(not result.valid)


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
