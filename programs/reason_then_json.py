"""Reason first, then JSON: free text to think in, a beam for the record.

A schema leaves no room to think, and thinking leaves no JSON; a program can have both. The thoughts are plain text, and
the record that follows is searched for under its schema with the thoughts as its context.
"""

from typing import Literal

import sglang as sgl
from pydantic import BaseModel, ConfigDict, Field

from toolkit.lang import beam, free, result

SCHEMA = "appointment"
MESSAGE = "The choir rehearsal is on Friday at 7 in the evening, as always."


class Appointment(BaseModel):
    """When something takes place."""

    model_config = ConfigDict(extra="forbid")
    what: str = Field(max_length=40)
    day: Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    hour: int = Field(ge=1, le=12)


EXAMPLES = [
    (
        "Can we move the budget talk to Tuesday at 3 in the afternoon?",
        "This is about the budget talk. The day is Tuesday. It is at 3 in the afternoon.",
        Appointment(what="budget talk", day="Tuesday", hour=3),
    ),
    (
        "Breakfast with the new team will be on Monday at 8 in the morning.",
        "This is about breakfast with the new team. The day is Monday. It is at 8 in the morning.",
        Appointment(what="breakfast with the new team", day="Monday", hour=8),
    ),
    (
        "Do not forget the theatre, Saturday at 9 in the evening!",
        "This is about the theatre. The day is Saturday. It is at 9 in the evening.",
        Appointment(what="theatre", day="Saturday", hour=9),
    ),
]


@sgl.function
def read(s, message):
    """Thoughts, then the record."""
    for text, thoughts, appointment in EXAMPLES:
        s += f"Message: {text}\nThoughts: {thoughts}\nAppointment: {appointment.model_dump_json()}\n\n"
    s += "Message: " + message + "\nThoughts:"
    s += free("thoughts", max_tokens=60, stop="\n", temperature=0)
    s += "\nAppointment: "
    s += beam("appointment", schema=Appointment, width=4, max_tokens=80)


def main(message: str = MESSAGE) -> dict:
    """The appointment, the thoughts before it and the confidence of every field."""
    state = read.run(message=message)
    found = result(state, "appointment")
    return {
        "value": found.value,
        "thoughts": state["thoughts"].strip(),
        "confidence": {path: round(field.product, 3) for path, field in found.confidence.items()},
    }
