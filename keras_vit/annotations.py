"""Types that many signatures share.

Keras and the backends ship no types, so a tensor is `Any` to a type checker; the names say what is meant.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

FilePath: TypeAlias = str | os.PathLike[str]
Tensor: TypeAlias = Any  # of a backend, a Keras tensor, or NumPy's
Variable: TypeAlias = Any  # of Keras
Shape: TypeAlias = tuple[int | None, ...]  # with the batch in front; `None` where unknown
Pair: TypeAlias = tuple[int, int]  # (H, W) in pixels, or (h, w) in patches
Arguments: TypeAlias = dict[str, Any]  # by name, as `get_config` gives them
Logs: TypeAlias = dict[str, Any] | None  # what Keras hands to a callback
LastGood: TypeAlias = (
    FilePath | Callable[[], FilePath | None] | None
)  # path of a checkpoint, or a function that returns it
Splits: TypeAlias = Mapping[str, Any]  # of a data set, by name


class Schedule(Protocol):
    """A learning rate by step, as every `keras.optimizers.schedules.LearningRateSchedule` is."""

    def __call__(self, step: Any) -> Any:
        """The rate of a step, counted from 0."""


Rate: TypeAlias = float | Schedule

PADDING_WEIGHT = float("nan")  # sample weight of an image that only fills a batch up: no image of a user's has it
