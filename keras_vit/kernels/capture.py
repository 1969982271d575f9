"""Looking at attention weights while a model computes, whatever stands around its layers.

A call asks for a watcher when it is traced, so a graph without one has no operation for it.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_vit.annotations import Tensor

Watcher = Callable[[keras.Layer, Tensor], Tensor]
_watcher: contextvars.ContextVar[Watcher | None] = contextvars.ContextVar("watcher", default=None)


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Inside, every call hands its attention weights to a function, and goes on with what that returns.

    Blocks compute every token meanwhile, so that the last one's weights are whole too.

    Args:
        watcher: takes the `MultiHeadAttention` and its weights `(B, A, Q, T)`; returns weights of that shape.
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextlib.contextmanager
def recording() -> Iterator[list[tuple[keras.Layer, Tensor]]]:
    """Gives a list to which every call inside adds its layer and its weights."""
    seen: list[tuple[keras.Layer, Tensor]] = []

    def record(layer: keras.Layer, weights: Tensor) -> Tensor:
        seen.append((layer, weights))
        return weights

    with watching(record):
        yield seen


def watcher() -> Any:
    """The function that looks, or `None`."""
    return _watcher.get()
