"""What a run means by its `layout`: a mesh of all devices of all processes, and how weights lie on it."""

import contextlib
import contextvars
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import keras

from keras_vit.annotations import FilePath
from keras_vit.checks import error_about
from keras_vit.training.hosts.layout_maps import check_backend, layout_map
from keras_vit.training.hosts.processes import check_alone, connect, is_first

_OUT: contextvars.ContextVar[Path | None] = contextvars.ContextVar("_OUT", default=None)


def of_all(folder: Any) -> Path:
    """The folder of a run that all its processes see, on a shared disk; of a process by itself its own `folder`."""
    return _OUT.get() or Path(folder)


def spread(layout: str, parts: int | None, config: Any, **arguments: Any) -> None:
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
        raise error_about("layout")(
            "`layout` must divide the devices into groups of one size.\n"
            f"Received: layout='tensor:{parts}', {count} devices."
        )
    shape = (count // parts, parts) if layout == "tensor" else (count,)
    mesh = keras.distribution.DeviceMesh(shape, ("data", "model")[: len(shape)])
    found = layout_map(config, mesh, layout, **arguments)
    distribution = keras.distribution.ModelParallel(layout_map=found, batch_dim_name="data", auto_shard_dataset=False)
    keras.distribution.set_distribution(distribution)


@contextlib.contextmanager
def together(layout: str, seed: int, out: Any, say: Callable) -> Iterator[tuple[Any, Callable]]:
    """Connects the processes of a run; gives folder and `say` to each: only the first writes to `out`, and speaks.

    The others write to a folder that goes at the end, so that all do the same, as JAX wants it.

    Args:
        layout: `"none"` for a process by itself.
        seed: of all random numbers, so that all processes draw the same.
        out: folder of the run.
        say: called with lines of text.
    """
    if layout == "none":
        check_alone()
        yield out, say
        return
    check_backend()
    keras.utils.set_random_seed(seed)
    connect()
    before = keras.distribution.distribution()
    token = _OUT.set(Path(out))
    try:
        if is_first():
            yield out, say
        else:
            with tempfile.TemporaryDirectory() as folder:
                yield os.path.join(folder, Path(out).name), lambda line: None
    finally:
        _OUT.reset(token)
        keras.distribution.set_distribution(before)


_Function = TypeVar("_Function", bound=Callable)
_DEFAULTS = (("layout", "none"), ("seed", 0))


def run_together(function: _Function) -> _Function:
    """Decorates `finetune(data, out, options, say=, **changes)`: all processes of a `layout` run it as one."""

    @functools.wraps(function)
    def run(data: Any, out: FilePath, options: Any = None, *, say: Callable[[str], Any] = print, **changes: Any) -> Any:
        layout, seed = (changes.get(name, getattr(options, name, default)) for name, default in _DEFAULTS)
        with together(layout, seed, out, say) as (folder, its_say):
            return function(data, folder, options, say=its_say, **changes)

    return cast(_Function, run)
