"""Images that grow as training goes on: by what sizes, and from which epoch on.

Progressive learning of EfficientNetV2 (arXiv:2104.00298, section 4.2): stages of as many epochs, whose sizes grow
evenly. Its regularisation grows too; here that stays as the recipe has it.
"""

import dataclasses
from collections.abc import Sequence

from keras_vit.annotations import Pair
from keras_vit.checks import ArgumentError

STAGES = 4  # arXiv:2104.00298, section 4.2: 350 epochs in four stages of about 87


@dataclasses.dataclass(frozen=True)
class ResolutionStage:
    """A part of a training, whose images have one size.

    Attributes:
        epoch: number of its first epoch, from 1.
        image_size: `(H, W)` in pixels.
    """

    epoch: int
    image_size: tuple[int, int]


def growing_stages(
    start: tuple[int, int], final: tuple[int, int], epochs: int, unit: int
) -> tuple[ResolutionStage, ...]:
    """The stages from a smaller size of images to the final one, which the last epoch has.

    Args:
        start: `(H, W)` of the first epoch.
        final: `(H, W)` of the last epoch.
        epochs: in all; each stage gets as many of them, but for rounding.
        unit: pixels of which the sides of every size are multiples, as those of `start` and `final` must be.

    Returns:
        At most four stages; those that would have the size of the stage before are part of it.

    Raises:
        ValueError: unless `start` is smaller than `final`, and for fewer than two epochs.

    Source: arXiv:2104.00298, algorithm 1; its sizes, rounded down to multiples of `unit`.
    """
    check_start_size(start, final)
    if epochs < 2:
        raise ArgumentError(
            "images grow from one epoch to another, so there must be two at least.\n"
            f"Received: epochs={epochs}, start_image_size={_shown(start)}. Ask for more, or leave `start_image_size` "
            "out."
        )
    count = min(STAGES, epochs)
    found: list[ResolutionStage] = []
    for number in range(count):
        height, width = (_between(*sides, number, count - 1, unit) for sides in zip(start, final, strict=True))
        if not found or found[-1].image_size != (height, width):
            found.append(ResolutionStage(-(-number * epochs // count) + 1, (height, width)))
    return tuple(found)


def check_start_size(start: Pair, final: Pair) -> None:
    """Raises a `ValueError` unless images of `start`, `(H, W)`, can grow to those of `final`."""
    if start == final or any(first > last for first, last in zip(start, final, strict=True)):
        raise ArgumentError(
            "`start_image_size` must be below the size at which training ends, on one side at least, and above it on "
            f"none.\nReceived: start_image_size={_shown(start)}, {_shown(final)} at the end. Choose a smaller one, or "
            "leave it out."
        )


def relative_cost(stages: Sequence[ResolutionStage], steps_per_epoch: int, steps: int) -> float:
    """What the first `steps` steps cost, in steps with images of the last stage, if each pixel costs as much."""
    last, total = stages[-1].image_size, 0.0
    begins = [(stage.epoch - 1) * steps_per_epoch for stage in stages]
    for stage, begin, end in zip(stages, begins, [*begins[1:], steps], strict=True):
        share = stage.image_size[0] * stage.image_size[1] / (last[0] * last[1])
        total += share * max(min(end, steps) - begin, 0)
    return total


def _shown(sides: Pair) -> int | Pair:
    """A square as it was asked for."""
    return sides[0] if sides[0] == sides[1] else sides


def _between(start: int, final: int, number: int, of: int, unit: int) -> int:
    """A side of stage `number` from 0; that of stage `of` is `final`."""
    return (start + (final - start) * number // of) // unit * unit
