"""The layers and weights of a built model by the names that `wiring` gives them.

The name of a weight is its Keras path, as `block_00/attention/query/kernel`.
"""

import keras

from keras_vit.keras_private import flatten_layers
from keras_vit.layers import AddPositionEmbs, AxialBlock, TransformerBlock

_KERAS_LAYERS = (
    "resnet_norm",
    "encoder_norm",
    "pre_logits",
    "head",
    "head_distillation",
)  # Keras' own layers among ours


def layer_named(model, name):
    """The layer of that name, or `None`."""
    return next((layer for layer in model.layers if layer.name == name), None)


def encoder_blocks(model) -> list:
    """The transformer blocks, in their order; an axial one is one block."""
    return [layer for layer in model.layers if isinstance(layer, (TransformerBlock, AxialBlock))]


def position_layers(model) -> list:
    """The layers that add positions: one behind the stem, one before each block, or one before all of them."""
    return [layer for layer in model.layers if isinstance(layer, AddPositionEmbs)]


def weight_paths(model) -> dict[str, keras.Variable]:
    """`{path: variable}` over our layers, whatever scope the model was built in."""
    paths = {}
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            raise ValueError(
                "`model` must be the Vision Transformer itself, not a model around it.\n"
                f"Received: {model.name!r}. Pass `model.get_layer({layer.name!r})`."
            )
        if type(layer).__module__.startswith("keras_vit.") or layer.name in _KERAS_LAYERS:
            for variable in layer.weights:
                paths[layer.name + variable.path.removeprefix(layer.path)] = variable
    if not paths:
        raise ValueError(f"`model` must be made of keras_vit's layers.\nReceived: {model!r}")
    return paths


def computed_fields(model) -> dict:
    """Fields of `ViTConfig` that no weight tells, read off the layers."""
    block, pooling = (layer_named(model, name) for name in ("block_00", "pooling"))
    of_blocks = () if block is None else ("activation", "layer_norm_epsilon")
    added = [layer.kind for layer in position_layers(model)]
    relative = "none" if getattr(block, "relative_patches", None) is None else "relative"
    return {name: getattr(block, name) for name in of_blocks} | {
        "pooling": "none" if pooling is None else getattr(pooling, "kind", "map"),
        "position_embedding": added[0] if added else relative,
    }


def lora_layers(model) -> list:
    """The dense layers of a model that have LoRA."""
    return [layer for layer in flatten_layers(model) if getattr(layer, "lora_enabled", False)]
