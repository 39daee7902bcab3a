"""Guard: a text that has to be valid, tried again in stated ways until it is - on any engine.

    first try -> valid? done.   cut off? done: it is not wrong, and would be cut off again
              -> "plain"        without speculation: on `fallback` where one is given, else on the engine itself
              -> "constrained"  under a grammar made of the watch
              -> "ask"          the text and what is wrong with it behind the prompt, once more
              -> the first try, as invalid as it is

In: an engine, a request with a watch or a grammar, the policies in their order.   Out: one Completion, every attempt in it.
Knows nothing about: how engines decode. What they say about validity is not believed: every text is judged here, from scratch.
But that a text failed an audit and could not be replaced is: no judge of texts can know.
Invariants: no policy, no second try; at most one try of each; a try that an engine refuses or fails on is an attempt with an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from toolkit.contracts import Attempt, Completion, Engine, Grammar, Message, Prompt, Request, Violation, Watch, require
from toolkit.engine.metrics import Metrics
from toolkit.engine.watch import AUDIT, Checks, is_cut, judged
from toolkit.errors import EngineError, NoValidError, ToolkitError, UnsupportedError, UsageError
from toolkit.results import only_result
from toolkit.validate.tools.grammar import tools_grammar

Policy = Literal["plain", "constrained", "ask"]
_MOST_SHOWN = 8  # violations that a model is told of
_MOST_PATH = 200  # characters of where it is
_MOST_TEXT = 4000  # characters of its own text that it is shown


def guarded(engine: Engine, request: Request, policies: Sequence[Policy] = (), *, fallback: Engine | None = None) -> Completion:
    """The first valid text, or the first one of all where none is; `attempts` has every one. A cut-off text is not tried again.

    fallback: a second engine without speculation, for "plain". An endpoint that cannot leave speculation out of one request, with no
    fallback given, refuses "plain", and is asked for a "constrained" text in its place. Raises what the first try raises, UsageError
    for a request that there is nothing to judge by, with more than one sample or a beam, or for a policy that is none or comes twice.
    """
    checks = Checks.of(request)
    if checks is None or request.beam is not None or request.sampling.n != 1:
        raise UsageError(
            "guarded takes one sampled text with a watch or a grammar to judge it by",
            hint='Request(..., watch=Watch(kind="json", schema=...)), n = 1',
        )
    check_policies(policies)
    first = _run(engine, request, checks)
    attempts = [_attempt("", first)]
    found = first
    left: list[Policy] = [] if is_cut(first) else list(policies)
    while left and not found.valid:
        policy = left.pop(0)
        try:
            where = fallback if policy == "plain" and fallback is not None else engine
            found = _run(where, _again(policy, request, first, engine), checks)
            attempts.append(_attempt(policy, found))
        except ToolkitError as error:
            attempts.append(Attempt(policy=policy, error=str(error)))
            if policy == "plain" and isinstance(error, UnsupportedError) and "constrained" not in policies:
                left.insert(0, "constrained")
        _count(engine, attempts[-1])
    return replace(found if found.valid else first, attempts=tuple(attempts))


def check_policies(policies: Sequence[Policy]) -> None:
    """UsageError for a policy that is none, or comes twice."""
    listed = isinstance(policies, Sequence) and not isinstance(policies, str)
    require(listed, "policies", policies, f"a list of {', '.join(get_args(Policy))}")
    for policy in policies:
        require(policy in get_args(Policy), "policy", policy, ", ".join(get_args(Policy)))
    require(len(set(policies)) == len(policies), "policies", tuple(policies), "each at most once")


def _run(engine: Engine, request: Request, checks: Checks) -> Completion:
    try:
        result = only_result(engine.generate([request]))
    except NoValidError as error:  # an engine that has judged a text itself
        result = Completion(text=error.texts[0] if error.texts else "", token_ids=(), finish_reason="stop")
    if not isinstance(result, Completion):
        raise EngineError(f"the engine gave a {type(result).__name__} for a text")
    found = judged(checks, result, engine.tokenizer)
    failed = tuple(each for each in result.violations if each.keyword == AUDIT)
    return replace(found, valid=False, value=None, violations=found.violations + failed) if failed else found


def _again(policy: Policy, request: Request, first: Completion, engine: Engine) -> Request:
    """The request of the next try; its id is given anew."""
    request = replace(request, id="")
    if policy == "plain":
        return replace(request, speculate=False)
    if policy == "constrained":
        return replace(request, grammar=_grammar(request))
    return replace(request, prompt=_asked(request.prompt, first, engine))


def _grammar(request: Request) -> Grammar:
    """The grammar that the text should have had. UnsupportedError where none can be made."""
    watch = request.watch
    if request.grammar is not None or watch is None:
        raise UnsupportedError("the request has a grammar already: constrained is what it was")
    if watch.kind == "json":
        return Grammar("json_schema", watch.schema if watch.schema is not None else "{}", watch.python_type)
    if watch.kind == "tools":
        return _tool_grammar(watch)
    raise UnsupportedError(f"there is no grammar of {watch.language}", hint='use the policy "ask"')


def _tool_grammar(watch: Watch) -> Grammar:
    """A turn of calls; where calling was left open, that the first try was faulty says that it meant to call."""
    choice = "required" if watch.choice == "auto" else watch.choice
    return tools_grammar(watch.format, json.loads(watch.tools), choice=choice, parallel=watch.parallel)


def _asked(prompt: Prompt, first: Completion, engine: Engine) -> Prompt:
    """The prompt with the text and its faults behind it, in the prompt's own form."""
    text = first.text[:_MOST_TEXT]
    told = "Your answer is not valid:\n" + "".join(map(_line, first.violations[:_MOST_SHOWN])) + "Write it again, corrected."
    if isinstance(prompt, str):
        return f"{prompt}{text}\n\n{told}\n"
    if all(isinstance(each, Mapping) for each in prompt):
        more: list[Message] = [{"role": "assistant", "content": text}, {"role": "user", "content": told}]
        return [*prompt, *more]
    ids: list[Any] = [*prompt, *engine.tokenizer.encode(f"{text}\n\n{told}\n")]
    return ids


def _line(violation: Violation) -> str:
    return f"- {violation.path[:_MOST_PATH] or 'the whole'}: {violation.message} (expected {violation.expected})\n"


def _attempt(policy: str, result: Completion) -> Attempt:
    return Attempt(
        policy=policy, text=result.text, finish_reason=result.finish_reason, valid=result.valid, violations=result.violations,
        incidents=result.incidents, usage=result.usage,
    )  # fmt: skip


def _count(engine: Engine, attempt: Attempt) -> None:
    metrics = getattr(engine, "metrics", None)
    if isinstance(metrics, Metrics):
        outcome = "refused" if attempt.error else "valid" if attempt.valid else "invalid"
        metrics.add("toolkit_repairs_total", policy=attempt.policy, outcome=outcome)
