"""The tokens of a model after any block, as maps of the image, and its head's output for every single token."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.submodels import patch_grid, prepared_batches, vision_transformer_in
from keras_vit.annotations import Tensor
from keras_vit.checks import did_you_mean
from keras_vit.model.layer_access import (
    encoder_blocks,
    encoder_norm,
    head_layers,
    layers_before_head,
    pooling,
    resnet_stages,
)
from keras_vit.model.outputs import output_spec
from keras_vit.model.vision_transformer import VisionTransformer

_DEFAULT_BLOCKS = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """The result of `features`, by block or stage.

    Example:
        >>> found = keras_vit.features(model, images)
        >>> found
        Features(1: (2, 2, 3, 192), 2: (2, 2, 3, 192))

    Attributes:
        maps: float32 `(B, h, w, D)` after blocks, or `(B, N, D)` without `spatial`; `(B, h, w, C)` after a hybrid's
            stages.
        prefix_tokens: float32 `(B, P, D)` after blocks: class, distillation and other prefix tokens.
    """

    maps: dict[int | str, np.ndarray]
    prefix_tokens: dict[int | str, np.ndarray]

    def __repr__(self) -> str:  # without the numbers, which are megabytes
        return f"Features({', '.join(f'{block!r}: {tokens.shape}' for block, tokens in self.maps.items())})"

    def __getitem__(self, block: int | str) -> np.ndarray:
        return self.maps[block]


def features(
    model: keras.Model,
    images: Any,
    blocks: Sequence[int | str] | None = None,
    spatial: bool = True,
    norm: bool = True,
    batch_size: int = 32,
) -> Features:
    """Gets the patch tokens after some blocks as maps of the image, by one forward pass.

    The pass ends at the last of these blocks.

    Example:
        >>> found = keras_vit.features(model, images)
        >>> found[2].shape, found.prefix_tokens[2].shape
        ((2, 2, 3, 192), (2, 1, 192))

    Args:
        model: a `VisionTransformer`, or a functional model that has one among its layers.
        images: `(B, H, W, C)` floats, prepared for the model.
        blocks: numbers of passed blocks: 0 is the input of the first, and the number of layers the output of the last.
            Also `"root"`, `"stage_1"`, `"stage_2"`, ... of a hybrid's ResNet. By default four, evenly spread up to the
            last, as 3, 6, 9, 12 of 12; all of a model with fewer.
        spatial: whether patches have two axes `(h, w)`, or one.
        norm: whether the final LayerNorm, if there is one, is applied to tokens; it never is to stages.
        batch_size: images at once.

    Returns:
        `Features`; `features(...)[6]` is one map.

    Raises:
        TypeError: for images that are not floats, or anything but a model.
        ValueError: for blocks or stages that the model does not have, and as `attention_maps`.
    """
    inner = vision_transformer_in(model)
    chosen, last_norm = _taps(inner, blocks), encoder_norm(inner)
    network = keras.Model(inner.input, {str(name): tap.tensor for name, tap in chosen.items()})
    found: dict[int | str, list] = {name: [] for name in chosen}
    for _, prepared in prepared_batches(model, inner, images, batch_size):
        tensors = network(prepared, training=False)
        for name, tap in chosen.items():
            tensor = tap.finish(tensors[str(name)])
            tensor = last_norm(tensor) if norm and tap.has_tokens and last_norm is not None else tensor
            found[name].append(ops.convert_to_numpy(ops.cast(tensor, "float32")))
    grid = patch_grid(inner, prepared.shape)
    number, shape = math.prod(grid), grid if spatial else (-1,)
    whole = {name: np.concatenate(parts) for name, parts in found.items()}
    tokens = {name: array for name, array in whole.items() if chosen[name].has_tokens}
    count = inner.config.num_prefix_tokens
    # Queries of a head may stand between both.
    patches = {name: a[:, -number:].reshape(len(a), *shape, a.shape[-1]) for name, a in tokens.items()}
    return Features(whole | patches, {name: array[:, :count] for name, array in tokens.items()})


@dataclasses.dataclass(frozen=True)
class _Tap:
    """A tensor of the graph, and the remaining steps."""

    tensor: Any
    has_tokens: bool = True
    block: Any = None  # a last block that computes only the first tokens; all are computed here

    def finish(self, tensor: Any) -> Tensor:
        if self.block is None:
            return tensor
        tokens, *others = tensor
        optional = dict(zip(self.block.optional_inputs, others, strict=False))
        return self.block.forward(self.block.cast_input(tokens), **optional)


class PatchTokens(keras.Model):
    """The tokens after the last block, with the final norm, for `predict_on_batch` of one photo after another.

    Args:
        inner: the encoder, for images of any size.

    Input and output are `(B, H, W, C)` and float32 `(B, T, D)`; the patches are the last tokens.
    """

    def __init__(self, inner: VisionTransformer) -> None:
        super().__init__()
        (self.tap,) = _taps(inner, inner.config.num_layers).values()
        self.network, self.last_norm = keras.Model(inner.input, {"tap": self.tap.tensor}), encoder_norm(inner)
        if keras.backend.backend() == "tensorflow":
            self.compile(jit_compile=False)  # XLA would compile each new size of a photo

    @property
    def weights_of_patches(self) -> list[Any]:
        """All weights that the tokens depend on."""
        block = [] if self.tap.block is None else self.tap.block.weights
        norm = [] if self.last_norm is None else self.last_norm.weights
        return [*self.network.weights, *block, *norm]

    def call(self, images: Tensor) -> Tensor:
        """Tokens of prepared images."""
        tokens = self.tap.finish(self.network(images, training=False)["tap"])
        return ops.cast(tokens if self.last_norm is None else self.last_norm(tokens), "float32")


def _inputs(block: Any) -> list[Tensor]:
    """The inputs of a block: the tokens, and optional ones."""
    return block.input if isinstance(block.input, list) else [block.input]


def spread_blocks(count: int) -> tuple[int, ...]:
    """Up to four numbers of `count` blocks, evenly spread, the last among them."""
    return tuple(sorted({math.ceil(count * part / _DEFAULT_BLOCKS) for part in range(1, _DEFAULT_BLOCKS + 1)}))


def _taps(inner: VisionTransformer, wanted: Sequence[int | str] | int | str | None) -> dict[int | str, _Tap]:
    layers = encoder_blocks(inner)
    taps: dict[int | str, _Tap] = {0: _Tap(_inputs(layers[0])[0])} if layers else {}
    for number, block in enumerate(layers, start=1):
        is_short = block.output.shape[1] != _inputs(block)[0].shape[1]
        # On torch, Keras does not know how many tokens a block puts out for images of any size.
        is_short = is_short or (number == len(layers) and inner.config.num_pooled_tokens is not None)
        taps[number] = _Tap(_inputs(block), block=block) if is_short else _Tap(block.output)
    for stage, layer in resnet_stages(inner).items():
        taps[stage] = _Tap(layer.output, has_tokens=False)
    wanted = spread_blocks(len(layers)) if wanted is None else wanted
    wanted = (wanted,) if isinstance(wanted, (int, str)) else tuple(wanted)
    unknown = [each for each in wanted if isinstance(each, bool) or each not in taps]
    if unknown or not wanted:
        stages = [name for name in taps if isinstance(name, str)]
        more = f", or {', '.join(map(repr, stages))}" if stages else ""
        near = did_you_mean(unknown[0], stages) if unknown and isinstance(unknown[0], str) else ""
        raise ValueError(
            f"`blocks` must be numbers from 0 to {len(layers)}, of blocks that are passed{more}.\n"
            f"Received: blocks={wanted!r}.{near}"
        )
    return {each: taps[each] for each in wanted}


def logit_lens(model: keras.Model, images: Any, blocks: Sequence[int] | None = None, batch_size: int = 32) -> Features:
    """Gets the model's output for every single token after some blocks.

    A token passes the last LayerNorm, then attention pooling if the model has it, then the head. DeiT's distillation
    token passes its own head, and patches get the mean of both heads. After the last block the class token's output
    equals the model's. With mean pooling and no hidden layer before the head, the mean over patches does.

    Example:
        >>> found = keras_vit.analysis.logit_lens(model, images)
        >>> found[2].shape, found.prefix_tokens[2].shape
        ((2, 2, 3, 3), (2, 1, 3))

    Args:
        model: a `VisionTransformer` with a head, or a functional model that has one among its layers.
        images: `(B, H, W, C)` floats, prepared for the model.
        blocks: numbers of passed blocks, as in `features`, with the same default.
        batch_size: images at once.

    Returns:
        `Features` with `(B, h, w, K)` for the patches and `(B, P, K)` for the prefix tokens; logits, unless the head
        ends in an activation.

    Raises:
        ValueError: for a model without a head, and as `features`.

    Source: the "logit lens", nostalgebraist, 2020; for Vision Transformers Vilas et al., arXiv:2310.18969.
    """
    inner = vision_transformer_in(model)
    if output_spec(inner).activation is None:
        raise ValueError(f"a model must have a head, to apply to each patch.\nReceived: {inner.name!r} without one.")
    found = features(model, images, blocks, batch_size=batch_size)
    stages = [name for name in found.maps if name not in found.prefix_tokens]
    if stages:
        raise ValueError(f"`blocks` must be blocks, whose tokens a head can read.\nReceived: {stages}.")
    maps = {block: _outputs(inner, tokens) for block, tokens in found.maps.items()}
    return Features(maps, {block: _of_prefix(inner, tokens) for block, tokens in found.prefix_tokens.items()})


def _of_prefix(inner: VisionTransformer, tokens: np.ndarray) -> np.ndarray:
    """Outputs of the prefix tokens; with two heads, class and distillation token have their own."""
    heads = head_layers(inner)
    if len(heads) == 1:
        return _outputs(inner, tokens)
    return np.stack([ops.convert_to_numpy(head(tokens[:, place])) for place, head in enumerate(heads)], axis=1)


def _outputs(inner: VisionTransformer, tokens: np.ndarray) -> np.ndarray:
    """`(..., D)` to `(..., K)`."""
    x = ops.convert_to_tensor(tokens.reshape(-1, tokens.shape[-1]))
    pool = pooling(inner)
    if inner.config.pooling in ("map", "attentive"):
        # The token is repeated, since Keras warns of a softmax over one, after the prefix tokens that pooling ignores.
        x = pool(ops.repeat(x[:, None], 2 + pool.num_prefix_tokens, axis=1))
    x = ops.tile(x, (1, inner.config.pooled_size // inner.config.hidden_size))  # in place of each pooled token
    for layer in layers_before_head(inner):
        x = layer(x)
    answers = [ops.convert_to_numpy(head(x)) for head in head_layers(inner)]
    return np.mean(answers, axis=0).reshape(*tokens.shape[:-1], answers[0].shape[-1])
