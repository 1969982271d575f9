"""Checks before a model computes: shape and scale of images, batches that devices share, weights that learn.

Only the first batch is checked, outside of the graph, so it costs nothing in training.
"""

import contextlib
import dataclasses
import inspect
import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, cast

import keras
import numpy as np

from keras_vit import keras_private
from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.config.variants import check_tiled
from keras_vit.images.preprocessing import Preprocessing, is_uint8
from keras_vit.model.layer_access import padded_shape, user_operations
from keras_vit.model.training_step import is_dataset, num_batch_shards

_FAR = 8  # times the largest value that a pixel can have once it was scaled; 255 is 97 times that of ImageNet's mean
_BEYOND = 0.25  # of the range, which interpolation and augmentation stay within; ImageNet's leave [-1, 1] by more
_NEAR = 0.02  # how near photos come to black and white; 5 grey levels of pixels in [-1, 1] are 0.04
_FEWEST = 64  # values that a scale can be inferred from
_PIXELS = "not scaled"  # which no preprocessing gives
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
            f"weights in {first.dtype} do not learn, since steps that are far smaller than a weight are rounded away.\n"
            f"Received: {model.name!r} with {len(rounded)} such weights, as {first.path}. Build it under "
            f'the dtype policy "mixed_{first.dtype}", which computes in {first.dtype} and keeps weights in float32.'
        )


def as_uint8(model: Any, x: Any) -> Any:
    """`x` of `fit`, `evaluate` or `predict`, as bytes where it is of `load_dataset` and the model scales it alike."""
    if not (hasattr(x, "as_uint8") and getattr(model, "accepts_uint8", False)):
        return x
    given, own = x.preprocessing, model.preprocessing
    return x.as_uint8() if (given.mean, given.std) == (own.mean, own.std) else x


def check_first_batch(model: Any, x: Any) -> Any:
    """`x` of `fit` with the same batches; warns of images that are not as the weights expect them.

    Args:
        model: an `ImageModel`, or an engine of one.
        x: an array or tensor, a `tf.data.Dataset`, a `keras.utils.PyDataset` or a generator; others, and
            datasets of `load_dataset`, are not checked.

    Raises:
        TypeError: for integers but uint8, which are pixels that the model scales.
        ValueError: for images of a shape that the model does not take.

    Warns:
        UserWarning: of pixels that no `preprocessing` has scaled, or another one, and of NaN.
    """
    if hasattr(x, "preprocessing") or len(getattr(model, "inputs", (None,))) != 1:
        return x
    if isinstance(x, keras.utils.PyDataset):
        _check_array(model, _images_of(x[0]))
    elif inspect.isgenerator(x):
        first = next(x, None)
        _check_array(model, _images_of(first))
        return (batch for batch in itertools.chain([] if first is None else [first], x))
    elif is_dataset(x):
        return _check_as_it_passes(model, x)
    elif isinstance(x, list) and len(x) > 1 and isinstance(model, keras.Model) and hasattr(x[0], "shape"):
        raise _list_error(x)
    else:
        _check_array(model, x)
    return x


def _no_images_error() -> ValueError:
    return ValueError("`x` must hold at least one image.\nReceived: no batches.")


def _list_error(images: list) -> ValueError:
    return ValueError(
        "images of one call must be one array.\n"
        f"Received: a list of {len(images)}, the first of shape {tuple(images[0].shape)}. Pass `numpy.stack(images)`."
    )


def _images_of(batch: Any) -> Any:
    return batch[0] if isinstance(batch, (tuple, list)) and batch else batch


def _check_as_it_passes(model: Any, dataset: Any) -> Any:
    """The same `tf.data.Dataset`, of which the first batch is checked as it passes; reading it before would change the
    order."""
    import tensorflow as tf

    if int(dataset.cardinality()) == 0:
        raise _no_images_error()  # Keras would train on nothing, and evaluate to nothing
    spec = _images_of(dataset.element_spec)
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None:
        check_shape(model, tuple(spec.shape))
    model.has_checked_images = True

    def look(images: np.ndarray) -> np.bool_:
        warn_pixel_range(model, images)
        return np.True_

    def pass_on(number: Any, batch: Any) -> Any:
        images = _images_of(batch)
        if not tf.is_tensor(images):
            return batch
        done = tf.cond(number == 0, lambda: tf.numpy_function(look, [images[:_IMAGES]], tf.bool), lambda: True)
        with tf.control_dependencies([done]):
            return tf.nest.map_structure(tf.identity, batch)

    return dataset.enumerate().map(pass_on)


