"""The layers inside a layer, by what its attributes hold: publicly Keras lists those of a model alone."""

from collections.abc import Iterator, Sequence
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


class Unfreezable:
    """What stands before a layer or model, so that `trainable = True` reaches what is frozen inside of it.

    TensorFlow's tracking drops an assignment of the very object that is there, as if nothing inside were frozen.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        # A number is another object than the bool that is there, and Keras makes a bool of it.
        super().__setattr__(name, int(bool(value)) if name == "trainable" else value)


def frozen_inside(layer: keras.Layer) -> list[str]:
    """Paths of the outermost frozen layers inside a layer that learns, as `"attention/query"`."""
    paths = []
    for part in _parts(layer) if layer.trainable else ():
        paths += [f"{part.name}/{path}" for path in frozen_inside(part)] if part.trainable else [part.name]
    return list(dict.fromkeys(paths))


def freeze_inside(layer: keras.Layer, paths: Sequence[str] = ()) -> None:
    """Freezes all layers inside a frozen layer, and those at `paths` inside one that learns.

    A config of Keras has `trainable` of the outermost layer alone. A layer inside of it would say that it learns, and
    TensorFlow's tracking drops a `trainable = True` that sets nothing new: its weights would never learn again.
    """
    if not layer.trainable:
        for part in flatten_layers(layer, include_self=False):
            part.trainable = False
    for path in paths:
        part = layer
        for name in path.split("/"):
            part = next(each for each in _parts(part) if each.name == name)
        part.trainable = False


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
