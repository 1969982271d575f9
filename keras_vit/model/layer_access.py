"""The layers and weights of a built model by the names that `graph` gives them.

The name of a weight is its Keras path, as `block_00/attention/query/kernel`. `model_fingerprint` is a digest of all.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import Tensor, Variable
from keras_vit.config.heads import DENSE_HEADS, HEADS, QUERIES, UNITS
from keras_vit.config.parts import INPUT, Part
from keras_vit.keras_private import call_inputs
from keras_vit.layers import AddPositionEmbs, AxialBlock, RelativeBias, RotaryPositions, TransformerBlock
from keras_vit.layers.configurable import ConfiguredLayer, flatten_layers
from keras_vit.layers.dense_heads.maps import PadToMultiple
from keras_vit.layers.norms import RMSNorm
from keras_vit.version import __version__

# Names of this package's layers that are instances of Keras' own classes.
_KERAS_CLASSES = (
    *HEADS,
    "average",
    "activation",
    UNITS,
    "pre_logits",
    "projection",
    "unit_length",
    "pooling",
    "resnet_norm",
    "resnet_relu",
)
_NOTHING_AT_INFERENCE = (
    keras.layers.InputLayer,
    keras.layers.Dropout,
    keras.layers.GaussianNoise,
    keras.layers.GaussianDropout,
    keras.layers.AlphaDropout,
    keras.layers.Identity,
    keras.layers.ActivityRegularization,
)
_AUGMENTS = ("Rand", "MixUp", "CutMix", "AugMix")  # how names of Keras' layers begin that augment


def layer_named(model: keras.Model, name: str) -> Any:
    """The layer of that name, or `None`."""
    return next((layer for layer in model.layers if layer.name == name), None)


def has_unit_length(model: keras.Model) -> bool:
    """Whether what is pooled is divided by its length, as before the logits of `zero_shot`."""
    return layer_named(model, "unit_length") is not None


@dataclasses.dataclass(frozen=True)
class DensePart:
    """A dense layer of a model, with what the layer around it declares of it.

    Attributes:
        part: the declaration.
        path: of the dense layer in the model, as `"block_00/attention/query"`.
        dense: the dense layer.
        norm: the LayerNorm whose output it reads, or `None`.
        block: the layer that declares it.
    """

    part: Part
    path: str
    dense: keras.layers.Dense
    norm: keras.layers.Layer | None
    block: keras.layers.Layer


def dense_parts(model: keras.Model) -> list[DensePart]:
    """The dense layers that blocks and attention pooling declare, in the order of the model."""
    found = []
    for layer in model.layers:
        for part in getattr(layer, "parts", ()):
            norm = encoder_norm(model) if part.norm == INPUT else part.norm and _inside(layer, part.norm)
            found.append(DensePart(part, f"{layer.name}/{part.path}", _inside(layer, part.path), norm, layer))
    return found


def norm_readers(model: keras.Model) -> list[tuple[keras.layers.Layer, tuple[keras.layers.Dense, ...]]]:
    """Each LayerNorm whose readers are dense layers alone, and these."""
    readers: dict[int, tuple] = {}
    for found in dense_parts(model):
        if found.norm is not None:
            _, denses = readers.get(id(found.norm), (None, ()))
            readers[id(found.norm)] = (found.norm, (*denses, found.dense))
    hidden, norm = pre_logits(model), layer_named(model, "pooled_norm") or encoder_norm(model)
    one = None not in (hidden, norm, pooling(model)) and hidden.kernel.shape[0] == norm.gamma.shape[0]
    if one and id(norm) not in readers:
        readers[id(norm)] = (norm, (hidden,))  # a token or a mean between changes nothing
    return list(readers.values())


def _inside(layer: keras.layers.Layer, path: str) -> keras.layers.Layer:
    """The layer at a path of attributes below another one."""
    return functools.reduce(getattr, path.split("/"), layer)


def patch_embedding(model: keras.Model) -> Any:
    """The layer that makes tokens of patches, or `None`."""
    return layer_named(model, "patch_embedding")


def first_layer(model: keras.Model) -> Any:
    """The first layer of this package, which reads the images: pixel normalization, ResNet root or patch embedding."""
    return layer_named(model, "pixel_normalization") or layer_named(model, "resnet_root") or patch_embedding(model)


def padded_shape(model: keras.Model, shape: Sequence[Any]) -> Any:
    """`(H, W, C)` that patches are cut from: `shape`, with the zeros that a model of maps may put around images."""
    layer = next((each for each in getattr(model, "layers", ()) if isinstance(each, PadToMultiple)), None)
    is_shape = isinstance(shape, (tuple, list)) and len(shape) == 3  # of others an error says it
    return layer.compute_output_shape((None, *shape))[1:] if layer is not None and is_shape else shape


def resnet_stages(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """The ResNet's root and the last unit of each of its stages, by name; empty without a ResNet."""
    found = {}
    for layer in model.layers:
        if layer.name == "resnet_root":
            found["root"] = layer
        elif match := re.fullmatch(r"resnet_(stage_\d+)_unit_\d+", layer.name):
            found[match[1]] = layer
    return found


