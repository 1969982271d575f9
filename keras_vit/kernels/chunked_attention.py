"""Attention over many tokens that never holds all its weights: those of one head and a chunk of queries at a time.

For TensorFlow on a processor, which has no kernel of its own for that. A chunk's weights stay in the cache. The way
back computes each chunk once more, so that training keeps none. Products are of the model's precision, the softmax and
what is summed over chunks of at least float32. What is added to logits, as a bias, is whole.

Source: arXiv:2112.05682, without its chunks of keys.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.kernels import plain, tensorflow_cpu

MIN_WEIGHTS = 2**18  # of a head, above which chunks are no slower; 384 pixels in patches of 16 have 333,000
CHUNK_WEIGHTS = 2**20  # of a chunk, about; from a half to twice of it takes as long on a core with 1 MB of cache

Draw = Callable[[Tensor, Tensor, tuple], Tensor]  # numbers in [0, 1) of an image, a part of it, and a shape


def is_worthwhile(queries: Any, tokens: Any, rate: float = 0.0) -> Any:
    """Whether weights are so many that chunks are of use, a boolean tensor where only the graph knows their number.

    Args:
        queries: Q, an int or a scalar.
        tokens: T, likewise.
        rate: of the weights that are dropped. With one, chunks are of use wherever only the graph knows: a draw moves
            a seed on, which no branch may do where seeds are mapped.
    """
    if keras.backend.backend() != "tensorflow" or plain.current_level() == "plain":
        return False
    import tensorflow as tf

    if any(device.device_type != "CPU" for device in tf.config.get_visible_devices()):
        return False
    many = queries * tokens > MIN_WEIGHTS
    return many if isinstance(many, bool) or not rate else True


def attention_where(
    many: Any,
    few: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor = None,
    dropout: Any = None,
    training: bool | None = None,
) -> Tensor:
    """`attention` of query, key and value where `many` of `is_worthwhile` is true, else what `few` makes of them.

    Args:
        many: `True`, or a boolean tensor, by which the graph chooses.
        few: another implementation.
        query: as for `attention`.
        key: likewise.
        value: likewise.
        bias: likewise.
        dropout: a `keras_vit.layers` dropout of the weights, or `None`.
        training: whether it drops.
    """
    rate = dropout.rate if training and dropout is not None else 0.0

    def chunked() -> Tensor:
        draw = dropout.draw_by_part() if rate else None
        return attention(query, key, value, bias, rate, draw, training)

    return chunked() if many is True else ops.cond(many, chunked, lambda: few(query, key, value))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor = None,
    rate: float = 0.0,
    draw: Draw | None = None,
    training: bool | None = None,
) -> Tensor:
    """`dropout(softmax(query @ key + bias)) @ value`.

    Args:
        query: `(B, A, Q, D/A)`, scaled.
        key: `(B, A, D/A, T)`.
        value: `(B, A, T, D/A)`.
        bias: `(1 or B, 1 or A, 1 or Q, T)`, of the logits.
        rate: of the weights that are dropped.
        draw: which of them, if there is a rate; called again on the way back.
        training: whether the way back computes chunks again. A plain gradient keeps the weights of all.

    Returns:
        `(B, A, Q, D/A)`.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def attend(query: Tensor, key: Tensor, value: Tensor, *bias: Tensor) -> Any:
        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            with tf.control_dependencies([upstream]):  # else a part would run on the way forth, and be kept
                late = tf.identity(query)
            return _backward(_Chunks.split(late, key, value, bias, rate, draw), upstream)

        return _forward(_Chunks.split(query, key, value, bias, rate, draw)), gradient

    given = (query, key, value) if bias is None else (query, key, value, bias)
    return attend(*given) if training else _forward(_Chunks.split(*given[:3], given[3:], rate, draw))


