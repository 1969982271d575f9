"""The same model again, with weights of its own: for another image size, in another precision, or with less work.

New variables get their first value from a file or another model instead of an initializer. So a model is neither drawn
at random first nor held twice.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import keras
import numpy as np
from keras import ops

from keras_vit import layers
from keras_vit.annotations import Pair, Shape, Tensor, Variable
from keras_vit.checks import check_choice
from keras_vit.config.heads import DEFAULT_HEAD, FLOAT32_LAYERS, HEADS
from keras_vit.config.position_tables import ANY_RESIZE_METHODS, RELATIVE_RESIZE_METHODS, RESIZE_METHODS
from keras_vit.keras_private import call_inputs, drop_uninitialized_variables, set_initializer
from keras_vit.layers.configurable import at_least_float32, flatten_layers
from keras_vit.model.graph import build_graph
from keras_vit.model.head import Head
from keras_vit.model.image_model import ImageModel, check_takes_images
from keras_vit.model.input_checks import check_input_shape, known_grid, record_for
from keras_vit.model.layer_access import (
    UNITS,
    encoder_blocks,
    is_quantized,
    layer_named,
    padded_shape,
    position_layers,
    user_operations,
)
from keras_vit.model.outputs import with_units
from keras_vit.model.two_towers.text_tower import TextTransformer
from keras_vit.model.vision_transformer import VisionTransformer, check_vision_transformer


def float32_copy(array: Any) -> np.ndarray:
    """A copy in float32, in memory of its own and in C order."""
    return np.array(array, "float32", order="C")


@contextlib.contextmanager
def uninitialized_variables() -> Iterator[None]:
    """Inside, layers make their variables without values, which `initialize_variables` gives them. An error drops the
    variables."""
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    except BaseException:
        drop_uninitialized_variables()
        raise


def initialize_variables(variables: dict, tensors: dict, copy: Callable[[Any], np.ndarray] = float32_copy) -> None:
    """Gives each uninitialized variable the array of the same key, and drops the array.

    Args:
        variables: without values, by a key.
        tensors: arrays by the same keys; emptied.
        copy: from one of them to an array in memory of its own, as a mapped file needs.
    """
    if is_distributed():
        _initialize_shards(variables, tensors, copy)
        return
    drawn = {}
    for path, variable in variables.items():
        given = _Given(tensors.pop(path), copy)
        if not set_initializer(variable, given):
            drawn[path] = given
    with keras.StatelessScope():
        pass  # leaving it makes Keras initialize all that waits
    for path, given in drawn.items():
        variables[path].assign(given(variables[path].shape, variables[path].dtype))


def is_distributed() -> bool:
    """Whether `keras.distribution` shards variables that are made now over devices; on JAX only."""
    return keras.backend.backend() == "jax" and keras.distribution.distribution() is not None


def _initialize_shards(variables: dict, tensors: dict, copy: Callable[[Any], np.ndarray]) -> None:
    """As `initialize_variables`, for variables sharded over devices: no device ever holds a whole one."""
    import jax

    for variable in variables.values():
        set_initializer(variable, ops.zeros)
    with keras.StatelessScope():
        pass
    for path, variable in variables.items():
        part = functools.partial(_shard, tensors.pop(path), copy, variable.dtype)
        variable.assign(jax.make_array_from_callback(tuple(variable.shape), variable.value.sharding, part))


def _shard(array: Any, copy: Callable[[Any], np.ndarray], dtype: str, index: Any) -> np.ndarray:
    return copy(array[index]).astype(dtype)


def release(variables: Iterable[Variable]) -> None:
    """Frees uninitialized variables that will never be used, at the cost of one number each."""
    for variable in variables:
        set_initializer(variable, lambda shape, dtype: ops.zeros((), dtype))
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)  # whose layouts have the variables' ranks
    try:
        with keras.StatelessScope():
            pass
    finally:
        keras.distribution.set_distribution(distribution)


class _Given:
    """An initializer that gives one array, copied so that no variable shares its memory."""

    def __init__(self, array: Any, copy: Callable[[Any], np.ndarray]) -> None:
        self.array = array
        self.copy = copy

    def __call__(self, shape: Shape, dtype: Any = None) -> Tensor:
        return ops.cast(self.copy(self.array), dtype)


_Model = TypeVar("_Model", bound=ImageModel)


def with_input_shape(model: _Model, input_shape: Shape, resize_method: str | None = None) -> _Model:
    """Copies a model for images of another size, with the same weights.

    Example:
        >>> larger = keras_vit.with_input_shape(model, (64, 96, 3))
        >>> larger.input_shape
        (None, 64, 96, 3)
        >>> larger.load_report
        ('position embedding resized from (2, 3) to (4, 6) (align_corners)',)

    Args:
        model: a `VisionTransformer` or `ResNet`; it is not changed.
        input_shape: `(H, W, C)` with the model's C; H and W may be `None`.
        resize_method: of the position table, one of `keras_vit.config.position_tables.RESIZE_METHODS`; by default that
            of the model's weights.

    Returns:
        A new model with weights of its own, as trainable or frozen as those of `model`, not compiled.

    Raises:
        ValueError: if the size is no multiple of the patch size, or C differs.

    Source: arXiv:2010.11929, section 3.2.
    """
    check_takes_images(model)
    if not isinstance(model, ImageModel) or model.config is None or len(model.inputs) != 1:
        raise TypeError(
            "`model` must be a VisionTransformer or ResNet with one input that knows its config, as the builders give "
            f"it (`keras.models.clone_model` loses it; this function copies a model too).\nReceived: {model!r}"
        )
    if resize_method is not None:
        check_choice("resize_method", resize_method, ANY_RESIZE_METHODS)
    padded = check_input_shape(padded_shape(model, input_shape), model.config)
    input_shape = padded if padded == tuple(input_shape) else tuple(input_shape)
    if input_shape[2] != model.input_shape[-1]:
        raise ValueError(
            "`input_shape` must have as many channels as the model.\n"
            f"Received: input_shape={input_shape}, model {model.input_shape[1:]}."
        )
    if padded_shape(model, model.input_shape[1:])[:2] != model.image_shape[:2]:
        raise ValueError(
            "a model whose own layers in front change the size has patches by what they give, which is not known.\n"
            f"Received: {model.name!r} for {model.input_shape[1:]}, whose first layer gets {model.image_shape}. "
            "Build it anew upon layers for that size, as `input_tensor=`."
        )
    with uninitialized_variables():
        copy = clone_graph(model, input_shape)
    copy.load_report = model.load_report + transfer_weights(model, copy, resize_method)
    return copy


def with_dtype(model: _Model, dtype: Any, copy_of: Callable[[Any], Any] | None = None) -> _Model:
    """The same model with its weights and its computation in another precision.

    Args:
        model: a `VisionTransformer` or `ResNet` that is not quantised; it is not changed.
        dtype: a Keras dtype policy or its name, as `"float32"` or `"bfloat16"`. The head stays in at least float32.
        copy_of: makes the value of a new weight from the model's; by default in memory that TensorFlow may keep.

    Returns:
        A new model with weights of its own, not compiled.
    """
    with uninitialized_variables():
        copy = clone_graph(model, model.input_shape[1:], dtype)
    copy.load_report = model.load_report + transfer_weights(model, copy, None, copy_of)
    return copy


def merge_tokens(model: VisionTransformer, per_block: int) -> VisionTransformer:
    """Copies a model that merges similar tokens in its blocks: faster, and **approximately** the same answers.

    How near they are depends on the model and the images: compare `keras_vit.evaluate` of both before you use it.

    Example:
        >>> photo = keras_vit.ViTTi16(num_layers=4, classes=10)
        >>> faster = keras_vit.merge_tokens(photo, per_block=16)
        >>> round(keras_vit.flops(faster).total / keras_vit.flops(photo).total, 2)
        0.88

    Args:
        model: a `VisionTransformer` for images of a known size, without LoRA, not quantised; it is not changed.
        per_block: r, how many pairs of patches each block merges into one, at least 0; no block merges more than half
            of its patches. Of 196 patches, 8 leave 108 for the twelfth block. 0 gives the answers of `model`.

    Returns:
        A new model with weights of its own, not compiled. It can be saved, exported, evaluated and trained. Its config
        has `merged_tokens`, which no checkpoint of other software has, so `save_checkpoint` refuses it.

    Raises:
        TypeError: if `model` is no `VisionTransformer`.
        ValueError: for a negative number, an unknown image size, or a model whose tokens cannot be merged: attention
            pooling, relative positions, axial attention.

    Source: Token Merging (ToMe), arXiv:2210.09461. Its authors report twice the throughput for ViT-L at 512 and ViT-H
        at 518 pixels, with 0.2 to 0.3 points less accuracy on ImageNet.
    """
    check_vision_transformer(model)
    config = model.config.replace(merged_tokens=per_block)
    shape = model.input_shape[1:]
    if known_grid(shape, config) is None:
        raise ValueError(
            "tokens are merged where their number is known.\n"
            f"Received: {model.name!r} with {model.input_shape}. Take with_input_shape(model, (H, W, C)) first."
        )
    if own := user_operations(model):
        raise ValueError(
            "tokens are merged in a model without layers of your own, which would be left out.\n"
            f"Received: {model.name!r} with {', '.join(map(repr, own))}. Merge first, and put them on the result."
        )
    if is_quantized(model):
        raise ValueError(
            "tokens are merged before a model is quantised.\n"
            f"Received: {model.name!r}, quantised. Merge the tokens of the model that it was made from."
        )
    positions = position_layers(model)
    resize_method = positions[0].resize_method if positions else "align_corners"
    with uninitialized_variables(), under_policy_of(model):
        images = keras.Input(shape, name=model.inputs[0].name)
        copy = build_graph(images, config, _head_of(model), None, model.name, model.preprocessing, resize_method)
    if units := layer_named(model, UNITS):
        copy = with_units(copy, units.scale, units.offset)
    copy.load_report = model.load_report + transfer_weights(model, copy, None)
    copy.provenance, copy.head_kind, copy.class_names = model.provenance, model.head_kind, model.class_names
    copy.logit_scale, copy.logit_bias, copy.mask_token = model.logit_scale, model.logit_bias, model.mask_token
    return copy


def _head_of(model: VisionTransformer) -> Head:
    if not model.classes:
        return Head(0, None)
    last = layer_named(model, "activation") or layer_named(model, "head")
    return Head(model.classes, None if model.output_spec.kind == "logits" else last.activation)


@contextlib.contextmanager
def under_policy_of(model: VisionTransformer) -> Iterator[None]:
    """Inside, new layers get the precision of the model's blocks."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(encoder_blocks(model)[0].dtype_policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def clone_graph(model: Any, input_shape: Shape, dtype: Any = None, keeps_lora: bool = True) -> Any:
    """The layers of `model` anew, for inputs of `input_shape`, with weights as their initializers draw them.

    Without its LoRA all of them learn.
    """
    of_text = isinstance(model, TextTransformer)
    grid = None if of_text else known_grid(padded_shape(model, input_shape), model.config)
    graph = keras.models.clone_model(
        keras.Model(model.input, model.output),  # the bare graph: a compiled model's clone would be compiled
        input_tensors=keras.Input(input_shape, dtype=model.inputs[0].dtype, name=model.inputs[0].name),
        clone_function=functools.partial(_clone_layer, grid=grid, dtype=dtype, keeps_lora=keeps_lora),
    )
    if of_text:
        copy = TextTransformer(graph.input, graph.output, name=model.name, config=model.config)
        copy.tokenizer, copy.provenance = model.tokenizer, model.provenance
        copy.logit_scale, copy.logit_bias = model.logit_scale, model.logit_bias
        return copy
    return type(model)(
        graph.input,
        graph.output,
        name=model.name,
        config=model.config,
        preprocessing=record_for(input_shape, model.preprocessing),
        weights_facts=model.provenance,
        class_names=model.class_names,
        head_kind=model.head_kind,
        similarity=(model.logit_scale, model.logit_bias),
        mask_token=model.mask_token,
        **model.own_arguments(),
    )