def encoder_norm(model: keras.Model) -> Any:
    """The LayerNorm on the tokens after the last block, or `None`."""
    return layer_named(model, "encoder_norm")


def pooling(model: keras.Model) -> Any:
    """The layer that makes one representation of the tokens, or `None`."""
    return layer_named(model, "pooling")


def pre_logits(model: keras.Model) -> Any:
    """The hidden layer before the head, or `None`."""
    return layer_named(model, "pre_logits")


def layers_before_head(model: keras.Model) -> list[keras.layers.Layer]:
    """The layers between the pooling, with its LayerNorm, and the heads."""
    named = (layer_named(model, name) for name in ("pre_logits", "projection", "unit_length"))
    return [layer for layer in named if layer is not None]


def token_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The layers whose output is tokens `(B, T, D)`: from the patch embedding to the last block, or its LayerNorm."""
    last = encoder_norm(model) or encoder_blocks(model)[-1]
    layers = model.layers[model.layers.index(patch_embedding(model)) : model.layers.index(last) + 1]
    return [layer for layer in layers if not isinstance(layer, (RotaryPositions, RelativeBias))]


def float32_layers(model: keras.Model) -> list[str]:
    """Names of what a file in half precision computes in float32: norms, positions, and heads."""
    norms = (keras.layers.LayerNormalization, keras.layers.GroupNormalization, RMSNorm)
    inside = [part for part in flatten_layers(model) if isinstance(part, norms)]
    layers = (*inside, *position_layers(model), *rotary_layers(model), *bias_layers(model), *head_layers(model))
    return [*dict.fromkeys(layer.name for layer in layers), UNITS]


def head_layers(model: keras.Model) -> list[keras.layers.Dense]:
    """The classifiers of a model: one, two of a distilled one, or none."""
    return [layer for layer in model.layers if layer.name in HEADS]


def trained_heads(model: keras.Model) -> list[keras.layers.Layer]:
    """The layers with the weights of a model's head, of classes of images or of maps."""
    return [layer for layer in model.layers if layer.name in (*HEADS, *DENSE_HEADS.values(), QUERIES)]


def blocks_with_queries(model: keras.Model) -> int:
    """How many of the last blocks have queries among their tokens; 0 without queries."""
    names = [layer.name for layer in model.layers]
    after = names[names.index(QUERIES) :] if QUERIES in names else []
    return sum(layer.name in after for layer in encoder_blocks(model))


def set_layer_depths(model: keras.Model) -> None:
    """Gives every weight the depth of its layer, `weight.layer_depth`: `(depth, depth of the head)`.

    All layers before the first block have depth 0. Block i and the positions of its own have depth i + 1.
    All layers after the last block have L + 1, the depth of the head. The weights carry it, since an optimizer sees
    nothing else.
    """
    blocks, passed = encoder_blocks(model), 0
    for layer in model.layers if blocks else ():  # Keras lists layers in the order of the graph
        # Keras may list what a block reads besides the tokens before an earlier block.
        own = re.fullmatch(r"(?:position_embedding|rotary_positions|relative_bias)_(\d+)", layer.name)
        depth = int(own[1]) + 1 if own else passed + 1 if passed else 0
        if layer in blocks:
            passed += 1
            depth = passed
        if layer.name == QUERIES:  # which are of the head
            depth = len(blocks) + 1
        for weight in layer.weights:
            weight.layer_depth = (depth, len(blocks) + 1)


def encoder_blocks(model: keras.Model) -> list:
    """The transformer blocks, in their order; an axial one is one block."""
    return [layer for layer in model.layers if isinstance(layer, (TransformerBlock, AxialBlock))]


def position_layers(model: keras.Model) -> list:
    """The layers that add positions: one after the stem, one before each block, or one before all of them."""
    return [layer for layer in model.layers if isinstance(layer, AddPositionEmbs)]


def rotary_layers(model: keras.Model) -> list[RotaryPositions]:
    """The layers that give blocks the rotation of their queries and keys: one, or one for each block."""
    return [layer for layer in model.layers if isinstance(layer, RotaryPositions)]


