"""The page holds every figure, needs nothing else, and escapes names."""

import re

import numpy as np
import pytest
from conftest import make_tiny

import keras_vit
from keras_vit.evaluation import measure

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
HOSTILE = "<script>alert(1)</script>"


def cells(page):
    return re.findall(r"<td>(.*?)</td>", page)


def test_page_of_an_evaluation_has_its_figures_and_classes(tmp_path):
    rng = np.random.default_rng(0)
    names = (HOSTILE, "b&c", "line\nbreak", "d", "e", "f")
    result = measure(rng.normal(size=(41, 6)), rng.integers(0, 6, 41), names)
    page = keras_vit.write_evaluation_page(result, tmp_path / "new" / "folder", "<b>title").read_text()
    for figure in (result.accuracy, result.top5_accuracy, result.loss, result.calibration_error):
        assert f"<b>{figure:.4f}</b>" in page
    assert HOSTILE not in page
    assert "<b>title" not in page
    assert "&lt;script&gt;" in cells(page)[0]
    assert "line\\nbreak" in cells(page)[8]
    assert [int(cell) for cell in cells(page)[1::4]] == [each.count for each in result.classes]
    assert "http" not in re.sub(r"data:image/png;base64,[\w+/=]+", "", page)
    assert "ReaL" not in page


def test_page_of_a_probe_has_a_row_for_each_number_of_shots(tmp_path):
    rng = np.random.default_rng(0)
    data = {name: (rng.integers(0, 256, (15, 20, 28, 3), "uint8"), np.arange(15) % 3) for name in ("train", "test")}
    result = keras_vit.probe(make_tiny(), data, cache=None)
    page = keras_vit.write_evaluation_page(result, tmp_path).read_text()
    rows = [cells(page)[5 * number : 5 * number + 5] for number in range(2)]
    assert rows == [
        [name, f"{result.mean(shots):.4f}", f"{result.deviation(shots):.4f}", "3", "none"]
        for name, shots in (("1 shot", 1), ("5 shots", 5))
    ]
    assert "fewer training images: 10, 25 shots." in page
    assert f"<b>{result.accuracy:.4f}</b>accuracy, 5 shots" in page
    assert "With 5 shots. Recall, precision and the confusion matrix are of 3 choices together." in page
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    keras_vit.write_evaluation_page(result, tmp_path, "again")  # replaces it


def test_other_results_are_refused(tmp_path):
    with pytest.raises(TypeError, match="must be an `Evaluation` or a `Probe`"):
        keras_vit.write_evaluation_page({"accuracy": 1}, tmp_path)
