"""Layer-wise rates: what lies near the images is better left as pre-training made it."""

import re

from keras_vit.checks import check_number

_BLOCK = re.compile(r"(?:^|/)(?:block|position_embedding)_(\d+)/")
_BEFORE_BLOCKS = re.compile(
    r"(?:^|/)(resnet_\w+|patch_embedding|class_token|distillation_token|position_embedding(?:_shared)?)/"
)


def layer_multipliers(paths, layer_decay) -> list:
    """The factor of the learning rate for each weight, by how far below the head it lies.

    `layer_decay ** (L + 1 - id)`: id 0 for all that comes before the blocks (ResNet, patch embedding, tokens,
    positions), i + 1 for block i, and L + 1, so a factor of 1, for what comes behind (norm, pooling, head).

    Args:
        paths: `variable.path` of each weight.
        layer_decay: in (0, 1].

    Raises:
        ValueError: if there are no blocks among the weights, and `layer_decay` is not 1.

    Source: BEiT, arXiv:2106.08254, appendix H; MAE, arXiv:2111.06377, Table 9.
    """
    blocks = [_BLOCK.search(path) for path in paths]
    if layer_decay == 1:
        return [1.0] * len(paths)
    if not any(blocks):
        raise ValueError(
            "`layer_decay` needs trainable weights of blocks, by whose number the depth of a layer is known.\n"
            f"Received: layer_decay={layer_decay} and {len(paths)} weights, {', '.join(map(repr, paths[:3]))}, ... "
            "Leave it out where only the head learns."
        )
    end = 2 + max(int(block[1]) for block in blocks if block)
    ids = [
        int(block[1]) + 1 if block else 0 if _BEFORE_BLOCKS.search(path) else end
        for path, block in zip(paths, blocks, strict=True)
    ]
    return [float(layer_decay) ** (end - layer_id) for layer_id in ids]


def check_layer_decay(value):
    """Raises unless `value` is a number in (0, 1]."""
    check_number("layer_decay", value)
    if not 0 < value <= 1:
        raise ValueError(f"`layer_decay` must be in (0, 1]: 1 is no decay.\nReceived: layer_decay={value}.")
