"""The page of a run is valid HTML that needs nothing else, and runs nothing of a name that it shows."""

import html.parser
import re

import numpy as np
import pytest

from keras_vit.data import BadImage
from keras_vit.evaluation import measure
from keras_vit.runs.report import find_mistakes, write_report

Image = pytest.importorskip("PIL.Image")
EVIL = '<script>alert("1")</script> & $x$'
RESULT = {"split": "test", "parameters": 1234, "seconds": 61, "recipe": "digits", "best_epoch": 2, "epochs": 3}


class Reader(html.parser.HTMLParser):
    """Notes tags and text, and that every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.sources, self.text = [], [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.sources += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


class Pictures:
    """A source of grey pictures."""

    def split(self, name):
        return self

    def row(self, index):
        return {"label": 0, "path": f"{EVIL}/{index}.jpg"}

    def pixels(self, name, index):
        return np.full((30, 40, 1), index * 50, "uint8")


@pytest.fixture
def page(tmp_path):
    evaluation = measure(np.array([[3.0, 0], [4, 0], [0, 5]]), [0, 1, 0], (EVIL, "b"))
    picture = tmp_path / "picture.png"
    Image.new("RGB", (8, 8)).save(picture)
    mistakes = find_mistakes(Pictures(), "test", evaluation)
    bad, config = [BadImage(EVIL, "text")], {"name": EVIL}
    write_report(tmp_path / "r.html", EVIL, RESULT, evaluation, picture, picture, mistakes, bad, config)
    return (tmp_path / "r.html").read_text(encoding="utf-8")


def test_page_is_well_formed_and_runs_nothing_of_a_name(page):
    reader = Reader(page)
    assert "script" not in reader.tags
    assert reader.text.count(EVIL) >= 6  # title, heading, class, mistakes, bad image


def test_no_name_steers_the_terminal_that_shows_the_page(tmp_path):
    evil = "b\x1b[31mred\x85"
    evaluation = measure(np.array([[3.0, 0], [4, 0], [0, 5]]), [0, 1, 0], (evil, "b"))
    picture = tmp_path / "picture.png"
    Image.new("RGB", (8, 8)).save(picture)
    bad = [BadImage(evil, "text")]
    write_report(tmp_path / "r.html", evil, RESULT, evaluation, picture, picture, [], bad, {"name": evil})
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert all(each.isprintable() or each == "\n" for each in page)
    assert r"b\x1b[31mred\x85" in page


def test_page_needs_nothing_else(page):
    reader = Reader(page)
    assert reader.sources
    assert all(source.startswith("data:image/png;base64,") for source in reader.sources)
    assert not re.search(r"https?://|url\(|@import", page)


def test_page_shows_the_figures_and_every_mistake(page):
    text = Reader(page).text
    assert all(figure in text for figure in ("33.33%", "1,234", "1:01"))
    assert "Mistakes: 2 of 3, the surest first" in text
    assert text.index("(99%), is") < text.index("(98%), is")
    assert "Images that were left out" in text


def test_classes_have_their_names_with_the_numbers_that_a_picture_may_give(page):
    rows = [[html.unescape(cell) for cell in re.findall("<td>(.*?)</td>", line)] for line in page.splitlines()]
    assert [row[:3] for row in rows if len(row) == 5] == [[EVIL, "0", "2"], ["b", "1", "1"]]


def test_mistakes_have_the_picture_that_was_mistaken():
    evaluation = measure(np.array([[3.0, 0], [4, 0], [0, 5]]), [0, 1, 0], ("a", "b"))
    first, second = find_mistakes(Pictures(), "test", evaluation)
    assert (first["index"], first["true"], first["predicted"]) == (2, "a", "b")
    assert (second["index"], second["true"], second["predicted"]) == (1, "b", "a")
    assert (first["pixels"].max(), second["pixels"].max()) == (100, 50)


def test_page_is_there_whole_or_not_at_all(page, tmp_path):
    """The page is filled in before any of it is written, and a figure that is missing is an error, not a gap."""
    jinja2 = pytest.importorskip("jinja2")
    before = (tmp_path / "r.html").read_bytes()
    evaluation = measure(np.array([[3.0, 0]]), [0], ("a", "b"))
    without = {name: value for name, value in RESULT.items() if name != "recipe"}
    with pytest.raises(jinja2.UndefinedError, match="recipe"):
        write_report(tmp_path / "r.html", "t", without, evaluation, *[tmp_path / "picture.png"] * 2)
    assert (tmp_path / "r.html").read_bytes() == before


def test_page_of_a_run_without_mistakes_says_so(page, tmp_path):
    evaluation = measure(np.array([[3.0, 0], [0, 3]]), [0, 1], ("a", "b"))
    write_report(tmp_path / "r.html", "t", RESULT, evaluation, *[tmp_path / "picture.png"] * 2)
    reader = Reader((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "Mistakes\nNone." in reader.text
    assert "left out" not in reader.text
