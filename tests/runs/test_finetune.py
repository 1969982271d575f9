"""`finetune` from data to report: what it writes, what it refuses before the first step, what a failure leaves."""

import csv
import json
import re
import sys

import keras
import numpy as np
import pytest
from conftest import GOLDEN, images, tiny_config
from photos import BAD, CLASSES, ODD, add_odd_files, make_photos

import keras_vit
from keras_vit.runs.finetune import finetune
from keras_vit.training.callbacks import TrainingDivergedError

FILES = {
    *("config.json", "result.json", "metrics.csv", "tensorboard", "curves.png", "report.html"),
    *("confusion_matrix.png", "confusion_matrix.csv", "best.keras", "last.keras", "README.md"),
}

SMALL = {"model": tiny_config(num_layers=1), "image_size": 24, "batch_size": 8, "epochs": 3}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_photos(tmp_path_factory.mktemp("photos") / "set")


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory):
    """A run of three epochs, and what it said."""
    said = []
    out = tmp_path_factory.mktemp("finished") / "run"
    return finetune(photos, out, print_fn=said.append, **SMALL), said


def read(out, name):
    return json.loads((out / name).read_text(), parse_constant=pytest.fail)


def quiet(_):
    """Nobody listens."""


def test_run_has_every_file_and_names_them(finished):
    out = finished[0].out
    assert {path.name for path in out.iterdir()} == FILES
    assert set(read(out, "result.json")["files"]) == FILES


def test_result_is_that_of_the_best_model_read_back(finished, photos):
    result, _ = finished
    facts = read(result.out, "result.json")
    assert (facts["classes"], facts["split"]) == (3, "test")
    assert facts["seconds"] > 0
    model = keras.models.load_model(result.out / "best.keras", compile=False)
    again = keras_vit.evaluation.evaluate(model, photos, seed=0)
    assert facts["test_accuracy"] == result.test_accuracy == again.accuracy
    assert (again.confusion == result.evaluation.confusion).all()


def test_result_is_shown_in_one_line(finished):
    result, _ = finished
    ends = f"seconds={result.seconds:.1f}, out={str(result.out)!r})"
    assert repr(result) == f"Result(test_accuracy={result.test_accuracy:.4f}, split='test', classes=3, {ends}"


def test_metrics_have_a_row_for_each_epoch_and_the_best_is_the_best(finished):
    with open(finished[0].out / "metrics.csv", newline="") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert rows[-1]["step"] == 3 * 48 // 8  # 48 of 60 photos are trained on
    best = max(rows, key=lambda row: (row["val_accuracy"], -row["val_loss"]))
    assert read(finished[0].out, "result.json")["best_epoch"] == best["epoch"]
    assert all(row["gradient_norm"] > 0 for row in rows)


def test_configuration_tells_all_that_decides_the_run(finished):
    config = read(finished[0].out, "config.json")
    assert config["data"]["class_names"] == list(CLASSES)
    assert config["data"]["sizes"] == {"train": 48, "validation": 6, "test": 6}
    assert keras_vit.ViTConfig(**{key: value for key, value in config["model"].items() if key != "name"}) is not None
    assert config["plan"]["steps"] == 18
    assert (config["seed"], config["precision"], config["recipe"]["name"]) == (0, "float32", "small")
    assert {"keras", "keras_vit", "numpy", "tensorflow"} <= config["versions"].keys()


def test_memory_is_told_before_the_first_epoch(finished):
    said = finished[1]
    memory = next(number for number, line in enumerate(said) if re.match(r"memory    about \d.* GB; ", line))
    first = next(number for number, line in enumerate(said) if line.startswith("epoch 1/3"))
    assert memory < first
    assert ["test", "accuracy"] in [line.split()[:2] for line in said[said.index("Results") :]]


