"""Limits for comparing and timing: photos in a batch, photos in all, repeats.

Attention of B/16 at 1,024 pixels takes 2 GB for one photo, and as much work as 37 photos at 224. So a comparison has a
budget of memory and one of work. Models of usual sizes stay far below both.
"""

import contextlib
import ctypes
import gc
from typing import Any

from keras_vit.annotations import Pair
from keras_vit.config.flops import flops
from keras_vit.config.variants import ResNetConfig

_MEMORY = 2e8  # bytes of activations of one batch; the weights of B/16 have 3.5e8 in float32
_WORK = 2.2e12  # FLOP of the photos of one comparison
_NUMBER = 4  # bytes
_LARGE = 5e7  # bytes of weights; Ti/16 has 2.3e7, S/16 8.8e7
# Copies held at once of each attention weight, of a token's width and MLP, and of a ResNet's root: a product, its
# activation, and a part of the next product.
_ATTENTION, _WIDTH, _MLP, _ROOT = 2.5, 6, 2, 6


def photos_at_once(model: Any, size: Pair) -> int:
    """How many photos fit into one batch; at least one.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        size: `(H, W)` of the photos.
    """
    return max(1, int(_MEMORY / _bytes_of_one(model.config, _whole_patches(model.config, size))))


def max_repeats(model: Any, size: Pair, most: int, times: float = 1) -> int:
    """How often a model may compute one photo within the budget of work; at least once.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        size: `(H, W)` of the photos.
        most: the wanted number.
        times: number of budgets that may be spent.
    """
    return max(1, min(most, int(times * _WORK / flops(model.config, _whole_patches(model.config, size)).total)))


def _whole_patches(config: Any, size: Pair) -> Pair:
    """`(H, W)` up to whole patches, as models of pixels pad their images."""
    height, width = (-(-side // config.side_unit) * config.side_unit for side in size)
    return height, width


def trim_memory(model: Any, size: Pair) -> None:
    """Frees unused memory, if one photo alone fills the budget.

    Conversions leave reference cycles, and glibc keeps freed memory: together 1.4 GB for B/16 at 1,024 pixels. It takes
    0.3 s, so it is skipped for models of usual sizes.
    """
    if photos_at_once(model, size) == 1:
        _release()


def trim_weight_memory(model: Any) -> None:
    """Frees unused memory, if the weights are large: a conversion leaves a copy of them in reference cycles."""
    if _NUMBER * model.count_params() > _LARGE:
        _release()


def _release() -> None:
    gc.collect()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # on systems without glibc
        ctypes.CDLL(None).malloc_trim(0)


def _bytes_of_one(config: Any, size: Pair) -> float:
    height, width = size
    numbers = 3.0 * 3 * height * width  # the pixels, and the scaled pixels
    if isinstance(config, ResNetConfig) or config.resnet_stages is not None:
        root = config.width if isinstance(config, ResNetConfig) else config.resnet_width
        numbers += _ROOT * root * (height / 2) * (width / 2)
    if not isinstance(config, ResNetConfig):
        rows, columns = config.grid(height, width)
        tokens = rows * columns + len(config.prefix_tokens)
        numbers += _ATTENTION * config.num_heads * tokens**2
        numbers += tokens * (_WIDTH * config.hidden_size + _MLP * config.mlp_dim)
    return _NUMBER * numbers
