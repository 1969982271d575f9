"""Several labels an image: measures against scikit-learn's and by hand, and one finished run."""

import numpy as np
import pytest
from sklearn import metrics

from keras_vit.tasks.multi_label import MultiLabel, best_thresholds, measure_labels

NAMES = ("cat", "cow", "dog", "emu")


def random_answers(count=211, seed=0):
    """Logits with many equal ones, and labels of which `cow` is rare and `emu` never there."""
    rng = np.random.default_rng(seed)
    labels = rng.random((count, 4)) < [0.4, 0.05, 0.7, 0.0]
    return np.round(rng.normal(labels * 1.2, 1.0) * 2) / 2, labels


def test_measures_are_those_of_scikit_learn():
    logits, labels = random_answers()
    result = measure_labels(logits, labels, NAMES, [0.3, 0.6, 0.5, 0.9])
    answers = 1 / (1 + np.exp(-logits)) >= [0.3, 0.6, 0.5, 0.9]
    np.testing.assert_array_equal(result.predictions, answers)
    there = labels[:, :3]  # scikit-learn has no average precision of a label without images
    areas = metrics.average_precision_score(there, logits[:, :3], average=None)
    assert [each.average_precision for each in result.classes] == [*map(pytest.approx, areas.tolist()), None]
    assert result.average_precision == pytest.approx(metrics.average_precision_score(there, logits[:, :3]))
    assert result.micro_f1 == pytest.approx(metrics.f1_score(labels, answers, average="micro", zero_division=0))
    macro = metrics.f1_score(there, answers[:, :3], average="macro")
    assert result.macro_f1 == pytest.approx(macro)
    precision, recall, f1, support = metrics.precision_recall_fscore_support(there, answers[:, :3])
    for each, *wanted in zip(result.classes, precision, recall, f1, support, strict=False):
        assert (each.precision, each.recall, each.f1, each.count) == pytest.approx(tuple(wanted))
    assert result.classes[3].recall is None
    assert result.loss == pytest.approx(4 * metrics.log_loss(labels.ravel(), 1 / (1 + np.exp(-logits)).ravel()))


def test_average_precision_of_equal_scores_is_the_share_of_images():
    labels = np.array([[1], [0], [0], [1], [0]])
    assert measure_labels(np.zeros((5, 1)), labels, ["a"]).average_precision == pytest.approx(0.4)


def test_best_threshold_has_the_highest_f1_of_all_thresholds():
    logits, labels = random_answers(300, seed=4)
    labels[:, 3] = labels[:, 0]
    scores = 1 / (1 + np.exp(-logits))
    found = best_thresholds(labels, scores)
    for place in (0, 2):
        best = max(metrics.f1_score(labels[:, place], scores[:, place] >= limit) for limit in np.unique(scores))
        assert metrics.f1_score(labels[:, place], scores[:, place] >= found[place]) == pytest.approx(best)
        assert found[place] not in scores
    few = best_thresholds(np.array([[1], [0], [1]]), np.array([[0.6], [0.4], [0.2]]))  # F1 of 2/3, 1/2 and 4/5
    assert few == pytest.approx([0.1])


def test_rare_label_gets_the_threshold_of_all_together():
    logits, labels = random_answers(100)
    scores = 1 / (1 + np.exp(-logits))
    assert labels[:, 1].sum() < 10
    found = best_thresholds(labels, scores)
    assert found[1] == found[3]
    best = max(metrics.f1_score(labels.ravel(), scores.ravel() >= limit) for limit in np.unique(scores))
    assert metrics.f1_score(labels.ravel(), scores.ravel() >= found[1]) == pytest.approx(best)


def test_answer_names_each_label_at_its_own_threshold():
    task = MultiLabel(threshold=(0.5, 0.1, 0.9, 0.5))
    logits = np.array([0.1, -1.0, 2.0, -0.1])
    answer = task.answer(None, logits, NAMES, None)
    assert [item["label"] for item in answer] == ["cat", "cow"]
    assert [item["score"] for item in answer] == pytest.approx(1 / (1 + np.exp([-0.1, 1.0])))
    assert list(MultiLabel().answer_lines([])) == ["  no label above its threshold"]
    best = task.answer(None, logits, NAMES, top=2)
    assert [(item["label"], item["predicted"]) for item in best] == [("dog", False), ("cat", True), ("cow", True)]


@pytest.mark.parametrize("options", [{"threshold": 1.5}, {"positive_weight": "more"}, {"positive_weight": (1, -2)}])
def test_wrong_option_is_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        MultiLabel(**options)
