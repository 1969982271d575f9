"""A file of any known layout as tensors by our weight paths, with what the file says of itself."""

import dataclasses
from pathlib import Path

import numpy as np

from keras_vit.posembed import check_grid, square_grid
from keras_vit.preprocessing import Preprocessing
from keras_vit.variants import VARIANTS
from keras_vit.weights import sidecar
from keras_vit.weights.dialects import DIALECTS, recognise, to_ours, weights_among
from keras_vit.weights.reader import CheckpointError, scan

TABLE = "position_embedding/table"
PATCH_KERNEL = "patch_embedding/projection/kernel"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The tensors of a file by our paths, and what the file says of itself."""

    path: Path
    dialect: str
    tensors: dict[str, np.ndarray]
    num_heads: int | None
    recorded_grid: tuple[int, int] | None = None
    recorded_fields: dict = dataclasses.field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    set_aside: tuple[str, ...] = ()

    @property
    def classes(self) -> int | None:
        """K, or `None` without a head."""
        return self._last_axis("head/kernel")

    @property
    def representation_size(self) -> int | None:
        """Width of the pre-logits, or `None` without them."""
        return self._last_axis("pre_logits/kernel")

    @property
    def has_class_token(self) -> bool:
        """Whether there is a class token."""
        return "class_token/token" in self.tensors

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches, each with a row of the position table."""
        return int(self.has_class_token) + int("distillation_token/token" in self.tensors)

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

    @property
    def fields(self) -> dict:
        """Fields of `ViTConfig` that the file decides: by its tensors, by its layout's own software, by its note."""
        dialect = DIALECTS[self.dialect]
        pooling = "map" if "pooling/probe" in self.tensors else "token" if self.has_class_token else "gap"
        fields = {
            "activation": dialect.activation,
            "layer_norm_epsilon": dialect.layer_norm_epsilon,
            "pooling": pooling,
            "distilled": "distillation_token/token" in self.tensors,
        }
        if self.dialect == "big_vision" and not self.has_positions:
            fields["position_embedding"] = "sincos2d"
        return fields | self.recorded_fields

    @property
    def resize_method(self) -> str:
        """How the layout's own software resizes a position table."""
        return DIALECTS[self.dialect].resize_method

    def _last_axis(self, path):
        return self.tensors[path].shape[-1] if path in self.tensors else None

    def variant(self) -> str | None:
        """The published variant of the same shapes, or `None`."""
        return next((name for name, v in VARIANTS.items() if _sizes(v) == self.measured()), None)

    def looks_like(self) -> str:
        """What the file holds, by the published variant of the same shapes or else in numbers."""
        patch, width, blocks, mlp_dim, stages = self.measured()
        if name := self.variant():
            return f"ViT {name} ({blocks} blocks, width {width})"
        return f"a ViT of {blocks} blocks, width {width}, MLP {mlp_dim}, patch {patch}, ResNet {stages}"

    def measured(self) -> tuple:
        """P, D, number of blocks, M and ResNet stages, by the shapes."""
        blocks = {path.split("/")[0] for path in self.tensors if path.startswith("block_")}
        kernel = self.tensors.get(PATCH_KERNEL, np.empty((0,)))
        patch = kernel.shape[0] if kernel.ndim == 4 else 0
        width, mlp_dim = self._last_axis("encoder_norm/beta"), self._last_axis("block_00/mlp/dense_1/bias")
        return patch, width, len(blocks), mlp_dim, _stages(self.tensors)


def _sizes(config):
    return config.patch_size, config.hidden_size, config.num_layers, config.mlp_dim, config.resnet_stages


def _stages(tensors):
    if "resnet_root/conv/kernel" not in tensors:
        return None
    units = {path.split("/")[0] for path in tensors if path.startswith("resnet_stage_")}
    stages = [int(unit.split("_")[2]) for unit in units]
    return tuple(stages.count(stage) for stage in sorted(set(stages)))


def read_checkpoint(path, *, grid=None, allow_nonfinite=False) -> Checkpoint:
    """Reads a file of any known layout.

    Args:
        path: an `.npz` of the official code (pre-Linen or Linen names) or of big_vision, or a safetensors
            file of timm or transformers; what it is, its content tells. A `config.json` and a
            `preprocessor_config.json` beside a safetensors file are read for what they say of it.
        grid: `(h, w)` of the position table, if it is not square and the file does not say.
        allow_nonfinite: whether NaN and infinite values are let through.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if it cannot be read, or its layout is unknown.
    """
    file = scan(path)
    known = recognise(file.kind, file.entries)
    if known is None:
        some = ", ".join(sorted(file.entries)[:5])
        raise CheckpointError(
            "the file must be in the layout of the official code (`embedding/kernel`, "
            "`Transformer/encoderblock_0/...`), of big_vision, of timm (`patch_embed.proj.weight`) or of "
            f"transformers' ViT and DeiT.\nReceived: {path} with {len(file.entries)} arrays: {some}, ..."
        )
    dialect, prefix = known
    names = weights_among(dialect, prefix, file.entries)
    arrays = file.read(names, void_is_bfloat16=dialect == "big_vision", allow_nonfinite=allow_nonfinite)
    grid = check_grid("grid", grid) if grid is not None else _recorded_grid(file.note)
    num_patches = None if grid is None else grid[0] * grid[1]
    try:
        tensors, num_heads = to_ours(dialect, prefix, arrays, num_patches)
    except CheckpointError as error:
        raise CheckpointError(f"{error} File: {path}") from error
    said = sidecar.read(file)
    return Checkpoint(
        path=Path(path),
        dialect=dialect,
        tensors=tensors,
        num_heads=num_heads or said.num_heads,
        recorded_grid=grid,
        recorded_fields=said.fields,
        preprocessing=said.preprocessing,
        set_aside=tuple(sorted(set(file.entries) - set(names))),
    )


def _recorded_grid(note):
    try:
        return check_grid("position_grid", note.get("position_grid"))
    except ValueError:  # none, or not written by us
        return None
