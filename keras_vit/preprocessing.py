"""What comes before and after the model: pixels to the values that weights expect, scores to class names.

The published Google weights take [-1, 1] (official code: `(x - 127.5) / 127.5`) of an image squashed
to the input size, bilinear without antialias. A model's record travels with it as `model.preprocessing`.
"""

import dataclasses
import functools
import importlib.resources
import warnings

import numpy as np
from keras import ops

from keras_vit.variants import check_choice, check_positive_int

LABEL_FILES = {1000: "imagenet2012.tsv", 21843: "imagenet21k.tsv"}


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How images must be prepared for one set of weights; call it to prepare them.

    Args:
        image_size: `(H, W)` the model takes, or `None` for any.
        resize: `"squash"` resizes to `image_size` whatever the aspect; `"none"` never resizes.
        mean: subtracted per channel, in units where white is 1.
        std: divided by per channel, after `mean`. The defaults give [-1, 1].

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range.
    """

    image_size: tuple[int, int] | None = (224, 224)
    resize: str = "squash"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self):
        check_choice("resize", self.resize, ("squash", "none"))
        for field in ("mean", "std"):
            object.__setattr__(self, field, tuple(float(value) for value in getattr(self, field)))
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise ValueError(
                "`mean` and `std` must have one value per channel, and `std` must be positive.\n"
                f"Received: mean={self.mean}, std={self.std}."
            )
        if self.image_size is not None:
            if not isinstance(self.image_size, (tuple, list)) or len(self.image_size) != 2:
                raise TypeError(f"`image_size` must be (H, W) or None.\nReceived: image_size={self.image_size!r}.")
            for side in self.image_size:
                check_positive_int("image_size", side)
            object.__setattr__(self, "image_size", tuple(self.image_size))

    @property
    def value_range(self) -> tuple[float, float]:
        """Lowest and highest value after preprocessing, over all channels."""
        low = min(-mean / std for mean, std in zip(self.mean, self.std, strict=True))
        high = max((1 - mean) / std for mean, std in zip(self.mean, self.std, strict=True))
        return low, high

    def __call__(self, images):
        """Resizes to `image_size` and scales the values.

        Args:
            images: as `preprocess_input` takes them.

        Returns:
            Floats `(B, H, W, C)` or `(H, W, C)`, of the kind that came in (NumPy or tensor).
        """
        scaled = preprocess_input(images, self)
        if self.resize == "none" or self.image_size in (None, tuple(scaled.shape[-3:-1])):
            return scaled
        resized = ops.image.resize(
            scaled, self.image_size, interpolation="bilinear", antialias=False, data_format="channels_last"
        )
        return ops.convert_to_numpy(resized) if isinstance(scaled, np.ndarray) else resized


def preprocess_input(images, preprocessing=None):
    """Scales pixel values to what the weights expect: [-1, 1] unless a record says otherwise.

    Args:
        images: `(B, H, W, C)` or `(H, W, C)`, integers or floats in [0, 255]; NumPy, a list, or a tensor
            (also inside `tf.data.Dataset.map`). Of four channels the last, alpha, is dropped; one channel is
            repeated. The argument is never changed.
        preprocessing: a `Preprocessing` record, as `model.preprocessing`.

    Returns:
        float32 of the same height and width; NumPy if NumPy or a list came in.

    Raises:
        ValueError: for another shape, for values outside [0, 255], or for floats that nowhere exceed 1 (but for
            black images), which have been scaled before. Values are looked at in NumPy and lists only.

    Source: official code, `input_pipeline.py`: (x - 127.5) / 127.5.
    """
    record = Preprocessing() if preprocessing is None else preprocessing
    if isinstance(images, (list, tuple)):
        images = np.asarray(images)
    if isinstance(images, np.ndarray):
        _check_values(images)
        xp, values = np, images.astype("float32")
    else:
        xp, values = ops, ops.cast(images, "float32")
    values = _fit_channels(values, len(record.mean), xp)
    mean, std = (np.asarray(stat, "float32") * np.float32(255) for stat in (record.mean, record.std))
    return (values - mean) / std


def _fit_channels(images, channels, xp):
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


def _check_values(images):
    if images.dtype.kind not in "uif":
        raise ValueError(f"images must be integers or floats in [0, 255].\nReceived: dtype {images.dtype}.")
    if images.size == 0:
        raise ValueError(f"images must not be empty.\nReceived: shape {images.shape}.")
    low, high = images.min(), images.max()
    margin = 0.5 if images.dtype.kind == "f" else 0  # interpolation may leave the range by a rounding error
    if not (low >= -margin and high <= 255 + margin):
        raise ValueError(
            "pixel values must be in [0, 255]; other values have been scaled before, or are not an image.\n"
            f"Received: values from {low} to {high}."
        )
    if images.dtype.kind == "f" and high <= 1 and (low, high) != (0, 0):
        raise ValueError(
            "pixel values must be in [0, 255], and these floats do not exceed 1, so they seem scaled already.\n"
            f"Received: values from {low} to {high}. Multiply by 255 first if they are in [0, 1]."
        )


def decode_predictions(predictions, top=5):
    """The best classes of each row by name, from label files inside the package.

    Args:
        predictions: `(B, K)` scores of any kind, with K = 1,000 (ImageNet-1k) or 21,843 (ImageNet-21k, in
            the order of Google's checkpoints).
        top: how many classes to give for each row, at most K.

    Returns:
        For every row a list of `(wordnet_id, name, score)`, best first; scores are those that came in,
        so logits stay logits (`classifier_activation="softmax"` gives probabilities).

    Raises:
        ValueError: for another shape, or scores that are not finite.

    Warns:
        UserWarning: if all scores of a row are equal, as from a head of zeros.
    """
    predictions = ops.convert_to_numpy(predictions)
    if predictions.ndim != 2 or predictions.shape[1] not in LABEL_FILES:
        raise ValueError(
            "`predictions` must have shape (B, 1000) or (B, 21843), the class counts whose names are known.\n"
            f"Received: shape {predictions.shape}. For your own classes, index your list of names by `argmax`."
        )
    check_positive_int("top", top)
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
    labels = class_labels(predictions.shape[1])
    best = np.argsort(-predictions, axis=1, kind="stable")[:, :top]
    return [[(*labels[k], float(row[k])) for k in ks] for row, ks in zip(predictions, best, strict=True)]


@functools.cache
def class_labels(classes: int) -> tuple[tuple[str, str], ...]:
    """`(wordnet_id, name)` of each class in the order of the checkpoints.

    Args:
        classes: 1000 or 21843.
    """
    if classes not in LABEL_FILES:
        raise ValueError(f"`classes` must be one of {', '.join(map(str, LABEL_FILES))}.\nReceived: {classes!r}.")
    text = importlib.resources.files("keras_vit").joinpath("labels", LABEL_FILES[classes]).read_text("utf-8")
    return tuple(tuple(line.split("\t", 1)) for line in text.splitlines())