def unwrapped(model: Any) -> Any:
    """A copy of a model around an encoder whose layers are all in one graph; any other model as it is.

    A functional or sequential model of the user's has an encoder of this package among its layers. In the copy the
    encoder's layers are in the place of it, and a last `Dense` layer, also before a softmax, is the head. If that is
    the encoder's own, the names of its outputs are too.

    Raises:
        TypeError: if the encoder has a head of its own, which the layers after it would be taken for, or if layers of
            the user's own in front of it compute something.
    """
    inside = () if isinstance(model, ImageModel) else getattr(model, "layers", ())
    encoders = [layer for layer in inside if isinstance(layer, ImageModel) and layer.config is not None]
    is_graph = hasattr(model, "inputs") and hasattr(model, "outputs")  # and no subclass of `keras.Model`
    if len(encoders) != 1 or not (model.built and is_graph) or len(model.inputs) != 1 or len(model.outputs) != 1:
        return model
    encoder, copies = encoders[0], {}
    check_takes_images(encoder)
    bare = keras.Model(model.inputs[0], model.outputs[0])
    _check_front(bare, encoder)
    taken = {layer.name for layer in encoder.layers}

    def copy_of(layer: Any) -> Any:
        if layer is encoder or not isinstance(layer, keras.layers.Layer):
            return layer
        if id(layer) not in copies:
            name = f"own_{layer.name}" if layer.name in taken and layer not in encoder.layers else layer.name
            copies[id(layer)] = (layer, _clone_layer(layer, None, None, True, name))
        return copies[id(layer)][1]

    images = keras.Input(encoder.input_shape[1:], name=encoder.inputs[0].name)
    with uninitialized_variables():
        inner = keras.models.clone_model(
            keras.Model(encoder.input, encoder.output), input_tensors=images, clone_function=copy_of
        )
        graph = keras.models.clone_model(
            bare,
            input_tensors=images,
            clone_function=copy_of,
            call_function=lambda layer, *args, **kwargs: inner.output if layer is encoder else layer(*args, **kwargs),
        )
    variables: dict[Any, Variable] = {}
    values: dict[Any, Any] = {}
    for number, (layer, copy) in enumerate(copies.values()):
        variables |= {(number, place): weight for place, weight in _by_path(copy).items()}
        values |= {(number, place): ops.convert_to_numpy(weight) for place, weight in _by_path(layer).items()}
    initialize_variables(variables, values)
    keeps_head = encoder.classes and all(isinstance(layer, (*_ELEMENTWISE, type(encoder))) for layer in bare.layers)
    names = getattr(model, "class_names", None) or (encoder.class_names if keeps_head else None)
    return type(encoder)(
        graph.input,
        _with_head(graph),
        name=model.name,
        class_names=tuple(names) if isinstance(names, (list, tuple)) else None,
        config=encoder.config,
        preprocessing=encoder.preprocessing,
        weights_report=encoder.load_report,
        weights_facts=encoder.provenance,
        head_kind=encoder.head_kind if keeps_head else DEFAULT_HEAD,
    )


