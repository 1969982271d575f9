"""`layout_map` on two devices of JAX: values, moments and files are those of one device, in two parts."""

import random

import keras
import numpy as np
import pytest
from conftest import GOLDEN, make_tiny, numpy, tiny_config

import keras_vit
from keras_vit.model.layer_access import weight_paths

TOKEN = keras_vit.ViTConfig(8, 48, 3, 4, 96)
LARGE = 2_000  # bytes


def layouts():
    """What a check on two devices finds of each kind."""
    found = {kind: laid_out(kind) for kind in ("fsdp", "tensor")}
    found["said"] = refusals()
    return found


def mesh_of(kind):
    if kind == "tensor":
        return keras.distribution.DeviceMesh((1, 2), ("data", "model"))
    return keras.distribution.DeviceMesh((2,), ("data",))


def laid_out(kind):
    arguments = {"weights": GOLDEN / "token.npz", "classes": 5}
    keras.utils.set_random_seed(1)
    plain = keras_vit.build(TOKEN, **arguments)
    expected = {path: numpy(variable) for path, variable in weight_paths(plain).items()}
    keras.utils.set_random_seed(1)
    state = random.getstate()
    layout = keras_vit.layout_map(TOKEN, mesh_of(kind), kind, large=LARGE, **arguments)
    untouched = random.getstate() == state
    distribution = keras.distribution.ModelParallel(layout_map=layout)
    with distribution.scope():
        keras_vit.check_layout(layout, TOKEN, large=LARGE, **arguments)  # while another model is laid out
        model = keras_vit.build(TOKEN, **arguments)
        model.compile(keras_vit.AdamW(use_ema=True), "mse")
        model.optimizer.build(model.trainable_weights)
    variables = weight_paths(model)
    parts = {path: parts_of(variable) for path, variable in variables.items()}
    slots = [[parts_of(v) for v in model.optimizer.variables if v.name.endswith(name)] for name in SLOTS]
    return {
        "untouched": untouched,
        "different": [path for path, v in variables.items() if (numpy(v) != expected[path]).any()],
        "cut": sorted(path for path, number in parts.items() if number > 1),
        "large": sorted(path for path, v in variables.items() if np.prod(v.shape) * 4 > LARGE),
        "slots as weights": [found == [parts_of(v) for v in model.trainable_weights] for found in slots],
    }


SLOTS = ("momentum", "velocity", "average")


def parts_of(variable):
    """How many times less than the whole a device holds."""
    return int(np.prod(variable.shape) / np.prod(variable.value.addressable_shards[0].data.shape))


def refusals():
    said = []
    for arguments in (
        ("B/16", mesh_of("fsdp"), "tensor"),
        ("B/16", "cpu:0", "fsdp"),
        (make_tiny(), mesh_of("fsdp"), "fsdp", 3),
        (tiny_config(), keras.distribution.DeviceMesh((1, 2), ("data", "model")), "tensor"),
    ):
        try:
            classes = {"classes": 3} if len(arguments) > 3 else {}
            keras_vit.layout_map(*arguments[:3], **classes)
        except (TypeError, ValueError) as error:
            said.append(str(error))
    return said


@pytest.mark.elsewhere("jax", "layouts")
def test_weights_of_a_file_are_whole_in_their_parts(found):
    for kind in ("fsdp", "tensor"):
        assert found[kind]["untouched"]
        assert found[kind]["different"] == []
        assert set(found[kind]["cut"]) >= set(found[kind]["large"]) > {"block_00/mlp/dense_1/kernel"}
        assert found[kind]["slots as weights"] == [True] * len(SLOTS)
    assert "block_01/attention/query/bias" in found["tensor"]["cut"]
    assert found["fsdp"]["cut"] == found["fsdp"]["large"]


@pytest.mark.elsewhere("jax", "layouts")
def test_what_cannot_be_laid_out_is_refused(found):
    patterns = ("two axes", "DeviceMesh", "arguments", "3 heads")
    assert [pattern in said for pattern, said in zip(patterns, found["said"], strict=True)] == [True] * 4


def test_layout_of_ones_own_is_held_to_the_model():
    layout = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((1,), ("data",), ["cpu:0"]))
    layout[".*mlp/dense_./kernel"] = ("data", None, None)
    with pytest.raises(ValueError, match=r"2 axes, .* 3"):
        keras_vit.check_layout(layout, tiny_config(), classes=3)
    with pytest.raises(TypeError, match="LayoutMap"):
        keras_vit.check_layout({".*": ("data",)}, tiny_config())
    for large in (float("nan"), -1, True, "4MB"):
        with pytest.raises((TypeError, ValueError), match="`large`"):
            keras_vit.check_layout(layout, tiny_config(), large=large)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="where Keras ignores it")
def test_a_backend_that_would_ignore_a_layout_refuses_it():
    with pytest.raises(ValueError, match="KERAS_BACKEND=jax"):
        keras_vit.layout_map("B/16", None, "fsdp")
