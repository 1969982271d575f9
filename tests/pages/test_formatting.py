"""Text from outside is one harmless line; facts and tables have 80 columns; times say their day."""

import csv
import datetime
import html
import io
import json
import re

import pytest

from keras_vit.pages import formatting
from keras_vit.pages.formatting import (
    Pace,
    clock_time,
    columns,
    duration,
    format_facts,
    markdown_text,
    printable,
    printable_json,
    spreadsheet_cell,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Gänseblümchen 雛菊 \\d", "Gänseblümchen 雛菊 \\d"),
        ("Gänse\x1b[31m", r"Gänse\x1b[31m"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("a\x85b\u2028c\u2029", r"a\x85b\u2028c\u2029"),
        ("\u202egnp.exe", r"\u202egnp.exe"),  # right to left
        ("photo\udcff.jpg", r"photo\udcff.jpg"),
        ("\x00\\", r"\x00\\"),
    ],
)
def test_text_is_shown_as_it_is_but_for_what_cannot_be_printed(text, shown):
    assert printable(text) == shown
    assert printable(text).isprintable()


def test_json_keeps_letters_and_what_it_says():
    facts = [{"Gänse": "\x9b31m\u202e\x1b", "😀": "\U000e0001\n"}]
    text = printable_json(facts)
    assert json.loads(text) == facts
    assert "Gänse" in text
    assert "😀" in text
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\uff1d"])
def test_cell_is_never_a_formula(start):
    cell = spreadsheet_cell(f"{start}cmd|' /C calc'!A0")
    assert cell[0] == "'"
    assert spreadsheet_cell(f"a{start}") == printable(f"a{start}")


def test_cell_stays_one_line_of_the_file():
    file = io.StringIO()
    csv.writer(file).writerow([spreadsheet_cell('a\n"b",c')])
    assert file.getvalue().count("\n") == 1


@pytest.mark.parametrize("text", ["golden_retriever", "tabby (cat)", "Saint-Denis, 3.5", "Gänseblümchen"])
def test_usual_names_stay_readable(text):
    assert markdown_text(text) == text


@pytest.mark.parametrize("text", ["www.evil.com", "http://evil.com", "me@evil.com", "_x_", "a<b", "$x$", "x\\|y"])
def test_markup_becomes_references_of_the_same_text(text):
    escaped = markdown_text(text)
    assert escaped != text
    assert html.unescape(escaped) == text


def test_fact_stands_beside_its_name_and_a_path_stays_whole():
    path = "/a/path/" + "that-is-long-" * 8
    assert list(format_facts("disk", f"{path} 3 GB")) == [f"disk      {path}", "          3 GB"]
    lines = list(format_facts("", "word " * 40, 4))
    assert max(map(len, lines)) < 80
    assert all(line.startswith("    word") for line in lines)


def test_table_sets_numbers_to_the_right_and_cuts_names_alone():
    rows = [("class", "images", "recall"), ("1", "1,234", "none"), ("a long name", "5", "0.5000")]
    assert list(columns(rows)) == [
        "class        images  recall",
        "1             1,234    none",
        "a long name       5  0.5000",
    ]
    assert list(columns(rows, 22))[2] == "a ...e       5  0.5000"
    assert list(columns(rows, 10))[2] == "...       5  0.5000"


def test_end_has_its_day_where_that_is_another(monkeypatch):
    assert (duration(65.4), duration(None)) == ("0:01:05", "?")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", clock_time(86_400))

    class Noon(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 12)

    monkeypatch.setattr("keras_vit.pages.formatting.datetime.datetime", Noon)
    assert clock_time(3700) == "13:01"


def test_expected_end_is_by_the_batches_after_the_first_which_is_compiled(monkeypatch):
    """Batches of 32 photos, each known with its first photo: the first takes 60 s, the others 2."""
    clock = [0.0]
    monkeypatch.setattr(formatting.time, "monotonic", lambda: clock[0])
    pace, said = Pace(3200, "photos"), []
    for done in range(1, 641):
        if done % 32 == 1:
            clock[0] += 60 if done == 1 else 2
        said += pace.lines(done)
    assert said[0].startswith("161 of 3,200 photos, 16.0 a second, 0:03:10 left, until")
    assert len(said) == 1
