"""From a checkpoint file into a model, and back.

Loading is strict and total: every tensor of the file is used or set aside by name, every weight of
the model is assigned once, and all of it is checked before the first weight changes. The name of a
weight is its Keras path, as `block_00/attention/query/kernel`.
"""

import contextlib
import dataclasses
import logging
import os
import warnings
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_vit.posembed import RESIZE_METHODS, check_grid, resize_pos_embed, square_grid
from keras_vit.variants import VARIANTS, check_choice
from keras_vit.weights.official import DIALECTS, from_official, heads_of, recognise, to_official
from keras_vit.weights.reader import CheckpointError, forget_pages, read_npz
from keras_vit.weights.writer import write_npz

TABLE = "position_embedding/table"
_HEAD_LAYERS = ("encoder_norm", "pre_logits", "head")  # Keras' own layers among ours
_log = logging.getLogger("keras_vit")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The tensors of a file by our paths, and what the file says of itself."""

    path: Path
    dialect: str
    tensors: dict[str, np.ndarray]
    num_heads: int | None
    recorded_grid: tuple[int, int] | None = None

    @property
    def classes(self) -> int | None:
        """K, or `None` without a head."""
        return self._last_axis("head/kernel")

    @property
    def representation_size(self) -> int | None:
        """Width of the pre-logits, or `None` without them."""
        return self._last_axis("pre_logits/kernel")

    @property
    def num_prefix_tokens(self) -> int:
        """1 with a class token, else 0."""
        return int("class_token/token" in self.tensors)

    @property
    def grid(self) -> tuple[int, int] | None:
        """`(h, w)` of the position table: as recorded, else square, else unknown."""
        if not self.has_positions:
            return None
        return self.recorded_grid or square_grid(self.tensors[TABLE].shape[-2] - self.num_prefix_tokens)

    @property
    def has_positions(self) -> bool:
        """Whether there is a position table."""
        return TABLE in self.tensors

    def _last_axis(self, path):
        return self.tensors[path].shape[-1] if path in self.tensors else None

    def looks_like(self) -> str:
        """What the file holds, by the published variant of the same shapes or else in numbers."""
        blocks = {path.split("/")[0] for path in self.tensors if path.startswith("block_")}
        width, mlp_dim = self._last_axis("encoder_norm/beta"), self._last_axis("block_00/mlp/dense_1/bias")
        kernel = self.tensors.get("patch_embedding/projection/kernel", np.empty((0,)))
        stages = _stages(self.tensors)
        for name, v in VARIANTS.items():
            sizes = (v.patch_size, v.hidden_size, v.num_layers, v.mlp_dim, v.resnet_stages)
            if sizes == (kernel.shape[0], width, len(blocks), mlp_dim, stages):
                return f"ViT {name} ({len(blocks)} blocks, width {width})"
        return f"a ViT of {len(blocks)} blocks, width {width}, MLP {mlp_dim}, patch {kernel.shape[0]}, ResNet {stages}"


def _stages(tensors):
    if "resnet_root/conv/kernel" not in tensors:
        return None
    units = {path.split("/")[0] for path in tensors if path.startswith("resnet_stage_")}
    stages = [int(unit.split("_")[2]) for unit in units]
    return tuple(stages.count(stage) for stage in sorted(set(stages)))


def read_checkpoint(path) -> Checkpoint:
    """Reads a file of any known layout.

    Args:
        path: an `.npz` in the official layout, pre-Linen or Linen.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if it cannot be read, or its layout is unknown.
    """
    arrays, note = read_npz(path)
    dialect = recognise(arrays)
    if dialect is None:
        some = ", ".join(sorted(arrays)[:5])
        raise CheckpointError(
            "the file must be in the layout of the official checkpoints, with `embedding/kernel` and "
            f"`Transformer/encoderblock_0/...`.\nReceived: {path} with {len(arrays)} arrays: {some}, ..."
        )
    return Checkpoint(
        path=Path(path),
        dialect=dialect,
        tensors=from_official(arrays, dialect),
        num_heads=heads_of(arrays),
        recorded_grid=_recorded_grid(note),
    )


def _recorded_grid(note):
    try:
        return check_grid("position_grid", note.get("position_grid"))
    except ValueError:  # none, or not written by us
        return None


def load_checkpoint(model, path, *, grid=None, resize_method="align_corners") -> tuple[str, ...]:
    """Loads a checkpoint into a built model; nothing is skipped, used twice or left as it was.

    Args:
        model: a model of `keras_vit`, or a `keras.Model` made of its layers.
        path: an `.npz` in the official layout, pre-Linen or Linen.
        grid: `(h, w)` of the file's position table, if it is not square and the file does not say.
        resize_method: how the table is resized to another grid, one of
            `keras_vit.posembed.RESIZE_METHODS`.

    Returns:
        One line for each adaptation; empty if the file fitted as it was.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if the file cannot be read or does not fit; the model is then unchanged.

    Warns:
        UserWarning: if the file's head is all zeros, as in the paper's ImageNet-21k files.
    """
    check_choice("resize_method", resize_method, RESIZE_METHODS)
    grid = None if grid is None else check_grid("grid", grid)
    checkpoint = read_checkpoint(path)
    if grid is not None:
        checkpoint = dataclasses.replace(checkpoint, recorded_grid=grid)
    return fill(model, checkpoint, resize_method=resize_method)


def fill(model, checkpoint, *, resize_method="align_corners", set_aside=(), fresh=(), deferred=False):
    """Gives every weight of `model` its value from `checkpoint`.

    Args:
        model: made of our layers.
        checkpoint: a `Checkpoint`.
        resize_method: for the position table.
        set_aside: layers whose tensors in the file are not wanted.
        fresh: layers of the model that keep their initial values.
        deferred: whether the model was made inside `deferred_variables`.

    Returns:
        One line for each adaptation.
    """
    variables = weight_paths(model)
    tensors = dict(checkpoint.tensors)
    report = [f"new {name}" for name in fresh]
    for name in set_aside:
        if dropped := [tensors.pop(path) for path in list(tensors) if path.startswith(f"{name}/")]:
            report.append(f"set aside {name} {max(dropped, key=np.ndim).shape}")
    try:
        report += _fit_positions(model, checkpoint, tensors, resize_method)
        wanted = {path: v for path, v in variables.items() if path.split("/")[0] not in fresh}
        _check_fit(model, checkpoint, tensors, wanted)
    except BaseException:
        if deferred:
            _discard(variables.values())
        raise
    zero_head = "head/kernel" in tensors and not np.any(tensors["head/kernel"])
    if deferred:
        _initialise(wanted, tensors)
    else:
        for path, variable in wanted.items():
            variable.assign(_float32(tensors.pop(path)))
    for line in report:
        _log.info("%s: %s", checkpoint.path.name, line)
    if zero_head:  # said last, so that a model is whole even where warnings are errors
        _warn_zero_head(checkpoint)
    return tuple(report)


def copy_weights(model, twin, resize_method) -> tuple[str, ...]:
    """Gives `twin`, a clone made inside `deferred_variables`, the weights of `model` at its own grid."""
    variables, values, report = {}, {}, ()
    if [len(layer.weights) for layer in model.layers] != [len(layer.weights) for layer in twin.layers]:
        _discard([variable for layer in twin.layers for variable in layer.weights])
        raise ValueError(
            "a layer must have the weights that its configuration makes, and LoRA adds some.\n"
            f"Received: {model.name!r} with {len(model.weights)} weights instead of {len(twin.weights)}. "
            "Save it as .keras and reload it, which merges LoRA."
        )
    for ours, theirs in zip(model.layers, twin.layers, strict=True):
        for index, (source, target) in enumerate(zip(ours.weights, theirs.weights, strict=True)):
            variables[f"{ours.name}/{index}"], values[f"{ours.name}/{index}"] = target, ops.convert_to_numpy(source)
            target.trainable = source.trainable
    old, new = _layer(model, "position_embedding"), _layer(twin, "position_embedding")
    if old is not None and old.grid != new.grid and old.kind == "learned":
        values["position_embedding/0"] = resize_pos_embed(
            ops.convert_to_numpy(old.table),
            new.grid,
            old.grid,
            num_prefix_tokens=old.num_prefix_tokens,
            method=resize_method,
        )
        report = (f"position embedding resized from {old.grid} to {new.grid} ({resize_method})",)
    _initialise(variables, values)
    return report


def weight_paths(model) -> dict[str, keras.Variable]:
    """`{path: variable}` over our layers, whatever scope the model was built in."""
    paths = {}
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            raise ValueError(
                "`model` must be the Vision Transformer itself, not a model around it.\n"
                f"Received: {model.name!r}. Pass `model.get_layer({layer.name!r})`."
            )
        if type(layer).__module__.startswith("keras_vit.") or layer.name in _HEAD_LAYERS:
            for variable in layer.weights:
                paths[layer.name + variable.path.removeprefix(layer.path)] = variable
    if not paths:
        raise ValueError(f"`model` must be made of keras_vit's layers.\nReceived: {model!r}")
    return paths


def _fit_positions(model, checkpoint, tensors, resize_method):
    """Resizes the table in `tensors` to the model's grid; compares grids, since counts can be equal."""
    layer = _layer(model, "position_embedding")
    if TABLE not in tensors or layer is None:
        return []
    table, prefix, grid = tensors[TABLE], checkpoint.num_prefix_tokens, checkpoint.grid
    if layer.kind == "sincos2d":
        fixed = None if grid is None else layer.table_at(grid)
        if fixed is None or fixed.shape != table.shape or not np.allclose(fixed, table, atol=1e-5):
            return []  # a table of another kind, which the check of the fit refuses
        del tensors[TABLE]
        return ["position table left out: it is the fixed one that the model computes"]
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
    tensors[TABLE] = resize_pos_embed(table, layer.grid, grid, num_prefix_tokens=prefix, method=resize_method)
    return [f"position embedding resized from {grid} to {layer.grid} ({resize_method})"]


