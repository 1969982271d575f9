"""What callbacks remember of a training: those with `get_state` and `set_state`, and Keras' own."""

from collections.abc import Iterable
from typing import Any

import keras

# What Keras' own callbacks know of earlier epochs, as `ModelCheckpoint` and `EarlyStopping`.
_REMEMBERED = ("best", "best_epoch", "wait", "cooldown_counter", "epochs_since_last_save")


def check_callbacks(also: Any) -> tuple[keras.callbacks.Callback, ...]:
    """`also` of `Checkpoints` as a tuple; raises for what is no callback, or remembers weights."""
    also = tuple(also) if isinstance(also, Iterable) else (also,)
    for callback in also:
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(f"`also` must be a list of Keras callbacks.\nReceived: {callback!r} among them.")
        if getattr(callback, "restore_best_weights", False):
            raise ValueError(
                "a checkpoint does not hold the weights that a callback remembers, so it would restore others.\n"
                f"Received: {type(callback).__name__}(restore_best_weights=True) in `also`. Leave that out, and "
                "take the best weights from a `ModelCheckpoint(save_best_only=True)`."
            )
    return also


def state_of(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """What a callback remembers, ready for JSON."""
    if hasattr(callback, "get_state"):
        return callback.get_state()
    values = {name: getattr(callback, name) for name in _REMEMBERED if hasattr(callback, name)}
    return {name: value if value is None else float(value) for name, value in values.items()}


def set_state(callback: keras.callbacks.Callback, state: dict[str, Any]) -> None:
    """Gives a callback back what `state_of` gave."""
    if hasattr(callback, "set_state"):
        callback.set_state(state)
        return
    for name, value in state.items():
        whole = isinstance(value, float) and value.is_integer() and name != "best"
        setattr(callback, name, int(value) if whole else value)
