"""The row of a layout: how its files are recognised, its table of names, and what no tensor says."""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checks import with_parameters
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.families.renames import Group, Heads, Layers, Rename, Style
from keras_vit.weights.read import CheckpointError

Arrays = dict[str, np.ndarray]
Makers = dict[str, Callable[[], np.ndarray]]  # arrays that are made only when they are written
Names = Mapping[tuple[str, str], Layers]  # by the prefixes here and in a file
_TO_ONE = Preprocessing(image_size=None)  # images scaled to [-1, 1]
IMAGENET_PHOTOS = Preprocessing(
    image_size=None,
    mean=(0.485, 0.456, 0.406),  # of values in [0, 1]
    std=(0.229, 0.224, 0.225),
    interpolation="bicubic",
    antialias=True,
)
SQUASHED_PHOTOS = dataclasses.replace(IMAGENET_PHOTOS, interpolation="bilinear", resize="squash")
# Of a plain Vision Transformer: parts that tensors show, each with all that files may have of it, the fullest first.
PLAIN_PARTS: Mapping[str, tuple[Any, ...]] = {
    "patch_bias": (True,),
    "patch_norm": (False,),
    "position_offset": (False,),
    "pre_norm": (False,),
    "norm": ("layer",),
    "qkv_bias": ("all",),
    "proj_bias": (True,),
    "mlp_bias": (True,),
    "gated_mlp": (False,),
    "attention_norm": (False,),
    "mlp_norm": (False,),
    "layer_scale": ("none",),
    "relative_bias": ("none",),
    "qk_norm": ("none",),
    "final_norm": ("tokens",),
    "registers": (0,),
    "class_token": (True,),
    "class_tokens": (1,),
    "prefix_rows": ("all",),
}
ANY: tuple[Any, ...] = ()  # values of a part of which a family has every number
# Fields that change the numbers and that most files do not store, and their usual values.
UNSTORED_FIELDS: Mapping[str, Any] = {
    **{"rotary": "none", "rotary_class_angles": False, "norm_position": "pre"},
    "patch_padding": 0,
}
# Words of a transformers' config that only some classes read; the others pass over them.
OWN_WORDS = (
    *("intermediate_size", "mlp_ratio", "use_swiglu_ffn", "use_gated_mlp", "qkv_bias", "proj_bias", "mlp_bias"),
    *("query_bias", "key_bias", "value_bias", "num_register_tokens", "n_cls_tokens", "max_img_size", "pooler_act"),
    "use_absolute_position_embeddings",
)
SCALED = ("mlp_ratio", "use_swiglu_ffn")
SWITCHED = (
    *("intermediate_size", "query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias", "use_gated_mlp"),
    "num_register_tokens",
)
_as_written: Callable[[Collection[str]], Callable[[str], str]] = lambda names: str  # noqa: E731


@dataclasses.dataclass(frozen=True)
class Folder:
    """How a family's software opens a folder with `model.safetensors`, and what its image processor can do.

    Attributes:
        files: makes the JSON files, by name, of the architecture's facts and a `Preprocessing` record.
        load_snippet: makes Python that opens a folder or an `hf:` name, of a model with or without a head.
        stores_epsilon: whether the JSON has the epsilon of LayerNorm.
        epsilons: others than the usual one, which an architecture of the software has by its name.
        stores_rotary: whether it has the rotary positions.
        always_resizes: whether the processor resizes photos for a model that takes images of any size.
        has_single_side: whether it knows one size for the shorter side of a photo, whatever the model's aspect.
    """

    files: Callable[[dict[str, Any], Preprocessing], dict[str, dict]]
    load_snippet: Callable[[str, bool], str]
    stores_epsilon: bool = False
    epsilons: tuple[float, ...] = ()
    stores_rotary: bool = False
    always_resizes: bool = False
    has_single_side: bool = False


