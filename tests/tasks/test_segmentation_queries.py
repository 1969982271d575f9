"""Runs of segmentation with EoMT's head: they learn, go on bitwise after a kill, and are measured and answer."""

import json

import keras
import numpy as np
import pytest
from conftest import assert_one_line, numpy, tiny_config
from shape_tables import write_masks
from stopped_runs import Died, Dying
from test_segmentation import run_of

import keras_vit
import keras_vit.runs.finetune as module
from keras_vit.dense import MaskClassification, SegmentationIoU

OPTIONS = {"map_head": "eomt", "model": tiny_config(num_layers=1), "image_size": (24, 32), "learning_rate": 0.02}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_masks(tmp_path_factory.mktemp("set") / "squares")


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """Result and lines of a run whose encoder learns too, as its numbers are random."""
    return run_of(data, tmp_path_factory.mktemp("run") / "run", trainable="all", epochs=8, batch_size=4, **OPTIONS)


def constant_answer(split):
    """The mean IoU of the most frequent class in each pixel."""
    masks = [split.target(number) for number in range(split.size)]
    shares = np.bincount(np.concatenate([mask[mask != 255] for mask in masks]), minlength=3)
    return shares.max() / shares.sum() / 3


@pytest.mark.slow
def test_longer_run_finds_the_squares(data, tmp_path):
    options = OPTIONS | {"model": tiny_config(num_layers=2), "image_size": (40, 48), "learning_rate": 0.01}
    result, _ = run_of(data, tmp_path / "run", trainable="all", epochs=20, **options)
    assert result.test_mean_iou > 0.7
    assert constant_answer(keras_vit.open_source(data, targets=result.task.targets()).split("test")) < 0.3


def test_run_learns_far_above_the_answer_that_is_always_the_same(finished, data):
    result, printed = finished
    source = keras_vit.open_source(data, targets=result.task.targets()).split("test")
    assert result.test_mean_iou > 1.6 * constant_answer(source)
    rows = np.genfromtxt(result.out / "metrics.csv", delimiter=",", names=True)
    assert rows["loss"][-1] < 0.5 * rows["loss"][0]
    assert (
        json.loads((result.out / "result.json").read_text())["best_validation_mean_iou"] == rows["val_mean_iou"].max()
    )
    assert any("matched to them" in line for line in printed)
    again = keras.models.load_model(result.out / "best.keras")
    loss = again.get_compile_config()["loss"]
    assert loss["config"]["masked_steps"] == 48
    photo = np.ones((1, 24, 32, 3), "float32")
    np.testing.assert_array_equal(numpy(again(photo)), numpy(result.model(photo)))


def test_figures_of_the_result_are_those_of_the_scores_at_the_masks_own_sizes(finished, data):
    result, _ = finished
    source, confusion = keras_vit.open_source(data, targets=result.task.targets()).split("test"), np.zeros((3, 3))
    for number in range(source.size):
        pixels, mask = source.pixels(number), source.target(number)
        scores = numpy(result.model(result.model.preprocessing(pixels)[None]))
        assert scores.min() >= 0
        answer = numpy(keras_vit.dense.resize(scores, mask.shape))[0].argmax(-1)
        np.add.at(confusion, (mask[mask != 255], answer[mask != 255]), 1)
    both = np.diag(confusion)
    wanted = (both / (confusion.sum(0) + confusion.sum(1) - both)).mean()
    assert result.test_mean_iou == pytest.approx(wanted, abs=2e-3)


@pytest.mark.slow
def test_killed_run_goes_on_to_the_same_numbers(data, tmp_path, monkeypatch):
    """With masked attention, whose draws go on where they were, and points of each mask."""
    options = OPTIONS | {"epochs": 3, "checkpoint_every": 2}
    monkeypatch.setattr(MaskClassification, "__init__", _with_few_points(MaskClassification.__init__))
    whole, _ = run_of(data, tmp_path / "whole", **options)
    monkeypatch.setattr(module, "StepFacts", Dying)
    monkeypatch.setattr(Dying, "at", 5)
    with pytest.raises(Died):
        run_of(data, tmp_path / "run", **options)
    monkeypatch.setattr(Dying, "at", None)
    again, printed = run_of(data, tmp_path / "run", resume="must", **options)
    assert any(line.startswith("goes on from step ") for line in printed)
    for name in ("best.keras", "last.keras"):
        weights, others = (keras.models.load_model(each.out / name).weights for each in (whole, again))
        assert all((numpy(one) == numpy(other)).all() for one, other in zip(weights, others, strict=True))
    learned = {weight.path.partition("/")[0] for weight in whole.model.trainable_weights}
    assert learned == {"query_tokens", "segmentation_head"}
    rows = [np.genfromtxt(each.out / "metrics.csv", delimiter=",", names=True) for each in (whole, again)]
    np.testing.assert_array_equal(rows[0]["loss"], rows[1]["loss"])


def _with_few_points(begin):
    def made(self, *args, **kwargs):
        begin(self, *args, **{"num_points": 100} | kwargs)

    return made


@pytest.mark.nightly
def test_commands_measure_segment_and_export(finished, data, run, tmp_path):
    result, _ = finished
    code, lines, _ = run("evaluate", result.out)
    assert (code, any(f"test mean IoU {result.test_mean_iou:.4f}" in line for line in lines)) == (0, True), lines
    photo = data / "images" / "0.png"
    code, _, errors = run("segment", photo, "--model", result.out, "--out", tmp_path / "masks")
    assert code == 0, errors
    found = keras_vit.dense.read_mask(tmp_path / "masks" / "masks" / "0.png")
    wanted = keras_vit.segment(keras.models.load_model(result.out / "best.keras"), photo)
    np.testing.assert_array_equal(found, wanted.classes)
    code, lines, error = run("export", result.out, tmp_path / "a.onnx")
    assert (code, any("same best class" in line for line in lines)) == (0, True), error


@pytest.mark.nightly
def test_command_line_trains(data, run, tmp_path):
    command = ("finetune", "--task", "segmentation", "--data", data / "images", "--masks", data / "masks")
    options = ("--head", "eomt", "--epochs", 1, "--batch-size", 8, "--image-size", 24, "--out", tmp_path / "run")
    code, lines, error = run(*command, *options)
    assert (code, any("test mean IoU" in line for line in lines)) == (0, True), error
    code, _, errors = run(*command, *options[:-1], tmp_path / "other", "--average", "valid")
    assert code == 1
    assert_one_line(errors, "a mean over the masks of a batch")


def test_metric_of_an_epoch_sees_scores(finished, data):
    result, _ = finished
    rows = np.genfromtxt(result.out / "metrics.csv", delimiter=",", names=True)
    source = keras_vit.open_source(data, targets=result.task.targets())
    batches = keras_vit.load_dataset(source, "validation", batch_size=64, preprocessing=result.model.preprocessing)
    metric = SegmentationIoU(3)
    for photos, masks in batches:
        metric.update_state(masks, result.model(photos))
    assert float(metric.result()) == pytest.approx(rows["val_mean_iou"].max(), abs=1e-4)
