"""One row per published model: the sizes of its `ViTConfig`.

Sizes are those of arXiv:2010.11929 (table 1), arXiv:2106.10270 (Ti, S, the R26 and R+Ti hybrids)
and arXiv:2106.04560 (g, G), spelled as in the papers. Nothing here imports Keras.
"""

from collections.abc import Sequence
from typing import Any

from keras_vit.checks import ArgumentError, check_positive_int, did_you_mean
from keras_vit.config.encoders import ENCODERS, FAMILIES, encoder
from keras_vit.config.resnets import RESNETS, ResNetConfig
from keras_vit.config.vit import ViTConfig
from keras_vit.synonyms import find_resnets

DEFAULT_IMAGE_SIZE = 224  # pixels, the resolution of pre-training
DEFAULT_CLASSES = 1000

#                    P   D     L   A   M
VARIANTS = {
    "Ti/16": ViTConfig(16, 192, 12, 3, 768),
    "S/16": ViTConfig(16, 384, 12, 6, 1536),
    "S/32": ViTConfig(32, 384, 12, 6, 1536),
    "B/8": ViTConfig(8, 768, 12, 12, 3072),
    "B/16": ViTConfig(16, 768, 12, 12, 3072),
    "B/32": ViTConfig(32, 768, 12, 12, 3072),
    "L/16": ViTConfig(16, 1024, 24, 16, 4096, dropout_rate=0.1),
    "L/32": ViTConfig(32, 1024, 24, 16, 4096),
    "H/14": ViTConfig(14, 1280, 32, 16, 5120, dropout_rate=0.1),
    "g/14": ViTConfig(14, 1408, 40, 16, 6144),
    "G/14": ViTConfig(14, 1664, 48, 16, 8192),
    # Called /16 in arXiv:2106.10270, but its tokens cover 32 pixels: 4 of the root times 8 of the patch.
    "R+Ti/16": ViTConfig(8, 192, 12, 3, 768, resnet_stages=()),
    "R26+S/32": ViTConfig(1, 384, 12, 6, 1536, resnet_stages=(2, 2, 2, 2)),
    "R26+B/32": ViTConfig(1, 768, 12, 12, 3072, resnet_stages=(2, 2, 2, 2)),
    "R50+B/16": ViTConfig(1, 768, 12, 12, 3072, resnet_stages=(3, 4, 9), dropout_rate=0.1),
    "R50+L/32": ViTConfig(1, 1024, 24, 16, 4096, resnet_stages=(3, 4, 6, 3), dropout_rate=0.1),
}


def variant(name: str) -> ViTConfig:
    """The `ViTConfig` of a published model.

    Args:
        name: a key of `VARIANTS`, as `"B/16"` or `"R50+L/32"`, or an encoder, as `"dinov2/S14"`.

    Raises:
        ValueError: for an unknown name; the error lists the nearest ones.
    """
    if name in ENCODERS:
        return encoder(name)
    if name not in VARIANTS:
        raise ValueError(
            f"`name` must be one of {', '.join(VARIANTS)}, or an encoder of a family: {', '.join(FAMILIES)}, with its "
            f"size, as 'dinov2/S14'.\nReceived: {name!r}.{_hint(name)}"
        )
    return VARIANTS[name]


def _hint(name: str) -> str:
    if isinstance(name, str) and (resnets := find_resnets(name, RESNETS)):
        return f" keras_vit.build_resnet({resnets[0]!r}) builds the ResNet."
    return did_you_mean(name, (*VARIANTS, *ENCODERS))


def builder_name(name: str) -> str:
    """The builder function of a variant: `"ViTB16"` for `"B/16"`, `"R50ViTL32"` for `"R50+L/32"`."""
    hybrid, _, size = name.rpartition("+")
    return f"{hybrid}ViT{size.replace('/', '')}"


BUILDERS = {builder_name(name): name for name in VARIANTS}  # builder: variant


def check_image_size(size: Any, config: ViTConfig | ResNetConfig) -> tuple:
    """`size`, a side or (H, W), as (H, W) of ints; raises unless the sides are unknown or tiled by the patches."""
    given = size if isinstance(size, (tuple, list)) else (size, size)
    if len(given) != 2:
        raise ArgumentError(
            f"`image_size` must be one side, or (H, W).\nReceived: image_size={size!r}.", parameters=("image_size",)
        )
    sides = [side if side is None else check_positive_int("image_size", side) for side in given]
    check_tiled("image_size", size, sides, config)
    return tuple(sides)


def check_tiled(
    name: str,
    given: Any,
    sides: Sequence[int | None],
    config: ViTConfig | ResNetConfig,
    channels: Sequence[int | None] = (),
) -> None:
    """Raises unless the sides of `given`, argument `name`, are unknown or tiled by the config's patches."""
    step = config.side_unit
    if isinstance(config, ResNetConfig) or not any(side is not None and side % step for side in sides):
        return  # a ResNet takes images of any size
    nearest = (*(side and max(round(side / step), 1) * step for side in sides), *channels)
    unit = f"patch_size={config.patch_size}"
    if step != config.patch_size:
        unit += f" behind a ResNet, {step} pixels in all"
    raise ArgumentError(
        f"`{name}` must be a multiple of `patch_size` on both sides, so that patches tile the image.\n"
        f"Received: {name}={given}, {unit}. Nearest: {nearest if isinstance(given, (tuple, list)) else nearest[0]}.",
        parameters=(name,),
    )
