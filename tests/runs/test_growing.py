"""Runs whose images grow: what each epoch sees, by which positions, and that a run that was stopped goes on."""

import csv
import dataclasses
import functools
import json
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import scipy.ndimage
from conftest import images, make_tiny, numpy, randomise, tiny_config
from mirrored import engine
from run_files import assert_same_run
from stopped_runs import Died, Dying

import keras_vit
import keras_vit.runs.finetune as module
from keras_vit.config.progressive_resizing import ResolutionStage
from keras_vit.runs.finetune import _train_set, finetune, taking_any_size
from keras_vit.runs.options import FinetuneOptions
from keras_vit.runs.preparation import prepare

START, FINAL, EPOCHS = (8, 12), (16, 24), 3
SIZES = [(8, 12), (12, 16), (16, 24)]  # of the epochs: halfway are 12 and 18 pixels, rounded down to patches of 4
STEPS = 6  # in each epoch: 60 images in batches of 10


def arrays():
    """60 grey images of 20 x 20 in 3 classes."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    pixels = (rng.integers(0, 120, (60, 20, 20, 1)) + 45 * labels[:, None, None, None]).astype("uint8")
    return {name: (pixels, labels) for name in ("train", "validation", "test")}


def options(**changes):
    given = {"model": tiny_config(num_layers=1, dropout_rate=0.1), "image_size": FINAL, "start_image_size": START}
    return given | {"batch_size": 10, "epochs": EPOCHS, "augmentation": "inception"} | changes


def run(out, **changes):
    said = []
    return finetune(arrays(), out, print_fn=said.append, **options(**changes)), said


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(tmp_path_factory.mktemp("grown") / "run", ema_momentum=0.9, patch_dropout_rate=0.5, checkpoint_every=2)


# What an epoch sees


def test_batches_are_those_of_the_size_of_their_epoch():
    found = prepare(arrays(), FinetuneOptions(**options()), lambda line: None)
    assert found.stages == tuple(ResolutionStage(epoch, size) for epoch, size in enumerate(SIZES, start=1))
    grown = _train_set(found, 0)
    assert grown.start_step == 0
    for step, (pixels, labels) in enumerate(grown.take(EPOCHS * STEPS + 2)):
        size = SIZES[min(step // STEPS, EPOCHS - 1)]
        expected = next(iter(of_one_size(found, size, step)))
        np.testing.assert_array_equal(pixels, expected[0])
        np.testing.assert_array_equal(labels, expected[1])
        assert pixels.shape == (10, *size, 1)


@pytest.mark.parametrize("start_step", [1, STEPS, STEPS + 2, 2 * STEPS + 1, 3 * STEPS])
def test_batches_go_on_at_any_step(start_step):
    found = prepare(arrays(), FinetuneOptions(**options()), lambda line: None)
    later, all_of_them = _train_set(found, start_step), _train_set(found, 0)
    assert (later.start_step, later.element_spec) == (start_step, all_of_them.element_spec)
    for one, other in zip(later.take(8), all_of_them.skip(start_step).take(8), strict=True):
        np.testing.assert_array_equal(one[0], other[0])


def of_one_size(found, size, step):
    return keras_vit.load_dataset(
        *(found.source, "train"),
        **{"batch_size": 10, "training": True, "augmentation": "inception", "start_step": step},
        preprocessing=dataclasses.replace(found.model.preprocessing, image_size=size),
    )


def test_model_is_trained_on_growing_images_and_validated_on_its_own(tmp_path, monkeypatch):
    """Each step runs in Python here, so that what reaches the model is seen."""
    seen, arguments, call = [], keras_vit.Plan.compile_arguments, keras_vit.VisionTransformer.call

    def watched(model, inputs, training=None, mask=None):
        seen.append((bool(training), tuple(inputs.shape[1:3])))
        return call(model, inputs, training=training, mask=mask)

    monkeypatch.setattr(
        keras_vit.Plan, "compile_arguments", lambda plan, labels: arguments(plan, labels) | {"run_eagerly": True}
    )
    monkeypatch.setattr(keras_vit.VisionTransformer, "call", watched)
    result, said = run(tmp_path / "run")
    trained = [size for training, size in seen if training]
    assert trained == [size for size in SIZES for _ in range(STEPS)]
    assert {size for training, size in seen if not training} <= {FINAL, None, (None, None)}
    assert "images grow: 8x12 from epoch 1, 12x16 from epoch 2, 16x24 from epoch 3" in " ".join(map(str.strip, said))
    assert result.model.input_shape == (None, *FINAL, 1)


# Positions


def zoomed(table, old, new):
    """A table `(1, 1 + hw, D)` resized by scipy, as the official code does it."""
    prefix, patches = table[:, :1], table[0, 1:].reshape(*old, -1)
    patches = scipy.ndimage.zoom(patches, (new[0] / old[0], new[1] / old[1], 1), order=1)
    return np.concatenate([prefix, patches.reshape(1, new[0] * new[1], -1)], axis=1)


def test_positions_of_small_images_are_those_of_the_model_resized():
    """Logits are those of a small model with scipy's table, and the table learns by the transpose of that resize."""
    old, new, pixels = (6, 5), (4, 3), images(3, 16, 12, 3)
    model = randomise(make_tiny(input_shape=(24, 20, 3)))
    small = make_tiny(input_shape=(16, 12, 3))
    name = next(i for i, weight in enumerate(model.weights) if "position_embedding" in weight.path)
    values = model.get_weights()
    small.set_weights([zoomed(v, old, new) if i == name else v for i, v in enumerate(values)])
    with taking_any_size(model):
        logits, gradient = logits_and_gradient(model, pixels, name)
    expected, theirs = logits_and_gradient(small, pixels, name)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    rows, columns = (scipy.ndimage.zoom(np.eye(n), (m / n, 1), order=1) for n, m in zip(old, new, strict=True))
    patches = np.einsum("ih,jw,ijd->hwd", rows, columns, theirs[0, 1:].reshape(*new, -1))
    np.testing.assert_allclose(gradient[0, 1:], patches.reshape(30, -1), atol=1e-5)
    np.testing.assert_allclose(gradient[:, :1], theirs[:, :1], atol=1e-5)
    assert abs(patches).max() > 0.01


