"""Preparation of images before the model, and names of classes after it.

The published Google weights take values in [-1, 1] (official code: `(x - 127.5) / 127.5`) of an image that is resized
to the input size, bilinearly without antialias. Files trained elsewhere need a crop, bicubic, or ImageNet's mean. A
model has its record as `model.preprocessing`. Keras is imported only by calls that need it, so that tables with records
can be read without it.
"""

import dataclasses
import functools
import importlib.resources
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np

from keras_vit.annotations import Tensor
from keras_vit.checks import (
    ArgumentError,
    Share,
    check_number,
    check_positive_int,
    one_of,
    record_process,
    validate,
)
from keras_vit.images.resizing import INTERPOLATIONS, RESIZES, ROUNDINGS, resize_and_crop, resize_axis

_LARGE = 2**24  # numbers; larger arrays are resized in strips of rows to save memory
_MOST = 1e6  # largest plausible mean or deviation, where white is 1; a greater one is damage
LABEL_FILES = {1000: "imagenet2012.tsv", 21843: "imagenet21k.tsv"}


def _check_size(name: str, size: Any) -> tuple[int, ...]:
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        raise TypeError(f"`{name}` must be (H, W) or None.\nReceived: {name}={size!r}.")
    return tuple(check_positive_int(name, side) for side in size)


