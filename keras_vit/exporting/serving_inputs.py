"""Inputs and signatures of a SavedModel: photo files or pixels to prepared images and answers, in one graph.

No file raises; each has a status. Photos that are decoded at once have together at most the pixels of one, and large
ones are resized a strip of rows at a time, with the same result: 24 megapixels would have 288 MB as float32.
`serving_default` and `features` take `image_bytes` `(B,)`; `predict_pixels` and `features_pixels` take `pixels`, uint8
`(B, H, W, C)`. A model without a head has features only; one without an image size takes pixels only. A model of pixels
has the two without features. Of a text tower `serving_default` takes `ids`, int32 `(B, T)`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from keras_vit import kernels
from keras_vit.annotations import Pair, Tensor
from keras_vit.data.prepare import prepare, tensorflow_ops
from keras_vit.exporting.model_function import input_spec, pixel_module, scale_pixels
from keras_vit.exporting.spec import ExportSpec
from keras_vit.images.decode import apply_orientation, grey, stored_pixels, stored_window
from keras_vit.images.headers import MAX_SCANS, MAX_STEPS, is_jpeg, is_png, read_header, stored_size
from keras_vit.images.preprocessing import Preprocessing, fit_channels, scaled
from keras_vit.images.resizing import covering_size, resize_matrix, whole_levels
from keras_vit.silence import silence

STATUSES = {  # each status of a photo and its meaning, in the order of the codes in the graph
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
MAX_AT_ONCE = 8  # small photos that are decoded at the same time
SEVERAL_SCANS = 4  # times the memory per pixel: libjpeg keeps 6 to 8 bytes of coefficients and 3 of colors
_OK, _EMPTY, _BYTES, _FORMAT, _PIXELS, _PARTS, _DAMAGED, _SIZE = range(len(STATUSES))
STRIP = 2**16  # pixels; 0.8 MB as float32, a few times in the heap of each thread
WIDEST_RESULT = 512  # pixels; limits the rows of a narrower strip, which may be enlarged
_BETWEEN = 20 * 2**20  # bytes of TensorFlow's antialiased resize between rows and columns


def takes_files(spec: ExportSpec) -> bool:
    """Whether the model takes photos as files: it needs 1 or 3 channels and an image size."""
    return spec.channels in (1, 3) and None not in target_size(spec)


def target_size(spec: ExportSpec) -> tuple[int | None, int | None]:
    """`(H, W)` of the prepared images."""
    record = spec.model.preprocessing
    known = None if _keeps_size(record) else record.image_size
    return known or spec.image_size


def prepare_files(files: Tensor, spec: ExportSpec) -> tuple[Tensor, Tensor]:
    """Photo files as prepared images.

    Args:
        files: string `(B,)`, the bytes of JPEG or PNG files.
        spec: an `ExportSpec` for which `takes_files`.

    Returns:
        float32 `(B, H, W, C)`, zeros for bad files, and int32 `(B,)`, the index of each status in `STATUSES`.

    Raises:
        tf.errors.InvalidArgumentError: for more than `spec.max_batch` files.
    """
    import tensorflow as tf

    files = check_count(files, spec)
    blank = (tf.constant(_DAMAGED), tf.constant(1), tf.constant(1, tf.int64))
    codes, *facts, pixels = _map_rows(lambda file: _inspect_header(file, spec), (files,), blank)
    most = tf.reduce_max(tf.concat([pixels, tf.ones((1,), tf.int64)], 0))
    at_once = tf.clip_by_value(spec.max_pixels // most, 1, MAX_AT_ONCE)
    shape = (*target_size(spec), spec.channels)
    nothing = (tf.constant(_DAMAGED), tf.zeros(shape))
    decode = functools.partial(_decode, spec=spec)
    codes, images = _map_rows(lambda *photo: decode(*photo), (files, codes, *facts), nothing, at_once)
    return tf.ensure_shape(images, (None, *shape)), codes


def prepare_pixels(pixels: Tensor, spec: ExportSpec) -> Tensor:
    """Pixels of any size as prepared images.

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

    pixels = check_count(pixels, spec)
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
        found = tf.cond(same, lambda: scale_pixels(pixels, spec), lambda: _resize(pixels, spec))
        return tf.reshape(found, (-1, *size, spec.channels))  # LiteRT has no operation that asserts a shape
    return _resize(pixels, spec)


