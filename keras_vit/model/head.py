"""From encoded tokens to logits: equation 4 of arXiv:2010.11929, what is pooled, and the head of section 3.1."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from keras_vit import layers
from keras_vit.annotations import Tensor
from keras_vit.config.vit import ViTConfig
from keras_vit.layers.configurable import at_least_float32
from keras_vit.layers.norms import norm_of


@dataclasses.dataclass(frozen=True)
class Head:
    """The classifier at the end."""

    classes: int | None  # 0 for no head, None for as many as the file has
    activation: str | Callable[[Tensor], Tensor] | None


def pool_and_head(tokens: Tensor, config: ViTConfig, head: Head, sizes: Tensor) -> Tensor:
    """From encoded tokens to logits, or to what the head would read."""
    x = tokens
    if config.pooling in ("token", "gap", "token_gap"):
        counted = {"sizes": sizes} if config.pooling != "token" and sizes is not None else {}
        read = (config.pooled_indices[:1] if config.distilled else config.pooled_indices) or (0,)
        kind = (config.pooling, config.num_prefix_tokens, read, config.class_token_reduction)
        x = layers.TokenPooling(*kind, name="pooling")(x, **counted)  # (B, D), eq. 4
    elif config.pooling in ("map", "attentive"):
        x = layers.AttentionPooling(
            config.hidden_size,
            config.map_heads or config.num_heads,
            config.map_mlp_dim or config.mlp_dim,
            config.activation,
            config.layer_norm_epsilon,
            0 if config.pool_prefix_tokens else config.num_prefix_tokens,
            config.pooling,
            config.norm,
            name="pooling",
        )(x)
    if config.final_norm == "pooled":
        x = norm_of(config, "pooled_norm")(x)
    if config.distilled and config.pooling == "token":
        return _two_heads(x, tokens, head)
    if config.representation_size is not None:
        x = keras.layers.Dense(
            config.representation_size, activation="tanh", kernel_initializer="lecun_normal", name="pre_logits"
        )(x)
    x = embedding(x, config)
    if head.classes:
        x = classifier(head, "head", head.activation)(x)  # (B, K), section 3.1
    return x


def embedding(pooled: Tensor, config: ViTConfig) -> Tensor:
    """What the head reads, `(B, E)`, of what was pooled."""
    if config.projection_size is not None:
        pooled = keras.layers.Dense(config.projection_size, dtype=at_least_float32(), name="projection")(pooled)
    if config.normalize_embedding:
        pooled = keras.layers.UnitNormalization(dtype=at_least_float32(), name="unit_length")(pooled)
    return pooled


def _two_heads(representation: Tensor, tokens: Tensor, head: Head) -> Tensor:
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


def classifier(head: Head, name: str, activation: Any = None) -> keras.layers.Dense:
    """The zero-initialised layer that makes logits."""
    return keras.layers.Dense(
        head.classes, activation=activation, kernel_initializer="zeros", dtype=at_least_float32(), name=name
    )
