"""The same model with less work for approximately the same answers: patches that are alike become one."""

import contextlib
from collections.abc import Iterator

import keras

from keras_vit.model.copies import transfer_weights, uninitialized_variables
from keras_vit.model.graph import build_graph
from keras_vit.model.input_checks import known_grid
from keras_vit.model.layer_access import UNITS, encoder_blocks, layer_named, position_layers, user_operations
from keras_vit.model.outputs import Head, with_units
from keras_vit.model.precision import is_quantized
from keras_vit.model.vision_transformer import VisionTransformer, check_vision_transformer


def merge_tokens(model: VisionTransformer, per_block: int) -> VisionTransformer:
    """Copies a model that merges similar tokens in its blocks: faster, and **approximately** the same answers.

    How near they are depends on the model and the images: compare `keras_vit.evaluate` of both before you use it.

    Example:
        >>> photo = keras_vit.ViTTi16(num_layers=4, classes=10)
        >>> faster = keras_vit.merge_tokens(photo, per_block=16)
        >>> round(keras_vit.flops(faster).total / keras_vit.flops(photo).total, 2)
        0.88

    Args:
        model: a `VisionTransformer` for images of a known size, without LoRA, not quantised; it is not changed.
        per_block: r, how many pairs of patches each block merges into one, at least 0; no block merges more than half
            of its patches. Of 196 patches, 8 leave 108 for the twelfth block. 0 gives the answers of `model`.

    Returns:
        A new model with weights of its own, not compiled. It can be saved, exported, evaluated and trained. Its config
        has `merged_tokens`, which no checkpoint of other software has, so `save_checkpoint` refuses it.

    Raises:
        TypeError: if `model` is no `VisionTransformer`.
        ValueError: for a negative number, an unknown image size, or a model whose tokens cannot be merged: attention
            pooling, relative positions, axial attention.

    Source: Token Merging (ToMe), arXiv:2210.09461. Its authors report twice the throughput for ViT-L at 512 and ViT-H
        at 518 pixels, with 0.2 to 0.3 points less accuracy on ImageNet.
    """
    check_vision_transformer(model)
    config = model.config.replace(merged_tokens=per_block)
    shape = model.input_shape[1:]
    if known_grid(shape, config) is None:
        raise ValueError(
            "tokens are merged where their number is known.\n"
            f"Received: {model.name!r} with {model.input_shape}. Take with_input_shape(model, (H, W, C)) first."
        )
    if own := user_operations(model):
        raise ValueError(
            "tokens are merged in a model without layers of your own, which would be left out.\n"
            f"Received: {model.name!r} with {', '.join(map(repr, own))}. Merge first, and put them on the result."
        )
    if is_quantized(model):
        raise ValueError(
            "tokens are merged before a model is quantised.\n"
            f"Received: {model.name!r}, quantised. Merge the tokens of the model that it was made from."
        )
    positions = position_layers(model)
    resize_method = positions[0].resize_method if positions else "align_corners"
    with uninitialized_variables(), _under_policy_of(model):
        images = keras.Input(shape, name=model.inputs[0].name)
        copy = build_graph(images, config, _head(model), None, model.name, model.preprocessing, resize_method)
    if units := layer_named(model, UNITS):
        copy = with_units(copy, units.scale, units.offset)
    copy.load_report = model.load_report + transfer_weights(model, copy, None)
    copy.provenance, copy.head_kind = model.provenance, model.head_kind
    return copy


def _head(model: VisionTransformer) -> Head:
    if not model.classes:
        return Head(0, None)
    last = layer_named(model, "activation") or layer_named(model, "head")
    return Head(model.classes, None if model.output_spec.kind == "logits" else last.activation)


@contextlib.contextmanager
def _under_policy_of(model: VisionTransformer) -> Iterator[None]:
    """Inside, new layers get the precision of the model's blocks."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(encoder_blocks(model)[0].dtype_policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
