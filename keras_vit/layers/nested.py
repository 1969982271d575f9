"""The layers inside a layer, by what its attributes hold: publicly Keras lists those of a model alone."""

from collections.abc import Iterator
from typing import Any

import keras


def flatten_layers(layer: keras.Layer, include_self: bool = True) -> list[keras.Layer]:
    """A layer, its parts, and theirs, each once and in the order in which they were made.

    Args:
        layer: a layer or a model.
        include_self: whether the list begins with `layer`.
    """
    found = {id(layer): layer}
    waiting = list(_parts(layer))[::-1]
    while waiting:
        part = waiting.pop()
        if id(part) not in found:
            found[id(part)] = part
            waiting += list(_parts(part))[::-1]
    return list(found.values())[0 if include_self else 1 :]


def _parts(layer: keras.Layer) -> Iterator[keras.Layer]:
    # The attributes of a model hold its graph too, and with it layers of models around it.
    held = layer.layers if isinstance(layer, keras.Model) else list(vars(layer).values())
    return _layers_in(held)


def _layers_in(held: Any) -> Iterator[keras.Layer]:
    """The layers in a structure of lists, tuples, sets and dicts."""
    if isinstance(held, keras.Layer):
        yield held
    elif isinstance(held, dict):
        yield from _layers_in(list(held.values()))
    elif isinstance(held, (list, tuple, set)):
        for each in held:
            yield from _layers_in(each)
