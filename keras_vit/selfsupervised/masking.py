"""Masks of patches, of MAE, SimMIM and iBOT, and the losses of the pixels behind them."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.checks import ArgumentError, check_fraction, check_positive_int, check_seed
from keras_vit.selfsupervised.arrays import check_shape, floats

_TRIES = 10  # to place a block
_LEAST_BLOCK = 4  # patches
_ASPECT = math.log(0.3)  # of a block, from 0.3 to 1 / 0.3


def random_masking(noise: Tensor, ratio: float) -> tuple[Tensor, Tensor, Tensor]:
    """MAE's masks: the patches with the largest noise are masked.

    Args:
        noise: `(B, N)`.
        ratio: share of the patches that are masked, in [0, 1); int(N (1 - ratio)) are kept.

    Returns:
        Places of the kept patches `(B, keep)` in the order of the noise; the mask `(B, N)`, True where masked; and
        `(B, N)`, which puts kept and then masked patches back into their places.

    Raises:
        ValueError: for a ratio out of range, or one that keeps no patch.

    Source: MAE, arXiv:2111.06377, section 3.
    """
    check_fraction("ratio", ratio)
    noise = ops.convert_to_tensor(noise)
    check_shape("noise", noise, (None, None))
    keep = int(noise.shape[1] * (1 - ratio))
    if not keep:
        raise ArgumentError(f"`ratio` must leave a patch.\nReceived: ratio={ratio} of {noise.shape[1]} patches.")
    order = ops.argsort(noise, axis=1)
    restore = ops.argsort(order, axis=1)
    return order[:, :keep], restore >= keep, restore


def mae_loss(predictions: Tensor, images: Tensor, mask: Tensor, patch_size: int, normalize: bool = True) -> Tensor:
    """MAE: the squared difference of pixels, a mean over the masked patches of the batch.

    Args:
        predictions: `(B, N, P P C)`; a patch is its rows, columns and channels.
        images: `(B, H, W, C)`, prepared.
        mask: `(B, N)`, True or 1 where masked.
        patch_size: P.
        normalize: whether the pixels of each patch are brought to mean 0 and deviation 1, by the unbiased variance and
            1e-6.

    Returns:
        A scalar, 0 where nothing is masked.

    Raises:
        ValueError: for shapes that do not fit.

    Source: MAE, arXiv:2111.06377, section 3.
    """
    losses, mask = _pixel_losses(predictions, images, mask, patch_size, normalize)
    return ops.sum(losses * mask) / ops.maximum(ops.sum(mask), 1)


def mae_losses(predictions: Tensor, images: Tensor, mask: Tensor, patch_size: int, normalize: bool = True) -> Tensor:
    """The means `(B,)` over the masked patches of each image, whose mean is `mae_loss` where they are as many."""
    losses, mask = _pixel_losses(predictions, images, mask, patch_size, normalize)
    return ops.sum(losses * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1)


def _pixel_losses(
    predictions: Tensor, images: Tensor, mask: Tensor, patch_size: int, normalize: bool
) -> tuple[Tensor, Tensor]:
    """The mean squared difference of each patch, and the mask as floats."""
    predictions, targets, mask = _patches(predictions, images, mask, patch_size)
    if normalize:
        size = targets.shape[-1]
        mean, variance = ops.moments(targets, axes=-1, keepdims=True)
        targets = (targets - mean) / ops.sqrt(variance * (size / max(size - 1, 1)) + 1e-6)
    return ops.mean(ops.square(predictions - targets), axis=-1), mask


def simmim_loss(predictions: Tensor, images: Tensor, mask: Tensor, patch_size: int) -> Tensor:
    """SimMIM: the absolute difference of masked pixels, a mean over them and their channels.

    Args:
        predictions: `(B, N, P P C)`.
        images: `(B, H, W, C)`, prepared.
        mask: `(B, N)`, True or 1 where masked.
        patch_size: P.

    Returns:
        A scalar, 0 where nothing is masked.

    Raises:
        ValueError: for shapes that do not fit.

    Source: SimMIM, arXiv:2111.09886, eq. 1; the divisor as its code has it.
    """
    predictions, targets, mask = _patches(predictions, images, mask, patch_size)
    total = ops.sum(ops.sum(ops.abs(predictions - targets), axis=-1) * mask)
    return total / (ops.sum(mask) * patch_size**2 + 1e-5) / images.shape[-1]


def _patches(predictions: Tensor, images: Tensor, mask: Tensor, patch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions, the images' patches `(B, N, P P C)` and the mask, as floats."""
    side = check_positive_int("patch_size", patch_size)
    predictions = floats(predictions)
    images = ops.cast(ops.convert_to_tensor(images), predictions.dtype)
    check_shape("images", images, (None, None, None, None))
    _, height, width, channels = images.shape
    if height % side or width % side:
        raise ArgumentError(
            f"`patch_size` must divide the sides of the images.\nReceived: patch_size={side}, {height} x {width}."
        )
    rows, columns = height // side, width // side
    count, size = rows * columns, side**2 * channels
    check_shape("predictions", predictions, (None, count, size))
    mask = ops.cast(ops.convert_to_tensor(mask), predictions.dtype)
    check_shape("mask", mask, (None, count))
    cut = ops.reshape(images, (-1, rows, side, columns, side, channels))
    return predictions, ops.reshape(ops.transpose(cut, (0, 1, 3, 2, 4, 5)), (-1, count, size)), mask


