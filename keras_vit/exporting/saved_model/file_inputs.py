"""Files of photos to what the model takes, with a status for each, in a graph that needs nothing but TensorFlow.

No file raises. Most bad files are found before they are decoded; `tf.data` drops those on which the decoder fails, and
their status follows from their absence. Sizes are read from the headers first. The photos that are decoded at once have
together at most the pixels that one may have.
"""

import functools
from collections.abc import Callable, Sequence

from keras_vit.annotations import Tensor
from keras_vit.data.prepare import prepare
from keras_vit.exporting.pixels import scaled_pixels
from keras_vit.exporting.saved_model.resize_in_strips import prepare_stored, upright_size
from keras_vit.exporting.task import ExportTask
from keras_vit.images.decode import apply_orientation, grey, stored_pixels
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.images.segments import MAX_SCANS, MAX_STEPS, is_jpeg, is_png, look, stored_size

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


def takes_files(task: ExportTask) -> bool:
    """Whether photos as files can be brought to what the model takes: colours or grey, and a size to aim at."""
    return task.channels in (1, 3) and None not in target_size(task)


def target_size(task: ExportTask) -> tuple[int | None, int | None]:
    """`(H, W)` of the images that the model gets."""
    record = task.model.preprocessing
    known = None if _keeps_size(record) else record.image_size
    return known or task.image_size


