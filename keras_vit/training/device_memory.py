"""Free memory of what trains: the accelerator's if there is one, else the machine's or the container's."""

from pathlib import Path

import keras
import psutil

from keras_vit.annotations import FilePath

_CONTAINER_V2 = ("memory.max", "memory.current", "inactive_file")
_CONTAINER_V1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file")


def available_memory() -> int | None:
    """Measures how many bytes of memory are free.

    With an accelerator (JAX, TensorFlow or torch sees it), what is free of the first one's memory. Else the
    smaller of what the system calls available and what the container's limit leaves; pages of files that can be
    dropped count as free.

    Example:
        >>> keras_vit.available_memory() > 0
        True

    Returns:
        Bytes, or `None` where the system does not tell, as Linux without `/proc`.
    """
    found = _accelerator_memory()
    if found is not None:
        return found
    known = [value for value in (_system_memory(), container_memory()) if value is not None]
    return min(known, default=None)


def _accelerator_memory() -> int | None:
    probe = {"jax": _jax_memory, "tensorflow": _tensorflow_memory, "torch": _torch_memory}.get(keras.backend.backend())
    return None if probe is None else probe()


def _jax_memory() -> int | None:
    import jax

    stats = jax.local_devices()[0].memory_stats()  # None on a CPU
    return stats["bytes_limit"] - stats["bytes_in_use"] if stats else None


def _tensorflow_memory() -> int | None:
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return None
    with tf.compat.v1.Session() as session:  # which alone tells how much TensorFlow may take
        devices = session.list_devices()
    limit = next(device.memory_limit_bytes for device in devices if device.device_type == "GPU")
    return limit - tf.config.experimental.get_memory_info("GPU:0")["current"]


def _torch_memory() -> int | None:
    import torch

    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None


def _system_memory() -> int | None:
    try:
        return psutil.virtual_memory().available
    except OSError:
        return None


def container_memory(root: FilePath = "/sys/fs/cgroup") -> int | None:
    """Bytes that the limit of the container (cgroup, version 2 or 1) leaves, or `None` without a limit.

    `psutil` tells of the machine alone.
    """
    for limit_file, usage_file, droppable in (_CONTAINER_V2, _CONTAINER_V1):
        limit, usage = _number(Path(root) / limit_file), _number(Path(root) / usage_file)
        if limit is None or usage is None:
            continue
        folder = Path(root) / ("memory" if droppable.startswith("total") else "")
        return max(limit - usage + (_field(folder / "memory.stat", droppable) or 0), 0)
    return None


def _number(path: Path) -> int | None:
    """The number in a file, or `None` for another word, as "max", or no file."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _field(path: Path, name: str) -> int | None:
    """The number behind `name` in a file of lines "name number"."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), None)
