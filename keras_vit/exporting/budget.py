"""How many photos a model is compared on, how many at once, and how often it is timed.

Attention of B/16 at 1,024 pixels holds 2 GB for one photo, which takes as much work as 37 photos at 224. So a
comparison has a budget of memory and one of work. Models of usual sizes stay far below both.
"""

import contextlib
import ctypes
import gc
from typing import Any

from keras_vit.annotations import Pair
from keras_vit.config.flops import flops
from keras_vit.config.variants import ResNetConfig

_MEMORY = 2e8  # bytes of what layers hold for one batch, beside weights; B/16 has 3.5e8 of these in float32
_WORK = 2.2e12  # FLOP of the photos of one comparison
_NUMBER = 4  # bytes
_LARGE = 5e7  # bytes of weights; Ti/16 has 2.3e7, S/16 8.8e7
# Numbers held at once, of each attention weight, of each token's width and MLP, and of each number of a ResNet's root:
# a product, what is made of it, and a part of the next one.
_OF_ATTENTION, _OF_WIDTH, _OF_MLP, _OF_ROOT = 2.5, 6, 2, 6


def photos_at_once(model: Any, size: Pair) -> int:
    """How many photos fit into one batch; at least one.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        size: `(H, W)` of the photos.
    """
    return max(1, int(_MEMORY / _bytes_of_one(model.config, size)))


def max_repeats(model: Any, size: Pair, most: int, times: float = 1) -> int:
    """How many photos a model may compute, of those that are wanted; at least one.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        size: `(H, W)` of the photos.
        most: that are wanted.
        times: how many budgets may be spent.
    """
    return max(1, min(most, int(times * _WORK / flops(model.config, size).total)))


def trim_memory(model: Any, size: Pair) -> None:
    """Gives memory back that nobody holds, where one photo alone fills the budget.

    That is cycles of Python, which conversions leave, and what glibc keeps: of B/16 at 1,024 pixels 1.4 GB together. It
    takes 0.3 s, so models of usual sizes are left alone.
    """
    if photos_at_once(model, size) == 1:
        _release()


def trim_weight_memory(model: Any) -> None:
    """Gives memory back that nobody holds, where weights are large: a conversion leaves a copy of them in cycles."""
    if _NUMBER * model.count_params() > _LARGE:
        _release()


def _release() -> None:
    gc.collect()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # of systems without glibc
        ctypes.CDLL(None).malloc_trim(0)


def _bytes_of_one(config: Any, size: Pair) -> float:
    height, width = size
    numbers = 3.0 * 3 * height * width  # the pixels, scaled, and as they came
    if isinstance(config, ResNetConfig) or config.resnet_stages is not None:
        root = config.width if isinstance(config, ResNetConfig) else config.resnet_width
        numbers += _OF_ROOT * root * (height / 2) * (width / 2)
    if not isinstance(config, ResNetConfig):
        rows, columns = config.grid(height, width)
        tokens = rows * columns + len(config.prefix_tokens)
        numbers += _OF_ATTENTION * config.num_heads * tokens**2
        numbers += tokens * (_OF_WIDTH * config.hidden_size + _OF_MLP * config.mlp_dim)
    return _NUMBER * numbers
