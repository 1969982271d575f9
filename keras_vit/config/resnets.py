"""The architecture of a ResNet baseline as data: `ResNetConfig`, and one row per model of the papers.

Sizes are those of arXiv:2010.11929 (table 6) and arXiv:1912.11370 (BiT), spelled as there: `R50x1` has the 50 layers
of arXiv:1512.03385 at once its width. Nothing here imports Keras.
"""

import dataclasses
import math
from typing import Any

from keras_vit.checks import check_number, check_positive_int, did_you_mean

GROUPS = 32  # of every GroupNorm, in all published models


@dataclasses.dataclass(frozen=True)
class ResNetConfig:
    """The sizes of a ResNet baseline: all that decides its layers, but image size and classes.

    Example:
        >>> keras_vit.RESNETS["R50x1"]
        ResNetConfig(stages=(3, 4, 6, 3), width_factor=1)
        >>> small = keras_vit.ResNetConfig(stages=(1, 1, 1, 1), width_factor=0.5)
        >>> keras_vit.build_resnet(small, classes=10).count_params()
        2017578

    Args:
        stages: residual units in each stage.
        width_factor: 1 is a root of 64 channels, and 2,048 channels behind four stages.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range.
    """

    stages: tuple[int, ...]
    width_factor: float = 1

    def __post_init__(self) -> None:
        if not isinstance(self.stages, (tuple, list)) or not self.stages:
            raise TypeError(f"`stages` must be a tuple of unit counts, one or more.\nReceived: stages={self.stages!r}.")
        object.__setattr__(self, "stages", tuple(check_positive_int("stages", units) for units in self.stages))
        check_number("width_factor", self.width_factor)
        width = 64 * self.width_factor
        if not (width >= GROUPS and width % GROUPS == 0):
            raise ValueError(
                f"GroupNorm has {GROUPS} groups, so 64 * `width_factor` must be a positive multiple of {GROUPS}.\n"
                f"Received: width_factor={self.width_factor}."
            )

    def as_dict(self) -> dict[str, Any]:
        """The fields by their names, as a file keeps them."""
        return dataclasses.asdict(self)

    @property
    def width(self) -> int:
        """Channels of the root, and F of the first stage."""
        return int(64 * self.width_factor)

    @property
    def features(self) -> int:
        """D, channels of the last feature map and size of the representation."""
        return 4 * self.width * 2 ** (len(self.stages) - 1)

    @property
    def stride(self) -> int:
        """Side in image pixels of what one place of the last feature map covers."""
        return 2 ** (len(self.stages) + 1)  # root and pooling halve, and every stage after the first

    @property
    def side_unit(self) -> int:
        """Pixels of which an image's height and width are multiples: padding takes every side."""
        return 1

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """`(h, w)` of the last feature map for an image of `height` x `width` pixels."""
        return math.ceil(height / self.stride), math.ceil(width / self.stride)


_R50, _R101, _R152, _R200 = (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3), (3, 24, 36, 3)
RESNETS = {
    "R50x1": ResNetConfig(_R50, 1),
    "R50x2": ResNetConfig(_R50, 2),
    "R50x3": ResNetConfig(_R50, 3),
    "R101x1": ResNetConfig(_R101, 1),
    "R101x3": ResNetConfig(_R101, 3),
    "R152x1": ResNetConfig(_R152, 1),
    "R152x2": ResNetConfig(_R152, 2),
    "R152x4": ResNetConfig(_R152, 4),
    "R200x3": ResNetConfig(_R200, 3),
}


def resnet(name: str) -> ResNetConfig:
    """The `ResNetConfig` of a model of the papers.

    Args:
        name: a key of `RESNETS`, as `"R50x1"`.

    Raises:
        ValueError: for an unknown name; the error lists the nearest ones.
    """
    if name not in RESNETS:
        raise ValueError(
            f"`name` must be one of {', '.join(RESNETS)}.\nReceived: {name!r}.{did_you_mean(name, RESNETS)}"
        )
    return RESNETS[name]
