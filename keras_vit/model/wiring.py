"""The model: layers wired into one functional `keras.Model` by a `ViTConfig`.

Section 3 of arXiv:2010.11929. Every station is a layer of the graph that can be reached by name:
`resnet_root`, `resnet_stage_1_unit_1`, ..., `patch_embedding`, `class_token`, `position_embedding`,
`block_00`, ..., `encoder_norm`, `pooling`, `pre_logits`, `head`; DeiT adds `distillation_token`,
`pooling_distillation`, `head_distillation` and `average`. Positions that blocks add are `position_embedding_00`, ...,
or `position_embedding_shared`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import keras

from keras_vit import layers
from keras_vit.annotations import Tensor
from keras_vit.checks import check_positive_int
from keras_vit.config.variants import DEFAULT_IMAGE_SIZE, check_tiled
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.encoder import layer_norm
from keras_vit.model.vision_transformer import VisionTransformer

_MOST_COLOURS = 4  # channels of a photo
ADDED = ("learned", "learned2d", "sincos2d")  # kinds of positions that are added to tokens
ENDS = ("head", "head_distillation", "average", "activation")  # layers of at least float32


@dataclasses.dataclass(frozen=True)
class Head:
    """The classifier at the end."""

    classes: int | None  # 0 for no head, None for as many as the file has
    activation: str | Callable[[Tensor], Tensor] | None


def wire(
    images, config, head, table_grid, name, preprocessing=None, resize_method="align_corners"
) -> VisionTransformer:
    """The model from `images`, a Keras tensor, to logits or representation.

    Args:
        images: `(B, H, W, C)`.
        config: a `ViTConfig`.
        head: a `Head`.
        table_grid: `(h, w)` of the position table where the size of `images` is unknown; `None` for the default.
        name: of the model.
        preprocessing: the record that belongs to the weights; by default the official code's.
        resize_method: of the position table in the graph, where the size of `images` is unknown.
    """
    feature_map = _resnet(images, config)  # (B, H, W, C) or what the stem makes of it
    tokens = layers.PatchEmbedding(config.hidden_size, config.patch_size, name="patch_embedding")(feature_map)
    stddev = 0.0 if config.position_embedding in ADDED else 0.02  # that of the position which it does not get
    if config.distilled:
        tokens = layers.ClassToken(stddev, name="distillation_token")(tokens)
    if config.has_class_token:
        tokens = layers.ClassToken(stddev, name="class_token")(tokens)  # (B, T, D)
    places = known_grid(images.shape[1:], config) or table_grid or config.grid(DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
    add_positions = functools.partial(
        layers.AddPositionEmbs,
        places,
        config.patch_size,
        num_prefix_tokens=config.num_prefix_tokens,
        kind=config.position_embedding,
        resize_method=resize_method,
    )
    if config.position_injection == "stem" and config.position_embedding in ADDED:
        tokens = add_positions(name="position_embedding")(tokens, feature_map)
        tokens = Dropout(config.dropout_rate, name="dropout")(tokens)
    if config.patch_dropout_rate:
        tokens = layers.PatchDropout(config.patch_dropout_rate, config.num_prefix_tokens, name="patch_dropout")(tokens)
    tokens, sizes = _encoder(tokens, config, feature_map, places, add_positions)
    if config.distilled and config.pooling == "none" and head.classes:
        raise ValueError(
            'the two heads of `distilled=True` read one token each, so `pooling="none"` goes without a head.\n'
            f"Received: classes={head.classes}. Pass include_top=False."
        )
    outputs = _top(tokens, config, head, sizes)
    sources = keras.utils.get_source_inputs(images)
    return VisionTransformer(
        sources[0] if len(sources) == 1 else sources,
        outputs,
        name=name,
        config=config,
        preprocessing=record_for(images.shape[1:], preprocessing or Preprocessing()),
    )


def record_for(input_shape, record):
    """The record for images of this shape."""
    height, width, channels = input_shape
    size = None if height is None or width is None else (height, width)
    return dataclasses.replace(record.with_channels(channels), image_size=size)


def _resnet(x, config):
    if config.resnet_stages is None:
        return x
    x = layers.ResNetRoot(config.resnet_width, name="resnet_root")(x)  # (B, H/4, W/4, 64)
    for stage, blocks in enumerate(config.resnet_stages, start=1):
        for unit in range(1, blocks + 1):
            x = layers.ResNetUnit(
                config.resnet_width * 2 ** (stage - 1),
                strides=2 if unit == 1 and stage > 1 else 1,
                projection=unit == 1,
                name=f"resnet_stage_{stage}_unit_{unit}",
            )(x)
    return x


def _encoder(tokens, config, feature_map, grid, add_positions):
    """The encoded tokens, and where some are merged, how many patches each stands for, as an argument."""
    sizes: dict = {}
    shared = add_positions(name="position_embedding_shared") if config.position_injection == "blocks_shared" else None
    for index in range(config.num_layers):
        if config.position_injection != "stem":
            positions = shared or add_positions(name=f"position_embedding_{index:02}")
            tokens = positions(tokens, feature_map)
        if config.position_injection != "stem" and not index:
            tokens = Dropout(config.dropout_rate, name="dropout")(tokens)
        if config.merged_tokens:
            merging = {"merged_tokens": config.merged_tokens, "num_prefix_tokens": config.num_prefix_tokens}
            arguments = {name: value for name, value in _block(config, index).items() if name != "rematerialize"}
            block = layers.MergingBlock(**arguments, **_which_tokens(config, index, grid), **merging)
            tokens, counts = block(tokens, **sizes)
            sizes = {"sizes": counts}
        elif config.attention == "axial":
            tokens = layers.AxialBlock(patch_size=config.patch_size, **_block(config, index))(tokens, feature_map)
        else:
            tokens = layers.TransformerBlock(**_block(config, index), **_which_tokens(config, index, grid))(tokens)
    return layer_norm(None, "encoder_norm", config.layer_norm_epsilon)(tokens), sizes


def _block(config, index):
    return {
        "hidden_size": config.hidden_size,
        "num_heads": config.num_heads,
        "mlp_dim": config.mlp_dim,
        "dropout_rate": config.dropout_rate,
        "attention_dropout_rate": config.attention_dropout_rate,
        "stochastic_depth_rate": config.stochastic_depth_rate * index / max(config.num_layers - 1, 1),
        "activation": config.activation,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "rematerialize": config.rematerialize,
        "name": f"block_{index:02}",
    }


def _which_tokens(config, index, grid):
    """Where the tokens of a block are, if it has relative positions, and how many of them are read behind it."""
    if config.position_embedding == "relative":
        return {"relative_patches": math.prod(grid), "num_prefix_tokens": config.num_prefix_tokens}
    is_last = index == config.num_layers - 1
    only_read = config.pooling == "token" and config.last_block == "pooled" and is_last
    return {"num_output_tokens": config.num_prefix_tokens if only_read else None}


def _top(tokens, config, head, sizes):
    x = tokens
    if config.pooling in ("token", "gap"):
        sizes = sizes if config.pooling == "gap" else {}
        x = layers.TokenPooling(config.pooling, config.num_prefix_tokens, name="pooling")(x, **sizes)  # (B, D)
    elif config.pooling == "map":
        x = layers.AttentionPooling(
            config.hidden_size,
            config.num_heads,
            config.mlp_dim,
            config.activation,
            config.layer_norm_epsilon,
            config.num_prefix_tokens,
            name="pooling",
        )(x)
    if config.distilled and config.pooling == "token":
        return _two_heads(x, tokens, head)
    if config.representation_size is not None:
        x = keras.layers.Dense(
            config.representation_size, activation="tanh", kernel_initializer="lecun_normal", name="pre_logits"
        )(x)
    if head.classes:
        x = classifier(head, "head", head.activation)(x)  # (B, K)
    return x


def _two_heads(representation, tokens, head):
    """DeiT's end: a head for the class token, one for the distillation token, and their average."""
    distillation = layers.TokenPooling("distillation", name="pooling_distillation")(tokens)  # (B, D)
    if not head.classes:
        return keras.layers.Average(name="average")([representation, distillation])
    logits = [
        classifier(head, "head")(representation),
        classifier(head, "head_distillation")(distillation),
    ]
    average = keras.layers.Average(dtype=at_least_float32(), name="average")(logits)  # (B, K)
    if head.activation is None:
        return average
    return keras.layers.Activation(head.activation, dtype=at_least_float32(), name="activation")(average)


