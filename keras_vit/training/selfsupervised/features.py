"""An encoder's graph once more, with all of its tokens: as it is, with masked patches, or with some patches alone.

Layers and weights are the encoder's own, whatever stations it has.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit import kernels
from keras_vit.annotations import Tensor
from keras_vit.checks import ArgumentError
from keras_vit.images.preprocessing import is_uint8, scale_uint8
from keras_vit.layers.configurable import recomputed
from keras_vit.model.copies import with_input_shape
from keras_vit.model.image_model import check_floats
from keras_vit.model.layer_access import encoder_blocks, first_layer, patch_embedding, token_layers
from keras_vit.model.vision_transformer import VisionTransformer, check_vision_transformer

Change = Callable[[keras.layers.Layer, Tensor], Tensor]


def every_token(
    model: VisionTransformer,
    outputs: Any,
    before: Change | None = None,
    after: Change | None = None,
    others: Sequence[Tensor] = (),
) -> keras.Model:
    """The part of a model's graph from its images to `outputs`, in which the last block computes all tokens.

    Args:
        model: with one input.
        outputs: Keras tensors of its graph.
        before: changes the tokens that a layer gets.
        after: changes what a layer gives.
        others: inputs after the images, which these two read.
    """

    def call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        if before is not None:
            args = (before(layer, args[0]), *args[1:])
        if kwargs.pop("num_queries", None) or getattr(layer, "num_output_tokens", None):
            return _EveryToken(layer, dtype=layer.dtype_policy, name="every_token")(*args, **kwargs)
        found = layer(*args, **kwargs)
        return found if after is None else after(layer, found)

    images = keras.Input(model.input_shape[1:], name=model.inputs[0].name)
    return keras.models.clone_model(
        keras.Model([model.input, *others] if others else model.input, outputs),
        input_tensors=[images, *others] if others else images,
        clone_function=lambda layer: layer,
        call_function=call,
    )


class _EveryToken(keras.layers.Layer):
    """A block that computes the first tokens only, computing all."""

    def __init__(self, block: keras.layers.Layer, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.block = block

    def call(
        self, tokens: Tensor, training: bool | None = None, rotation: Tensor = None, bias: Tensor = None
    ) -> Tensor:
        optional = {name: x for name, x in {"rotation": rotation, "bias": bias}.items() if x is not None}
        forward = functools.partial(kernels.block(self.block, training) or self.block.forward, training=training)
        checkpoint = keras.remat if training and self.block.rematerialize else None
        return recomputed(self.block, forward, checkpoint, self.block.cast_input(tokens), **optional)

    def compute_output_spec(self, tokens: Tensor, **optional: Any) -> Any:
        return keras.KerasTensor(tokens.shape, self.compute_dtype)


class MaskToken(keras.layers.Layer):
    """Replaces masked patches by one learned vector, before tokens and positions join them.

    Args:
        first: its value `(D,)` in the beginning, or zeros.

    Call arguments:
        tokens: `(B, N, D)`.
        mask: booleans `(B, N)`.
    """

    def __init__(self, first: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.first = first

    def build(self, tokens_shape: Any, mask_shape: Any = None) -> None:
        start = "zeros" if self.first is None else lambda shape, dtype: ops.cast(self.first.reshape(shape), dtype)
        self.mask_token = self.add_weight(name="mask_token", shape=(1, 1, tokens_shape[-1]), initializer=start)

    def call(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return ops.where(ops.expand_dims(mask, -1), ops.cast(self.mask_token, tokens.dtype), tokens)  # (B, N, D)

    def compute_output_spec(self, tokens: Tensor, mask: Tensor) -> Any:
        return keras.KerasTensor(tokens.shape, self.compute_dtype)


def features(model: VisionTransformer, mask_token: MaskToken | None = None) -> keras.Model:
    """From images, and a mask `(B, N)` where there is a `mask_token`, to the vector of an image and its patches.

    The vector `(B, D)` is the encoder's output, or its class token where that is all tokens. Patches are `(B, N, D)`,
    behind the last norm.
    """
    mask = keras.Input((None,), dtype="bool", name="mask")
    embedding = patch_embedding(model)

    def after(layer: keras.layers.Layer, found: Tensor) -> Tensor:
        return mask_token(found, mask) if mask_token is not None and layer is embedding else found

    others = [] if mask_token is None else [mask]
    graph = every_token(model, [model.output, token_layers(model)[-1].output], after=after, others=others)
    vector, tokens = graph.outputs
    patches = tokens[:, model.config.num_prefix_tokens :]
    if len(vector.shape) == 3:
        vector = tokens[:, 0] if model.config.num_prefix_tokens else ops.mean(patches, axis=1)
    return keras.Model(graph.inputs if others else graph.inputs[0], [vector, patches])


def visible_tokens(model: VisionTransformer) -> keras.Model:
    """From images and the places `(B, k)` of the patches that are seen to their tokens behind the last norm.

    The others are dropped once they have their positions, so that the blocks compute prefix tokens and k patches.
    """
    places = keras.Input((None,), dtype="int32", name="places")
    first, prefix = encoder_blocks(model)[0], model.config.num_prefix_tokens

    def before(layer: keras.layers.Layer, tokens: Tensor) -> Tensor:
        if layer is not first:
            return tokens
        seen = ops.take_along_axis(tokens[:, prefix:], ops.expand_dims(places, -1), axis=1)
        return ops.concatenate([tokens[:, :prefix], seen], axis=1)

    return every_token(model, token_layers(model)[-1].output, before=before, others=[places])


def frozen_copy(model: VisionTransformer) -> VisionTransformer:
    """The same model with weights of its own, which do not learn."""
    copy = with_input_shape(model, model.input_shape[1:])
    copy.trainable = False
    return copy


def check_encoder(name: str, model: Any) -> None:
    """Raises unless `model` is an encoder without a head, whose patches all come out."""
    check_vision_transformer(model)
    if model.config is None or len(model.inputs) != 1:
        raise ArgumentError(
            f"`{name}` must know its config and have one input, as the builders give it; `keras.models.clone_model` "
            f"loses it.\nReceived: {model!r}. Copy it by `keras_vit.with_input_shape`."
        )
    if model.classes:
        raise ArgumentError(
            f"`{name}` must be an encoder without a head, whose output is features.\n"
            f"Received: {model.name!r} with {model.classes} classes. Build it with `include_top=False`."
        )
    unfit = {field: getattr(model.config, field) for field in ("patch_dropout_rate", "merged_tokens", "distilled")}
    if wrong := {field: value for field, value in unfit.items() if value}:
        raise ArgumentError(
            f"`{name}` must give a token for each patch, and one class token at most.\n"
            f"Received: {', '.join(f'{field}={value}' for field, value in wrong.items())}. Build it without."
        )
    if first_layer(model).input is not model.inputs[0]:
        raise ArgumentError(
            f"`{name}` must get the images as they are.\n"
            f"Received: {model.name!r}, with a layer of your own in front. Put that layer in front of `fit`."
        )


def prepared(model: VisionTransformer, images: Tensor) -> Tensor:
    """Images `(B, H, W, C)` as the model takes them; pixels of uint8 are scaled by its preprocessing."""
    if is_uint8(images) and model.accepts_uint8:
        return scale_uint8(images, model.preprocessing)
    check_floats(images)
    return images


def tiled(name: str, shape: Any, model: VisionTransformer) -> None:
    """Raises for images whose patches do not tile them, or that the encoder was not built for."""
    side, sizes = model.config.stride, tuple(shape[-3:-1])
    if any(size is not None and (size % side or not size) for size in sizes):
        raise ArgumentError(
            f"`{name}` must have sides that are multiples of {side}, the encoder's patch, so that patches tile them.\n"
            f"Received: {name} of shape {tuple(shape)}."
        )
    wanted = model.input_shape[1:3]
    if any(None not in pair and pair[0] != pair[1] for pair in zip(sizes, wanted, strict=True)):
        raise ArgumentError(
            f"`{name}` must have the size that the encoder was built for.\n"
            f"Received: {name} of shape {tuple(shape)}, an encoder for {model.input_shape}. Build it with "
            "`input_shape=(None, None, C)` for any size."
        )
