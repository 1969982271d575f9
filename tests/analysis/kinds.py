"""Small models of every kind, and attention recomputed from their weights in NumPy."""

import keras
import numpy as np
from conftest import numpy, randomise, tiny_config

import keras_vit

SHAPE = (20, 28, 3)  # 5 x 7 patches of 4
KINDS = ("token", "gap", "map", "map with a class token", "none", "distilled", "hybrid", "any size", "all tokens")


def model_of(kind):
    """A model of random weights."""
    if kind == "hybrid":
        config = tiny_config(patch_size=1, resnet_stages=(1, 1), resnet_width_factor=0.5)
        return randomise(keras_vit.build(config, input_shape=(32, 48, 3), classes=7))
    if kind == "any size":
        return randomise(keras_vit.build(tiny_config(), input_shape=(None, None, 3), classes=7))
    fields = {
        "token": {},
        "gap": {"pooling": "gap"},
        "map": {"pooling": "map"},
        "map with a class token": {"pooling": "map", "class_token": True},
        "none": {"pooling": "none"},
        "distilled": {"distilled": True},
        "all tokens": {"last_block_outputs": "all"},
        "hidden": {"representation_size": 9},
    }[kind]
    if kind == "none":
        return randomise(keras_vit.build(tiny_config(**fields), input_shape=SHAPE, include_top=False))
    return randomise(keras_vit.build(tiny_config(**fields), input_shape=SHAPE, classes=7))


def photos(model, count=2):
    height, width = (side or other for side, other in zip(model.input_shape[1:3], SHAPE, strict=False))
    return np.random.default_rng(5).uniform(-1, 1, (count, height, width, 3)).astype("float32")


def numpy_attention(model, images):
    """`(L, B, A, T, T)` in float64 from the tokens that enter each block, and the weights."""
    found = []
    for block in (layer for layer in model.layers if layer.name.startswith("block_")):
        x = numpy(keras.Model(model.input, block.input)(images)).astype("float64")
        found.append(numpy_weights(block, x))
    return np.stack(found)


def numpy_weights(block, tokens):
    """`(B, A, T, T)` by the equations of the paper."""
    norm, attention = block.norm_1, block.attention
    mean, variance = tokens.mean(axis=-1, keepdims=True), tokens.var(axis=-1, keepdims=True)
    x = (tokens - mean) / np.sqrt(variance + norm.epsilon) * numpy(norm.gamma) + numpy(norm.beta)
    query, key = (
        np.reshape(x @ numpy(dense.kernel) + numpy(dense.bias), (*x.shape[:2], attention.num_heads, -1))
        for dense in (attention.query, attention.key)
    )
    logits = np.einsum("bqad,bkad->baqk", query, key) / np.sqrt(query.shape[-1])
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
