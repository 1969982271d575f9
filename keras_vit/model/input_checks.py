"""What `fit`, `evaluate` and `predict` look at first: whether pixels were scaled, devices can share the batches, and
weights can learn.

The look is at the first batch only and outside of the graph, so it costs nothing in training.
"""

import contextlib
import inspect
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.model.batch_padding import is_dataset, spread_over

_FAR = 8  # times the largest value that a pixel can have once it was scaled; 255 is 97 times that of ImageNet's mean
_IMAGES = 32  # of an array
_DEFAULT_BATCH = 32  # of Keras
_HALVES = ("bfloat16", "float16")


def check_weights_learn(model: keras.Model) -> None:
    """Raises `ValueError` for a model whose weights in half precision would be trained.

    Steps are far smaller than weights, and 8 or 11 bits hold no such sum: accuracy stays at chance where float32 and
    mixed_bfloat16 learn.
    """
    rounded = [variable for variable in model.trainable_variables if variable.dtype in _HALVES]
    if rounded:
        first = rounded[0]
        raise ValueError(
            f"weights in {first.dtype} do not learn, since steps that are small beside a weight are rounded away.\n"
            f"Received: {model.name!r} with {len(rounded)} such weights, as {first.path}. Build it under "
            f'the dtype policy "mixed_{first.dtype}", which computes in {first.dtype} and keeps weights in float32.'
        )


def looked_at(model: keras.Model, x: Any) -> Any:
    """`x` of `fit`, unchanged in what it gives; warns of images that no `preprocessing` has scaled.

    Args:
        model: a `VisionTransformer`.
        x: an array or tensor, a `tf.data.Dataset`, a `keras.utils.PyDataset` or a generator; of others, and of
            datasets of `load_dataset`, nothing is looked at.
    """
    if model.preprocessing is None or hasattr(x, "preprocessing"):
        return x
    if isinstance(x, keras.utils.PyDataset):
        _warn_of_pixels(model, _images_of(x[0]))
    elif inspect.isgenerator(x):
        first = next(x, None)
        _warn_of_pixels(model, _images_of(first))
        return (batch for batch in itertools.chain([] if first is None else [first], x))
    elif is_dataset(x):
        return _watched(model, x)
    elif len(getattr(x, "shape", None) or ()) == 4:
        _warn_of_pixels(model, x[:_IMAGES])
    return x


def _images_of(batch: Any) -> Any:
    return batch[0] if isinstance(batch, (tuple, list)) else batch


def _watched(model: keras.Model, dataset: Any) -> Any:
    """The same `tf.data.Dataset`, of which the first batch is checked as it passes; reading it before would change the
    order."""
    import tensorflow as tf

    def look(images: np.ndarray) -> np.bool_:
        _warn_of_pixels(model, images)
        return np.True_

    def pass_on(number: Any, batch: Any) -> Any:
        images = _images_of(batch)
        if not tf.is_tensor(images):
            return batch
        done = tf.cond(number == 0, lambda: tf.numpy_function(look, [images[:_IMAGES]], tf.bool), lambda: True)
        with tf.control_dependencies([done]):
            return tf.nest.map_structure(tf.identity, batch)

    return dataset.enumerate().map(pass_on)


def _warn_of_pixels(model: keras.Model, images: Any) -> None:
    if images is None or not hasattr(images, "shape"):
        return
    values = np.asarray(keras.ops.convert_to_numpy(images))
    low, high = model.preprocessing.value_range
    if values.size and values.dtype.kind == "f" and np.abs(values).max() > _FAR * max(abs(low), abs(high)):
        warnings.warn(
            f"images reach the model with values from {values.min():g} to {values.max():g}, and its weights expect "
            f"{low:.3g} to {high:.3g}: they look like pixels that were not scaled. Call `model.preprocessing(images)` "
            "first, or map it over the data set.",
            stacklevel=4,
        )


@contextlib.contextmanager
def sharing_batches(*arrays: tuple[Any, int | None]) -> Iterator[None]:
    """Raises an error with advice for a batch that JAX's devices cannot share evenly: at once for an array, else as it
    comes.

    Args:
        *arrays: each `x`, with its size of a batch; of what is no array nothing is known before.

    Raises:
        ValueError: for such a batch.
    """
    devices = spread_over()
    for x, batch_size in arrays:
        images = (getattr(x, "shape", None) or (0,))[0]
        last = (images or 0) % (batch_size or _DEFAULT_BATCH)
        if devices > 1 and last % devices:
            raise ValueError(_uneven(devices, f"{images} images in batches of {batch_size or _DEFAULT_BATCH}"))
    try:
        yield
    except ValueError as error:
        if type(error).__name__ != "IndivisibleError":  # JAX exports no name for it
            raise
        raise ValueError(_uneven(devices, f"a batch that is no multiple of {devices}")) from error


def _uneven(devices: int, received: str) -> str:
    return (
        "on JAX every batch must be a multiple of the devices that share it, the last one too.\n"
        f"Received: {received}, on {devices} devices. Pass a `tf.data.Dataset`, whose batches are filled up with "
        "images that count nothing, or leave out the images that are too many."
    )