def prepare_files(files: Tensor, task: ExportTask) -> tuple[Tensor, Tensor]:
    """Photos as the model takes them.

    Args:
        files: string `(B,)`, the bytes of JPEG or PNG files.
        task: an `ExportTask` for which `takes_files`.

    Returns:
        float32 `(B, H, W, C)`, zeros for photos that are not ok, and int32 `(B,)`, the status of each as its place in
        `STATUSES`.

    Raises:
        tf.errors.InvalidArgumentError: for more than `task.max_batch` files.
    """
    import tensorflow as tf

    files = _few(files, task)
    blank = (tf.constant(_DAMAGED), tf.constant(1), tf.constant(1, tf.int64))
    codes, *facts, pixels = _each(lambda file: _header(file, task), (files,), blank)
    most = tf.reduce_max(tf.concat([pixels, tf.ones((1,), tf.int64)], 0))
    at_once = tf.clip_by_value(task.max_pixels // most, 1, MAX_AT_ONCE)
    shape = (*target_size(task), task.channels)
    nothing = (tf.constant(_DAMAGED), tf.zeros(shape))
    decode = functools.partial(_decoded, task=task)
    codes, images = _each(lambda *photo: decode(*photo), (files, codes, *facts), nothing, at_once)
    return tf.ensure_shape(images, (None, *shape)), codes


def prepare_pixels(pixels: Tensor, task: ExportTask) -> Tensor:
    """Pixels of any size as the model takes them.

    Args:
        pixels: uint8 `(B, H, W, C)`.
        task: an `ExportTask`.

    Returns:
        float32 `(B, H', W', C)`.

    Raises:
        tf.errors.InvalidArgumentError: for more than `task.max_batch` images, more pixels in an image than
            `task.max_pixels`, or a side above `MAX_SIDE`.
    """
    import tensorflow as tf

    pixels = _few(pixels, task)
    record, size = task.model.preprocessing, target_size(task)
    height, width = (tf.cast(tf.shape(pixels)[axis], tf.int64) for axis in (1, 2))
    fits = tf.debugging.Assert(
        (height * width <= task.max_pixels) & (tf.maximum(height, width) <= MAX_SIDE) & (tf.minimum(height, width) > 0),
        [
            f"an image must have 1 to {task.max_pixels} pixels and no side above {MAX_SIDE}; received (H, W)",
            height,
            width,
        ],
    )
    with tf.control_dependencies([fits]):
        pixels = tf.identity(pixels)
    if _keeps_size(record):
        return scaled_pixels(pixels, task)
    if record.resize == "squash":
        same = (height == size[0]) & (width == size[1])
        found = tf.cond(same, lambda: scaled_pixels(pixels, task), lambda: _resized(pixels, task))
        return tf.reshape(found, (-1, *size, task.channels))  # LiteRT has no operation to tell a shape
    return _resized(pixels, task)


def _few(images: Tensor, task: ExportTask) -> Tensor:
    """The same images, after a check that they are no more than one call may have."""
    import tensorflow as tf

    count = tf.shape(images)[0]
    few = tf.debugging.Assert(
        count <= task.max_batch, [f"a request must have at most {task.max_batch} images; received", count]
    )
    with tf.control_dependencies([few]):
        return tf.identity(images)


def _resized(pixels: Tensor, task: ExportTask) -> Tensor:
    """One image after the other, so that the memory for one is enough."""
    import tensorflow as tf

    record = task.model.preprocessing
    shape = tf.TensorSpec((*target_size(task), task.channels), tf.float32)
    upright = tf.constant(1)

    def prepared(image: Tensor) -> Tensor:
        if record.resize == "squash" and record.interpolation == "bilinear" and not record.antialias:
            return prepare(tf.cast(image, tf.float32), record)  # of floats, as LiteRT resizes no bytes to floats
        return prepare_stored(image, upright, record)

    return tf.map_fn(prepared, pixels, fn_output_signature=shape, parallel_iterations=1)


def _keeps_size(record: Preprocessing) -> bool:
    return record.resize == "none" or record.image_size is None


def _header(file: Tensor, task: ExportTask) -> tuple[Tensor, Tensor, Tensor]:
    """Code, EXIF orientation, and pixels, weighed by the memory they need.

    Fails if the header is damaged.
    """
    import tensorflow as tf

    length = tf.strings.length(file)
    code = tf.where(is_jpeg(file) | is_png(file), _OK, _FORMAT)
    code = tf.where(length > task.max_bytes, _BYTES, code)
    code = tf.where(length == 0, _EMPTY, code)

    def measured() -> tuple[Tensor, Tensor, Tensor]:
        said = look(file)
        sides = tf.cast(stored_size(file), tf.int64)
        count = sides[0] * sides[1] * tf.where(said.row_by_row, one, SEVERAL_SCANS * one)
        fits = (count <= task.max_pixels) & (tf.reduce_max(sides) <= MAX_SIDE)
        found = tf.where(fits, tf.where(said.few, _OK, _PARTS), _PIXELS)
        found = tf.where(tf.reduce_min(sides) < 1, _DAMAGED, found)
        return found, said.orientation, tf.where(found == _OK, count, one)

    one = tf.constant(1, tf.int64)
    return tf.cond(code == _OK, measured, lambda: (code, tf.constant(1), one))


def _decoded(file: Tensor, code: Tensor, orientation: Tensor, task: ExportTask) -> tuple[Tensor, Tensor]:
    """Code and image; fails if the pixels are damaged."""
    import tensorflow as tf

    record, shape = task.model.preprocessing, (*target_size(task), task.channels)

    def pixels() -> tuple[Tensor, Tensor]:
        stored = stored_pixels(file)
        if not _keeps_size(record):
            return tf.constant(_OK), prepare_stored(stored, orientation, record)
        right = tf.reduce_all(tf.stack(upright_size(stored, orientation)) == shape[:2])
        return tf.cond(right, lambda: (tf.constant(_OK), _as_it_is(stored, orientation, task)), lambda: blank(_SIZE))

    def blank(code: Tensor) -> tuple[Tensor, Tensor]:
        return tf.constant(code) if isinstance(code, int) else code, tf.zeros(shape)

    return tf.cond(code == _OK, pixels, lambda: blank(code))


def _as_it_is(stored: Tensor, orientation: Tensor, task: ExportTask) -> Tensor:
    """A photo of the right size, so not a large one."""
    import tensorflow as tf

    upright = apply_orientation(stored, orientation)
    upright = grey(upright) if task.channels == 1 else upright
    return scaled_pixels(tf.ensure_shape(upright, (*task.image_size, task.channels)), task)


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
