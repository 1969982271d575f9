"""The page of a run is valid HTML that needs nothing else; its pictures are drawn for few and many classes."""

import html.parser
import re

import numpy as np
import pytest

from keras_vit.data import BadImage
from keras_vit.evaluation import measure
from keras_vit.runs.plots import draw_confusion, draw_curves
from keras_vit.runs.progress import Progress, duration
from keras_vit.runs.report import find_mistakes, write_report
from keras_vit.runs.run_directory import COLUMNS

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
    pictures = {name: tmp_path / f"{name}.png" for name in ("curves", "confusion matrix")}
    for picture in pictures.values():
        Image.new("RGB", (8, 8)).save(picture)
    mistakes = find_mistakes(Pictures(), "test", evaluation)
    write_report(
        tmp_path / "r.html", EVIL, RESULT, evaluation, pictures, mistakes, [BadImage(EVIL, "text")], {"name": EVIL}
    )
    return (tmp_path / "r.html").read_text(encoding="utf-8")


def test_page_is_well_formed_and_runs_nothing_of_a_name(page):
    reader = Reader(page)
    assert "script" not in reader.tags
    assert reader.text.count(EVIL) >= 6  # title, heading, class, mistakes, bad image


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


@pytest.mark.parametrize("classes", [2, 37, 121])
def test_confusion_matrix_is_drawn_for_any_number_of_classes(tmp_path, classes):
    names = ["$ä_b$ " + "x" * index for index in range(classes)]
    draw_confusion(np.eye(classes, dtype=int) * 3, names, tmp_path / "c.png")
    with Image.open(tmp_path / "c.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert max(pixels.shape) < 2000
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 10


def test_class_whose_letters_the_font_lacks_is_drawn_as_its_number(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn, set_ticks = [], Axes.set_xticks

    def note(axis, places, names, **more):
        drawn.append(names)
        return set_ticks(axis, places, names, **more)

    monkeypatch.setattr(Axes, "set_xticks", note)
    for _ in range(2):  # a second time as well, which no cache of the font may spoil
        draw_confusion(np.eye(4, dtype=int), ["cat", "\u732b", "$\xe9$", "\udcff"], tmp_path / "c.png")
        assert drawn.pop() == ["cat", "class 1", "\\$\xe9\\$", "class 3"]


@pytest.mark.parametrize("epochs", [1, 5])
def test_curves_are_drawn_from_the_first_epoch_on_and_without_validation(tmp_path, epochs):
    rows = [dict.fromkeys(COLUMNS, 0.5) | {"epoch": epoch + 1, "val_loss": None} for epoch in range(epochs)]
    draw_curves([row | {"val_accuracy": None} for row in rows], tmp_path / "c.png")
    with Image.open(tmp_path / "c.png") as picture:
        assert picture.size == (1100, 704)


class Plan:
    epochs, steps, batch_size = 2, 10, 4


def test_progress_says_one_line_for_each_epoch_with_the_time_left(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("keras_vit.runs.progress.time.monotonic", lambda: next(clock))
    said = []
    progress = Progress(Plan, said.append)
    progress.on_train_begin()
    for epoch in range(2):
        progress.on_epoch_begin(epoch)
        for batch in range(5):
            progress.on_train_batch_end(batch)
        progress.on_epoch_end(epoch, {"loss": 1.25, "accuracy": 0.5, "val_loss": 2.0, "val_accuracy": 0.25})
    assert len(said) == 2
    assert re.match(r"epoch 1/2  loss 1.2500  accuracy 0.5000  val_loss 2.0000  val_accuracy 0.2500 .* left", said[0])
    assert "left" not in said[1]
    assert progress.seconds_left() == 0


def test_duration_is_hours_minutes_seconds():
    assert (duration(65.4), duration(None)) == ("0:01:05", "?")