def _check_front(model: keras.Model, encoder: ImageModel) -> None:
    fronts = call_inputs(model, encoder)
    own = [name for front in fronts for name in user_operations(keras.Model(model.inputs, front[0]))]
    if own or len(fronts) != 1:
        raise TypeError(
            "layers of your own in front of an encoder are not served: what pixels they take is not known.\n"
            f"Received: {model.name!r} with {', '.join(map(repr, own)) or f'{len(fronts)} calls of the encoder'}. Put "
            "what they compute into the encoder's `preprocessing`, or after it."
        )


def _with_head(graph: keras.Model) -> Tensor:
    """The output of a graph whose last dense layer has the name of a head."""
    *_, before, last = graph.layers
    activation = "softmax" if isinstance(last, keras.layers.Softmax) else getattr(last, "activation", None)
    dense = before if isinstance(last, (keras.layers.Softmax, keras.layers.Activation)) else last
    others = [layer.name for layer in graph.layers if layer.name in HEADS and layer is not dense]
    if others:
        raise TypeError(
            "an encoder inside a model of your own must have no head, which the layers after it would be taken for.\n"
            f"Received: {graph.name!r} around a model with {others[0]!r}. Build that with `include_top=False`."
        )
    ends = dense.output is graph.output or last.input is dense.output
    words = {None: "linear", "softmax": "softmax"} | {each: each.__name__ for each in _SCORES}
    if not isinstance(dense, keras.layers.Dense) or not ends or activation not in words:
        return graph.output
    if dense is not last and dense.activation is not keras.activations.linear:
        return graph.output
    head = keras.layers.Dense.from_config({**dense.get_config(), "activation": words[activation], "name": "head"})
    output = head(dense.input)
    head.set_weights(dense.get_weights())
    return output


