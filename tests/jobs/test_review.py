"""The review page: what is in it, as a file. How it behaves is in test_review_page.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.finished import HOSTILE, finished
from toolkit.errors import UsageError
from toolkit.jobs.review import write_review
from toolkit.jobs.review_record import MAX_FIELDS, MAX_REST, page_record

VALUES = {
    "🎉 Mia lives in Porto.": {"n": "Mia", "city": "Porto", "from": "Lisbon"},
    "nothing fits here": None,
    f"hostile {HOSTILE}": {HOSTILE: HOSTILE, "n": "hostile"},
}


def records(page: Path) -> list[dict[str, Any]]:
    """What the page's script reads."""
    text = page.read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">\n(.*?)</script>', text, re.DOTALL)
    assert data is not None
    return [json.loads(line) for line in data[1].splitlines() if line]


def test_every_line_of_the_job_is_on_the_page_in_input_order_beside_its_text(tmp_path: Path) -> None:
    out = finished(tmp_path, VALUES)
    found = write_review(out, tmp_path / "page.html")
    shown = records(tmp_path / "page.html")
    assert [(each["index"], each["id"], each["text"]) for each in shown] == [
        (index, f"r{index}", text) for index, text in enumerate(VALUES)
    ]
    assert [each["value"] for each in shown] == list(VALUES.values())
    assert [each["kind"] for each in shown] == ["ok", "error", "ok"]
    assert (found["records"], found["shown"], found["kinds"], found["source"]) == (3, 3, {"ok": 2, "error": 1}, "")


