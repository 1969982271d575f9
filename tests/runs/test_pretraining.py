"""`pretrain` and `distil`: what they write, what they keep, how they go on after a stop, and what they refuse."""

import json
import os
import signal

import keras
import numpy as np
import pytest
from conftest import ROOT, numpy, run_python, tiny_config

import keras_vit
from keras_vit import cli
from keras_vit.runs.pretraining.recipes import RECIPES, find_method, find_recipe

SIDE = 16
CONFIG = tiny_config(patch_size=8, layer_scale="both")


def stripes(count, seed=0):
    """Photos of three widths of stripes, with their classes, as arrays."""
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    places = np.arange(SIDE)[None] + draw.integers(0, 8, (count, 1))
    rows = np.sin(places * (1.5 + labels[:, None])) + draw.normal(0, 0.05, (count, SIDE))
    pixels = np.broadcast_to(rows[:, None, :, None], (count, SIDE, SIDE, 3))
    return np.clip(128 + 60 * pixels, 0, 255).astype("uint8"), labels


DATA = {name: stripes(count, seed) for seed, (name, count) in enumerate({"train": 48, "test": 60}.items())}
HOW = {"image_size": SIDE, "batch_size": 8, "steps": 6, "guard_every": 3, "guard_images": 60, "precision": "float32"}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A folder of weights that tell the stripes apart, with a mask token."""
    keras.utils.set_random_seed(0)
    encoder = keras_vit.build(CONFIG, include_top=False, input_shape=(SIDE, SIDE, 3))
    for weight in encoder.weights:
        if "layer_scale" in weight.path:
            weight.assign(weight * 0 + 0.5)
    encoder.mask_token = np.ones(CONFIG.hidden_size, "float32")
    return keras_vit.save_checkpoint(encoder, tmp_path_factory.mktemp("start") / "w", "huggingface_dinov2").parent


def quiet(line):
    """Prints nothing."""


def run(out, *, function=keras_vit.pretrain, data=DATA, print_fn=quiet, **options):
    return function(data, out, print_fn=print_fn, **HOW | options)


def features_of(folder):
    encoder = keras_vit.build(weights=folder, include_top=False, input_shape=(SIDE, SIDE, 3))
    return numpy(encoder(encoder.preprocessing(DATA["test"][0]))), encoder.mask_token


def test_naive_continuation_is_named_a_collapse_and_gives_back_the_start(start, tmp_path):
    lines = []
    naive = {"learning_rate": 3.0, "trainable": "all", "steps": 60}  # of a recipe that has 5e-5
    result = run(tmp_path / "run", weights=start, method="lejepa", print_fn=lines.append, **naive)
    assert result.facts["best_epoch"] == 0
    assert result.facts["steps"] < 60
    assert result.facts["start"] == result.facts["best"]
    assert result.facts["start"]["knn"] > 0.8
    assert any(line.startswith("collapse in epoch") for line in lines)
    assert any(line.startswith("stopped after epoch") for line in lines)
    np.testing.assert_array_equal(features_of(tmp_path / "run" / "encoder")[0], features_of(start)[0])


@pytest.mark.parametrize(
    "method", ["lejepa", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("dinov2", "mae", "simmim"))]
)
def test_run_from_nothing_writes_an_encoder_that_opens(method, tmp_path):
    out, told = tmp_path / "run", []
    result = run(out, model=CONFIG, method=method, data=(DATA["train"][0], DATA["train"][1]), on_epoch_end=told.append)
    names = {path.name for path in out.iterdir()}
    assert names >= {"encoder", "encoder.keras", "heads.npz", "config.json", "metrics.csv", "report.html", "README.md"}
    assert not names & {"checkpoints", "best.keras"}
    assert [record.step for record in told] == [3, 6]
    images = result.encoder.preprocessing(DATA["test"][0])
    saved = keras.models.load_model(out / "encoder.keras")
    np.testing.assert_array_equal(numpy(saved(images)), numpy(result.encoder(images)))
    np.testing.assert_allclose(features_of(out / "encoder")[0], numpy(saved(images)), atol=1e-6)
    assert json.loads((out / "result.json").read_text())["status"] == "finished"
    assert result.facts["measure"] == ("knn" if len(DATA["train"][0]) // 5 >= 3 else "twins")
    with pytest.raises(ValueError, match="a finished run"):
        run(out, model=CONFIG, method=method)


@pytest.mark.nightly
def test_masks_train_a_token_that_is_written(start, tmp_path, monkeypatch):
    """Which the recipe for many images has."""
    from keras_vit.runs.pretraining import run as module

    monkeypatch.setattr(module, "find_recipe", lambda *facts: find_recipe("dinov2", True, 10_000))
    run(tmp_path / "run", weights=start, learning_rate=1e-3, guard="none")
    token = features_of(tmp_path / "run" / "encoder")[1]
    assert not np.allclose(token, 1)
    np.testing.assert_allclose(token, 1, atol=0.05)


@pytest.mark.nightly
@pytest.mark.parametrize("trainable", ["lora:2", "last_blocks:1"])
def test_few_weights_learn(trainable, start, tmp_path):
    how = {"weights": start, "trainable": trainable, "learning_rate": 1e-2, "guard": "none", "anchor_weight": 0.0}
    result = run(tmp_path / "run", **how)
    before = keras_vit.build(weights=start, include_top=False, input_shape=(SIDE, SIDE, 3))
    moved = {
        new.path
        for new, old in zip(result.encoder.weights, before.weights, strict=True)
        if not np.array_equal(new, old)
    }
    assert moved
    allowed = ("kernel",) if trainable == "lora:2" else ("block_01", "encoder_norm", "layer")
    assert all(any(part in path for part in allowed) for path in moved), moved
    assert not any("embedding" in path for path in moved)
    np.testing.assert_allclose(
        features_of(tmp_path / "run" / "encoder")[0],
        numpy(result.encoder(result.encoder.preprocessing(DATA["test"][0]))),
        atol=1e-5,
    )


def killed(out, at, **options):
    """The same run, by processes that stop after some measurements."""

    def call(record):
        if record.epoch in at:
            at.remove(record.epoch)
            os.kill(os.getpid(), signal.SIGTERM)

    for _ in range(len(at) + 1):
        try:
            return run(out, on_epoch_end=call, **options)
        except SystemExit:
            continue
    raise AssertionError


def arrays_of(out):
    with np.load(out / "heads.npz") as heads:
        found = {name: heads[name] for name in heads.files}
    encoder = keras.models.load_model(out / "encoder.keras")
    rows = [line.rpartition(",")[0] for line in (out / "metrics.csv").read_text().splitlines()]
    return found | {weight.path: numpy(weight) for weight in encoder.weights}, rows


def compare(start, folder, method="dinov2"):
    how = {"weights": start, "method": method, "learning_rate": 1e-3, "steps": 9}
    run(folder / "whole", **how)
    killed(folder / "parts", [1, 2], **how)
    (whole, rows), (parts, others) = arrays_of(folder / "whole"), arrays_of(folder / "parts")
    assert rows == others
    assert whole.keys() == parts.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(parts[name], array, err_msg=name)


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["dinov2", "lejepa", "mae", "simmim"])
def test_run_that_was_stopped_twice_is_the_one_that_was_not(method, start, tmp_path):
    compare(start, tmp_path, method)


@pytest.mark.nightly
def test_a_stopped_run_goes_on_on_jax(start, tmp_path):
    code = (
        "import sys\nfrom test_pretraining import compare\nfrom pathlib import Path\ncompare(*map(Path, sys.argv[1:]))"
    )
    paths = [str(ROOT / "tests"), str(ROOT / "tests/runs")]
    run_python(f"import sys\nsys.path += {paths}\n{code}", start, tmp_path, backend="jax")


@pytest.mark.nightly
def test_unfinished_run_goes_on_with_its_own_options_only(start, tmp_path):
    with pytest.raises(SystemExit):
        run(tmp_path / "run", weights=start, on_epoch_end=lambda record: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(ValueError, match="learning_rate"):
        run(tmp_path / "run", weights=start, learning_rate=1e-3)
    (tmp_path / "run" / "best.keras").unlink()
    with pytest.raises(ValueError, match="not there"):
        run(tmp_path / "run", weights=start)


def test_student_with_weights_begins_with_fitted_projectors(start, tmp_path):
    teacher = keras_vit.build(weights=start, include_top=False, input_shape=(None, None, 3))
    models = {"teacher": teacher, "student": None, "weights": start}
    lines = []
    result = run(tmp_path / "run", function=keras_vit.distil, print_fn=lines.append, steps=2, **models)
    assert any("ridge regression" in " ".join(lines[i : i + 3]) for i in range(len(lines)))
    losses = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    loss = float(dict(zip(losses[0].split(","), losses[1].split(","), strict=True))["loss"])
    assert loss < 0.05, "the same model, which a ridge regression finds"
    assert result.encoder.output_shape == (None, CONFIG.hidden_size)
    student = keras_vit.build(
        CONFIG.replace(hidden_size=24, num_heads=3, mlp_dim=31, layer_scale="none"), include_top=False
    )
    training = keras_vit.FeatureDistillation(keras_vit.with_input_shape(student, (SIDE, SIDE, 3)), teacher)
    draw = np.random.default_rng(0).normal(size=(40, SIDE, SIDE, 3)).astype("float32") * 0.3
    training.fit_projectors([draw[:25], draw[25:]], ridge=0.1)
    found = training({"images": draw})
    x = numpy(training.student(draw)).astype("float64")
    y = numpy(found["teacher"][0]).astype("float64")
    centred = x - x.mean(0)
    shrunk = centred.T @ centred / 40 + 0.1 * np.mean(np.var(x, axis=0)) * np.eye(24)
    wanted = centred @ np.linalg.inv(shrunk) @ (centred.T @ (y - y.mean(0)) / 40) + y.mean(0)
    np.testing.assert_allclose(numpy(found["class"]), wanted, atol=1e-4)


def test_recipe_fits_the_number_of_images():
    assert find_method(True, 500) == find_method(False, 200_000) == "dinov2"
    assert find_method(False, 5_000) == "lejepa"
    few, more, many = (find_recipe("dinov2", True, images) for images in (9_999, 10_000, 2_000_000))
    assert few.trainable.startswith("lora")
    assert not few.mask_share
    assert more.mask_share == 0.5
    assert many.images == 100_000
    assert find_recipe("dinov2", False, 10**6).rate(1024) == 4e-3
    assert {(row.method, row.weights) for row in RECIPES} == {
        (method, weights) for method in ("dinov2", "lejepa", "mae", "simmim", "distil") for weights in (False, True)
    }


BAD = {
    "one image": ({"batch_size": 1}, "two images or more"),
    "fewer images than a batch": ({"batch_size": 64}, "48 training images"),
    "an image that patches do not tile": ({"image_size": 20}, "Nearest: 16"),
    "local crops that patches do not tile": ({"local_size": 9}, "local_size=9. Nearest: 8"),
    "one prototype": ({"prototypes": 1}, "prototypes"),
    "no held-out images": ({"data": {"train": DATA["train"]}}, "not trained on"),
    "labels that are not there": ({"data": {"train": (DATA["train"][0], np.zeros(48, int))}, "guard": "knn"}, "guard"),
    "copies of one image": (
        {"data": {name: (np.repeat(x[:1], len(x), 0), y) for name, (x, y) in DATA.items()}},
        "copies of one image",
    ),
    "both lengths": ({"epochs": 1}, "say the same thing"),
    "a model that is none": ({"model": "S/17"}, "S/16"),
    "unknown weights that learn": ({"trainable": "lora"}, "lora:r"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_words_before_the_first_step(case, tmp_path):
    change, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        run(tmp_path / "run", **{"model": CONFIG, "method": "dinov2"} | change)
    assert not list(tmp_path.glob("run/*.csv"))


@pytest.mark.nightly
def test_rate_that_diverges_keeps_the_best_encoder(start, tmp_path):
    with pytest.raises(keras_vit.TrainingDivergedError, match="best encoder"):
        run(tmp_path / "run", weights=start, method="lejepa", learning_rate=1e30, steps=60, stop="never")
    kept = keras.models.load_model(tmp_path / "run" / "best.keras")
    assert all(np.isfinite(weight).all() for weight in kept.get_weights())


def test_data_without_labels_and_labels_that_cannot_be_read_do_no_harm(tmp_path):
    from PIL import Image

    (tmp_path / "photos").mkdir()
    for number, pixels in enumerate(stripes(40)[0]):
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    result = run(tmp_path / "run", data=tmp_path / "photos", model=CONFIG, method="lejepa", steps=3)
    assert result.facts["measure"] == "twins"
    with pytest.raises(ValueError, match="`guard='knn'` needs labels"):
        run(tmp_path / "other", data=tmp_path / "photos", model=CONFIG, guard="knn")
    with pytest.raises(TypeError, match="learning_rate"):
        run(tmp_path / "other", learning_rat=1)
    with pytest.raises(ValueError, match="teacher and student"):
        run(tmp_path / "other", function=keras_vit.distil, student="Ti/16")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("pretrain --data digits --model S/16 --batch-size 1", "Received: --batch-size 1"),
        ("pretrain --data digits --model S/16 --prototypes 1", "`--prototypes`"),
        ("pretrain --data digits --model S/16 --image-size 100", "`--image-size` must be a multiple of 16"),
        ("pretrain --data digits", "Received: neither `--model` nor `--weights`"),
        ("distil --data digits --student S/16", "no `--teacher`"),
    ],
)
def test_commands_refuse_in_their_own_words(words, told, tmp_path, capsys):
    assert cli.main([*words.split(), "--out", str(tmp_path / "run")]) == 1
    assert told in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("words", ["pretrain --model S/16", "distil --teacher START --weights START --guard none"])
def test_commands_train(words, start, tmp_path, capsys):
    small = "--data digits --image-size 16 --batch-size 4 --steps 1"
    given = words.replace("START", str(start)).split()
    assert cli.main([*given, *small.split(), "--out", str(tmp_path / "run")]) == 0
    assert "recipe" in capsys.readouterr().out
    assert (tmp_path / "run" / "encoder" / "model.safetensors").exists()
    assert cli.main([*given, *small.split(), "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("run has finished before, and nothing was changed")
    assert "Results" in lines
    assert cli.main([*given, *small.split(), "--steps", "2", "--out", str(tmp_path / "run")]) == 1
    assert "--steps: 1 before, 2 now" in capsys.readouterr().err
