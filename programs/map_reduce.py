"""Map and reduce over a long text: every part is read in a fork of its own, and the notes are brought together as JSON.

The forks share the instructions and the examples, which are computed once, and are decoded together in one batch. The
schema of the digest is made for the notes at hand: one subject for each, in their order and in their own words.
"""

import json

import sglang as sgl

from toolkit.lang import beam, free, result

SCHEMA = "digest"
WORDS = 120  # that one fork reads at most
LONGEST = 30  # characters of a subject
TEXT = """The town council met on Tuesday evening. After two hours of debate it decided to close the old bridge over the
river from the first of May, because engineers found cracks in two of its pillars. Buses will use the northern road.

The library will get a second floor. The work is paid for by a gift of a former teacher, who left her house to the
town. The new rooms will be open in autumn and hold a reading room for children.

The market will be bigger this year. Forty farmers asked for a place, ten more than last spring. The first market day
is the second Sunday of April, and a band will play."""
EXAMPLES = [
    (
        "The swimming pool stays shut for another month. A pump from Italy has not arrived, and the roof still leaks. The "
        "manager hopes to open in June.",
        "The swimming pool opens in June.",
    ),
    (
        "A young couple from Bern has taken over the bakery in Mill Street. They keep the old oven and will sell bread on "
        "Sundays too.",
        "The bakery has new owners.",
    ),
]
DIGESTS = [
    (["The town has decided to pull down the tower on the hill.", "The concert was sold out."], ["tower", "concert"]),
    (
        [
            "The mayor has promised new trees for the park.",
            "The old station will be painted.",
            "Buses will cost more from the first of June.",
        ],
        ["trees", "old station", "Buses"],
    ),
    (
        [
            "The swimming pool opens in June.",
            "The council has sold the mill by the lake to a baker.",
            "The school needs a new roof.",
        ],
        ["swimming pool", "mill", "school"],
    ),
]


def parts(text: str) -> list[str]:
    """The paragraphs, those that are too long in pieces."""
    paragraphs = [each.split() for each in text.split("\n\n") if each.strip()]
    return [" ".join(words[i : i + WORDS]) for words in paragraphs for i in range(0, len(words), WORDS)]


@sgl.function
def digest(s, text):
    """Forks write the notes; what comes after the join reads all of them."""
    pieces = parts(text)
    s += "One line for each piece of news.\n\n"
    for news, line in EXAMPLES:
        s += f"News: {news}\nIn one line: {line}\n\n"
    forks = s.fork(len(pieces))
    forks += lambda i: "News: " + pieces[i] + "\nIn one line:" + free("note", max_tokens=30, stop="\n", temperature=0)
    forks.join()
    s["notes"] = [note.strip() for note in s["note"]]
    for notes, found in DIGESTS:
        s += "".join(f"- {note}\n" for note in notes) + f"Subjects: {json.dumps(found, separators=(',', ':'))}\n\n"
    s += "".join(f"- {note}\n" for note in s["notes"]) + "Subjects: "
    s += beam("subjects", schema=subjects(s["notes"]), width=4, max_tokens=400)


def subjects(notes: list) -> dict:
    """One subject for every note: some of its words, as they stand there."""
    items = [{"enum": phrases(note)} if phrases(note) else {"type": "string", "maxLength": LONGEST} for note in notes]
    return {"type": "array", "prefixItems": items, "minItems": len(notes), "maxItems": len(notes)}


def phrases(note: str) -> list:
    """One or two neighbouring words of a note, in all ways that are short enough for a subject."""
    words = note.rstrip(".").split()
    runs = (" ".join(words[i : i + count]) for count in (1, 2) for i in range(len(words) - count + 1))
    return [run for run in dict.fromkeys(runs) if len(run) <= LONGEST]


def main(text: str = TEXT) -> dict:
    """The subjects of the text and the note of every part."""
    state = digest.run(text=text)
    return {"value": {"subjects": result(state, "subjects").value, "notes": state["notes"]}}