def bias_layers(model: keras.Model) -> list[RelativeBias]:
    """The layers that give blocks their relative bias: one, or one for each block."""
    return [layer for layer in model.layers if isinstance(layer, RelativeBias)]


def stem_positions(model: keras.Model) -> AddPositionEmbs | None:
    """The layer that adds positions after the stem, before all blocks, or `None`."""
    return next((layer for layer in position_layers(model) if layer.name == "position_embedding"), None)


_HEAD_ACTIVATIONS = (None, keras.activations.linear, keras.activations.softmax, keras.activations.sigmoid)


def user_operations(model: keras.Model) -> list[str]:
    """Names of operations that a user has put before, between or after the layers of this package.

    Only what computes something at inference counts.

    Layers of Keras and of the user's own, models, and operations as of `2 * images`.
    """
    return [each.name for each in getattr(model, "operations", ()) if _is_user_operation(each)]


def user_readers(model: keras.Model, tensor: Tensor) -> list[str]:
    """Names of operations that a user has put into a functional model, and that read one of its Keras tensors."""
    own = [each for each in model.operations if _is_user_operation(each)]
    calls = [(each.name, inputs) for each in own for inputs in call_inputs(model, each)]
    return [name for name, inputs in calls if any(each is tensor for each in inputs)]


def _is_user_operation(operation: Any) -> bool:
    if operation.name in HEADS and getattr(operation, "activation", None) not in _HEAD_ACTIVATIONS:
        return True  # a user's layer with the name of a head
    is_known = isinstance(operation, ConfiguredLayer) or type(operation).__module__.startswith("keras_vit.layers.")
    if is_known or operation.name in _KERAS_CLASSES or isinstance(operation, _NOTHING_AT_INFERENCE):
        return False
    if isinstance(operation, keras.Model):
        return not isinstance(operation, keras.Sequential) or any(map(_is_user_operation, operation.layers))
    augments = type(operation).__module__.startswith("keras.") and type(operation).__name__.startswith(_AUGMENTS)
    return not augments or isinstance(operation, keras.layers.RandomCrop)  # which resizes at inference


def layers_before(tensor: Tensor) -> tuple[str, ...]:
    """Names of the layers that a Keras tensor comes from."""
    return tuple(layer.name for layer in keras.Model(keras.utils.get_source_inputs(tensor), tensor).layers)


def weight_paths(model: keras.Model, besides: Sequence[str] = ()) -> dict[str, Variable]:
    """`{path: variable}` of every weight of a model, whatever scope it was built in; also of the user's own layers.

    The state of a seed generator is not among them, as Keras does not count it as a weight. It says where random
    numbers go on, and not what the model computes.

    Args:
        model: made of our layers and perhaps others.
        besides: names of layers to leave out.

    Raises:
        ValueError: if no layer is of this package, or one of them is a model.
    """
    paths: dict[str, Variable] = {}
    layers = [layer for layer in model.layers if layer.name not in besides]
    for layer in layers:
        if isinstance(layer, keras.Model) and any(isinstance(p, ConfiguredLayer) for p in flatten_layers(layer)):
            raise ValueError(
                "`model` must be the Vision Transformer itself, not a model around it.\n"
                f"Received: {model.name!r}. Pass `model.get_layer({layer.name!r})`."
            )
        for variable in layer.weights:
            path = layer.name + variable.path.removeprefix(layer.path)
            paths[f"{path}+{len(paths)}" if path in paths else path] = variable  # Keras lets two have one name
    if not any(type(layer).__module__.startswith("keras_vit.") for layer in layers):
        raise ValueError(f"`model` must be made of keras_vit's layers.\nReceived: {model!r}")
    of_layers = {id(variable) for layer in model.layers for variable in layer.weights}
    of_model = [variable for variable in model.weights if id(variable) not in of_layers]
    return paths | {f"{model.name}/{variable.name}": variable for variable in of_model}