def _check_statistic(name: str, values: Any) -> tuple[float, ...]:
    if not isinstance(values, (tuple, list, np.ndarray)):
        raise TypeError(f"`{name}` must have one value per channel.\nReceived: {name}={values!r}.")
    return tuple(float(check_number(name, value)) for value in np.asarray(values, object).tolist())


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How images are prepared for one set of weights. Call the record with an image to prepare it.

    Example:
        >>> pixels = keras_vit.read_image(photos / "disc" / "0.jpg")
        >>> rule = keras_vit.Preprocessing(image_size=(32, 48), resize="crop")
        >>> pixels.shape, rule(pixels).shape
        ((76, 71, 3), (32, 48, 3))

    Args:
        image_size: `(H, W)` that the model takes; `None` keeps the size of images.
        resize: `"squash"` resizes to `image_size` whatever the aspect; `"crop"` keeps the aspect, resizes to
            cover `image_size / crop_fraction`, and cuts the centre out; `"squash_crop"` does so whatever the aspect;
            `"none"` never resizes.
        mean: subtracted per channel, in units where white is 1.
        std: divided by per channel, after `mean`. The defaults give [-1, 1].
        interpolation: `"bilinear"`, `"bicubic"` or `"area"`. Bicubic has Keys' kernel with a = -0.5, as in Pillow, and
            clips overshoots beyond black and white, as 8-bit images do. `"area"`, as in TensorFlow, averages the area
            that a new pixel covers.
        antialias: whether shrinking averages over all pixels, as Pillow and `"area"` always do.
        crop_fraction: part of each side of the resized image that is kept where the centre is cut out, in (0, 1].
        rounding: library whose rules `"crop"` follows to round lengths: `"timm"`, `"transformers"` or `"big_vision"`.
            The last also truncates resized integer pixels to integers.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range.
    """

    image_size: Annotated[tuple[int, int], _check_size] | None = (224, 224)
    resize: Annotated[str, one_of(RESIZES)] = "squash"
    mean: Annotated[tuple[float, ...], _check_statistic] = (0.5, 0.5, 0.5)
    std: Annotated[tuple[float, ...], _check_statistic] = (0.5, 0.5, 0.5)
    interpolation: Annotated[str, one_of(INTERPOLATIONS)] = "bilinear"
    antialias: bool = False
    crop_fraction: Share = 1.0
    rounding: Annotated[str, one_of(ROUNDINGS)] = "timm"

    def __post_init__(self) -> None:
        validate(self)
        are_usual = all(1 / _MOST <= value <= _MOST for value in self.std)
        are_usual &= all(abs(value) <= _MOST for value in self.mean)
        if len(self.mean) != len(self.std) or not self.std or not are_usual:
            raise ValueError(
                "`mean` and `std` must have one finite value per channel, as they scale pixels; `std` is from "
                f"{1 / _MOST} to {_MOST:.0f}, and `mean` at most {_MOST:.0f}.\n"
                f"Received: mean={self.mean}, std={self.std}."
            )

    @property
    def value_range(self) -> tuple[float, float]:
        """Lowest and highest value after preprocessing, over all channels."""
        stats = list(zip(self.mean, self.std, strict=True))
        return min(-mean / std for mean, std in stats), max((1 - mean) / std for mean, std in stats)

    def with_channels(self, channels: int) -> "Preprocessing":
        """The record for images with another number of channels, for a model with another first layer.

        Channel i of the new record takes `mean` and `std` of channel i modulo the old number. A single channel takes
        the average of all.

        Args:
            channels: C of the images, at least 1.
        """
        channels = check_positive_int("channels", channels)
        if channels == len(self.mean):
            return self
        if channels == 1:
            average, deviation = (math.fsum(stat) / len(stat) for stat in (self.mean, self.std))
            return dataclasses.replace(self, mean=(average,), std=(deviation,))
        sources = [i % len(self.mean) for i in range(channels)]
        mean, std = (tuple(stat[i] for i in sources) for stat in (self.mean, self.std))
        return dataclasses.replace(self, mean=mean, std=std)

    def __call__(self, images: Tensor) -> Tensor:
        """Resizes to `image_size` and scales the values.

        Args:
            images: as for `preprocess_input`, of any size, which a graph need not know.

        Returns:
            Floats `(B, H, W, C)` or `(H, W, C)`, as a NumPy array or tensor like the argument.
        """
        images = _array(images)
        is_scaled_alone = self.resize == "none" or self.image_size is None
        if is_scaled_alone or (self.resize == "squash" and self.image_size == tuple(images.shape[-3:-1])):
            return preprocess_input(images, self)
        record_process()  # a fork may scale photos too, but no model of its own would answer
        from keras import ops

        squashes = self.resize == "squash" and self.interpolation == "bilinear"
        if not squashes and isinstance(images, np.ndarray) and images.ndim > 2 and images.size > _LARGE:
            return scaled(ops.convert_to_numpy(_resized_in_strips(images, self, ops)), self)
        pixels, whole = _pixels(images, self)
        if squashes:
            resized = ops.image.resize(
                scaled(pixels, self),
                self.image_size,
                "bilinear",
                antialias=self.antialias,
                data_format="channels_last",
            )
        else:
            resized = scaled(resize_and_crop(pixels, whole, self, ops), self)
        return ops.convert_to_numpy(resized) if isinstance(pixels, np.ndarray) else resized


def preprocess_input(images: Tensor, preprocessing: Preprocessing | None = None) -> Tensor:
    """Scales pixel values to what the weights expect: [-1, 1] unless a record says otherwise.

    Example:
        >>> pixels = np.array([[[[0, 51, 255]]]], "uint8")
        >>> keras_vit.preprocess_input(pixels)
        array([[[[-1. , -0.6,  1. ]]]], dtype=float32)

    Args:
        images: `(B, H, W, C)` or `(H, W, C)`, integers or floats in [0, 255]; NumPy, a list of images of one size, or
            a tensor (also inside `tf.data.Dataset.map`). The fourth of four channels, alpha, is dropped. A single
            channel is repeated. The argument is never changed.
        preprocessing: a `Preprocessing` record, as `model.preprocessing`.

    Returns:
        float32 of the same height and width; NumPy if NumPy or a list came in.

    Raises:
        TypeError: for anything but pixels, as a path.
        ValueError: for another shape, images of several sizes, or values outside [0, 255]. Also for floats that never
            exceed 1, unless all are 0, since they seem scaled. Values of tensors are not checked.

    Source: official code, `input_pipeline.py`: (x - 127.5) / 127.5.
    """
    record = Preprocessing() if preprocessing is None else preprocessing
    return scaled(_pixels(images, record)[0], record)


def _pixels(images: Tensor, record: Preprocessing) -> tuple[Tensor, bool]:
    """Images as float32 in [0, 255] with the record's channels, and whether they were integers."""
    images = _array(images)
    if isinstance(images, np.ndarray):
        check_levels(images)
        xp, values, whole = np, images.astype("float32"), images.dtype.kind in "ui"
    else:
        from keras import backend, ops

        xp, values = ops, ops.cast(images, "float32")
        whole = backend.is_int_dtype(images.dtype)
    return fit_channels(values, len(record.mean), xp), whole


