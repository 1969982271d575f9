"""Which part of every global batch this host reads."""

import math
import sys

from keras_vit.checks import check_int


def find_shard(shard):
    """`(index, count)` of this host among all that train together.

    Args:
        shard: given by the caller, or `None` to ask `tf.distribute` (a strategy over several workers) or, on the JAX
            backend, JAX itself.

    Raises:
        ValueError: for an index outside [0, count), or where Keras would shard what is sharded already.
        TypeError: for anything but two ints.
    """
    if shard is not None:
        if not isinstance(shard, (tuple, list)) or len(shard) != 2:
            raise TypeError(
                f"`shard` must be two ints, (index, count) with 0 <= index < count.\nReceived: shard={shard!r}."
            )
        index, count = (check_int("shard", part, -math.inf) for part in shard)
        if not 0 <= index < count:
            raise ValueError(f"`shard` must be (index, count) with 0 <= index < count.\nReceived: shard={shard}.")
        return index, count
    import keras

    if keras.backend.backend() == "jax":
        return _of_jax()
    return _of_workers() if keras.backend.backend() == "tensorflow" else (0, 1)


def per_host(batch_size: int, count: int) -> int:
    """Examples of a global batch that each host reads.

    Raises:
        ValueError: for a batch that hosts, or the replicas of a strategy in scope, cannot share evenly.
    """
    parts = max(_replicas(), count)
    if batch_size % count or batch_size % parts:
        raise ValueError(
            "`batch_size` is that of all devices together, and each must get the same number of images.\n"
            f"Received: batch_size={batch_size} for {count} host(s) and {parts} device(s). "
            f"Nearest: {max(batch_size // parts, 1) * parts}."
        )
    return batch_size // count


def _of_jax():
    import jax
    import keras

    count = jax.process_count()
    distribution = keras.distribution.distribution()
    if count > 1 and getattr(distribution, "auto_shard_dataset", False):
        raise ValueError(
            "each process reads its own part already, which Keras would shard again.\n"
            f"Received: {type(distribution).__name__} with auto_shard_dataset=True. Make it with False."
        )
    return jax.process_index(), count


def _of_workers():
    resolver = getattr(_strategy(), "cluster_resolver", None)
    if resolver is None or not resolver.cluster_spec().as_dict():
        return 0, 1
    workers = resolver.cluster_spec().as_dict()
    chiefs = len(workers.get("chief", ()))
    index = resolver.task_id + (chiefs if resolver.task_type == "worker" else 0)
    return index, chiefs + len(workers.get("worker", ()))


def _replicas():
    return _strategy().num_replicas_in_sync if "tensorflow" in sys.modules else 1


def _strategy():
    import tensorflow as tf

    return tf.distribute.get_strategy()