def test_a_parquet_output_is_read_from_the_lines_it_is_made_of(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    out = finished(tmp_path, VALUES, name="out.parquet")
    assert out.exists()
    write_review(out, tmp_path / "page.html")
    assert [each["kind"] for each in records(tmp_path / "page.html")] == ["ok", "error", "ok"]


def test_spans_count_in_the_units_of_the_pages_language(tmp_path: Path) -> None:
    out = finished(tmp_path, VALUES)
    write_review(out, tmp_path / "page.html")
    first = records(tmp_path / "page.html")[0]
    units = first["text"].encode("utf-16-le")
    spans = {field["path"]: field.get("span", "none") for field in first["fields"]}
    assert {path: units[2 * span[0] : 2 * span[1]].decode("utf-16-le") for path, span in spans.items() if span} == {
        "/n": "Mia",
        "/city": "Porto",
    }
    assert spans["/from"] is None


def test_nothing_of_a_record_is_markup(tmp_path: Path) -> None:
    plain, hostile = (finished(tmp_path, values, name=name) for name, values in (("a", {"x": {}}), ("b", VALUES)))
    texts = []
    for out in (plain, hostile):
        write_review(out, out.with_suffix(".html"))
        texts.append(out.with_suffix(".html").read_text(encoding="utf-8"))
    tags = [len(re.findall("<", text)) for text in texts]
    assert tags[0] == tags[1] > 50


def test_a_name_of_a_file_is_no_markup_either(tmp_path: Path) -> None:
    out = finished(tmp_path, {"x": {}}, name="<b>&.jsonl")
    write_review(out, tmp_path / "page.html")
    assert "<title>&lt;b&gt;&amp;.jsonl</title>" in (tmp_path / "page.html").read_text()
    odd = tmp_path / "caf\udce9"
    odd.write_text('{"id":"x","value":1e999,"index":0}\n')
    write_review(odd, tmp_path / "odd.html")
    assert (
        "<title>caf\ufffd</title>" in (tmp_path / "odd.html").read_text() and records(tmp_path / "odd.html")[0]["value"] is None
    )


def test_the_policy_lets_only_the_pages_own_script_and_style_run(tmp_path: Path) -> None:
    write_review(finished(tmp_path, VALUES), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None and "default-src 'none'" in policy[1] and "unsafe" not in policy[1] and "http" not in policy[1]
    assert re.search(r"""(src|href)\s*=|url\(|@import|https?://""", re.sub(r'(?s)id="data">.*?</script>', "", text)) is None


def test_only_what_needs_a_look_and_only_so_many(tmp_path: Path) -> None:
    values = {f"text {index}": {"n": "absent" if index % 3 else "text"} for index in range(9)}
    out = finished(tmp_path, values, ground="review")
    found = write_review(out, tmp_path / "page.html", only="review", limit=4)
    shown = records(tmp_path / "page.html")
    assert [each["index"] for each in shown] == [1, 2, 4, 5]
    assert shown[0]["reasons"] == ["n: not found in the text"]
    assert (found["records"], found["shown"], found["kinds"]) == (9, 4, {"ok": 3, "review": 6})
    assert write_review(out, tmp_path / "page.html", only="failed")["shown"] == 0


def test_an_input_that_is_gone_or_changed_costs_the_texts_and_says_so(tmp_path: Path) -> None:
    out = finished(tmp_path, VALUES)
    source = tmp_path / "out.jsonl.in.jsonl"
    source.rename(tmp_path / "moved.jsonl")
    assert "not there any more" in str(write_review(out, tmp_path / "page.html")["source"])
    assert [each["text"] for each in records(tmp_path / "page.html")] == [None, "nothing fits here", None]
    assert write_review(out, tmp_path / "page.html", place=tmp_path / "moved.jsonl")["source"] == ""
    assert records(tmp_path / "page.html")[0]["text"] == next(iter(VALUES))
    source.write_text('{"text": "other"}\n')
    assert "has changed" in str(write_review(out, tmp_path / "page.html")["source"])
    with pytest.raises(UsageError, match="other bytes"):
        write_review(out, tmp_path / "page.html", place=source)


@pytest.mark.parametrize("name", ["missing", "notes.txt"])
def test_what_no_job_wrote_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("some notes\n")
    with pytest.raises(UsageError):
        write_review(tmp_path / name, tmp_path / "page.html")
    assert not list(tmp_path.glob("page*"))


def test_nothing_but_a_page_is_written_over(tmp_path: Path) -> None:
    out = finished(tmp_path, VALUES)
    with pytest.raises(UsageError, match="no page of this command"):
        write_review(out, out)
    with pytest.raises(UsageError, match="does not exist"):
        write_review(out, tmp_path / "no" / "page.html")
    for _ in range(2):
        write_review(out, tmp_path / "page.html")


def test_a_line_of_another_version_is_shown_as_far_as_it_goes() -> None:
    bare = page_record(
        {"index": 0, "id": 7, "value": [], "confidence": None, "spans": [1], "alternatives": "x", "new": 1}, None
    )
    assert (bare["id"], bare["kind"], bare["text"], bare["alternatives"]) == ("7", "ok", None, [])
    assert bare["fields"] == [{"path": "", "value": [], "sure": None, "flagged": False}]
    assert bare["rest"]["new"] == 1
    odd = {"/a": [0, 9], "/b": [2, 1], "/c": "x", "/d": [0, 2]}
    line = {"index": 0, "value": dict.fromkeys("abcd", "v"), "spans": odd, "needs_review": True, "review_reasons": ["why"]}
    found = page_record(line, "text")
    assert [field.get("span") for field in found["fields"]] == [None, None, None, [0, 2]]
    assert (found["kind"], found["reasons"]) == ("review", ["why"])


def test_how_a_span_was_found_is_said_in_a_few_words() -> None:
    detail = {"/a": {"method": "exact", "distance": 0.0}, "/b": {"method": "fuzzy", "distance": 0.125}}
    line = {"index": 0, "value": {"a": "x", "b": "y"}, "spans": {"/a": [0, 1], "/b": [1, 2]}, "span_detail": detail}
    assert [field["how"] for field in page_record({**line, "provenance": {"/b": 2}}, "xy")["fields"]] == [
        "exact",
        "fuzzy 0.12, piece 3",
    ]


def test_what_is_too_large_is_cut_and_counted() -> None:
    value = {f"k{number}": "v" * 5000 for number in range(MAX_FIELDS + 5)}
    found = page_record({"index": 0, "value": value, "chunks": ["c" * MAX_REST]}, "x" * 100, max_text=10)
    assert (found["text"], found["length"], found["shown"]) == ("x" * 10, 100, 10)
    assert (len(found["fields"]), found["more"]) == (MAX_FIELDS, 5)
    assert len(json.dumps(found)) < 1_000_000


def test_a_span_beyond_the_text_that_is_shown_is_neither_marked_nor_called_missing() -> None:
    line = {"index": 0, "value": {"a": "z"}, "spans": {"/a": [90, 91]}}
    (field,) = page_record(line, "x" * 90 + "z", max_text=10)["fields"]
    assert "span" not in field
