"""The shape of what a model is given, and the preprocessing record that belongs to it."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import keras

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.config.variants import check_tiled
from keras_vit.images.preprocessing import Preprocessing

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