def logits_and_gradient(model, pixels, name):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        logits = model(pixels, training=True)
        loss = tf.reduce_sum(logits**2)
    return numpy(logits), numpy(tape.gradient(loss, model.weights[name].value))


def test_positions_keep_their_table_and_the_model_its_size_after_growing(undisturbed):
    result, _ = undisturbed
    for name in ("best.keras", "last.keras"):
        model = keras.models.load_model(result.out / name)
        assert model.get_layer("position_embedding").table.shape == (1, 1 + 4 * 6, 12)
        assert model.input_shape == (None, *FINAL, 1)
    shapes = {tuple(v.shape) for v in model.optimizer.variables if "position_embedding" in v.path}
    assert shapes == {(1, 1 + 4 * 6, 12)}


def test_model_takes_other_sizes_inside_alone():
    model = make_tiny(input_shape=(24, 20, 3))
    with taking_any_size(model):
        assert model(images(1, 8, 12, 3)).shape == (1, model.output_shape[-1])
    with pytest.raises(ValueError, match="images must be"):
        model(images(1, 8, 12, 3))


HYBRID = {"patch_size": 1, "resnet_stages": (1,), "resnet_width_factor": 0.5}
KINDS = [
    {"position_embedding": "relative", "pooling": "map", "rematerialize": True, "stochastic_depth_rate": 0.2},
    {"position_embedding": "learned2d", "position_injection": "blocks", "attention": "axial", "pooling": "gap"},
    {"position_embedding": "sincos2d", "pooling": "gap", **HYBRID},
    {"resnet": keras_vit.ResNetConfig(stages=(1,), width_factor=0.5)},
]


@pytest.mark.parametrize(
    "fields", [KINDS[0], *(pytest.param(each, marks=pytest.mark.nightly) for each in KINDS[1:3]), KINDS[3]], ids=str
)
def test_images_grow_for_models_of_every_kind(fields, tmp_path):
    config = fields.get("resnet") or tiny_config(num_layers=1, **fields)
    result, _ = run(tmp_path / "run", model=config, epochs=2)
    assert np.isfinite(result.evaluation.loss)
    assert stored_config(result)["image_sizes"] == {"1": [*START], "2": [*FINAL]}


def stored_config(result):
    return json.loads((result.out / "config.json").read_text())


# A run that was stopped


