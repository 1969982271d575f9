"""The guard of trainings without labels: what it measures, what it keeps, and which collapse it names."""

import keras
import numpy as np
import pytest
from conftest import tiny_config

import keras_vit
from keras_vit import selfsupervised

CLASSES, SIDE = 3, 16


def photos(count, seed=0):
    """Stripes of three widths, shifted and noisy, with their classes."""
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    places = np.arange(SIDE)[None] + draw.integers(0, 8, (count, 1))
    rows = np.sin(places * (1.5 + labels[:, None])) + draw.normal(0, 0.1, (count, SIDE))
    return np.broadcast_to(rows[:, None, :, None], (count, SIDE, SIDE, 3)).astype("float32") / 2, labels


def encoder(seed=0):
    keras.utils.set_random_seed(seed)
    return keras_vit.build(tiny_config(patch_size=8), include_top=False, input_shape=(SIDE, SIDE, 3))


def test_measures_are_their_definitions():
    draw = np.random.default_rng(1)
    features, labels = draw.normal(size=(13, 5)), draw.integers(0, 3, 13)
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    hits = []
    for i in range(13):
        others = sorted((j for j in range(13) if j != i), key=lambda j: -units[i] @ units[j])[:4]
        votes = [sum(np.exp(units[i] @ units[j] / 0.07) for j in others if labels[j] == k) for k in range(3)]
        hits.append(np.argmax(votes) == labels[i])
    assert selfsupervised.knn_hits(features, labels, 4).tolist() == hits
    assert 0 < sum(hits) < 13
    assert len(selfsupervised.knn_hits(features, labels, 99)) == 13
    second = features + np.where(np.arange(13)[:, None] < 9, 0.01, draw.normal(size=(13, 5)) * 9)
    found = selfsupervised.twin_hits(features, second)
    every = np.concatenate([units, second / np.linalg.norm(second, axis=1, keepdims=True)])
    nearest = [max((j for j in range(26) if j != i), key=lambda j: every[i] @ every[j]) for i in range(26)]
    assert found.tolist() == [nearest[i] == (i + 13) % 26 for i in range(26)]
    assert 18 <= found.sum() < 26
    targets = np.exp(3 * features) / np.exp(3 * features).sum(axis=1, keepdims=True)
    mean = targets.mean(axis=0)
    each = np.mean([-sum(p * np.log(p)) for p in targets])
    np.testing.assert_allclose(selfsupervised.target_entropies(targets), (-sum(mean * np.log(mean)), each), rtol=1e-12)
    for wrong in ((features, labels[:5]), (features[:, None], labels)):
        with pytest.raises(ValueError, match="Received"):
            selfsupervised.knn_hits(*wrong)


class Fall(keras.callbacks.Callback):
    """Changes the encoder after each epoch as a training may."""

    def __init__(self, changed, changes):
        super().__init__()
        self.changed, self.changes = changed, changes

    def on_epoch_end(self, epoch, logs=None):
        self.changes[epoch](self.changed)


def norm_of(model):
    return (next(w for w in model.weights if w.path.endswith(f"encoder_norm/{name}")) for name in ("gamma", "beta"))


def same(model):
    """Gives all images nearly one vector."""
    gamma, beta = norm_of(model)
    gamma.assign(gamma * 1e-3)
    beta.assign(beta * 0 + 1)


def flat(model):
    """Puts all features on one line."""
    gamma, _ = norm_of(model)
    gamma.assign(gamma * (np.arange(gamma.shape[0]) < 1))


def nothing(model):
    """Leaves the encoder."""


def fitted(guard, model, *changes):
    """A `fit` whose epochs end in these changes of the encoder, before the guard measures."""
    config = tiny_config(patch_size=8)
    student = keras_vit.build(config, include_top=False, input_shape=(SIDE, SIDE, 3))
    training = keras_vit.LeJEPA(student, 4, hidden_size=8)
    training.compile(1e-4, run_eagerly=True)
    batch = {"views": np.zeros((2, 2, SIDE, SIDE, 3), "float32")}
    calls = [Fall(model, changes), guard]
    return training.fit([batch], epochs=len(changes), callbacks=calls, verbose=0).history