def classifier(head, name, activation=None) -> keras.layers.Dense:
    """The zero-initialised layer that makes logits."""
    return keras.layers.Dense(
        head.classes, activation=activation, kernel_initializer="zeros", dtype=at_least_float32(), name=name
    )


def at_least_float32(policy=None):
    """Logits in half precision cost accuracy (a bfloat16 softmax is off by .02), so the head never is."""
    policy = keras.dtype_policies.get(policy or keras.config.dtype_policy())
    return "float32" if policy.compute_dtype in ("float16", "bfloat16") else policy


def known_grid(shape, config):
    return None if None in shape[:2] else config.grid(*shape[:2])


def check_input_shape(shape, config) -> tuple:
    """`shape` as ints; raises unless it is (H, W, C) with sides that are unknown or tiled by the config's patches."""
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise ValueError(f"`input_shape` must be (H, W, C).\nReceived: input_shape={shape!r}.")
    _check_channels_last(shape, config)
    sides = [side if side is None else check_positive_int("input_shape", side) for side in shape[:2]]
    shape = (*sides, check_positive_int("input_shape", shape[2]))
    check_tiled("input_shape", shape, sides, config, shape[2:])
    return shape


def _check_channels_last(shape, config):
    """Refuses (3, 64, 64) in words that help, unless patches of so few pixels make it an image of many channels."""
    height, width, channels = shape
    last = channels is None or (isinstance(channels, int) and channels > _MOST_COLOURS)
    if last and height in range(1, _MOST_COLOURS + 1) and height % config.stride:
        raise ValueError(
            "`input_shape` must be (H, W, C), with the channels last.\n"
            f"Received: input_shape={tuple(shape)}. Pass {(width, channels, height)}."
        )
