"""Steps of Keras' OpenVINO backend, computed in float32 and for the weights of now.

OpenVINO computes in bfloat16 where the processor has it, unless it is told otherwise, and Keras tells it nothing. Keras
compiles a model once, and older versions for one size of batch.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras

_PRECISION = "INFERENCE_PRECISION_HINT"
_ONE_AT_A_TIME = threading.RLock()
_COMPILED_FOR: weakref.WeakKeyDictionary[Any, list] = weakref.WeakKeyDictionary()


def openvino_step(model: keras.Model, step: Callable[[Any], Any], data: Any) -> Any:
    """What Keras' `predict_step` or `test_step` gives on the OpenVINO backend.

    Args:
        model: whose step it is.
        step: Keras' own.
        data: of the step.

    Raises:
        RuntimeError: if Keras has compiled the model for another precision all the same.
    """
    import openvino

    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    with _ONE_AT_A_TIME, _compiling_in_float32():
        if not _is_compiled_for(model, x):
            model.ov_compiled_model = None  # so that Keras compiles it anew
        _COMPILED_FOR[model] = _values(model)
        found = step(data)
        compiled = model.ov_compiled_model
    if compiled is not None and compiled.get_property(_PRECISION) != openvino.Type.f32:
        raise RuntimeError(
            "a model must compute in float32 on the OpenVINO backend, as on every other one.\n"
            f"Received: {compiled.get_property(_PRECISION)} by Keras {keras.__version__}. Call "
            '`keras_vit.accelerate(model, "openvino")` on TensorFlow.'
        )
    return found


def _values(model: keras.Model) -> list:
    return [weight.value for weight in model.weights]


def _is_compiled_for(model: keras.Model, x: Any) -> bool:
    """Whether a model's network has its weights of now, and takes batches like `x`."""
    import openvino

    compiled, before, now = model.ov_compiled_model, _COMPILED_FOR.get(model, []), _values(model)
    if compiled is None or len(before) != len(now) or any(a is not b for a, b in zip(before, now, strict=True)):
        return False
    shapes = [openvino.PartialShape(list(tensor.shape)) for tensor in keras.tree.flatten(x)]
    return all(port.partial_shape.compatible(shape) for port, shape in zip(compiled.inputs, shapes, strict=True))


@contextlib.contextmanager
def _compiling_in_float32() -> Iterator[None]:
    """Has OpenVINO told the precision by whoever compiles a model."""
    import openvino

    compile_model = openvino.compile_model

    def in_float32(model: Any, device_name: str = "AUTO", config: dict | None = None) -> Any:
        return compile_model(model, device_name, {_PRECISION: "f32", **(config or {})})

    openvino.compile_model = in_float32
    try:
        yield
    finally:
        openvino.compile_model = compile_model
