"""A file of any known layout as tensors by our weight paths, with what the file says of itself."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath, Pair
from keras_vit.config.posembed import RESIZE_METHODS, check_grid, square_grid
from keras_vit.config.relative_tables import RELATIVE_RESIZE_METHODS, relative_rows, square_relative_grid
from keras_vit.config.variants import RESNETS, VARIANTS
from keras_vit.config.vit import ViTConfig
from keras_vit.files import expand_path
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights import families, metadata
from keras_vit.weights.families import DIALECTS, facts_among, others_in, recognise, to_ours, told_by, weights_among
from keras_vit.weights.infer_fields import BIAS_TABLES, fields_of, norm_of
from keras_vit.weights.read import CheckpointError, TensorFile
from keras_vit.weights.read.sharded import INDEX, ShardedFile, check_whole, scan_any
from keras_vit.weights.text_tower import is_projection, read_logit_scale_and_bias, remarks_on

SAFETENSORS_NAME = "model.safetensors"  # what timm and transformers look for in a folder
# Where a folder has its weights, first ones first; torch's own files may hold less exact or older ones.
_FILES = tuple(name + end for name in (SAFETENSORS_NAME, "pytorch_model.bin") for end in ("", INDEX))
# Our paths of the tensors that tell what a file holds.
TABLE = "position_embedding/table"
PATCH_KERNEL, PATCH_BIAS = "patch_embedding/projection/kernel", "patch_embedding/projection/bias"
ROOT_KERNEL = "resnet_root/conv/kernel"
HEAD_KERNEL, PRE_LOGITS_KERNEL = "head/kernel", "pre_logits/kernel"
# By the names of prefix tokens: their vectors, in the order of their rows in the position table, and their heads.
PREFIX_TOKENS = {"class": "class_token/token", "distillation": "distillation_token/token"}
HEADS = {"class": "head", "distillation": "head_distillation"}
_PROBE, _WIDTH, _MAP_MLP = "pooling/probe", PATCH_KERNEL, "pooling/mlp/dense_1/kernel"
_MLP, _GATE = "block_00/mlp/dense_1/kernel", "block_00/mlp/gate/kernel"
_BLOCK, _STAGE = "block_", "resnet_stage_"  # how names of layers begin


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The tensors of a file by our paths, and what the file says of itself."""

    path: Path
    dialect: str
    tensors: Mapping[str, np.ndarray]
    num_heads: int | None
    recorded_grid: tuple[int, int] | None = None
    recorded_fields: dict = dataclasses.field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    family: str = ""  # as the config.json beside the file names it
    is_known: bool = False  # whether that is a family which is known here
    set_aside: tuple[str, ...] = ()
    pre_logits_activation: str = "tanh"
    logit_scale_and_bias: tuple[float | None, float | None] = (None, None)  # of a file of both towers
    remarks: tuple[str, ...] = ()  # a line for each thing said beside the tensors that was not understood
    provenance: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)  # that of its model

    @property
    def classes(self) -> int | None:
        """K, or `None` without a head."""
        return self._last_axis(HEAD_KERNEL)

    @property
    def representation_size(self) -> int | None:
        """Width of the pre-logits, or `None` without them."""
        return self._last_axis(PRE_LOGITS_KERNEL)

    @property
    def is_resnet(self) -> bool:
        """Whether it holds a ResNet baseline; else it is a Vision Transformer."""
        return DIALECTS[self.dialect].is_resnet

    @property
    def has_class_token(self) -> bool:
        """Whether there is a class token."""
        return "class" in self.prefix_tokens

    @property
    def prefix_tokens(self) -> tuple[str, ...]:
        """Names of the tokens before the patches, in the order of their rows in the position table."""
        there = {name: self.tensors[path].shape for name, path in PREFIX_TOKENS.items() if path in self.tensors}
        return tuple(name for name, shape in there.items() for _ in range(shape[1] if len(shape) == 3 else 1))

    @property
    def num_prefix_tokens(self) -> int:
        """How many tokens stand before the patches, each with a row of the position table."""
        return len(self.prefix_tokens)

    @property
    def grid(self) -> tuple[int, int] | None:
        """`(h, w)` of the positions: as recorded, else that of a square table, else unknown."""
        if self.recorded_grid is not None:
            return self.recorded_grid
        if not self.has_positions:
            return None if self.bias_rows is None else square_relative_grid(self.bias_rows)
        return square_grid(self.tensors[TABLE].shape[-2] - self.num_prefix_tokens)

    @property
    def bias_rows(self) -> int | None:
        """Rows of the first table of relative bias, or `None` without one."""
        path = next((path for path in BIAS_TABLES.values() if path in self.tensors), None)
        return None if path is None else self.tensors[path].shape[0]

    @property
    def has_places(self) -> bool:
        """Whether there is a table of positions or of relative bias, which belongs to a grid."""
        return self.has_positions or self.bias_rows is not None

    @property
    def has_positions(self) -> bool:
        """Whether there is a position table."""
        return TABLE in self.tensors

    @property
    def fields(self) -> dict:
        """Fields of `ViTConfig` that the file decides: by its tensors, by its layout's own software, by its note."""
        if self.is_resnet:
            return {}
        dialect = DIALECTS[self.dialect]
        reads_token = self.has_class_token and norm_of(self.tensors) != "pooled"  # in other software one of means
        fields = {
            "activation": dialect.activation,
            "layer_norm_epsilon": dialect.layer_norm_epsilon,
            "pooling": "token" if reads_token else "gap",
            "class_tokens": max(self.prefix_tokens.count("class"), 1),
            "distilled": "distillation" in self.prefix_tokens,
            **fields_of(self.tensors, self.num_heads),
        }
        if _PROBE in self.tensors:
            width = self._last_axis(_MAP_MLP)
            own = None if width == self.measured()[3] else width
            fields |= {"map_heads": None, "pool_prefix_tokens": False, "map_mlp_dim": own}
        if dialect.class_token_reduction:
            fields["class_token_reduction"] = dialect.class_token_reduction
        if dialect.position_embedding and not self.has_positions:
            fields["position_embedding"] = dialect.position_embedding
        of_head = dialect.classifier if HEAD_KERNEL in self.tensors else {}
        told = {**fields, **dialect.computes(self.tensors), **of_head, **self.recorded_fields}
        if not self.prefix_tokens and not told["registers"]:  # so that nothing before the patches can be pooled
            told.pop("pool_prefix_tokens", None)
        return told

    @property
    def unknown(self) -> list[str]:
        """Names that the layout has no place for."""
        return [path for path in self.tensors if not DIALECTS[self.dialect].has_name(path)]

    @property
    def norms_tokens(self) -> bool:
        """Whether the layout's own software gives tokens behind the last LayerNorm where it gives them all."""
        return DIALECTS[self.dialect].norms_tokens

    @property
    def resize_method(self) -> str:
        """How the layout's own software resizes a position table."""
        return DIALECTS[self.dialect].resize_method

    def resize_methods(self, asked: str | None) -> tuple[str, str]:
        """How to resize a position table and one of relative bias: as asked for either, else as that software does."""
        dialect = DIALECTS[self.dialect]
        return (
            asked if asked in RESIZE_METHODS else dialect.resize_method,
            asked if asked in RELATIVE_RESIZE_METHODS else dialect.bias_resize_method,
        )

    def _last_axis(self, path: str) -> int | None:
        return self.tensors[path].shape[-1] if path in self.tensors else None

    @property
    def first_kernel(self) -> str:
        """Path of the convolution that reads the image."""
        return ROOT_KERNEL if ROOT_KERNEL in self.tensors else PATCH_KERNEL

    @property
    def channels(self) -> int | None:
        """C of the images, or `None` if the first kernel is none."""
        kernel = self.tensors.get(self.first_kernel, np.empty((0,)))
        return kernel.shape[2] or None if kernel.ndim == 4 else None

    @property
    def stride(self) -> int:
        """Side in pixels of what one patch token covers."""
        patch, *_, stages = self.measured()
        return patch if stages is None else patch * 4 * 2 ** max(len(stages) - 1, 0)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """`(H, W)` of the images: by the grid, else as the preprocessing has it, else unknown."""
        if self.grid is not None:
            return self.grid[0] * self.stride, self.grid[1] * self.stride
        size = None if self.preprocessing is None else self.preprocessing.image_size
        if self.is_resnet:
            return size
        if size is None or self.has_positions or not self.stride:
            return None
        return None if any(side % self.stride for side in size) else (size[0], size[1])

    def variant(self) -> str | None:
        """The published model of the same shapes, or `None`."""
        if self.is_resnet:
            return next((name for name, v in RESNETS.items() if (v.stages, v.width) == self.measured_resnet()), None)
        return next((name for name, v in VARIANTS.items() if _sizes(v) == self.measured()), None)

    def embeds(self) -> bool:
        """Whether the head is the projection of an image tower, which gives an embedding and no classes."""
        head = {path: tensor for path, tensor in self.tensors.items() if path.startswith("head/")}
        return is_projection((self.dialect, self.family), head)

    def looks_like(self) -> str:
        """What the file holds, by the published model of the same shapes or else in numbers."""
        if self.is_resnet:
            stages, width = self.measured_resnet()
            return f"a ResNet {self.variant() or ''} of stages {stages}, width {width}".replace("  ", " ")
        patch, width, blocks, mlp_dim, stages = self.measured()
        if name := self.variant():
            return f"ViT {name} ({blocks} blocks, width {width})"
        resnet = "" if stages is None else f", ResNet {stages}"
        return f"a ViT of {blocks} blocks, width {width}, MLP {mlp_dim}, patch {patch}{resnet}"

    def measured_resnet(self) -> tuple:
        """Units in each stage and width of the root, by the shapes."""
        return _stages(self.tensors), self._last_axis(ROOT_KERNEL)

    def measured(self) -> tuple:
        """P, D, number of blocks, M and ResNet stages, by the shapes."""
        blocks = {path.split("/")[0] for path in self.tensors if path.startswith(_BLOCK)}
        kernel = self.tensors.get(PATCH_KERNEL, np.empty((0,)))
        patch = kernel.shape[0] if kernel.ndim == 4 else 0
        mlp_dim = self._last_axis(_MLP) or self._last_axis(_GATE)
        return patch, self._last_axis(_WIDTH), len(blocks), mlp_dim, _stages(self.tensors)


