"""JobSpec: what a job does with every record, from a TOML or YAML file and the command line.

In: a mapping or a file of at most 1 MiB.   Out: one frozen JobSpec, checked as a whole.
Knows nothing about: input files, output files, engines.
Invariants: unknown keys are refused; every value is plain JSON, so that a spec can be written down and compared on resume.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from toolkit.contracts import BeamParams, Json
from toolkit.errors import UsageError
from toolkit.jobs.merge import Policy
from toolkit.jobs.pointer import check_patterns
from toolkit.jobs.template import EXTRA_NAMES, Template

MAX_SPEC_BYTES = 1 << 20
MOST = 1e308
PLAIN = (str, int, float, bool, type(None))


class Example(BaseModel):
    """One worked example of the few-shot prefix: a text and the value that is right for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    value: Any
    fields: dict[str, str] = {}
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")  # only where each record brings its own

    @field_validator("value")
    @classmethod
    def _value_is_json(cls, value: Json) -> Json:
        return plain(value)


class JobSpec(BaseModel):
    """How records become requests. Placeholders of `system`: {schema}; of `prompt`: {text}, {id}, {schema}, every name in `fields`.

    `style` chat sends system, examples and record as messages through the model's template; raw joins them as text.
    `schema` is a name in schemas/, a path, or the schema itself; `schema_field` names the record field that brings it instead.
    Texts of more than `chunk_tokens` tokens are cut into pieces that overlap by `chunk_overlap`, and their values merged (jobs.merge).
    `ground` says what becomes of a string that is not in the text: nothing but a null span, needs_review, or an error;
    `ground_distance` is how unlike a span may be (edits a character), `ground_free` names places that need none. A confidence below
    that of `review_below` sets needs_review. Places are JSON pointers with * for any name or index, or * alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: str | dict[str, Any] | None = Field(default=None, alias="schema")
    schema_field: str | None = Field(default=None, min_length=1)
    text_field: str = Field(default="text", min_length=1)
    id_field: str | None = Field(
        default=None, min_length=1
    )  # None: the field "id" where a record has one, else its place in the input
    fields: tuple[str, ...] = ()
    encoding: Literal["utf-8", "latin-1", "cp1252"] = "utf-8"
    style: Literal["chat", "raw"] = "chat"
    system: str = "Answer with one JSON value that fits this JSON Schema: {schema}"
    prompt: str = "{text}"
    examples: tuple[Example, ...] = ()
    width: int = Field(default=4, strict=True)  # strict: true is no number here, and "4" is none either
    alpha: float = Field(default=1.0, strict=True)
    penalty: Literal["length", "gnmt"] = "length"
    groups: int = Field(default=1, strict=True)
    diversity: float = Field(default=0.0, strict=True)
    n: int | None = Field(default=None, strict=True)
    max_tokens: int = Field(default=256, strict=True)
    chunk_tokens: int | None = Field(default=None, strict=True, ge=8)  # a longer text is cut into pieces of so many tokens
    chunk_overlap: int = Field(default=0, strict=True, ge=0)
    merge: dict[str, Policy] = {}
    ground: Literal["off", "report", "review", "error"] = "report"
    ground_distance: float = Field(default=0.2, strict=True, ge=0, le=0.5)
    ground_free: tuple[str, ...] = ()
    review_below: dict[str, Annotated[float, Field(strict=True, ge=0, le=1)]] = {}

    @field_validator("schema_")
    @classmethod
    def _schema_is_json(cls, value: Json) -> Json:
        return plain(value)

    @model_validator(mode="after")
    def _checked_as_a_whole(self) -> JobSpec:
        faults = list(self._faults())
        if faults:
            raise UsageError("; ".join(faults))
        return self

    def _faults(self) -> Iterator[str]:
        if (self.schema_ is None) == (self.schema_field is None):
            yield "a job needs exactly one of schema (the same for all records) and schema_field (one per record)"
        yield from (
            f"fields holds {name!r}, which a prompt always has: leave it out" for name in self.fields if name in EXTRA_NAMES
        )
        if self.chunk_overlap >= (self.chunk_tokens or 1):
            yield f"chunk_overlap = {self.chunk_overlap} is not allowed: less than chunk_tokens = {self.chunk_tokens}"
        if self.merge and self.chunk_tokens is None:
            yield "merge says how pieces of a text become one value: it needs chunk_tokens"
        checks: tuple[Callable[[], object], ...] = (
            lambda: self.beam,
            lambda: check_patterns(self.merge, "merge"),
            lambda: check_patterns(self.ground_free, "ground_free"),
            lambda: check_patterns(self.review_below, "review_below"),
            lambda: Template(self.system, allowed=("schema",), what="system"),
            lambda: Template(self.prompt, allowed=(*EXTRA_NAMES, *self.fields), what="prompt"),
        )
        shows_schema = False
        for check in checks:
            try:
                made = check()
            except UsageError as error:
                yield str(error)
            else:
                shows_schema = isinstance(made, Template) and "schema" in made.names  # of the last one, the prompt's
        for number, example in enumerate(self.examples, start=1):
            if set(self.fields) != set(example.fields):
                yield f"example {number}: fields must be exactly {list(self.fields)}, not {list(example.fields)}"
            if shows_schema and self.schema_field and example.schema_ is None:
                yield f"example {number} needs a schema of its own: the prompt shows {{schema}} and each record has its own"

    @property
    def beam(self) -> BeamParams:
        """The beam search of every record; UsageError where the options do not go together."""
        return BeamParams(
            width=self.width, alpha=self.alpha, penalty=self.penalty, groups=self.groups,
            diversity=self.diversity, n=self.n, max_tokens=self.max_tokens,
        )  # fmt: skip

    def plain(self) -> dict[str, Json]:
        """The spec as JSON, every option spelled out."""
        return self.model_dump(mode="json", by_alias=True)


def plain(value: Json, path: str = "") -> Json:
    """`value` itself if it is JSON; UsageError where TOML or YAML made something else of it (a date, a set, a key of numbers)."""
    if isinstance(value, Mapping):
        bad = next((key for key in value if not isinstance(key, str)), None)
        if bad is not None:
            raise UsageError(f"key {bad!r} at {path or 'the root'} is not a string: write it in quotes")
        return {key: plain(item, f"{path}/{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{path}/{index}") for index, item in enumerate(value)]
    if not isinstance(value, PLAIN):
        raise UsageError(f"the value at {path or 'the root'} is a {type(value).__name__}, not JSON: write it in quotes")
    if isinstance(value, int | float) and not -MOST < value < MOST:
        raise UsageError(f"the number at {path or 'the root'} is not JSON, or too large: write it in quotes")
    return value


def make_spec(*layers: Mapping[str, Json]) -> JobSpec:
    """A JobSpec of several mappings, later ones winning. UsageError names the key, the value and what is allowed."""
    merged: dict[str, Json] = {}
    for layer in layers:
        merged.update(layer)
    try:
        return JobSpec.model_validate(merged)
    except ValidationError as error:
        unknown = [each for each in error.errors() if each["type"] == "extra_forbidden" and len(each["loc"]) == 1]
        names = sorted(field.alias or name for name, field in JobSpec.model_fields.items())
        raise UsageError("; ".join(_faults(error)), hint=f"known: {', '.join(names)}" if unknown else "") from None


def _faults(error: ValidationError) -> list[str]:
    """One text an option: its name, what was found, all that is wrong with it."""
    found: dict[str, list[str]] = {}
    for each in error.errors(include_url=False):
        loc = each["loc"][:1] if each["loc"][:1] == ("schema",) else each["loc"]  # behind it are names of pydantic's own
        where = ".".join(map(str, loc)) or "the job"
        value = "" if each["type"] == "missing" else f" = {each['input']!r:.80}"
        why = "is unknown" if each["type"] == "extra_forbidden" else each["msg"].replace("Input should be", "must be")
        found.setdefault(f"job option {where}{value}", []).append(why)
    return [f"{what}: {', or '.join(reasons)}" for what, reasons in found.items()]


def read_spec(path: Path) -> dict[str, Json]:
    """The mapping in a .toml, .yaml or .yml job file; a relative `schema` path is taken from the file's folder."""
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise UsageError(f"job file {path} ends in {path.suffix!r}: it must be .toml, .yaml or .yml")
    if not path.is_file():
        raise UsageError(f"job file {path} is not a file")
    if path.stat().st_size > MAX_SPEC_BYTES:
        raise UsageError(f"job file {path} has {path.stat().st_size} bytes: at most {MAX_SPEC_BYTES} are read")
    try:
        text = path.read_text(encoding="utf-8-sig")  # with a byte order mark, as some editors save it, or without
        data = tomllib.loads(text) if path.suffix == ".toml" else yaml.load(text, _StrictLoader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"job file {path} cannot be read: {' '.join(str(error).split()) or type(error).__name__}") from None
    if not isinstance(data, dict):
        raise UsageError(f"job file {path} holds a {type(data).__name__}: it must be a table of options")
    schema = data.get("schema")
    if isinstance(schema, str) and (path.parent / schema).is_file():
        data["schema"] = str(path.parent / schema)
    return data


class _StrictLoader(yaml.SafeLoader):
    """Plain YAML data; a repeated key and an alias (the door to exponential documents) are refused."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias (*name) is not allowed in a job file")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for position, key in enumerate(keys):
            if key in keys[:position]:
                raise yaml.YAMLError(f"key {key!r} appears twice, again on line {node.value[position][0].start_mark.line + 1}")
        return super().construct_mapping(node, deep)