@dataclasses.dataclass(frozen=True)
class _Chunks:
    """What attention reads, by heads of all images and by chunks.

    Attributes:
        shape: `(B, A, Q, D/A)` of the queries.
        query: `(B*A, n, R, D/A)`, n chunks of R rows, with rows of zeros at the end if need be.
        key: `(B*A, D/A, T)`.
        value: `(B*A, T, D/A)`.
        bias: `(heads, 1 or n, 1 or R, T)`, or `None`.
        bias_shape: as it was given.
        rate: of the weights that are dropped.
        draw: which of them, if there is a rate.
    """

    shape: tuple
    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor
    bias_shape: tuple
    rate: float
    draw: Any

    @classmethod
    def split(cls, query: Tensor, key: Tensor, value: Tensor, bias: tuple, rate: float, draw: Any) -> "_Chunks":
        """Cuts queries, and what is added to their logits."""
        shape, tokens = ops.shape(query), ops.shape(value)[2]
        num_chunks = -(-shape[2] // (CHUNK_WEIGHTS // tokens + 1))
        rows = -(-shape[2] // num_chunks)
        heads = shape[0] * shape[1]
        key, value = (ops.reshape(x, (heads, *ops.shape(x)[2:])) for x in (key, value))
        chunked, bias_shape = None, ()
        if bias:
            bias_shape = ops.shape(bias[0])
            chunked = (
                _chunk(bias[0], num_chunks, rows) if bias[0].shape[2] != 1 else ops.reshape(bias[0], (-1, 1, 1, tokens))
            )
        return cls(shape, _chunk(query, num_chunks, rows), key, value, chunked, bias_shape, rate, draw)

    @property
    def count(self) -> tuple[Any, Any]:
        """Heads of all images, and chunks of each."""
        return ops.shape(self.query)[0], ops.shape(self.query)[1]

    def bias_index(self, head: Tensor, chunk: Tensor) -> tuple[Tensor, Tensor]:
        """Where in `bias` the logits of a chunk find what is added to them."""
        images, heads = self.bias_shape[:2]
        image, head = head // self.shape[1], head % self.shape[1]
        return image % images * heads + head % heads, chunk % ops.shape(self.bias)[1]

    def weights(self, head: Tensor, chunk: Tensor) -> Tensor:
        """`(R, T)`, of the model's precision."""
        logits = _product(self.query[head, chunk], self.key[head])
        if self.bias is None:
            return tensorflow_cpu.softmax(logits)
        return tensorflow_cpu.softmax(logits, self.bias[self.bias_index(head, chunk)])

    def kept(self, head: Tensor, chunk: Tensor, weights: Tensor) -> Tensor:
        """Booleans of the shape of a chunk's weights: those that are not dropped."""
        part = head % self.shape[1] * self.count[1] + chunk
        return self.draw(head // self.shape[1], part, ops.shape(weights)) >= self.rate

    def merge(self, x: Tensor) -> Tensor:
        """Blocks `(B*A, n, R, E)` as the queries were given, `(B, A, Q, E)`."""
        return _unchunk(x, (*self.shape[:3], ops.shape(x)[-1]))


def _forward(chunks: _Chunks) -> Tensor:
    import tensorflow as tf

    heads, num_chunks = chunks.count
    rate = chunks.rate

    def mixed(head: Tensor, chunk: Tensor) -> Tensor:
        weights = chunks.weights(head, chunk)
        weights = tf.where(chunks.kept(head, chunk, weights), weights, tf.zeros_like(weights)) if rate else weights
        return _product(weights, chunks.value[head])

    def of_head(head: Tensor) -> Tensor:
        return _each(
            lambda chunk: mixed(head, chunk), num_chunks, (*chunks.query.shape[2:3], width), chunks.query.dtype
        )

    width = chunks.value.shape[-1]
    found = chunks.merge(_each(of_head, heads, (*chunks.query.shape[1:3], width), chunks.query.dtype))
    return found * tf.cast(1 / (1 - rate), found.dtype) if rate else found


def _backward(chunks: _Chunks, upstream: Tensor) -> tuple[Tensor, ...]:
    """Gradients of query, key, value, and of what was added."""
    import tensorflow as tf

    (heads, num_chunks), rate, half = chunks.count, chunks.rate, chunks.query.dtype
    wide = keras.backend.result_type(half.name, "float32")
    upstream = upstream * tf.cast(1 / (1 - rate), half) if rate else upstream
    upstream = _chunk(upstream, num_chunks, ops.shape(chunks.query)[2])

    def of_chunk(head: Tensor, chunk: Tensor, dquery: Any, dkey: Tensor, dvalue: Tensor, *dbias: Any) -> tuple:
        weights, dlogits = _slopes(chunks, upstream[head, chunk], head, chunk)
        for array in dbias:
            place = chunks.bias_index(head, chunk)
            place = place[0] * ops.shape(chunks.bias)[1] + place[1]
            more = tf.reduce_sum(dlogits, 0, keepdims=True) if chunks.bias.shape[2] == 1 else dlogits
            dbias = (array.write(place, array.read(place) + more),)
        dlogits = tf.cast(dlogits, half)
        dquery = dquery.write(head * num_chunks + chunk, _product(dlogits, chunks.key[head], transpose_b=True))
        dkey += tf.cast(_product(chunks.query[head, chunk], dlogits, transpose_a=True), wide)
        dvalue += tf.cast(_product(weights, upstream[head, chunk], transpose_a=True), wide)
        return (dquery, dkey, dvalue, *dbias)

    def of_head(head: Tensor, dquery: Any, dkey: Any, dvalue: Any, *dbias: Any) -> tuple:
        sums = (tf.zeros_like(chunks.key[head], wide), tf.zeros_like(chunks.value[head], wide))
        step = lambda chunk, *state: of_chunk(head, chunk, *state)  # noqa: E731
        dquery, key, value, *added = _loop(step, num_chunks, (dquery, *sums, *dbias))
        return (dquery, dkey.write(head, tf.cast(key, half)), dvalue.write(head, tf.cast(value, half)), *added)

    arrays = [(heads * num_chunks, chunks.query), (heads, chunks.key), (heads, chunks.value)]
    state: tuple = tuple(tf.TensorArray(half, size, element_shape=x.shape[-2:]) for size, x in arrays)
    if chunks.bias is not None:
        flat = tf.zeros((tf.reduce_prod(tf.shape(chunks.bias)[:2]), *ops.shape(chunks.bias)[2:]), wide)
        state += (tf.TensorArray(wide, ops.shape(flat)[0], element_shape=flat.shape[1:]).unstack(flat),)
    dquery, *others = (array.stack() for array in _loop(of_head, heads, state))
    dquery = chunks.merge(tf.reshape(dquery, tf.shape(chunks.query)))
    batch = chunks.shape[:2]
    dkey, dvalue = (tf.reshape(x, (*batch, *ops.shape(x)[1:])) for x in others[:2])
    return (dquery, dkey, dvalue, *(tf.cast(_unchunk(x, chunks.bias_shape), chunks.bias.dtype) for x in others[2:]))


def _slopes(chunks: _Chunks, upstream: Tensor, head: Tensor, chunk: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of a chunk as its values met them, and the gradient of its logits in at least float32."""
    import tensorflow as tf

    weights = met = chunks.weights(head, chunk)
    back = _product(upstream, chunks.value[head], transpose_b=True)
    if chunks.rate:
        kept = chunks.kept(head, chunk, weights)
        met, back = (tf.where(kept, x, tf.zeros_like(x)) for x in (weights, back))
    wide = keras.backend.result_type(weights.dtype.name, "float32")
    weights, back = tf.cast(weights, wide), tf.cast(back, wide)
    return met, weights * (back - tf.reduce_sum(weights * back, -1, keepdims=True))


def _product(x: Tensor, y: Tensor, **transposed: bool) -> Tensor:
    """Of two matrices; as a batch of one it takes oneDNN's product, which has AMX."""
    import tensorflow as tf

    return tf.matmul(x[None], y[None], **transposed)[0]


def _chunk(x: Tensor, num_chunks: Any, rows: Any) -> Tensor:
    """`(B, A, Q, E)` as `(B*A, chunks, rows, E)`, with rows of zeros at the end if need be."""
    images, heads, count, width = ops.shape(x)
    x = ops.reshape(x, (images * heads, count, width))
    missing = num_chunks * rows - count
    x = x if isinstance(missing, int) and not missing else ops.pad(x, ((0, 0), (0, missing), (0, 0)))
    return ops.reshape(x, (images * heads, num_chunks, rows, width))


def _unchunk(x: Tensor, shape: tuple) -> Tensor:
    """Blocks as `(B, A, Q, E)`, which `shape` is, without the rows that were missing."""
    images, heads, count, width = shape
    return ops.reshape(ops.reshape(x, (images * heads, -1, width))[:, :count], shape)


def _each(function: Callable[[Tensor], Tensor], count: Any, shape: tuple, dtype: Any) -> Tensor:
    """What a function gives for each number below `count`, one after the other, each of this shape."""
    import tensorflow as tf

    spec = tf.TensorSpec(shape, dtype)
    return tf.map_fn(function, tf.range(count), fn_output_signature=spec, parallel_iterations=1)


def _loop(step: Callable[..., tuple], count: Any, state: tuple) -> tuple:
    """The state after steps that take a number below `count` and the state, one after the other."""
    import tensorflow as tf

    return tf.while_loop(
        lambda number, *_: number < count,
        lambda number, *state: (number + 1, *step(number, *state)),
        (tf.constant(0), *state),
        parallel_iterations=1,
        maximum_iterations=count,
    )[1:]