def _sizes(config: ViTConfig) -> tuple:
    return config.patch_size, config.hidden_size, config.num_layers, config.mlp_dim, config.resnet_stages


def _stages(tensors: Mapping[str, np.ndarray]) -> tuple[int, ...] | None:
    if ROOT_KERNEL not in tensors:
        return None
    units = {path.split("/")[0] for path in tensors if path.startswith(_STAGE)}
    stages = [int(unit.removeprefix(_STAGE).split("_")[0]) for unit in units]
    return tuple(stages.count(stage) for stage in sorted(set(stages)))


def read_checkpoint(
    path: FilePath, *, grid: Pair | None = None, allow_nonfinite: bool = False, compares_checksums: bool = True
) -> Checkpoint:
    """Reads a file of any known layout.

    Args:
        path: an `.npz` of the official code (pre-Linen or Linen names), of big_vision or of BiT, or a safetensors
            file, `.pth`, `.pt` or `.bin` of timm or transformers; what it is, its content tells. A `config.json` and a
            `preprocessor_config.json` beside a file of these two are read for what they say of it. Also a folder with
            a `model.safetensors` or `pytorch_model.bin`, or either in shards with their index.
        grid: `(h, w)` of the position table, if it is not square and the file does not say.
        allow_nonfinite: whether NaN and infinite values are let through.
        compares_checksums: of an `.npz` or torch's file. Without both looks, no number is read.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if it cannot be read, or its layout is unknown.
    """
    check_whole(path := file_in(path))
    file = scan_any(path) if compares_checksums else scan_any(path).unchecked()
    said = metadata.read(file)  # which refuses a family that is not computed here by its name
    dialect, prefix = _recognised(file, said)
    names = weights_among(dialect, prefix, file.entries)
    arrays = file.read(names, void_is_bfloat16=DIALECTS[dialect].void_is_bfloat16, allow_nonfinite=allow_nonfinite)
    arrays |= (facts := file.read(facts_among(dialect, prefix, file.entries), integers=True))
    beside = sorted(set(file.entries) - set(arrays))
    wanted = check_grid("grid", grid) if grid is not None else said.grid
    try:
        tensors, num_heads = to_ours(dialect, prefix, arrays, None if wanted is None else wanted[0] * wanted[1])
        checkpoint = Checkpoint(
            path=path,
            dialect=dialect,
            tensors=tensors,
            num_heads=num_heads,
            recorded_grid=wanted,
            recorded_fields=said.fields | told_by(dialect, prefix, facts),
            preprocessing=said.preprocessing,
            family=said.family,
            is_known=bool(said.layouts),
            set_aside=tuple(beside),
            pre_logits_activation=said.pre_logits_activation,
            logit_scale_and_bias=read_logit_scale_and_bias(file),
            remarks=(
                *others_in(dialect, prefix, file.entries),
                *remarks_on(file, (dialect, prefix), beside, classifies=HEAD_KERNEL in tensors),
                *said.remarks,
                *families.assumed(dialect, tensors, said.fields),
            ),
        )
        if wanted is None and said.image_size is not None and checkpoint.stride:
            height, width = (max(side // checkpoint.stride, 1) for side in said.image_size)
            wanted = (height, width)
            tensors, _ = to_ours(dialect, prefix, arrays, height * width)
            checkpoint = dataclasses.replace(checkpoint, tensors=tensors, recorded_grid=wanted)
    except CheckpointError as error:
        raise CheckpointError(f"{error} File: {path}") from error
    checkpoint = checkpoint if num_heads is not None else _with_heads(checkpoint, said.num_heads)
    _check_sizes(checkpoint, said.sizes)
    _check_recorded_grid(checkpoint, grid)
    return checkpoint


def _recognised(file: TensorFile | ShardedFile, said: metadata.Sidecar) -> tuple[str, str]:
    """Dialect and prefix of a file; `said` is what stands beside it, and must name a family that has this dialect."""
    try:
        known = recognise(file.kind, file.entries, said.layout, said.layouts)
    except CheckpointError as error:
        raise CheckpointError(f"{error} File: {file.path}") from error
    if known is None:
        raise CheckpointError(
            f"the file must be in a layout that is known here: {', '.join(DIALECTS)}.\n"
            f"Received: {file.path} with {len(file.entries)} arrays: {', '.join(sorted(file.entries)[:5])}, ..."
        )
    if said.layouts and known[0] not in said.layouts:
        raise CheckpointError(
            "the tensors must be those of the family that config.json names, as by another's rules they give other "
            f"numbers.\nReceived: {said.family}, whose files have the layout {' or '.join(said.layouts)}, and tensors "
            f"in the layout {known[0]}, {file.path}. Put the config.json of these weights beside them."
        )
    if not said.layouts and said.layout != known[0]:
        families.check_one_family(known[0], file.entries, file.path)
    return known


def file_in(path: FilePath) -> Path:
    """`path`, or in a folder its `model.safetensors`, `pytorch_model.bin`, or the index of such a file in shards."""
    path = expand_path(path)
    return next((path / name for name in _FILES if (path / name).is_file()), path)


def _check_sizes(checkpoint: Checkpoint, said: Mapping[str, Any]) -> None:
    """Raises where what stands beside a file contradicts its tensors, as of a file that was cut short."""
    if checkpoint.is_resnet:
        return
    patch_size, hidden_size, num_layers, mlp_dim, stages = checkpoint.measured()
    found = checkpoint.fields | {"hidden_size": hidden_size, "num_layers": num_layers, "mlp_dim": mlp_dim}
    found |= {"class_token": checkpoint.has_class_token, "classes": checkpoint.classes}
    found |= {"classes": None} if DIALECTS[checkpoint.dialect].classifier else {}  # `projection_dim` is of another head
    found |= {"patch_size": patch_size} if stages is None else {}
    found |= {"num_heads": checkpoint.num_heads, "special_tokens": checkpoint.num_prefix_tokens + found["registers"]}
    found["rotary"] = DIALECTS[checkpoint.dialect].computes(checkpoint.tensors).get("rotary", "none")
    found |= {"position_table": checkpoint.has_positions, "attention_pooling": _PROBE in checkpoint.tensors}
    if found["kv_heads"] is None and checkpoint.num_heads is not None:
        found["kv_heads"] = (checkpoint.num_heads,) * num_layers
    wrong = [
        f"{name} {number}, and {found[name]} in the file"
        for name, number in said.items()
        if found.get(name) is not None and found[name] != number
    ]
    if wrong and hidden_size and num_layers:
        raise CheckpointError(
            "what config.json says of the architecture must be what the tensors are.\n"
            f"Received: {'; '.join(wrong)}, {checkpoint.path}{f', of {checkpoint.family}' * bool(checkpoint.family)}. "
            "The file may be cut short, or of another model."
        )


def _check_recorded_grid(checkpoint: Checkpoint, given: Pair | None) -> None:
    """Raises where a grid that is noted, and not given by the caller, does not fit the table."""
    if given is not None:
        return
    grid, prefix, found = checkpoint.recorded_grid, checkpoint.num_prefix_tokens, checkpoint.bias_rows
    if grid is not None and found is not None and relative_rows(grid) != found:
        raise CheckpointError(
            "the grid that is noted must be that of the tables of relative bias.\n"
            f"Received: grid {grid}, which has {relative_rows(grid)} rows, and {found} rows in {checkpoint.path}. Pass "
            "`grid=(h, w)` to `load_checkpoint`, or correct the image size in config.json."
        )
    table = checkpoint.tensors.get(TABLE, np.empty(0))
    rows = table.shape[-2] if table.ndim > 1 else None
    if grid is not None and rows is not None and grid[0] * grid[1] + prefix != rows:
        raise CheckpointError(
            "the grid that is noted for the position table must have as many patches as the table has rows for "
            f"them.\nReceived: grid {grid} and {rows} rows, {prefix} of other tokens, in {checkpoint.path}. "
            "Pass `grid=(h, w)` to `load_checkpoint`, or correct the image size in config.json."
        )


def _with_heads(checkpoint: Checkpoint, num_heads: int | None) -> Checkpoint:
    """The checkpoint with the number of heads that is noted, if the width can be divided by it."""
    width = checkpoint.measured()[1]
    if num_heads is not None and width and width % num_heads:
        line = f"number of heads noted not understood ({num_heads} do not divide {width}): taken as not there"
        return dataclasses.replace(checkpoint, remarks=(*checkpoint.remarks, line))
    return dataclasses.replace(checkpoint, num_heads=num_heads)
