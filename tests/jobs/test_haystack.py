"""Finding values in texts: exact, then normalised, then nearly; numbers in every way of writing. Slow twins where there is one."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.jobs.haystack import FUZZY_NEEDLE, NORMAL_TEXT, Haystack, normal
from toolkit.jobs.numbers import Numbers

TEXT = "The  Café “Zoë”\nis ﬁne; Annabel met Ann. Mia  Chen ordered. e\u0301tude Straße 東京都に住む"


@pytest.mark.parametrize(
    ("needle", "found", "method"),
    [
        ("Café", "Café", "exact"),
        ("Ann", "Ann", "exact"),  # not the one inside Annabel
        ("nnab", "nnab", "exact"),  # inside a word where there is nothing else
        ("東京", "東京", "exact"),
        ('café "zoë" IS', "Café “Zoë”\nis", "normalised"),
        ("fine", "ﬁne", "normalised"),
        ("mia chen", "Mia  Chen", "normalised"),
        ("étude", "e\u0301tude", "normalised"),
        ("STRASSE", "Straße", "normalised"),
        ("Mia Chan", "Mia  Chen", "fuzzy"),
        ("Annabell", "Annabel", "fuzzy"),
    ],
)
def test_a_needle_is_found_in_the_first_way_that_finds_it(needle: str, found: str, method: str) -> None:
    place = Haystack(TEXT).find(needle, most=0.2)
    assert place is not None
    assert (TEXT[place.start : place.end], place.method) == (found, method)
    assert (place.distance > 0) == (method == "fuzzy")


@pytest.mark.parametrize("needle", ["Peter", "", " ", "q" * (FUZZY_NEEDLE + 1), "\u0301"])
def test_what_is_not_there_is_not_found(needle: str) -> None:
    assert Haystack("The cat sat on the mat").find(needle, most=0.2) is None


def test_near_places_are_looked_for_only_on_request_and_never_beyond_the_distance() -> None:
    hay = Haystack("Order for Mia Chen: three lamps")
    assert hay.find("Mia Chan") is None
    assert hay.find("Mia Chan", most=0.1) is None
    place = hay.find("Mia Chan", most=0.125)
    assert place is not None and place.distance == 0.125 and hay.text[place.start : place.end] == "Mia Chen"


def test_a_part_of_the_text_can_be_asked_for() -> None:
    hay = Haystack("Ann was here. ANN was there. Ann again")
    first, second, third = (hay.find("Ann", start=start) for start in (0, 1, 15))
    assert (first and first.start, second and second.start, third and third.start) == (0, 29, 29)
    inside = hay.find("ann", start=10, end=20)
    assert inside is not None and (inside.start, inside.method) == (14, "normalised")


def test_behind_the_bounds_of_its_time_it_looks_less_closely() -> None:
    far = "Ann said. " * 120_000 + "Zoë  Lind"
    assert len(far) > NORMAL_TEXT
    assert Haystack(far).find("Zoë  Lind") is not None and Haystack(far).find("zoë lind", most=0.2) is None
    assert Haystack(far[-30:]).find("zoë lind") is not None


def slow_normal(text: str) -> str:
    """The whole text at once, no pieces."""
    plain = unicodedata.normalize("NFKC", text)
    for marks, simple in (("‘’‚", "'"), ("“”„", '"'), ("‐‑–—−", "-")):
        for mark in marks:
            plain = plain.replace(mark, simple)
    return " ".join(unicodedata.normalize("NFKC", plain.casefold()).split())


@given(st.text(alphabet="aB ß\n“—ﬁé\u0301Å한\u1100\u1161\u11a8İ１", max_size=30))
def test_the_normal_form_in_pieces_is_that_of_the_whole_and_every_character_knows_where_it_is_from(text: str) -> None:
    from toolkit.jobs.haystack import _Normal

    found = _Normal(text)
    assert found.text == slow_normal(text) == normal(text)
    assert len(found.starts) == len(found.ends) == len(found.text)
    assert all(0 <= a < b <= len(text) for a, b in zip(found.starts, found.ends, strict=True))


@given(st.text(alphabet="abc ", max_size=40), st.text(alphabet="abc", min_size=1, max_size=4))
def test_an_exact_place_is_where_the_slow_search_finds_one(text: str, needle: str) -> None:
    place = Haystack(text).find(needle)
    at = [i for i in range(len(text)) if text[i : i + len(needle)] == needle]
    words = [i for i in at if not (text[i - 1 : i] + text[i + len(needle) : i + len(needle) + 1]).strip()] if at else []
    assert (place.start if place else None) == (words[0] if words else at[0] if at else None)


NUMBERS = (
    "paid 1,234.50 EUR, then 1.234,5 or 1 234,5; minus -7.25, room 3 200, 12kg v1.2.3 2024-05-17 0.5 .75 5% (1'000) 1,2,3 9,999"
)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (1234.5, "1,234.50"), (-7.25, "-7.25"), (7.25, "7.25"), (3, "3"), (200, "200"), (3200, "3 200"), (12, "12"), (12.0, "12"),
        (2024, "2024"), (17, "17"), (0.5, "0.5"), (0.75, ".75"), (5, "05"), (1000, "1'000"), (9999, "9,999"), (9.999, "9,999"),
        (99, None), (1.2, None), (24, None), (-3200, None), (float("1e308"), None),
    ],
)  # fmt: skip
def test_a_number_is_found_as_a_whole_in_whatever_way_it_is_written(value: float, found: str | None) -> None:
    span = Numbers(NUMBERS).find(value)
    assert (None if span is None else NUMBERS[span[0] : span[1]]) == found


@given(st.integers(-(10**9), 10**9), st.sampled_from([",", ".", "'", "\u202f", ""]))
def test_every_integer_is_found_in_every_grouping(value: int, group: str) -> None:
    written = f"{value:,}".replace(",", group)
    span = Numbers(f"about {written} of them").find(value)
    assert span == (6, 6 + len(written))
