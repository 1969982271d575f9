"""Which axis of which weight is cut into parts: rules from paths and shapes alone, without a device.

FSDP (ZeRO stage 3, arXiv:1910.02054) cuts every large weight over the devices that share the batch. Tensor
parallelism (arXiv:1909.08053, section 3) gives each device some heads of attention and some of the MLP's width.
"""

import math
import re
from collections.abc import Iterable, Sequence

from keras_vit.checks import check_choice
from keras_vit.config.parts import block_parts

KINDS = ("fsdp", "tensor", "replicated")
LARGE = 4_000_000  # bytes: a smaller weight costs more to gather than it saves
ITEM = 4  # bytes of a number: weights are float32
# Dense layers cut by their outputs compute some heads and a part of the MLP's width on each device. Of those cut by
# their inputs the parts of the product are added up.
_CUTS = {part.path: part.cut for gated in (False, True) for part in block_parts(1, 1, gated_mlp=gated)}
_ANY_SCOPE = "(?:.*/)?"  # a model may be built in a scope of names


def rules(shapes: dict, parts: int, axis: str, kind: str, large: int = LARGE) -> dict:
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


def anchor(names: Iterable[str]) -> str:
    """A pattern for the outputs of layers, whose tokens `(B, T, D)` must lie whole beside their images.

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
    said = [f"{fault}: {', '.join(items[:5])}{' ...' * (len(items) > 5)}" for fault, items in faults.items() if items]
    if said:
        raise ValueError(
            "a layout must say of every large weight once how it is cut.\n"
            f"Received: {'; '.join(said)}. Patterns are regular expressions for whole paths: see `model.weights`."
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
