"""`Augmentation`, the record of random changes and their strengths, and published records by name.

Sources: official code `input_pipeline.py` (crop, flip); AugReg (arXiv:2106.10270) and big_vision
`configs/common.py` (levels none to strong2), `configs/vit_s16_i1k.py`, `configs/transfer.py`.
"""

import dataclasses
import math
import types
from typing import Any

from keras_vit.checks import check_choice, check_flag, check_int, check_number

CROPS = ("inception", "resize_crop", "resmall_crop", "scale_crop", "none")
MASK_CROPS = ("scale_crop", "none")  # that a mask can follow
MOST_MAGNITUDE = 30  # RandAugment (arXiv:1909.13719) searches 0..30


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Random changes of training images, in the order in which they are applied.

    Example:
        >>> keras_vit.Augmentation(crop="none", mixup_alpha=0.2).flip
        True
        >>> keras_vit.AUGMENTATIONS["augreg-medium1"].randaugment_magnitude
        15

    Args:
        crop: `"inception"` cuts a window of random area and aspect (3/4 to 1.33) and resizes it;
            `"resize_crop"` resizes to 7/6 of the size (448 for 384) whatever the aspect and cuts a random
            window out; `"resmall_crop"` does so but keeps the aspect; `"scale_crop"` resizes by a ratio of `scale`,
            keeps the aspect, cuts a random window out and pads what is smaller; `"none"` only resizes.
        crop_area: smallest and largest part of the image that `"inception"` cuts out, in (0, 1].
        affine: `(shift, turn, zoom)`, in [0, 1), [0, 0.5] and [0, 1). They limit the shift as a part of each side, the
            turn in full turns, and the change of scale of each axis. All are drawn uniformly from both signs, and
            empty pixels are black. The zoom also enlarges the shift, up to shift / (1 - zoom).
        flip: whether half of the images are mirrored left to right.
        randaugment_layers: number of RandAugment operations on every image.
        randaugment_magnitude: strength of these, 0 to 30. At 0 images still change, as in the official code: colours
            nearly vanish, and solarizing inverts. Translation and cutout grow with the shorter side, and are the
            official numbers of pixels at 224.
        mixup_alpha: parameter of MixUp's Beta distribution; 0 disables MixUp.
        cutmix_alpha: parameter of CutMix's Beta distribution; 0 disables CutMix. If both are set, each batch takes
            either with probability 0.5.
        erasing_probability: probability that noise replaces a random rectangle.
        scale: smallest and largest ratio of `"scale_crop"`; at 1 the image just covers the size.
        most_of_one_class: largest part of a window of `"scale_crop"` that one class of a mask may fill, in (0, 1].
        colors: whether brightness, contrast, saturation and hue are changed, each in half of the images.
        whole_levels: whether images are rounded to whole grey levels in the end. They cross to a device as bytes then,
            a quarter of the memory. It is not the official code, which trains on fractions; and MixUp makes such.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range.
    """

    crop: str = "inception"
    crop_area: tuple[float, float] = (0.05, 1.0)
    affine: tuple[float, float, float] = (0.0, 0.0, 0.0)
    flip: bool = True
    randaugment_layers: int = 0
    randaugment_magnitude: float = 0.0
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    erasing_probability: float = 0.0
    whole_levels: bool = False
    scale: tuple[float, float] = (0.5, 2.0)
    most_of_one_class: float = 0.75
    colors: bool = False

    def __post_init__(self) -> None:
        check_choice("crop", self.crop, CROPS)
        check_flag("flip", self.flip)
        check_flag("colors", self.colors)
        for field, length in (("crop_area", 2), ("affine", 3), ("scale", 2)):
            object.__setattr__(self, field, _numbers(field, getattr(self, field), length))
        if not 0 < self.crop_area[0] <= self.crop_area[1] <= 1:
            raise ValueError(
                "`crop_area` must be the smallest and the largest part of an image, in (0, 1].\n"
                f"Received: crop_area={self.crop_area}."
            )
        _check_scale(self.scale)
        _check_range("most_of_one_class", self.most_of_one_class, 1)
        for value, limit in zip(self.affine, (0.999, 0.5, 0.999), strict=True):
            _check_range("affine", value, limit)
        object.__setattr__(self, "randaugment_layers", _check_layers(self.randaugment_layers))
        _check_range("randaugment_magnitude", self.randaugment_magnitude, MOST_MAGNITUDE)
        _check_range("erasing_probability", self.erasing_probability, 1)
        for field in ("mixup_alpha", "cutmix_alpha"):
            _check_range(field, getattr(self, field), math.inf)
        check_flag("whole_levels", self.whole_levels)
        if self.whole_levels and self.mixup_alpha:
            raise ValueError(
                "MixUp adds parts of two images, whose levels are not whole.\n"
                f"Received: whole_levels=True, mixup_alpha={self.mixup_alpha}. Leave one of them out."
            )

    @property
    def moves_masks(self) -> bool:
        """Whether a mask can follow all that it does to a photo."""
        others = (any(self.affine), self.randaugment_layers, self.mixes, self.erasing_probability)
        return self.crop in MASK_CROPS and not any(others)

    @property
    def mixes(self) -> bool:
        """Whether batches are mixed, for which labels must be one-hot."""
        return self.mixup_alpha > 0 or self.cutmix_alpha > 0

    def gives_whole(self, whole: bool) -> bool:
        """Whether all grey levels of `augment_image` are whole numbers.

        Args:
            whole: whether those of images resized by the crop `"none"` are.
        """
        keeps = whole and self.crop == "none" and not any(self.affine) and not self.colors
        return self.whole_levels or self.randaugment_layers > 0 or keeps


def find_augmentation(name_or_record: Augmentation | str | None) -> Augmentation:
    """The record of a name in `AUGMENTATIONS`; a record is returned unchanged, and `None` is `"none"`.

    Raises:
        TypeError: for anything but a name or a record.
        ValueError: for an unknown name; the message has the nearest one.
    """
    if isinstance(name_or_record, Augmentation):
        return name_or_record
    if name_or_record is None:
        return AUGMENTATIONS["none"]
    if not isinstance(name_or_record, str):
        raise TypeError(
            "an augmentation must be a name or an `Augmentation` record.\n"
            f"Received: {name_or_record!r} of type {type(name_or_record).__name__}."
        )
    check_choice("augmentation", name_or_record, tuple(AUGMENTATIONS))
    return AUGMENTATIONS[name_or_record]


def _check_scale(scale: tuple[float, ...]) -> None:
    if not 0 < scale[0] <= scale[1] < math.inf:
        raise ValueError(
            f"`scale` must be the smallest and the largest ratio, above 0.\nReceived: scale={tuple(scale)}."
        )


def _numbers(field: str, values: Any, length: int) -> tuple[float, ...]:
    if not isinstance(values, (tuple, list)) or len(values) != length:
        raise TypeError(f"`{field}` must be {length} numbers.\nReceived: {field}={values!r}.")
    for value in values:
        check_number(field, value)
    return tuple(float(value) for value in values)


def _check_layers(layers: int) -> int:
    layers = check_int("randaugment_layers", layers, -math.inf)
    if layers < 0:
        raise ValueError(
            f"`randaugment_layers` must be at least 0, which is no RandAugment.\nReceived: randaugment_layers={layers}."
        )
    return layers


def _check_range(field: str, value: float, limit: float) -> None:
    check_number(field, value)
    if not 0 <= value <= limit or value == math.inf:
        bound = f"from 0 to {limit}" if limit < math.inf else "finite and not negative"
        raise ValueError(f"`{field}` must be {bound}.\nReceived: {field}={value}.")


def _level(layers: int, magnitude: float, mixup: float) -> Augmentation:
    return Augmentation(randaugment_layers=layers, randaugment_magnitude=magnitude, mixup_alpha=mixup)


AUGMENTATIONS = types.MappingProxyType(
    {
        "none": Augmentation(crop="none", flip=False),
        "flip": Augmentation(crop="none"),
        "crop": Augmentation(flip=False),
        "inception": Augmentation(),  # official code and the paper
        "resize_crop": Augmentation(crop="resize_crop"),  # big_vision transfer; BiT rule; VTAB
        "resmall_crop": Augmentation(crop="resmall_crop"),
        "segmentation": Augmentation(crop="scale_crop", colors=True),  # mmsegmentation, DINOv2 and DINOv3 on ADE20K
        "augreg-none": _level(0, 0, 0.0),
        "augreg-light1": _level(2, 0, 0.0),
        "augreg-light2": _level(2, 10, 0.2),
        "augreg-medium1": _level(2, 15, 0.2),
        "augreg-medium2": _level(2, 15, 0.5),
        "augreg-strong1": _level(2, 20, 0.5),
        "augreg-strong2": _level(2, 20, 0.8),
        "big_vision-vit_s16": _level(2, 10, 0.2),
        "digits": Augmentation(crop="none", flip=False, affine=(0.08, 0.03, 0.1)),  # a 6 mirrored is no digit
    }
)
