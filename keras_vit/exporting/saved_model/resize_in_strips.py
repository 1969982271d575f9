"""Large photos made small a strip of rows at a time, with the numbers of the whole photo.

A photo of 24 million pixels takes 72 MB as bytes and would take 288 MB as float32. So only strips of it are turned
upright, made grey or made float32. What is kept of a strip has the width of the result.
"""

import dataclasses
from collections.abc import Callable
from typing import cast

from keras_vit.annotations import Pair, Tensor
from keras_vit.data.prepare import prepare, tensorflow_ops
from keras_vit.images.decode import apply_orientation, grey, stored_window
from keras_vit.images.preprocessing import Preprocessing, fit_channels, scaled
from keras_vit.images.resizing import covering_size, resize_matrix, whole_levels

STRIP = 2**16  # pixels; as float32 0.8 MB, a few times in the heap of every thread
WIDEST_RESULT = 512  # pixels; a narrower strip is as long as if it were so wide, since it may be made wider
_BETWEEN = 20 * 2**20  # bytes that TensorFlow's antialias may take between rows and columns


def prepare_stored(stored: Tensor, orientation: Tensor, record: Preprocessing) -> Tensor:
    """As `record(pixels)` of the upright photo.

    Args:
        stored: uint8 `(H, W, 3)` or `(H, W, C)`, as it lies in the file.
        orientation: int32 scalar, 1..8 as EXIF has it.
        record: `Preprocessing` that resizes to an `image_size`.

    Returns:
        float32 `image_size + (C,)`.
    """
    import tensorflow as tf

    channels = len(record.mean)
    if record.resize == "squash" and record.interpolation == "bilinear":
        stored = _grey(stored) if channels == 1 else stored
        if not record.antialias:
            return _squashed(stored, orientation, record)
        between = 4 * channels * max(_size(record)) * tf.shape(stored)[1]
        return tf.cond(
            between <= _BETWEEN,
            lambda: _squashed(stored, orientation, record),
            lambda: scaled(_plain(stored, orientation, record), record),
        )
    resized = _overshoots if record.interpolation == "bicubic" else _plain
    return scaled(tf.ensure_shape(resized(stored, orientation, record), (*_size(record), channels)), record)


def upright_size(stored: Tensor, orientation: Tensor) -> tuple[Tensor, ...]:
    """`(H, W)` of the photo as it should be seen, int32 scalars."""
    import tensorflow as tf

    size = tf.shape(stored)[:2]
    return tuple(tf.unstack(tf.where(orientation >= 5, tf.reverse(size, [0]), size)))


def _squashed(stored: Tensor, orientation: Tensor, record: Preprocessing) -> Tensor:
    """Resized as it lies, then turned: bilinear treats both axes alike, and the result is small."""
    import tensorflow as tf

    lying = dataclasses.replace(record, image_size=_size(record)[::-1])
    small = tf.cond(orientation >= 5, lambda: prepare(stored, lying), lambda: prepare(stored, record))
    small = tf.ensure_shape(small, (None, None, len(record.mean)))
    return tf.ensure_shape(apply_orientation(small, orientation), (*_size(record), len(record.mean)))


def _grey(stored: Tensor) -> Tensor:
    """`(H, W, 1)`; in one piece the sum of the colours would take 24 bytes a pixel."""
    import tensorflow as tf

    if stored.shape[-1] == 1:
        return stored
    return _joined(stored, tf.constant(1), grey, 1)


def _overshoots(stored: Tensor, orientation: Tensor, record: Preprocessing) -> Tensor:
    """Bicubic: after the columns every number is rounded to a grey level, so a byte holds it."""
    import tensorflow as tf

    channels, part = len(record.mean), _part(_size(record)[1], 32)
    columns = _matrix(1, stored, orientation, record)

    def narrowed(strip: Tensor) -> Tensor:
        return tf.cast(_levels(tf.einsum("hwc,vw->hvc", _floats(strip, record), columns)), tf.uint8)

    def shortened(first: Tensor) -> Tensor:
        floats = tf.cast(narrow[:, first : first + part], tf.float32)
        return _levels(tf.einsum("hwc,uh->uwc", floats, rows))

    narrow = _joined(stored, orientation, narrowed, channels)  # (H, v, C)
    with tf.control_dependencies([narrow]):  # the photo is gone before the second matrix is made
        rows = _matrix(0, stored, orientation, record)
        firsts = tf.range(0, _size(record)[1], part)
    shape = tf.TensorSpec((_size(record)[0], part, channels), tf.float32)
    parts = tf.map_fn(shortened, firsts, fn_output_signature=shape, parallel_iterations=1)
    return tf.reshape(tf.transpose(parts, (1, 0, 2, 3)), (*_size(record), channels))


