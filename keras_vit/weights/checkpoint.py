"""A file of any known layout as tensors by weight path, with what the file says of itself."""

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath, Pair
from keras_vit.config.position_tables import (
    RELATIVE_RESIZE_METHODS,
    RESIZE_METHODS,
    check_grid,
    relative_rows,
    square_grid,
    square_relative_grid,
)
from keras_vit.config.variants import RESNETS, VARIANTS
from keras_vit.config.vit import ViTConfig
from keras_vit.files import expand_path
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.pages.formatting import printable
from keras_vit.weights import families
from keras_vit.weights.families import (
    LAYOUTS,
    from_file,
    is_same_epsilon,
    other_prefixes,
    recognize,
    sort_names,
)
from keras_vit.weights.infer_fields import BIAS_TABLES, heads_of_positions, infer_fields, infer_final_norm
from keras_vit.weights.metadata.open_clip import FAMILY as OPEN_CLIP_FAMILY
from keras_vit.weights.metadata.reader import read_metadata
from keras_vit.weights.metadata.record import Metadata
from keras_vit.weights.read import CheckpointError, TensorFile
from keras_vit.weights.read.sharded import INDEX, ShardedFile, check_whole, read_index, scan_any
from keras_vit.weights.text_tower import (
    IN_FOLDER,
    SET_ASIDE,
    describe_unused,
    is_of_projecting_family,
    is_projection,
    read_logit_scale_and_bias,
)

