"""Files of photos to what the model takes, with a status for each, in a graph that needs nothing but TensorFlow.

No file raises. Most bad files are found before they are decoded; `tf.data` drops those on which the decoder fails, and
their status follows from their absence. Sizes are read from the headers first. The photos that are decoded at once have
together at most the pixels that one may have.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import cast

from keras_vit.annotations import Pair, Tensor
from keras_vit.data.prepare import prepare, tensorflow_ops
from keras_vit.exporting.model_function import scale_pixels
from keras_vit.exporting.spec import ExportSpec
from keras_vit.images.decode import apply_orientation, grey, stored_pixels, stored_window
from keras_vit.images.headers import MAX_SCANS, MAX_STEPS, is_jpeg, is_png, read_header, stored_size
from keras_vit.images.preprocessing import Preprocessing, fit_channels, scaled
from keras_vit.images.resizing import covering_size, resize_matrix, whole_levels

STATUSES = {  # every status that a photo can get, and what it means; the order is that of the codes in the graph
    "ok": "the answer is the model's",
    "empty": "no bytes",
    "too many bytes": "the file is larger than `max_bytes`",
    "not a JPEG or PNG": "the file does not begin as one, with the header of a PNG first and whole",
    "too many pixels": "the header declares more than `max_pixels`, a side above 8,192, or, for a JPEG in several "
    "scans (as progressive ones), more than a quarter of `max_pixels`",
    "too many parts": f"a JPEG of more than {MAX_SCANS} scans, or a file of more than {MAX_STEPS:,} segments or chunks",
    "damaged": "the header or the pixels cannot be decoded",
    "wrong size": "the model's preprocessing does not resize, and the photo has another size than the model takes",
}
MAX_SIDE = 8192  # pixels; the matrices of a resize grow with it
MAX_AT_ONCE = 8  # photos that are decoded at the same time, if they are small
SEVERAL_SCANS = 4  # times the memory per pixel: libjpeg keeps 6 to 8 bytes of coefficients beside 3 of colours
_OK, _EMPTY, _BYTES, _FORMAT, _PIXELS, _PARTS, _DAMAGED, _SIZE = range(len(STATUSES))
STRIP = 2**16  # pixels; as float32 0.8 MB, a few times in the heap of every thread
WIDEST_RESULT = 512  # pixels; a narrower strip is as long as if it were so wide, since it may be made wider
_BETWEEN = 20 * 2**20  # bytes that TensorFlow's antialias may take between rows and columns


def takes_files(spec: ExportSpec) -> bool:
    """Whether photos as files can be brought to what the model takes: colours or grey, and a size to aim at."""
    return spec.channels in (1, 3) and None not in target_size(spec)


def target_size(spec: ExportSpec) -> tuple[int | None, int | None]:
    """`(H, W)` of the images that the model gets."""
    record = spec.model.preprocessing
    known = None if _keeps_size(record) else record.image_size
    return known or spec.image_size


def prepare_files(files: Tensor, spec: ExportSpec) -> tuple[Tensor, Tensor]:
    """Photos as the model takes them.

    Args:
        files: string `(B,)`, the bytes of JPEG or PNG files.
        spec: an `ExportSpec` for which `takes_files`.

    Returns:
        float32 `(B, H, W, C)`, zeros for photos that are not ok, and int32 `(B,)`, the status of each as its place in
        `STATUSES`.

    Raises:
        tf.errors.InvalidArgumentError: for more than `spec.max_batch` files.
    """
    import tensorflow as tf

    files = _few(files, spec)
    blank = (tf.constant(_DAMAGED), tf.constant(1), tf.constant(1, tf.int64))
    codes, *facts, pixels = _each(lambda file: _header(file, spec), (files,), blank)
    most = tf.reduce_max(tf.concat([pixels, tf.ones((1,), tf.int64)], 0))
    at_once = tf.clip_by_value(spec.max_pixels // most, 1, MAX_AT_ONCE)
    shape = (*target_size(spec), spec.channels)
    nothing = (tf.constant(_DAMAGED), tf.zeros(shape))
    decode = functools.partial(_decoded, spec=spec)
    codes, images = _each(lambda *photo: decode(*photo), (files, codes, *facts), nothing, at_once)
    return tf.ensure_shape(images, (None, *shape)), codes


def prepare_pixels(pixels: Tensor, spec: ExportSpec) -> Tensor:
    """Pixels of any size as the model takes them.

    Args:
        pixels: uint8 `(B, H, W, C)`.
        spec: an `ExportSpec`.

    Returns:
        float32 `(B, H', W', C)`.

    Raises:
        tf.errors.InvalidArgumentError: for more than `spec.max_batch` images, more pixels in an image than
            `spec.max_pixels`, or a side above `MAX_SIDE`.
    """
    import tensorflow as tf

    pixels = _few(pixels, spec)
    record, size = spec.model.preprocessing, target_size(spec)
    height, width = (tf.cast(tf.shape(pixels)[axis], tf.int64) for axis in (1, 2))
    fits = tf.debugging.Assert(
        (height * width <= spec.max_pixels) & (tf.maximum(height, width) <= MAX_SIDE) & (tf.minimum(height, width) > 0),
        [
            f"an image must have 1 to {spec.max_pixels} pixels and no side above {MAX_SIDE}; received (H, W)",
            height,
            width,
        ],
    )
    with tf.control_dependencies([fits]):
        pixels = tf.identity(pixels)
    if _keeps_size(record):
        return scale_pixels(pixels, spec)
    if record.resize == "squash":
        same = (height == size[0]) & (width == size[1])
        found = tf.cond(same, lambda: scale_pixels(pixels, spec), lambda: _resized(pixels, spec))
        return tf.reshape(found, (-1, *size, spec.channels))  # LiteRT has no operation to tell a shape
    return _resized(pixels, spec)


def _few(images: Tensor, spec: ExportSpec) -> Tensor:
    """The same images, after a check that they are no more than one call may have."""
    import tensorflow as tf

    count = tf.shape(images)[0]
    few = tf.debugging.Assert(
        count <= spec.max_batch, [f"a request must have at most {spec.max_batch} images; received", count]
    )
    with tf.control_dependencies([few]):
        return tf.identity(images)


def _resized(pixels: Tensor, spec: ExportSpec) -> Tensor:
    """One image after the other, so that the memory for one is enough."""
    import tensorflow as tf

    record = spec.model.preprocessing
    shape = tf.TensorSpec((*target_size(spec), spec.channels), tf.float32)
    upright = tf.constant(1)

    def prepared(image: Tensor) -> Tensor:
        if record.resize == "squash" and record.interpolation == "bilinear" and not record.antialias:
            return prepare(tf.cast(image, tf.float32), record)  # of floats, as LiteRT resizes no bytes to floats
        return prepare_stored(image, upright, record)

    return tf.map_fn(prepared, pixels, fn_output_signature=shape, parallel_iterations=1)


def _keeps_size(record: Preprocessing) -> bool:
    return record.resize == "none" or record.image_size is None


def _header(file: Tensor, spec: ExportSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Code, EXIF orientation, and pixels, weighed by the memory they need.

    Fails if the header is damaged.
    """
    import tensorflow as tf

    length = tf.strings.length(file)
    code = tf.where(is_jpeg(file) | is_png(file), _OK, _FORMAT)
    code = tf.where(length > spec.max_bytes, _BYTES, code)
    code = tf.where(length == 0, _EMPTY, code)

    def measured() -> tuple[Tensor, Tensor, Tensor]:
        said = read_header(file)
        sides = tf.cast(stored_size(file), tf.int64)
        count = sides[0] * sides[1] * tf.where(said.one_scan, one, SEVERAL_SCANS * one)
        fits = (count <= spec.max_pixels) & (tf.reduce_max(sides) <= MAX_SIDE)
        found = tf.where(fits, tf.where(said.within_limits, _OK, _PARTS), _PIXELS)
        found = tf.where(tf.reduce_min(sides) < 1, _DAMAGED, found)
        return found, said.orientation, tf.where(found == _OK, count, one)

    one = tf.constant(1, tf.int64)
    return tf.cond(code == _OK, measured, lambda: (code, tf.constant(1), one))


