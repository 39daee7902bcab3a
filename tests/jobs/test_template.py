"""Templates and prompts: what a record becomes, and what a template may not do."""

from __future__ import annotations

import pytest

from toolkit.errors import InputError, UsageError
from toolkit.jobs.prompt import PromptMaker
from toolkit.jobs.spec import make_spec
from toolkit.jobs.template import Template

SCHEMA = {"type": "integer"}


def template(source: str) -> Template:
    return Template(source, allowed=("text",), what="prompt")


def test_a_placeholder_is_replaced_and_double_braces_are_braces() -> None:
    assert template('{{"a": {text}}}').render({"text": "1"}) == '{"a": 1}'


def test_what_is_substituted_is_not_read_as_a_template() -> None:
    assert template("{text}").render({"text": "{text} {{x}}"}) == "{text} {{x}}"


@pytest.mark.parametrize("source", ["{other}", "{text.__class__}", "{text!r}", "{text:>9}", "{0}", "{}", "{ text}"])
def test_an_unknown_placeholder_is_refused_with_the_known_ones(source: str) -> None:
    with pytest.raises(UsageError, match=r"allowed are \{text\}"):
        template(source)


@pytest.mark.parametrize("source", ["a { b", "a } b", "{{text}", "{text}}"])
def test_a_lone_brace_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match="lone"):
        template(source)


def test_a_chat_is_system_examples_record_and_shares_all_but_the_last_message() -> None:
    spec = make_spec({"schema": SCHEMA, "prompt": "T: {text}", "examples": [{"text": "one", "value": 1}]})
    maker = PromptMaker(spec)
    first, second = (maker(text=text, record_id="r", row={}, schema=SCHEMA) for text in ("two", "three"))
    assert first == [
        {"role": "system", "content": 'Answer with one JSON value that fits this JSON Schema: {"type":"integer"}'},
        {"role": "user", "content": "T: one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "T: two"},
    ]
    assert list(first)[:-1] == list(second)[:-1]


def test_raw_style_is_one_text() -> None:
    spec = make_spec(
        {"schema": SCHEMA, "style": "raw", "system": "S", "prompt": "{text} =", "examples": [{"text": "one", "value": 1}]}
    )
    assert PromptMaker(spec)(text="two", record_id="r", row={}, schema=SCHEMA) == "S\n\none =1\n\ntwo ="


def test_declared_fields_come_from_the_record_and_must_be_there() -> None:
    spec = make_spec({"schema": SCHEMA, "system": "", "prompt": "{id} {lang} {text}", "fields": ["lang"]})
    maker = PromptMaker(spec)
    assert maker(text="x", record_id="7", row={"lang": "de"}, schema=SCHEMA) == [{"role": "user", "content": "7 de x"}]
    with pytest.raises(InputError, match="'lang' is missing"):
        maker(text="x", record_id="7", row={}, schema=SCHEMA)
    with pytest.raises(InputError, match="is a list"):
        maker(text="x", record_id="7", row={"lang": []}, schema=SCHEMA)
