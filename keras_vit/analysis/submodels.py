"""The Vision Transformer inside a model, and the images that it receives there."""

from collections.abc import Iterator
from typing import Any, cast

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Pair, Shape, Tensor
from keras_vit.checks import check_positive_int, check_process
from keras_vit.config.heads import QUERIES
from keras_vit.keras_private import call_inputs
from keras_vit.layers.configurable import flatten_layers
from keras_vit.model.input_checks import check_floats, check_shape, warn_pixel_range
from keras_vit.model.layer_access import (
    first_layer,
    layer_named,
    token_layers,
    user_operations,
)
from keras_vit.model.vision_transformer import VisionTransformer, vision_transformers_in


def vision_transformer_in(model: keras.Model) -> VisionTransformer:
    """The only `VisionTransformer` that a model is, or has among its layers at any depth.

    A flat graph that holds its layers counts too: the result then shares these layers.

    Raises:
        TypeError: for anything but a model.
        ValueError: for none or several, and for one that merges tokens or does not know its config.
    """
    check_process()
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a Keras model.\nReceived: {model!r}.")
    found = vision_transformers_in(model)
    if len(found) != 1:
        names = " or ".join(f"`model.get_layer({each.name!r})`" for each in found if each in model.layers)
        advice = f"Pass {names or 'the Vision Transformer by itself, which shares its weights'}."
        raise ValueError(
            "`model` must be or hold one Vision Transformer of this package.\n"
            f"Received: {model.name!r}, with {len(found)}. {advice}"
        )
    if found[0].config is None:
        raise ValueError(
            "a Vision Transformer must know its config; `keras.models.clone_model` loses it.\n"
            f"Received: {found[0].name!r}. Copy it by `keras_vit.with_input_shape`."
        )
    if found[0].config.merged_tokens:
        raise ValueError(
            "after tokens are merged, a token has no patch of its own, so maps of patches do not exist.\n"
            f"Received: {found[0].name!r} with merged_tokens={found[0].config.merged_tokens}. Pass the model that it "
            "was made from."
        )
    return found[0]


def check_global_attention(inner: VisionTransformer) -> None:
    """Raises for attention in lines or windows, which has no weights between all tokens."""
    if inner.config.attention != "global":
        raise ValueError(
            "attention maps need weights between all tokens, which axial and windowed attention do not have.\n"
            f"Received: {inner.name!r} with attention={inner.config.attention!r}. `features` takes it."
        )
    if layer_named(inner, QUERIES) is not None:
        raise ValueError(
            "attention maps need the same tokens in all blocks, and the last ones have queries.\n"
            f"Received: {inner.name!r}. `features` takes it."
        )


def network_before(model: keras.Model, inner: VisionTransformer) -> keras.Model | None:
    """The part of a model in front of `inner`, as a model; `None` if there is none.

    Raises:
        ValueError: for a model that is not functional, or that calls `inner` several times.
    """
    networks, last = [], token_layers(inner)[-1]
    while not any(layer is last for layer in getattr(model, "layers", ())):
        holder = next(
            (each for each in getattr(model, "layers", ()) if any(part is last for part in flatten_layers(each))), None
        )
        inputs = getattr(model, "inputs", None) or ()  # Sequential models have none before they are called
        calls = _calls(model, holder) if holder is not None and len(inputs) == 1 else []
        if len(calls) != 1 or len(calls[0]) != 1:
            raise ValueError(
                "a model around a Vision Transformer must be functional or sequential, with one input and one call.\n"
                f"Received: {model.name!r}. Pass the Vision Transformer itself, with the images that it gets."
            )
        networks.append(keras.Model(model.inputs[0], calls[0][0]))
        model = holder
    if not networks:
        return None
    x = networks[0].output
    for network in networks[1:]:
        x = network(x)
    return keras.Model(networks[0].input, x)


def _calls(model: keras.Model, holder: keras.Layer) -> list:
    """The tensors of each call of a layer in a functional or sequential model."""
    if not isinstance(model, keras.Sequential):
        return call_inputs(model, holder)
    x = model.inputs[0]
    for layer in model.layers[: model.layers.index(holder)]:
        x = layer(x)
    return [[x]]


def check_grid(grid: Any) -> tuple[int, int]:
    """`grid` as two ints; raises unless it is `(h, w)` of at least one patch a side."""
    if not isinstance(grid, (tuple, list)) or len(grid) != 2:
        raise ValueError(f"`grid` must be (h, w), in patches.\nReceived: grid={grid!r}.")
    return check_positive_int("grid", grid[0]), check_positive_int("grid", grid[1])


def prepared_batches(
    model: keras.Model, inner: VisionTransformer, images: Any, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Checked images in batches of at most `batch_size`: the inputs of `model`, and those of `inner` in it.

    Raises:
        TypeError: for images that are not floats.
        ValueError: for images of another shape or with NaN, and as `network_before`.

    Warns:
        UserWarning: of pixels in the first batch that were not scaled as the weights expect.
    """
    before, images = network_before(model, inner), _checked(images, model)
    batch_size = check_positive_int("batch_size", batch_size)
    for start in range(0, len(images), batch_size):
        batch = ops.convert_to_tensor(images[start : start + batch_size])
        prepared = batch if before is None else before(batch, training=False)
        if not start:
            inner.has_checked_images = True
            warn_pixel_range(inner, prepared, stacklevel=4)
        yield batch, prepared


def _checked(images: Any, model: keras.Model) -> np.ndarray:
    """`images` as an array; raises unless it is `(B, H, W, C)` of finite floats with at least one image."""
    images = ops.convert_to_numpy(images) if not isinstance(images, np.ndarray) else images
    check_floats(images)
    check_shape(model, images.shape)
    if not np.isfinite(images.astype("float32", copy=False)).all():
        raise ValueError("`images` must be finite numbers.\nReceived: NaN or infinity among them.")
    return images


def patch_grid(inner: VisionTransformer, shape: Shape) -> Pair:
    """`(h, w)` of the patches of images of this shape; own layers of the user may resize them first."""
    if user_operations(inner) or first_layer(inner).input is not inner.input:
        shape = keras.Model(inner.input, first_layer(inner).input).compute_output_shape(tuple(shape))
    _, height, width, _ = cast(tuple[int, ...], shape)
    return inner.config.grid(height, width)
