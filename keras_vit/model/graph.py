"""The model: layers wired into one functional `keras.Model` by a `ViTConfig`, arXiv:2010.11929, section 3.

Every layer has a name: `resnet_root`, `resnet_stage_1_unit_1`, ..., `patch_embedding`, `patch_norm`, `class_token`,
`position_embedding`, `position_offset`, `register_tokens`, `pre_norm`, `block_00`, ..., `encoder_norm`, `pooling`,
`pooled_norm`, `pre_logits`, `projection`, `unit_length`, `neck`, `head`. DeiT adds `distillation_token`, `average` and
two layers that end in `_distillation`. Positions of blocks: `position_embedding_00`, ..., `position_embedding_shared`;
rotary ones `rotary_positions` or `rotary_positions_00`, ...; biases `relative_bias_00`, ... or `relative_bias_shared`.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from keras_vit import layers
from keras_vit.annotations import Pair, Tensor
from keras_vit.config.heads import QUERIES
from keras_vit.config.records import ADDED_POSITIONS, ENCODER_FIELDS
from keras_vit.config.variants import DEFAULT_IMAGE_SIZE
from keras_vit.config.vit import RECORD_OF, ViTConfig
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.norms import norm_of
from keras_vit.model.head import Head, pool_and_head
from keras_vit.model.input_checks import known_grid, record_for, shape_to_prepare, source_of
from keras_vit.model.vision_transformer import VisionTransformer


def build_graph(
    images: Tensor,
    config: ViTConfig,
    head: Head,
    table_grid: Pair | None,
    name: str,
    preprocessing: Preprocessing | None = None,
    resize_method: str = "align_corners",
    bias_resize_method: str = "geometric_linear",
    queries: tuple[int, int] = (0, 0),
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
        bias_resize_method: likewise of tables of relative bias.
        queries: Q and b: how many queries stand between prefix tokens and patches in the last b blocks.
    """
    feature_map = _stem(images, config)  # (B, H, W, C) or what the stem makes of it
    sizes = (config.hidden_size, config.patch_size, config.patch_bias, config.patch_padding)
    tokens = layers.PatchEmbedding(*sizes, name="patch_embedding")(feature_map)  # (B, N, D), eq. 1
    if config.patch_norm:
        tokens = norm_of(config, "patch_norm")(tokens)
    # A class token starts at zero, as the official code has it, or as spread as the positions that are not added to it.
    stddev = 0.0 if config.position_embedding in ADDED_POSITIONS else 0.02
    counts = collections.Counter(config.positioned_tokens)
    for prefix in reversed(counts):  # the last one first, since each is put in front of the others
        tokens = layers.ClassToken(stddev, counts[prefix], name=f"{prefix}_token")(tokens)  # (B, T, D), eq. 1
    grid = known_grid(images.shape[1:], config) or table_grid or config.grid(DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
    add_positions = functools.cache(functools.partial(_positions, config, grid, resize_method))  # one of each name
    if config.position_injection == "stem" and config.position_embedding in ADDED_POSITIONS:
        tokens = add_positions(name="position_embedding")(tokens, feature_map)  # eq. 1
        tokens = layers.PositionOffset(name="position_offset")(tokens) if config.position_offset else tokens
        tokens = Dropout(config.dropout_rate, name="dropout")(tokens)
    tokens, optional = _patch_dropout(_registers(tokens, config), config)
    add_bias = functools.partial(
        layers.RelativeBias, grid, config.num_heads, config.patch_size, resize_method=bias_resize_method
    )
    optional["feature_map"] = feature_map
    tokens, optional = _encoder(tokens, optional, config, grid, add_positions, add_bias, queries)  # eq. 2, 3, L times
    if config.distilled and config.pooling == "none" and head.classes:
        raise ValueError(
            'the two heads of `distilled=True` read one token each, so `pooling="none"` goes without a head.\n'
            f"Received: classes={head.classes}. Pass include_top=False."
        )
    outputs = pool_and_head(tokens, config, head, optional.get("sizes"))  # eq. 4 and the head
    if config.neck_size is not None:
        outputs = layers.Neck(config.neck_size, config.patch_size, name="neck")([outputs, feature_map])  # (B, h, w, C)
    return VisionTransformer(
        source_of(images),
        outputs,
        name=name,
        config=config,
        preprocessing=record_for(shape_to_prepare(images), preprocessing or Preprocessing()),
    )


def _stem(x: Tensor, config: ViTConfig) -> Tensor:
    if config.pixel_statistics is not None:
        x = layers.PixelNormalization(config.pixel_statistics, name="pixel_normalization")(x)
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


def _positions(config: ViTConfig, grid: Pair, resize_method: str, name: str) -> layers.AddPositionEmbs:
    """A layer that adds positions to the tokens that have some."""
    return layers.AddPositionEmbs(
        grid,
        config.patch_size,
        num_prefix_tokens=len(config.positioned_tokens),
        kind=config.position_embedding,
        resize_method=resize_method,
        name=name,
    )


def _registers(tokens: Tensor, config: ViTConfig) -> Tensor:
    if not config.registers:
        return tokens
    return layers.RegisterTokens(config.registers, len(config.positioned_tokens), name="register_tokens")(tokens)


def _patch_dropout(tokens: Tensor, config: ViTConfig) -> tuple[Tensor, dict[str, Any]]:
    """The tokens that stay, and what later layers need to know of them."""
    if not config.patch_dropout_rate:
        return tokens, {}
    needed = config.position_embedding == "relative" or (config.rotary, config.relative_bias) != ("none", "none")
    sizes = (config.patch_dropout_rate, config.num_prefix_tokens)
    layer = layers.PatchDropout(*sizes, return_indices=needed, name="patch_dropout")
    if not needed:
        return layer(tokens), {}
    kept, indices = layer(tokens)
    return kept, {"patch_indices": (indices, tokens)}


def _encoder(
    tokens: Tensor,
    optional: dict[str, Any],
    config: ViTConfig,
    grid: Pair,
    add_positions: Callable[..., layers.AddPositionEmbs],
    add_bias: Callable[..., layers.RelativeBias],
    queries: tuple[int, int],
) -> tuple[Tensor, dict[str, Any]]:
    """The encoded tokens, and what is known of them: each block takes its `optional_inputs`, and adds its outputs."""
    if config.pre_norm:
        tokens = norm_of(config, "pre_norm")(tokens)
    for index in range(config.num_layers):
        if config.position_injection != "stem":
            tokens = _with_positions(tokens, index, optional["feature_map"], config, add_positions)
        block = _block(config, index, grid)
        optional |= _rotation_and_bias(index, optional, config, add_bias)
        if queries[0] and index == config.num_layers - queries[1]:
            tokens, optional = _with_queries(tokens, optional, config, queries[0])
        given = {name: optional[name] for name in block.optional_inputs if name in optional}
        if index == config.num_layers - 1 and config.num_pooled_tokens is not None:  # eq. 4 reads no others
            given["num_queries"] = config.num_pooled_tokens
        outputs = block(tokens, **given)
        tokens, *more = outputs if block.extra_outputs else (outputs,)
        optional |= zip(block.extra_outputs, more, strict=True)
    if config.final_norm == "tokens":
        tokens = norm_of(config, "encoder_norm")(tokens)  # the LayerNorm of eq. 4
    return tokens, optional


def _with_positions(
    tokens: Tensor, index: int, feature_map: Tensor, config: ViTConfig, add_positions: Callable[..., Any]
) -> Tensor:
    """The tokens for a block in front of which positions are added, by one layer of all blocks or by its own."""
    name = "shared" if config.position_injection == "blocks_shared" else f"{index:02}"
    tokens = add_positions(name=f"position_embedding_{name}")(tokens, feature_map)
    return tokens if index else Dropout(config.dropout_rate, name="dropout")(tokens)


def _with_queries(
    tokens: Tensor, optional: dict[str, Any], config: ViTConfig, count: int
) -> tuple[Tensor, dict[str, Any]]:
    """The tokens with queries, which have no positions, so that a rotation gets as many more prefix tokens."""
    tokens = layers.QueryTokens(count, config.num_prefix_tokens, name=QUERIES)(tokens)
    if "rotation" not in optional:
        return tokens, optional
    rotation = _rotary_positions(config, f"rotary_positions_of_{QUERIES}", count)(optional["feature_map"])
    return tokens, optional | {"rotation": rotation}


def _rotation_and_bias(
    index: int, optional: dict[str, Any], config: ViTConfig, add_bias: Callable[..., layers.RelativeBias]
) -> dict[str, Tensor]:
    """What is new for attention's positions at a block: a rotation, a bias, or nothing; what all share at the first."""
    feature_map, new = optional["feature_map"], {}
    patches = {"patch_indices": optional["patch_indices"][0]} if "patch_indices" in optional else {}
    if config.rotary == "mixed" or (config.rotary == "axial" and not index):
        name = f"rotary_positions_{index:02}" if config.rotary == "mixed" else "rotary_positions"
        new["rotation"] = _rotary_positions(config, name)(feature_map, **patches)
    if config.relative_bias == "blocks" or (config.relative_bias == "shared" and not index):
        name = f"relative_bias_{index:02}" if config.relative_bias == "blocks" else "relative_bias_shared"
        new["bias"] = add_bias(name=name)(feature_map, **patches)
    return new


def _rotary_positions(config: ViTConfig, name: str, num_queries: int = 0) -> layers.RotaryPositions:
    """The layer of the table by which blocks turn queries and keys; one whose angles are learned is a block's own."""
    fields = {name: getattr(config, name) for name in layers.RotaryPositions.arguments() if name in RECORD_OF}
    width = config.hidden_size // config.num_heads
    prefix = config.num_prefix_tokens + num_queries
    return layers.RotaryPositions(width, num_prefix_tokens=prefix, name=name, **fields)


def _block(config: ViTConfig, index: int, grid: Pair) -> Any:
    """The block of that number, with those of all known values that its class has arguments for."""
    kind = layers.BLOCKS[config.blocks.kind]
    known = vars(config.blocks) | {
        "stochastic_depth_rate": config.stochastic_depth_rate * index / max(config.num_layers - 1, 1),
        "patch_size": config.patch_size,
        "num_prefix_tokens": config.num_prefix_tokens,
        "relative_patches": math.prod(grid) if config.position_embedding == "relative" else None,
        "kv_heads": config.blocks.kv_heads_of(index),
        "window_size": config.blocks.window_of(index),
        "grid": grid,
        "use_attention_bias": config.relative_bias != "none",
        "rotary_layout": None if config.rotary == "none" else config.rotary_layout,
    }
    accepted, defaults = kind.arguments(), {each.name: each.default for each in dataclasses.fields(config.blocks)}
    unknown = [name for name in defaults if name not in (*accepted, *ENCODER_FIELDS) and known[name] != defaults[name]]
    if unknown:
        raise ValueError(
            f"a block of the kind {config.blocks.kind!r} must know every field of the config that it computes by.\n"
            f"Received: {', '.join(f'{name}={known[name]!r}' for name in unknown)}. Leave it out, or choose another "
            "`attention`."
        )
    return kind(**{name: known[name] for name in accepted if name in known}, name=f"block_{index:02}")