_ELEMENTWISE = (keras.layers.InputLayer, keras.layers.Softmax, keras.layers.Activation, keras.layers.Dropout)
_SCORES = (keras.activations.linear, keras.activations.softmax, keras.activations.sigmoid)


def transfer_weights(
    model: ImageModel, copy: ImageModel, resize_method: str | None, copy_of: Callable[[Any], Any] | None = None
) -> tuple[str, ...]:
    """Gives `copy`, a clone made inside `uninitialized_variables`, the weights of `model` at its own grid.

    `copy_of` is as in `with_dtype`.
    """
    variables: dict[str, Variable] = {}
    values: dict[str, Any] = {}  # weights until their turn, so that their arrays are never there together
    if [len(layer.weights) for layer in model.layers] != [len(layer.weights) for layer in copy.layers]:
        release([variable for layer in copy.layers for variable in layer.weights])
        raise ValueError(
            "a layer must have the weights that its configuration makes, and LoRA adds some.\n"
            f"Received: {model.name!r} with {len(model.weights)} weights instead of {len(copy.weights)}. "
            "Pass what `merge_lora(model)` gives."
        )
    for source, target in zip(flatten_layers(model), flatten_layers(copy), strict=True):
        target.trainable = source.trainable
    for layer, cloned in zip(model.layers, copy.layers, strict=True):
        sources, targets = _by_path(layer), _by_path(cloned)
        for place, source in sources.items():
            target = targets.pop(place)
            variables[f"{layer.name}/{place}"], values[f"{layer.name}/{place}"] = target, source
            target.trainable = source.trainable
    values, report = _resized(model, copy, values, resize_method)
    initialize_variables(variables, values, copy_of or (lambda value: float32_copy(ops.convert_to_numpy(value))))
    return report