def check_eager_call(model: Any, images: Any) -> None:
    """Warns of images that a model is called with, where they have values and not only a place in a graph.

    The first images are checked as those of `fit` are. Later ones are checked on a CPU only, for values that no photo
    has, until one warning was given. It takes 0.2 ms of the 185 ms of an image of B/16; elsewhere it would wait for the
    device.
    """
    first = not model.has_checked_images
    if model.has_warned_of_images or not hasattr(images, "shape") or not (first or _is_on_cpu(images)):
        return
    if is_uint8(images) or hasattr(images, "graph"):  # bytes have no wrong scale, TensorFlow's graph no values
        return
    try:
        few = images if images.shape[0] <= _IMAGES else images[:_IMAGES]  # a part may be a copy
        values = np.asarray(keras.ops.convert_to_numpy(few))
    except Exception:  # a tensor of a graph, for which each backend has an error of its own
        return
    model.has_checked_images = True
    warn_pixel_range(model, values, is_first=first)


def check_in_graph(model: Any, images: Any) -> Any:
    """`images` of a graph, checked in each batch of `fit`, `evaluate` or `predict` of an outer model.

    On TensorFlow's CPU alone, and never in an export, whose graph no Python function may stand in.
    """
    if keras.backend.backend() != "tensorflow" or is_uint8(images) or not keras_private.is_traced_by_outer_model(model):
        return images
    import tensorflow as tf

    if not tf.is_symbolic_tensor(images) or any(each.device_type != "CPU" for each in tf.config.get_visible_devices()):
        return images

    def look(values: np.ndarray) -> np.bool_:
        check_eager_call(model, values)
        return np.True_

    with tf.control_dependencies([tf.numpy_function(look, [images[:_IMAGES]], tf.bool)]):
        return tf.identity(images)


def _is_on_cpu(images: Any) -> bool:
    """Whether values lie in the memory of the process, by what every backend says of a tensor."""
    try:
        return "cpu" in str(images.device).lower()
    except Exception:  # of a graph
        return False


def check_called(model: Any, images: Any) -> None:
    """Raises a `ValueError` for images of a call whose shape the model does not take; Keras has words of its own."""
    specs = model.input_spec
    specs = specs if isinstance(specs, (list, tuple)) else list(getattr(specs, "values", lambda: [specs])())
    if len(specs) == 1 and hasattr(images, "shape") and getattr(specs[0], "shape", None) is not None:
        if getattr(images.shape, "rank", 0) is None:  # of a graph that was traced for batches before
            raise ValueError(
                "images must be a batch of the model's size, at least one.\n"
                f"Received: a tensor of unknown rank for {model.name!r}, which takes {tuple(specs[0].shape)}. "
                "Pass one image as `image[None]`, and call `set_shape` on a tensor of a data set."
            )
        check_shape(model, tuple(images.shape), tuple(specs[0].shape))
    elif len(specs) == 1 and isinstance(images, list) and len(images) > 1 and hasattr(images[0], "shape"):
        raise _list_error(images)


def assert_static_size(model: Any, images: Any) -> Any:
    """Images that fail in a running graph of TensorFlow if they are not of the model's size.

    Keras traces `predict` of an outer model anew for sizes that it leaves open. Positions would be resized then.
    """
    wanted, shape = tuple(model.input_shape), tuple(getattr(images, "shape", ()))
    opened = [axis for axis in range(1, len(shape)) if shape[axis] is None is not wanted[axis]]
    if keras.backend.backend() != "tensorflow" or not opened:
        return images
    import tensorflow as tf

    found = tf.shape(images)
    fits = tf.reduce_all([found[axis] == wanted[axis] for axis in opened])
    words = ["images must be a batch of the size of the model. Received: shape", found, f"for {model.name}, {wanted}"]
    with tf.control_dependencies([tf.debugging.Assert(fits, words)]):
        return tf.identity(images)


