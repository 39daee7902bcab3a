"""A tool-calling turn: the model picks a function and its arguments, the program runs it, the model tells the result.

The call is constrained to the signatures of TOOLS, so it can always be run: there is no name and no argument to repair.
Every number and string has a bound: a small model left without one may write digits until it is cut off.
"""

import json
from typing import Annotated, Literal

import sglang as sgl
from pydantic import Field

from toolkit.lang import free, result, tool_call

SCHEMA = "tool_turn"
REQUEST = "We need six lemons for tomorrow."


def set_timer(minutes: Annotated[int, Field(ge=1, le=180)]) -> str:
    """Ring after a number of minutes."""
    return f"timer set to {minutes} minutes"


def add_to_list(item: Annotated[str, Field(max_length=30)], quantity: Annotated[int, Field(ge=1, le=99)]) -> str:
    """Put something on the shopping list."""
    return f"{quantity} {item} on the list"


def switch_light(room: Literal["kitchen", "bedroom", "office"], on: bool) -> str:
    """Switch the light of a room on or off."""
    return f"{room} light is {'on' if on else 'off'}"


TOOLS = {tool.__name__: tool for tool in (set_timer, add_to_list, switch_light)}
EXAMPLES = [
    ("It is too dark in the office.", switch_light, {"room": "office", "on": True}, "I switched the office light on."),
    ("Two bottles of milk, please.", add_to_list, {"item": "milk", "quantity": 2}, "I put 2 milk on the list."),
    ("Tell me in 8 minutes that the eggs are done.", set_timer, {"minutes": 8}, "I set the timer to 8 minutes."),
    ("Good night, lights out in the bedroom.", switch_light, {"room": "bedroom", "on": False}, "The light is off."),
    ("I need five onions.", add_to_list, {"item": "onions", "quantity": 5}, "I put 5 onions on the list."),
    ("Remind me of the cake in 40 minutes.", set_timer, {"minutes": 40}, "I set the timer to 40 minutes."),
]


@sgl.function
def turn(s, request):
    """Two model segments with the tool's own words between them."""
    s += "Functions:\n" + "".join(f"- {name}: {tool.__doc__}\n" for name, tool in TOOLS.items())
    for question, tool, arguments, answer in EXAMPLES:
        call = json.dumps({"name": tool.__name__, "arguments": arguments}, separators=(",", ":"))
        s += f"\nUser: {question}\nCall: {call}\nResult: {tool(**arguments)}\nAnswer: {answer}\n"
    s += "\nUser: " + request + "\nCall: "
    s += tool_call("call", list(TOOLS.values()), width=4, max_tokens=80)
    call = result(s, "call").value
    s["output"] = TOOLS[call["name"]](**call["arguments"])
    s += "\nResult: " + s["output"] + "\nAnswer:"
    s += free("answer", max_tokens=40, stop="\n", temperature=0)


def main(request: str = REQUEST) -> dict:
    """The call, what it returned and the model's answer."""
    state = turn.run(request=request)
    call = result(state, "call").value
    return {"value": {"call": call, "result": state["output"], "answer": state["answer"].strip()}}
