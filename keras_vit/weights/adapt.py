"""Fitting the tensors of a file to a model of another resolution, patch size, number of channels, tokens or classes.

Functions that are given `tensors` change them in place and give a line for each change. NumPy only.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.config.position_tables import relative_rows, resize_matrix, resize_pos_embed, resize_relative_table
from keras_vit.config.records import FIXED_POSITIONS
from keras_vit.config.vit import ViTConfig
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.checkpoint import (
    HEAD_KERNEL,
    HEADS,
    PATCH_BIAS,
    PATCH_KERNEL,
    PRE_LOGITS_KERNEL,
    PREFIX_TOKENS,
    ROOT_KERNEL,
    TABLE,
    Checkpoint,
)
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.families.layout import Layout
from keras_vit.weights.infer_fields import LAST_NORMS, infer_final_norm
from keras_vit.weights.read import CheckpointError

_OUTSIDE = re.compile("set aside head outside")


def fit_channels(
    shapes: dict[str, tuple[int, ...]], tensors: dict[str, np.ndarray], preprocessing: Preprocessing | None = None
) -> list[str]:
    """Gives the first convolution the model's number of input channels.

    One channel gets the sum over the file's channels. More channels than the file's repeat those in turn
    (channel i takes i mod C), each divided by how often it was taken. Either way an image whose channels
    are all equal gives the tokens that the file's model gives it.

    Args:
        shapes: `{path: shape}` of the model.
        tensors: of the file, by weight path.
        preprocessing: the file's `Preprocessing`, if the model's images are prepared by it. Where it differs from
            channel to channel, a single channel takes the averages, and kernel and bias make up for the difference.
    """
    path = ROOT_KERNEL if ROOT_KERNEL in shapes else PATCH_KERNEL
    kernel = tensors.get(path)
    if kernel is None or path not in shapes or kernel.ndim != 4:
        return []
    old, new = kernel.shape[2], shapes[path][2]
    if old == new or not old:
        return []
    if new == 1 and path == PATCH_KERNEL and preprocessing is not None and len(preprocessing.mean) == old:
        kernel = _fold_statistics(kernel, tensors, preprocessing)
    if new == 1:
        tensors[path] = kernel.astype("float32").sum(axis=2, keepdims=True)
        return [f"input channels {old} to 1 (summed)"]
    if new < old:
        return []  # no channel may be dropped without a word: the check of the fit refuses
    source = np.arange(new) % old
    copies = np.bincount(source, minlength=old)[source]
    tensors[path] = (kernel[:, :, source] / copies[:, None]).astype("float32")
    return [f"input channels {old} to {new} (repeated)"]


def _fold_statistics(kernel: np.ndarray, tensors: dict[str, np.ndarray], preprocessing: Preprocessing) -> np.ndarray:
    """The kernel for channels that have all been scaled alike, with what that shifts in the bias.

    m and s are mean and deviation of a channel, m' and s' their averages over channels:
    (p - m) / s = s'/s (p - m') / s' + (m' - m) / s.
    """
    one = preprocessing.with_channels(1)
    mean, std = np.asarray(preprocessing.mean), np.asarray(preprocessing.std)
    if len({*preprocessing.mean}) == len({*preprocessing.std}) == 1 or PATCH_BIAS not in tensors:
        return kernel
    shift = np.einsum("hwcd,c->d", kernel.astype("float64"), (one.mean[0] - mean) / std)
    tensors[PATCH_BIAS] = (tensors[PATCH_BIAS] + shift).astype("float32")
    return kernel.astype("float64") * (one.std[0] / std)[:, None]


def fit_patches(shapes: dict[str, tuple[int, ...]], tensors: dict[str, np.ndarray]) -> list[str]:
    """Resizes the patch kernel to the model's patch size by the pseudo-inverse of a bilinear resize.

    A patch and its kernel, both resized, keep their product as far as the pixels allow: exactly, when the
    patch grows.

    Args:
        shapes: `{path: shape}` of the model.
        tensors: of the file, by weight path.

    Source: arXiv:2212.08013 (FlexiViT), section 3.4.
    """
    kernel = tensors.get(PATCH_KERNEL)
    if kernel is None or PATCH_KERNEL not in shapes or kernel.ndim != 4 or 0 in kernel.shape:
        return []
    old, new = kernel.shape[:2], tuple(shapes[PATCH_KERNEL][:2])
    if old == new:
        return []
    rows, columns = (_pseudo_inverse(n, o) for n, o in zip(new, old, strict=True))
    resized = np.einsum("ih,jw,hwcd->ijcd", rows, columns, kernel.astype("float64"), optimize=True)
    tensors[PATCH_KERNEL] = resized.astype("float32")
    return [f"patch kernel resized from {old[0]}x{old[1]} to {new[0]}x{new[1]} (pseudo-inverse)"]


def _pseudo_inverse(new: int, old: int) -> np.ndarray:
    """`(new, old)`: what a kernel's axis is multiplied by, where the image's axis is resized from `old` to `new`."""
    indices = np.arange(new, dtype="float64")
    resize = resize_matrix(indices, float(new), old, "bilinear", np)  # (new, old)
    return np.linalg.pinv(resize.astype("float64").T)


def fit_positions(layer: Any, checkpoint: Checkpoint, tensors: dict[str, np.ndarray], resize_method: str) -> list[str]:
    """Resizes the position table to the model's grid; compares grids, since counts can be equal.

    Args:
        layer: an `AddPositionEmbs` of the model.
        checkpoint: the `Checkpoint`, which knows the grid of the file.
        tensors: its tensors.
        resize_method: one of `keras_vit.config.position_tables.RESIZE_METHODS`.

    Raises:
        CheckpointError: if the file's grid must be known and is not.
    """
    path = f"{layer.name}/table"
    if path not in tensors:
        return []
    table, prefix, grid = tensors[path], checkpoint.num_prefix_tokens, checkpoint.grid
    if layer.kind in FIXED_POSITIONS:
        fixed = None if grid is None else layer.table_at(grid)
        if fixed is not None and fixed.shape == table.shape and np.allclose(fixed, table, atol=1e-5):
            del tensors[path]  # which the model computes by itself; the check of the fit refuses another kind
        return []
    if grid is None and table.shape[-2] - prefix == layer.grid[0] * layer.grid[1]:
        grid = layer.grid
    if grid is None or grid[0] * grid[1] != table.shape[-2] - prefix:
        raise CheckpointError(
            "the grid of the position table must be known: it is neither square nor the model's.\n"
            f"Received: {table.shape[-2] - prefix} patches in {checkpoint.path}, grid={grid}, model {layer.grid}. "
            "Pass `grid=(h, w)` to `load_checkpoint`."
        )
    if grid == layer.grid:
        return []
    tensors[path] = resize_pos_embed(table, layer.grid, grid, num_prefix_tokens=prefix, method=resize_method)
    return [f"position embedding resized from {grid} to {layer.grid} ({resize_method})"]


def fit_biases(layers: Sequence[Any], checkpoint: Checkpoint, tensors: dict[str, np.ndarray], method: str) -> list[str]:
    """Resizes tables of relative bias to the model's grid.

    Args:
        layers: the model's `RelativeBias` layers.
        checkpoint: the `Checkpoint`, which knows the grid of the file.
        tensors: its tensors.
        method: one of `keras_vit.config.position_tables.RELATIVE_RESIZE_METHODS`.
    """
    lines = []
    for layer in layers:
        table, grid = tensors.get(f"{layer.name}/table"), checkpoint.grid or layer.grid
        if table is None or table.ndim != 2 or len(table) != relative_rows(grid) or grid == layer.grid:
            continue  # what does not fit is refused by the check of the fit
        tensors[f"{layer.name}/table"] = resize_relative_table(table, layer.grid, grid, method)
        lines.append(f"relative bias resized from {grid} to {layer.grid} ({method})")
    return list(dict.fromkeys(lines))


def fit_axis_positions(blocks: Sequence[Any], tensors: dict[str, np.ndarray]) -> list[str]:
    """Resizes positions of rows and columns to the model's grid, in blocks without windows.

    Args:
        blocks: the model's.
        tensors: of the file.
    """
    lines = []
    for block in blocks:
        if getattr(block, "positions", None) is None or block.window_size is not None:
            continue
        for name, side in zip(("rows", "columns"), block.grid, strict=True):
            path, count = f"{block.name}/positions/{name}", 2 * side - 1
            table = tensors.get(path)
            if table is not None and table.ndim == 2 and len(table) not in (0, count):
                matrix = resize_matrix(np.arange(count, dtype="float64"), float(count), len(table), "bilinear", np)
                tensors[path] = (matrix @ table.astype("float64")).astype("float32")
                lines.append(f"positions of {name} resized from {len(table)} to {count} (bilinear)")
    return list(dict.fromkeys(lines))


def drop_tokens(checkpoint: Checkpoint, kept: Collection[str]) -> Checkpoint:
    """Drops the prefix tokens that a model lacks, with a remark for each part.

    The class token always stays: where the model has none, the check of the fit refuses the file.

    Args:
        checkpoint: of a Vision Transformer.
        kept: names of the model's prefix tokens.
    """
    tensors, rows, remarks = dict(checkpoint.tensors), list(checkpoint.prefix_tokens), list(checkpoint.remarks)
    for name in checkpoint.prefix_tokens:
        if name == "class" or name in kept:
            continue
        del tensors[PREFIX_TOKENS[name]]
        remarks.append(f"set aside {name}_token, to which the file's patches attend")
        row = rows.index(name)
        rows.remove(name)
        if TABLE in tensors and tensors[TABLE].ndim == 3:
            tensors[TABLE] = np.delete(tensors[TABLE], row, axis=1)  # (1, T, D)
            remarks.append(f"set aside row {row} of position_embedding, the {name} token's")
        remarks += drop_layer(tensors, HEADS[name])
    return dataclasses.replace(checkpoint, tensors=tensors, remarks=tuple(remarks))


def drop_pooling(checkpoint: Checkpoint, config: ViTConfig) -> Checkpoint:
    """Drops the pooling, and perhaps the last LayerNorm, for a model of all tokens.

    A remark says what is set aside. Of a model that pools otherwise than the file nothing is, so that it is refused.

    Args:
        checkpoint: of a Vision Transformer.
        config: of the model.
    """
    lacking = ("pooling", *(LAST_NORMS.values() if config.final_norm == "none" else ()))
    return _without(checkpoint, lacking if config.pooling == "none" else ())


def select_head(checkpoint: Checkpoint, classifies: bool) -> Checkpoint:
    """Drops the classifier, or the pooling that the classifier does not use.

    Some software pools otherwise for a classifier than for the encoder's own vector. A remark says what is set aside.

    Args:
        checkpoint: of a Vision Transformer.
        classifies: whether the model has a classifier; else it gives the encoder's own vector.
    """
    computed = LAYOUTS[checkpoint.layout].classifier if HEAD_KERNEL in checkpoint.tensors else {}
    lacking = ("pooling", *(LAST_NORMS.values() if computed.get("final_norm") == "none" else ()))
    return _without(checkpoint, (lacking if classifies else ("head",)) if computed else ())


def _without(checkpoint: Checkpoint, layers: Iterable[str]) -> Checkpoint:
    tensors, remarks = dict(checkpoint.tensors), list(checkpoint.remarks)
    for layer in layers:
        remarks += drop_layer(tensors, layer)
    return dataclasses.replace(checkpoint, tensors=tensors, remarks=tuple(remarks))


def check_pre_logits(checkpoint: Checkpoint, tensors: Mapping[str, np.ndarray]) -> None:
    """Raises if `tensors` hold pre-logits with another activation than tanh."""
    if PRE_LOGITS_KERNEL in tensors and checkpoint.pre_logits_activation != "tanh":
        raise CheckpointError(
            "the pre-logits of a model here end in tanh. With another function, the same weights give other numbers.\n"
            f"Received: pooler_act {checkpoint.pre_logits_activation!r} in the config.json of {checkpoint.path}. "
            "Build without them: `include_top=False`, or `classes=k` for a new head."
        )


def check_classifier(checkpoint: Checkpoint, row: Layout) -> None:
    """Raises if the layout's software pools otherwise for a classifier than the model."""
    in_model = {"pooling": checkpoint.fields["pooling"], "final_norm": infer_final_norm(checkpoint.tensors)}
    in_software = row.classifier if checkpoint.classes else {}
    if {**in_model, **in_software} != in_model or (in_model["pooling"] == "token_gap" and not in_software):
        says = ", ".join(f"{name}={value!r}" for name, value in in_software.items()) or "no class token with a mean"
        raise CheckpointError(
            f"{row.software}, which reads this layout, must pool as the model does, but its classifier has {says}.\n"
            f"Received: {', '.join(f'{name}={value!r}' for name, value in in_model.items())} of {checkpoint.path} for "
            f"{row.name!r}. Save it in another layout, or as .keras."
        )