def _check_array(model: Any, images: Any) -> None:
    if getattr(images, "shape", None) is None or not hasattr(images, "dtype"):
        return
    check_values(model, images)
    check_shape(model, tuple(images.shape))
    if is_uint8(images):
        return
    model.has_checked_images = True
    warn_pixel_range(model, images[:_IMAGES])


def check_values(model: Any, images: Any) -> None:
    """Raises unless images are floats, or uint8, which are pixels, and the model knows how to scale them."""
    if not (is_uint8(images) and getattr(model, "accepts_uint8", False)):
        check_floats(images)


def check_floats(inputs: Any) -> None:
    """Raises unless images are floats."""
    for tensor in keras.tree.flatten(inputs):
        if not keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype)):
            raise TypeError(
                "images must be floats in the range the weights expect; integers are pixels not yet scaled.\n"
                f"Received: dtype {tensor.dtype}. Call `model.preprocessing(images)` first."
            )


def check_shape(model: Any, shape: Sequence[int | None], wanted: Sequence[int | None] | None = None) -> None:
    """Raises unless `shape` is that of at least one image as a model with one input takes them.

    Args:
        model: an `ImageModel`, a model around one, or an engine.
        shape: `(B, H, W, C)`; what is `None` is not known yet.
        wanted: the shape that it takes now; by default the one that it was made for.

    Raises:
        ValueError: for any other.
    """
    wanted = tuple(model.input_shape if wanted is None else wanted)
    fits = len(shape) == len(wanted) and shape[0] != 0
    if not fits or any(None not in pair and pair[0] != pair[1] for pair in zip(wanted[1:], shape[1:], strict=True)):
        raise ValueError(
            "images must be a batch of the model's size, at least one.\n"
            f"Received: shape {tuple(shape)} for {model.name!r}, which takes {wanted}. {_way_to(wanted, shape)}"
        )
    config = getattr(model, "config", None)
    if config is not None and None in wanted[1:] and None not in shape[1:] and not user_operations(model):
        check_tiled("images", shape[1:], padded_shape(model, shape[1:])[:2], config, shape[3:])


def _way_to(wanted: Sequence[int | None], shape: Sequence[int | None]) -> str:
    """What brings images of `shape` to the shape that is wanted."""
    if len(shape) == len(wanted) - 1:
        return "Pass one image as `image[None]`, and call `batch` of a data set."
    if len(shape) == len(wanted) == 4 and shape[1] == wanted[3] != shape[3]:
        return "The channels come last here: `numpy.moveaxis(images, 1, -1)`."
    return "`model.preprocessing(images)` gives it."


def warn_pixel_range(model: Any, images: Any, stacklevel: int = 4, is_first: bool = True) -> None:
    """Warns of images whose values are not those that the weights of `model` expect.

    The scale is not checked where a user's own layers come first, nor of images with one or few values. Later images
    are checked for unscaled pixels and NaN alone: one bright photo may look like any other scale.
    """
    values = np.asarray(keras.ops.convert_to_numpy(images))
    if not values.size or "float" not in values.dtype.name or (values.size < _FEWEST and np.isfinite(values).all()):
        return
    low, high = (float(found) for found in (values.min(), values.max()))  # NaN if one value is
    if message := range_warning(model, low, high, is_first):
        model.has_warned_of_images = True
        warnings.warn(message, stacklevel=stacklevel)


def range_warning(model: Any, low: float, high: float, is_first: bool = True) -> str | None:
    """What is wrong with images of these lowest and highest values, or `None`.

    Args:
        model: an `ImageModel`, or an engine, whose `preprocessing` says what its weights expect.
        low: lowest value of a batch.
        high: highest value of a batch.
        is_first: whether any wrong scale is reported, or only that of unscaled pixels.
    """
    if not np.isfinite([low, high]).all():
        return (
            "images reach the model with NaN or infinity among them, and so do its answers. Look for a division by 0 "
            "in what prepares them."
        )
    if user_operations(model):
        return None
    record = model.preprocessing or Preprocessing()  # of a clone or a flat graph none is known
    black, white = record.value_range
    reason = _misscaled(low, high, black, white)
    if reason is None or ((model.preprocessing is None or not is_first) and reason != _PIXELS):
        return None
    return (
        f"images reach the model with values from {low:g} to {high:g}, and its weights expect "
        f"{black:.3g} to {white:.3g}: they look like pixels that were {reason}. Call `model.preprocessing(images)` on "
        "pixels from 0 to 255 first, or map it over the data set."
    )


