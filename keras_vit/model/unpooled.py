"""Arrays as tensors of TensorFlow that lie outside of its pool of memory.

On a processor with oneDNN TensorFlow keeps what a tensor has held for its next tensors, and never gives it back. A copy
of B/16 that lives for seconds would so take 0.33 GiB of the process from then on.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Tensor, Variable

_ALIGNMENT = 64  # bytes; TensorFlow copies what begins elsewhere into its own memory


def unpooled(value: Any) -> Tensor:
    """A tensor of float32 whose memory is NumPy's, and goes with it.

    Args:
        value: array, tensor or variable, which is copied.
    """
    array = ops.convert_to_numpy(value)
    own = _room(4 * array.size).view("float32").reshape(array.shape)
    own[...] = array
    if keras.config.backend() != "tensorflow":
        return own
    import tensorflow as tf

    return tf.experimental.dlpack.from_dlpack(own.__dlpack__())


def assign(variable: Variable, value: Any) -> None:
    """Gives a variable of float32 a value outside of the pool; what it had before is freed."""
    variable.assign(unpooled(value))


def _room(size: int) -> np.ndarray:
    """So many bytes from a place that TensorFlow takes as it is."""
    room = np.empty(size + _ALIGNMENT, "uint8")
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size]