def _resized(
    model: ImageModel, copy: ImageModel, values: dict[str, Any], resize_method: str | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values with those of positions resized to the copy's grid, and lines that say so."""
    parts = (flatten_layers(each) for each in (model, copy))
    pairs = [(old, new) for old, new in zip(*parts, strict=True) if isinstance(old, _WITH_POSITIONS)]
    lines = []
    for old, new in pairs:
        if isinstance(old, layers.RelativePositions) and old.num_patches != new.num_patches:
            lines.append(f"relative positions resized from {old.num_patches} to {new.num_patches} patches (linear)")
            resized = old.weights_at(new.num_patches)
        elif isinstance(old, layers.AddPositionEmbs) and old.grid != new.grid and old.weights:
            method = resize_method if resize_method in RESIZE_METHODS else old.resize_method
            lines.append(f"position embedding resized from {old.grid} to {new.grid} ({method})")
            resized = old.weights_at(new.grid, method)
        elif isinstance(old, layers.AxisPositions) and old.grid != new.grid:
            lines.append(f"positions of rows and columns resized from {old.grid} to {new.grid} (bilinear)")
            resized = old.weights_at(new.grid)
        elif isinstance(old, layers.RelativeBias) and old.grid != new.grid:
            method = resize_method if resize_method in RELATIVE_RESIZE_METHODS else old.resize_method
            lines.append(f"relative bias resized from {old.grid} to {new.grid} ({method})")
            resized = old.weights_at(new.grid, method)
        else:
            continue
        scope = old.path.removeprefix(f"{model.name}/")
        values |= {f"{scope}/{name}": value for name, value in resized.items()}
    return values, tuple(dict.fromkeys(lines))


_WITH_POSITIONS = (layers.AddPositionEmbs, layers.RelativePositions, layers.RelativeBias, layers.AxisPositions)
_OF_GRIDS = (layers.AddPositionEmbs, layers.RelativeBias, layers.WindowedBlock)


def _by_path(layer: keras.layers.Layer) -> dict[str, Variable]:
    """`{path inside the layer: weight}`. Their order differs: Keras quantises to float8 by adding weights after the
    kernel, and builds a float8 layer with them before it."""
    places: dict[str, Variable] = {}
    for weight in layer.weights:
        place = weight.path.partition(f"{layer.name}/")[2]
        places[f"{place}+{len(places)}" if place in places else place] = weight
    return places


def _clone_layer(
    layer: keras.layers.Layer, grid: Pair | None, dtype: Any, keeps_lora: bool, name: str | None = None
) -> keras.layers.Layer:
    if not isinstance(layer, keras.layers.Layer):  # an operation, as of `2 * x`
        return layer
    config = layer.get_config()
    if name is not None:
        config["name"] = name
    if not keeps_lora:
        config = {name: config[name] for name in config if name != "frozen" and not name.startswith("lora")}
        config["trainable"] = True
    if dtype is not None:
        config["dtype"] = at_least_float32(dtype) if layer.name in FLOAT32_LAYERS else dtype
    if isinstance(layer, _OF_GRIDS) and grid is not None:
        config["grid"] = grid
    if grid is not None and config.get("relative_patches") is not None:
        config["relative_patches"] = math.prod(grid)
    return type(layer).from_config(config)
