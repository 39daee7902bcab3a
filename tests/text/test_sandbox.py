from __future__ import annotations

import pytest

from toolkit.errors import InputError, ToolkitError, UnsupportedError, UsageError
from toolkit.text.sandbox import MOST_SOURCE, Sandbox


def render(source: str, **variables: object) -> str:
    return Sandbox().compile(source).render(variables)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 1000000000000 }}",
        "{{ 1000000000000 * 'a' }}",
        "{{ [0] * 1000000000000 }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'x'.ljust(1000000000000) }}",
        "{{ 'x'.format() }}",
        "{{ 'x' | center(1000000000000) }}",
        "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a'*1000) %}{% for i in range(9) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='a'*1000) %}{% for i in range(9) %}{% set ns.x = ns.x | replace('a', ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='a'*1000) %}{% for i in range(9) %}{% set ns.x = ns.x | join(ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='a'*1000) %}{% for i in range(9) %}{% set ns.x = ns.x.join(ns.x) %}{% endfor %}",
        "{% set ns = namespace(x=2) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x %}{{ [ns.x, ns.x] | string }}{% endset %}{% endfor %}",
        "{{ (" + " ~ ".join(["'a'"] * 100) + ") }}",
        "{% set a = [1] %}" + "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x }}",
        "{% macro f(x, n) %}{% if n %}{{ f([x, x], n - 1) }}{% else %}{{ x }}{% endif %}{% endmacro %}{{ f(1, 60) }}",
        "{% set a = [7] * 50000 %}{% set b = [7] * 50000 %}{% for i in range(99999) %}{% if a == b %}{% endif %}{% endfor %}",
        "{% set a = 'x' * 4000000 %}{% for i in range(99999) %}{% if 'y' in a %}{% endif %}{% endfor %}",
        "{% set a = 'x' * 4000000 %}{{ [a, a, a, a, a, a] | string }}",
        "{% set x %}{% for i in range(99999) %}" + "y" * 200_000 + "{% endfor %}{% endset %}",
        "{% macro m() %}{% for i in range(99999) %}" + "y" * 200_000 + "{% endfor %}{% endmacro %}{{ m() }}",
        "{% set x = 'y' * 4000000 %}{{ [x, x, x] | replace('y', 'z') }}",
        "{{ " + " + ".join(["1"] * 50_000) + " }}",
        "{{ strftime_now('%1000000000d') }}",
        "{{ [1] | tojson(indent=100000000000) }}",
        "{{ range(99999) | list | string | list | map('upper') | join | list | sort | join('x' * 100000) }}",
    ],
)
def test_a_template_that_wants_too_much_is_stopped(source: str) -> None:
    with pytest.raises(ToolkitError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}{{ messages.__class__.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages | attr('__class__') }}",
        "{{ messages.append(1) }}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
        "{{ self._TemplateReference__context.environment.filters }}{{ namespace.__init__.__globals__.x }}",
        "{{ ('{0.__class__}' | format(1)) }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ namespace().__init__.__globals__['__builtins__'] }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises((InputError, UnsupportedError)):
        render(source, messages=[])


def test_a_template_that_is_too_long_or_broken_is_refused() -> None:
    with pytest.raises(InputError, match="at most"):
        Sandbox().compile("x" * (MOST_SOURCE + 1))
    with pytest.raises(InputError, match="compile"):
        Sandbox().compile("{% for %}")


def test_a_template_that_refuses_a_chat_is_a_usage_error_with_its_words() -> None:
    with pytest.raises(UsageError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_ordinary_template_language_works() -> None:
    source = (
        "{% set ns = namespace(n=0) %}{% for m in ms if m.a %}{% set ns.n = ns.n + loop.index %}{{ m.a | trim }}"
        "{% if not loop.last %},{% endif %}{% endfor %}={{ ns.n }} {{ {'k': [1, 'é<']} | tojson }} {{ ms[0].a.split('-')[-1] }}"
        "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %} {{ ms | map(attribute='a') | join('+') }}"
        " {{ ms | length }} {{ 'a' is defined }} {{ (ms | selectattr('a', 'equalto', 'z') | list) | length }} {{ 7 % 4 }}"
    )
    assert render(source, ms=[{"a": " x-y "}, {"a": "z"}]) == 'x-y,z=3 {"k": [1, "é<"]} y 1  x-y +z 2 True 1 3'


def test_a_template_as_rich_as_released_ones_renders_as_in_the_plain_sandbox() -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    source = """
{%- if tools %}
    {{- '[tools]\\n' }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | string }}{%- endfor %}
{%- elif messages[0].role == 'system' %}
    {{- '[system]' + messages[0].content + '\\n' }}
{%- endif %}
{%- set ns = namespace(open=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and message.role == "user" and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.open = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{{- ns.last }}
{%- macro show(text, mark='-') %}{{ mark }}{{ text.strip() }}{{ mark }}{% endmacro %}
{%- for message in messages %}
    {%- if message.note is defined and message.note is not none %}{{- message.note }}{%- endif %}
    {%- if '</t>' in message.content %}
        {{- message.content.split('</t>')[0].rstrip('\\n').split('<t>')[-1].lstrip('\\n') }}
    {%- endif %}
    {%- if loop.first or (messages[loop.index0 - 1].role != "user") %}{{- show(message.content, mark='*') }}{%- endif %}
    {%- for call in message.calls %}
        {%- if call.function %}{%- set call = call.function %}{%- endif %}
        {{- call.name ~ ':' ~ call.arguments.items() | list ~ (call.arguments.x is string) ~ loop.last }}
    {%- endfor %}
{%- endfor %}
{%- if enable is defined and enable is false %}{{- 'off' }}{%- else %}{{- 'on' if messages | length > 2 else 'few' }}{%- endif %}
"""
    messages = [
        {"role": "system", "content": " s "},
        {"role": "user", "content": "<t>\nwhy</t> é", "note": "n"},
        {
            "role": "assistant",
            "content": "a",
            "calls": [{"function": {"name": "f", "arguments": {"x": "1", "y": [2, {"z": None}]}}}],
        },
        {"role": "user", "content": "<r>ok</r>"},
    ]
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    for tools in (None, [{"name": "f"}]):
        expected = plain.from_string(source).render(messages=messages, tools=tools)
        assert render(source, messages=messages, tools=tools) == expected
        assert "*<t>" in expected
