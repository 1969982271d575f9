"""Looking at attention weights while a model computes, whatever stands around its layers.

A call reads the hook when it is traced, so a graph without one has no operation for it.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import keras

from keras_vit.annotations import Tensor

Hook = Callable[[keras.Layer, Tensor], Tensor]
_hook: contextvars.ContextVar[Hook | None] = contextvars.ContextVar("hook", default=None)


@contextlib.contextmanager
def intercept_attention(hook: Hook) -> Iterator[None]:
    """Inside, every call hands its attention weights to a function, and goes on with what that returns.

    Blocks compute every token meanwhile, so that the last one's weights are whole too.

    Args:
        hook: takes the `MultiHeadAttention` and its weights `(B, A, Q, T)`; returns weights of that shape.
    """
    token = _hook.set(hook)
    try:
        yield
    finally:
        _hook.reset(token)


@contextlib.contextmanager
def record_attention() -> Iterator[list[tuple[keras.Layer, Tensor]]]:
    """Gives a list to which every call inside adds its layer and its weights."""
    recorded: list[tuple[keras.Layer, Tensor]] = []

    def record(layer: keras.Layer, weights: Tensor) -> Tensor:
        recorded.append((layer, weights))
        return weights

    with intercept_attention(record):
        yield recorded


def current_hook() -> Hook | None:
    """The function that looks, or `None`."""
    return _hook.get()