def block_masks(
    seed: int, crops: int, grid: Sequence[int], share: float = 0.5, ratios: Sequence[float] = (0.1, 0.5)
) -> np.ndarray:
    """Masks of rectangles for a batch of global crops, as iBOT and DINOv2 draw them.

    int(crops share) crops get a mask. Their aims are spread evenly over `ratios`, one in each part, in a random order,
    so that every batch has the same spread. A mask never has more patches than its aim, and sometimes fewer.

    Args:
        seed: of all that is random.
        crops: R, of the batch.
        grid: `(h, w)` in patches.
        share: of the crops that get a mask, in [0, 1].
        ratios: least and greatest share of a crop's patches that are masked.

    Returns:
        Booleans `(R, h w)`.

    Raises:
        ValueError: for values out of range.

    Source: iBOT, arXiv:2111.07832, appendix; BEiT, arXiv:2106.08254, algorithm 1.
    """
    draw = np.random.default_rng(check_seed("seed", seed))
    crops = check_positive_int("crops", crops)
    height, width = (check_positive_int("grid", side) for side in grid)
    low, high = ratios
    if not 0 <= share <= 1 or not 0 <= low <= high <= 1:
        raise ArgumentError(
            "`share` must be in [0, 1], and `ratios` two of such numbers, the smaller first.\n"
            f"Received: share={share}, ratios={tuple(ratios)}."
        )
    masked = int(crops * share)
    edges = np.linspace(low, high, masked + 1)
    aims = [int(height * width * draw.uniform(*pair)) for pair in itertools.pairwise(edges)]
    masks = [_block_mask(draw, aim, height, width) for aim in (*aims, *[0] * (crops - masked))]
    return np.stack([masks[place].reshape(-1) for place in draw.permutation(crops)])


def _block_mask(draw: np.random.Generator, aim: int, height: int, width: int) -> np.ndarray:
    mask = np.zeros((height, width), bool)
    while (missing := aim - int(mask.sum())) > 0 and _add_block(draw, mask, min(missing, height * width / 2), aim):
        pass
    return mask


def _add_block(draw: np.random.Generator, mask: np.ndarray, most: float, aim: int) -> bool:
    """Whether one of several rectangles adds between 1 and `most` patches."""
    height, width = mask.shape
    for _ in range(_TRIES):
        area = draw.uniform(min(_LEAST_BLOCK, aim), most) if most > min(_LEAST_BLOCK, aim) else most
        aspect = math.exp(draw.uniform(_ASPECT, -_ASPECT))
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if not (0 < rows < height and 0 < columns < width):
            continue
        top, left = draw.integers(height - rows + 1), draw.integers(width - columns + 1)
        block = mask[top : top + rows, left : left + columns]
        if 0 < (~block).sum() <= most:
            block[:] = True
            return True
    return False