def _resized_in_strips(images: np.ndarray, record: Preprocessing, ops: Any) -> Tensor:
    """The result of `resize_and_crop`, with only a strip of the images as floats in memory at a time."""
    check_levels(images)
    whole, old, rows = images.dtype.kind in "ui", images.shape[-3:-1], max(1, _LARGE * images.shape[-3] // images.size)

    def narrowed(start: int) -> np.ndarray:
        strip = images[..., start : start + rows, :, :].astype("float32")
        strip = fit_channels(strip, len(record.mean), np)
        return ops.convert_to_numpy(resize_axis(strip, 1, old, whole, record, ops))

    narrow = np.concatenate([narrowed(start) for start in range(0, old[0], rows)], axis=-3)
    return resize_axis(narrow, 0, old, whole, record, ops)


def _array(images: Tensor) -> Tensor:
    """Images as an array or a tensor; a list of images of one size becomes an array."""
    if isinstance(images, (list, tuple)):
        try:
            images = np.asarray(images)
        except ValueError:
            shapes = [np.shape(image) if hasattr(image, "shape") else type(image).__name__ for image in images]
            several = ", ".join(map(str, shapes[:3])) + (" and more" if len(shapes) > 3 else "")
            raise ValueError(
                "images of one call must be of one size, since they become one array.\n"
                f"Received: {len(shapes)} images, {several}. Prepare each by itself."
            ) from None
    dtype = getattr(images, "dtype", None)
    if dtype is None or getattr(dtype, "kind", "") in ("U", "S", "O") or "string" in str(dtype):
        raise TypeError(
            "images must be pixels, (B, H, W, C) or (H, W, C), in NumPy, a list or a tensor.\n"
            f"Received: {str(images)!r:.60} of type {type(images).__name__}. A photo's pixels are "
            "`keras_vit.read_image(path)`; those of a Pillow image `numpy.asarray(image.convert('RGB'))`."
        )
    if getattr(images.shape, "rank", 0) is None:
        raise ValueError(
            "images must have a known number of axes, (B, H, W, C) or (H, W, C).\n"
            f"Received: {images!r:.80}. Call `tf.io.decode_image(file, channels=3, expand_animations=False)`, or "
            "`images.set_shape((None, None, 3))`."
        )
    return images


def scaled(pixels: Tensor, record: Preprocessing, by_channel: bool = False, width: int = 1) -> Tensor:
    """Pixels scaled to the values that the weights expect, as an array or tensor like the argument.

    Args:
        pixels: floats `(..., C)` in [0, 255], NumPy or a tensor of any backend.
        record: says how.
        by_channel: whether `mean` and `std` are kept per channel even if they are equal.
        width: W of pixels in lines, `(..., W * C)`, along which TensorFlow is 6 times as fast.
    """
    mean, std = (np.asarray(stat, "float32") * np.float32(255) for stat in (record.mean, record.std))
    if not by_channel and len(set(record.mean)) == len(set(record.std)) == 1:
        mean, std = mean[0], std[0]  # spares TensorFlow a broadcast that is 4 times as slow
    else:
        mean, std = np.tile(mean, width), np.tile(std, width)
    shifted = pixels - mean
    return np.divide(shifted, std, out=shifted) if isinstance(shifted, np.ndarray) else shifted / std


def unscaled(values: Tensor, record: Preprocessing) -> Tensor:
    """The inverse of `scaled`, but for rounding: floats `(..., C)` in [0, 255]."""
    mean, std = (np.asarray(stat, "float32") * np.float32(255) for stat in (record.mean, record.std))
    return values * std + mean


def fit_channels(images: Tensor, channels: int, xp: Any) -> Tensor:
    """Images `(B, H, W, C)` or `(H, W, C)` with so many channels: one is repeated, alpha is dropped for three.

    `xp` is `numpy`, `keras.ops` or `tensorflow`, to match the images. Another shape is a `ValueError`.
    """
    shape = tuple(images.shape)
    if len(shape) in (3, 4) and shape[-1] == channels:
        return images
    if len(shape) in (3, 4) and shape[-1] == 1:
        return xp.repeat(images, channels, axis=-1)
    if len(shape) in (3, 4) and (shape[-1], channels) == (4, 3):
        return images[..., :3]
    raise ValueError(
        f"images must have shape (B, H, W, C) or (H, W, C) with {channels} channels"
        f"{', or 1, or 4 with alpha' if channels == 3 else ' or 1'}.\n"
        f"Received: shape {shape}."
    )


def check_levels(images: np.ndarray, margin: float = 0.5, name: str = "pixel values") -> None:
    """Raises unless all values are levels, floats up to `margin` beyond [0, 255] by the rounding of interpolation."""
    if images.dtype.kind not in "uif":
        raise TypeError(f"images must be integers or floats in [0, 255].\nReceived: dtype {images.dtype}.")
    if images.size == 0:
        raise ValueError(f"images must not be empty.\nReceived: shape {images.shape}.")
    low, high = images.min(), images.max()
    if np.isnan(low):
        raise ValueError(f"{name} must be numbers in [0, 255].\nReceived: NaN among them.")
    margin = margin if images.dtype.kind == "f" else 0
    if not (low >= -margin and high <= 255 + margin):
        raise ValueError(
            f"{name} must be in [0, 255]; others have been scaled before, or are not an image.\n"
            f"Received: values from {low} to {high}."
        )
    if images.dtype.kind == "f" and high <= 1 and (low, high) != (0, 0):
        raise ValueError(
            f"{name} must be in [0, 255], and these floats do not exceed 1, so they seem scaled already.\n"
            f"Received: values from {low} to {high}. Multiply by 255 first if they are in [0, 1]."
        )


_TOP = 5


def decode_predictions(
    predictions: Tensor, top: int | None = None, class_names: Sequence[str] | None = None
) -> list[list[tuple[str, str, float]]]:
    """Names the best classes of each row of scores, by a model's own names or ImageNet's.

    Example:
        >>> scores = np.zeros((1, 1000))
        >>> scores[0, [207, 208]] = 0.9, 0.1
        >>> keras_vit.decode_predictions(scores, top=2)
        [[('n02099601', 'golden retriever', 0.9), ('n02099712', 'Labrador retriever', 0.1)]]
        >>> keras_vit.decode_predictions(np.eye(1, 2), 1, class_names=["gnu", "okapi"])
        [[('', 'gnu', 1.0)]]

    Args:
        predictions: `(B, K)` scores of any kind.
        top: number of classes for each row, at most K; by default 5, or K of fewer.
        class_names: K names in the order of the scores, as `model.class_names`, or a dict from 0, ..., K - 1 to the
            names. By default those of ImageNet-1k for K = 1,000, and of ImageNet-21k, in the order of Google's
            checkpoints, for K = 21,843.

    Returns:
        For every row a list of `(wordnet_id, name, score)`, best first. The id is `""` for names that have none. Scores
        are not changed, so logits stay logits; `classifier_activation="softmax"` gives probabilities.

    Raises:
        TypeError: for names without an order, as a set, and for a model in their place.
        ValueError: for another shape, or scores that are not finite.

    Warns:
        UserWarning: if all scores of a row are equal, as those of a zero-initialised head.
    """
    if not isinstance(predictions, np.ndarray):
        from keras import ops

        predictions = ops.convert_to_numpy(predictions)
    names = None if class_names is None else [_id_and_name(name) for name in _in_order(class_names)]
    if predictions.ndim != 2 or predictions.shape[1] not in (LABEL_FILES if names is None else (len(names),)):
        wanted = "(B, 1000) or (B, 21843), whose names are known" if names is None else f"(B, {len(names)})"
        raise ValueError(
            f"`predictions` must have shape {wanted}.\n"
            f"Received: shape {predictions.shape}. For your own classes pass `class_names=model.class_names`."
        )
    top = min(_TOP, predictions.shape[1]) if top is None else check_positive_int("top", top)
    if top > predictions.shape[1]:
        raise ValueError(f"`top` must be at most the number of classes, {predictions.shape[1]}.\nReceived: top={top}.")
    if not np.isfinite(predictions).all():
        raise ValueError("`predictions` must be finite.\nReceived: NaN or infinite scores.")
    if len(predictions) and (np.ptp(predictions, axis=1) == 0).any():
        warnings.warn(
            "all scores of a row are equal, so its classes are in no order: the head has not been trained "
            "(the published ImageNet-21k heads of the paper are zeros).",
            stacklevel=2,
        )
    labels = names or class_labels(predictions.shape[1])
    best = np.argsort(-predictions, axis=1, kind="stable")[:, :top]
    return [[(*labels[k], float(row[k])) for k in ks] for row, ks in zip(predictions, best, strict=True)]


def _in_order(names: Any) -> Sequence[str]:
    """Class names in the order of the scores; a dict has them by number, as `id2label` of transformers."""
    if isinstance(names, dict):
        by_number = {str(number): name for number, name in names.items()}
        names = [by_number.get(str(number)) for number in range(len(by_number))]
    has_order = isinstance(names, Iterable) and not isinstance(names, (str, set, frozenset))
    found: list[Any] = list(names) if has_order else [None]
    if not all(isinstance(name, str) for name in found):
        raise TypeError(
            "`class_names` must be a list of names in the order of the scores, or a dict from 0, ..., K - 1 to them.\n"
            f"Received: class_names={names!r:.80}. A set has no order, a dict from names to "
            "numbers is the reverse, and a model has them as `model.class_names`."
        )
    return found


def _id_and_name(name: str) -> tuple[str, str]:
    """`("n02391049", "zebra")` of `"n02391049 zebra"`; the name alone has the id `""`."""
    first, _, rest = name.partition(" ")
    return (first, rest or first) if is_wordnet_id(first) else ("", name)


def is_wordnet_id(name: Any) -> bool:
    """Whether a name is an id of WordNet, as ImageNet's folders have it."""
    return isinstance(name, str) and re.fullmatch(r"n\d{8}", name) is not None


def only_count(names: Sequence[str]) -> bool:
    """Whether names say nothing but the number of each class, as `LABEL_0`, `class 0` or `0`, in order."""
    counted = (re.fullmatch(r"(?:(?:label|class)[ _]?)?(\d+)", name, re.IGNORECASE) for name in names)
    return all(match is not None and int(match[1]) == number for number, match in enumerate(counted))


def check_same_order(known: Sequence[str] | None, given: Sequence[str], argument: str) -> None:
    """Raises for names that a model knows in another order; other names are a translation of them.

    Warns:
        UserWarning: for names of several outputs, but for those of ImageNet, where two classes are called crane.
    """
    usual = Counter(known if known is not None else default_names(len(given)))
    repeats = (name for name, count in Counter(given).items() if count > max(usual[name], 1))
    if (name := next(repeats, None)) is not None:
        words = f"`{argument}` has {name!r} for several outputs, which answers then do not tell apart."
        warnings.warn(words, stacklevel=3)
    if known is None or len(known) != len(given):
        return
    pairs = zip(given, known, strict=True)
    moved = (pair for pair in pairs if pair[0] != pair[1] and pair[0] in known and pair[1] in given)
    if (found := next(moved, None)) is not None:
        raise ArgumentError(
            f"`{argument}` must be in the order of the model's outputs.\n"
            f"Received: {found[0]!r} where the model has {found[1]!r}. Leave `{argument}` out, or set "
            "`model.class_names`."
        )


def default_names(classes: int) -> tuple[str, ...]:
    """A name for each of K classes: ImageNet's where K is that of its checkpoints, else `"class 0"`, ..."""
    if classes in LABEL_FILES:
        return tuple(name for _, name in class_labels(classes))
    return tuple(f"class {number}" for number in range(classes))


@functools.cache
def class_labels(classes: int) -> tuple[tuple[str, str], ...]:
    """`(wordnet_id, name)` of each of 1000 or 21843 classes, in the order of the checkpoints."""
    if classes not in LABEL_FILES:
        raise ValueError(f"`classes` must be one of {', '.join(map(str, LABEL_FILES))}.\nReceived: {classes!r}.")
    text = importlib.resources.files("keras_vit").joinpath("images", "labels", LABEL_FILES[classes]).read_text("utf-8")
    rows = (line.split("\t", 1) for line in text.splitlines())
    return tuple((wordnet_id, name) for wordnet_id, name in rows)


def is_uint8(images: Any) -> bool:
    """Whether images are uint8, which only pixels are, 0 to 255."""
    dtype = getattr(images, "dtype", None)
    return dtype is not None and getattr(dtype, "name", str(dtype)).removeprefix("torch.") == "uint8"


def scale_uint8(pixels: Tensor, record: Preprocessing) -> Tensor:
    """What `preprocess_input(pixels, record)` gives, float32, to the last bit, whatever compiles it.

    The pixels are uint8 `(B, H, W, C)`, a tensor of Keras' backend; C is the record's number of channels.
    """
    from keras import backend

    return _divide_in_float64(pixels, record) if backend.backend() == "tensorflow" else _scale_by_table(pixels, record)


def _divide_in_float64(pixels: Tensor, record: Preprocessing) -> Tensor:
    """A quotient in float64 is that in float32 once it is rounded, with the reciprocal too: 53 bits are 2 * 24 and 5.

    It takes 0.6 ms for an image on a core, a table 6.8 ms, B/16 itself 185 ms.
    """
    import tensorflow as tf

    width = pixels.shape[-2] or 1  # along lines, TensorFlow is three times as fast
    mean, std = (np.tile(np.asarray(stat, "float32") * np.float32(255), width) for stat in (record.mean, record.std))
    shape = tf.shape(pixels)
    lines = tf.reshape(pixels, (-1, len(mean))) if width > 1 else pixels
    shifted = tf.cast(tf.cast(lines, "float32") - mean, "float64")
    values = tf.cast(shifted / std.astype("float64"), "float32")
    return tf.ensure_shape(tf.reshape(values, shape), pixels.shape)


def _scale_by_table(pixels: Tensor, record: Preprocessing) -> Tensor:
    """By a table of what each grey level of a channel becomes; XLA takes 0.3 ms for an image on a core."""
    from keras import ops

    channels = len(record.mean)
    levels = np.repeat(np.arange(256, dtype="float32")[:, None], channels, axis=1)  # (256, C)
    table = ops.convert_to_tensor(scaled(levels, record).reshape(-1), "float32")
    places = ops.cast(pixels, "int32") * channels + np.arange(channels, dtype="int32")
    return ops.take(table, places)
