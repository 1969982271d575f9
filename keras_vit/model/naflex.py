"""The same Vision Transformer for batches of patches, in which every image has a grid of its own.

Source: NaFlex, arXiv:2502.14786, section 2.4.2, after NaViT, arXiv:2307.06304.
"""

import warnings
from typing import Any, ClassVar

import keras

from keras_vit import layers
from keras_vit.annotations import Tensor
from keras_vit.config.constraints import FieldConstraint
from keras_vit.config.vit import ViTConfig
from keras_vit.model.image_model import ImageModel
from keras_vit.model.input_checks import record_for
from keras_vit.model.layer_access import encoder_blocks, user_operations
from keras_vit.model.vision_transformer import VisionTransformer, check_vision_transformer


@keras.saving.register_keras_serializable("keras_vit")
class NaFlexModel(ImageModel):
    """A Vision Transformer for batches of padded patches, as `naflex` makes it.

    Example:
        >>> any_size = keras_vit.naflex(model)
        >>> sorted(any_size.input)
        ['grids', 'mask', 'patches']

    Attributes:
        config: the `ViTConfig`.
        preprocessing: the `Preprocessing` record, which `naflex_batch` applies.

    Call arguments:
        inputs: a dict, as `naflex_batch` gives it: `"patches"` `(B, N, P * P * C)` floats, `"mask"` `(B, N)` and
            `"grids"` `(B, 2)`.

    Returns:
        Logits `(B, K)`; without a top `(B, D)`, or `(B, T, D)` with `pooling="none"`, where tokens of padding are 0.
    """

    config_class: ClassVar[type] = ViTConfig
    takes_images: ClassVar[bool] = False
    config: ViTConfig


RESIZED = "position embedding resized"  # how a line of a `load_report` begins
_CONSTRAINT = FieldConstraint(
    "in a batch of patches every image has a grid of its own, for which positions are resized, and padding that "
    "attention and pooling leave out.",
    {"patch_size": None},
    {
        "resnet_stages": (None,),
        "patch_padding": (0,),
        "position_embedding": ("learned", "learned2d", "none"),
        "position_injection": ("stem",),
        "rotary": ("none",),
        "relative_bias": ("none",),
        "attention": ("global",),
        "merged_tokens": (0,),
        "patch_dropout_rate": (0,),
        "distilled": (False,),
    },
    "Use `batches_by_size`, whose batches have images of one grid.",
)


def naflex(model: VisionTransformer) -> NaFlexModel:
    """Turns a model into one that takes batches of `naflex_batch`, in which each photo keeps its aspect.

    Every image of a batch has its own grid of patches, and padding is masked. The new model has the layers of `model`,
    and so its weights: training one trains the other. Positions are resized for the grid of each image, by the rule of
    the weights. Patches of padding get no attention and no part in what is pooled. So an image has the numbers that it
    has alone.

    Example:
        >>> tall, wide = np.zeros((64, 32, 3), "uint8"), np.zeros((30, 90, 3), "uint8")
        >>> any_size = keras_vit.naflex(model)
        >>> batch = keras_vit.naflex_batch(any_size, [tall, wide], max_patches=16)
        >>> tuple(any_size(batch).shape)
        (2, 3)

    Args:
        model: a `VisionTransformer`, of any `input_shape`. The position table is resized from the one that it has, so
            build it with `input_shape=(None, None, 3)`, which keeps the file's.

    Returns:
        A model with the inputs of `naflex_batch`. It predicts, trains and is saved as `.keras` as every other. Look
        inside, add LoRA, freeze and export with `model`.

    Raises:
        TypeError: if `model` is no `VisionTransformer`.
        ValueError: for a model with layers of your own, or with positions, blocks or tokens that need the grid of the
            whole batch: rotary, relative and sine-cosine positions, axial attention, merged tokens, patch dropout, a
            ResNet, distillation.

    Warns:
        UserWarning: of positions that were resized where the weights were loaded.

    Source: arXiv:2502.14786, section 2.4.2 (NaFlex), and arXiv:2307.06304 (NaViT).
    """
    check_vision_transformer(model)
    _CONSTRAINT.check(model.config)
    if own := user_operations(model):
        raise ValueError(
            "batches of patches are for a model without layers of your own, which would be left out.\n"
            f"Received: {model.name!r} with {', '.join(map(repr, own))}. Put them on the result."
        )
    if any(RESIZED in line for line in model.load_report):
        warnings.warn(
            f"positions of {model.name!r} were resized where its weights were loaded, and are resized again for each "
            "image. Build it with `input_shape=(None, None, 3)`, which keeps the file's.",
            stacklevel=2,
        )
    config, channels = model.config, model.input_shape[-1]
    inputs = {
        "patches": keras.Input((None, config.patch_size**2 * channels), name="patches"),
        "mask": keras.Input((None,), dtype="bool", name="mask"),
        "grids": keras.Input((2,), dtype="int32", name="grids"),
    }
    return NaFlexModel(
        inputs,
        _outputs(model, inputs),
        name=model.name,
        config=config,
        preprocessing=record_for((None, None, channels), model.preprocessing),
        weights_report=model.load_report,
        weights_facts=model.provenance,
        class_names=model.class_names,
        head_kind=model.head_kind,
        similarity=(model.logit_scale, model.logit_bias),
    )


def _outputs(model: VisionTransformer, inputs: dict[str, Tensor]) -> Tensor:
    """What the layers of `model`, each after the one before it, make of the inputs."""
    there, bias = layers.PatchMask(model.config.num_prefix_tokens, name="patch_mask")(inputs["mask"])
    x = layers.PatchColumn(model.config.patch_size, name="patch_column")(inputs["patches"])  # (B, N P, P, C)
    for layer in model.layers:
        if not isinstance(layer, keras.layers.InputLayer):
            x = layer(x, **_optional(layer, inputs["grids"], there, bias), **_queries(model, layer))
    return x if model.config.pooling != "none" else layers.ZeroPadding(name="zero_padding")(x, there)


def _optional(layer: Any, grids: Tensor, there: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """What a layer takes besides the tokens."""
    if isinstance(layer, layers.AddPositionEmbs):
        return {"grids": grids}
    if isinstance(layer, (layers.TransformerBlock, layers.AttentionPooling)):
        return {"bias": bias}
    if isinstance(layer, layers.TokenPooling) and layer.kind in ("gap", "token_gap"):
        return {"sizes": there}
    return {}


def _queries(model: VisionTransformer, layer: Any) -> dict[str, Any]:
    """How many tokens the last block computes, as in `model`."""
    count = model.config.num_pooled_tokens
    return {"num_queries": count} if count is not None and layer is encoder_blocks(model)[-1] else {}
