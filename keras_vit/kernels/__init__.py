"""What the layers compute by, for each backend: the reference of `keras.ops`, and what is faster or keeps less.

`plain` is the reference and always there. `tensorflow_cpu`, `tensorflow_training`, `chunked_attention` and `jax_gpu`
take its place on their backends. `capture` looks at attention, and `dispatch` has the table of choices. Inside of
`use("plain")` the reference computes. `select` says what does, and why.
"""

from keras_vit.kernels.capture import current_hook, intercept_attention, record_attention
from keras_vit.kernels.dispatch import (
    after_norm,
    attention_weights,
    block,
    dense,
    dot_product_attention,
    layer_norm,
    mlp,
    norm_dense,
    patch_rows,
    remat,
    select,
)
from keras_vit.kernels.plain import use

__all__ = [
    "after_norm",
    "attention_weights",
    "block",
    "current_hook",
    "dense",
    "dot_product_attention",
    "intercept_attention",
    "layer_norm",
    "mlp",
    "norm_dense",
    "patch_rows",
    "record_attention",
    "remat",
    "select",
    "use",
]
