"""Classification: a piece of news gets one of five topics by `select`, without generating a token.

Every topic is scored by the model's own likelihood after the same conversation, whose turns are computed once. Of SGLang's
three methods `greedy_token_selection` compares the topics token by token, so that a topic of two tokens has no advantage.
"""

import sglang as sgl

SCHEMA = "topic"
TEXT = "The striker scored twice before half time, and the goalkeeper saved the rest."
TOPICS = ["sport", "food", "music", "weather", "money"]
EXAMPLES = [
    ("The goalkeeper saved two penalties and the team went through to the final.", "sport"),
    ("Add the onions, stir for five minutes and pour in the cream.", "food"),
    ("Heavy snow will reach the north tonight, with strong wind.", "weather"),
    ("The bank raised its interest rate for savings again.", "money"),
    ("She plays the violin in an orchestra that tours every summer.", "music"),
]


@sgl.function
def classify(s, text):
    """A chat in which the assistant has answered well before."""
    s += sgl.system("Sort each text into one of: " + ", ".join(TOPICS) + ". Answer with one word.")
    for example, topic in EXAMPLES:
        s += sgl.user(example) + sgl.assistant(topic)
    s += sgl.user(text)
    s += sgl.assistant(sgl.select("topic", TOPICS, choices_method=sgl.greedy_token_selection))


def main(text: str = TEXT) -> dict:
    """The topic, and the log-probabilities of each topic's tokens, by which the method ranked them: from left to right."""
    state = classify.run(text=text)
    rows = state.get_meta_info("topic")["greedy_logprob_matrix"]
    return {
        "value": {"topic": state["topic"]},
        "scores": {topic: [round(logprob, 3) for logprob in row] for topic, row in zip(TOPICS, rows, strict=True)},
    }
