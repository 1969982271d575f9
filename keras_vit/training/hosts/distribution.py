"""What a run means by its `layout`: a mesh of all devices of all processes, and how weights lie on it."""

import contextlib
import contextvars
import dataclasses
import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import keras
import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError
from keras_vit.files import expand_path
from keras_vit.training.hosts.layout_maps import check_backend, layout_map
from keras_vit.training.hosts.processes import COUNT, check_alone, connect, is_first
from keras_vit.training.resuming.async_writer import differences
from keras_vit.training.resuming.coordination import processes

_MOST_SHOWN = 8  # differences in an error
_OUT: contextvars.ContextVar[Path | None] = contextvars.ContextVar("_OUT", default=None)


def shared_run_dir(folder: Any) -> Path:
    """The folder of a run that all its processes see, on a shared disk; of a process by itself its own `folder`."""
    return _OUT.get() or Path(folder)


def set_distribution(layout: str, parts: int | None, config: Any, **arguments: Any) -> None:
    """Sets the `keras.distribution` under which `build(config, **arguments)` makes its weights.

    Args:
        layout: `"replicated"`, `"fsdp"` or `"tensor"`, over all devices.
        parts: for `"tensor"`, devices that share one copy of the model; by default all.
        config: as `keras_vit.build` takes it.
        **arguments: of `keras_vit.build`.

    Raises:
        ValueError: if the devices cannot share the model so.
    """
    count = len(keras.distribution.list_devices())
    parts = parts or count
    if layout == "tensor" and count % parts:
        raise ArgumentError(
            "`layout` must divide the devices into groups of one size.\n"
            f"Received: layout='tensor:{parts}', {count} devices.",
            parameters=("layout",),
        )
    shape = (count // parts, parts) if layout == "tensor" else (count,)
    mesh = keras.distribution.DeviceMesh(shape, ("data", "model")[: len(shape)])
    found = layout_map(config, mesh, layout, **arguments)
    distribution = keras.distribution.ModelParallel(layout_map=found, batch_dim_name="data", auto_shard_dataset=False)
    keras.distribution.set_distribution(distribution)


@contextlib.contextmanager
def multi_process(
    layout: str, seed: int, out: Any, say: Callable, facts: Mapping[str, Any]
) -> Iterator[tuple[Any, Callable]]:
    """Connects the processes of a run; gives folder and `say` to each: only the first writes to `out`, and speaks.

    The others write to a folder that goes at the end, so that all do the same, as JAX wants it.

    Args:
        layout: `"none"` for a process by itself.
        seed: of all random numbers, so that all processes draw the same.
        out: folder of the run.
        say: called with lines of text.
        facts: options of this process, which must be the same in all, ready for JSON.
    """
    if layout == "none":
        check_alone()
        yield out, say
        return
    check_backend()
    keras.utils.set_random_seed(seed)
    connect(say)
    check_same_everywhere({**facts, COUNT: os.environ.get(COUNT)})  # JAX joins processes of different counts
    before = keras.distribution.distribution()
    token = _OUT.set(expand_path(out))
    try:
        if is_first():
            yield out, say
        else:
            with tempfile.TemporaryDirectory() as folder:
                yield os.path.join(folder, Path(out).name), lambda line: None
    finally:
        _OUT.reset(token)
        keras.distribution.set_distribution(before)


def check_same_everywhere(facts: Mapping[str, Any]) -> None:
    """Raises in every process, in the same words, unless all have the same facts; all must call it.

    Args:
        facts: ready for JSON, the first process' among others.

    Raises:
        ValueError: with the differences.
    """
    if processes()[1] == 1:
        return
    from jax.experimental import multihost_utils

    text = np.frombuffer(json.dumps(facts).encode(), "uint8")
    lengths = np.ravel(multihost_utils.process_allgather(np.array(len(text), "int32")))
    padded = np.zeros(lengths.max(), "uint8")
    padded[: len(text)] = text
    rows = np.reshape(multihost_utils.process_allgather(padded), (len(lengths), -1))
    first, *others = (json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True))
    for number, other in enumerate(others, 1):
        if found := differences(first, other, ("for process 0", f"for process {number}")):
            raise ValueError(
                "the processes that train together must have the same options, and see the same data.\n"
                f"Received: {'; '.join(found[:_MOST_SHOWN])}. Start all of them again, with the same options and data."
            )


def _facts(options: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Options as text that is the same in every process, without `resume`, which the first process decides."""
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)} if options else {}
    given |= changes
    return {name: _text(value) for name, value in given.items() if name != "resume"}


def _text(value: Any) -> str:
    plain = dataclasses.is_dataclass(value) or isinstance(value, (str, int, float, tuple, list, type(None)))
    return str(value) if plain else type(value).__name__


_Function = TypeVar("_Function", bound=Callable)
_DEFAULTS = (("layout", "none"), ("seed", 0))


def run_together(function: _Function) -> _Function:
    """Decorates `finetune(data, out, options, print_fn=, **changes)`: all processes of a `layout` run it as one."""

    @functools.wraps(function)
    def run(
        data: Any, out: FilePath, options: Any = None, *, print_fn: Callable[[str], Any] = print, **changes: Any
    ) -> Any:
        layout, seed = (changes.get(name, getattr(options, name, default)) for name, default in _DEFAULTS)
        with multi_process(layout, seed, out, print_fn, _facts(options, changes)) as (folder, its_print_fn):
            return function(data, expand_path(folder), options, print_fn=its_print_fn, **changes)

    return cast(_Function, run)
