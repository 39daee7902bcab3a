"""Sandbox: a Jinja template from an untrusted model folder, rendered within bounds.

In: template source, variables made of JSON values.   Out: a string.
Knows nothing about: chats, tokens.
Invariants: no attribute leads out of plain values; every loop turn and call costs a step of a fixed budget, every value has a
largest size, and every operation that can grow a value is either checked beforehand or absent.
Source: jinja2's ImmutableSandboxedEnvironment; departures: filters and string methods are an allowed list, not a denied one,
and the budget, because the sandbox alone bounds neither time nor memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from toolkit.errors import InputError, UnsupportedError, UsageError

MOST_SOURCE = 1 << 18  # characters; released templates have up to about 20,000
MOST_SIZE = 1 << 22  # characters of a value or of the result, a container's entry counted as 64
MOST_STEPS = 200_000  # loop turns, calls and every 512 characters handled: a second or so
_MOST_PARTS = 64  # operands of one ~
_FILTERS = (
    "abs capitalize count d default dictsort e escape first float int items join last length list lower map max min reject "
    "rejectattr replace reverse round safe select selectattr sort string sum title tojson trim unique upper"
)
_METHODS = (
    "capitalize count endswith find get index isalnum isalpha isdigit islower isspace isupper items keys lower lstrip "
    "removeprefix removesuffix replace rfind rsplit rstrip split splitlines startswith strip title upper values"
)
_LOOKS = ("length", "count", "first", "last", "default", "d")  # filters whose work does not grow with their argument
# Where a value is kept, compared or joined: everything a template can grow passes one of these.
_WEIGHED: tuple[tuple[type[nodes.Node], str], ...] = (
    (nodes.Assign, "node"), (nodes.Keyword, "value"), (nodes.Pair, "value"), (nodes.Compare, "expr"), (nodes.Operand, "expr"),
)  # fmt: skip
# What a wrong template raises while it runs.
_FAILURES = (
    TemplateError, RecursionError, MemoryError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError,
)  # fmt: skip
_steps: ContextVar[list[int]] = ContextVar("steps")


class _BoundsError(Exception):
    """The template asked for more than it may."""


def _spend(value: object = None) -> Any:
    """Pay for handling `value`, by what it and everything in it weighs, and give it back."""
    steps = _steps.get()
    steps[0] -= 1
    parts, size = [value], 0
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            parts += (*part.keys(), *part.values())
        elif isinstance(part, list | tuple):
            parts += part
        size += len(part) // 64 if isinstance(part, str | list | tuple | dict) else 0
        size += 1
        if size > MOST_SIZE // 64 or size // 8 > steps[0]:
            raise _BoundsError
    steps[0] -= size // 8
    return value


def _paid(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _spend()
        yield item


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator in ("**", "%") and not (operator == "%" and isinstance(left, int | float)):
            raise _BoundsError
        if operator == "*":
            _check_product(left, right)
        return _spend(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - jinja2's own names
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str | list | dict | tuple):
            if name not in _METHODS.split():
                raise UnsupportedError(f"chat template calls .{name}(), which is not allowed: {_METHODS}")
            if name == "replace":
                _check_replace(owner, *args)
            _spend(owner)
        _spend(args)
        return _spend(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> None:
        """Leave str.format and format_map as they are: `call` refuses them, since a width makes a text of any length."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _through("_paid", loop.iter, loop)
        for joined in list(tree.find_all(nodes.Concat)):
            if len(joined.nodes) > _MOST_PARTS:
                raise UnsupportedError(f"chat template joins more than {_MOST_PARTS} values with ~ at line {joined.lineno}")
            joined.nodes = [_through("_spend", part, joined) for part in joined.nodes]
        for kind, field in _WEIGHED:
            for node in list(tree.find_all(kind)):
                setattr(node, field, _through("_spend", getattr(node, field), node))
        for output in tree.find_all(nodes.Output):  # fixed text as well: a loop can repeat it
            parts = (nodes.Const(part.data) if isinstance(part, nodes.TemplateData) else part for part in output.nodes)
            output.nodes = [_through("_spend", part, output) for part in parts]
        for block in tree.find_all(nodes.AssignBlock):
            block.filter = _through("_spend", block.filter, block)
        return tree