@pytest.mark.parametrize("step", [pytest.param(STEPS + 3, marks=pytest.mark.nightly), 2 * STEPS])
def test_run_killed_as_its_images_grow_goes_on_to_the_same_numbers(undisturbed, step, tmp_path, monkeypatch):
    given = {"ema_momentum": 0.9, "patch_dropout_rate": 0.5, "checkpoint_every": 2}
    monkeypatch.setattr(module, "StepFacts", Dying)
    monkeypatch.setattr(Dying, "at", step)
    with pytest.raises(Died):
        run(tmp_path / "run", **given)
    monkeypatch.setattr(Dying, "at", None)
    with pytest.raises(ValueError, match=r"image_sizes.1: \[8, 12\] before, \[12, 12\] now"):
        run(tmp_path / "run", **given, start_image_size=(12, 12))
    with pytest.raises(ValueError, match=r"options.patch_dropout_rate: 0.5 before, 0.25 now"):
        run(tmp_path / "run", **given | {"patch_dropout_rate": 0.25})
    _, said = run(tmp_path / "run", **given, resume="must")
    assert any(line.startswith(f"goes on from step {(step - 1) // 2 * 2}, ") for line in said)
    assert_same_run(tmp_path / "run", undisturbed[0].out)


# Patches that are left out


def test_patches_are_left_out_in_training_alone(undisturbed):
    result, _ = undisturbed
    assert result.model.config.patch_dropout_rate == stored_config(result)["model"]["patch_dropout_rate"] == 0.5
    assert ["patch_dropout_rate", 0.5] in stored_config(result)["recipe"]["model_fields"]
    config = dataclasses.replace(result.model.config, patch_dropout_rate=0.0)
    plain = keras_vit.build(config, input_shape=(*FINAL, 1), classes=3)
    plain.set_weights(result.model.get_weights())
    pixels = images(4, *FINAL, 1)
    np.testing.assert_array_equal(plain.predict(pixels, verbose=0), result.model.predict(pixels, verbose=0))
    trained = [numpy(result.model(pixels, training=True)) for _ in range(2)]
    assert abs(trained[0] - trained[1]).max() > 1e-4


# What is refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start_image_size": (10, 12)}, r"`start_image_size`.*Nearest: \(8, 12\)"),
        ({"epochs": 1}, "two at least"),
        ({"image_size": None, "model": make_tiny, "start_image_size": 24}, "`start_image_size`.*below"),
        ({"model": tiny_config(merged_tokens=1)}, "merge tokens"),
        ({"model": keras_vit.ResNetConfig(stages=(1,)), "patch_dropout_rate": 0.5}, "ResNet.*=0.5"),
        ({"model": make_tiny, "image_size": None, "patch_dropout_rate": 0.5}, "patch_dropout_rate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_nonsense_is_refused_before_anything_is_written(changes, words, tmp_path):
    if changes.get("model") is make_tiny:
        changes = changes | {"model": make_tiny(input_shape=(16, 24, 1), classes=3)}
    with pytest.raises(ValueError, match=f"(?s){words}"):
        run(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_recipe_may_say_where_images_begin(tmp_path):
    recipe = dataclasses.replace(keras_vit.find_recipe("small"), start_image_size=8)
    result, _ = run(tmp_path / "run", recipe=recipe, start_image_size=None, epochs=2)
    assert stored_config(result)["image_sizes"] == {"1": [8, 8], "2": [*FINAL]}
    assert "8 x 8 from epoch 1, 16 x 24 from epoch 2" in (result.out / "README.md").read_text()
    with pytest.raises(ValueError, match="`start_image_size` must be below"):
        dataclasses.replace(recipe, image_size=8)


# The same elsewhere


@functools.cache
def trained_here():
    """Losses and accuracies of a run with growing images, from weights that are the same everywhere."""
    model = randomise(make_tiny(input_shape=(*FINAL, 1), classes=3))
    with tempfile.TemporaryDirectory() as folder:
        result, _ = run(Path(folder) / "run", model=model, image_size=None, learning_rate=0.01)
        with open(result.out / "metrics.csv", newline="") as file:
            return [[float(row[name]) for name in ("loss", "val_loss", "val_accuracy")] for row in csv.DictReader(file)]


def trained_on_two():
    with engine(2).scope():
        return trained_here()


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="compares JAX with this process' backend")
@pytest.mark.elsewhere("jax", "trained_here")
def test_jax_trains_on_growing_images_to_the_same_numbers(found):
    np.testing.assert_allclose(found, trained_here(), rtol=1e-3)


@pytest.mark.elsewhere("two devices", "trained_on_two")
def test_two_devices_train_on_growing_images_to_the_same_numbers(found):
    np.testing.assert_allclose(found, trained_here(), rtol=1e-3)
