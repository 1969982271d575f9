"""Evaluation: every figure equals one computed another way, and what cannot be measured is refused."""

import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import images, make_tiny
from photos import make_photos

from keras_vit.data import open_source
from keras_vit.data.shards.packing import pack
from keras_vit.evaluation import CALIBRATION_BINS, evaluate, measure
from keras_vit.evaluation.batched_predict import open_to_measure
from keras_vit.evaluation.metrics import measure_batches, wilson_interval

NAMES = tuple("abcdefg")


def scores_of(kind, seed=1):
    """Logits and labels of 83 examples in seven classes; the labels are often right."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (83, 7))
    if kind == "ties":
        logits = logits.round(0)
    true = rng.integers(0, 7, 83)
    if kind == "absent classes":  # the third is neither there nor predicted, the fifth is predicted only
        logits[:, 2] = -9
        true[(true == 2) | (true == 4)] = 1
    usual = np.where(logits.argmax(1) == 4, 1, logits.argmax(1)) if kind == "absent classes" else logits.argmax(1)
    return logits, np.where(rng.random(83) < 0.6, usual, true)


@pytest.fixture
def scored():
    return scores_of("plain")


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("split", ["tset", "test+", "val+validation", 3])
def test_split_that_no_data_has_is_refused_before_the_data_is_opened(tiny, split):
    with pytest.raises((ValueError, TypeError), match="split"):
        evaluate(tiny, "no such data", split)


def test_without_a_split_all_of_data_without_splits_is_measured():
    pixels, labels = np.zeros((30, 5, 6, 3), "uint8"), np.arange(30) % 3
    with pytest.warns(UserWarning, match='all 30 images.*split="test"'):
        source, split = open_to_measure((pixels, labels), None, None)
    assert source.split(split).size == 30
    divided = {"train": (pixels, labels), "test": (pixels, labels)}
    for data, seed in (((pixels, labels), 0), (source, None), (divided, None)):
        assert open_to_measure(data, None, seed)[1] == "test"


def test_source_and_evaluation_are_shown_in_one_line(tiny):
    """A notebook shows what its last line gives: not every path, pixel and prediction."""
    data = {name: (np.zeros((n, 5, 6, 3), "uint8"), np.arange(n) % 7) for name, n in (("train", 21), ("test", 14))}
    source = open_source(data)
    assert repr(source) == "Source('arrays', kind='arrays', classes=7, sizes={'train': 21, 'test': 14}, bad_images=0)"
    shown = repr(evaluate(tiny, source))
    number = r"\d+\.\d{4}"
    expected = rf"Evaluation\(accuracy={number}, top5_accuracy={number}, loss={number}, count=14, classes=7\)"
    assert re.fullmatch(expected, shown)


@pytest.mark.parametrize("kind", ["plain", "ties", "absent classes"])
def test_figures_equal_those_of_scikit_learn(kind):
    metrics = pytest.importorskip("sklearn.metrics")
    logits, labels = scores_of(kind)
    result, predictions, every = measure(logits, labels, NAMES), logits.argmax(1), np.arange(7)
    precision, recall, _, count = metrics.precision_recall_fscore_support(
        labels, predictions, labels=every, zero_division=np.nan
    )
    assert result.accuracy == metrics.accuracy_score(labels, predictions)
    assert (result.confusion == metrics.confusion_matrix(labels, predictions, labels=every)).all()
    # Of equal scores scikit-learn ranks the last first, and we the first: so it gets the classes in reverse.
    assert result.top5_accuracy == metrics.top_k_accuracy_score(6 - labels, logits[:, ::-1], k=5, labels=every)
    np.testing.assert_allclose(result.loss, metrics.log_loss(labels, softmax(logits), labels=every), rtol=1e-12)
    for name, expected in (("precision", precision), ("recall", recall)):
        found = [getattr(result_of_class, name) for result_of_class in result.classes]
        np.testing.assert_allclose([np.nan if part is None else part for part in found], expected, rtol=1e-12)
    assert [c.count for c in result.classes] == count.tolist()


def test_scores_of_the_test_have_ties_and_absent_classes():
    tied = np.sort(scores_of("ties")[0], axis=1)
    assert (tied[:, -1] == tied[:, -2]).any()  # in the first place
    assert (tied[:, 1] == tied[:, 2]).any()  # where the top five end
    result = measure(*scores_of("absent classes"), NAMES)
    assert (result.classes[2].recall, result.classes[2].precision) == (None, None)
    assert (result.classes[4].recall, result.classes[4].precision) == (None, 0.0)


def test_loss_of_a_sure_mistake_is_not_cut_off():
    """As it would be from probabilities, of which float64 has none below e**-745."""
    assert measure(np.array([[2000.0, 0], [0, 3]]), [1, 1], ("a", "b")).loss == pytest.approx(1000, rel=1e-3)


def test_calibration_error_is_the_weighted_gap_of_each_bin(scored):
    logits, labels = scored
    confidences, correct = softmax(logits).max(axis=1), logits.argmax(1) == labels
    expected = 0.0
    for low in np.arange(CALIBRATION_BINS) / CALIBRATION_BINS:
        inside = (confidences > low) & (confidences <= low + 1 / CALIBRATION_BINS)
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - confidences[inside].mean())
    assert measure(logits, labels, NAMES).calibration_error == pytest.approx(expected, abs=1e-12)


def test_calibration_error_tells_the_two_highest_bins_apart():
    """Three of confidence .95 that are right and one of .9 that is wrong: 3/4 of .05 and 1/4 of .9."""
    scores = np.log([[0.95, 0.05]] * 3 + [[0.9, 0.1]])
    found = measure(scores, [0, 0, 0, 1], ("a", "b")).calibration_error
    assert found == pytest.approx(0.75 * 0.05 + 0.25 * 0.9, abs=1e-12)
    on_edge = measure(np.log([[0.6, 0.4], [0.62, 0.38]]), [0, 1], ("a", "b"))  # 9/15 is the end of a bin
    assert on_edge.calibration_error == pytest.approx((0.4 + 0.62) / 2, abs=1e-12)


def test_probabilities_and_logits_give_the_same_figures(scored):
    logits, labels = scored
    from_logits, other = measure(logits, labels, NAMES), measure(softmax(logits), labels, NAMES, from_logits=False)
    assert other.loss == pytest.approx(from_logits.loss, rel=1e-12)
    assert other.calibration_error == pytest.approx(from_logits.calibration_error, rel=1e-9)


def test_batches_give_the_figures_of_all_scores_at_once(scored):
    logits, labels = scored
    found = measure_batches(((logits[at : at + 9], labels[at : at + 9]) for at in range(0, 83, 9)), NAMES)
    assert found.summary() == measure(logits, labels, NAMES).summary()
    logits[20, 3] = np.nan
    with pytest.raises(ValueError, match="example 20 "):
        measure_batches(((logits[at : at + 9], labels[at : at + 9]) for at in range(0, 83, 9)), NAMES)


def test_class_that_is_never_seen_or_predicted_has_no_recall_or_precision():
    result = measure(np.eye(3)[[0, 0, 1]], [0, 0, 0], ("a", "b", "c"))
    assert [(c.count, c.recall, c.precision) for c in result.classes] == [
        (3, 2 / 3, 1.0),
        (0, None, 0.0),
        (0, None, None),
    ]
    assert result.top5_accuracy is None  # of three classes


def test_interval_is_wilsons():
    """Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    wanted = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0, 0.1611), (1, 29): (0.0061, 0.1718)}
    for (hits, count), bounds in wanted.items():
        assert wilson_interval(hits / count, count) == pytest.approx(bounds, abs=5e-5)  # four digits are printed
    assert wilson_interval(1.0, 20) == pytest.approx((1 - 0.1611, 1), abs=5e-5)
    assert all(0 <= bound <= 1 and math.isfinite(bound) for n in (1, 10**9) for bound in wilson_interval(1.0, n))


