"""The part of every global batch that this host reads."""

import dataclasses
import math
import sys
from typing import Any

from keras_vit.checks import ArgumentError, check_int


@dataclasses.dataclass(frozen=True)
class HostShard:
    """The block of every global batch that one host reads; blocks keep the order of examples.

    Args:
        host: in [0, hosts).
        hosts: number of hosts that share each batch.
        batch_size: size of the global batch, a multiple of `hosts`.
    """

    host: int
    hosts: int
    batch_size: int

    def number(self, counter: Any) -> Any:
        """The number among all examples of this host's example number `counter`."""
        share = self.batch_size // self.hosts
        return counter // share * self.batch_size + self.host * share + counter % share

    def has(self, number: Any) -> Any:
        """Whether this host reads example `number` of all."""
        return number % self.batch_size // (self.batch_size // self.hosts) == self.host

    def count(self, size: int) -> int:
        """Number of the first `size` examples that this host reads."""
        share = self.batch_size // self.hosts
        rest = size % self.batch_size - self.host * share
        return size // self.batch_size * share + min(max(rest, 0), share)


def find_shard(shard: tuple[int, int] | None) -> tuple[int, int]:
    """`(index, count)` of this host among all that train together.

    Args:
        shard: given by the caller, or `None` to ask `tf.distribute` (a strategy over several workers) or, on the JAX
            backend, JAX itself.

    Raises:
        ValueError: for an index outside [0, count), or if Keras would shard the data a second time.
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
        return _jax_shard()
    return _worker_shard() if keras.backend.backend() == "tensorflow" else (0, 1)


def host_batch_size(batch_size: int, count: int) -> int:
    """Examples of a global batch that each host reads.

    Raises:
        ValueError: for a batch that hosts, or the replicas of a strategy in scope, cannot share evenly.
    """
    parts = max(_replicas(), count)
    if batch_size % count or batch_size % parts:
        raise ArgumentError(
            "`batch_size` is that of all devices together, and each must get the same number of images.\n"
            f"Received: batch_size={batch_size} for {count} host(s) and {parts} device(s). "
            f"Nearest: {max(batch_size // parts, 1) * parts}.",
            parameters=("batch_size",),
        )
    return batch_size // count


def _jax_shard() -> tuple[int, int]:
    import jax
    import keras

    count = jax.process_count()
    distribution = keras.distribution.distribution()
    if count > 1 and getattr(distribution, "auto_shard_dataset", False):
        raise ValueError(
            "each process reads its own part already, which Keras would shard again.\n"
            f"Received: {type(distribution).__name__} with auto_shard_dataset=True. Make it with False."
        )
    if count == 1 or distribution is None:
        return jax.process_index(), count
    return _mesh_shard(distribution, count)


def _mesh_shard(distribution: Any, count: int) -> tuple[int, int]:
    """Processes that hold parts of the same copy of the model read the same images."""
    copies = distribution.num_model_replicas
    if max(copies, count) % min(copies, count):
        raise ValueError(
            "the processes must share the copies of the model evenly, or a copy its processes.\n"
            f"Received: {copies} along the first axis of the mesh, {count} processes."
        )
    return distribution.data_shard_id, min(copies, count)


def _worker_shard() -> tuple[int, int]:
    resolver = getattr(_strategy(), "cluster_resolver", None)
    if resolver is None or not resolver.cluster_spec().as_dict():
        return 0, 1
    workers = resolver.cluster_spec().as_dict()
    # A chief counts as the first worker.
    chiefs = len(workers.get("chief", ()))
    index = resolver.task_id + (chiefs if resolver.task_type == "worker" else 0)
    return index, chiefs + len(workers.get("worker", ()))


def _replicas() -> int:
    """Replicas of the strategy in scope, which needs TensorFlow to be imported already; otherwise 1."""
    return _strategy().num_replicas_in_sync if "tensorflow" in sys.modules else 1


def _strategy() -> Any:
    import tensorflow as tf

    return tf.distribute.get_strategy()