def _misscaled(low: float, high: float, black: float, white: float) -> str | None:
    """How pixels of these values were scaled, if not from `black` to `white`."""
    margin = _BEYOND * (white - black)
    if max(abs(low), abs(high)) > _FAR * max(abs(black), abs(white)):
        return _PIXELS
    if low < black - margin or high > white + margin:
        return "scaled by another mean and deviation, as ImageNet's"
    if black < 0 <= low < high <= 1:
        return "scaled to 0 to 1"
    if black < -1 - _NEAR and white > 1 + _NEAR and -1 <= low < _NEAR - 1 and 1 - _NEAR < high <= 1:
        return "scaled to -1 to 1"
    return None


@contextlib.contextmanager
def require_batches() -> Iterator[None]:
    """Raises a `ValueError` where no batch came: Keras' `predict` then reads a variable that it never set."""
    try:
        yield
    except UnboundLocalError as error:
        if "batch_outputs" not in str(error):
            raise
        raise _no_images_error() from None


@contextlib.contextmanager
def check_even_batches(*arrays: tuple[Any, int | None]) -> Iterator[None]:
    """Raises an error with advice for a batch that JAX's devices cannot share evenly: at once for an array, else as it
    comes.

    Args:
        *arrays: each `x`, with its size of a batch; of what is no array nothing is known before.

    Raises:
        ValueError: for such a batch.
    """
    devices = num_batch_shards()
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


_MOST_COLORS = 4  # channels of a photo


def source_of(images: Tensor) -> Any:
    """The input, or the list of inputs, that a Keras tensor comes from."""
    sources = keras.utils.get_source_inputs(images)
    return sources[0] if len(sources) == 1 else sources


def shape_to_prepare(images: Tensor) -> Shape:
    """`(H, W, C)` of what is given to the model: before layers of the user's own, if those get one image."""
    shape: Any = getattr(source_of(images), "shape", ())
    return (images.shape if len(shape) != 4 or shape[-1] is None else shape)[1:]


def record_for(input_shape: Shape, record: Preprocessing) -> Preprocessing:
    """The record for images of this shape."""
    height, width, channels = input_shape
    size = None if height is None or width is None else (height, width)
    return dataclasses.replace(record.with_channels(cast(int, channels)), image_size=size)


def known_grid(shape: Sequence[int | None], config: Any) -> Any:
    return None if None in shape[:2] else config.grid(*shape[:2])


def check_input_shape(shape: Any, config: Any) -> tuple:
    """`shape` as ints; raises unless it is (H, W, C) with sides that are unknown or tiled by the config's patches."""
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise ValueError(f"`input_shape` must be (H, W, C).\nReceived: input_shape={shape!r}.")
    _check_channels_last(shape, config)
    sides = [side if side is None else check_positive_int("input_shape", side) for side in shape[:2]]
    shape = (*sides, check_positive_int("input_shape", shape[2]))
    check_tiled("input_shape", shape, sides, config, shape[2:])
    statistics = getattr(config, "pixel_statistics", None)
    if statistics is not None and len(statistics[0]) != shape[2]:
        raise ValueError(
            "`input_shape` must have as many channels as the model has statistics of pixels, by which it normalises "
            f"them itself.\nReceived: input_shape={shape}, {len(statistics[0])} means. Pass "
            f"{(*sides, len(statistics[0]))}, and repeat the channel of grey images."
        )
    return shape


def _check_channels_last(shape: Any, config: Any) -> None:
    """Refuses (3, 64, 64) in words that help, unless patches of so few pixels make it an image of many channels."""
    height, width, channels = shape
    last = channels is None or (isinstance(channels, int) and channels > _MOST_COLORS)
    if last and height in range(1, _MOST_COLORS + 1) and height % config.stride:
        raise ValueError(
            "`input_shape` must be (H, W, C), with the channels last.\n"
            f"Received: input_shape={tuple(shape)}. Pass {(width, channels, height)}."
        )
