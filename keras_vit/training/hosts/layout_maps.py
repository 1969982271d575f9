"""How a model's weights are sharded over devices: `keras_vit.layout_map`, for `keras.distribution.ModelParallel`.

Keras lays a weight out as it is made, so the map must be there before the model. It is made from the paths and shapes
of a twin that is built without values, which takes no memory.
"""

import math
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from keras_vit.annotations import Arguments
from keras_vit.builders import build
from keras_vit.checks import check_choice, check_int
from keras_vit.config.parts import block_parts
from keras_vit.config.vit import ViTConfig
from keras_vit.model.copies import release, uninitialized_variables
from keras_vit.model.layer_access import token_layers, weight_paths
from keras_vit.model.vision_transformer import VisionTransformer

KINDS = ("fsdp", "tensor", "replicated")
LARGE = 4_000_000  # bytes: a smaller weight costs more to gather than it saves
ITEM = 4  # bytes of a number: weights are float32
# Dense layers cut by their outputs compute some heads and a part of the MLP's width on each device. Of those cut by
# their inputs the parts of the product are added up.
_CUTS = {part.path: part.cut for gated in (False, True) for part in block_parts(1, 1, gated_mlp=gated)}
_ANY_SCOPE = "(?:.*/)?"  # a model may be built in a scope of names


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
    found = sharding_rules(shapes, parts, axis, kind, large)
    if kind != "replicated":
        check_covered(shapes, found, large)
    layout = keras.distribution.LayoutMap(mesh)
    for pattern, spec in found.items():
        layout[pattern] = spec
    if found:
        layout[output_pattern(names)] = (mesh.axis_names[0], None, None)
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
        ValueError: a layout must have exactly one pattern for every large weight.
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
                "arguments of a model must be left out where it is built.\n"
                f"Received: {', '.join(arguments)} for {model.name!r}."
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


def sharding_rules(shapes: dict, parts: int, axis: str, kind: str, large: int = LARGE) -> dict:
    """Which weights are cut, and along which of their axes.

    Args:
        shapes: of the weights, by path, as `{"block_00/mlp/dense_1/kernel": (192, 768)}`.
        parts: devices along the axis of the mesh.
        axis: name of that axis.
        kind: one of `KINDS`.
        large: bytes; weights above must be cut, all but with `"replicated"`.

    Returns:
        `{pattern: spec}`: a regular expression for whole paths, and for each axis of the weight `axis` or `None`.

    Raises:
        ValueError: if a large weight has no axis that can be cut into so many equal parts.
    """
    check_choice("kind", kind, KINDS)
    found: dict[str, tuple] = {}
    if kind == "replicated":
        return found
    wrong = []
    for path, shape in shapes.items():
        spec = _cut_for_tensor(path, shape) if kind == "tensor" else None
        if spec is None and math.prod(shape) * ITEM > large:
            spec = _largest_divisible(shape, parts)
        if spec is None or shape[spec] % parts:
            if spec is not None or math.prod(shape) * ITEM > large:
                wrong.append((path, shape))
            continue
        found[pattern_of(path)] = tuple(axis if index == spec else None for index in range(len(shape)))
    if wrong:
        raise _indivisible(wrong, parts)
    return found


def pattern_of(path: str) -> str:
    """A regular expression for the same weight of every block, in whatever scope the model is built."""
    return _ANY_SCOPE + re.sub(r"block_\d+", r"block_\\d+", path)


def output_pattern(names: Iterable[str]) -> str:
    """A pattern for the outputs of layers, whose tokens `(B, T, D)` must lie whole on the device of their images.

    Otherwise XLA may cut tokens along D, and send them instead of weights.
    """
    kinds = dict.fromkeys(re.sub(r"_\d+$", r"_\\d+", name) for name in names)
    return f"{_ANY_SCOPE}(?:{'|'.join(kinds)})/output"


