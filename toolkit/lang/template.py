"""Template: the model's own chat template in the shape that SGLang's roles need.

In: a tokenizer.   Out: a SGLang ChatTemplate (a prefix and a suffix a role, a default system text).
SGLang writes roles as text around the content, while a model's template renders whole conversations, so one is found for
the other by trial: of SGLang's templates the one that gives, for a few conversations, exactly the token ids that the model's
own template gives. The default system text is read off the same ids. Without a match there are no roles (`NO_ROLES`, which
the backend refuses to generate under): roles in a foreign format would run, and quietly run worse.
Stop strings are left out: the end of a turn is a token (`end_ids`), and SGLang adds a template's stop strings to the list
that the program passed to `gen`, in place.

Knows nothing about: engines, how a template is rendered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sglang.lang.chat_template import ChatTemplate, chat_template_registry, get_chat_template

from toolkit.contracts import Message, Tokenizer
from toolkit.errors import ToolkitError, UsageError

PLAIN = ({"role": "user", "content": "Name a colour."},)
WITH_SYSTEM: tuple[Message, ...] = ({"role": "system", "content": "Be brief."}, *PLAIN)
LONG: tuple[Message, ...] = (*WITH_SYSTEM, {"role": "assistant", "content": "Blue."}, {"role": "user", "content": "Another."})
# The byte tokenizer's template, which SGLang cannot know.
BYTES = ChatTemplate(
    name="toolkit-bytes",
    default_system_prompt="",
    role_prefix_and_suffix={role: (f"<|{role}|>", "<|end|>") for role in ("system", "user", "assistant", "tool")},
)
# Stands for "roles cannot be written": programs without roles run, and a segment under a role is refused.
NO_ROLES = ChatTemplate(name="none", default_system_prompt="", role_prefix_and_suffix={})


def check_name(name: str) -> None:
    """UsageError unless SGLang has a chat template called `name`."""
    if name not in chat_template_registry:
        raise UsageError(f"chat_template = {name!r} is unknown: SGLang has {', '.join(sorted(chat_template_registry))}")


def template_of(tokenizer: Tokenizer, *, name: str | None = None) -> ChatTemplate:
    """SGLang's template called `name`, or the one that agrees with the tokenizer's own, or NO_ROLES."""
    if name is not None:
        check_name(name)
        return replace(get_chat_template(name), stop_str=())
    adapted = (_adapted(template, tokenizer) for template in (BYTES, *chat_template_registry.values()))
    return next((template for template in adapted if template is not None), NO_ROLES)


def end_ids(template: ChatTemplate, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Control tokens that end an assistant's turn and that are not end tokens of the model anyway."""
    _, suffix = template.role_prefix_and_suffix.get("assistant", ("", ""))
    first = tokenizer.encode(suffix, control=True)[:1]
    return tuple(i for i in first if i in tokenizer.control_ids and i not in tokenizer.eos_ids)


def _adapted(template: ChatTemplate, tokenizer: Tokenizer) -> ChatTemplate | None:
    """`template` with the model's default system text, if it then agrees with the model's template; None if it does not."""
    bare = replace(template, default_system_prompt=None, stop_str=())
    agrees = all(_ids(bare, talk, tokenizer) == _model_ids(talk, tokenizer) for talk in (WITH_SYSTEM, LONG))
    if not agrees:
        return None
    system = _default_system(bare, tokenizer)
    return None if system is None else replace(bare, default_system_prompt=system or None)


def _default_system(template: ChatTemplate, tokenizer: Tokenizer) -> str | None:
    """The system text that the model's template adds by itself ("" = none); None if it cannot be written as a system role."""
    ids = _model_ids(PLAIN, tokenizer) or []
    if ids == _ids(template, PLAIN, tokenizer):
        return ""
    before, after = template.get_prefix_and_suffix("system", [])
    head, tail = tokenizer.encode(before, control=True), _ids(template, PLAIN, tokenizer)
    text = tokenizer.decode(ids[len(head) : len(ids) - len(tail)]).removesuffix(after[-1:] if after.endswith("\n") else "")
    spoken: tuple[Message, ...] = ({"role": "system", "content": text}, *PLAIN)
    return text if _ids(template, spoken, tokenizer) == ids else None


def _ids(template: ChatTemplate, talk: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
    """What SGLang's interpreter would send for `talk` once it opens the assistant's turn."""
    opened, _ = template.get_prefix_and_suffix("assistant", list(talk))
    return tokenizer.encode(template.get_prompt(list(talk)) + opened, control=True)


def _model_ids(talk: Sequence[Message], tokenizer: Tokenizer) -> list[int] | None:
    try:
        return list(tokenizer.chat(talk))
    except ToolkitError:
        return None
