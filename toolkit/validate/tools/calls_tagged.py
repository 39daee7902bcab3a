"""Tagged calls: arguments as text between tags, where only the tool's schema says what a text means.

In: keys and pieces of text.   Out: the arguments as a value, and as JSON text while they come; a grammar of such texts.
Knows nothing about: the tags.
Invariants: an argument that can only be a string is its text as it is, and is told while it comes; any other is told at its end:
JSON of a type that the schema allows, else, where a string is allowed too, the text. `True`, `False` and `None`, as some templates
write them, are taken where a boolean or null is allowed. A text that holds its own closing tag cannot be written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from toolkit.contracts import Json
from toolkit.errors import InputError, UnsupportedError
from toolkit.schema import escape_pointer, parse_json, subschemas
from toolkit.validate.outline import Outline, in_words, type_of
from toolkit.validate.shown import cut
from toolkit.validate.tools.format import checked_name, compact, literal, schema_rule
from toolkit.validate.tools.offered import Offered
from toolkit.validate.tools.source import SPACE, Fault
from toolkit.validate.tools.turn import Call
from toolkit.validate.utf8 import first_byte

_PYTHON = {"True": ("boolean", "true"), "False": ("boolean", "false"), "None": ("null", "null")}


class TaggedArguments:
    """The arguments of one call, one after another."""

    def __init__(self, call: Call, tool: Offered | None) -> None:
        self.value: dict[str, Json] = {}
        self._call = call
        self._outline = Outline.of(True) if tool is None else tool.outline
        self._key = ""
        self._place = self._outline
        self._parts: list[str] = []
        self._is_bad = False
        call.add("{")

    def begin(self, key: str) -> None:
        """The value of `key` comes next. Raises Fault for a second one."""
        if key in self.value:
            raise Fault("format", "every argument once", f"argument {key!r} comes twice", _place(key))
        self._key, self._place, self._parts = key, self._outline.child(key), []
        self._call.add(("," if self.value else "") + json.dumps(key, ensure_ascii=False) + ":")
        if self._is_text:
            self._call.add('"')

    def add(self, piece: str) -> None:
        """More of its text; nothing counts after a byte that is no UTF-8."""
        if self._is_bad:
            return
        bad = first_byte(piece)
        self._is_bad, piece = bad is not None, piece[:bad]
        self._parts.append(piece)
        if self._is_text:
            self._call.add(json.dumps(piece, ensure_ascii=False)[1:-1])

    def end(self) -> None:
        """It has ended. Raises Fault where the text is no UTF-8 or means nothing that the schema allows."""
        if self._is_bad:
            raise Fault("utf8", "UTF-8", "an argument holds a byte that is no UTF-8", _place(self._key))
        text = "".join(self._parts)
        self.value[self._key] = text if self._is_text else self._meaning(text)
        self._call.add('"' if self._is_text else compact(self.value[self._key]))

    def close(self) -> dict[str, Json]:
        """All arguments."""
        self._call.add("}")
        return self.value

    @property
    def _is_text(self) -> bool:
        return self._place.types == {"string"}

    def _meaning(self, text: str) -> Json:
        types, core = self._place.types, text.strip(SPACE)
        kind, written = _PYTHON.get(core, ("", core))
        why = "the text means nothing that the schema allows"
        try:
            value = parse_json(written if kind in types else core)
            if type_of(value) in types - {"string"}:
                return value
        except InputError as error:
            why = error.message
        if "string" in types:
            return text
        expected = in_words(types)
        raise Fault("type", expected, cut(f"argument {self._key!r} must be {expected}: {why}"), _place(self._key))


def _place(key: str) -> str:
    return f"/arguments/{escape_pointer(key)}"


def tagged_text(key: str, value: Json, closing: str) -> str:
    """A value as text before its closing tag. Raises UnsupportedError where that is in it."""
    text = value if isinstance(value, str) else compact(value)
    if closing in text:
        raise UnsupportedError(f"argument {key!r} holds {closing}, which ends it in this format: it cannot be written")
    return text


def tagged_rules(tool: Offered, number: int, opening: str, closing: tuple[str, str, str]) -> str:
    """Lark rules for one tool's arguments, in the order of its schema; `args{number}` is the rule of all of them.

    `opening` holds `{key}`; `closing` is the tag between what stands before it and after it as white space.
    """
    required, described = set(tool.outline.required), tool.parameters.get("properties", {})
    possible = [name for name in tool.outline.names if tool.outline.child(name).types or name in required]
    names = [checked_name(name) for name in possible]
    missing = sorted(required - set(names))
    if missing:
        raise UnsupportedError(f"tool {tool.name!r} requires {', '.join(missing)[:200]}, which its properties do not describe")
    elsewhere = [name for name in names if name not in described]
    if elsewhere:
        raise UnsupportedError(
            f"tool {tool.name!r} describes {', '.join(elsewhere)[:200]} under $ref or allOf: tagged calls have no grammar for that",
            hint="write them under properties",
        )
    used = [f"a{number}_{i}" + ("" if name in required else "?") for i, name in enumerate(names)]
    rules = [f"args{number}: {' '.join(used) or literal('')}"]
    for i, name in enumerate(names):
        value, more = _value_rule(tool, name, f"{number}_{i}", closing)
        rules += [f"a{number}_{i}: {literal(opening.format(key=name))} {value}", *more]
    return "\n".join(rules)


# Keywords of an argument that is text, and of the arguments as a whole, which the rules carry out or which assert nothing.
_SAID = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$defs", "definitions")
)
_TEXT = _SAID | {"type", "enum", "const", "maxLength", "$ref", "allOf"}
_PLAIN = _SAID | {"type", "maxLength"}
_WHOLE = _SAID | {"type", "properties", "required", "additionalProperties", "$schema"}


def tagged_partial(tool: Offered) -> tuple[str, ...]:
    """What the schema says about the arguments and `tagged_rules` cannot: `tool/argument: keyword`."""
    found = [f"{tool.name}: {keyword}" for keyword in tool.parameters if keyword not in _WHOLE]
    for name in tool.outline.names:
        place = tool.outline.child(name)
        if "string" in place.types:
            found += [
                f"{tool.name}/{name}: {keyword}" for part in place.parts for keyword in _left(part, place.types == {"string"})
            ]
    return tuple(dict.fromkeys(found))


def _left(part: Mapping[str, Json], is_text: bool) -> list[str]:
    """Keywords of an argument that may be a string which its rule does not carry out."""
    said = _TEXT if is_text else _TEXT - {"enum", "const"}
    plain = {
        keyword
        for keyword in ("anyOf", "oneOf")
        if all(isinstance(each, dict) and each.keys() <= _PLAIN for each in part.get(keyword, ()))
    }
    return [keyword for keyword in part if keyword not in said | plain]


def _value_rule(tool: Offered, name: str, number: str, closing: tuple[str, str, str]) -> tuple[str, list[str]]:
    """What follows an opening tag, the closing tag included, and the rules that it needs."""
    place, end = tool.outline.child(name), "".join(closing)
    if "string" not in place.types:
        return f"v{number} {literal(end)}", [f"v{number}: {schema_rule(_part(tool.parameters, name))}"]
    if place.texts is not None and place.types == {"string"}:
        texts = [literal(tagged_text(name, text, closing[1]) + end) for text in place.texts]
        return f"V{number}", [f"V{number}: {' | '.join(texts)}"]
    before, tag, after = closing
    times = "*" if place.most_chars is None else f"{{0,{place.most_chars}}}"
    # Lazy: a text is over with the first closing tag. The break before it may be left out, since reading does not ask for it: to
    # demand it would be an intersection with "no such tag before", which long bounds make too costly for the grammar engine.
    text = f"/(?s:.{times})/ {literal(before) + '?' if before else ''} {literal(tag)}"
    words = (("null",) if "null" in place.types else ()) + (("true", "false") if "boolean" in place.types else ())
    others = "".join(f" | {literal(word + before + tag)}" for word in words)  # which a bound might not leave room for
    return f"v{number} {literal(after)}", [f"v{number}[lazy]: {text}{others}"]


def _part(parameters: Mapping[str, Json], name: str) -> dict[str, Json]:
    """The schema of one argument as a document of its own."""
    part = parameters["properties"][name]
    part = {} if part is True else {"not": {}} if part is False else part
    if not any(isinstance(each, dict) and "$ref" in each for _, each in subschemas(part)):
        return dict(part)
    whole = json.loads(json.dumps(parameters))
    for _, each in subschemas(whole):
        reference = each.get("$ref") if isinstance(each, dict) else None
        if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
            each["$ref"] = "#/$defs/tool" + reference[1:]
    return {"$ref": f"#/$defs/tool/properties/{name}", "$defs": {"tool": whole}}
