"""Record extraction: an e-mail becomes a typed order, with alternatives and a confidence for every field.

The model of the record is a pydantic class; beam search keeps several readings of the text until the end, and the best
one that validates is the answer.
"""

from enum import StrEnum

import sglang as sgl
from pydantic import BaseModel, ConfigDict, Field

from toolkit.lang import beam, result

SCHEMA = "order"
TEXT = "Hello, this is Maria Lopez. Could you send me 12 blue notebooks to Lisbon? I need them as fast as possible."


class Speed(StrEnum):
    """How fast it must be there."""

    NORMAL = "normal"
    EXPRESS = "express"


class Order(BaseModel):
    """What a customer wants."""

    model_config = ConfigDict(extra="forbid")
    customer: str = Field(max_length=40)
    item: str = Field(max_length=40)
    quantity: int = Field(ge=1, le=1000)
    city: str = Field(max_length=40)
    speed: Speed


EXAMPLES = [
    (
        "Hi, Peter Novak here. Please send 3 red lamps to Prague as fast as you can!",
        Order(customer="Peter Novak", item="red lamps", quantity=3, city="Prague", speed=Speed.EXPRESS),
    ),
    (
        "I would like 40 wooden chairs for our office in Graz. Any time this month is fine. Regards, Anna Weber",
        Order(customer="Anna Weber", item="wooden chairs", quantity=40, city="Graz", speed=Speed.NORMAL),
    ),
]


@sgl.function
def extract_order(s, text):
    """The examples are the same for every text, so their part of the prompt is computed once."""
    s += "Turn each e-mail into an order.\n\n"
    for example, order in EXAMPLES:
        s += f"E-mail: {example}\nOrder: {order.model_dump_json()}\n\n"
    s += "E-mail: " + text + "\nOrder: "
    s += beam("order", schema=Order, width=4, max_tokens=600)


def main(text: str = TEXT) -> dict:
    """The order, its score, the confidence of every field and what else it could have been."""
    found = result(extract_order.run(text=text), "order")
    return {
        "value": found.value,
        "score": round(found.score, 3),
        "confidence": {path: round(field.product, 3) for path, field in found.confidence.items()},
        "alternatives": [{"value": each.value, "score": round(each.score, 3)} for each in found.alternatives[1:]],
    }