@pytest.mark.parametrize("kind", ["knn", "twins"])
def test_guard_keeps_the_best_and_ends_what_is_worse(kind, tmp_path):
    images, labels = photos(60)
    how = {"labels": labels} if kind == "knn" else {"twins": np.stack([images, photos(60, 1)[0]], 1)}
    model, lines = encoder(), []
    before = [weight.copy() for weight in model.get_weights()]
    guard = keras_vit.CollapseGuard(model, images, tmp_path / "best.keras", print_fn=lines.append, **how)
    history = fitted(guard, model, nothing, same, same, same)
    assert len(history[kind]) == 3, "it ends after two measurements running"
    assert guard.best_epoch == 0
    assert "complete" in guard.stopped
    assert history["cosine_to_start"][0] > 0.999
    assert [line.partition(":")[0] for line in lines] == ["collapse in epoch 2, complete", lines[1].partition(":")[0]]
    for kept, first in zip(keras.models.load_model(guard.path).get_weights(), before, strict=True):
        np.testing.assert_array_equal(kept, first)
    assert keras_vit.CollapseGuard(encoder(), images, "x.keras", **how).measure().keys() == guard.start.keys()


def test_guard_names_each_collapse_and_goes_on_as_it_was(tmp_path):
    images, labels = photos(60)
    model, lines = encoder(), []
    targets = {"now": np.eye(16)[np.arange(60) % 16]}
    guard = keras_vit.CollapseGuard(
        model,
        images,
        tmp_path / "best.keras",
        labels=labels,
        targets=lambda vectors: targets["now"],
        stop="never",
        print_fn=lines.append,
    )
    fitted(guard, model, lambda _: targets.update(now=np.full((60, 16), 1 / 16)), flat)
    kinds = ["collapse in epoch 1, uniform", "collapse in epoch 2, dimensional"]
    assert [line.partition(":")[0] for line in lines] == kinds
    assert guard.stopped is None
    one = guard.start | {"mean_target_entropy": 0.01, "target_entropy": 0.01}
    assert guard.collapse_of(one).startswith("one prototype")
    assert not guard.collapse_of(one | {"mean_target_entropy": 2})
    other = keras_vit.CollapseGuard(model, images, tmp_path / "other.keras", labels=labels)
    other.set_state(guard.get_state())
    assert other.get_state() == guard.get_state()
    assert other.best_epoch == 0


def test_guard_waits_for_what_was_so_at_the_start(tmp_path):
    """As with random weights, whose features are nearly one: they may yet learn."""
    images, labels = photos(60)
    model, lines = encoder(), []
    same(model)
    guard = keras_vit.CollapseGuard(model, images, tmp_path / "best.keras", labels=labels, print_fn=lines.append)
    fitted(guard, model, *[nothing] * 6)
    assert [line.partition(":")[0] for line in lines] == [
        "collapse in epoch 4, complete",
        "stopped after epoch 5, complete",
    ]


def test_guard_waits_for_heads_that_are_new(tmp_path):
    """Their targets are nearly uniform at the start: 0.98 of the entropy there is."""
    images, labels = photos(60)
    model, lines = encoder(), []
    given = {"labels": labels, "print_fn": lines.append, "targets": lambda _: targets["now"]}
    targets = {"now": 0.1 * np.eye(16)[np.arange(60) % 16] + 0.9 / 16}
    guard = keras_vit.CollapseGuard(model, images, tmp_path / "best.keras", **given)
    fitted(guard, model, lambda _: targets.update(now=np.full((60, 16), 1 / 16)), nothing, nothing)
    assert 0.9 < guard.start["target_entropy"] / np.log(16) < 0.99
    assert lines == []


def test_guard_ends_a_training_that_falls_without_a_collapse(tmp_path):
    images, labels = photos(90)
    model, lines = encoder(), []
    guard = keras_vit.CollapseGuard(model, images, tmp_path / "best.keras", labels=labels, print_fn=lines.append)
    start = guard.measure()["knn"]
    guard.start = guard.measure() | {"knn": start}
    wrong = np.random.default_rng(0).permutation(90)
    history = fitted(guard, model, nothing, lambda _: setattr(guard, "labels", labels[wrong]), nothing, nothing)
    assert start > 0.8
    assert len(history["knn"]) == 3
    assert guard.stopped.startswith("worse than the start: knn fell")
    assert guard.best_epoch == 0
    assert lines[-1].endswith("the encoder of the start is kept")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": None}, "neither"),
        ({"twins": np.zeros((6, 2, SIDE, SIDE, 3))}, "both"),
        ({"images": np.zeros((0, SIDE, SIDE, 3)), "labels": []}, "two or more"),
        ({"images": np.ones((6, SIDE, SIDE, 3))}, "copies of one image"),
        ({"labels": [0, 1]}, "as many as images"),
        ({"stop": "sometimes"}, "when_worse"),
    ],
)
def test_guard_refuses(change, words):
    images, labels = photos(6)
    arguments = {"images": images, "labels": labels} | change
    with pytest.raises(ValueError, match=words):
        keras_vit.CollapseGuard(encoder(), arguments.pop("images"), "best.keras", **arguments)