SAFETENSORS_NAME = "model.safetensors"  # what timm and transformers look for in a folder
# Where a folder has its weights, first ones first; torch's own files may hold less exact or older ones.
_NAMES = (SAFETENSORS_NAME, "pytorch_model.bin", f"open_clip_{SAFETENSORS_NAME}", "open_clip_pytorch_model.bin")
WEIGHT_FILES = tuple(name + end for name in _NAMES for end in ("", INDEX))
_OF_SEGMENTER = "decoder.cls_emb"  # next to timm's names below `encoder`
_SEGMENTER_EPSILON = 1e-5  # torch's own, where timm's models have 1e-6
OPENAI_INTEGERS, CLIP_HEAD = ("input_resolution", "context_length", "vocab_size"), 64  # and the width of a head
TOWERS = "model"  # folder of both towers in a run
TOWERS_NAME = f"open_clip_{SAFETENSORS_NAME}"
TOWERS_FILE = f"{TOWERS}/{TOWERS_NAME}"
_LONE, _MOST_OPENED = (".npz", ".pt", ".pth"), 8
_ADAPTERS = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")  # of PEFT
_NO_ADAPTER = "weights must be those of a whole model, and an adapter, as LoRA, is only what is added to them"
_MERGE = "Merge it by PEFT's `merge_and_unload`, write the result by `save_pretrained`, and pass that folder."
# Paths of the tensors by which a file's contents are known.
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
    """The tensors of a file by weight path, and what the file says of itself."""

    path: Path
    layout: str
    tensors: Mapping[str, np.ndarray]
    num_heads: int | None
    recorded_grid: tuple[int, int] | None = None
    recorded_fields: dict = dataclasses.field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    recorded_names: tuple[str, ...] | None = None  # of the classes
    family: str = ""  # as the config.json names it
    is_known: bool = False  # whether that is a family which is known here
    unused_arrays: tuple[str, ...] = ()
    pre_logits_activation: str = "tanh"
    logit_scale_and_bias: tuple[float | None, float | None] = (None, None)  # of a file of both towers
    remarks: tuple[str, ...] = ()  # a line for each part of the metadata that was not understood
    provenance: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)  # that of its model
    expected: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what its metadata say that tensors show
    stored_rows: int | None = None  # of the position table in the file
    mask_token: np.ndarray | None = None  # (D,), of hidden patches in training
    is_note: bool = False  # whether its metadata are a note of this package, whose files may have any part

    @property
    def classes(self) -> int | None:
        """K, or `None` without a head."""
        return self._last_axis(HEAD_KERNEL)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the K classes, where they are known."""
        names = self.recorded_names
        return names if names is not None and len(names) == self.classes and not self.embeds() else None

    @property
    def representation_size(self) -> int | None:
        """Width of the pre-logits, or `None` without them."""
        return self._last_axis(PRE_LOGITS_KERNEL)

    @property
    def is_resnet(self) -> bool:
        """Whether it holds a ResNet baseline; else it is a Vision Transformer."""
        return LAYOUTS[self.layout].is_resnet

    @property
    def has_class_token(self) -> bool:
        """Whether there is a class token."""
        return "class" in self.prefix_tokens

    @functools.cached_property
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
    def has_grid_tables(self) -> bool:
        """Whether there is a table of positions or of relative bias, which belongs to a grid."""
        return self.has_positions or self.bias_rows is not None

    @property
    def has_positions(self) -> bool:
        """Whether there is a position table."""
        return TABLE in self.tensors

    @functools.cached_property
    def fields(self) -> dict:
        """Fields of `ViTConfig` that the file decides: by its tensors, by its layout's own software, by its note."""
        if self.is_resnet:
            return {}
        layout = LAYOUTS[self.layout]
        reads_token = (
            self.has_class_token and infer_final_norm(self.tensors) != "pooled"
        )  # in other software one of means
        fields = {
            "activation": layout.activation,
            "layer_norm_epsilon": layout.layer_norm_epsilon,
            "pooling": "token" if reads_token else "gap",
            "class_tokens": max(self.prefix_tokens.count("class"), 1),
            "distilled": "distillation" in self.prefix_tokens,
            **self._inferred,
        }
        if _PROBE in self.tensors:
            width = self._last_axis(_MAP_MLP)
            own = None if width == self.measured()[3] else width
            fields |= {"map_heads": None, "pool_prefix_tokens": False, "map_mlp_dim": own}
        if layout.class_token_reduction:
            fields["class_token_reduction"] = layout.class_token_reduction
        if layout.position_embedding and not self.has_positions:
            fields["position_embedding"] = layout.position_embedding
        of_head = layout.classifier if HEAD_KERNEL in self.tensors else {}
        decided = {**fields, **layout.defaults(self.tensors), **of_head, **self.recorded_fields}
        if not self.prefix_tokens and not decided["registers"]:  # no token before the patches that could be pooled
            decided.pop("pool_prefix_tokens", None)
        return decided

    @property
    def unknown(self) -> list[str]:
        """Names that the layout has no place for."""
        return [path for path in self.tensors if not LAYOUTS[self.layout].has_name(path)]

    @property
    def norms_tokens(self) -> bool:
        """Whether the layout's own software applies the last LayerNorm to its output of all tokens."""
        return LAYOUTS[self.layout].norms_tokens

    @property
    def resize_method(self) -> str:
        """How the layout's own software resizes a position table."""
        return LAYOUTS[self.layout].resize_method

    @functools.cached_property
    def _inferred(self) -> dict[str, Any]:
        try:
            return infer_fields(self.tensors, self.num_heads)
        except (IndexError, ValueError, ArithmeticError) as error:
            raise _shape_error(self.path, error) from error

    @functools.cached_property
    def parts(self) -> dict[str, Any]:
        """What the tensors show of the architecture, by the names of `ViTConfig` and of `Layout.parts`."""
        patch_size, hidden_size, num_layers, mlp_dim, stages = self.measured()
        found = self.fields | self._inferred
        found |= {"hidden_size": hidden_size, "num_layers": num_layers, "mlp_dim": mlp_dim}
        found |= {"class_token": self.has_class_token, "num_heads": self.num_heads}
        found |= {"classes": self.classes, "projection_dim": None if LAYOUTS[self.layout].classifier else self.classes}
        found["mlp_rows"] = mlp_dim and mlp_dim * (2 if found["gated_mlp"] else 1)  # in one kernel with the gate
        found |= {"channels": self.channels, "map_rows": self._last_axis(_MAP_MLP)}
        found |= {"patch_size": patch_size} if stages is None else {}
        found |= {"special_tokens": self.num_prefix_tokens + found["registers"], "prefix_rows": self._prefix_rows()}
        found["rotary"] = LAYOUTS[self.layout].defaults(self.tensors).get("rotary", "none")
        found |= {"position_table": self.has_positions, "attention_pooling": _PROBE in self.tensors}
        if found["kv_heads"] is None and self.num_heads is not None:
            found["kv_heads"] = (self.num_heads,) * num_layers
        return found

    def _prefix_rows(self) -> str | None:
        """Which tokens before the patches have a row in the file's table; `None` without tokens or a table."""
        registers = self.fields["registers"]
        if self.stored_rows is None or not self.has_positions or not self.num_prefix_tokens + registers:
            return None
        rows = self.stored_rows - (self.tensors[TABLE].shape[-2] - self.num_prefix_tokens)
        return {0: "none", self.num_prefix_tokens + registers: "all"}.get(rows, "class")

    def resize_methods(self, method: str | None) -> tuple[str, str]:
        """Rules for tables of positions and of relative bias: `method` if it is for these, else the layout's."""
        layout = LAYOUTS[self.layout]
        return (
            method if method in RESIZE_METHODS else layout.resize_method,
            method if method in RELATIVE_RESIZE_METHODS else layout.bias_resize_method,
        )

    def _last_axis(self, path: str) -> int | None:
        return next(iter(self.tensors[path].shape[::-1]), None) if path in self.tensors else None

    @property
    def channels(self) -> int | None:
        """C of the images, or `None` if the first kernel is none."""
        kernel = self.tensors.get(ROOT_KERNEL, self.tensors.get(PATCH_KERNEL, np.empty((0,))))
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
        return (self._should_project and bool(head)) or is_projection((self.layout, self.family), head)

    def lacks_projection(self) -> bool:
        """Whether it is a file of both towers, without the projection that image towers of its family have."""
        has_text = any(line.startswith(SET_ASIDE) for line in self.remarks)
        should = self._should_project or is_of_projecting_family((self.layout, self.family))
        return self.classes is None and not self.is_note and has_text and should

    @property
    def _should_project(self) -> bool:
        """Whether an `open_clip_config.json` says that there is a projection."""
        return self.family.startswith(OPEN_CLIP_FAMILY) and "classes" in self.expected

    def describe(self) -> str:
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
            file, `.pth`, `.pt` or `.bin` of timm or transformers; its content decides what it is. The `config.json` and
            `preprocessor_config.json` in the folder of a file of these two are read too. Also a folder with
            a `model.safetensors` or `pytorch_model.bin`, or either in shards with their index.
        grid: `(h, w)` of the position table, if it is not square and the file does not say.
        allow_nonfinite: whether NaN and infinite values are let through.
        compares_checksums: of an `.npz` or torch's file. Without both looks, no number is read.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if it cannot be read, or its layout is unknown.
    """
    path, wanted = file_in(path), None if grid is None else check_grid("grid", grid)
    check_whole(path)
    try:
        return _read(path, wanted, allow_nonfinite, compares_checksums)
    except CheckpointError:
        raise
    except (IndexError, ValueError, ArithmeticError) as error:
        raise _shape_error(path, error) from error


def _shape_error(path: Path, error: Exception) -> CheckpointError:
    """Of arrays with too few axes, without numbers, or of other widths."""
    return CheckpointError(
        f"the arrays of a file must have the shapes of weights, and one has not ({printable(error)[:100]}).\n"
        f"Received: {path}. Bring the file again."
    )


def _read(path: Path, grid: Pair | None, allow_nonfinite: bool, compares_checksums: bool) -> Checkpoint:
    file = scan_any(path) if compares_checksums else scan_any(path).without_checksums()
    recorded = read_metadata(file)  # which refuses a family that is not computed here by its name
    layout, prefix = _recognize(file, recorded)
    names, metadata_names, ignored = sort_names(layout, prefix, file.entries)
    arrays = file.read(names, void_is_bfloat16=LAYOUTS[layout].void_is_bfloat16, allow_nonfinite=allow_nonfinite)
    facts = file.read(metadata_names, integers=True)
    arrays |= facts
    unused, copies = sorted(set(file.entries) - set(arrays)), other_prefixes(layout, prefix, file.entries)
    is_part = LAYOUTS[layout].allows_any_prefix  # else the prefix is its software's, and so is what stands next to it
    outside = [name for name in unused if is_part and not name.startswith((prefix, *copies))]
    wanted = recorded.grid if grid is None else grid
    of_code, lines = _of_other_code(layout, prefix, file.entries, recorded.fields)
    try:
        fields = LAYOUTS[layout].read_metadata({name.removeprefix(prefix): array for name, array in facts.items()})
        tensors, num_heads = from_file(layout, prefix, arrays, None if wanted is None else wanted[0] * wanted[1])
        if (table := tensors.get(TABLE)) is not None and (table.ndim < 2 or not table.size):
            raise ValueError(f"a position table of shape {table.shape}")
        checkpoint = Checkpoint(
            path=path,
            layout=layout,
            tensors=tensors,
            num_heads=num_heads,
            recorded_grid=wanted,
            recorded_fields=of_code | recorded.fields | fields,
            preprocessing=recorded.preprocessing,
            recorded_names=recorded.class_names,
            family=recorded.family,
            is_known=bool(recorded.layouts),
            unused_arrays=tuple(unused),
            pre_logits_activation=recorded.pre_logits_activation,
            logit_scale_and_bias=read_logit_scale_and_bias(file),
            expected=_rows_of_gate(recorded.sizes, file.entries),
            is_note=recorded.is_note,
            mask_token=_read_mask_token(file, ignored, tensors),
            stored_rows=LAYOUTS[layout].stored_rows({name.removeprefix(prefix): a for name, a in arrays.items()}),
            remarks=(
                *describe_other_file(path),
                *_describe_copies(prefix, copies),
                *lines,
                *describe_unused(file, prefix, outside, unused, ignored, classifies=HEAD_KERNEL in tensors),
                *recorded.remarks,
                *_describe_names(recorded.class_names, tensors),
                *families.assumed_fields(layout, tensors, recorded.fields),
            ),
        )
        if wanted is None and recorded.image_size is not None and checkpoint.stride:
            height, width = (max(side // checkpoint.stride, 1) for side in recorded.image_size)
            wanted = (height, width)
            tensors, _ = from_file(layout, prefix, arrays, height * width)
            checkpoint = dataclasses.replace(checkpoint, tensors=tensors, recorded_grid=wanted)
    except CheckpointError as error:
        raise CheckpointError(f"{error} File: {path}") from error
    if num_heads is None and (shown := heads_of_positions(tensors)) is not None:
        if recorded.num_heads not in (None, shown):
            raise CheckpointError(
                "the number of heads must be that of config.json, and positions of rows be as wide as a head.\n"
                f"Received: {recorded.num_heads} heads, and {shown} by the tensors, {path}. Put the config.json of "
                "these weights into their folder."
            )
        checkpoint = _with_heads(checkpoint, shown)
    elif num_heads is None:
        of_openai = recorded.num_heads is None and _is_openai(layout, file.entries)
        width = checkpoint.measured()[1] or 0
        usual = max(width // CLIP_HEAD, 1) if of_openai else recorded.usual_heads.get(width)
        if usual and not of_openai:
            line = f"num_heads {usual}: as transformers computes, since config.json does not say"
            checkpoint = dataclasses.replace(checkpoint, remarks=(*checkpoint.remarks, line))
        checkpoint = _with_heads(checkpoint, usual or recorded.num_heads)
    _check_parts(checkpoint, {} if recorded.is_note else LAYOUTS[layout].parts)
    _check_recorded_grid(checkpoint, grid)
    checkpoint = _with_overruled(checkpoint, recorded.overruled)
    if recorded.fixed_size:
        checkpoint = _with_photos(checkpoint, recorded.fixed_size)
    return checkpoint


def _read_mask_token(
    file: TensorFile | ShardedFile, ignored: Iterable[str], tensors: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    """What stands in place of hidden patches, unless it is zeros or a decoder's, which no file needs."""
    kernel = tensors.get(PATCH_KERNEL)
    names = [name for name in ignored if name.endswith("mask_token") and not name.startswith("decoder")]
    if len(names) != 1 or kernel is None or math.prod(file.entries[names[0]].shape) != kernel.shape[-1]:
        return None
    if any(name.startswith("decoder") for name in file.entries):
        return None
    token = np.array(file.read(names)[names[0]], "float32").reshape(-1)
    return token if token.any() else None


