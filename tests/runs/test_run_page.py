"""The page of a run shows its figures, and the surest mistakes with their pictures."""

import html
import re

import numpy as np
import pytest

from keras_vit.evaluation import measure
from keras_vit.runs.run_page import find_mistakes, write_report

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("jinja2")
RESULT = {"split": "test", "parameters": 1234, "seconds": 61, "recipe": "digits", "best_epoch": 2, "epochs": 3}


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
    mistakes = find_mistakes(Pictures(), "test", evaluation)
    found = [(each["true"], each["predicted"], each["pixels"].max()) for each in mistakes]
    assert found == [("a", "b", 100), ("b", "a", 50)]
    write_report(page, "t", RESULT, evaluation, picture, picture, mistakes, config={"seed": "雛菊\x1b"})
    text = html.unescape(re.sub(r"<.*?>", "", page.read_text(encoding="utf-8")))
    assert "recipe digits; best epoch 2 of 3; measured on the test set" in text
    for figure in ("0.3333accuracy", "3images", "1,234parameters", "0:01:01in all", '"seed": "雛菊\\u001b"'):
        assert figure in text
    assert "Mistakes: 2 of 3, the surest first" in text
    assert text.index("b (99%), is a\nphotos/2.jpg") < text.index("a (98%), is b\nnumber 1")
