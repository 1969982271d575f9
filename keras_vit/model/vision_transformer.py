"""The class of the Vision Transformers, and those inside of other models. `graph.py` has the forward pass.

`keras.Model(backbone.input, head(backbone.output))` has the backbone's layers in one flat graph, and no layer that is
the backbone. `backbone_of` makes a `VisionTransformer` of them.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras

from keras_vit import layers
from keras_vit.annotations import Tensor
from keras_vit.config.parts import PART_FIELDS
from keras_vit.config.vit import ViTConfig
from keras_vit.layers.configurable import flatten_layers
from keras_vit.model.image_model import ImageModel, check_takes_images
from keras_vit.model.layer_access import (
    bias_layers,
    encoder_blocks,
    encoder_norm,
    has_unit_length,
    head_layers,
    inferred_fields,
    layer_named,
    layers_before_head,
    patch_embedding,
    pooling,
    position_layers,
    resnet_stages,
    token_layers,
)


@keras.saving.register_keras_serializable("keras_vit")
class VisionTransformer(ImageModel):
    """A Vision Transformer as a Keras model, with its `config`, its `preprocessing` and where its weights came from.

    Made by `build` and the builders. It is saved and loaded as every Keras model, with `keras_vit` imported.

    Example:
        >>> model.config.hidden_size, model.preprocessing.image_size
        (192, (32, 48))
        >>> tuple(model(images).shape)
        (2, 3)

    Attributes:
        config: the `ViTConfig`.
        preprocessing: the `Preprocessing` record; call it to prepare images.
        load_report: one line for each adaptation that loading made, as a resized position table.

    Call arguments:
        inputs: `(B, H, W, C)` floats, prepared by `preprocessing`.

    Returns:
        Logits `(B, K)`; without a top `(B, D)`, or `(B, T, D)` with `pooling="none"`.
    """

    config_class: ClassVar[type] = ViTConfig
    config: ViTConfig


def check_vision_transformer(model: Any) -> None:
    """Raises unless `model` is a `VisionTransformer`; of another model of this package with the reason."""
    if isinstance(model, VisionTransformer):
        return
    check_takes_images(model)
    inside = getattr(model, "encoder", None)
    reason = (
        ", since a ResNet has no tokens, blocks or attention" if isinstance(model, ImageModel) and not inside else ""
    )
    advice = " Pass its `encoder`." if isinstance(inside, VisionTransformer) else ""
    raise TypeError(
        f"`model` must be a VisionTransformer{reason}.\nReceived: {model!r} of type {type(model).__name__}.{advice}"
    )


def vision_transformers_in(model: keras.Model) -> list[VisionTransformer]:
    """The Vision Transformers that a model is, or has among its layers at any depth; see `backbone_of`."""
    models = [each for each in flatten_layers(model) if isinstance(each, keras.Model)]
    found = (each if isinstance(each, VisionTransformer) else backbone_of(each) for each in models)
    return [each for each in found if each is not None]


def backbone_of(model: keras.Model) -> VisionTransformer | None:
    """A `VisionTransformer` of the layers of this package in a flat graph; it shares their weights.

    Returns:
        A model from the input of `model`, with a config that is read off the layers and without preprocessing; `None`
        for a model without a whole encoder, or whose graph does not begin at its one input.
    """
    if not encoder_blocks(model) or patch_embedding(model) is None or len(getattr(model, "inputs", ())) != 1:
        return None
    try:
        return VisionTransformer(model.inputs[0], _end(model), name=model.name, config=_config(model))
    except ValueError:  # layers that were called again, whose first call is not in this graph
        return None


def _end(model: keras.Model) -> Tensor:
    """The output of the last layer of this package that directly follows others of this package."""
    last = layer_named(model, "average") or layer_named(model, "neck")
    if last is not None:
        return last.output
    end = (pooling(model) or token_layers(model)[-1]).output
    for layer in (layer_named(model, "pooled_norm"), *layers_before_head(model), *head_layers(model)):
        if layer is not None and layer.input is end:
            end = layer.output
    return end


def _config(model: keras.Model) -> ViTConfig:
    """What the layers say of the config they were made of."""
    block = encoder_blocks(model)[0]
    kind = next(name for name, cls in layers.BLOCKS.items() if type(block) is cls)
    merged = getattr(block, "merged_tokens", 0)
    added = [layer.name for layer in position_layers(model)]
    injected = "stem" if "position_embedding" in added or not added else "blocks"
    root = resnet_stages(model).get("root")
    hybrid = {} if root is None else {"resnet_stages": _stages(model), "resnet_width_factor": root.width / 64}
    return ViTConfig(
        patch_embedding(model).patch_size,
        block.hidden_size,
        len(encoder_blocks(model)),
        block.num_heads,
        block.mlp_dim,
        class_token=layer_named(model, "class_token") is not None,
        class_tokens=getattr(layer_named(model, "class_token"), "count", 1),
        distilled=layer_named(model, "distillation_token") is not None,
        attention="global" if merged else kind,
        **_windows(model),
        neck_size=getattr(layer_named(model, "neck"), "channels", None),
        merged_tokens=merged,
        registers=getattr(layer_named(model, "register_tokens"), "count", 0),
        pre_norm=layer_named(model, "pre_norm") is not None,
        patch_bias=patch_embedding(model).patch_bias,
        patch_norm=layer_named(model, "patch_norm") is not None,
        position_offset=layer_named(model, "position_offset") is not None,
        norm=getattr(block, "norm", "layer"),
        qk_norm=getattr(block, "qk_norm", "none"),
        kv_heads=_kv_heads(encoder_blocks(model)),
        map_mlp_dim=getattr(pooling(model), "mlp_dim", None),
        relative_bias=_relative_bias(model),
        final_norm=_final_norm(model),
        projection_size=getattr(layer_named(model, "projection"), "units", None),
        normalize_embedding=has_unit_length(model),
        **{name: getattr(block, name) for name in PART_FIELDS[:-2] if hasattr(block, name)} | inferred_fields(model),
        position_injection="blocks_shared" if "position_embedding_shared" in added else injected,
        **hybrid,
    )


def _windows(model: keras.Model) -> dict[str, Any]:
    sizes = [getattr(block, "window_size", None) for block in encoder_blocks(model)]
    if not any(sizes):
        return {}
    numbers = tuple(number for number, size in enumerate(sizes, start=1) if size is None)
    return {"window_size": max(filter(None, sizes)), "global_blocks": numbers}


def _kv_heads(blocks: Sequence[Any]) -> tuple[int, ...] | None:
    return tuple(getattr(block, "kv_heads", None) or block.num_heads for block in blocks)


def _relative_bias(model: keras.Model) -> str:
    found = bias_layers(model)
    return "none" if not found else "shared" if found[0].name == "relative_bias_shared" else "blocks"


def _final_norm(model: keras.Model) -> str:
    if layer_named(model, "pooled_norm") is not None:
        return "pooled"
    return "none" if encoder_norm(model) is None else "tokens"


def _stages(model: keras.Model) -> tuple[int, ...]:
    """Units in each stage of the ResNet in front: the last one of a stage has their number in its name."""
    return tuple(int(layer.name.rpartition("_")[2]) for name, layer in resnet_stages(model).items() if name != "root")