def test_mistakes_come_the_surest_first():
    logits = np.array([[9.0, 0], [5, 0], [0, 1], [0, 7]])
    assert measure(logits, [1, 1, 1, 0], ("a", "b")).mistakes().tolist() == [0, 3, 1]


def test_every_example_counts_whatever_the_batch_size():
    model = make_tiny()
    rng = np.random.default_rng(2)
    data = {"test": (rng.integers(0, 256, (13, 20, 28, 3), "uint8"), rng.integers(0, 7, 13))}
    data["train"] = data["test"]
    data["class_names"] = list(NAMES)
    logits = keras.ops.convert_to_numpy(model(model.preprocessing(data["test"][0])))
    expected = measure(logits, data["test"][1], NAMES)
    for batch_size in (4, 13, 32):
        result = evaluate(model, data, batch_size=batch_size)
        assert (result.confusion == expected.confusion).all()
        assert result.loss == pytest.approx(expected.loss, rel=1e-5)  # float32 sums in another order


def dataset(labels, count=9):
    """Prepared images in batches."""
    return tf.data.Dataset.from_tensor_slices((images(count, 20, 28, 3), labels)).batch(4)


def test_dataset_of_prepared_images_is_measured_with_either_labels(tiny):
    labels = np.arange(9) % 7
    first, second = (evaluate(tiny, dataset(each)) for each in (labels, np.eye(7)[labels]))
    assert (first.confusion == second.confusion).all()
    assert (first.labels == labels).all()