@dataclasses.dataclass(frozen=True)
class ModelType:
    """What transformers computes by a `config.json` of one `model_type`.

    Attributes:
        class_name: how the names of its classes begin; `""` for a type that transformers does not have.
        layouts: those that its files may have.
        words: those of `OWN_WORDS` that it reads.
        usual: values of words that a config leaves out, where they change more than the tensors show.
        read: given the config and its place, fields of the family's own: of `ViTConfig`, and parts as of `Layout`.
        epsilon: the word for what is added to the variance.
        num_heads: A of an empty config.
        width: D of an empty config.
        has_one_size: whether its class refuses images of another size than the position table's. Others resize it:
            DINOv2 is published with a table for 518 pixels, and photos of 224.
    """

    class_name: str = ""
    layouts: tuple[str, ...] = ()
    words: tuple[str, ...] = ("intermediate_size",)
    usual: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    read: Callable[[dict[str, Any], Path], dict[str, Any]] = lambda config, place: {}
    epsilon: str = "layer_norm_eps"
    num_heads: int = 12
    width: int = 768
    has_one_size: bool = False


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of a family's files.

    Attributes:
        requires: regular expressions of whole names below a prefix; each must match a name.
        forbids: the same; none may match a name.
        ignores: the same; arrays of these names take no part in a forward pass.
        metadata_arrays: the same; arrays that hold fields of a config, and are no weights.
        read_metadata: makes fields of `ViTConfig` from those arrays, by their names below the prefix.
        write_metadata: makes those arrays from the fields of a model.
        prefixes: what files have before all names, most specific first; torch's may have any other too.
        model_types: words of a `config.json` for it, which decide where another layout has the same names.
        like: layouts of other families with the same names and shapes, from which only `model_types` distinguish it.
        fits: whether arrays of these shapes, by their names in a file, may be of this family.
        prefix: what is written before all names.
        names: `{(internal prefix, prefix in a file): layers}`.
        also: the same, of names that are read and never written.
        read_names: given all names of a file, gives the function from a name in the file to the one in the table.
        written_names: the same, from a name in the table to the one that is written.
        read_steps: change the arrays of a file before they are renamed; each gets the number of patches.
        written_steps: the same for what is written.
        defaults: given the tensors by path, the fields of `ViTConfig` that the software computes by and no tensor
            says.
        parts: fields of `ViTConfig` that tensors show, each with the values that the family's files have, the fullest
            first, or `ANY`; besides `position_table`, `attention_pooling`, and `prefix_rows`, the tokens before the
            patches that have a row in the file's position table. A file with another value is refused.
        activation: none for a layout of ResNet baselines.
        resize_method: of a position table that the software has loaded, at another resolution.
        bias_resize_method: likewise of a table of relative bias.
        position_embedding: kind that a file without a table has; by default that is not known.
        unsupported: parts that the software does not have; it would build another model without a word.
        classifier: fields of `ViTConfig` of its classes with a classifier, where these pool otherwise than the encoder.
        class_token_reduction: what the software makes of several class tokens, if its models have more than one.
        supports_post_norm: whether the software has models whose blocks have their norms after attention and MLP.
        normalizes_means: whether its LayerNorm follows mean pooling, unless a folder says otherwise.
        norms_tokens: whether its output of all tokens follows the last LayerNorm.
        void_is_bfloat16: whether arrays of two bytes without a type are bfloat16.
        preprocessing: of files that say none.
        folder: how the software opens a folder, if it does.
    """

    name: str
    software: str
    suffix: str
    style: Style
    requires: tuple[str, ...]
    names: Names
    also: Names = dataclasses.field(default_factory=dict)
    forbids: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    metadata_arrays: tuple[str, ...] = ()
    read_metadata: Callable[[Arrays], dict[str, Any]] = lambda arrays: {}
    write_metadata: Callable[[Mapping[str, Any]], Arrays] = lambda fields: {}
    prefixes: tuple[str, ...] = ("",)
    model_types: tuple[str, ...] = ()
    like: tuple[str, ...] = ()
    fits: Callable[[Iterable[str]], bool] = lambda arrays: True
    prefix: str = ""
    read_names: Callable[[Collection[str]], Callable[[str], str]] = _as_written
    written_names: Callable[[Collection[str]], Callable[[str], str]] = _as_written
    read_steps: tuple[Callable[[Arrays, int | None], Arrays], ...] = ()
    written_steps: tuple[Callable[[Makers], Makers], ...] = ()
    defaults: Callable[[Mapping[str, np.ndarray]], dict[str, Any]] = lambda tensors: {}
    parts: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=lambda: PLAIN_PARTS)
    activation: str = ""
    layer_norm_epsilon: float = 0.0
    resize_method: str = "align_corners"
    bias_resize_method: str = "geometric_linear"
    position_embedding: str = ""
    unsupported: tuple[str, ...] = ()
    classifier: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    class_token_reduction: str = ""
    supports_post_norm: bool = False
    normalizes_means: bool = False
    norms_tokens: bool = True
    void_is_bfloat16: bool = False
    preprocessing: Preprocessing = _TO_ONE
    folder: Folder | None = None

    @property
    def is_resnet(self) -> bool:
        """Whether it is a layout of ResNet baselines; else it is one of Vision Transformers."""
        return not self.activation

    @property
    def allows_any_prefix(self) -> bool:
        """Whether any prefix that ends in a dot may stand before all names, as torch's have: `state_dict.module.`."""
        return self.suffix == ".safetensors"

    def prefixes_among(self, names: Iterable[str]) -> list[str]:
        """The prefixes below which names are of this layout, most specific first; none if they are not."""
        first, *others = self.requires
        before = r"(?:.+?\.)??" if self.allows_any_prefix else "|".join(map(re.escape, self.prefixes))
        mark = re.compile(f"({before})(?:{first})")
        marked = {match[1] for name in names if (match := mark.fullmatch(name))}
        found = []
        for prefix in sorted(marked) if self.allows_any_prefix else sorted(marked, key=self.prefixes.index):
            below = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
            if all(_any(wanted, below) for wanted in others) and not any(_any(none, below) for none in self.forbids):
                found.append(prefix)
        return found

    def has_name(self, path: str) -> bool:
        """Whether the layout has a name for a weight."""
        return self._find(path, "internal") is not None

    def has_all(self, names: Collection[str], prefix: str) -> bool:
        """Whether each name of a file is below the prefix, and one that this layout has or ignores."""
        below = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        spelled, others = self.read_names(below), re.compile("|".join((*self.ignores, *self.metadata_arrays)) or "(?!)")
        has = (self._find(spelled(name), "external") or others.fullmatch(name) for name in below)
        return len(below) == len(names) and all(has)

    def stored_rows(self, arrays: Mapping[str, np.ndarray]) -> int | None:
        """Rows of the position table as the file has it, by names without the prefix; `None` without a table."""
        spelled = self.read_names(arrays)
        found = {path: array for name, array in arrays.items() for path in self._paths(spelled(name))}
        table = found.get("position_embedding/table")
        return table.shape[-2] if table is not None and table.ndim > 1 else None

    def _paths(self, name: str) -> tuple[str, ...]:
        rename = self._find(name, "external")
        return () if rename is None else rename.internal

    def unmapped(self, paths: Collection[str]) -> list[str]:
        """Paths without a name in this layout, or parts of a fused array that is incomplete."""
        there = set(paths)
        found = {path: self._find(path, "internal") for path in paths}
        return [path for path, rename in found.items() if rename is None or not there.issuperset(rename.internal)]

    def from_file(self, arrays: Arrays, num_patches: int | None) -> tuple[Arrays, int | None]:
        """`{name without prefix: array}` to `{path: array}`, and A, the number of heads, where a shape has it.

        Names that the table does not have are kept as they are.
        """
        for step in self.read_steps:
            arrays = step(arrays, num_patches)
        spelled = self.read_names(arrays)
        tensors: Arrays = {}
        sources: dict[str, str] = {}  # by path
        heads: dict[int, str] = {}
        for name, array in arrays.items():
            rename = self._find(spelled(name), "external") or Rename((name,), name)
            for path, part in zip(rename.internal, rename.from_file(name, array), strict=True):
                if path in tensors:
                    raise CheckpointError(
                        "each weight must stand once, under one of the names that a file can have for it.\n"
                        f"Received: {sources[path]} and {name}, both {path}."
                    )
                tensors[path], sources[path] = part, name
            if (count := rename.reshape.read_num_heads(array)) is not None:
                heads.setdefault(count, name)
        if len(heads) > 1:
            raise CheckpointError(
                "the attention arrays must agree on the number of heads.\n"
                f"Received: {', '.join(f'{count} in {name}' for count, name in heads.items())}."
            )
        return tensors, next(iter(heads), None)

    def to_file(self, tensors: Mapping[str, np.ndarray], num_heads: int | None) -> Iterator[tuple[str, np.ndarray]]:
        """`{path: array}`, each with a place, to pairs of name in the file and array, made one at a time."""
        renames = {rename.external: rename for path in tensors if (rename := self._find(path, "internal"))}
        if num_heads is None and any(isinstance(rename.reshape, Heads) for rename in renames.values()):
            raise with_parameters(
                CheckpointError(
                    f"the {self.name} layout has an axis for the attention heads, so their number must be known.\n"
                    "Received: num_heads=None. Pass `num_heads=`."
                ),
                "num_heads",
            )
        makers: Makers = {
            name: functools.partial(rename.to_file, tensors, num_heads) for name, rename in renames.items()
        }
        for step in self.written_steps:
            makers = step(makers)
        spelled = self.written_names(makers)
        written = {self.prefix + spelled(name): make for name, make in makers.items()}
        if not self.prefixes_among(written):
            anywhere = f"(?:{'|'.join(map(re.escape, self.prefixes))})"
            missing = [wanted for wanted in self.requires if not _any(anywhere + wanted, written)]
            raise CheckpointError(
                f"the {self.name} layout is for models with the parts by which its files are recognised.\n"
                f"Received: a model {'without ' + ' and '.join(missing) if missing else 'with others besides'}. Save "
                "it in another layout."
            )
        return ((name, make()) for name, make in written.items())

    def _find(self, name: str, side: str) -> Rename | None:
        groups = self._groups if side == "internal" else (*self._groups, *self._older)
        return next((rename for group in groups if (rename := group.find(name, side))), None)

    @functools.cached_property
    def _groups(self) -> tuple[Group, ...]:
        return tuple(Group(*prefixes, layers, self.style) for prefixes, layers in self.names.items())

    @functools.cached_property
    def _older(self) -> tuple[Group, ...]:
        return tuple(Group(*prefixes, layers, self.style) for prefixes, layers in self.also.items())


def find_shape(arrays: Iterable[str], end: str) -> tuple[int, ...] | None:
    """The shape of the array whose name ends so, of a mapping of names to what has shapes; else `None`."""
    found = [array for name, array in arrays.items() if name.endswith(end)] if isinstance(arrays, Mapping) else []
    return tuple(found[0].shape) if found else None


def _any(pattern: str, names: Iterable[str]) -> bool:
    return any(map(re.compile(pattern).fullmatch, names))