def test_same_seed_gives_the_same_run_and_stop_run_ends_it_with_all_files(finished, photos, tmp_path, monkeypatch):
    told, said = [], []

    def stop(record):
        told.append(record)
        if record.epoch == 2:
            raise keras_vit.StopTraining("good enough")

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("keras_vit.evaluation.evaluate", interrupt)  # between the stop and the report
        with pytest.raises(KeyboardInterrupt):
            finetune(photos, tmp_path / "run", print_fn=quiet, on_epoch_end=stop, **SMALL)
    result = finetune(photos, tmp_path / "run", print_fn=said.append, **SMALL)
    rows = _rows(result.out)
    assert [row["loss"] for row in rows] == [row["loss"] for row in _rows(finished[0].out)[:2]]
    assert [(each.epoch, each.epochs, each.step) for each in told] == [(1, 3, 6), (2, 3, 12)]
    assert told[1].metrics == {name: float(value) for name, value in rows[1].items() if name in told[1].metrics}
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "gradient_norm"} == set(told[1].metrics)
    assert told[0].seconds < told[1].seconds < 60
    assert {path.name for path in result.out.iterdir()} == FILES
    stopped = "after epoch 2 of 3: good enough"
    assert (result.facts["stopped"], result.facts["epochs"]) == (stopped, 2)
    assert f"stopped {stopped}" in said
    assert all("good enough" in (result.out / name).read_text() for name in ("report.html", "README.md"))


def _rows(out):
    with open(out / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_folder_with_bad_files_trains_on_the_rest_and_names_them(tmp_path):
    folder = add_odd_files(make_photos(tmp_path / "photos", per_class=12))
    (folder / CLASSES[0] / "x\udcff.jpg").write_bytes(b"no photo")  # a name that is no text
    said = []
    with pytest.warns(UserWarning, match="3 bad images"):
        result = finetune(folder, tmp_path / "run", print_fn=said.append, **SMALL | {"epochs": 1})
    kinds = "3 files left out: 1 a file name that is not UTF-8, 1 not an image: text, 1 truncated JPEG"
    assert kinds in " ".join(map(str.strip, said))
    assert f"files left out: {(tmp_path / 'run' / 'bad_images.txt').absolute()}" in said
    lines = (result.out / "bad_images.txt").read_text().splitlines()
    (no_text,) = (line for line in lines if r"x\udcff.jpg" in line)
    lines.remove(no_text)
    assert sorted(lines) == sorted(f"{folder / name}\t{reason}" for name, reason in BAD.items())
    config = read(result.out, "config.json")
    assert sum(config["data"]["sizes"].values()) == 3 * 12 + len(ODD)
    report = re.sub("<[^>]+>|\\n", "", (result.out / "report.html").read_text())  # an ending has a tag of its own
    assert all(name in report for name in (*BAD, r"x\udcff.jpg"))


def test_photo_that_vanishes_during_the_training_is_named_and_may_come_back(tmp_path):
    folder, gone = make_photos(tmp_path / "photos", per_class=8), []

    def say(line):
        if line.startswith("recipe"):  # after the look, before the first step
            path = sorted((folder / CLASSES[0]).iterdir())
            gone.extend((each, each.read_bytes()) for each in path)
            for each in path:
                each.unlink()

    with pytest.raises(ValueError, match=rf"can no longer be read: {folder}/{CLASSES[0]}/\d+.jpg: no such file"):
        finetune(folder, tmp_path / "run", print_fn=say, **SMALL | {"epochs": 1})
    for path, data in gone:
        path.write_bytes(data)
    assert finetune(folder, tmp_path / "run", print_fn=quiet, **SMALL | {"epochs": 1}).facts["epochs"] == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "no class folder"),
        (lambda path: make_photos(path, 3, classes=("disc",)), "1 class"),
        (lambda path: None, "no such|there is no"),
    ],
    ids=["empty", "one class", "missing"],
)
def test_data_without_classes_is_refused_and_nothing_is_written(tmp_path, make, words):
    make(tmp_path / "photos")
    with pytest.raises((ValueError, OSError), match=words):
        finetune(str(tmp_path / "photos"), tmp_path / "run", print_fn=quiet)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"recipe": "digit"}, "digits"),  # as every rule of the record of options
        ({"image_size": 25}, r"`image_size`(?s:.*)image_size=25, .* Nearest: 24\."),
        ({"image_size": (224, 225), "model": "ViTB16"}, r"image_size=\(224, 225\), .* Nearest: \(224, 224\)"),
        ({"model": tiny_config(), "image_size": 30}, "image_size=30"),
        ({"model": tiny_config(), "trainable": "last_blocks:3"}, "`trainable`(?s:.*)2 blocks"),
        ({"model": tiny_config(), "lora_rank": 13}, "`lora_rank`"),
        ({"model": "Ti/16", "weights": "imagnet21k"}, "published weights"),
        ({"model": "Ti/16", "weights": "gone.npz"}, "nothing at that path"),
        ({"model": tiny_config(), "weights": "imagenet21k"}, "none of them"),
        ({"weights": "imagenet21k"}, "several models have weights of that name"),
        ({"on_epoch_end": "print"}, "`on_epoch_end` must be callable"),
    ],
)
def test_wrong_arguments_are_refused_before_the_data_is_opened(tmp_path, arguments, words):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=words):
        finetune("no such data", tmp_path / "run", print_fn=quiet, **arguments)
    assert not (tmp_path / "run").exists()