def _decoded(file: Tensor, code: Tensor, orientation: Tensor, spec: ExportSpec) -> tuple[Tensor, Tensor]:
    """Code and image; fails if the pixels are damaged."""
    import tensorflow as tf

    record, shape = spec.model.preprocessing, (*target_size(spec), spec.channels)

    def pixels() -> tuple[Tensor, Tensor]:
        stored = stored_pixels(file)
        if not _keeps_size(record):
            return tf.constant(_OK), prepare_stored(stored, orientation, record)
        right = tf.reduce_all(tf.stack(upright_size(stored, orientation)) == shape[:2])
        return tf.cond(right, lambda: (tf.constant(_OK), _as_it_is(stored, orientation, spec)), lambda: blank(_SIZE))

    def blank(code: Tensor) -> tuple[Tensor, Tensor]:
        return tf.constant(code) if isinstance(code, int) else code, tf.zeros(shape)

    return tf.cond(code == _OK, pixels, lambda: blank(code))


def _as_it_is(stored: Tensor, orientation: Tensor, spec: ExportSpec) -> Tensor:
    """A photo of the right size, so not a large one."""
    import tensorflow as tf

    upright = apply_orientation(stored, orientation)
    upright = grey(upright) if spec.channels == 1 else upright
    return scale_pixels(tf.ensure_shape(upright, (*spec.image_size, spec.channels)), spec)


def _each(
    function: Callable[..., tuple[Tensor, ...]],
    rows: Sequence[Tensor],
    blank: tuple[Tensor, ...],
    at_once: Tensor = None,
) -> tuple[Tensor, ...]:
    """`function` of each row, and `blank` for those where it fails.

    Args:
        function: from one row of each of `rows` to a tuple of tensors.
        rows: tensors with the same first axis B.
        blank: what the function would give, as tensors.
        at_once: how many rows at the same time, an int64 scalar; by default one.

    Returns:
        A tuple of tensors with the first axis B.
    """
    import tensorflow as tf

    count = tf.size(rows[0], tf.int64)
    options = tf.data.Options()  # tf.data's optimisations cost more than they gain in a graph of one use
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    given = tf.data.Dataset.from_tensor_slices(rows).enumerate()
    found = given.map(lambda place, row: (place, function(*row)), num_parallel_calls=at_once).ignore_errors()
    found = found.concatenate(tf.data.Dataset.from_tensors((count, blank)))
    places, values = found.batch(count + 1).with_options(options).get_single_element()
    last = tf.size(places) - 1
    order = tf.fill([count], last)  # the row of `values` for each of `rows`
    order = tf.tensor_scatter_nd_update(order, places[:-1, None], tf.range(last))
    return tuple(tf.gather(value, order) for value in values)


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