def _rows_of_gate(sizes: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """What the metadata say; `mlp_rows` are those of the gate alone where timm's file has it apart."""
    apart = any(name.endswith(".mlp.fc1_g.weight") for name in names)
    return {"mlp_dim" if apart and name == "mlp_rows" else name: value for name, value in sizes.items()}


def describe_other_file(path: Path) -> tuple[str, ...]:
    """A line on the shards of an index next to a file of the same name, which are not read."""
    index = path.with_name(f"{path.name}{INDEX}")
    if path.name not in _NAMES or not index.is_file():
        return ()
    with contextlib.suppress(CheckpointError):  # of an index that cannot be read
        if {*read_index(index)} == {path.name}:
            return ()
    return (f"took {path.name}, and not the shards that {index.name} names, {IN_FOLDER}",)


def _describe_copies(taken: str, others: Sequence[str]) -> tuple[str, ...]:
    """A line on the models of a file that are not taken, if there are any."""
    taken, *left = (
        repr(prefix.rstrip("./")) if prefix else "the names without a prefix" for prefix in (taken, *others)
    )
    return (f"took {taken}, and not {', '.join(left)}",) if others else ()


def _with_photos(checkpoint: Checkpoint, place: str) -> Checkpoint:
    """Adds a line on photos of another size than the position table's, which the file's own software refuses."""
    size, grid, side = getattr(checkpoint.preprocessing, "image_size", None), checkpoint.grid, checkpoint.stride
    if size is None or grid is None or not checkpoint.has_positions or not side:
        return checkpoint
    if (size[0] // side, size[1] // side) == grid:
        return checkpoint
    line = f"photos of {size[0]} x {size[1]} by {place}, where positions are of {grid[0] * side} x {grid[1] * side}"
    return dataclasses.replace(checkpoint, remarks=(*checkpoint.remarks, f"{line}: resized to the model's size"))


def _with_overruled(checkpoint: Checkpoint, said: Mapping[str, Any]) -> Checkpoint:
    """Adds a line on what the folder's JSON says otherwise than the file, whose note is followed."""
    if not said or checkpoint.is_resnet:
        return checkpoint
    record = checkpoint.preprocessing
    found = checkpoint.parts | ({} if record is None else {"mean": record.mean, "std": record.std})
    wrong = [name for name, value in said.items() if found.get(name) is not None and found[name] != value]
    if "layer_norm_epsilon" in wrong and is_same_epsilon(said["layer_norm_epsilon"], found["layer_norm_epsilon"]):
        wrong.remove("layer_norm_epsilon")
    if not wrong:
        return checkpoint
    here, there = (", ".join(f"{name} {each[name]}" for name in wrong) for each in (found, said))
    line = f"set aside {there} of the folder's JSON, where {checkpoint.path.name} and its note are followed: {here}"
    return dataclasses.replace(checkpoint, remarks=(*checkpoint.remarks, line))


def _describe_names(names: tuple[str, ...] | None, tensors: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """A line on class names of another number than the head's classes, which are not taken."""
    head = tensors.get(HEAD_KERNEL)
    if names is None or head is None or len(names) == head.shape[-1]:
        return ()
    return (f"set aside {len(names)} class names, since the head has {head.shape[-1]} classes",)


def _is_openai(layout: str, names: Iterable[str]) -> bool:
    """Whether OpenAI's code wrote a file: with OpenCLIP's names, and three integers that OpenCLIP's have not."""
    return layout == "open_clip" and {*OPENAI_INTEGERS} <= {name.rpartition(".")[2] for name in names}


def _of_other_code(
    layout: str, prefix: str, names: Collection[str], recorded: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the code computes whose files have the names of another software; a line where no metadata say it."""
    if _is_openai(layout, names):
        return {"activation": "quick_gelu"}, ()
    if layout != "timm" or not prefix.endswith("encoder.") or f"{prefix[:-8]}{_OF_SEGMENTER}" not in names:
        return {}, ()
    line = f"layer_norm_epsilon {_SEGMENTER_EPSILON}, as Segmenter computes with timm's names"
    return {"layer_norm_epsilon": _SEGMENTER_EPSILON}, () if "layer_norm_epsilon" in recorded else (line,)


def _recognize(file: TensorFile | ShardedFile, recorded: Metadata) -> tuple[str, str]:
    """Layout and prefix of a file; the family that its metadata names must have this layout."""
    try:
        known = recognize(file.kind, file.entries, recorded.layout, recorded.layouts)
    except CheckpointError as error:
        raise CheckpointError(f"{error} File: {file.path}") from error
    if known is None:
        if lora := next((name for name in file.entries if ".lora_" in name), None):
            raise CheckpointError(f"{_NO_ADAPTER}.\nReceived: {file.path} with {lora}. {_MERGE}")
        raise CheckpointError(
            f"the file must be whole, and in a layout that is known here: {', '.join(recorded.layouts or LAYOUTS)}.\n"
            f"Received: {file.path} with {len(file.entries)} arrays: {', '.join(sorted(file.entries)[:5])}, ..."
        )
    if recorded.layouts and known[0] not in recorded.layouts:
        raise CheckpointError(
            "config.json names a family, and the tensors must be of that family: another one computes other numbers.\n"
            f"Received: {recorded.family}, whose files have the layout {' or '.join(recorded.layouts)}, and "
            f"tensors in the layout {known[0]}, {file.path}. Put the config.json of these weights into their folder."
        )
    if not recorded.layouts and recorded.layout != known[0]:
        families.check_one_family(known[0], file.entries, file.path)
    return known


def file_in(path: FilePath) -> Path:
    """`path`, or in a folder its `model.safetensors`, `pytorch_model.bin`, that of OpenCLIP, or an index of shards.

    Else the only file of an image tower among those of the folder that are named otherwise. Of a run of the task
    `contrastive` it is that of both towers, in its folder `model`.

    Raises:
        CheckpointError: for a folder with PEFT's adapter and no weights of a model.

    Warns:
        UserWarning: for such an adapter beside the weights, which is not applied.
    """
    path = expand_path(path)
    if not path.is_dir():
        return path
    usual = next((path / name for name in (*WEIGHT_FILES, TOWERS_FILE) if (path / name).is_file()), None)
    found = usual or lone_file(path, lambda file: recognize(file.kind, file.entries) is not None)
    if adapter := next((path / name for name in _ADAPTERS if (path / name).is_file()), None):
        if found is None:
            raise CheckpointError(f"{_NO_ADAPTER}.\nReceived: {adapter}. {_MERGE}")
        words = f"{adapter} belongs to an adapter, which is not applied: the model is that of {found.name} alone"
        warnings.warn(f"{words}. {_MERGE}", UserWarning, stacklevel=2)
    return found or path


def lone_file(folder: Path, is_wanted: Callable[[TensorFile | ShardedFile], bool]) -> Path | None:
    """The only `.npz`, `.pt` or `.pth` in a folder that is wanted; `None` of none, several or very many."""
    found = sorted(file for file in folder.iterdir() if file.suffix in _LONE and file.is_file())
    if len(found) <= _MOST_OPENED:
        with contextlib.suppress(CheckpointError):  # of a file that cannot be read, which another error names
            found = [file for file in found if is_wanted(scan_any(file))]
    return found[0] if len(found) == 1 else None


def check_layers(checkpoint: Checkpoint) -> None:
    """Raises if a layer has the weight that is added to its result, and not the one that it multiplies by."""
    factors = {"beta": "gamma", "bias": "kernel"}
    for path in checkpoint.tensors:
        layer, _, weight = path.rpartition("/")
        factor = f"{layer}/{factors.get(weight)}"
        if weight in factors and factor not in checkpoint.tensors:
            raise CheckpointError(
                f"a layer must be whole.\nReceived: {path} without {factor} in {checkpoint.path}. Bring the file again."
            )


def _check_parts(checkpoint: Checkpoint, allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises where tensors contradict the file's metadata, or lack what the family's files have.

    Args:
        checkpoint: of a file that may have been cut short.
        allowed: the values that each part has in files of this layout.
    """
    if checkpoint.is_resnet:
        return
    found = checkpoint.parts
    expected = {**allowed, **{name: (value,) for name, value in checkpoint.expected.items()}}
    others, place = checkpoint.unknown, "in the file"
    if others:
        place = f"among the arrays that are read; {len(others)} others are there, as {min(others)}"
    wrong = [
        f"{name} {' or '.join(map(str, values))}, and {found[name]} {place}"
        for name, values in expected.items()
        if values and found.get(name) is not None and found[name] not in values
    ]
    if wrong and found["hidden_size"] and found["num_layers"]:
        family = f", of {checkpoint.family}" * bool(checkpoint.family)
        raise CheckpointError(
            "the tensors must be those that config.json and the files of the family have.\n"
            f"Received: {'; '.join(wrong)}, {checkpoint.path}{family}, layout {checkpoint.layout}. "
            "The file may be cut short, or of another model: bring it again, or put its own config.json next to it."
        )


def _check_recorded_grid(checkpoint: Checkpoint, given: Pair | None) -> None:
    """Raises if the noted grid does not fit the table and the caller has given none."""
    if given is not None:
        return
    grid, table = checkpoint.recorded_grid, checkpoint.tensors.get(TABLE, np.empty(0))
    if grid is None:
        return
    tables = {
        "position table": (
            grid[0] * grid[1] + checkpoint.num_prefix_tokens,
            table.shape[-2] if table.ndim > 1 else None,
        ),
        "tables of relative bias": (relative_rows(grid), checkpoint.bias_rows),
    }
    for what, (rows, found) in tables.items():
        if found not in (None, rows):
            raise CheckpointError(
                f"the image size of the checkpoint must fit its {what}.\n"
                f"Received: grid {grid}, which has {rows} rows, and {found} rows in {checkpoint.path}. Pass "
                "`grid=(h, w)` to `load_checkpoint`, or correct the image size in config.json."
            )


def _with_heads(checkpoint: Checkpoint, num_heads: int | None) -> Checkpoint:
    """Takes the noted number of heads if it divides the width."""
    width = checkpoint.measured()[1]
    if num_heads is not None and width and width % num_heads:
        line = f"number of heads noted not understood ({num_heads} do not divide {width}): taken as not there"
        return dataclasses.replace(checkpoint, remarks=(*checkpoint.remarks, line))
    return dataclasses.replace(checkpoint, num_heads=num_heads)
