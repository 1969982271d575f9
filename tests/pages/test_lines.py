"""Lines for a terminal: facts and tables of 80 columns, and the end of what takes long."""

import datetime
import re

from keras_vit.pages.lines import columns, duration, fact_lines, until


def test_fact_stands_beside_its_name_and_a_path_stays_whole():
    path = "/a/path/" + "that-is-long-" * 8
    assert list(fact_lines("disk", f"{path} 3 GB")) == [f"disk      {path}", "          3 GB"]
    lines = list(fact_lines("", "word " * 40, 4))
    assert max(map(len, lines)) < 80
    assert all(line.startswith("    word") for line in lines)


def test_table_sets_numbers_to_the_right_and_cuts_names_alone():
    rows = [("class", "images", "recall"), ("1", "1,234", "none"), ("a long name", "5", "0.5000")]
    assert list(columns(rows)) == [
        "class        images  recall",
        "1             1,234    none",
        "a long name       5  0.5000",
    ]
    assert list(columns(rows, 22))[2] == "a l...       5  0.5000"


def test_end_has_its_day_where_that_is_another(monkeypatch):
    assert (duration(65.4), duration(None)) == ("0:01:05", "?")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", until(86_400))

    class Noon(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 12)

    monkeypatch.setattr("keras_vit.pages.lines.datetime.datetime", Noon)
    assert until(3700) == "13:01"
