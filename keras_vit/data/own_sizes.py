"""Photos of any aspect in batches for NaFlex: each at its own size, of at most so many patches (arXiv:2502.14786).

transformers pads patches of several grids to one length and masks them. A batch here has photos of one grid, which
gives the same numbers without a mask.
"""

import dataclasses
import fractions
import math
from collections.abc import Iterator, Sequence

import numpy as np

from keras_vit.checks import check_positive_int
from keras_vit.model.image_model import check_image_model
from keras_vit.model.vision_transformer import VisionTransformer

MOST_PATCHES = 256  # of an image, transformers' default


def sides_for_patches(height: int, width: int, patch_size: int, max_patches: int = MOST_PATCHES) -> tuple[int, int]:
    """The largest size of nearly an image's aspect that has at most so many patches.

    Both sides are multiplied by one factor and rounded up to whole patches.

    Args:
        height: of the image in pixels.
        width: the same.
        patch_size: P.
        max_patches: the most of h times w patches.

    Returns:
        `(H, W)`, multiples of P.

    Source: arXiv:2502.14786, section 2.4.2, as transformers rounds.
    """
    sizes = (("height", height), ("width", width), ("patch_size", patch_size), ("max_patches", max_patches))
    height, width, patch_size, max_patches = (check_positive_int(name, size) for name, size in sizes)
    # The number of patches grows where the factor makes a side a whole number of patches: by columns, or by rows.
    by_rows = ((rows, -(-rows * width // height)) for rows in range(1, max_patches + 1))
    by_columns = ((-(-columns * height // width), columns) for columns in range(1, max_patches + 1))
    factors = [(fractions.Fraction(grid[0], height), grid) for grid in by_rows]
    factors += [(fractions.Fraction(grid[1], width), grid) for grid in by_columns]
    rows, columns = max((factor, grid) for factor, grid in factors if math.prod(grid) <= max_patches)[1]
    return rows * patch_size, columns * patch_size


def batches_by_size(
    model: VisionTransformer, images: Sequence[np.ndarray], max_patches: int = MOST_PATCHES, batch_size: int = 16
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Photos of any size in batches for a model that takes images of any size.

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
