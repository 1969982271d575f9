"""The variables that a training changes: which there are, and their way to the host as shards and back.

Keras knows those of the model and its optimizer. A model's own `train_step` may move more: a second optimizer, a
metric that `metrics` does not name, a variable of TensorFlow. They are found in the attributes of the model's layers.
A variable is known by its place in the list, since Keras' paths depend on what else was built in a process. Shapes and
types must be equal, so nothing is skipped or put elsewhere.
"""

import collections
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import Variable
from keras_vit.layers.configurable import flatten_layers
from keras_vit.model.replicated_model import num_replicas
from keras_vit.model.training_step import num_batch_shards
from keras_vit.training.resuming.checkpoint_folder import Checkpoint
from keras_vit.training.resuming.coordination import processes
from keras_vit.training.resuming.tensor_file import Shard

MODEL, OPTIMIZER, OTHERS = "model", "optimizer", "others"
METRICS = "metrics"  # the group whose values are sums
_COMPILE_ATTRIBUTES = ("_loss_tracker", "_compile_metrics", "_compile_loss")  # of an inner model, which nobody updates
_TENSORFLOW_PREFIX = "_self_"  # its own lists of what other attributes hold
_MOST_SHOWN = 8  # variables or differences in an error


class TrainingState:
    """The variables of a training.

    Args:
        model: compiled, as its first step finds it.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._before = {id(variable) for _, variable in self._known()}
        self._others: list[Variable] | None = None

    def groups(self, has_optimizer: bool = True) -> list[tuple[str, list[Variable]]]:
        """`(name, variables)` of what is saved whole.

        Args:
            has_optimizer: whether `model.optimizer` has made a step; one that `train_step` leaves alone is not saved.
        """
        if keras.backend.backend() == "jax":
            self._model.jax_state_sync()
        model, optimizer = self._model, self._model.optimizer
        groups = [(MODEL, model.variables)]
        if has_optimizer and optimizer is not None:
            if not optimizer.built:
                optimizer.build(model.trainable_variables)
            groups.append((OPTIMIZER, optimizer.variables))
        if self._others is None:
            self._others = [variable for _, variable in _others(model)]
        return [*groups, (OTHERS, self._others)]

    def check_complete(self) -> None:
        """Refuses, after the first step, what was made in it: a new process could not be given its values.

        Raises:
            ValueError: for such variables.
        """
        made = list(dict.fromkeys(name for name, each in self._known() if id(each) not in self._before))
        if not made:
            return
        more = f" and {len(made) - _MOST_SHOWN} more" if len(made) > _MOST_SHOWN else ""
        raise ValueError(
            "a run goes on by giving every variable its value again, so all must be there before `fit`.\n"
            f"Received: {type(self._model).__name__}, whose first step has made "
            f"{', '.join(made[:_MOST_SHOWN])}{more}. Build optimizers of your own, as "
            "model.d_optimizer.build(model.discriminator.trainable_variables); make variables in `__init__` or "
            "`build`; and build the model, as by model.build(input_shape)."
        )

    def _known(self) -> Iterator[tuple[str, Variable]]:
        """What `fit` does not make by itself, as it does the state of `model.optimizer` and of metrics."""
        yield from ((variable.path, variable) for variable in self._model.variables)
        yield from _others(self._model)


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


def count_examples(model: keras.Model) -> int | None:
    """Examples of the running epoch up to now, as Keras' mean of the loss counts them.

    `None` where nothing counts them, and where devices share batches, which may be filled up.
    """
    if processes()[1] > 1 or num_replicas(model) > 1 or num_batch_shards() > 1:
        return None
    loss = next((metric for metric in model.metrics if metric.name == "loss" and hasattr(metric, "count")), None)
    return (round(float(keras.ops.convert_to_numpy(loss.count))) or None) if loss is not None else None


def _others(model: keras.Model) -> Iterator[tuple[str, Variable]]:
    """`(name, variable)` of what the model and its layers hold besides what Keras lists, each once, in their order."""
    listed = [*model.variables, *model.metrics_variables]
    listed += model.optimizer.variables if model.optimizer is not None else []
    known_ids = {id(variable) for variable in listed}
    for layer in flatten_layers(model):
        for name, held in vars(layer).items():
            skipped = name in _COMPILE_ATTRIBUTES or name.startswith(_TENSORFLOW_PREFIX)
            for variable in () if skipped else _variables_in(held, layer):
                if id(variable) not in known_ids:
                    known_ids.add(id(variable))
                    yield name, variable


def _variables_in(held: Any, layer: keras.Layer) -> Collection[Variable]:
    """The variables of an attribute of a layer, which may be a list or a dict of what holds some."""
    if isinstance(held, keras.optimizers.Optimizer):
        # One that is not built has made no step, and that of a frozen inner model makes none.
        return held.variables if held.built and layer.trainable_variables else ()
    if isinstance(held, keras.metrics.Metric):
        return held.variables
    if isinstance(held, keras.random.SeedGenerator):
        return (held.state,)
    if isinstance(held, dict):
        held = list(held.values())
    if isinstance(held, (list, tuple, set)):
        return [variable for each in held for variable in _variables_in(each, layer)]
    return (held,) if _is_variable(held) else ()


def _is_variable(held: Any) -> bool:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return isinstance(held, (keras.Variable, tf.Variable))
    return isinstance(held, keras.Variable)
