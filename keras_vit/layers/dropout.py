"""Dropout whose masks belong to the image: the same whichever device or micro-batch computes it.

TensorFlow's numbers are a stream: block n of four of them is a function of the seed and n (Philox, SC 2011, table 2).
One device draws for the images of a batch in their order. So a device with the images from the k-th on skips the blocks
of those before, which costs nothing. It then finds the numbers that one device would have drawn for its images.
"""

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Tensor

_BLOCK = 4  # numbers that Philox gives at once, for floats of 16 and 32 bits alike
_PHILOX = 1  # as TensorFlow numbers its generators
_LOCAL = threading.local()  # TensorFlow's strategies trace each replica in a thread of its own


@dataclasses.dataclass(frozen=True)
class Place:
    """Which images of a batch are being computed.

    Attributes:
        first: index in the batch of the first of them; an int or a scalar tensor.
        count: how many they are, with those that fill up a share.
        moves_on: 1 if draws move seeds on to the next step, 0 where another micro-batch of this step follows.
    """

    first: Any
    count: Any
    moves_on: Any = 1


@contextlib.contextmanager
def images_of_batch(first: Any, count: Any, moves_on: Any = 1) -> Iterator[None]:
    """Inside, masks are those that one device draws for these images of a whole batch; see `Place`. TensorFlow only."""
    before = current_place()
    _LOCAL.place = Place(first, count, moves_on)
    try:
        yield
    finally:
        _LOCAL.place = before


def current_place() -> Place | None:
    """What `images_of_batch` has said, or `None` where a layer sees whole batches."""
    return getattr(_LOCAL, "place", None)


def next_seed(generator: keras.random.SeedGenerator) -> Tensor:
    """The seed of this draw. The generator moves on, by one for each step, into however many parts it is cut."""
    place = current_place()
    if place is None or isinstance(place.moves_on, int):
        return generator.next()
    seed = ops.copy(generator.state)
    generator.state.assign(ops.add(seed, ops.stack([ops.zeros_like(seed[0]), ops.cast(place.moves_on, seed.dtype)])))
    return seed


def uniform(shape: Any, generator: keras.random.SeedGenerator, dtype: Any = "float32") -> Tensor:
    """Numbers in [0, 1), as many for each image.

    Args:
        shape: of them; the images follow each other on the first axis, each with as many rows.
        generator: of the seed.
        dtype: a float of 16 or 32 bits.
    """
    place = current_place()
    if place is None:
        return keras.random.uniform(shape, dtype=dtype, seed=generator)
    return _part_of_stream(shape, next_seed(generator), dtype, place)


def _as_keras_does(seed: Tensor) -> Tensor:
    """A seed as TensorFlow takes it."""
    import tensorflow as tf

    return tf.cast(tf.math.floormod(seed, np.iinfo("int32").max - 1), "int32")


def _part_of_stream(shape: Any, seed: Tensor, dtype: Any, place: Place) -> Tensor:
    import tensorflow as tf

    size = tf.cast(tf.reduce_prod(shape), "int64")
    start = tf.cast(place.first, "int64") * (size // tf.cast(place.count, "int64"))
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=_as_keras_does(seed))
    counter = tf.bitcast(tf.bitcast(counter, tf.int64) + tf.stack([start // _BLOCK, 0]), tf.uint64)
    known = math.prod(shape) if all(isinstance(side, int) for side in shape) else size
    numbers = tf.raw_ops.StatelessRandomUniformV2(
        shape=[known + _BLOCK - 1], key=key, counter=counter, alg=_PHILOX, dtype=tf.as_dtype(dtype)
    )
    return tf.reshape(tf.slice(numbers, [start % _BLOCK], [known]), shape)


@keras.saving.register_keras_serializable("keras_vit")
class Dropout(keras.layers.Dropout):
    """Keras' dropout; several devices or micro-batches draw the masks that one device draws for the whole batch.

    The first axis holds the images in their order, each with as many rows. Arguments are those of Keras' layer.
    """

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        if not training or self.rate == 0 or current_place() is None:
            return super().call(inputs, training=training)
        sides = ops.shape(inputs)
        shape = [side if given is None else given for side, given in zip(sides, self.noise_shape or sides, strict=True)]
        kept = uniform(shape, self.seed_generator, inputs.dtype) >= ops.cast(self.rate, inputs.dtype)
        return ops.where(kept, inputs * ops.cast(1 / (1 - self.rate), inputs.dtype), ops.zeros_like(inputs))

    def draw_by_part(self) -> Callable[[Any, Any, Any], Tensor]:
        """A function that gives numbers in [0, 1) for an image of the batch, a number of its part, and a shape.

        It gives the same for the same again, and the generator moves on once for all. TensorFlow only.
        """
        import tensorflow as tf

        place = current_place()
        first = 0 if place is None else tf.cast(place.first, "int32")
        seed = _as_keras_does(next_seed(self.seed_generator))

        def draw(image: Tensor, part: Tensor, shape: Any) -> Tensor:
            return tf.random.stateless_uniform(shape, tf.random.fold_in(tf.random.fold_in(seed, first + image), part))

        return draw
