"""Layer-wise rates: what lies near the images is better left as pre-training made it."""

from collections.abc import Sequence
from typing import Any

from keras_vit.annotations import Variable
from keras_vit.checks import ArgumentError, check_number


def layer_multipliers(variables: Sequence[Variable], layer_decay: float) -> list[float]:
    """The factor of the learning rate for each weight, by how far below the head it lies.

    The factor is `layer_decay ** (L + 1 - depth)`. All that comes before the blocks has depth 0: ResNet, patch
    embedding, tokens, positions. Block i has i + 1. What comes after (norm, pooling, head) has L + 1, so a factor of
    1. A weight knows its depth from the model that it was made for. One of a layer around that model has a factor of 1.

    Args:
        variables: weights of a model.
        layer_decay: in (0, 1].

    Raises:
        ValueError: if no weight knows its depth, and `layer_decay` is not 1.

    Source: BEiT, arXiv:2106.08254, appendix H; MAE, arXiv:2111.06377, Table 9.
    """
    if layer_decay == 1:
        return [1.0] * len(variables)
    depths = [getattr(variable, "layer_depth", None) for variable in variables]
    if not any(depth and 0 < depth[0] < depth[1] for depth in depths):
        paths = [getattr(variable, "path", variable.name) for variable in variables[:3]]
        raise ArgumentError(
            "`layer_decay` needs trainable weights of blocks, by whose number the depth of a layer is known.\n"
            f"Received: layer_decay={layer_decay} and {len(variables)} weights, {', '.join(map(repr, paths))}, ... "
            "Leave it out where only the head learns.",
            parameters=("layer_decay",),
        )
    return [1.0 if depth is None else float(layer_decay) ** (depth[1] - depth[0]) for depth in depths]


def check_layer_decay(value: Any) -> None:
    """Raises unless `value` is a number in (0, 1]."""
    check_number("layer_decay", value)
    if not 0 < value <= 1:
        raise ArgumentError(
            f"`layer_decay` must be in (0, 1]: 1 is no decay.\nReceived: layer_decay={value}.",
            parameters=("layer_decay",),
        )
