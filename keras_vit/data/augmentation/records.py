"""`Augmentation`, the record of random changes and their strengths, and published records by name.

Sources: official code `input_pipeline.py` (crop, flip); AugReg (arXiv:2106.10270) and big_vision
`configs/common.py` (levels none to strong2), `configs/vit_s16_i1k.py`, `configs/transfer.py`.
"""

import dataclasses
import sys
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from keras_vit.checks import Count, NonNegative, check_choice, check_number, one_of, validate

CROPS = ("inception", "resize_crop", "resmall_crop", "scale_crop", "none")
MASK_CROPS = ("scale_crop", "none")  # that a mask can follow
MOST_MAGNITUDE = 30  # RandAugment (arXiv:1909.13719) searches 0..30
_Record = TypeVar("_Record")


def at_most(limit: float) -> Callable[[str, Any], float]:
    """A check of a number from 0 to a limit."""

    def check(name: str, value: Any) -> float:
        if not 0 <= check_number(name, value) <= limit:
            raise ValueError(f"`{name}` must be from 0 to {limit}.\nReceived: {name}={value}.")
        return value

    return check


def check_numbers(name: str, values: Any, length: int) -> tuple[float, ...]:
    """So many numbers, as floats."""
    if not isinstance(values, (tuple, list)) or len(values) != length:
        raise TypeError(f"`{name}` must be {length} numbers.\nReceived: {name}={values!r}.")
    return tuple(float(check_number(name, value)) for value in values)


def _rising(most: float, what: str) -> Callable[[str, Any], tuple[float, ...]]:
    """A check of two numbers above 0 and up to `most`, the smaller first."""

    def check(name: str, values: Any) -> tuple[float, ...]:
        low, high = check_numbers(name, values, 2)
        if not 0 < low <= high <= most:
            raise ValueError(f"`{name}` must be the smallest and the largest {what}.\nReceived: {name}={(low, high)}.")
        return low, high

    return check


check_area = _rising(1, "part of an image, in (0, 1]")


def _check_affine(name: str, values: Any) -> tuple[float, ...]:
    limits = (0.999, 0.5, 0.999)
    return tuple(
        at_most(limit)(name, value) for value, limit in zip(check_numbers(name, values, 3), limits, strict=True)
    )


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

    crop: Annotated[str, one_of(CROPS)] = "inception"
    crop_area: Annotated[tuple[float, float], check_area] = (0.05, 1.0)
    affine: Annotated[tuple[float, float, float], _check_affine] = (0.0, 0.0, 0.0)
    flip: bool = True
    randaugment_layers: Count = 0
    randaugment_magnitude: Annotated[float, at_most(MOST_MAGNITUDE)] = 0.0
    mixup_alpha: NonNegative = 0.0
    cutmix_alpha: NonNegative = 0.0
    erasing_probability: Annotated[float, at_most(1)] = 0.0
    whole_levels: bool = False
    scale: Annotated[tuple[float, float], _rising(sys.float_info.max, "ratio, above 0")] = (0.5, 2.0)
    most_of_one_class: Annotated[float, at_most(1)] = 0.75
    colors: bool = False

    def __post_init__(self) -> None:
        validate(self)
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
        """Whether all grey levels of `augment_image` are whole, if those of images resized by the crop "none" are."""
        keeps = whole and self.crop == "none" and not any(self.affine) and not self.colors
        return self.whole_levels or self.randaugment_layers > 0 or keeps


def find_augmentation(name_or_record: Augmentation | str | None) -> Augmentation:
    """As `find_record` in `AUGMENTATIONS`; `None` is `"none"`."""
    return find_record("augmentation", "none" if name_or_record is None else name_or_record, AUGMENTATIONS)


def find_record(argument: str, name_or_record: _Record | str, records: Mapping[str, _Record]) -> _Record:
    """The record of a name; a record is returned unchanged.

    Raises:
        TypeError: for anything but a name or a record.
        ValueError: for an unknown name; the message has the nearest one.
    """
    kind = type(next(iter(records.values())))
    if isinstance(name_or_record, kind):
        return name_or_record
    if not isinstance(name_or_record, str):
        raise TypeError(
            f"`{argument}` must be a name or a record, of `{kind.__name__}`.\n"
            f"Received: {name_or_record!r} of type {type(name_or_record).__name__}."
        )
    check_choice(argument, name_or_record, tuple(records))
    return records[name_or_record]


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
        "depth": Augmentation(crop="scale_crop", scale=(1.0, 1.0), colors=True),  # what is enlarged looks nearer
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
