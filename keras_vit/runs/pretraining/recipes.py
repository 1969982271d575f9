"""What is trained how, by the number of images: the rows of `recipes.csv`, without Keras."""

import dataclasses
import math
from typing import Any

from keras_vit.config.rows import read_rows, value_of

METHODS = ("dinov2", "lejepa", "mae", "simmim")
_FEW, _MANY = 10_000, 100_000  # images, between which a row of the table holds


@dataclasses.dataclass(frozen=True)
class PretrainingRecipe:
    """The hyper-parameters of a training without labels.

    Attributes:
        method: of `METHODS`, or `"distil"`.
        weights: whether it begins with published weights.
        images: from which number of them on it holds.
        epochs: passes over them.
        batch_size: images of a step.
        learning_rate: the highest one.
        scaled_from: the batch that it is for; a smaller one has the rate of the square root of the share. `None` for
            any.
        weight_decay: multiplied by the rate.
        layer_decay: factor of the rate from each layer to the one below.
        clip_norm: largest norm of a part's gradients.
        trainable: as of `PretrainOptions`.
        prototypes: K of the heads.
        mask_share: share of global crops with masks, at the end of their first third with published weights.
        gram_weight: of Gram anchoring to the encoder of the start.
        anchor_weight: of the cosines to its features.
        momentum: of the teacher, at most; short runs have a smaller one, so that it follows.
        heads_share: of the steps, in which heads alone learn.
        source: of the values.
    """

    method: str
    weights: bool
    images: int
    epochs: int
    batch_size: int
    learning_rate: float
    scaled_from: int | None
    weight_decay: float
    layer_decay: float
    clip_norm: float | None
    trainable: str
    prototypes: int | None
    mask_share: float | None
    gram_weight: float | None
    anchor_weight: float | None
    momentum: float | None
    heads_share: float | None
    source: str

    def rate(self, batch_size: int) -> float:
        """The highest rate for a batch."""
        return self.learning_rate * (math.sqrt(batch_size / self.scaled_from) if self.scaled_from else 1)


def _read() -> list[PretrainingRecipe]:
    rows: list[dict[str, Any]] = [
        {
            name: word if name in ("source", "method", "trainable") else value_of(word or "None")
            for name, word in row.items()
        }
        for row in read_rows(__file__, "recipes.csv")
    ]
    return [PretrainingRecipe(**row) for row in rows]


RECIPES = _read()


def find_method(has_weights: bool, images: int) -> str:
    """The method for so many images, where none is asked for."""
    return "dinov2" if has_weights or images >= _MANY else "lejepa"


def find_recipe(method: str, has_weights: bool, images: int) -> PretrainingRecipe:
    """The recipe of a method, or of `"distil"`, for so many images."""
    fits = [row for row in RECIPES if (row.method, row.weights) == (method, has_weights) and row.images <= images]
    return max(fits, key=lambda row: row.images)


def advice(method: str, has_weights: bool, images: int) -> str:
    """What would suit so many images better, in a sentence; empty where nothing would."""
    if method == "distil":
        return ""
    if has_weights and images < _FEW:
        return "for so few images the features of the published encoder as they are may be as good: look at the start"
    if not has_weights and images < _MANY:
        return "for so few images `keras-vit distil` from a published encoder gives more for less"
    return ""
