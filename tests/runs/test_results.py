"""The page of a run shows its figures, and the surest mistakes with their pictures."""

import html
import re

import numpy as np
import pytest

from keras_vit.evaluation import measure
from keras_vit.runs.results import write_report
from keras_vit.tasks import find_task

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("jinja2")
RESULT = {
    "test_accuracy": 0.5,
    "split": "test",
    "parameters": 1234,
    "seconds": 61,
    "recipe": "digits",
    "best_epoch": 2,
    "epochs": 3,
}


class Pictures:
    """A source of grey pictures, of which those with an even number are files."""

    def split(self, name):
        return self

    def row(self, index):
        return {"label": 0} | ({} if index % 2 else {"path": f"photos/{index}.jpg"})

    def pixels(self, name, index):
        return np.full((30, 40, 1), index * 50, "uint8")


def test_page_shows_the_figures_and_the_surest_mistakes_with_their_pictures(tmp_path):
    evaluation = measure(np.array([[3.0, 0], [4, 0], [0, 5]]), [0, 1, 0], ("a", "b"))
    picture, page = tmp_path / "picture.png", tmp_path / "r.html"
    Image.new("RGB", (8, 8)).save(picture)
    Image.new("RGB", (8, 8)).save(tmp_path / "confusion_matrix.png")
    panel = find_task().panel(evaluation, tmp_path, Pictures())
    left_out = [("photos/a.b.jpg", "truncated JPEG"), ("2 files", "photos of a kind that is not read (.gif)")]
    write_report(page, "t", RESULT, panel, picture, left_out, {"seed": "雛菊\x1b"})
    assert 'photos/a.b<span class="ending">.jpg</span></td>' in page.read_text(encoding="utf-8")
    text = html.unescape(re.sub(r"<.*?>", "", page.read_text(encoding="utf-8")))
    assert "recipe digits; best epoch 2 of 3; measured on the test set" in text
    for figure in ("33.33 %accuracy", "3images", "1,234parameters", "0:01:01time in all", '"seed": "雛菊\\u001b"'):
        assert figure in text
    # Wilson's interval of 1 of 3, (n p + z^2/2 +- z sqrt(n p q + z^2/4)) / (n + z^2) with z = 1.96
    answer = (
        "names the class of 1 of 3 images: 33.33 %, with a 95 % interval of 6.15 % to 79.23 % (Wilson). The weakest"
    )
    assert f"{answer} class is b: it finds 0.00 % of its images." in text
    assert "2 filesphotos of a kind that is not read (.gif)" in text.replace("\n", "")
    assert "Mistakes: 2 of 3, the surest first" in text
    assert text.index("a, taken for b (99 % sure)\nphotos/2.jpg") < text.index("b, taken for a (98 % sure)\nimage 1")


def test_page_is_read_on_a_telephone(tmp_path, browser):
    """Names of classes stood letter by letter below each other there, and the curves were 368 pixels wide."""
    names = ("black-and-tan_coonhound", "Brown-headed Cowbird (Molothrus ater)")
    evaluation = measure(np.array([[3.0, 0], [4, 0], [0, 5]]), [0, 1, 0], names)
    picture, page = tmp_path / "picture.png", tmp_path / "r.html"
    Image.new("RGB", (1100, 704)).save(picture)
    bad = [("photos/" + "long_name" * 9, "truncated JPEG, ends within its data")]
    panel = find_task().panel(evaluation)
    write_report(page, "long_name" * 9, RESULT, panel, picture, bad, {"model": "B/16 " * 99})
    tab = browser.new_page(viewport={"width": 400, "height": 900})
    tab.goto(page.as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") == 400
    lines = "[...document.querySelectorAll('td')].map(cell => cell.clientHeight / 18)"
    assert max(tab.evaluate(lines)) < 6
    curves = "[...document.querySelectorAll('.scroll > img')].at(-1)"
    assert tab.evaluate(f"{curves}.clientWidth") > 700
