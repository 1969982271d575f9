"""Vision Transformers of arXiv:2010.11929 for Keras 3: the official model, its checkpoints, its numbers."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_vit.version import __version__ as __version__
from keras_vit.version import is_installed_script

_BACKENDS = ("tensorflow", "jax", "torch")


def _is_the_command() -> bool:
    """Whether this import is that of the command, by name or by `python -m`, which needs no Keras."""
    if sys.argv[:1] == ["-m"]:  # Python is about to run a module by its name, and has not got further than its package
        return sys.orig_argv[-len(sys.argv)] in ("keras_vit", "-mkeras_vit")
    script = os.path.realpath(sys.argv[0]) if sys.argv else ""  # a link to the command may have any name
    return Path(script).stem == "keras-vit" and is_installed_script(script)


def _how_to_get_a_backend(missing: str, error: ImportError) -> str:
    from keras_vit.checks import install_hint

    there = [name for name in _BACKENDS if _is_there(name)]
    choice = f" Set KERAS_BACKEND={there[0]}, which is installed." if there else ""
    return (
        f"Keras needs a backend, and {missing} cannot be imported.\nReceived: {error}.{choice} Run "
        f'{install_hint("tensorflow-cpu")}; ".[tensorflow]", ".[jax]" and ".[torch]" are the others, and '
        "KERAS_BACKEND says which of them is used."
    )


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


# Layers register with Keras as they are imported, so that a saved model reloads after `import keras_vit`. That
# takes seconds and the backend's log lines, which a command line that prints a table should not.
if "KERAS_VIT_WORKER" not in os.environ and not _is_the_command():  # `embedding.pool` sets it for its processes
    from keras_vit.config.public_names import MODULES, PLACES, REGISTERED
    from keras_vit.renamed import NAMES, warn_renamed

    try:
        for _module in REGISTERED:
            importlib.import_module(f"keras_vit.{_module}")
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing not in _BACKENDS:
            raise
        raise ImportError(_how_to_get_a_backend(missing, error)) from error

    for _room in [name for name in globals() if f"keras_vit.{name}" in sys.modules]:
        if _room != "kernels":  # which modules import as a whole
            del globals()[_room]  # `__getattr__` gives a room with all that is in it
    __all__ = [*MODULES, *PLACES]
    if TYPE_CHECKING:
        from keras_vit.api import *  # noqa: F403

    def __dir__() -> list[str]:
        return sorted([*__all__, "__version__"])  # and neither the rooms nor what stands above

    def __getattr__(name: str) -> Any:
        if name in NAMES:
            warn_renamed(name, NAMES[name])
            return getattr(sys.modules[__name__], NAMES[name])
        if name in PLACES:
            value: Any = getattr(importlib.import_module(f"keras_vit.{PLACES[name]}"), name)
        elif name in MODULES:
            value = importlib.import_module(f"keras_vit.{MODULES[name]}")
        elif not name.startswith("_") and _is_there(f"keras_vit.{name}"):  # a room
            importlib.import_module("keras_vit.api")
            value = importlib.import_module(f"keras_vit.{name}")
        else:
            from keras_vit.checks import did_you_mean

            hint = "" if name.startswith("_") else did_you_mean(name, __all__)
            raise AttributeError(f"module 'keras_vit' has no attribute {name!r}.{hint}", name=name)
        globals()[name] = value
        return value
