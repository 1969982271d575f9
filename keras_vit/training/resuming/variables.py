"""The variables of a model and its optimizer: to the host as shards and back, however they are sharded.

A variable is known by its place in the list, since Keras' paths depend on what else was built in a process. Shapes and
types must be equal, so nothing is skipped or put elsewhere.
"""

import collections
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import Variable
from keras_vit.training.resuming.checkpoint_folder import Checkpoint
from keras_vit.training.resuming.tensor_file import Shard

METRICS = "metrics"  # the group whose values are sums
_MOST_SHOWN = 8  # differences in an error


class StateReader:
    """Takes the values of variables as they are at one moment, which later steps do not change.

    On the host they are views: TensorFlow and JAX write elsewhere while a buffer is held. Where the
    variables of a group lie is looked up once, as that takes a third of the time.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Sequence[Variable], Any]] = {}

    def shards_of(self, group: str, variables: Sequence[Variable]) -> Iterator[Shard]:
        """What this process owns of them, taken at this call; the shards are made as they are needed.

        Args:
            group: what these variables are, as `"model"`.
            variables: in an order that another process has too.
        """
        if keras.backend.backend() == "jax":
            return _shards_of_jax(group, [_jax_shards(variable) for variable in variables])
        if keras.backend.backend() != "tensorflow":
            return _host_shards(group, [[np.array(keras.ops.convert_to_numpy(each), copy=True)] for each in variables])
        known, read = self._known.get(group, ((), None))
        if read is None or len(known) != len(variables) or not all(map(operator.is_, known, variables)):
            self._known[group] = variables, (read := _reading(variables))
        return _host_shards(group, read())


def variable_names(checkpoint: Checkpoint, group: str) -> list[str]:
    """Names of a group's variables in a checkpoint, in their order."""
    return sorted({name.partition("#")[0] for name in checkpoint.variables if name.startswith(f"{group}/")})


def check_fits(checkpoint: Checkpoint, group: str, variables: Sequence[Variable]) -> None:
    """Raises a `ValueError` with the differences unless the checkpoint has just these variables."""
    saved = variable_names(checkpoint, group)
    shapes = [_shape(checkpoint, name) for name in saved]
    wanted = [(tuple(each.shape), keras.backend.standardize_dtype(each.dtype)) for each in variables]
    if shapes == wanted:
        return
    paths = list(map(variable_path, variables))
    before = checkpoint.facts.get("paths", {}).get(group, saved)
    if len(shapes) == len(wanted):
        rows = zip(paths, shapes, wanted, strict=True)
        faults = [f"{path}: {_described(was)} in the file, {_described(now)}" for path, was, now in rows if was != now]
    else:
        faults = [f"{len(saved)} variables of the {group} in the file, {len(variables)} to be restored"]
        faults += [f"in the file alone: {each}" for each in _missing(before, shapes, wanted)]
        faults += [f"not in the file: {each}" for each in _missing(paths, wanted, shapes)]
    more = f"\n  and {len(faults) - _MOST_SHOWN} more" if len(faults) > _MOST_SHOWN else ""
    raise ValueError(
        "a checkpoint must fit the model and optimizer that go on from it.\n"
        f"Received: {checkpoint.path}:\n  " + "\n  ".join(faults[:_MOST_SHOWN]) + more + "\n"
        "Make model, metrics and optimizers as the run did that wrote it, and build them before `fit`; or pass another "
        "folder to begin anew."
    )


def restore(checkpoint: Checkpoint, group: str, variables: Sequence[Variable]) -> None:
    """Gives variables the values of a checkpoint, each device what it holds.

    Raises:
        ValueError: as `check_fits`.
    """
    check_fits(checkpoint, group, variables)
    for number, variable in enumerate(variables):
        _assign(checkpoint, _name(group, number), variable)


def not_finite(shards: Iterable[Shard]) -> str | None:
    """Name of a variable that has a value which is not finite, or `None`."""
    for shard in shards:
        numbers = shard.array
        if numbers.dtype.kind in "iub" or not numbers.size:
            continue
        with np.errstate(invalid="ignore", over="ignore"):  # which is checked
            # The sum of finite float32 in double precision is finite, and is one pass without an array of answers.
            total = numbers.sum(dtype="float64") if numbers.dtype.kind == "f" else numbers.astype("float32").sum()
        if not np.isfinite(total) and not np.isfinite(numbers).all():
            return shard.name
    return None


def variable_path(variable: Variable) -> str:
    """What a variable is called, one of TensorFlow too."""
    return getattr(variable, "path", None) or variable.name


