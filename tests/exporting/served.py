"""Tasks for the tests of exports, and what a model says of pixels on its own."""

import dataclasses

import numpy as np
from conftest import make_tiny, numpy

from keras_vit.exporting.model_function import pixel_function
from keras_vit.exporting.spec import ExportSpec

LABELS = ("ash", "birch", "cedar", "douglas fir", "elm", "fig", "ginkgo")
RECORDS = {
    "squash": {},
    "antialias": {"antialias": True},
    "crop": {"resize": "crop", "crop_fraction": 0.87},
    "bicubic": {"resize": "crop", "interpolation": "bicubic", "antialias": True, "crop_fraction": 0.91},
    "bicubic squash": {"interpolation": "bicubic", "antialias": True},
    "area": {"resize": "crop", "interpolation": "area", "crop_fraction": 0.87, "rounding": "big_vision"},
}


def make_job(model=None, **fields):
    """A spec for a tiny model."""
    model = make_tiny() if model is None else model
    named = any(layer.name == "head" for layer in model.layers)
    fields = {
        "precision": "float32",
        "labels": LABELS if named else None,
        "top_k": 3 if named else 0,
        "activation": "softmax" if named else "none",
        "name": "trees",
        "max_bytes": 2**17,
        "max_pixels": 2**20,
        "max_batch": 128,
        "opset": 18,
        "jit_compile": False,
        "calibration_photos": np.zeros((32, 20, 28, 3), "uint8"),
    } | fields
    return ExportSpec(model=model, **fields)


def with_record(name, **arguments):
    """A tiny model whose preprocessing is one of `RECORDS`."""
    model = make_tiny(**arguments)
    model.preprocessing = dataclasses.replace(model.preprocessing, **RECORDS[name])
    return model


def logits(model, pixels):
    """What Keras makes of one upright picture."""
    return numpy(model(numpy(model.preprocessing(pixels[None])), training=False))[0]


def softmax(values):
    powers = np.exp(values - values.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def pictures(batch, height=20, width=28, channels=3):
    return np.random.default_rng(batch).integers(0, 256, (batch, height, width, channels), "uint8")


def model_says(spec, pixels):
    return {name: value.numpy() for name, value in pixel_function(spec)(pixels).items()}


def differences(spec, run, pixels):
    """The largest difference of each output, as a share of 1 or the deviation of the model's numbers if above."""
    wanted, found = model_says(spec, pixels), run(pixels)
    assert set(wanted) == set(found)
    return {name: np.abs(found[name] - value).max() / max(1, value.std()) for name, value in wanted.items()}


def without_delegate(file):
    """An interpreter of LiteRT that keeps the file's operations as they are."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    return Interpreter(str(file), experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