def test_softmax_head_is_measured_by_its_probabilities(tiny):
    data = dataset(np.arange(9) % 7)
    loss = evaluate(make_tiny(classifier_activation="softmax"), data).loss
    assert loss == pytest.approx(evaluate(tiny, data).loss, rel=1e-4)


@pytest.mark.parametrize(
    ("scores", "labels", "words"),
    [
        (np.zeros((0, 3)), [], "empty"),
        (np.zeros((2, 3)), [0, 3], r"in \[0, 3\)"),
        (np.zeros((2, 3)), [-1, 0], r"in \[0, 3\)"),
        (np.array([[0, 0, np.nan]]), [0], "finite"),
        (np.zeros((2, 4)), [0, 1], "row of scores"),
    ],
)
def test_what_cannot_be_measured_is_refused(scores, labels, words):
    with pytest.raises(ValueError, match=words):
        measure(scores, labels, ("a", "b", "c"))


def test_data_of_other_classes_is_refused():
    rng = np.random.default_rng(2)
    pair = (rng.integers(0, 256, (9, 20, 28, 3), "uint8"), np.arange(9) % 7)
    with pytest.raises(ValueError, match="classes"):
        evaluate(make_tiny(classes=5), {"train": pair, "test": pair})
    with pytest.raises(ValueError, match=r"'b' .* 'x'"):
        evaluate(make_tiny(), {"train": pair, "test": pair, "class_names": NAMES}, class_names=("a", "x", *"cdefg"))
    with pytest.raises(TypeError, match="order of the outputs, and a set"):
        evaluate(make_tiny(), {"train": pair, "test": pair}, class_names={*NAMES})
    model = make_tiny()
    model.class_names = ("b", "a", *NAMES[2:])
    with pytest.raises(ValueError, match=r"same order(?s:.*)'a' where the model has 'b'"):
        evaluate(model, {"train": pair, "test": pair, "class_names": NAMES})


@pytest.mark.filterwarnings("ignore:.*has no splits")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("given", [None, ["ash", "beech", "cedar"]])  # as the command gives those of a model
def test_folders_that_are_numbers_are_named_with_the_outputs_they_are_taken_for(tmp_path, given, packed):
    make_photos(tmp_path / "d", 1)
    for number, name in enumerate(("disc", "stripes", "tiles")):
        (tmp_path / "d" / name).rename(tmp_path / "d" / str(number))
    data = pack(tmp_path / "d", tmp_path / "packed")[0].parent if packed else tmp_path / "d"
    model = make_tiny(classes=3)
    model.class_names = ("ash", "beech", "cedar")
    with pytest.warns(UserWarning, match="0 is 'ash', 1 is 'beech', 2 is 'cedar'"):
        assert tuple(evaluate(model, data, "train", class_names=given).class_names) == model.class_names


def test_model_around_an_encoder_is_measured_as_one_of_the_same_layers():
    encoder = make_tiny(num_layers=1, include_top=False, classes=None)
    model = keras.Sequential([keras.Input((20, 28, 3)), encoder, keras.layers.Dense(7)])
    pixels, labels = np.random.default_rng(2).integers(0, 256, (9, 20, 28, 3), "uint8"), np.arange(9) % 7
    model.class_names = NAMES
    result = evaluate(model, {"train": (pixels, labels), "test": (pixels, labels)})
    expected = model.predict_on_batch(encoder.preprocessing(pixels)).argmax(axis=1)
    assert (result.predictions.tolist(), result.class_names) == (expected.tolist(), tuple(NAMES))


@pytest.mark.filterwarnings("ignore:.*has no splits")
@pytest.mark.parametrize("last", [[], [keras.layers.Softmax()]])
def test_model_around_one_with_a_head_has_its_class_names(tmp_path, last):
    """Before, the order of the folders was taken: 0.167 for 0.556."""
    make_photos(tmp_path, 1)
    model = make_tiny(classes=3)
    model.class_names = ("tiles", "disc", "stripes")
    around = keras.Sequential([keras.Input((20, 28, 3)), model, *last])
    with pytest.raises(ValueError, match="same order"):
        evaluate(around, tmp_path)
    model.class_names = ("disc", "stripes", "tiles")
    assert evaluate(around, tmp_path).class_names == model.class_names
    model.head_kind = "labels"
    with pytest.raises(ValueError, match="a model of labels"):
        evaluate(keras.Sequential([keras.Input((20, 28, 3)), model]), tmp_path)


def test_head_of_another_activation_is_refused():
    with pytest.raises(ValueError, match="sigmoid"):
        evaluate(make_tiny(classifier_activation="sigmoid"), "digits")


def test_dataset_without_end_is_refused(tiny):
    with pytest.raises(ValueError, match="end"):
        evaluate(tiny, dataset(np.arange(4), 4).repeat())
