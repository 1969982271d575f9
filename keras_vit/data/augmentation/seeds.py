"""Draws that depend on a seed and on nothing else: no generator, no state, no order of execution."""

from keras_vit.annotations import Tensor


def named_seed(seed: Tensor, place: int) -> Tensor:
    """The seed of one draw among the many of one image or batch.

    Args:
        seed: `(2,)` integer tensor.
        place: int, another one for every draw from the same `seed`.
    """
    import tensorflow as tf

    return tf.random.fold_in(tf.convert_to_tensor(seed), place)


def uniform(seed: Tensor, place: int, low: float = 0.0, high: float = 1.0, shape: Tensor = ()) -> Tensor:
    """float32 evenly from [low, high)."""
    import tensorflow as tf

    return tf.random.stateless_uniform(shape, named_seed(seed, place), low, high)


def integer(seed: Tensor, place: int, limit: Tensor) -> Tensor:
    """int32 evenly from 0 to `limit` - 1; `limit` may be a tensor."""
    import tensorflow as tf

    return tf.random.stateless_uniform((), named_seed(seed, place), 0, limit, tf.int32)


def coin(seed: Tensor, place: int, probability: float = 0.5) -> Tensor:
    """bool, true with that probability."""
    return uniform(seed, place) < probability


def sign(seed: Tensor, place: int) -> Tensor:
    """-1.0 or 1.0."""
    import tensorflow as tf

    return tf.where(coin(seed, place), 1.0, -1.0)