def _plain(stored: Tensor, orientation: Tensor, record: Preprocessing) -> Tensor:
    """Bilinear and area: each strip adds its share to every row of the result."""
    import tensorflow as tf

    columns, rows = (_matrix(axis, stored, orientation, record) for axis in (1, 0))

    def share(strip: Tensor, start: Tensor) -> Tensor:
        narrow = tf.einsum("hwc,vw->hvc", _floats(strip, record), columns)
        return tf.einsum("hwc,uh->uwc", narrow, rows[:, start : start + tf.shape(strip)[0]])

    pixels = _summed(stored, orientation, share, tf.zeros((*_size(record), len(record.mean))))
    return whole_levels(pixels, record, tensorflow_ops())


def _size(record: Preprocessing) -> Pair:
    """`(H, W)` of the result, which every record here has."""
    return cast(Pair, record.image_size)


def _floats(strip: Tensor, record: Preprocessing) -> Tensor:
    """float32 with the record's channels."""
    import tensorflow as tf

    channels = len(record.mean)
    strip = grey(strip) if (strip.shape[-1], channels) == (3, 1) else fit_channels(strip, channels, tf)
    return tf.cast(strip, tf.float32)


def _levels(values: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.round(tf.clip_by_value(values, 0.0, 255.0))


def _part(side: int, most: int) -> int:
    """The largest divisor of a side up to `most`, so that parts are alike."""
    return max(size for size in range(1, min(side, most) + 1) if side % size == 0)


def _matrix(axis: int, stored: Tensor, orientation: Tensor, record: Preprocessing) -> Tensor:
    """`(v, W)` or `(u, H)`, which resizes the columns (axis 1) or the rows (axis 0) of the upright photo.

    Made a few rows at a time: on its way a matrix is there six times over, and whole ones are large.
    """
    import tensorflow as tf

    old, ops = upright_size(stored, orientation), tensorflow_ops()
    new = _size(record) if record.resize == "squash" else covering_size(old, record, ops)
    kept, part = _size(record)[axis], _part(_size(record)[axis], 32)

    def some(rows: Tensor) -> Tensor:
        return resize_matrix(old[axis], new[axis], kept, record, ops, rows)

    rows = tf.reshape(tf.range(kept, dtype=tf.float32), (-1, part))
    parts = tf.map_fn(some, rows, fn_output_signature=tf.TensorSpec((part, None)), parallel_iterations=1)
    return tf.reshape(parts, (kept, -1))


def _joined(stored: Tensor, orientation: Tensor, function: Callable[[Tensor], Tensor], channels: int) -> Tensor:
    """`function(strip)`, uint8 `(rows, v, channels)`, of all upright strips, one below the other."""
    import tensorflow as tf

    (height, _), size = upright_size(stored, orientation), _strip_rows(stored, orientation)
    parts = tf.TensorArray(tf.uint8, (height + size - 1) // size, infer_shape=False)

    def step(index: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        strip, _ = _strip(stored, orientation, index, size)
        return index + 1, parts.write(index, function(strip))

    def go_on(index: Tensor, parts: Tensor) -> Tensor:
        return index * size < height

    joined = tf.while_loop(go_on, step, (tf.constant(0), parts), parallel_iterations=1)[1].concat()
    return tf.ensure_shape(joined, (None, None, channels))


def _summed(stored: Tensor, orientation: Tensor, function: Callable[[Tensor, Tensor], Tensor], total: Tensor) -> Tensor:
    """The sum of `function(strip, first row)` over all upright strips."""
    import tensorflow as tf

    (height, _), size = upright_size(stored, orientation), _strip_rows(stored, orientation)

    def step(index: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        strip, start = _strip(stored, orientation, index, size)
        return index + 1, total + tf.ensure_shape(function(strip, start), total.shape)

    def go_on(index: Tensor, total: Tensor) -> Tensor:
        return index * size < height

    return tf.while_loop(go_on, step, (tf.constant(0), total), parallel_iterations=1)[1]


def _strip_rows(stored: Tensor, orientation: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.maximum(STRIP // tf.maximum(upright_size(stored, orientation)[1], WIDEST_RESULT), 1)


def _strip(stored: Tensor, orientation: Tensor, index: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The strip of the upright photo and its first row."""
    import tensorflow as tf

    height, width = upright_size(stored, orientation)
    start = index * rows
    y, x, h, w = tf.unstack(
        stored_window((start, 0, tf.minimum(rows, height - start), width), (height, width), orientation)
    )
    strip = tf.slice(stored, (y, x, 0), (h, w, stored.shape[-1]))
    return apply_orientation(strip, orientation), start