def inferred_fields(model: keras.Model) -> dict:
    """Fields of `ViTConfig` that cannot be inferred from weights, read off the layers."""
    block, pooling = (layer_named(model, name) for name in ("block_00", "pooling"))
    of_blocks = () if block is None else ("activation", "layer_norm_epsilon")
    added = [layer.kind for layer in position_layers(model)]
    relative = "none" if getattr(block, "relative_patches", None) is None else "relative"
    turned = [name for name in RotaryPositions.arguments() if name.startswith("rotary")]
    return {name: getattr(block, name) for name in of_blocks} | {
        "pooling": "none" if pooling is None else getattr(pooling, "kind", "map"),
        "norm_position": getattr(block, "norm_position", "pre"),
        "position_embedding": added[0] if added else relative,
        "rotary": "none",
        **{name: getattr(layer, name) for layer in rotary_layers(model)[:1] for name in turned},
        "patch_padding": getattr(patch_embedding(model), "patch_padding", 0),
        "pixel_statistics": getattr(layer_named(model, "pixel_normalization"), "pixel_statistics", None),
        **_summary(model, pooling),
        **(_map(pooling, block) if hasattr(pooling, "probe") else {}),
    }


def _map(pooling: Any, block: Any) -> dict[str, Any]:
    """Of attention pooling, whose heads may be as many as the blocks have."""
    heads, prefix = (getattr(block, name, 0) for name in ("num_heads", "num_prefix_tokens"))
    own = None if pooling.num_heads == heads else pooling.num_heads
    return {"map_heads": own} | ({"pool_prefix_tokens": not pooling.num_prefix_tokens} if prefix else {})


def _summary(model: keras.Model, pooling: Any) -> dict:
    """What of the class tokens is pooled."""
    if getattr(pooling, "kind", "") != "token":
        return {}
    every = tuple(range(getattr(layer_named(model, "class_token"), "count", 1)))
    places = pooling.class_token_indices
    return {
        "class_token_indices": None if places == every else places,
        "class_token_reduction": pooling.class_token_reduction,
    }


def lora_layers(model: keras.Model) -> list:
    """The dense layers of a model that have LoRA."""
    return [layer for layer in flatten_layers(model) if getattr(layer, "lora_enabled", False)]


_NOTHING = ("name", "registered_name", "trainable", "frozen")  # keys of a config that leave the function as it is
_PACKAGES = ("keras", "keras_vit")  # packages of layers whose version says what they compute


def is_quantized(model: keras.Model) -> bool:
    """Whether any layer holds integers in place of its kernel."""
    return any(layer.quantization_mode for layer in flatten_layers(model))


def model_fingerprint(model: Any) -> "hashlib._Hash":
    """SHA-256 of everything that decides what a model computes, to which more may be added.

    That is layers, graph, weights, preprocessing and backend. Names do not count, since Keras numbers them anew in each
    process. Nor does what is frozen, which computes the same.

    Args:
        model: a `VisionTransformer` or `ResNet`.
    """
    found = hashlib.sha256(_facts(model).encode())
    for weight in model.weights:
        value = np.ascontiguousarray(keras.ops.convert_to_numpy(weight))
        found.update(f"{value.shape} {value.dtype.name}\n".encode())
        found.update(value.reshape(-1).view("uint8").data)
    return found


def has_user_code(model: Any) -> bool:
    """Whether a layer is of a class of the user's own, whose code may change while its config stays."""
    return any(type(layer).__module__.partition(".")[0] not in _PACKAGES for layer in (model, *flatten_layers(model)))


def _facts(model: Any) -> str:
    """Everything but weights as JSON; the layers' configurations contain the precision."""
    config, preprocessing = map(dataclasses.asdict, (model.config, model.preprocessing))
    layers = [_layer_facts(layer) for layer in flatten_layers(model) if not isinstance(layer, keras.Model)]
    wiring = _wiring(model.get_config().get("layers", []))
    facts = [__version__, keras.__version__, keras.backend.backend(), keras.config.image_data_format()]
    return json.dumps([*facts, config, preprocessing, model.input_shape, layers, wiring], sort_keys=True, default=str)


def _layer_facts(layer: keras.layers.Layer) -> list[Any]:
    config = keras.saving.serialize_keras_object(layer).get("config") or {}
    return [type(layer).__name__, _without_names(config)]


def _without_names(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: _without_names(value) for key, value in config.items() if key not in _NOTHING}
    return [_without_names(value) for value in config] if isinstance(config, (list, tuple)) else config


def _wiring(layers: list[dict[str, Any]]) -> list[Any]:
    """What each layer reads, with the place of a layer in the list instead of its name."""
    places = {layer["name"]: place for place, layer in enumerate(layers)}
    return [_readers(layer.get("inbound_nodes"), places) for layer in layers]


def _readers(nodes: Any, places: dict[str, int]) -> Any:
    if isinstance(nodes, dict):
        return {key: _readers(value, places) for key, value in nodes.items() if key != "name"}
    if isinstance(nodes, (list, tuple)):
        return [_readers(value, places) for value in nodes]
    return places.get(nodes, nodes) if isinstance(nodes, str) else nodes
