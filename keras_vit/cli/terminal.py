"""Text for a terminal, paths from it, and the start of a command that computes.

Keras and its backend are imported without their words on the terminal.
"""

import argparse
import contextlib
import glob
import itertools
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_vit.checks import install_hint
from keras_vit.cli.cache_command import enable_jax_cache
from keras_vit.config.datasets import may_be_a_name
from keras_vit.files import access_error, expand_path
from keras_vit.images.photo_files import near_names
from keras_vit.pages.formatting import printable
from keras_vit.silence import silent_descriptor


def one_line(text: Any) -> str:
    """Text in one line, with a semicolon where a line ended without a mark, or a full stop before a new sentence."""
    lines = [" ".join(line.split()) for line in str(text).splitlines() if line.strip()]
    marks = [
        "" if line[-1] in ".:;,?" else "." if then[0].isupper() else ";" for line, then in itertools.pairwise(lines)
    ]
    return printable(" ".join(line + mark for line, mark in itertools.zip_longest(lines, marks, fillvalue="")))


def terminal_width() -> int | None:
    """Letters of a line where a person reads the output; `None` where it goes into a file or a pipe."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if is_terminal else None


def say_error(text: str) -> None:
    """Writes to the error stream, and nowhere where that is closed; `print` would take the output instead."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(text, file=sys.stderr)


def path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("a path must not be empty")
    return expand_path(text)


def check_data(data: str) -> None:
    """Raises for data that are neither a file, a folder or a pattern nor spelt as a name, before Keras is imported."""
    if not (os.path.exists(expand_path(data)) or glob.has_magic(data) or may_be_a_name(data)):
        raise ValueError(
            "data must be a folder of class folders, a .csv file, shards, or the name of a data set.\n"
            f"Received: {data!r}, {_absence(expand_path(data)) or 'and there is no such file or folder'}."
            f"{near_names(expand_path(data))}"
        )


def check_photos_exist(photos: Sequence[Path]) -> None:
    """Raises if none of the photos is there, before Keras is imported; one that is missing costs the others nothing."""
    if not any(map(os.path.lexists, photos)):
        found = (f"{printable(photo)}{_absence(photo, ' ')}" for photo in photos[:10])
        raise FileNotFoundError(f"the photos must exist.\nReceived: {', '.join(found)}.{near_names(photos[0])}")


def _absence(path: Path, before: str = "") -> str:
    """Words about a path that cannot be reached; nothing where it is known that nothing is there."""
    denied = access_error(path)
    return f"{before}which cannot be reached: {denied}" if denied else ""


# What Keras and TensorFlow import where they find it, for their wrappers and pictures, which no command needs.
_OTHERS = ("sklearn", "matplotlib", "IPython", "pandas", "jax")
_WARNINGS = ("0", "1")  # levels of TF_CPP_MIN_LOG_LEVEL that show warnings


def loading(what: Any) -> str:
    """The line to print before TensorFlow is imported and a model is read, which takes seconds."""
    return f"loading {printable(what)} ..."


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Imports Keras and TensorFlow without their log on the error stream, which is for errors of the command.

    TF_CPP_MIN_LOG_LEVEL of 0 or 1 shows the log. From 2 on TensorFlow logs errors only, and lines from before it has
    read the variable, none of which is an error.
    """
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "tensorflow" not in sys.modules:  # later it would only reach the processes that this one starts
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # TensorFlow's default from AVX-512 on; 14 % faster below
    quiet = contextlib.nullcontext() if level in _WARNINGS else silent_descriptor(2, sys.stderr)
    with quiet:  # the descriptor by its number, since C++ writes the log
        start_tensorflow()
        yield


def start_tensorflow() -> None:
    """Imports Keras and TensorFlow and looks for devices, so that what these print is printed now.

    Raises:
        ImportError: without TensorFlow, or without the backend that Keras is set to.
    """
    try:
        with _without_others():
            import keras
            import tensorflow as tf
    except ImportError as error:
        raise ImportError(_how_to_start(error)) from error
    tf.get_logger().setLevel("ERROR")
    tf.config.list_physical_devices()
    if keras.backend.backend() == "jax":
        tf.config.set_visible_devices([], "GPU")  # TensorFlow reads the data only, and would take a GPU's memory
        enable_jax_cache()


def _how_to_start(error: ImportError) -> str:
    backend = str(error.name).partition(".")[0]
    if backend in ("jax", "torch"):
        return (
            f"Keras is set to {backend} by KERAS_BACKEND or its keras.json, and {backend} cannot be imported.\n"
            f"Received: {error}. Run {install_hint(backend)}, or set KERAS_BACKEND=tensorflow."
        )
    return (
        "training and prediction need TensorFlow, which reads the data for every backend.\n"
        f"Received: {error}. Run {install_hint('tensorflow-cpu,train')}."
    )


@contextlib.contextmanager
def _without_others() -> Iterator[None]:
    """Inside, `_OTHERS` cannot be imported: 2.2 instead of 3.4 s of processor time."""
    hidden = [name for name in _OTHERS if name not in sys.modules and not (name == "jax" and _may_use_jax())]
    hidden = [] if "keras" in sys.modules else hidden
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # `None` is what `import` refuses
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def _may_use_jax() -> bool:
    """Whether the environment, or else Keras' file, may choose JAX."""
    if "KERAS_BACKEND" in os.environ:
        return os.environ["KERAS_BACKEND"] == "jax"
    homes = (os.environ.get("KERAS_HOME", "~/.keras"), "/tmp/.keras")  # where no home can be written to
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # the last of a user without a home
        files = [Path(home, "keras.json").expanduser() for home in homes]
        return any("jax" in file.read_text() for file in files if file.exists())
    return False
