"""Photos of any aspect in batches for NaFlex: each at its own size, of at most so many patches (arXiv:2502.14786).

A batch is of patches of several grids, padded to one length and masked; or of photos of one grid, which gives the same
numbers without a mask.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from keras_vit.checks import ArgumentError, check_positive_int
from keras_vit.config.vit import ViTConfig
from keras_vit.model.image_model import ImageModel, check_image_model
from keras_vit.model.vision_transformer import VisionTransformer

MOST_PATCHES = 256  # of an image, transformers' default
_FACTORS, _NEAR = (1e-6, 100.0), 1e-5  # of sides: where the search begins, and when it ends


def sides_for_patches(height: int, width: int, patch_size: int, max_patches: int = MOST_PATCHES) -> tuple[int, int]:
    """The largest size `(H, W)` of nearly an image's aspect that has at most so many patches.

    Both sides are multiplied by one factor of at most 100 and rounded up to whole patches.

    Source: arXiv:2502.14786, section 2.4.2, as transformers rounds.
    """
    sizes = (("height", height), ("width", width), ("patch_size", patch_size), ("max_patches", max_patches))
    height, width, patch_size, max_patches = (check_positive_int(name, size) for name, size in sizes)
    low, high = _FACTORS
    while high - low >= _NEAR:  # the search of the authors and of transformers, so the same size where it is close
        factor = (low + high) / 2
        fits = math.prod(_grid(height, width, patch_size, factor)) <= max_patches
        low, high = (factor, high) if fits else (low, factor)
    rows, columns = _grid(height, width, patch_size, low)
    return rows * patch_size, columns * patch_size


def _grid(height: int, width: int, patch_size: int, factor: float) -> tuple[int, int]:
    rows, columns = (max(math.ceil(side * factor / patch_size), 1) for side in (height, width))
    return rows, columns


def batches_by_size(
    model: VisionTransformer, images: Sequence[np.ndarray], max_patches: int = MOST_PATCHES, batch_size: int = 16
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Sorts photos of any size into batches of one size, for a model that takes images of any size.

    Example:
        >>> any_size = keras_vit.ViTTi16(num_layers=1, input_shape=(None, None, 3))
        >>> tall, wide = np.zeros((64, 32, 3), "uint8"), np.zeros((30, 90, 3), "uint8")
        >>> batches = keras_vit.batches_by_size(any_size, [tall, wide], max_patches=16)
        >>> for places, batch in batches:
        ...     print(places, batch.shape)
        [1] (1, 32, 96, 3)
        [0] (1, 80, 48, 3)

    Args:
        model: built with `input_shape=(None, None, 3)`.
        images: integers in [0, 255] or floats in [0, 1], each `(H, W, C)` of a size of its own.
        max_patches: the most patches of an image.
        batch_size: the most images of a batch.

    Yields:
        Places in `images` and a prepared batch `(B, H, W, C)` of them, the smallest grids first. Each image has its own
        aspect as near as whole patches allow.

    Raises:
        ValueError: for a model of one image size.
    """
    check_image_model(model)
    if None not in model.input_shape[1:3]:
        raise ValueError(
            "images of several sizes need a model that takes them.\n"
            f"Received: {model.name!r} for {model.input_shape[1:]}. Build it with `input_shape=(None, None, 3)`."
        )
    batch_size = check_positive_int("batch_size", batch_size)
    shapes = [np.shape(image) for image in images]
    sides = [sides_for_patches(shape[0], shape[1], model.config.stride, max_patches) for shape in shapes]
    for size in sorted(set(sides)):
        places = [place for place, own in enumerate(sides) if own == size]
        record = dataclasses.replace(model.preprocessing, image_size=size, resize="squash")
        for start in range(0, len(places), batch_size):
            some = places[start : start + batch_size]
            yield some, np.stack([np.asarray(record(images[place])) for place in some])


def naflex_batch(
    model: ImageModel, images: Sequence[np.ndarray], max_patches: int = MOST_PATCHES
) -> dict[str, np.ndarray]:
    """Makes one batch of photos of any size: each becomes patches in its own aspect, padded and masked.

    Each is resized to the largest grid of at most `max_patches` patches that nearly keeps its aspect, prepared by
    `model.preprocessing`, and cut.

    Example:
        >>> tall, wide = np.zeros((64, 32, 3), "uint8"), np.zeros((30, 90, 3), "uint8")
        >>> batch = keras_vit.naflex_batch(model, [tall, wide], max_patches=16)
        >>> batch["patches"].shape
        (2, 16, 768)
        >>> batch["grids"].tolist(), batch["mask"].sum(axis=1).tolist()
        ([[5, 3], [2, 6]], [15, 12])

    Args:
        model: a model of `naflex`, or the `VisionTransformer` that it was made of. Read are the patch size and
            `preprocessing`, the rule for resizing and scaling photos.
        images: at least one photo, each `(H, W, C)` of a size of its own, integers or floats in [0, 255]; also one
            array `(B, H, W, C)`.
        max_patches: N, the most patches of an image, to which all are padded. It need not be that of the position
            table. One number for all batches has a model compiled once.

    Returns:
        `"patches"`, float32 `(B, N, P * P * C)`, in reading order, each by row, column and channel, and 0 for padding;
        `"mask"`, bool `(B, N)`, true for patches of the photo; `"grids"`, int32 `(B, 2)`, `(h, w)` in patches.

    Raises:
        TypeError: for another model, or anything but pixels.
        ValueError: for no images, one of another shape, or values outside of [0, 255].

    Source: arXiv:2502.14786, section 2.4.2; sizes and order are those of transformers' `Siglip2ImageProcessor`.
    """
    if not isinstance(model, ImageModel) or not isinstance(model.config, ViTConfig) or model.preprocessing is None:
        raise TypeError(
            "`model` must be one of `naflex` or a VisionTransformer, which knows its patch size and preprocessing.\n"
            f"Received: {model!r} of type {type(model).__name__}."
        )
    shapes = [np.shape(image) for image in images]
    if not shapes or any(len(shape) != 3 for shape in shapes):
        raise ArgumentError(
            "`images` must be at least one photo, each (H, W, C), in a list or as (B, H, W, C).\n"
            f"Received: shapes {', '.join(map(str, shapes[:3])) or 'of no images'}. Pass one photo as `[image]`."
        )
    side = model.config.patch_size
    cut = []
    for image, shape in zip(images, shapes, strict=True):
        size = sides_for_patches(shape[0], shape[1], side, max_patches)
        pixels = np.asarray(dataclasses.replace(model.preprocessing, image_size=size, resize="squash")(image))
        grid = (size[0] // side, size[1] // side)
        pixels = pixels.reshape(grid[0], side, grid[1], side, -1).swapaxes(1, 2)  # (h, w, P, P, C)
        cut.append((grid, pixels.reshape(math.prod(grid), -1)))
    patches = np.zeros((len(cut), max_patches, cut[0][1].shape[1]), "float32")
    for row, (_, own) in zip(patches, cut, strict=True):
        row[: len(own)] = own
    grids = np.array([grid for grid, _ in cut], "int32")
    return {"patches": patches, "mask": np.arange(max_patches) < grids.prod(1, keepdims=True), "grids": grids}