def test_encoder_by_name_takes_its_published_weights(tmp_path):
    """They are accepted, so the error is about the data, which are opened next."""
    encoder = {"model": "dinov2/S14", "weights": "dinov2", "image_size": 224}
    with pytest.raises(ValueError, match="no such data"):
        finetune("no such data", tmp_path / "run", print_fn=quiet, **encoder)


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_run_without_the_extra_is_refused_before_it_starts(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}(?s:.*)\.\[train\]"):
        finetune("digits", tmp_path / "run", print_fn=quiet)
    assert not (tmp_path / "run").exists()


def test_place_of_an_earlier_run_or_a_file_is_refused_before_the_data_is_opened(finished):
    with pytest.raises(ValueError, match=r"a finished run(?s:.*)--epochs: 3 before"):
        finetune("no such data", finished[0].out, print_fn=quiet)
    with pytest.raises(ValueError, match="`out`"):
        finetune("no such data", finished[0].out / "result.json" / "run", print_fn=quiet)


def test_batch_that_cannot_fit_is_refused_with_what_would(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_vit.training.memory.available_memory", lambda: 400_000_000)
    with pytest.raises(ValueError, match=r"accumulation_steps=\d+"):
        finetune("digits", tmp_path / "run", batch_size=1024, steps=1, print_fn=quiet)
    assert not (tmp_path / "run").exists()


SPOILED = {"model": tiny_config(num_layers=1), "image_size": 16, "batch_size": 10, "epochs": 4}


def spoiled():
    """Arrays of which `spoil_step` makes one batch diverge."""
    pixels = np.random.default_rng(0).uniform(2, 255, (60, 16, 16, 1)).astype("float32")
    return {name: (pixels, np.arange(60) % 3) for name in ("train", "validation", "test")}


def spoil_step(monkeypatch, number):
    """Makes the batch of one step, counted from 0, not a number."""
    train_step = keras_vit.VisionTransformer.train_step

    def spoil(self, data):
        import tensorflow as tf

        x, y = data
        x = tf.where(tf.cast(self.optimizer.iterations, "int32") == number, np.nan, x)
        return train_step(self, (x, y))

    monkeypatch.setattr(keras_vit.VisionTransformer, "train_step", spoil)


def test_run_that_diverges_keeps_its_figures_and_the_last_finite_model(tmp_path, monkeypatch):
    said = []
    spoil_step(monkeypatch, 9)  # in the second epoch
    out = tmp_path / "run"
    with pytest.raises(TrainingDivergedError, match=r"last\.keras, .*best\.keras"):
        finetune(spoiled(), out, print_fn=said.append, **SPOILED)
    assert [row["epoch"] for row in _rows(out)] == ["1"]
    assert read(out, "failure.json")["status"] == "failed"
    assert said[-1] == f"failed; {out} has metrics.csv, curves.png, best.keras, last.keras and failure.json"
    assert (out / "curves.png").exists()
    assert not (out / "result.json").exists()
    for name in ("last.keras", "best.keras"):
        model = keras.models.load_model(out / name, compile=False)
        assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_run_that_diverges_in_its_first_epoch_says_which_files_there_are(tmp_path, monkeypatch):
    said = []
    spoil_step(monkeypatch, 3)
    out = tmp_path / "run"
    with pytest.raises(TrainingDivergedError, match=r"last\.keras, which"):
        finetune(spoiled(), out, print_fn=said.append, **SPOILED)
    assert said[-1] == f"failed; {out} has last.keras and failure.json"
    assert {path.name for path in out.iterdir()} == {"config.json", "last.keras", "failure.json", "checkpoints"}


def test_ctrl_c_keeps_the_last_model(tmp_path):
    def say(line):
        if line.startswith("epoch 2"):
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        finetune(spoiled(), out, print_fn=say, **SPOILED)
    assert read(out, "failure.json") == {
        "status": "stopped",
        "error": "KeyboardInterrupt: ",
        "epochs": 2,
        "last_model": "last.keras",
        "best_model": "best.keras",
    }
    assert keras.models.load_model(out / "last.keras", compile=False).output_shape == (None, 3)


def test_given_model_is_trained_in_place_with_head_lora_average_and_accumulation(tmp_path):
    config = tiny_config(num_layers=1)
    model = keras_vit.build(config, input_shape=(16, 16, 1), classes=3)
    recipe = keras_vit.config.recipes.find_recipe("small")
    before = {weight.path: np.array(weight) for weight in model.weights}
    result = finetune(
        *(spoiled(), tmp_path / "run"),
        **{"model": model, "recipe": recipe, "batch_size": 12, "accumulation_steps": 3, "steps": 6, "print_fn": quiet},
        **{"lora_rank": 2, "ema_momentum": 0.5, "augmentation": "big_vision-vit_s16", "precision": "mixed_bfloat16"},
    )
    kernel = model.get_layer("block_00").attention.query
    assert (np.array(kernel._kernel) == before[kernel._kernel.path]).all()  # LoRA leaves it
    assert read(result.out, "result.json")["averaged"] == ["best.keras"]
    assert np.any(np.array(model.get_layer("head").kernel))  # the head was zero
    assert read(result.out, "config.json")["plan"]["accumulation_steps"] == 3
    assert read(result.out, "result.json")["trainable_parameters"] < model.count_params()
    inputs = images(2, 16, 16, 1)
    assert keras.config.dtype_policy().name == "float32"
    assert np.isfinite(np.array(result.model(inputs))).all()


def test_weights_are_adapted_and_trained_by_the_fine_tuning_recipe(tmp_path):
    config = keras_vit.ViTConfig(patch_size=8, hidden_size=48, num_layers=3, num_heads=4, mlp_dim=96)
    pixels = np.random.default_rng(0).integers(0, 256, (60, 50, 40, 3), "uint8")
    data = {name: (pixels, np.arange(60) % 3) for name in ("train", "test")}
    result = finetune(
        *(data, tmp_path / "run"),
        **{"model": config, "weights": str(GOLDEN / "token.npz"), "image_size": 48, "print_fn": quiet},
        **{"steps": 2, "trainable": "head", "recipe": None},
    )
    adapted = keras_vit.build(config, weights=str(GOLDEN / "token.npz"), input_shape=(48, 48, 3), classes=3)
    assert read(result.out, "config.json")["recipe"]["name"] == "augreg-finetune"
    assert read(result.out, "config.json")["weights_report"] == list(adapted.load_report)
    for trained, loaded in zip(result.model.weights, adapted.weights, strict=True):
        same = bool((np.array(trained) == np.array(loaded)).all())
        assert same == ("head/" not in trained.path), trained.path
    assert read(result.out, "result.json")["best_validation_accuracy"] is None  # there is no such set


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_digits_are_learned_to_97_percent_in_five_minutes(tmp_path, seed):
    result = finetune("digits", tmp_path / "run", seed=seed, print_fn=quiet)
    assert result.test_accuracy >= 0.97
    assert result.seconds < 300


def test_folder_of_weights_alone_tells_the_model_which_is_trained_and_goes_on(photos, tmp_path):
    said, folder = [], GOLDEN / "encoders" / "timm_dinov3"
    asked = {"weights": folder, "image_size": (16, 24), "batch_size": 8, "steps": 12, "learning_rate": 0.01}

    def stop(line):
        if line.startswith("epoch 2/2"):
            raise RuntimeError(line)

    with pytest.raises(RuntimeError):
        finetune(photos, tmp_path / "run", print_fn=stop, **asked)
    result = finetune(photos, tmp_path / "run", print_fn=said.append, **asked)
    assert any(line.startswith("goes on from step ") for line in said)
    told = keras_vit.build(weights=folder, input_shape=(16, 24, 3), classes=3)
    best = keras.models.load_model(result.out / "best.keras", compile=False)
    assert (best.config, best.preprocessing) == (told.config, told.preprocessing)
    assert best.config.rotary == "axial"
    learnt, before = (model.get_weights() for model in (best, told))
    assert all(np.abs(a - b).max() > 0 for a, b in zip(learnt, before, strict=True) if np.ptp(b))
    config = read(result.out, "config.json")
    assert (config["weights_from"], config["weights_report"]) == (
        {"kind": "file", "name": folder.name, "family": "DINOv3", "papers": ["2508.10104"]},
        list(told.load_report),
    )
    assert config["arguments"]["model"] is None
    card = (result.out / "README.md").read_text()
    assert f"trained it from the weights {folder.name}." in card
    assert f"{told.count_params():,} parameters" in card
