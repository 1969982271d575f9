"""How a model's weights are spread over devices: `keras_vit.layout_map`, for `keras.distribution.ModelParallel`.

Keras lays a weight out as it is made, so the map must be there before the model. It is made from the paths and shapes
of a twin that is wired without values, which takes no memory.
"""

import math
import random
from typing import Any

import keras

from keras_vit.annotations import Arguments
from keras_vit.builders import build
from keras_vit.checks import check_choice, check_int
from keras_vit.config.vit import ViTConfig
from keras_vit.model.copies import release, uninitialized_variables
from keras_vit.model.layer_access import token_layers, weight_paths
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.training.hosts.sharding import KINDS, LARGE, anchor, check_covered, check_heads, check_shared, rules


def layout_map(
    model: VisionTransformer | ViTConfig | str, mesh: Any, kind: str = "fsdp", *, large: int = LARGE, **arguments: Any
) -> Any:
    """Makes a `keras.distribution.LayoutMap` for a model, by which JAX devices share its weights.

    Example:
        >>> # on the JAX backend, with two devices
        >>> mesh = keras.distribution.DeviceMesh((2,), ("data",))
        >>> layout = keras_vit.layout_map("Ti/16", mesh, large=500_000, classes=10)
        >>> layout["block_3/mlp/dense_1/kernel"].axes
        (None, 'data')
        >>> parallel = keras.distribution.ModelParallel(layout_map=layout)
        >>> keras.distribution.set_distribution(parallel)
        >>> model = keras_vit.ViTTi16(classes=10)

    Args:
        model: what `keras_vit.build` takes first, a variant's name as `"L/16"` or a `ViTConfig`; or a model, whose
            weights stay where they are.
        mesh: a `keras.distribution.DeviceMesh`. Its first axis shares the batch.
        kind: `"fsdp"` cuts every weight above `large` along its largest axis that the first axis of the mesh divides.
            `"tensor"` cuts heads and MLP over the last axis of a mesh of two, and what else is above `large`.
            `"replicated"` cuts nothing. Moments and averages of `keras_vit.SGD`, `keras_vit.AdamW` and of Keras'
            optimizers are cut as their weights are.
        large: bytes.
        **arguments: those of `keras_vit.build` that the model will get, as `classes` and `input_shape`.

    Returns:
        A `keras.distribution.LayoutMap`, for `keras.distribution.ModelParallel`.

    Raises:
        ValueError: on a backend other than JAX, which would ignore it; for a mesh without the axis; where a large
            weight, or heads and MLP, cannot be shared evenly.
        TypeError: for a mesh that is none.
    """
    check_choice("kind", kind, KINDS)
    large = check_int("large", large, least=0)
    check_backend()
    axis, parts = _axis(mesh, kind)
    shapes, config, names = _shapes(model, arguments)
    if kind == "tensor":
        check_heads(min(config.kv_heads or (config.num_heads,)), config.mlp_dim, parts)
    found = rules(shapes, parts, axis, kind, large)
    if kind != "replicated":
        check_covered(shapes, found, large)
    layout = keras.distribution.LayoutMap(mesh)
    for pattern, spec in found.items():
        layout[pattern] = spec
    if found:
        layout[anchor(names)] = (mesh.axis_names[0], None, None)
    return layout


def check_layout(
    layout: Any, model: VisionTransformer | ViTConfig | str, *, large: int = LARGE, **arguments: Any
) -> None:
    """Checks that a layout map of your own covers a model's weights, and that devices can share them so.

    Example:
        >>> # on the JAX backend, with two devices
        >>> mesh = keras.distribution.DeviceMesh((2,), ("data",))
        >>> layout = keras.distribution.LayoutMap(mesh)
        >>> layout["my_head/kernel"] = ("data", None)
        >>> keras_vit.check_layout(layout, "Ti/16", classes=10)
        Traceback (most recent call last):
            ...
        ValueError: a layout must say of every large weight once how it is cut.
        Received: a pattern matches no weight, so it would be ignored: my_head/kernel...

    Args:
        layout: a `keras.distribution.LayoutMap`.
        model: as `layout_map` takes it, with its `**arguments`.
        large: bytes.
        **arguments: those of `keras_vit.build`.

    Raises:
        ValueError: for a weight above `large` that no pattern matches, one that two match, and a pattern that matches
            nothing or is no regular expression. Also for a weight of other axes than its layout has, or with an axis
            that the mesh does not have, has given already, or cannot cut evenly.
        TypeError: for what is no layout map.
    """
    if not isinstance(layout, keras.distribution.LayoutMap):
        raise TypeError(f"`layout` must be a keras.distribution.LayoutMap.\nReceived: layout={layout!r}.")
    large = check_int("large", large, least=0)
    shapes, *_ = _shapes(model, arguments)
    check_covered(shapes, list(layout), large)
    mesh = layout.device_mesh
    sizes = {} if mesh is None else dict(zip(mesh.axis_names, mesh.shape, strict=True))
    check_shared(shapes, {pattern: tuple(layout[pattern].axes) for pattern in layout}, sizes)


def shapes_of(model: VisionTransformer | ViTConfig | str, **arguments: Any) -> dict:
    """`{path: shape}` of the weights of a model as `layout_map` takes it, made without values."""
    return _shapes(model, arguments)[0]


def check_backend() -> None:
    """Raises unless Keras' backend is the one that spreads weights over devices."""
    if keras.backend.backend() != "jax":
        raise ValueError(
            "`keras.distribution` is JAX's; Keras ignores it on other backends, and every device would do all.\n"
            f"Received: the {keras.backend.backend()} backend. Set KERAS_BACKEND=jax before Keras is imported, or on "
            "TensorFlow build and compile in the scope of a `tf.distribute` strategy."
        )


def _axis(mesh: Any, kind: str) -> tuple[str, int]:
    """Name and size of the axis of the mesh that weights are cut over."""
    if not isinstance(mesh, keras.distribution.DeviceMesh):
        raise TypeError(f"`mesh` must be a keras.distribution.DeviceMesh.\nReceived: mesh={mesh!r}.")
    names, sizes = list(mesh.axis_names), tuple(mesh.shape)
    if kind == "tensor" and len(names) != 2:
        raise ValueError(
            "tensor parallelism takes a mesh of two axes: the first shares the batch, the last the weights.\n"
            f"Received: a mesh of shape {sizes}. Make it as DeviceMesh((1, {math.prod(sizes)}), ('data', 'model'))."
        )
    index = -1 if kind == "tensor" else 0
    return names[index], sizes[index]


def _shapes(model: Any, arguments: Arguments) -> tuple[dict[str, tuple], ViTConfig, list]:
    """`{path: shape}` of the weights of a model, or of what `build` would make, its config, and its token layers."""
    if isinstance(model, VisionTransformer):
        if arguments:
            raise ValueError(
                f"a model that is built has its arguments.\nReceived: {', '.join(arguments)} for {model.name!r}."
            )
        return _paths(model), model.config, _token_layers(model)
    state = random.getstate()  # of which Keras draws the seeds of layers and initializers
    with uninitialized_variables():
        twin = build(model, **arguments)
    random.setstate(state)
    found = _paths(twin), twin.config, _token_layers(twin)
    release(twin.variables)
    return found


def _token_layers(model: VisionTransformer) -> list[str]:
    """Names of the layers with weights that put out tokens."""
    return [layer.name for layer in token_layers(model) if layer.weights]


def _paths(model: keras.Model) -> dict[str, tuple]:
    return {path: tuple(variable.shape) for path, variable in weight_paths(model).items()}