def drop_layer(tensors: dict[str, np.ndarray], layer: str) -> list[str]:
    """Removes the tensors of a layer, and gives a remark."""
    dropped = [tensors.pop(path) for path in list(tensors) if path.startswith(f"{layer}/")]
    return [f"set aside {layer} {max(dropped, key=np.ndim).shape}"] if dropped else []


def resolve_classes(checkpoint: Checkpoint, classes: int | None) -> int:
    """K of a model: as given, else that of the file's head.

    Raises:
        CheckpointError: if neither is known.
    """
    known = checkpoint.classes if classes is None else classes
    if known is None:
        has = "has no head" if not any(map(_OUTSIDE.match, checkpoint.remarks)) else "has a head of no known place"
        raise CheckpointError(
            f"the checkpoint {has}, so `classes` must be given, or `include_top=False`.\n"
            f"Received: {checkpoint.path}, classes=None{'; '.join(('', *filter(_OUTSIDE.match, checkpoint.remarks)))}."
        )
    return known


def replaced_layers(
    checkpoint: Checkpoint, classes: int, pooled_tokens: Sequence[str] = (), representation_size: int | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The file's last layers that are dropped, and the model's last layers that are new.

    A head of another number of classes than the file's is new, and the file's pre-logits go with the old one.

    Args:
        checkpoint: the file.
        classes: K of the model, 0 for no head.
        pooled_tokens: names of the prefix tokens that the model's head reads.
        representation_size: width of the model's pre-logits, or `None` without them.
    """
    if classes == checkpoint.classes:
        return (), ()
    heads = tuple(dict.fromkeys(HEADS[name] for name in pooled_tokens)) or ("head",)  # which then reads the patches
    hidden = () if representation_size is None else ("pre_logits",)
    dropped_layers = heads if hidden else (*heads, "pre_logits")
    lacking = hidden if checkpoint.representation_size is None else ()
    return dropped_layers, lacking + (heads if classes else ())
