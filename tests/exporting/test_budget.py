"""A comparison of a large model takes few photos, one at a time, and models of usual sizes all of them."""

import types

import numpy as np
import pytest
from conftest import make_tiny
from served import make_job

import keras_vit
from keras_vit.config.variants import RESNETS, VARIANTS
from keras_vit.exporting import budget, verification
from keras_vit.exporting.budget import max_repeats, photos_at_once
from keras_vit.exporting.export import select_photos
from keras_vit.exporting.report import Runtime


def of(name):
    return types.SimpleNamespace(config=VARIANTS.get(name) or RESNETS[name])


@pytest.mark.parametrize(
    ("name", "side", "photos", "at_once"),
    [("B/16", 224, 16, 8), ("B/16", 512, 11, 1), ("L/16", 384, 5, 2), ("B/16", 1024, 1, 1), ("R50x1", 448, 16, 2)],
)
def test_photos_are_those_that_memory_and_time_allow(name, side, photos, at_once):
    assert max_repeats(of(name), (side, side), 16) == photos
    assert photos_at_once(of(name), (side, side)) >= at_once
    assert photos_at_once(of(name), (1024, 1024)) <= 8


def test_attention_of_a_photo_at_1024_pixels_takes_two_gigabytes():
    """12 heads of 4,097 tokens each: 805 MB of products, as much of weights, and a part of what follows."""
    assert budget._bytes_of_one(VARIANTS["B/16"], (1024, 1024)) == pytest.approx(2.2e9, rel=0.1)


def test_no_batch_is_larger_than_memory_allows(monkeypatch):
    model = make_tiny(num_layers=1)
    one = budget._bytes_of_one(model.config, (20, 28))
    monkeypatch.setattr(budget, "_MEMORY", 2.5 * one)
    reference = verification.Reference(model, "softmax")
    sizes, run = [], reference.run
    monkeypatch.setattr(reference, "run", lambda pixels: sizes.append(len(pixels)) or run(pixels))
    asked = []
    runtime = Runtime("x", lambda pixels: asked.append(len(pixels)) or run(pixels))
    photos = list(np.random.default_rng(3).integers(0, 256, (5, 20, 28, 3), "uint8"))
    for _ in range(2):
        drift, agreement = verification.compare(model, reference, runtime, photos, make_job(model))
    assert (max(sizes), sum(sizes), max(asked), agreement) == (2, 5, 2, 1.0)  # the model's own are computed once
    assert all(each.within for each in drift)


def test_photos_are_resized_for_calibration_alone():
    model = make_tiny(num_layers=1)
    compared, others = select_photos(None, model, False, "onnx")
    assert (len(compared), others.shape) == (16, (4, 20, 28, 3))
    assert len(select_photos(None, model, True, "openvino")[1]) == 64


def test_slow_model_is_timed_once_and_one_engine_kept(monkeypatch):
    monkeypatch.setattr(budget, "_WORK", 1.0)
    engine = keras_vit.accelerate(make_tiny(num_layers=1))
    assert engine.report.images == 1
    assert {"tensorflow", "model"} <= set(engine.report.seconds)
    assert "xla" in engine.report.left_out
    assert engine.report.seconds[engine.engine] == min(
        seconds for name, seconds in engine.report.seconds.items() if name != "model"
    )
