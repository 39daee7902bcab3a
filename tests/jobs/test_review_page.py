"""The review page in a browser: what it shows, how it is driven, and that nothing of a document ever runs or loads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.browser import Page, browser, opened
from tests.jobs.finished import HOSTILE, finished
from toolkit.jobs.review import write_review
from toolkit.results import json_text

pytestmark = pytest.mark.skipif(browser() is None, reason="no Chromium on this machine: apt-get install chromium")

HEADING = "document.querySelector('h2').textContent"
VALUES: dict[str, Any] = {
    "🎉 Mia lives in Porto.": {"n": "Mia", "city": "Porto", "from": "Lisbon"},
    "nothing fits here": None,
    "Ada was born in London.": {"n": "Ada", "born": "London"},
    f"hostile {HOSTILE}": {HOSTILE: HOSTILE, "n": "hostile", "from": "Rome"},
}


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with opened() as found:
        yield found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("review")
    out = finished(folder, VALUES, ground="review")
    write_review(out, folder / "page.html")
    return folder / "page.html"


def all_texts(page: Page, selector: str) -> list[str]:
    return list(page.run(f"[...document.querySelectorAll({selector!r})].map((each) => each.textContent)"))


def test_nothing_of_a_document_runs_and_nothing_is_loaded(page: Page, written: Path) -> None:
    for place in range(len(VALUES)):
        page.open(f"file://{written}#{place}")
        assert page.run(HEADING) == f"r{place}"
        page.run("document.querySelector('details').open = true")
        assert page.run("window.hit") is None
        loaded = {event["request"]["url"] for event in page.said("Network.requestWillBeSent")}
        assert loaded <= {f"file://{written}", f"file://{written}#{place}"}
        assert page.said("Runtime.exceptionThrown") == [] and page.said("Log.entryAdded") == []
    assert page.run("document.images.length + document.querySelectorAll('body script:not([type])').length") == 1


def test_markup_made_of_strings_is_refused_by_the_browser_itself(page: Page, written: Path) -> None:
    page.open(f"file://{written}")
    assert page.run("(() => { try { document.body.innerHTML = 'x' } catch (e) { return e.name } })()") == "TypeError"
    page.run("(() => { const s = document.createElement('img'); s.src = 'file:///etc/hostname'; document.body.append(s) })()")
    assert page.run("new Promise((done) => setTimeout(() => done(document.images[0].naturalWidth), 50))") == 0


def test_what_a_document_hides_is_spelled_out(page: Page, written: Path) -> None:
    page.open(f"file://{written}#3")
    text = page.run("document.querySelector('.text').textContent")
    assert "</script><script>window.hit=1</script>" in text
    assert all_texts(page, ".text .odd") == ["U+202E", "U+202C", "U+200B", "U+E0041"]
    assert "\u202e" not in page.run("document.body.innerText")


def test_spans_are_marked_where_they_are_and_point_at_their_fields(page: Page, written: Path) -> None:
    page.open(f"file://{written}#0")
    assert page.run("document.querySelector('.text').textContent") == next(iter(VALUES))
    assert all_texts(page, ".at") == ["Mia", "Porto"]
    assert all_texts(page, "tr.field .where") == ["exact", "exact", "not in the text"]
    assert all_texts(page, "tr.flagged .name") == ["from"]
    assert all_texts(page, ".note li") == ["from: not found in the text"]
    page.run("document.querySelector('tr.field').dispatchEvent(new MouseEvent('mouseenter'))")
    assert all_texts(page, ".at.lit") == ["Mia"]


def test_every_key_does_what_the_help_says(page: Page, written: Path) -> None:
    page.open(f"file://{written}")

    def after(*keys: str) -> str:
        page.keys(*keys)
        return str(page.run(HEADING))

    walk = (("j", "r1"), ("j", "r2"), ("k", "r1"), ("G", "r3"), ("j", "r3"), ("g", "r0"), ("n", "r1"), ("n", "r3"), ("p", "r1"))
    assert [after(key) for key, _ in walk] == [record for _, record in walk]
    assert page.run("location.hash") == "#1"
    assert [(after(key), page.run("document.querySelectorAll('.row').length")) for key in "3241"] == [
        ("r1", 1), ("r0", 2), ("r2", 1), ("r2", 4),
    ]  # fmt: skip
    page.keys("?")
    assert page.run("document.getElementById('help').open") is True
    page.keys("j", "Escape")
    assert page.run("document.getElementById('help').open") is False and page.run(HEADING) == "r2"
    page.keys("f")
    assert page.run("document.activeElement.id") == "field"
    page.keys("Escape", "t")
    assert page.run("document.documentElement.dataset.theme") == "dark"
    page.keys("/")
    assert page.run("document.activeElement.id") == "search"


def test_a_search_finds_texts_and_values_and_marks_them(page: Page, written: Path) -> None:
    page.open(f"file://{written}")
    page.keys("/", *"born")
    assert page.run("new Promise((done) => setTimeout(() => done(document.querySelectorAll('.row').length), 300))") == 1
    assert (page.run(HEADING), all_texts(page, ".hit")) == ("r2", ["born"])
    page.keys("Escape")
    assert page.run("document.querySelectorAll('.row').length") == 4


def test_filters_by_field_and_by_its_state(page: Page, written: Path) -> None:
    page.open(f"file://{written}")

    def rows(**chosen: str) -> list[str]:
        for name, value in chosen.items():
            page.run(
                f"(() => {{ const e = document.getElementById({name!r}); e.value = {value!r};"
                "for (const kind of ['input', 'change']) e.dispatchEvent(new Event(kind)) })()"
            )
        return all_texts(page, ".row .id")

    assert rows(field="/city") == ["r0"]
    assert rows(state="missing") == ["r2", "r3"]
    assert rows(field="/from", state="ungrounded") == ["r0", "r3"]
    assert rows(field="/n", state="unsure", below="0.4") == []
    assert page.run("document.getElementById('none').hidden") is False
    assert rows(below="0.6") == ["r0", "r2", "r3"]


def test_alternatives_say_what_is_different(page: Page, tmp_path: Path) -> None:
    best, other = {"a": 1, "b": [1, {"c": "x"}]}, {"a": 2, "b": [1, {}], "d": None}
    alternatives = [
        {"value": best, "score": -0.1, "valid": True},
        {"value": other, "score": -0.25, "valid": True},
        {"value": None, "score": None, "valid": False, "violations": [{"message": "<b>cut off</b>"}]},
    ]
    line = {"id": "x", "value": best, "valid": True, "alternatives": alternatives, "needs_review": False, "index": 0}
    (tmp_path / "o").write_text(json_text(line) + "\n")
    write_review(tmp_path / "o", tmp_path / "page.html")
    page.open(f"file://{tmp_path / 'page.html'}")
    assert all_texts(page, "table tr:has(> .sure):not(.field) > :last-child") == [
        "what is different",
        "the answer",
        "a 2b › 1 › c absentd null",
        "not valid <b>cut off</b>",
    ]


def test_ten_thousand_records_are_a_few_rows_in_the_page(page: Page, tmp_path: Path) -> None:
    value = {"name": "Mia Chen", "items": [{"what": "lamp", "count": 3}], "city": "Porto"}
    lines = (
        {"id": f"r{index}", "value": value, "needs_review": index % 4000 == 3999, "index": index} for index in range(10_002)
    )
    (tmp_path / "o").write_text("".join(json_text(line) + "\n" for line in lines))
    write_review(tmp_path / "o", tmp_path / "page.html", limit=10_000)
    page.open(f"file://{tmp_path / 'page.html'}")
    assert page.run("document.getElementById('rows').clientHeight") == 580_000
    assert page.run("document.getElementById('tabs').textContent").endswith("not on this page (--limit): 2")
    page.keys("n")
    assert page.run(HEADING) == "r3999"
    page.keys("G")
    assert page.run(HEADING) == "r9999"
    assert page.run("new Promise((done) => requestAnimationFrame(() => done(document.querySelectorAll('.row').length)))") < 40
    assert page.run("document.getElementById('row-9999').getBoundingClientRect().bottom <= innerHeight") is True


@pytest.mark.parametrize(("dark", "theme"), [(False, None), (True, "dark")])
def test_it_is_dark_where_the_system_is(page: Page, written: Path, tmp_path: Path, dark: bool, theme: str | None) -> None:
    page.open(f"file://{written}", dark=dark)
    assert "--limit" not in page.run("document.getElementById('tabs').textContent")
    assert page.run("document.documentElement.dataset.theme") == theme
    page.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    paper = page.run("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, paper.removeprefix("rgb(").removesuffix(")").split(","))) / 3
    assert (brightness < 60) is dark


def test_a_long_name_leaves_room_for_its_value(page: Page, tmp_path: Path) -> None:
    out = finished(tmp_path, {"a b": {"n" * 300: "a", "m": "b"}})
    write_review(out, tmp_path / "page.html")
    page.open(f"file://{tmp_path / 'page.html'}")
    shown = "[...document.querySelectorAll('td.value')].map((each) => each.getBoundingClientRect().right < innerWidth)"
    assert page.run(shown) == [True, True]


def test_on_a_narrow_screen_nothing_sticks_out(page: Page, written: Path) -> None:
    page.open(f"file://{written}#3", width=420)
    assert page.run("document.documentElement.scrollWidth") <= 420