def _missing(paths: Sequence[str], shapes: Sequence[tuple], others: Sequence[tuple]) -> list[str]:
    """Words on the variables of one side that have no fellow of their shape and type on the other."""
    left = collections.Counter(others)
    left.subtract(shapes)
    found = []
    for path, shape in reversed(list(zip(paths, shapes, strict=True))):  # what was added comes last
        if left[shape] < 0:
            left[shape] += 1
            found.append(f"{path} {_described(shape)}")
    return found[::-1]


def _described(shape_and_type: tuple) -> str:
    shape, dtype = shape_and_type
    return f"{dtype} {shape}"


def _name(group: str, number: int) -> str:
    return f"{group}/{number:05d}"


def _shape(checkpoint: Checkpoint, name: str) -> tuple[tuple[int, ...], str]:
    shards = checkpoint.variables.get(name) or checkpoint.variables[f"{name}#0"]
    shape = np.max([np.add(shard["start"], shard["shape"]) for shard in shards], axis=0)
    return tuple(np.asarray(shape, int).tolist()), shards[0]["dtype"]


def _jax_shards(variable: Variable) -> list:
    """What this process owns of an array of JAX, on its way to the host."""
    shards = [shard for shard in variable.value.addressable_shards if shard.replica_id == 0]
    for shard in shards:
        shard.data.copy_to_host_async()
    return shards


def _shards_of_jax(group: str, shards: Sequence[list]) -> Iterator[Shard]:
    held = [[(tuple(part.start or 0 for part in s.index), np.asarray(s.data)) for s in each] for each in shards]
    return (Shard(_name(group, n), *part) for n, parts in enumerate(held) for part in parts)


def _reading(variables: Sequence[Variable]) -> Callable[[], Iterator[list]]:
    """A function that gives the tensors of each variable, one for each device."""
    import tensorflow as tf

    # The operation itself: `read_value` is it in a scope of names, and takes longer.
    places = [[(each.handle, each.dtype) for each in _replicas(variable)] for variable in variables]
    reads = [
        functools.partial(tf.raw_ops.ReadVariableOp, resource=handle, dtype=dtype)
        for handle, dtype in itertools.chain.from_iterable(places)
    ]
    is_host = all(device.device_type == "CPU" for device in tf.config.list_logical_devices())

    def read() -> Iterator[list]:
        # What a GPU holds is not kept there twice.
        held = iter([take() for take in reads] if is_host else [_on_the_host(take()) for take in reads])
        return (list(itertools.islice(held, len(each))) for each in places)

    return read


def _on_the_host(value: Any) -> Any:
    return value if "CPU" in value.device else value.numpy()


def _host_shards(group: str, held: Iterable[Sequence[Any]]) -> Iterator[Shard]:
    """Shards of the values that each device holds of each variable; equal values once."""
    for number, values in enumerate(held):
        copies = [_array(value) for value in values]
        if all(_same(copies[0], other) for other in copies[1:]):
            copies = copies[:1]
        name = _name(group, number)
        names = [name] if len(copies) == 1 else [f"{name}#{place}" for place in range(len(copies))]
        yield from (Shard(each, (0,) * copy.ndim, copy) for each, copy in zip(names, copies, strict=True))


def _array(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.asarray(memoryview(value))
    except ValueError:  # of a type without buffers, as bfloat16
        return value.numpy()


def _replicas(variable: Any) -> Sequence[Any]:
    """TensorFlow's own variable inside one of Keras, or those of all devices of a strategy, also out of its scope."""
    import tensorflow as tf

    value = variable.value if isinstance(variable, keras.Variable) else variable
    if not isinstance(value, tf.distribute.DistributedValues):
        return [value]
    return value.distribute_strategy.experimental_local_results(value)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.tobytes() == other.tobytes()  # also of values that are not numbers


def _assign(checkpoint: Checkpoint, name: str, variable: Variable) -> None:
    if keras.backend.backend() == "jax":
        variable.assign(_sharded(checkpoint, name, variable.value))
        return
    replicas = _replicas(variable) if keras.backend.backend() == "tensorflow" else [variable]
    if name in checkpoint.variables:
        values = [checkpoint.read(name)] * len(replicas)
    else:
        values = _shared(checkpoint, name, len(replicas))
    for replica, value in zip(replicas, values, strict=True):
        replica.assign(value)


def _shared(checkpoint: Checkpoint, name: str, count: int) -> list[np.ndarray]:
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


def _sharded(checkpoint: Checkpoint, name: str, value: Any) -> Any:
    """An array of JAX that lies on devices as `value` does; each process reads what its devices hold."""
    import jax

    kept: dict[tuple, np.ndarray] = {}

    def part(index: tuple[slice, ...]) -> np.ndarray:
        key = tuple((part.start, part.stop) for part in index)
        if key not in kept:
            kept[key] = checkpoint.read(name, index)
        return kept[key]

    return jax.make_array_from_callback(value.shape, value.sharding, part)
