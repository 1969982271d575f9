"""The page of an evaluation or a probe holds every figure, and shows names as they are."""

import html
import re
import tracemalloc

import numpy as np
import pytest
from conftest import make_tiny

import keras_vit
from keras_vit.evaluation import measure
from keras_vit.pages.formatting import printable

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def cells(page):
    return [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", page)]


def test_page_of_an_evaluation_has_its_figures_and_classes(tmp_path):
    rng = np.random.default_rng(0)
    names = ("<script>alert(1)</script>", "b&c", "line\nbreak", "d", "e", "f")
    result = measure(rng.normal(size=(41, 6)), rng.integers(0, 6, 41), names)
    page = keras_vit.write_evaluation_page(result, tmp_path / "new" / "folder", "<b>title").read_text()
    for share in (result.accuracy, result.top5_accuracy, result.calibration_error):
        assert f"<b>{100 * share:.2f} %</b>" in page
    assert f"<b>{result.loss:.4f}</b>" in page
    assert "<script>" not in page
    assert "<b>title" not in page
    wanted = [(printable(each.name), str(number), str(each.count)) for number, each in enumerate(result.classes)]
    assert list(zip(*(cells(page)[column::5] for column in range(3)), strict=True)) == wanted
    assert "ReaL" not in page


def test_page_of_a_probe_has_a_row_for_each_number_of_shots(tmp_path):
    rng = np.random.default_rng(0)
    data = {name: (rng.integers(0, 256, (15, 20, 28, 3), "uint8"), np.arange(15) % 3) for name in ("train", "test")}
    result = keras_vit.probe(make_tiny(), data, cache=None)
    page = keras_vit.write_evaluation_page(result, tmp_path).read_text()
    assert cells(page)[:10] == [
        cell
        for name, shots in (("1 shot", 1), ("5 shots", 5))
        for cell in (name, *(f"{100 * n:.2f} %" for n in (result.mean(shots), result.deviation(shots))), "3", "none")
    ]
    assert "fewer training images: 10, 25 shots." in page
    assert f"<b>{100 * result.accuracy:.2f} %</b>accuracy, 5 shots" in page
    assert "are of 3 choices together." in page
    keras_vit.write_evaluation_page(result, tmp_path, "again")  # replaces it
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    (tmp_path / "index.html").write_text("<!doctype html>\nof a user")
    with pytest.raises(FileExistsError, match=r"index\.html"):
        keras_vit.write_evaluation_page(result, tmp_path)
    assert (tmp_path / "index.html").read_text() == "<!doctype html>\nof a user"


def test_page_of_many_classes_takes_no_matrix_of_them(tmp_path):
    """A matrix of 8,000 classes takes 0.5 GB; of 21,843 the page was out of memory. The rest needs 0.25 GB."""
    classes = 8_000
    labels = np.arange(0, classes, 211)
    result = measure(np.eye(classes, dtype="float32")[labels], labels, list(map(str, range(classes))))
    tracemalloc.start()
    try:
        page = keras_vit.write_evaluation_page(result, tmp_path).read_text()
        assert tracemalloc.get_traced_memory()[1] < 2**29
    finally:
        tracemalloc.stop()
    assert len(cells(page)) == 5 * classes
    assert f"<details><summary>all {classes:,}</summary>" in page


def test_other_results_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"`Evaluation`(?s:.*)dict"):
        keras_vit.write_evaluation_page({"accuracy": 1}, tmp_path)
