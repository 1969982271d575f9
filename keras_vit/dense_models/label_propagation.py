"""Masks of photos from a few examples, without training: each patch takes the labels of patches that look like it."""

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.checks import ArgumentError, check_flag, check_positive, check_positive_int, with_hints
from keras_vit.dense.maps import at_taps, axis_taps
from keras_vit.dense.masks import read_mask
from keras_vit.dense.queries import propagate_labels
from keras_vit.dense_models.patch_features import PatchFeatures
from keras_vit.dense_models.photos import Segmentation, for_each

_IGNORED = 255  # label of pixels that belong to no class
_SHORT_SIDE = 448  # pixels; 32 patches of 14


@with_hints
def segment_like(
    model: keras.Model,
    photo: Any,
    mask: Any,
    photos: Any,
    *,
    short_side: int = _SHORT_SIDE,
    top: int = 5,
    temperature: float = 0.2,
    class_names: Sequence[str] | None = None,
    scores: bool = False,
) -> Any:
    """Gives each pixel of photos the class that an example shows, by how alike patches of both are.

    Nothing is trained. For each patch of a photo, the `top` patches of the examples with the highest cosine give their
    labels, by a softmax of the cosines. Features are the tokens after the last block, with the final norm. Shares of
    classes are resized to the photo (bilinear, half-pixel centres).

    Example:
        >>> small = keras_vit.ViTConfig(8, 64, 4, num_heads=4, mlp_dim=128)
        >>> encoder = keras_vit.build(small, include_top=False)
        >>> mask = np.arange(96) // 48 * np.ones((64, 1), int)
        >>> photo = np.array([(200, 20, 20), (20, 20, 200)], "uint8")[mask]
        >>> found = keras_vit.segment_like(encoder, photo, mask, photo, short_side=64)
        >>> found.classes[32, [10, 80]]
        array([0, 1], dtype=int32)

    Args:
        model: a `VisionTransformer` with patches, or a model that has one among its layers. Published weights of
            DINOv2 or DINOv3 have patches that can be compared; random ones have not.
        photo: of the example, a path or uint8 `(H, W, 3)`; or a list of several.
        mask: of its pixels, integers `(H, W)` or a path to such a PNG or NumPy file: classes from 0, and 255 for pixels
            that belong to none; or a list, one for each photo.
        photos: to be answered for, a path or uint8 `(H, W, 3)`; or a list.
        short_side: pixels that the shorter side of each photo is resized to, aspect kept; the longer side gets at most
            four times that, or 2,048. Sides are then the nearest multiples of the patch, at least one.
        top: patches of the examples that count for one patch.
        temperature: of the softmax, above 0.
        class_names: of the classes, in their order; by default none.
        scores: whether to keep the shares of the classes.

    Returns:
        A `Segmentation` for one photo, a list of them for a list; `scores` are shares that sum to 1.

    Raises:
        TypeError: for a model without patches, and photos that are no pixels.
        ValueError: for a mask of another size than its photo, masks of fewer than two classes, or values out of range.
        ImageError: (a `ValueError`) for a file that cannot be decoded.
        FileNotFoundError: for a photo that is not there.

    Source: DINOv3, arXiv:2508.10104, section 6.1.5 (video segmentation tracking), on photos instead of frames.
    """
    side = check_positive_int("short_side", short_side)
    top = check_positive_int("top", top)
    check_positive("temperature", temperature)
    check_flag("scores", scores)
    patches = PatchFeatures(model, side)
    many, masks = (photo, mask) if isinstance(photo, (list, tuple)) else ([photo], [mask])
    if not isinstance(masks, (list, tuple)) or len(masks) != len(many) or not many:
        raise ArgumentError(
            "each example needs a photo and its mask.\n"
            f"Received: {len(many)} photos, {len(masks) if isinstance(masks, (list, tuple)) else 'one'} masks.",
            parameters=("mask",),
        )
    examples = [patches.pixels(one) for one in many]
    labels = [_mask_of(each, pixels.shape[:2]) for each, pixels in zip(masks, examples, strict=True)]
    classes = sorted(set().union(*(np.unique(found).tolist() for found in labels)) - {_IGNORED})
    if len(classes) < 2:
        hint = " In a mask of 0 and 255 write 1 for 255, which is no class." if classes == [0] else ""
        raise ArgumentError(
            f"masks must show two classes or more, so that there is a choice.\nReceived: classes {classes}.{hint}",
            parameters=("mask",),
        )
    count = classes[-1] + 1
    if class_names is not None and len(class_names) < count:
        raise ArgumentError(
            f"`class_names` must name each class of the masks.\nReceived: {len(class_names)} names of {count} classes."
        )
    known, shares = [], []
    for pixels, found in zip(examples, labels, strict=True):
        maps = patches(pixels)
        parts = _shares(found, maps.shape[:2], count)
        counts = parts.sum(axis=-1) > 0
        known.append(maps[counts])
        shares.append(parts[counts])
    context, context_labels = np.concatenate(known), np.concatenate(shares)
    context_labels = context_labels / context_labels.sum(axis=-1, keepdims=True)
    if top > len(context):
        raise ArgumentError(
            f"`top` must be at most the examples' labelled patches, {len(context)}.\nReceived: top={top}."
        )
    names = None if class_names is None else tuple(map(str, class_names))

    def answer(one: Any) -> Segmentation:
        pixels = patches.pixels(one)
        maps = propagate_labels(patches(pixels), context, context_labels, top, None, temperature)
        rows, columns = (axis_taps(n, m) for n, m in zip(maps.shape[:2], pixels.shape[:2], strict=True))
        found = at_taps(maps, rows, columns)
        return Segmentation(found.argmax(axis=-1).astype("int32"), found if scores else None, names)

    return for_each(answer, photos)


def _mask_of(mask: Any, size: tuple[int, ...]) -> np.ndarray:
    """A mask in integers; raises unless it has the size of its photo, and classes from 0."""
    found = read_mask(mask) if isinstance(mask, (str, os.PathLike)) else np.asarray(mask)
    if found.shape != size or not np.issubdtype(found.dtype, np.integer) or found.min(initial=0) < 0:
        raise ArgumentError(
            "a mask must be integers from 0, as many rows and columns as its photo.\n"
            f"Received: {found.dtype} of shape {found.shape}, least value {found.min(initial=0)}, for a photo of "
            f"{size[0]} x {size[1]}.",
            parameters=("mask",),
        )
    return found


def _shares(mask: np.ndarray, grid: tuple[int, ...], count: int) -> np.ndarray:
    """`(h, w, K)`: how many pixels of each class a patch has, of pixels in the same part of the photo."""
    (height, width), (rows, columns) = mask.shape, grid
    places = (np.arange(height) * rows // height)[:, None] * columns + np.arange(width) * columns // width
    labelled = mask != _IGNORED
    numbers = places[labelled] * count + mask[labelled]
    return np.bincount(numbers, minlength=rows * columns * count).reshape(rows, columns, count).astype("float64")
