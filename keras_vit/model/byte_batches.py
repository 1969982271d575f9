"""Batches of uint8 pixels on JAX: scaled on the device before the compiled step, which is the one for floats.

Inside of it XLA would fuse the scaling with the patches, and sum in another order. So runs that began with floats go on
to the same last bit, and nothing is compiled twice.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.annotations import Tensor
from keras_vit.images.preprocessing import Preprocessing, is_uint8, scale_uint8


def scaling_first(model: Any, step: Any) -> Any:
    """Keras' function of a state and an iterator of batches, which gets those in bytes as floats on JAX.

    Args:
        model: one of ours.
        step: what Keras has made for it to train, evaluate or predict.
    """
    if keras.backend.backend() != "jax":
        return step

    def scaled(batch: Any) -> Any:
        if not (isinstance(batch, tuple) and is_uint8(batch[0]) and model.takes_bytes):
            return batch
        images, *others = batch
        return _scaler(model.preprocessing, getattr(images, "sharding", None))(images), *others

    return lambda state, iterator: step(state, map(scaled, iterator))


@functools.lru_cache(8)
def _scaler(record: Preprocessing, sharding: Any) -> Callable[[Tensor], Tensor]:
    """`scale_uint8` compiled for images that lie on devices as `sharding` says, where the floats stay."""
    import jax

    return jax.jit(lambda pixels: scale_uint8(pixels, record), out_shardings=sharding)