def _through(name: str, value: Any, at: nodes.Node) -> nodes.Filter:
    """`value | name`, as if the template said so."""
    return nodes.Filter(value, name, [], [], None, None, lineno=at.lineno)


class Sandbox:
    """Compiles templates under the rules above."""

    def __init__(self) -> None:
        env = _Environment(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=["jinja2.ext.loopcontrols"]
        )  # unoptimised: constants are folded while compiling, outside the budget
        known = {name: call for name, call in env.filters.items() if name in _FILTERS.split()}
        env.filters = {name: _costed(call, name in _LOOKS) for name, call in known.items()}
        env.filters |= {"tojson": _tojson, "join": _join, "replace": _replace, "_paid": _paid, "_spend": _spend}
        env.globals = {
            "range": env.globals["range"], "namespace": env.globals["namespace"], "dict": dict,
            "raise_exception": _refuse, "strftime_now": _now,
        }  # fmt: skip
        self._env = env

    def compile(self, source: str) -> CompiledTemplate:
        """InputError for a template that is too long or no valid Jinja."""
        if len(source) > MOST_SOURCE:
            raise InputError(f"chat template has {len(source)} characters: at most {MOST_SOURCE} are allowed")
        try:
            return CompiledTemplate(self._env.from_string(source))
        except (TemplateError, RecursionError, MemoryError, SyntaxError, ValueError) as error:
            raise InputError(f"chat template does not compile: {error or type(error).__name__}") from error


class CompiledTemplate:
    """A template ready to render."""

    def __init__(self, template: Any) -> None:
        self._template = template

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. InputError where the template fails or exceeds its bounds, UsageError where it refuses the chat itself."""
        token = _steps.set([MOST_STEPS])
        try:
            parts = [_spend(part) for part in self._template.generate(dict(variables))]
            return str(_spend("".join(parts)))
        except _BoundsError as error:
            raise InputError(
                f"chat template exceeds its bounds: {MOST_STEPS} steps, values of {MOST_SIZE} characters, no power or % on text"
            ) from error
        except _FAILURES as error:
            raise InputError(f"chat template failed: {type(error).__name__}: {str(error)[:300]}") from error
        finally:
            _steps.reset(token)


def _costed(call: Any, looks: bool) -> Any:
    """A filter that pays for its result and, unless it only looks, its arguments; jinja2's marks (pass_context) travel along."""

    def filter_(*args: Any, **kwargs: Any) -> Any:
        _spend(() if looks else args)
        return _spend(call(*args, **kwargs))

    filter_.__dict__.update(getattr(call, "__dict__", {}))
    return filter_


def _check_product(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int) and len(value) * times > MOST_SIZE:
            raise _BoundsError
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 1024:
        raise _BoundsError


def _check_replace(text: Any, old: Any, new: Any, *_count: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str) and text.count(old) * len(new) > MOST_SIZE:
        raise _BoundsError


def _replace(text: Any, old: str, new: str, count: int = -1) -> str:
    _check_replace(str(_spend(text)), old, new)
    return str(_spend(str(text).replace(old, new, count)))


def _join(items: Iterable[Any], separator: str = "", attribute: str | int | None = None) -> str:
    total, texts = 0, []
    for item in _paid(items):
        part = item if attribute is None else item.get(attribute, "") if isinstance(item, dict) else item[attribute]
        texts.append(str(_spend(part)))
        total += len(texts[-1]) + len(separator)
        if total > MOST_SIZE:
            raise _BoundsError
    return str(_spend(separator.join(texts)))


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    if isinstance(value, Undefined):
        raise InputError("chat template gives an undefined value to tojson")
    if isinstance(indent, int) and indent > 16:
        raise _BoundsError
    _spend(value)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return str(_spend(text))


def _refuse(message: Any) -> None:
    raise UsageError(f"the model's chat template refuses this chat: {str(message)[:500]}")


def _now(form: Any) -> str:
    if not isinstance(form, str) or len(form) > 64 or any(char.isdigit() for char in form):
        raise _BoundsError  # widths such as %1000000d
    return datetime.now().strftime(form)
