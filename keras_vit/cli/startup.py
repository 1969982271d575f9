"""The start of a command that computes: Keras and its backend are imported without their words on the terminal."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from keras_vit.checks import install_hint
from keras_vit.cli.compiled_programs import keep_compiled_programs
from keras_vit.cli.printing import printable
from keras_vit.silence import silent_descriptor

_WARNINGS = ("0", "1")  # levels of TF_CPP_MIN_LOG_LEVEL that show warnings


def loading(what: Any) -> str:
    """The line that comes before the seconds in which TensorFlow is imported and a model read."""
    return f"loading {printable(what)} ..."


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Imports Keras and TensorFlow without their words on the error stream, which belongs to our errors.

    Who has asked for them by TF_CPP_MIN_LOG_LEVEL sees them. From 2 on it leaves errors alone, and lines that are
    said before TensorFlow has read it, of which none is an error.
    """
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "tensorflow" not in sys.modules:  # later it would only reach the processes that this one starts
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # TensorFlow's default from AVX-512 on; 14 % faster below
    quiet = contextlib.nullcontext() if level in _WARNINGS else silent_descriptor(2, sys.stderr)
    with quiet:  # the descriptor by its number, since what is said comes from C++
        start_tensorflow()
        yield


def start_tensorflow() -> None:
    """Imports Keras and TensorFlow and looks for devices, so that what these print is printed now.

    Raises:
        ImportError: without TensorFlow, or without the backend that Keras is set to.
    """
    try:
        import keras
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(f"training and prediction need TensorFlow: {install_hint('tensorflow-cpu,train')}") from error
    tf.get_logger().setLevel("ERROR")
    tf.config.list_physical_devices()
    if keras.backend.backend() == "jax":
        tf.config.set_visible_devices([], "GPU")  # TensorFlow reads the data only, and would take a GPU's memory
        keep_compiled_programs()
