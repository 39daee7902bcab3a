"""JobSpec: what a job file may hold, and how it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.contracts import BeamParams
from toolkit.errors import UsageError
from toolkit.jobs.spec import make_spec, read_spec

SCHEMA = {"type": "integer"}


def test_later_layers_win_and_the_beam_is_checked_as_one() -> None:
    spec = make_spec({"schema": SCHEMA, "width": 8, "alpha": 0}, {"width": 2})
    assert spec.beam == BeamParams(width=2, alpha=0.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"widht": 4}, "widht"),
        ({"width": "many"}, "width"),
        ({"width": 0}, "width"),
        ({"width": 4, "groups": 3}, "groups"),
        ({"alpha": -1}, "alpha"),
        ({"width": True}, "job option width = True: must be a valid integer"),
        ({"width": "4"}, "width"),
        ({"alpha": True}, "alpha"),
        ({"max_tokens": False}, "max_tokens"),
        ({"schema": 3}, "job option schema = 3: must be a valid string, or must be a valid dictionary"),
        ({"schema_field": ""}, "schema_field"),
        ({"text_field": ""}, "text_field"),
        ({"id_field": ""}, "id_field"),
        ({"examples": [{"text": "a", "value": float("inf")}]}, "not JSON, or too large"),
        ({"examples": [{"text": "a", "value": [10**400]}]}, "the number at /0"),
        ({"encoding": "utf-16"}, "encoding"),
        ({"style": "poem"}, "style"),
        ({"prompt": "{nope}"}, "nope"),
        ({"system": "{text}"}, "text"),
        ({"fields": ["text"]}, "fields"),
        ({"examples": [{"text": "a"}]}, "value"),
        ({"examples": [{"text": "a", "value": 1, "fields": {"x": "y"}}]}, "example 1"),
        ({"schema_field": "s"}, "exactly one"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_spec({"schema": SCHEMA, **options})


def test_all_faults_are_reported_together() -> None:
    with pytest.raises(UsageError) as caught:
        make_spec({"schema": SCHEMA, "widht": 4, "style": "poem", "alpha": "x", "examples": [{"value": 1}]})
    assert all(name in str(caught.value) for name in ("widht", "style = 'poem'", "alpha = 'x'", "examples.0.text", "known: "))
    with pytest.raises(UsageError) as caught:
        make_spec({"width": 0, "system": "{text}", "prompt": "{nope}", "fields": ["id"]})
    assert all(name in str(caught.value) for name in ("exactly one", "width", "system", "{nope}", "fields holds 'id'"))


def test_an_example_needs_its_own_schema_where_records_bring_theirs_and_the_prompt_shows_it() -> None:
    options = {"schema_field": "s", "prompt": "{schema} {text}", "examples": [{"text": "a", "value": 1}]}
    with pytest.raises(UsageError, match="example 1 needs a schema"):
        make_spec(options)


def test_toml_and_yaml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "j.toml").write_text('width = 2\nschema = "s.json"\n[[examples]]\ntext = "a"\nvalue = {n = 1}\n')
    (tmp_path / "j.yaml").write_text("width: 2\nschema: s.json\nexamples:\n- text: a\n  value: {n: 1}\n")
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    toml, yaml = (read_spec(tmp_path / name) for name in ("j.toml", "j.yaml"))
    assert toml == yaml
    (tmp_path / "marked.toml").write_text("\ufeff" + (tmp_path / "j.toml").read_text())
    assert read_spec(tmp_path / "marked.toml") == toml
    assert toml["schema"] == str(tmp_path / "s.json")
    assert make_spec(toml).plain() == make_spec(yaml).plain()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("j.ini", "", "must be .toml, .yaml or .yml"),
        ("j.toml", "width = ", "cannot be read"),
        ("j.toml", "width = 1\nwidth = 2", "cannot be read"),
        ("j.yaml", "width: 1\nwidth: 2", "appears twice"),
        ("j.yaml", "a: &a [1]\nb: [*a, *a]", "alias"),
        ("j.yaml", "a: !!python/object/apply:os.getcwd []", "cannot be read"),
        ("j.yaml", "[" * 5000, "cannot be read"),
        ("j.yaml", "- 1", "must be a table"),
        ("j.yaml", "", "must be a table"),
    ],
)
def test_a_file_that_is_no_job_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=said):
        read_spec(tmp_path / name)


def test_a_date_in_an_example_is_refused_because_json_has_none(tmp_path: Path) -> None:
    (tmp_path / "j.yaml").write_text("schema: {type: object}\nexamples:\n- {text: a, value: {day: 2020-01-01}}\n")
    with pytest.raises(UsageError, match="/day is a date, not JSON: write it in quotes"):
        make_spec(read_spec(tmp_path / "j.yaml"))
