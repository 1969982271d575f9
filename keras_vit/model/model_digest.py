"""One digest of everything that decides what a model computes, by which results on the disk are recognised.

Names do not count, since Keras numbers them anew in each process, and so that a model may be renamed. Nor does what
is frozen, which computes the same.
"""

import dataclasses
import hashlib
import json
from typing import Any

import keras
import numpy as np

from keras_vit.layers.sublayers import flatten_layers
from keras_vit.model.image_model import ImageModel
from keras_vit.version import __version__

_NOTHING = ("name", "registered_name", "trainable")  # keys of a config that leave the function as it is
_OURS = ("keras", "keras_vit")  # packages of layers whose version says what they compute


def digest_of_model(model: ImageModel) -> "hashlib._Hash":
    """SHA-256 of layers, wiring, all values of the weights, preprocessing and backend, to which more may be added.

    Args:
        model: a `VisionTransformer` or `ResNet`.
    """
    found = hashlib.sha256(_facts(model).encode())
    for weight in model.weights:
        value = np.ascontiguousarray(keras.ops.convert_to_numpy(weight))
        found.update(f"{value.shape} {value.dtype.name}\n".encode())
        found.update(value.reshape(-1).view("uint8").data)
    return found


def has_own_code(model: ImageModel) -> bool:
    """Whether a layer is of a class of the user's own, whose code may change while its config stays."""
    return any(type(layer).__module__.partition(".")[0] not in _OURS for layer in (model, *flatten_layers(model)))


def _facts(model: ImageModel) -> str:
    """Everything but weights as JSON; the layers' configurations contain the precision."""
    config, preprocessing = map(dataclasses.asdict, (model.config, model.preprocessing))
    layers = [_layer_facts(layer) for layer in flatten_layers(model) if not isinstance(layer, keras.Model)]
    wiring = _wiring(model.get_config().get("layers", []))
    facts = [__version__, keras.__version__, keras.backend.backend(), keras.config.image_data_format()]
    return json.dumps([*facts, config, preprocessing, model.input_shape, layers, wiring], sort_keys=True, default=str)


def _layer_facts(layer: keras.layers.Layer) -> list[Any]:
    config = keras.saving.serialize_keras_object(layer).get("config") or {}
    return [type(layer).__name__, _that_counts(config)]


def _that_counts(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: _that_counts(value) for key, value in config.items() if key not in _NOTHING}
    return [_that_counts(value) for value in config] if isinstance(config, (list, tuple)) else config


def _wiring(layers: list[dict[str, Any]]) -> list[Any]:
    """What each layer reads, with the place of a layer in the list instead of its name."""
    places = {layer["name"]: place for place, layer in enumerate(layers)}
    return [_read(layer.get("inbound_nodes"), places) for layer in layers]


def _read(nodes: Any, places: dict[str, int]) -> Any:
    if isinstance(nodes, dict):
        return {key: _read(value, places) for key, value in nodes.items() if key != "name"}
    if isinstance(nodes, (list, tuple)):
        return [_read(value, places) for value in nodes]
    return places.get(nodes, nodes) if isinstance(nodes, str) else nodes
