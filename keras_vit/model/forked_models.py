"""Words in a forked process for models of the user's own around one of ours, where Keras would wait for ever.

Keras asks the layers of a model nothing once its steps were traced. So its public methods are asked themselves, in
forked processes alone: Keras stays as it is wherever it works.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.checks import check_process
from keras_vit.layers.sublayers import flatten_layers

METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def guard_forks(kind: type[keras.Model]) -> None:
    """Lets `METHODS` of a `keras.Model` with a model of this kind inside raise in a fork what ours raise there."""
    if hasattr(os, "register_at_fork"):  # of systems that have forks
        os.register_at_fork(after_in_child=functools.partial(_guard, kind))


def _guard(kind: type[keras.Model]) -> None:
    for name in METHODS:
        method = getattr(keras.Model, name)
        if not hasattr(method, "asks_for_process"):  # of a fork of a fork
            setattr(keras.Model, name, _asking(method, kind))


def _asking(method: Callable, kind: type[keras.Model]) -> Callable:
    @functools.wraps(method)
    def ask(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(layer, kind) for layer in flatten_layers(self)):
            check_process()
        return method(self, *args, **kwargs)

    ask.asks_for_process = True  # type: ignore[attr-defined]
    return ask
