"""Attention over many tokens that never holds all its weights: those of one head and a block of queries at a time.

For TensorFlow on a processor, which has no kernel of its own for that. A block's weights stay in the cache. The way
back computes each block once more, so that training keeps none. Products are of the model's precision, the softmax and
what is summed over blocks of at least float32. What is added to logits, as a bias, is whole.

Source: arXiv:2112.05682, without its blocks of keys.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.kernels import jax_gpu as fused

FROM = 2**18  # weights of a head above which blocks are no slower; 384 pixels in patches of 16 have 333,000
NUMBERS = 2**20  # weights of a block, about; from a half to twice of it takes as long on a core with 1 MB of cache
_allowed: contextvars.ContextVar[bool] = contextvars.ContextVar("allowed", default=True)

Draw = Callable[[Tensor, Tensor, tuple], Tensor]  # numbers in [0, 1) of an image, a part of it, and a shape


@contextlib.contextmanager
def without_blocks() -> Iterator[None]:
    """Inside, attention is traced as plain products, which the runtimes of exported files recognise and join."""
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)


def applies(queries: Any, tokens: Any) -> Any:
    """Whether weights are so many that blocks are of use, a boolean tensor where only the graph knows their number.

    Args:
        queries: Q, an int or a scalar.
        tokens: T, likewise.
    """
    if keras.backend.backend() != "tensorflow" or not _allowed.get():
        return False
    import tensorflow as tf

    if any(device.device_type != "CPU" for device in tf.config.get_visible_devices()):
        return False
    return queries * tokens > FROM


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    added: Tensor = None,
    rate: float = 0.0,
    draw: Draw | None = None,
    training: bool | None = None,
) -> Tensor:
    """`dropout(softmax(query @ key + added)) @ value`.

    Args:
        query: `(B, A, Q, D/A)`, scaled.
        key: `(B, A, D/A, T)`.
        value: `(B, A, T, D/A)`.
        added: `(1 or B, 1 or A, 1 or Q, T)`, to the logits.
        rate: of the weights that are dropped.
        draw: which of them, if there is a rate; asked again on the way back.
        training: whether the way back computes blocks again. A plain gradient keeps the weights of all.

    Returns:
        `(B, A, Q, D/A)`.
    """
    import tensorflow as tf

    dropped = _Dropped(rate, draw)

    @tf.custom_gradient
    def attend(query: Tensor, key: Tensor, value: Tensor, *added: Tensor) -> Any:
        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            with tf.control_dependencies([upstream]):  # else a part would run on the way forth, and be kept
                late = tf.identity(query)
            return _backward(_Blocks.of(late, key, value, added, dropped), upstream)

        return _forward(_Blocks.of(query, key, value, added, dropped)), gradient

    given = (query, key, value) if added is None else (query, key, value, added)
    return attend(*given) if training else _forward(_Blocks.of(*given[:3], given[3:], dropped))


@dataclasses.dataclass(frozen=True)
class _Dropped:
    """Which weights are dropped: as many of all as `rate` says, by the numbers that `draw` gives."""

    rate: float
    draw: Any

    def kept(self, image: Tensor, part: Tensor, weights: Tensor) -> Tensor:
        """Booleans of the shape of a block's weights."""
        return self.draw(image, part, ops.shape(weights)) >= self.rate


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """What attention reads, by heads of all images and by blocks.

    Attributes:
        shape: `(B, A, Q, D/A)` of the queries.
        query: `(B*A, n, R, D/A)`, n blocks of R rows, with rows of zeros at the end if need be.
        key: `(B*A, D/A, T)`.
        value: `(B*A, T, D/A)`.
        added: `(heads, 1 or n, 1 or R, T)`, or `None`.
        added_shape: as it was given.
        dropped: which weights are dropped.
    """

    shape: tuple
    query: Tensor
    key: Tensor
    value: Tensor
    added: Tensor
    added_shape: tuple
    dropped: _Dropped

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, added: tuple, dropped: _Dropped) -> "_Blocks":
        """Cuts queries, and what is added to their logits."""
        shape, tokens = ops.shape(query), ops.shape(value)[2]
        blocks = -(-shape[2] // (NUMBERS // tokens + 1))
        rows = -(-shape[2] // blocks)
        heads = shape[0] * shape[1]
        key, value = (ops.reshape(x, (heads, *ops.shape(x)[2:])) for x in (key, value))
        cut, added_shape = None, ()
        if added:
            added_shape = ops.shape(added[0])
            cut = _cut(added[0], blocks, rows) if added[0].shape[2] != 1 else ops.reshape(added[0], (-1, 1, 1, tokens))
        return cls(shape, _cut(query, blocks, rows), key, value, cut, added_shape, dropped)

    @property
    def count(self) -> tuple[Any, Any]:
        """Heads of all images, and blocks of each."""
        return ops.shape(self.query)[0], ops.shape(self.query)[1]

    def place(self, head: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        """Where in `added` the logits of a block find what is added to them."""
        images, heads = self.added_shape[:2]
        image, head = head // self.shape[1], head % self.shape[1]
        return image % images * heads + head % heads, block % ops.shape(self.added)[1]

    def weights(self, head: Tensor, block: Tensor) -> Tensor:
        """`(R, T)`, of the model's precision."""
        logits = _product(self.query[head, block], self.key[head])
        if self.added is None:
            return fused.softmax(logits)
        return fused.softmax(logits, self.added[self.place(head, block)])

    def kept(self, head: Tensor, block: Tensor, weights: Tensor) -> Tensor:
        """Booleans of the shape of a block's weights: those that are not dropped."""
        part = head % self.shape[1] * self.count[1] + block
        return self.dropped.kept(head // self.shape[1], part, weights)

    def whole(self, x: Tensor) -> Tensor:
        """Blocks `(B*A, n, R, E)` as the queries were given, `(B, A, Q, E)`."""
        return _uncut(x, (*self.shape[:3], ops.shape(x)[-1]))


def _forward(cut: _Blocks) -> Tensor:
    import tensorflow as tf

    heads, blocks = cut.count
    rate = cut.dropped.rate

    def mixed(head: Tensor, block: Tensor) -> Tensor:
        weights = cut.weights(head, block)
        weights = tf.where(cut.kept(head, block, weights), weights, tf.zeros_like(weights)) if rate else weights
        return _product(weights, cut.value[head])

    def of_head(head: Tensor) -> Tensor:
        return _each(lambda block: mixed(head, block), blocks, (*cut.query.shape[2:3], width), cut.query.dtype)

    width = cut.value.shape[-1]
    found = cut.whole(_each(of_head, heads, (*cut.query.shape[1:3], width), cut.query.dtype))
    return found * tf.cast(1 / (1 - rate), found.dtype) if rate else found


def _backward(cut: _Blocks, upstream: Tensor) -> tuple[Tensor, ...]:
    """Gradients of query, key, value, and of what was added."""
    import tensorflow as tf

    (heads, blocks), rate, half = cut.count, cut.dropped.rate, cut.query.dtype
    wide = keras.backend.result_type(half.name, "float32")
    upstream = upstream * tf.cast(1 / (1 - rate), half) if rate else upstream
    upstream = _cut(upstream, blocks, ops.shape(cut.query)[2])

    def of_block(head: Tensor, block: Tensor, dquery: Any, dkey: Tensor, dvalue: Tensor, *dadded: Any) -> tuple:
        weights, dlogits = _slopes(cut, upstream[head, block], head, block)
        for array in dadded:
            place = cut.place(head, block)
            place = place[0] * ops.shape(cut.added)[1] + place[1]
            more = tf.reduce_sum(dlogits, 0, keepdims=True) if cut.added.shape[2] == 1 else dlogits
            dadded = (array.write(place, array.read(place) + more),)
        dlogits = tf.cast(dlogits, half)
        dquery = dquery.write(head * blocks + block, _product(dlogits, cut.key[head], transpose_b=True))
        dkey += tf.cast(_product(cut.query[head, block], dlogits, transpose_a=True), wide)
        dvalue += tf.cast(_product(weights, upstream[head, block], transpose_a=True), wide)
        return (dquery, dkey, dvalue, *dadded)

    def of_head(head: Tensor, dquery: Any, dkey: Any, dvalue: Any, *dadded: Any) -> tuple:
        sums = (tf.zeros_like(cut.key[head], wide), tf.zeros_like(cut.value[head], wide))
        step = lambda block, *state: of_block(head, block, *state)  # noqa: E731
        dquery, key, value, *added = _loop(step, blocks, (dquery, *sums, *dadded))
        return (dquery, dkey.write(head, tf.cast(key, half)), dvalue.write(head, tf.cast(value, half)), *added)

    arrays = [(heads * blocks, cut.query), (heads, cut.key), (heads, cut.value)]
    state: tuple = tuple(tf.TensorArray(half, size, element_shape=x.shape[-2:]) for size, x in arrays)
    if cut.added is not None:
        flat = tf.zeros((tf.reduce_prod(tf.shape(cut.added)[:2]), *ops.shape(cut.added)[2:]), wide)
        state += (tf.TensorArray(wide, ops.shape(flat)[0], element_shape=flat.shape[1:]).unstack(flat),)
    dquery, *others = (array.stack() for array in _loop(of_head, heads, state))
    dquery = cut.whole(tf.reshape(dquery, tf.shape(cut.query)))
    batch = cut.shape[:2]
    dkey, dvalue = (tf.reshape(x, (*batch, *ops.shape(x)[1:])) for x in others[:2])
    return (dquery, dkey, dvalue, *(tf.cast(_uncut(x, cut.added_shape), cut.added.dtype) for x in others[2:]))


def _slopes(cut: _Blocks, upstream: Tensor, head: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of a block as its values met them, and the gradient of its logits in at least float32."""
    import tensorflow as tf

    weights = met = cut.weights(head, block)
    back = _product(upstream, cut.value[head], transpose_b=True)
    if cut.dropped.rate:
        kept = cut.kept(head, block, weights)
        met, back = (tf.where(kept, x, tf.zeros_like(x)) for x in (weights, back))
    wide = keras.backend.result_type(weights.dtype.name, "float32")
    weights, back = tf.cast(weights, wide), tf.cast(back, wide)
    return met, weights * (back - tf.reduce_sum(weights * back, -1, keepdims=True))


def _product(x: Tensor, y: Tensor, **transposed: bool) -> Tensor:
    """Of two matrices; as a batch of one it takes oneDNN's product, which has AMX."""
    import tensorflow as tf

    return tf.matmul(x[None], y[None], **transposed)[0]


def _cut(x: Tensor, blocks: Any, rows: Any) -> Tensor:
    """`(B, A, Q, E)` as `(B*A, blocks, rows, E)`, with rows of zeros at the end if need be."""
    images, heads, count, width = ops.shape(x)
    x = ops.reshape(x, (images * heads, count, width))
    missing = blocks * rows - count
    x = x if isinstance(missing, int) and not missing else ops.pad(x, ((0, 0), (0, missing), (0, 0)))
    return ops.reshape(x, (images * heads, blocks, rows, width))


def _uncut(x: Tensor, shape: tuple) -> Tensor:
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
