"""A run of depth from photos and depth maps to its report, resumption and files; its figures by NumPy alone."""

import csv
import json

import keras
import numpy as np
import pytest
from conftest import QUICK_XLA, assert_one_line, numpy, tiny_config
from run_files import finished as ended
from run_files import start_processes
from shape_tables import write_depths
from stopped_runs import Died, Dying

import keras_vit
import keras_vit.runs.finetune as module
from keras_vit.analysis.overlay import depths_side_by_side
from keras_vit.dense import DepthMetric, SigLoss, SiLogLoss, depth_metrics, gradient_loss, resize, sig_loss
from keras_vit.pages.html import picture_uri
from keras_vit.tasks import find_task, task_of_model
from keras_vit.tasks.depth import Depth

NIGHTLY = pytest.mark.nightly
DATA = {"depth_scale": 0.001, "depth_range": (0.5, 9.0)}
OPTIONS = {"image_size": (40, 48), "batch_size": 8, "epochs": 3, "learning_rate": 0.02, "checkpoint_every": 2, **DATA}


def run_of(folder, out, **changes):
    printed = []
    options = OPTIONS | {"model": tiny_config(num_layers=2)} | changes
    return module.finetune(folder, out, task="depth", print_fn=printed.append, **options), printed


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of the data, result and lines of a run."""
    folder = tmp_path_factory.mktemp("set")
    data = write_depths(folder / "walls")
    return data, *run_of(data, folder / "run")


def measured(target, answer):
    """AbsRel, RMSE, delta1 and SILog of one photo, in float64."""
    valid = (target > 0.5) & (target < 9)
    true, found = target[valid].astype("float64"), np.clip(answer[valid].astype("float64"), 0.5, 9)
    logs = np.log(found / true)
    return {
        "abs_rel": np.mean(np.abs(found - true) / true),
        "rmse": np.sqrt(np.mean((found - true) ** 2)),
        "delta1": np.mean(np.maximum(found / true, true / found) < 1.25),
        "silog": 100 * np.std(logs),
    }


def test_figures_of_a_run_are_those_of_numpy_at_the_maps_own_sizes(finished):
    data, result, _ = finished
    facts = json.loads((result.out / "result.json").read_text())
    split, rows, losses = keras_vit.open_source(data, targets=result.task.targets()).split("test"), [], []
    for number in range(split.size):
        target = split.target(number)
        depths = numpy(result.model(result.model.preprocessing(split.pixels(number))[None]))
        answer = numpy(resize(depths[..., None], target.shape))[0, ..., 0]
        rows.append(measured(target, answer))
        ratios = np.log(answer[target > 0].astype("float64") + 1e-3) - np.log(target[target > 0] + 1e-3)
        losses.append(np.sqrt(np.var(ratios, ddof=1) + 0.15 * np.mean(ratios) ** 2))
    wanted = {name: np.mean([row[name] for row in rows]) for name in rows[0]}
    found = facts | {"abs_rel": facts["test_abs_rel"]}
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-3)
    assert facts["test_loss"] == pytest.approx(np.mean(losses), rel=1e-3)
    assert (next(iter(facts)), facts["classes"]) == ("test_abs_rel", 1)
    worst = [answer.abs_rel for answer in result.evaluation.worst]
    assert worst == sorted((row["abs_rel"] for row in rows), reverse=True) or worst == pytest.approx(
        sorted((row["abs_rel"] for row in rows), reverse=True), rel=1e-3
    )


def test_run_learns_with_a_frozen_encoder_and_the_best_epoch_is_by_relative_error(finished):
    _, result, printed = finished
    rows = np.genfromtxt(result.out / "metrics.csv", delimiter=",", names=True)
    facts = json.loads((result.out / "result.json").read_text())
    assert facts["best_validation_abs_rel"] == rows["val_abs_rel"].min()
    assert rows["loss"][-1] < 0.9 * rows["loss"][0]
    assert any("a depth of each pixel" in line for line in printed)
    assert f"  keras-vit depth PHOTO --model {result.out} --out answers" in printed
    config = json.loads((result.out / "config.json").read_text())
    assert (config["augmentation"]["crop"], config["augmentation"]["scale"]) == ("scale_crop", [1.0, 1.0])
    assert {weight.path.partition("/")[0] for weight in result.model.trainable_weights} == {"depth_head"}
    assert (result.model.unit, result.model.depth_range) == ("metres", (0.5, 9.0))
    assert task_of_model(result.model).name == "depth"
    assert find_task(json.loads(json.dumps(result.task.facts()))) == result.task


@NIGHTLY
def test_killed_run_goes_on_to_the_same_numbers(finished, tmp_path, monkeypatch):
    data, result, _ = finished
    monkeypatch.setattr(module, "StepFacts", Dying)
    monkeypatch.setattr(Dying, "at", 5)  # the second of the second epoch
    with pytest.raises(Died):
        run_of(data, tmp_path / "run")
    monkeypatch.setattr(Dying, "at", None)
    with pytest.raises(ValueError, match=r"options\.task: depth"):
        run_of(data, tmp_path / "run", depth_range=(0.5, 8.0))
    again, printed = run_of(data, tmp_path / "run", resume="must")
    assert any(line.startswith("goes on from step ") for line in printed)
    for name in ("best.keras", "last.keras"):
        weights, others = (keras.models.load_model(each.out / name).weights for each in (result, again))
        assert all((numpy(one) == numpy(other)).all() for one, other in zip(weights, others, strict=True))
    assert {**again.evaluation.summary(), "seconds": 0} == {**result.evaluation.summary(), "seconds": 0}


@NIGHTLY
@pytest.mark.parametrize(("head", "loss"), [("dpt", "sig"), ("linear4", "silog")])
def test_other_heads_and_losses_learn_and_the_run_opens_again(finished, tmp_path, head, loss):
    data, *_ = finished
    options = {"map_head": head, "loss": loss, "model": tiny_config(num_layers=4), "epochs": 4, "learning_rate": 0.005}
    result, _ = run_of(data, tmp_path / "run", **options)
    rows = np.genfromtxt(result.out / "metrics.csv", delimiter=",", names=True)
    assert rows["loss"][-1] < 0.9 * rows["loss"][0]
    again, photo = keras.models.load_model(result.out / "best.keras"), np.ones((1, 40, 48, 3), "float32")
    np.testing.assert_array_equal(numpy(again(photo)), numpy(result.model(photo)))


def test_dpt_gives_metres_up_to_the_range_and_trains_with_gradients():
    task = Depth(map_head="dpt", depth_range=(0.1, 20))
    encoder = keras_vit.build(tiny_config(num_layers=4), include_top=False, pooling="none", input_shape=(40, 48, 3))
    model = task.add_head(encoder, 1)
    assert (model.unit, model.depth_range, model.output_shape) == ("metres", (0.0, 20.0), (None, 40, 48))
    assert type(model.head).__name__ == "DPTHead"
    rng = np.random.default_rng(0)
    target, found = rng.uniform(0, 5, (2, 9, 11)).astype("float32"), rng.uniform(1, 5, (2, 9, 11)).astype("float32")
    wanted = float(sig_loss(found, target)) + 0.5 * float(gradient_loss(found, target))
    assert float(task._loss()(target, found)) == pytest.approx(wanted, rel=1e-6)
    assert float(Depth()._loss()(target, found)) == pytest.approx(float(sig_loss(found, target)), rel=1e-6)


def test_images_that_fill_up_a_batch_count_neither_in_losses_nor_in_metrics():
    rng = np.random.default_rng(1)
    target, found = rng.uniform(-1, 12, (3, 7, 5)).astype("float32"), rng.uniform(0.1, 12, (3, 7, 5)).astype("float32")
    target[1] = 0  # an image without depths
    weights = np.array([1, 1, np.nan], "float32")
    for loss in (SigLoss(), SigLoss(gradient_weight=0.5), SiLogLoss()):
        assert float(loss(target, found, weights)) == pytest.approx(float(loss(target[:2], found[:2])), rel=1e-6)
        again = type(loss).from_config(loss.get_config())
        assert float(again(target, found)) == float(loss(target, found)) != float(loss(target[:2], found[:2]))
    rows = [measured(target[0], found[0])]
    for name in ("abs_rel", "rmse", "delta1"):
        metric = DepthMetric.from_config(DepthMetric(name, 0.5, 9.0).get_config())
        metric.update_state(target, found, weights)
        assert float(metric.result()) == pytest.approx(rows[0][name], rel=1e-5)
        metric.update_state(target[2:], found[2:])
        both = np.mean([rows[0][name], measured(target[2], found[2])[name]])
        assert float(metric.result()) == pytest.approx(both, rel=1e-5)
        assert depth_metrics(found, target, 0.5, 9)[name] == pytest.approx(both, rel=1e-9)


def test_windows_measure_what_depth_writes_and_a_crop_leaves_borders_out(finished, run):
    data, result, _ = finished
    source, rows, cropped = keras_vit.open_source(data, targets=result.task.targets()), [], []
    split = source.split("test")
    for number in range(split.size):
        target = split.target(number)
        answer = keras_vit.estimate_depth(result.model, split.pixels(number)).values
        rows.append(measured(target, answer)["abs_rel"])
        height, width = target.shape
        place = slice(45 * height // 480, 471 * height // 480), slice(41 * width // 640, 601 * width // 640)
        cropped.append(measured(target[place], answer[place])["abs_rel"])
    found = result.task.evaluate(result.model, source, "test", windows=True)
    assert found.measures["abs_rel"] == pytest.approx(np.mean(rows), rel=1e-6)
    part = find_task(result.task.facts() | {"depth_crop": "nyu_eigen"})
    found = part.evaluate(result.model, source, "test", windows=True)
    assert found.measures["abs_rel"] == pytest.approx(np.mean(cropped), rel=1e-6)
    code, lines, _ = run("evaluate", result.out, "--windows")
    assert (code, any(f"test relative error {np.mean(rows):.4f}" in line for line in lines)) == (0, True), lines


def test_report_and_card_show_photo_depth_answer_and_error(finished):
    data, result, _ = finished
    report, card = ((result.out / name).read_text() for name in ("report.html", "README.md"))
    assert report.count("photo, depth, answer and error; relative error") == 3
    assert all(words in card for words in ("depth-estimation", "AbsRel", "from 0.5 to 9 m"))
    source = keras_vit.open_source(data, targets=result.task.targets())
    photos = result.task.panel(result.evaluation, source=source).sections[-1].photos
    for photo, found in zip(photos, result.evaluation.worst, strict=True):
        picture = depths_side_by_side(source.pixels("test", found.index), found.target, found.answer)
        assert photo["picture"] == picture_uri(picture)
        np.testing.assert_array_equal(found.target, source.split("test").target(found.index))


def test_pictures_have_one_scale_and_errors_from_green_to_red():
    target = np.tile(np.linspace(1, 5, 50, dtype="float32"), (40, 1))
    target[0] = 0
    answer = target * np.repeat([1.0, 1.3], 20)[:, None].astype("float32")
    picture = depths_side_by_side(np.full((8, 10, 3), 9, "uint8"), target, answer)
    assert picture.shape == (40, 4 * 50 + 12, 3)
    photo, known, given, error = (picture[:, 54 * place : 54 * place + 50] for place in range(4))
    assert (known[0] == 128).all()
    assert (error[0] == 128).all()
    assert (photo == 9).all()
    np.testing.assert_array_equal(given[1:20], known[1:20])
    assert known[5, 0].tolist() == [252, 255, 164]
    assert known[5, -1].tolist() == [0, 0, 4]
    assert (error[5, 3].tolist(), error[25, 3].tolist()) == ([60, 170, 90], [220, 30, 30])


def test_command_line_trains_measures_and_writes_depths(finished, run, tmp_path):
    data, result, _ = finished
    code, lines, _ = run("evaluate", result.out, "--split", "validation", "--page", tmp_path / "page")
    assert (code, lines[1].startswith("validation relative error 0.")) == (0, True)
    assert "Scale-invariant" in (tmp_path / "page" / "index.html").read_text()
    given = ("--data", data / "images", "--depths", data / "depths", "--split", "test")
    code, lines, _ = run("evaluate", result.out / "best.keras", *given)
    wanted = f"test relative error {result.evaluation.measures['abs_rel']:.4f}"
    assert (code, any(wanted in line for line in lines)) == (0, True), lines
    code, _, errors = run("evaluate", result.out, "--masks", data / "depths")
    assert code == 1
    assert_one_line(errors, "`--masks` are of models of pixels.*for a model of depth")
    photo, out = data / "images" / "0.png", tmp_path / "out"
    assert run("depth", photo, "--model", result.out, "--out", out)[0] == 0
    with (out / "photos.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    values = keras_vit.estimate_depth(result.model, photo).values
    np.testing.assert_array_equal(np.load(out / row["npy"]), values)
    assert (row["unit"], row["step"]) == ("metres", "0.001")
    np.testing.assert_allclose(keras_vit.dense.read_mask(out / row["png"], "depth_mm"), values, 0, 0.00051)
    code, _, errors = run("predict", photo, "--model", result.out)
    assert code == 1
    assert_one_line(errors, f"Take `keras-vit depth PHOTO --model {result.out} --out FOLDER`")
    assert run("look", result.out, photo, "--out", tmp_path / "seen")[0] == 0
    code, lines, errors = run("export", result.out, tmp_path / "a.onnx")
    assert code == 0, errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"map_head": "upernet"}, "map_head"),
        ({"depth_range": (9.0, 0.5)}, "the smallest and the largest depth in metres"),
        ({"depth_range": None}, "the range that counts"),
        ({"depth_scale": -1.0}, "depth_scale"),
        ({"loss": "mse"}, "loss"),
        ({"accumulation_steps": 2, "batch_size": 4}, "accumulation_steps"),
        ({"augmentation": "inception"}, "Received: an augmentation of photos alone"),
        ({"model": "R50x1", "weights": None}, "ResNet"),
        ({"masks": "folder"}, "`masks`"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(finished, tmp_path, options, words):
    data, *_ = finished
    with pytest.raises(ValueError, match="Received") as error:
        run_of(data, tmp_path / "run", **options)
    assert words in str(error.value)
    assert not (tmp_path / "run").exists()


@NIGHTLY
def test_two_devices_give_the_numbers_of_one(finished, tmp_path):
    data, *_ = finished
    words = ["-m", "keras_vit", "finetune", "--task", "depth", "--data", data, "--depth-scale", "0.001"]
    words += ["--depth-range", "0.5", "9", "--model", "small", "--image-size", "40", "--batch-size", "8"]
    words += ["--epochs", "2", "--layout", "replicated", "--trainable", "all"]
    rows = []
    for devices in (1, 2):
        flags = f"{QUICK_XLA} --xla_force_host_platform_device_count={devices}"
        out = tmp_path / str(devices)
        ended(start_processes([*words, "--out", out], 1, JAX_PLATFORMS="cpu", XLA_FLAGS=flags))
        rows.append(np.genfromtxt(out / "metrics.csv", delimiter=",", names=True))
    for name in ("loss", "abs_rel", "val_loss", "val_abs_rel", "val_rmse", "val_delta1"):
        np.testing.assert_allclose(rows[1][name], rows[0][name], rtol=2e-5, err_msg=name)


def test_devices_of_tensorflow_that_share_a_batch_are_refused(monkeypatch):
    monkeypatch.setattr("keras_vit.training.optimizers.num_replicas", lambda: 2)
    with pytest.raises(ValueError, match=r"Received: 2 devices\. Pass strategy='one'"):
        Depth(depth_range=(1, 2)).compile_arguments(None, "int", None)
