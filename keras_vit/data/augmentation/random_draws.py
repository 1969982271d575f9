"""Random draws that depend on a seed alone, without a generator, state or order of execution."""

from keras_vit.annotations import Tensor


def fold_seed(seed: Tensor, place: Tensor) -> Tensor:
    """The seed `(2,)` of one of the draws for an image or batch; `place` differs for every draw from the same seed."""
    import tensorflow as tf

    return tf.random.fold_in(tf.convert_to_tensor(seed), place)


def uniform(seed: Tensor, place: int, low: float = 0.0, high: float = 1.0, shape: Tensor = ()) -> Tensor:
    """A float32 draw, uniform in [low, high)."""
    import tensorflow as tf

    return tf.random.stateless_uniform(shape, fold_seed(seed, place), low, high)


def integer(seed: Tensor, place: int, limit: Tensor) -> Tensor:
    """An int32 draw, uniform in [0, limit); `limit` may be a tensor."""
    import tensorflow as tf

    return tf.random.stateless_uniform((), fold_seed(seed, place), 0, limit, tf.int32)


def coin(seed: Tensor, place: int, probability: Tensor = 0.5) -> Tensor:
    """A boolean draw that is true with this probability."""
    return uniform(seed, place) < probability


def sign(seed: Tensor, place: int) -> Tensor:
    """A draw of -1.0 or 1.0 with equal probability."""
    import tensorflow as tf

    return tf.where(coin(seed, place), 1.0, -1.0)
