"""What a run means by its `layout`: a mesh of all devices of all processes, and how weights lie on it."""

import contextlib
import contextvars
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

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
            f"Received: layout='tensor:{parts}', {count} devices."
        )
    shape = (count // parts, parts) if layout == "tensor" else (count,)
    mesh = keras.distribution.DeviceMesh(shape, ("data", "model")[: len(shape)])
    found = layout_map(config, mesh, layout, **arguments)
    distribution = keras.distribution.ModelParallel(layout_map=found, batch_dim_name="data", auto_shard_dataset=False)
    keras.distribution.set_distribution(distribution)


@contextlib.contextmanager
def multi_process(options: Any, out: FilePath, print_fn: Callable) -> Iterator[tuple[Path, Callable]]:
    """Connects the processes of a run, and gives each its folder and `print_fn`; the first alone writes and prints.

    The others write to a folder that goes at the end, so that all do the same, as JAX wants it.

    Args:
        options: of the run, the same in all processes; the `layout` of a process by itself is `"none"`.
        out: folder of the run.
        print_fn: called with lines of text.
    """
    if options.layout == "none":
        check_alone()
        yield expand_path(out), print_fn
        return
    check_backend()
    keras.utils.set_random_seed(options.seed)
    connect(print_fn)
    check_same_everywhere({**_facts(options), COUNT: os.environ.get(COUNT)})  # JAX joins processes of different counts
    before = keras.distribution.distribution()
    token = _OUT.set(expand_path(out))
    try:
        if is_first():
            yield expand_path(out), print_fn
        else:
            with tempfile.TemporaryDirectory() as folder:
                yield Path(folder, Path(out).name), lambda line: None
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


def _facts(options: Any) -> dict[str, Any]:
    """Options as text that is the same in every process, without `resume`, which the first process decides."""
    return {name: _text(value) for name, value in vars(options).items() if name != "resume"}


def _text(value: Any) -> str:
    plain = dataclasses.is_dataclass(value) or isinstance(value, (str, int, float, tuple, list, type(None)))
    return str(value) if plain else type(value).__name__
