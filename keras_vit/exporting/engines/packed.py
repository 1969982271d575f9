"""Dense layers of TensorFlow whose kernels oneDNN packs once, at the first call, in the order that its product reads.

TensorFlow's product with a variable reads the kernel as it lies, by a routine that does without AMX. Of a kernel that
is constant it keeps a packed copy, and that product uses AMX. A frozen graph would make the kernels constant, and takes
4 to 6 GB while it is made (B/16). Here the operation itself is told so of variables that will not change. It is
TensorFlow's own, without a public function, and absent where TensorFlow has no oneDNN: then all stays as it is.
"""

import functools

from keras_vit.keras_private import flatten_layers
from keras_vit.layers import TransformerBlock
from keras_vit.processor import processor_flags

_GELUS = {None: [], "gelu_tanh": [b"GeluApproximate"], "gelu": [b"GeluExact"]}
_CLOSE = 0.05  # of numbers of about 1 in bfloat16
_NEEDED = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}  # of oneDNN's products in bfloat16


def pack(model) -> int:
    """Has the blocks of a model multiply by packed kernels; gives how many kernels.

    Not those that are given few tokens, as the last block's: for another number of rows the order may be another one,
    and each call would pack anew.

    Args:
        model: in bfloat16, of which nobody else knows, and whose weights will not change.
    """
    denses = [
        dense for layer in flatten_layers(model) if isinstance(layer, TransformerBlock) for dense in _denses(layer)
    ]
    if not denses or not is_possible():
        return 0
    for dense in denses:
        dense.product = product
    return len(denses)


def _denses(block):
    """Those of a block that are given all tokens."""
    attention = block.attention
    if block.num_output_tokens is not None:
        return [attention.key, attention.value]
    return [attention.query, attention.key, attention.value, attention.out, block.mlp.dense_1, block.mlp.dense_2]


def product(x, kernel, bias, activation=None):
    """`activation(x @ kernel + bias)` inside a graph of TensorFlow.

    Args:
        x: bfloat16 `(R, D)`.
        kernel: `(D, M)`, a variable; the first value that the graph meets counts.
        bias: `(M,)`.
        activation: `None`, `"gelu"` or `"gelu_tanh"`.
    """
    import tensorflow as tf

    value = tf.compat.v1.AttrValue
    steps = [b"BiasAdd", *_GELUS[activation]]
    attributes = {
        "T": value(type=x.dtype.as_datatype_enum),
        "num_args": value(i=1),
        "fused_ops": value(list=value.ListValue(s=steps)),
        "is_filter_const": value(b=True),
        "_kernel": value(s=b"MklNameChangeOp"),  # oneDNN's, as TensorFlow marks it
    }
    inputs = [x, *map(tf.convert_to_tensor, (kernel, bias))]
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op("_MklNativeFusedMatMul", inputs, [x.dtype], attrs=attributes, name="product").outputs[0]


@functools.cache
def is_possible() -> bool:
    """Whether this TensorFlow has the operation, and it computes what the public ones compute.

    On a processor without AVX-512 the operation would end the process: there it is not tried.
    """
    if not processor_flags() >= _NEEDED:
        return False
    import tensorflow as tf

    x, kernel = (tf.cast(tf.random.stateless_normal((32, 32), (seed, 0)), tf.bfloat16) for seed in range(2))
    bias, kernel = tf.Variable(kernel[0]), tf.Variable(kernel / 6)

    @tf.function(autograph=False)
    def both(x):
        plain = tf.nn.gelu(tf.matmul(x, kernel) + bias, approximate=True)
        return product(x, kernel, bias, "gelu_tanh") - plain

    try:
        return bool(tf.reduce_all(tf.abs(both(x)) < _CLOSE))
    except (ValueError, tf.errors.OpError):  # no such operation, or none for this processor
        return False