def _check_fit(model, checkpoint, tensors, wanted):
    block = _layer(model, "block_00")
    heads = block.num_heads if block is not None else None
    extra = [f"    + {path} {tensors[path].shape}" for path in tensors if path not in wanted]
    missing = [f"    - {path} {tuple(v.shape)}" for path, v in wanted.items() if path not in tensors]
    different = [
        f"    ~ {path}  file {tensors[path].shape}  model {tuple(v.shape)}"
        for path, v in wanted.items()
        if path in tensors and tensors[path].shape != tuple(v.shape)
    ]
    if None not in (heads, checkpoint.num_heads) and heads != checkpoint.num_heads:
        different.append(f"    ~ attention heads  file {checkpoint.num_heads}  model {heads}")
    if not (extra or missing or different):
        return
    raise CheckpointError(
        "the checkpoint does not fit the model.\n"
        + _listed("in the file, not in the model", extra)
        + _listed("in the model, not in the file", missing)
        + _listed("different", different)
        + f"Received: {checkpoint.path}, which looks like {checkpoint.looks_like()}. "
        + _advice(extra + missing + different)
    )


def _listed(title, lines, most=5):
    if not lines:
        return ""
    more = [f"    ... and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join([f"  {title} ({len(lines)}):", *lines[:most], *more, ""])


def _advice(lines):
    if not all("head/" in line or "pre_logits/" in line for line in lines):
        return "Build the variant that the file holds."
    if any("head/" in line for line in lines):
        return "Pass the file as `weights=` with `classes=k` for a new head, or `include_top=False` for none."
    return "Build with `representation_size=` as in the file, or pass the file as `weights=`."


def _warn_zero_head(checkpoint):
    warnings.warn(
        f"the head of {checkpoint.path.name} is all zeros, so every class gets the same score: the paper's "
        "ImageNet-21k files were published without their head. Pass `classes=k` to fine-tune, or use "
        "weights with a trained head (AugReg's ImageNet-21k files have one) to predict.",
        stacklevel=4,
    )


def save_checkpoint(model, path, dialect="official"):
    """Writes the weights as the official code, or timm, reads them.

    The file appears under its name only when it is whole. The grid of a position table is kept in the
    zip's comment, which other readers pass over.

    Args:
        model: a model of `keras_vit`, or a `keras.Model` made of its layers.
        path: destination, ending in `.npz`.
        dialect: `"official"`, names as published, or `"linen"`, names of today's official code.

    Raises:
        CheckpointError: if the layout has no place for a weight, as those of attention pooling.
        ValueError: for another dialect or ending.

    Warns:
        UserWarning: if the official code computes something else from these weights: its GELU is the
            tanh approximation, and it has no class token beside mean pooling.
    """
    check_choice("dialect", dialect, DIALECTS)
    variables = weight_paths(model)
    block, positions = _layer(model, "block_00"), _layer(model, "position_embedding")
    if block is None or "patch_embedding/projection/kernel" not in variables:
        raise CheckpointError(
            f"a checkpoint needs the whole encoder, from `patch_embedding` on.\nReceived: {model.name}"
        )
    if block.activation != "gelu_tanh":
        warnings.warn("the official code computes the tanh GELU, this model the exact one.", stacklevel=2)
    pooling = _layer(model, "pooling")
    if getattr(pooling, "kind", None) == "gap" and pooling.num_prefix_tokens:
        warnings.warn("the official code has no class token beside mean pooling, this model has one.", stacklevel=2)
    tensors = {name: variable for name, variable in variables.items() if name != TABLE}
    if positions is not None:
        tensors[TABLE] = positions.table_at(positions.grid)
    arrays = ((name, np.asarray(ops.convert_to_numpy(value), "float32")) for name, value in tensors.items())
    note = {} if positions is None else {"position_grid": list(positions.grid)}
    write_npz(os.fspath(path), to_official(arrays, block.num_heads, dialect), note)


def _layer(model, name):
    return next((layer for layer in model.layers if layer.name == name), None)


@contextlib.contextmanager
def deferred_variables():
    """Inside, layers make their variables without values: `fill(..., deferred=True)` gives them theirs.

    So a model is neither drawn at random first nor held twice.
    """
    with keras.StatelessScope(initialize_variables=False):
        yield


def _initialise(variables, tensors):
    for path, variable in variables.items():
        variable._initializer = _Given(tensors.pop(path))
    with keras.StatelessScope():
        pass  # leaving it makes Keras initialise all that waits


def _discard(variables):
    """Lets go of variables that will never be used, at the cost of a number each."""
    for variable in variables:
        variable._initializer = lambda shape, dtype: ops.zeros((), dtype)
    with keras.StatelessScope():
        pass


class _Given:
    """An initializer that answers with one array, copied so that no variable rests on a mapped file."""

    def __init__(self, array):
        self.array = array

    def __call__(self, shape, dtype=None):
        return ops.cast(_float32(self.array), dtype)


def _float32(array):
    copy = np.array(array, "float32")
    forget_pages(array)
    return copy