def check_covered(shapes: dict, patterns: Iterable[str], large: int = LARGE) -> None:
    """Raises unless every large weight is matched by one pattern, and every pattern matches.

    Args:
        shapes: of the weights, by path.
        patterns: regular expressions for whole paths, as the keys of a `keras.distribution.LayoutMap`; some may be
            for what a layer puts out, as `"block_00/output"`.
        large: bytes.

    Raises:
        ValueError: for a weight above `large` that no pattern matches, and for one that two match, which Keras could
            not lay out. Also for a pattern that matches nothing, which Keras would ignore.
    """
    for key in patterns:
        try:
            re.compile(key)
        except re.error as error:
            raise ValueError(f"patterns are regular expressions.\nReceived: {key!r}: {error}.") from None
    matches = {path: [key for key in patterns if key == path or re.fullmatch(key, path)] for path in shapes}
    none = [path for path, shape in shapes.items() if not matches[path] and math.prod(shape) * ITEM > large]
    two = [f"{path} by {' and '.join(found)}" for path, found in matches.items() if len(found) > 1]
    outputs = {f"{'/'.join(path.split('/')[:depth])}/output" for path in shapes for depth in (1, 2, 3)}
    used = {key for found in matches.values() for key in found}
    used |= {key for key in patterns if any(re.fullmatch(key, path) for path in outputs)}
    idle = [key for key in patterns if key not in used]
    faults = {
        f"no pattern matches a weight above {large / 1e6:g} MB, which every device would hold whole": none,
        "two patterns match one weight": two,
        "a pattern matches no weight, so it would be ignored": idle,
    }
    found = [f"{fault}: {', '.join(items[:5])}{' ...' * (len(items) > 5)}" for fault, items in faults.items() if items]
    if found:
        raise ValueError(
            "a layout must have exactly one pattern for every large weight.\n"
            f"Received: {'; '.join(found)}. Patterns are regular expressions for whole paths: see `model.weights`."
        )


def check_shared(shapes: dict, specs: dict, sizes: dict) -> None:
    """Raises unless devices can share every weight as its layout says.

    Args:
        shapes: of the weights, by path.
        specs: `{pattern: spec}`, where a spec has for each axis of a weight the name of an axis of the mesh, or `None`.
        sizes: devices along each axis of the mesh, by its name.

    Raises:
        ValueError: with each fault.
    """
    faults = []
    for path, shape in shapes.items():
        spec = next((spec for pattern, spec in specs.items() if pattern == path or re.fullmatch(pattern, path)), ())
        used = [axis for axis in spec if axis is not None]
        if spec and len(spec) != len(shape):
            faults.append(f"{path} {shape} has {len(shape)} axes, and its layout {spec} has {len(spec)}")
        elif unknown := [axis for axis in used if axis not in sizes]:
            faults.append(f"{path}: the mesh has no axis {unknown[0]!r}, but {', '.join(map(repr, sizes)) or 'none'}")
        elif len(set(used)) < len(used):
            faults.append(f"{path}: {spec} cuts two axes over the same devices")
        else:
            uneven = [n for n, axis in zip(shape, spec, strict=bool(spec)) if axis is not None and n % sizes[axis]]
            faults += [f"{path} {shape}: {n} cannot be cut into as many parts as {spec} says" for n in uneven[:1]]
    if faults:
        raise ValueError(
            "devices must be able to share every weight evenly, as its layout says.\n"
            f"Received: {'; '.join(faults[:5])}{' ...' * (len(faults) > 5)}. A pattern must match weights of one rank: "
            "biases have another than kernels."
        )


def check_heads(num_heads: int, mlp_dim: int, parts: int) -> None:
    """Raises unless devices can share the heads of attention, the fewest of any block, and the MLP's width evenly."""
    if num_heads % parts or mlp_dim % parts:
        raise ValueError(
            "tensor parallelism gives every device as many heads and as much of the MLP's width.\n"
            f"Received: {parts} devices along the last axis of the mesh, {num_heads} heads, mlp_dim={mlp_dim}. "
            f"Possible: {', '.join(map(str, _common_divisors(num_heads, mlp_dim)))} devices."
        )


def _cut_for_tensor(path: str, shape: Sequence[int]) -> int | None:
    """The axis along which tensor parallelism cuts a weight, or `None` for those that it leaves whole."""
    layer, _, name = path.rpartition("/")
    cut = next((cut for part, cut in _CUTS.items() if f"/{layer}".endswith(f"/{part}")), None)
    if cut == "outputs":
        return len(shape) - 1
    return 0 if cut == "inputs" and name == "kernel" else None


def _largest_divisible(shape: Sequence[int], parts: int) -> int | None:
    """The largest axis that `parts` divides, of equal ones the last; `None` if there is none."""
    axes = [index for index, size in enumerate(shape) if size % parts == 0]
    return max(axes, key=lambda index: (shape[index], index), default=None)


def _indivisible(wrong: Sequence[tuple[str, Sequence[int]]], parts: int) -> ValueError:
    listed = ", ".join(f"{path} {tuple(shape)}" for path, shape in wrong[:5])
    most = max((p for p in range(1, parts) if all(_largest_divisible(s, p) is not None for _, s in wrong)), default=1)
    return ValueError(
        "every large weight must have an axis that the devices can share evenly.\n"
        f"Received: {parts} devices for {listed}{' ...' * (len(wrong) > 5)}. Nearest: {most} along this axis of the "
        "mesh."
    )


def _common_divisors(*numbers: int) -> list[int]:
    common = math.gcd(*numbers)
    return [number for number in range(1, common + 1) if common % number == 0]