def check_count(images: Tensor, spec: ExportSpec) -> Tensor:
    """The same images or texts, after a check of their number."""
    import tensorflow as tf

    count, what = tf.shape(images)[0], "texts" if spec.takes == "ids" else "images"
    few = tf.debugging.Assert(
        count <= spec.max_batch, [f"a request must have at most {spec.max_batch} {what}; received", count]
    )
    with tf.control_dependencies([few]):
        return tf.identity(images)


def _resize(pixels: Tensor, spec: ExportSpec) -> Tensor:
    """Resizes one image after the other, to save memory."""
    import tensorflow as tf

    record = spec.model.preprocessing
    shape = tf.TensorSpec((*target_size(spec), spec.channels), tf.float32)
    upright = tf.constant(1)

    def prepared(image: Tensor) -> Tensor:
        if record.resize == "squash" and record.interpolation == "bilinear" and not record.antialias:
            return prepare(tf.cast(image, tf.float32), record)  # floats, as LiteRT does not resize bytes to floats
        return prepare_stored(image, upright, record)

    return tf.map_fn(prepared, pixels, fn_output_signature=shape, parallel_iterations=1)


def _keeps_size(record: Preprocessing) -> bool:
    return record.resize == "none" or record.image_size is None


def _inspect_header(file: Tensor, spec: ExportSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Code, EXIF orientation, and pixels weighted by their memory.

    Fails if the header is damaged.
    """
    import tensorflow as tf

    length = tf.strings.length(file)
    code = tf.where(is_jpeg(file) | is_png(file), _OK, _FORMAT)
    code = tf.where(length > spec.max_bytes, _BYTES, code)
    code = tf.where(length == 0, _EMPTY, code)

    def measured() -> tuple[Tensor, Tensor, Tensor]:
        header = read_header(file)
        sides = tf.cast(stored_size(file), tf.int64)
        count = sides[0] * sides[1] * tf.where(header.one_scan, one, SEVERAL_SCANS * one)
        fits = (count <= spec.max_pixels) & (tf.reduce_max(sides) <= MAX_SIDE)
        found = tf.where(fits, tf.where(header.within_limits, _OK, _PARTS), _PIXELS)
        found = tf.where(tf.reduce_min(sides) < 1, _DAMAGED, found)
        return found, header.orientation, tf.where(found == _OK, count, one)

    one = tf.constant(1, tf.int64)
    return tf.cond(code == _OK, measured, lambda: (code, tf.constant(1), one))


def _decode(file: Tensor, code: Tensor, orientation: Tensor, spec: ExportSpec) -> tuple[Tensor, Tensor]:
    """Code and image; fails if the pixels are damaged."""
    import tensorflow as tf

    record, shape = spec.model.preprocessing, (*target_size(spec), spec.channels)

    def pixels() -> tuple[Tensor, Tensor]:
        stored = stored_pixels(file)
        if not _keeps_size(record):
            return tf.constant(_OK), prepare_stored(stored, orientation, record)
        right = tf.reduce_all(tf.stack(upright_size(stored, orientation)) == shape[:2])
        return tf.cond(right, lambda: (tf.constant(_OK), _keep_size(stored, orientation, spec)), lambda: blank(_SIZE))

    def blank(code: Tensor) -> tuple[Tensor, Tensor]:
        return tf.constant(code) if isinstance(code, int) else code, tf.zeros(shape)

    return tf.cond(code == _OK, pixels, lambda: blank(code))


def _keep_size(stored: Tensor, orientation: Tensor, spec: ExportSpec) -> Tensor:
    """A photo of the model's size, which needs no strips."""
    import tensorflow as tf

    upright = apply_orientation(stored, orientation)
    upright = grey(upright) if spec.channels == 1 else upright
    return scale_pixels(tf.ensure_shape(upright, (*spec.image_size, spec.channels)), spec)


def _map_rows(
    function: Callable[..., tuple[Tensor, ...]],
    rows: Sequence[Tensor],
    blank: tuple[Tensor, ...],
    at_once: Tensor = None,
) -> tuple[Tensor, ...]:
    """Applies a function to each row; rows where it fails become `blank`.

    Args:
        function: from one row of each tensor to a tuple of tensors.
        rows: tensors with the same first axis B.
        blank: tensors like the function's result.
        at_once: number of parallel rows, an int64 scalar; by default one.

    Returns:
        A tuple of tensors with the first axis B.
    """
    import tensorflow as tf

    count = tf.size(rows[0], tf.int64)
    options = tf.data.Options()  # these cost more than they gain in a graph that runs once
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
    """The same as `record(pixels)` of the upright photo.

    Args:
        stored: uint8 `(H, W, 3)` or `(H, W, C)`, as stored in the file.
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
            return _squash(stored, orientation, record)
        between = 4 * channels * max(_size(record)) * tf.shape(stored)[1]
        return tf.cond(
            between <= _BETWEEN,
            lambda: _squash(stored, orientation, record),
            lambda: scaled(_resize_linear(stored, orientation, record), record),
        )
    resized = _resize_bicubic if record.interpolation == "bicubic" else _resize_linear
    return scaled(tf.ensure_shape(resized(stored, orientation, record), (*_size(record), channels)), record)


def upright_size(stored: Tensor, orientation: Tensor) -> tuple[Tensor, ...]:
    """`(H, W)` of the upright photo, int32 scalars."""
    import tensorflow as tf

    size = tf.shape(stored)[:2]
    return tuple(tf.unstack(tf.where(orientation >= 5, tf.reverse(size, [0]), size)))


def _squash(stored: Tensor, orientation: Tensor, record: Preprocessing) -> Tensor:
    """Resizes the stored photo, then turns the small result: bilinear treats both axes alike."""
    import tensorflow as tf

    lying = dataclasses.replace(record, image_size=_size(record)[::-1])
    small = tf.cond(orientation >= 5, lambda: prepare(stored, lying), lambda: prepare(stored, record))
    small = tf.ensure_shape(small, (None, None, len(record.mean)))
    return tf.ensure_shape(apply_orientation(small, orientation), (*_size(record), len(record.mean)))


def _grey(stored: Tensor) -> Tensor:
    """`(H, W, 1)`, by strips: in one piece the sum of the colors would take 24 bytes a pixel."""
    import tensorflow as tf

    if stored.shape[-1] == 1:
        return stored
    return _map_strips(stored, tf.constant(1), grey, 1)


def _resize_bicubic(stored: Tensor, orientation: Tensor, record: Preprocessing) -> Tensor:
    """Bicubic: numbers are rounded to grey levels after the columns, so bytes hold them."""
    import tensorflow as tf

    channels, part = len(record.mean), _divisor(_size(record)[1], 32)
    columns = _matrix(1, stored, orientation, record)

    def resize_columns(strip: Tensor) -> Tensor:
        return tf.cast(_round_levels(tf.einsum("hwc,vw->hvc", _floats(strip, record), columns)), tf.uint8)

    def resize_rows(first: Tensor) -> Tensor:
        floats = tf.cast(narrow[:, first : first + part], tf.float32)
        return _round_levels(tf.einsum("hwc,uh->uwc", floats, rows))

    narrow = _map_strips(stored, orientation, resize_columns, channels)  # (H, v, C)
    with tf.control_dependencies([narrow]):  # frees the photo before the second matrix is made
        rows = _matrix(0, stored, orientation, record)
        firsts = tf.range(0, _size(record)[1], part)
    shape = tf.TensorSpec((_size(record)[0], part, channels), tf.float32)
    parts = tf.map_fn(resize_rows, firsts, fn_output_signature=shape, parallel_iterations=1)
    return tf.reshape(tf.transpose(parts, (1, 0, 2, 3)), (*_size(record), channels))


def _resize_linear(stored: Tensor, orientation: Tensor, record: Preprocessing) -> Tensor:
    """Bilinear and area: each strip adds its share to every row of the result."""
    import tensorflow as tf

    columns, rows = (_matrix(axis, stored, orientation, record) for axis in (1, 0))

    def share(strip: Tensor, start: Tensor) -> Tensor:
        narrow = tf.einsum("hwc,vw->hvc", _floats(strip, record), columns)
        return tf.einsum("hwc,uh->uwc", narrow, rows[:, start : start + tf.shape(strip)[0]])

    pixels = _sum_strips(stored, orientation, share, tf.zeros((*_size(record), len(record.mean))))
    return whole_levels(pixels, record, tensorflow_ops())


def _size(record: Preprocessing) -> Pair:
    """`(H, W)` of the result; every record here has an image size."""
    return cast(Pair, record.image_size)


def _floats(strip: Tensor, record: Preprocessing) -> Tensor:
    """float32 with the record's channels."""
    import tensorflow as tf

    channels = len(record.mean)
    strip = grey(strip) if (strip.shape[-1], channels) == (3, 1) else fit_channels(strip, channels, tf)
    return tf.cast(strip, tf.float32)


def _round_levels(values: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.round(tf.clip_by_value(values, 0.0, 255.0))


def _divisor(side: int, most: int) -> int:
    """The largest divisor of a side up to `most`, so that parts are equal."""
    return max(size for size in range(1, min(side, most) + 1) if side % size == 0)


def _matrix(axis: int, stored: Tensor, orientation: Tensor, record: Preprocessing) -> Tensor:
    """`(v, W)` or `(u, H)`, which resizes the columns (axis 1) or the rows (axis 0) of the upright photo.

    It is computed a few rows at a time, since temporary results take six times its memory.
    """
    import tensorflow as tf

    old, ops = upright_size(stored, orientation), tensorflow_ops()
    new = _size(record) if record.resize == "squash" else covering_size(old, record, ops)
    kept, part = _size(record)[axis], _divisor(_size(record)[axis], 32)

    def some(rows: Tensor) -> Tensor:
        return resize_matrix(old[axis], new[axis], kept, record, ops, rows)

    rows = tf.reshape(tf.range(kept, dtype=tf.float32), (-1, part))
    parts = tf.map_fn(some, rows, fn_output_signature=tf.TensorSpec((part, None)), parallel_iterations=1)
    return tf.reshape(parts, (kept, -1))


def _map_strips(stored: Tensor, orientation: Tensor, function: Callable[[Tensor], Tensor], channels: int) -> Tensor:
    """Concatenates `function(strip)`, uint8 `(rows, v, channels)`, of all upright strips."""
    import tensorflow as tf

    (height, _), size = upright_size(stored, orientation), _strip_rows(stored, orientation)
    parts = tf.TensorArray(tf.uint8, (height + size - 1) // size, infer_shape=False)

    def step(index: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        strip, _ = _strip(stored, orientation, index, size)
        return index + 1, parts.write(index, function(strip))

    def has_rows(index: Tensor, parts: Tensor) -> Tensor:
        return index * size < height

    joined = tf.while_loop(has_rows, step, (tf.constant(0), parts), parallel_iterations=1)[1].concat()
    return tf.ensure_shape(joined, (None, None, channels))


def _sum_strips(
    stored: Tensor, orientation: Tensor, function: Callable[[Tensor, Tensor], Tensor], total: Tensor
) -> Tensor:
    """Sums `function(strip, first row)` over all upright strips."""
    import tensorflow as tf

    (height, _), size = upright_size(stored, orientation), _strip_rows(stored, orientation)

    def step(index: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        strip, start = _strip(stored, orientation, index, size)
        return index + 1, total + tf.ensure_shape(function(strip, start), total.shape)

    def has_rows(index: Tensor, total: Tensor) -> Tensor:
        return index * size < height

    return tf.while_loop(has_rows, step, (tf.constant(0), total), parallel_iterations=1)[1]


def _strip_rows(stored: Tensor, orientation: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.maximum(STRIP // tf.maximum(upright_size(stored, orientation)[1], WIDEST_RESULT), 1)


def _strip(stored: Tensor, orientation: Tensor, index: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """A strip of the upright photo, and its first row."""
    import tensorflow as tf

    height, width = upright_size(stored, orientation)
    start = index * rows
    y, x, h, w = tf.unstack(
        stored_window((start, 0, tf.minimum(rows, height - start), width), (height, width), orientation)
    )
    strip = tf.slice(stored, (y, x, 0), (h, w, stored.shape[-1]))
    return apply_orientation(strip, orientation), start


def write_signatures(spec: ExportSpec, place: Path) -> None:
    """Writes the folder of one version.

    Args:
        spec: an `ExportSpec`.
        place: path that does not exist.
    """
    import tensorflow as tf

    module = pixel_module(spec)
    given = input_spec(spec)
    if spec.takes != "ids":
        given = tf.TensorSpec((None, *target_size(spec), spec.channels), tf.float32, "images")
    network = tf.function(module.answers, input_signature=[given], autograph=False, jit_compile=spec.jit_compile)
    kept = tf.Module()
    with kernels.use("portable"):
        # Without layers, so that no object of Keras is written.
        kept.weights = list(network.get_concrete_function().variables)
    with silence():
        of_maps = spec.of_pixels or spec.of_queries
        write = _text_signatures if spec.takes == "ids" else _map_signatures if of_maps else _signatures
        signatures = write(spec, network)
        tf.saved_model.save(kept, str(place), signatures=signatures)


def _text_signatures(spec: ExportSpec, network: Any) -> dict[str, Any]:
    import tensorflow as tf

    def embed(ids: Tensor) -> dict[str, Tensor]:
        size = spec.model.config.vocabulary_size
        known = tf.debugging.Assert(
            tf.reduce_all((ids >= 0) & (ids < size)),
            [f"ids must be from 0 to {size - 1}, those of the tokenizer of this model; received", ids],
        )
        with tf.control_dependencies([known]):
            return {"embeddings": network(check_count(ids, spec))["embeddings"]}

    return {"serving_default": tf.function(embed, input_signature=[input_spec(spec)], autograph=False)}


def _signatures(spec: ExportSpec, network: Any) -> dict[str, Any]:
    import tensorflow as tf

    files = tf.TensorSpec((None,), tf.string, "image_bytes")
    pixels = tf.TensorSpec((None, *_pixel_sides(spec), spec.channels), tf.uint8, "pixels")

    def features(image_bytes: Tensor) -> dict[str, Tensor]:
        images, codes = prepare_files(image_bytes, spec)
        return _mask_bad_rows({"features": network(images)["features"]}, codes)

    def features_pixels(pixels: Tensor) -> dict[str, Tensor]:
        return {"features": network(prepare_pixels(pixels, spec))["features"]}

    def names(image_bytes: Tensor) -> dict[str, Tensor]:
        images, codes = prepare_files(image_bytes, spec)
        return _mask_bad_rows(_top_classes(network(images), spec), codes)

    def predict_pixels(pixels: Tensor) -> dict[str, Tensor]:
        found = network(prepare_pixels(pixels, spec))
        return _top_classes(found, spec) | {name: found[name] for name in ("logits",) if name in found}

    functions: dict[str, tuple[Callable[..., dict[str, Tensor]], Any]] = {"features_pixels": (features_pixels, pixels)}
    has_head = spec.model.output_spec.activation is not None
    if has_head:
        functions["predict_pixels"] = (predict_pixels, pixels)
    if takes_files(spec):
        functions["features"] = (features, files)
        functions["serving_default"] = (names if has_head else features, files)
    else:
        functions["serving_default"] = functions["predict_pixels" if has_head else "features_pixels"]
    return {
        name: tf.function(function, input_signature=[given], autograph=False).get_concrete_function()
        for name, (function, given) in functions.items()
    }


def _map_signatures(spec: ExportSpec, network: Any) -> dict[str, Any]:
    """Of a model of pixels: masks as PNG files, or depths, of photos as files; logits or depths of pixels.

    Of a model of queries: its answers for both, NaN for bad files.
    """
    import tensorflow as tf

    files = tf.TensorSpec((None,), tf.string, "image_bytes")
    pixels = tf.TensorSpec((None, *_pixel_sides(spec), spec.channels), tf.uint8, "pixels")

    def of_files(image_bytes: Tensor) -> dict[str, Tensor]:
        images, codes = prepare_files(image_bytes, spec)
        found = network(images)
        status = {"status": tf.gather(tf.constant(list(STATUSES)), codes)}
        if "depths" in found or spec.of_queries:
            is_good = {name: tf.reshape(codes == _OK, (-1, *[1] * (len(x.shape) - 1))) for name, x in found.items()}
            return {name: tf.where(is_good[name], x, np.float32(np.nan)) for name, x in found.items()} | status
        return {"masks": _mask_files(found["logits"], image_bytes, codes)} | status

    def predict_pixels(pixels: Tensor) -> dict[str, Tensor]:
        return dict(network(prepare_pixels(pixels, spec)))

    functions: dict[str, tuple[Callable[..., dict[str, Tensor]], Any]] = {"predict_pixels": (predict_pixels, pixels)}
    functions["serving_default"] = (of_files, files) if takes_files(spec) else functions["predict_pixels"]
    return {
        name: tf.function(function, input_signature=[given], autograph=False).get_concrete_function()
        for name, (function, given) in functions.items()
    }


def _mask_files(logits: Tensor, files: Tensor, codes: Tensor) -> Tensor:
    """PNG files `(B,)` of the best class of each pixel, at the photo's size by the nearest; empty for bad files."""
    import tensorflow as tf

    dtype = tf.uint8 if logits.shape[-1] <= 256 else tf.uint16
    masks = tf.argmax(logits, axis=-1, output_type=tf.int32)[..., None]  # (B, h, w, 1)

    def png(mask: Tensor, file: Tensor, code: Tensor) -> Tensor:
        def encoded() -> Tensor:
            stored, orientation = stored_size(file), read_header(file).orientation
            size = tf.where(orientation >= 5, tf.reverse(stored, [0]), stored)
            rows, columns = (
                (2 * tf.range(side) + 1) * own_side // (2 * side)  # the nearest
                for own_side, side in zip(tf.unstack(tf.shape(mask)[:2]), tf.unstack(size), strict=True)
            )
            return tf.io.encode_png(tf.cast(tf.gather(tf.gather(mask, rows), columns, axis=1), dtype))

        return tf.cond(code == _OK, encoded, lambda: tf.constant(b""))

    given = (masks, files, codes)
    return tf.map_fn(lambda row: png(*row), given, fn_output_signature=tf.string, parallel_iterations=1)


def _pixel_sides(spec: ExportSpec) -> tuple[int | None, int | None]:
    """Height and width of `pixels`; `None` where the preprocessing resizes."""
    record = spec.model.preprocessing
    resizes = record.resize != "none" and record.image_size is not None
    return (None, None) if resizes else spec.image_size


def _top_classes(found: Mapping[str, Tensor], spec: ExportSpec) -> dict[str, Tensor]:
    """Scores, and the best classes by number and name."""
    import tensorflow as tf

    if "numbers" in found:
        return {"numbers": found["numbers"]}
    best, classes = tf.math.top_k(found["scores"], spec.top_k)
    labels = tf.gather(tf.constant(spec.labels), classes)
    return {"scores": found["scores"], "classes": classes, "labels": labels, "top_scores": best}


def _mask_bad_rows(answers: Mapping[str, Tensor], codes: Tensor) -> dict[str, Tensor]:
    """The outputs with zeros, -1, NaN or no label in the rows of bad files, and the status of each."""
    import tensorflow as tf

    nothing = {"classes": -1, "labels": "", "numbers": float("nan")}  # 0 would be an answer
    good = tf.equal(codes, 0)[:, None]
    found = {
        name: tf.where(good, rows, tf.constant(nothing.get(name, 0), rows.dtype)) for name, rows in answers.items()
    }
    return found | {"status": tf.gather(tf.constant(list(STATUSES)), codes)}
