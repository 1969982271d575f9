"""Numbers of an image: measures against scikit-learn's and by hand, and one finished run."""

import numpy as np
import pytest
from conftest import make_tiny
from sklearn import metrics

import keras_vit
from keras_vit.model.outputs import with_units
from keras_vit.runs.run_card import _results
from keras_vit.tasks import find_task
from keras_vit.tasks.regression import Regression, measure_numbers

NAMES = ("age", "price", "constant")


def test_measures_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    true = np.stack([rng.normal(40, 9, 57), rng.lognormal(8, 1, 57), np.full(57, 3.0)], axis=1).astype("float32")
    found = (true + rng.normal(0, [3, 900, 0.5], true.shape)).astype("float32")
    result = measure_numbers(found, true, NAMES)
    for place, each in enumerate(result.classes):
        pair = true[:, place].astype("float64"), found[:, place].astype("float64")
        assert each.mean_absolute_error == pytest.approx(metrics.mean_absolute_error(*pair))
        assert each.root_mean_squared_error == pytest.approx(metrics.root_mean_squared_error(*pair))
        assert each.r2 == (None if place == 2 else pytest.approx(metrics.r2_score(*pair)))
    assert result.r2 == pytest.approx(np.mean([each.r2 for each in result.classes[:2]]))


def test_mean_of_the_numbers_has_an_r2_of_zero_and_a_loss_of_one():
    true = np.array([[1.0], [2.0], [6.0]], "float32")
    result = measure_numbers(np.full_like(true, 3.0), true, ["a"])
    assert (result.r2, result.loss) == pytest.approx((0.0, 1.0))
    assert result.classes[0].mean_absolute_error == 2.0


def test_answer_has_the_names_of_the_columns():
    answer = Regression().answer(None, np.array([31.5, -2e6]), ["age", "price"], top=1)
    assert answer == [{"name": "age", "value": 31.5}, {"name": "price", "value": -2e6}]
    assert list(Regression().answer_lines(answer)) == ["  age    31.5", "  price  -2000000"]


def test_table_of_answers_tells_neighbouring_numbers_apart():
    """Before, both were 1.67873e+07."""
    answers = Regression().answer(None, np.array([16_787_338.0, 16_787_340.0, 0.1], "float32"), ["a", "b", "c"], None)
    assert Regression().answer_cells(answers, ["a", "b", "c"]) == ["16787338", "16787340", "0.1"]


def test_card_has_five_digits_of_an_error_whatever_its_unit():
    errors = np.array([[2.98e-5, 346362705.92, 0.1]] * 4)
    result = Regression().result(measure_numbers(errors, np.zeros((4, 3)), NAMES), {"split": "test", "test_images": 4})
    card = _results({"name": "n"}, {**result, "best_epoch": 1}, Regression().card({}, result))
    assert "| Mean absolute error of age | 2.98e-05 |" in card
    assert "| Mean absolute error of price | 3.4636e+08 |" in card


@pytest.mark.parametrize("task", ["multi-label", "regression"])
def test_column_that_is_named_twice_is_refused(task):
    with pytest.raises(ValueError, match=r"each column once.\nReceived: 'red' 2 times"):
        find_task({"name": task, "columns": "red, red,blue"})
    assert find_task({"name": task, "columns": "red, blue"}).columns == ("red", "blue")


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_file_of_few_bits_has_numbers_of_any_unit(tmp_path, precision):
    """Before, int8 had one scale for all columns, and constants above 65,504 or of 12 bits were lost in float16."""
    scales, offsets = np.array([3.0, 2e5, 5.0, 1e-7, 3e8]), np.array([9.0, 3e6, 1990.0, 1e-6, -1e9])
    rng = np.random.default_rng(0)
    model = make_tiny(num_layers=1, classes=5)
    model.get_layer("head").kernel.assign(rng.normal(0, 0.5, model.get_layer("head").kernel.shape))
    model = with_units(model, scales, offsets)
    photos = [*rng.integers(0, 256, (40, *model.input_shape[1:]), "uint8")]
    report = keras_vit.export(model, tmp_path / "model.tflite", precision=precision, images=photos)
    (drift,) = (drift for drift in report.drift if drift.output == "numbers")
    assert drift.mean_difference < {"float16": 5e-3, "int8": 0.1}[precision]  # of a deviation, in the worst column


def test_smaller_figure_can_be_the_better_one():
    class Errors(Regression):
        larger_is_better = False

    scores = [
        Errors().score({"val_r2": error, "val_loss": loss}) for error, loss in ((0.2, 1.0), (0.2, 2.0), (0.3, 0.5))
    ]
    assert scores == sorted(scores, reverse=True)


def test_unknown_loss_is_refused():
    with pytest.raises(ValueError, match="loss"):
        Regression(loss="rmse")
