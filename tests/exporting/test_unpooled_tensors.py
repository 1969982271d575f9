"""Copies for files lie outside of TensorFlow's pool, which keeps all that it ever had."""

import gc
import weakref

import keras
import numpy as np
import pytest
from conftest import make_tiny, numpy, run_python
from exporting.served import make_job

from keras_vit.exporting import folding as module
from keras_vit.exporting.folding import assign, fold, unpooled_tensor
from keras_vit.exporting.onnx_graph import _function


@pytest.fixture
def rooms(monkeypatch):
    """All memory that was asked for."""
    found, room = [], module._aligned_buffer
    monkeypatch.setattr(module, "_aligned_buffer", lambda size: found.append(room(size)) or found[-1])
    return found


def outside(variable, rooms):
    """Whether a variable's memory is one of the rooms."""
    return np.from_dlpack(variable.value.read_value()).ctypes.data in {room.ctypes.data for room in rooms}


@pytest.mark.parametrize("shape", [(), (1,), (5, 7, 3)])
def test_numbers_are_copied_as_float32(shape):
    given = np.random.default_rng(3).normal(0, 1, shape)
    found = unpooled_tensor(given.T if len(shape) > 1 else given)
    np.testing.assert_array_equal(numpy(found), given.T.astype("float32"))
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    variable = keras.Variable(np.ones(shape, "float32"))
    assign(variable, given)
    given[...] = 0
    assert np.all(numpy(variable) != 0)


def test_memory_goes_with_the_variable(rooms):
    variable = keras.Variable(np.ones((31, 17), "float32"))
    assign(variable, np.zeros((31, 17)))
    assert outside(variable, rooms)
    room = weakref.ref(rooms.pop().base)
    assert room() is not None
    assign(variable, np.ones((31, 17)))
    gc.collect()
    assert room() is None


@pytest.mark.parametrize("fields", [{}, {"layer_scale": "both"}, {"norm": "rms"}], ids=str)
def test_folded_copies_have_no_weight_in_the_pool(rooms, fields):
    copy, folds = fold(make_tiny(num_layers=1, **fields))
    assert folds.norms
    assert all(outside(weight, rooms) for weight in copy.weights if weight.dtype == "float32")


def test_weights_of_an_onnx_graph_are_no_arrays_while_it_is_made():
    """TensorFlow's optimiser makes one of each argument whose shape it knows."""
    function, variables = _function(make_job(make_tiny(num_layers=1)))
    shapes = [spec.shape for spec in function.input_signature[1:]]
    assert [len(shape) for shape in shapes] == [len(variable.shape) for variable in variables]
    assert all(size is None for shape in shapes for size in shape)


KEEPS = """
import keras_vit
from keras_vit.exporting.budget import trim_weight_memory
from keras_vit.exporting.folding import fold
from keras_vit.model.precision import with_dtype

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

model = keras_vit.build("S/16", input_shape=(224, 224, 3))
for copied in (lambda: fold(model)[0], lambda: with_dtype(model, "float32")):
    copy = copied()
    del copy
    trim_weight_memory(model)
    print(resident())
"""


@pytest.mark.slow
@pytest.mark.skipif("linux" not in __import__("sys").platform, reason="reads /proc")
def test_process_gets_its_memory_back():
    """84 MiB of S/16: those of a folded copy go, those of a plain one may stay."""
    after_folded, after_plain = map(float, run_python(KEEPS).split())
    assert after_plain - after_folded > 60
