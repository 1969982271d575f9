"""A probe is its classifier on the features of a split, and refuses what cannot be compared."""

import json

import numpy as np
import pytest
from conftest import make_tiny

import keras_vit
from keras_vit.data import open_source
from keras_vit.evaluation import image_features, measure, probes
from keras_vit.evaluation.probes import (
    STRENGTHS,
    choose_shots,
    fit_least_squares,
    fit_logistic,
    neighbor_scores,
)


def photos(count, seed):
    """Pictures of three colours that are hard to tell apart."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    images = rng.normal(120, 25, (count, 20, 28, 3))
    images[np.arange(count), :, :, labels] += 3
    return images.clip(0, 255).astype("uint8"), labels


@pytest.fixture(scope="module")
def source():
    names = ["ash", "birch", "cedar"]
    return open_source(
        {"train": photos(31, 0), "validation": photos(12, 1), "test": photos(29, 2), "class_names": names}
    )


@pytest.fixture
def model():
    return make_tiny()


def test_fewshot_has_every_seed_of_every_number_of_shots(model, source):
    found = keras_vit.probe(model, source, shots=(5, 1), cache=None)
    known, asked = (image_features(model, source, split, cache=None) for split in ("train", "test"))
    assert list(found.accuracies) == [1, 5]
    for trial in found.trials:
        rows = choose_shots(known.labels, 3, trial.shots, trial.seed)
        scores = fit_least_squares(known.features[rows], known.labels[rows], 3).scores(asked.features)
        expected = measure(scores, asked.labels, source.class_names)
        assert trial.accuracy == expected.accuracy
        assert (trial.predictions == expected.predictions).all()
    assert found.mean(1) == pytest.approx(np.mean(found.accuracies[1]), abs=1e-15)
    assert found.deviation(5) == pytest.approx(np.std(found.accuracies[5], ddof=1), abs=1e-15)
    assert found.accuracy == found.mean(5)
    assert found.confusion.sum() == 3 * 29
    assert [each.count for each in found.classes] == [10, 10, 9]


def test_default_shots_are_those_that_every_class_has(model, source):
    found = keras_vit.probe(model, source, seeds=(4,), cache=None)
    assert list(found.accuracies) == [1, 5, 10]  # of classes of 11, 10 and 10
    assert found.skipped == (25,)
    assert found.deviation() is None


def test_classes_with_fewer_examples_than_shots_are_refused_by_name(model, source):
    with pytest.raises(ValueError, match=r"shots=\[11\].*birch 10, cedar 10"):
        keras_vit.probe(model, source, shots=[11], cache=None)
    assert keras_vit.probe(model, source, shots=[11], train_split="train+validation", cache=None).train_images == 43


def test_linear_probe_chooses_by_validation_and_is_fitted_on_all(model, source):
    pytest.importorskip("sklearn")
    found = keras_vit.probe(model, source, "linear", cache=None)
    known, held, asked = (image_features(model, source, split, cache=None) for split in ("train", "validation", "test"))
    right = [
        (fit_logistic(known.features, known.labels, strength).predict(held.features) == held.labels).mean()
        for strength in STRENGTHS
    ]
    strength = STRENGTHS[int(np.argmax(right))]
    both = [np.concatenate(pair) for pair in ((known.features, held.features), (known.labels, held.labels))]
    expected = (fit_logistic(*both, strength).predict(asked.features) == asked.labels).mean()
    assert (found.accuracy, found.trials[0].settings) == (expected, {"strength": strength})


def test_linear_probe_without_a_validation_split_holds_a_part_of_training_back(model):
    pytest.importorskip("sklearn")
    found = keras_vit.probe(model, {"train": photos(31, 0), "test": photos(29, 2)}, "linear", cache=None)
    assert found.trials[0].settings["strength"] in STRENGTHS
    assert found.train_images == 31


def test_linear_probe_does_not_choose_by_what_it_is_tested_on(model, source, monkeypatch):
    pytest.importorskip("sklearn")
    sizes, plain = [], probes.choose_strength
    monkeypatch.setattr(probes, "choose_strength", lambda *sets: sizes.extend(len(y) for _, y in sets) or plain(*sets))
    found = keras_vit.probe(model, source, "linear", test_split="validation", cache=None)
    assert (sum(sizes), found.train_images, found.test_images) == (31, 31, 12)


def test_knn_probe_is_the_vote_of_the_neighbours(model, source):
    found = keras_vit.probe(model, source, "knn", num_neighbors=7, cache=None)
    known, asked = (image_features(model, source, split, cache=None) for split in ("train", "test"))
    scores = neighbor_scores(known.features, known.labels, asked.features, 3, 7)
    assert found.accuracy == (scores.argmax(1) == asked.labels).mean()


@pytest.mark.parametrize("kind", ["fewshot", "linear", "knn"])
def test_summary_is_json_and_a_probe_is_shown_in_one_line(model, source, kind):
    found = keras_vit.probe(model, source, kind, cache=None)
    told = json.loads(json.dumps(found.summary()))
    assert told["accuracy"] == found.accuracy
    assert [row["mean"] for row in told["results"]] == [found.mean(shots) for shots in found.accuracies]
    assert len(repr(found).splitlines()) == 1
    assert f"{found.accuracy:.4f}" in repr(found)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "fewshots"}, "'fewshot'"),
        ({"train_split": "train+test"}, "no split in common"),
        ({"kind": "knn", "shots": [1]}, "`shots`.*'fewshot'"),
        ({"kind": "linear", "num_neighbors": 3}, "`num_neighbors`.*'knn'"),
        ({"kind": "linear", "seeds": [3]}, "`seeds`.*'fewshot'"),
        ({"kind": "knn", "num_neighbors": 32}, "num_neighbors=32, 31"),
        ({"shots": []}, "once"),
        ({"shots": [0]}, "`shots`"),
        ({"shots": [2, 2]}, "once"),
        ({"seeds": "01"}, "once"),
        ({"seeds": [-1]}, "`seeds`"),
    ],
)
def test_what_cannot_be_probed_is_refused(model, source, arguments, words):
    with pytest.raises(ValueError, match=words):
        keras_vit.probe(model, source, cache=None, **arguments)
