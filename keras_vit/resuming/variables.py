"""The variables of a model and its optimizer: to the host as pieces, and back, however they lie on devices.

A variable is known by its place in the list, since Keras' paths depend on what else was built in a process. Shapes and
types must be equal, so nothing is skipped or put elsewhere.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import Variable
from keras_vit.resuming.folder import Checkpoint
from keras_vit.resuming.pieces import Piece

METRICS = "metrics"  # the group whose values are sums
_MOST_SHOWN = 8  # differences in an error


def pieces_of(group: str, variables: Sequence[Variable]) -> Iterator[Piece]:
    """The values that this process owns as they are at this call, which later steps do not change.

    They are taken at once; the pieces are made of them as they are asked for, which another thread may do.

    Args:
        group: what these variables are, as `"model"`.
        variables: in an order that another process has too.
    """
    numbered = [(_name(group, number), variable) for number, variable in enumerate(variables)]
    if keras.backend.backend() == "jax":
        return iter([piece for name, variable in numbered for piece in _shards(name, variable)])
    held = _held_tensors(variables) if keras.backend.backend() == "tensorflow" else map(_copy, variables)
    return (piece for (name, _), values in zip(numbered, list(held), strict=True) for piece in _pieces(name, values))


def check_fits(checkpoint: Checkpoint, group: str, variables: Sequence[Variable]) -> None:
    """Raises a `ValueError` with the differences unless the checkpoint has just these variables."""
    saved = sorted({name.partition("#")[0] for name in checkpoint.variables if name.startswith(f"{group}/")})
    faults = []
    if len(saved) != len(variables):
        faults.append(f"{len(saved)} variables of the {group} in the file, {len(variables)} to be restored")
    for name, variable in zip(saved, variables, strict=False):
        shape, dtype = _shape(checkpoint, name)
        if (shape, dtype) != (tuple(variable.shape), keras.backend.standardize_dtype(variable.dtype)):
            faults.append(f"{variable.path}: {dtype} {shape} in the file, {variable.dtype} {tuple(variable.shape)}")
    if faults:
        more = f"\n  and {len(faults) - _MOST_SHOWN} more" if len(faults) > _MOST_SHOWN else ""
        raise ValueError(
            "a checkpoint must fit the model and optimizer that go on from it.\n"
            f"Received: {checkpoint.path}:\n  " + "\n  ".join(faults[:_MOST_SHOWN]) + more
        )


def restore(checkpoint: Checkpoint, group: str, variables: Sequence[Variable]) -> None:
    """Gives variables the values of a checkpoint, each device what it holds.

    Raises:
        ValueError: as `check_fits`.
    """
    check_fits(checkpoint, group, variables)
    for number, variable in enumerate(variables):
        _assign(checkpoint, _name(group, number), variable)


def not_finite(pieces: Iterable[Piece]) -> str | None:
    """Name of a variable that has a value which is not finite, or `None`."""
    for piece in pieces:
        numbers = piece.array
        if numbers.dtype.kind in "iub" or not numbers.size:
            continue
        with np.errstate(invalid="ignore", over="ignore"):  # which is what is asked
            # The sum of finite float32 in double precision is finite, and is one pass without an array of answers.
            total = numbers.sum(dtype="float64") if numbers.dtype.kind == "f" else numbers.astype("float32").sum()
        if not np.isfinite(total) and not np.isfinite(numbers).all():
            return piece.name
    return None


def _name(group, number):
    return f"{group}/{number:05d}"


def _shape(checkpoint, name):
    pieces = checkpoint.variables.get(name) or checkpoint.variables[f"{name}#0"]
    shape = np.max([np.add(piece["start"], piece["shape"]) for piece in pieces], axis=0)
    return tuple(np.asarray(shape, int).tolist()), pieces[0]["dtype"]


def _shards(name, variable):
    """Copies of JAX's arrays, which the next step takes away."""
    shards = [shard for shard in variable.value.addressable_shards if shard.replica_id == 0]
    return [Piece(name, tuple(part.start or 0 for part in s.index), np.array(s.data, copy=True)) for s in shards]


def _held_tensors(variables):
    """Of each device. TensorFlow copies what a variable holds before it changes that, if somebody else holds it."""
    import tensorflow as tf

    # The operation itself: `read_value` is it in a scope of names, and takes longer.
    read, several = tf.raw_ops.ReadVariableOp, tf.distribute.DistributedValues

    def hold(variable):
        value = read(resource=variable.handle, dtype=variable.dtype)
        return value if "CPU" in value.device else value.numpy()  # not twice in the memory of a GPU

    values = [variable.value for variable in variables]
    return [list(map(hold, _replicas(value) if isinstance(value, several) else [value])) for value in values]


def _pieces(name, values):
    copies = [_array(value) for value in values]
    if all(_same(copies[0], other) for other in copies[1:]):
        copies = copies[:1]
    names = [name] if len(copies) == 1 else [f"{name}#{number}" for number in range(len(copies))]
    return [Piece(each, (0,) * copy.ndim, copy) for each, copy in zip(names, copies, strict=True)]


def _array(value):
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.asarray(memoryview(value))
    except ValueError:  # of a type without buffers, as bfloat16
        return value.numpy()


def _copy(variable):
    return [np.array(keras.ops.convert_to_numpy(variable), copy=True)]


def _replicas(value) -> Sequence[Any]:
    """The variables of all devices behind one of TensorFlow's strategies, also out of its scope; else itself."""
    import tensorflow as tf

    if not isinstance(value, tf.distribute.DistributedValues):
        return [value]
    return value.distribute_strategy.experimental_local_results(value)


def _same(one, other):
    return one.tobytes() == other.tobytes()  # also of values that are not numbers


def _assign(checkpoint, name, variable):
    if keras.backend.backend() == "jax":
        variable.assign(_sharded(checkpoint, name, variable.value))
        return
    replicas = _replicas(variable.value) if keras.backend.backend() == "tensorflow" else [variable]
    if name in checkpoint.variables:
        values = [checkpoint.read(name)] * len(replicas)
    else:
        values = _shared(checkpoint, name, len(replicas))
    for replica, value in zip(replicas, values, strict=True):
        replica.assign(value)


def _shared(checkpoint, name, count):
    """What differs between devices: each gets its own again. Of another number all get the first; but of metrics, of
    whose sums each device has a part, the first gets the sum.
    """
    names = [f"{name}#{number}" for number in range(len(checkpoint.variables))]
    saved = [checkpoint.read(each) for each in names if each in checkpoint.variables]
    if len(saved) == count:
        return saved
    if not name.startswith(f"{METRICS}/"):
        return saved[:1] * count
    return [np.sum(saved, axis=0, dtype=saved[0].dtype), *[np.zeros_like(saved[0])] * (count - 1)]


def _sharded(checkpoint, name, value):
    """An array of JAX that lies on devices as `value` does; each process reads what its devices hold."""
    import jax

    kept: dict[tuple, np.ndarray] = {}

    def part(index):
        key = tuple((piece.start, piece.stop) for piece in index)
        if key not in kept:
            kept[key] = checkpoint.read(name, index)
        return kept[key]

    return jax.make_array_from_callback(value.shape, value.sharding, part)
