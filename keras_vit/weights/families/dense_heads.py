"""The layout of a published dense head: its names, and what its tensors do not say."""

import dataclasses
import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.config.heads import SEGMENTATION
from keras_vit.weights.families.layout import Arrays, Names
from keras_vit.weights.families.renames import TORCH, Group, Layers, Rename

_COUNTS = r"(.+\.)?num_batches_tracked"  # int64 counts of torch's BatchNorm, which no forward pass reads


@dataclasses.dataclass(frozen=True)
class HeadLayout:
    """The layout of files with a head that makes maps.

    Attributes:
        name: of the row.
        software: whose names these are.
        kind: of the head: `"linear"`, of classes or bins, `"dpt"`, `"upernet"`, `"segmenter"`, `"setr"`,
            `"keypoints"`, or of queries `"masks"` or `"boxes"`.
        requires: regular expressions of whole names below the prefix; each must match one.
        names: `{(prefix here, prefix in a file): layers}`, of layers inside the head's.
        prefix: of all names of the head.
        encoder: prefixes of an encoder in the same file.
        encoder_layouts: of such an encoder.
        encoder_parts: how names of an encoder in the same file begin that have no prefix of their own.
        task: `"segmentation"`, `"depth"`, `"detection"` or `"keypoints"`.
        ignores: names below the prefix that no forward pass reads, and that are written back as they were.
        normed: whether the encoder's last LayerNorm is applied to every tap; `"last"`, to that of the last block alone.
        class_token: whether a linear head reads the class token, concatenated to each patch.
        taps: how several taps are spread, by a rule of `tap_blocks`.
        pads: where zeros pad images to whole patches: `"centre"`, and outputs are resized to the unpadded size;
            `"end"`, at bottom and right, and outputs are cropped to it; `""` for heads that take whole patches alone.
        spellings: parts of names in a file, and how the table has them.
        resize: how the output is resized to the image.
        resize_method: of the encoder's positions, where the software of the head has a rule of its own.
        rule: from numbers to depths: `"bins"`, or one of `DepthOutput`; `"relu"` is `"sigmoid"` with a largest depth.
        unit: of depths.
        photos: how photos of any size are taken: `"windows"` slide over them, of `side` pixels as their shorter side
            is; `"own"`, at their size; `"lower_bound"` or `"minimal"`, by these rules of `keras_vit.dense`; as `detect`
            does, `"detection"`; `"boxes"`, of people, are cut from them.
        side: pixels of the shorter side of photos.
        options: arguments of the head's layer.
    """

    name: str
    software: str
    kind: str
    requires: tuple[str, ...]
    names: Names
    prefix: str = ""
    encoder: tuple[str, ...] = ()
    encoder_layouts: tuple[str, ...] = ()
    encoder_parts: tuple[str, ...] = ()
    task: str = SEGMENTATION
    ignores: tuple[str, ...] = (_COUNTS,)
    normed: bool | str = True
    class_token: bool = False
    taps: str = "even"
    pads: str = "centre"
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    resize: str = "bilinear"
    resize_method: str | None = None
    rule: str = ""
    unit: str | None = None
    photos: str = "windows"
    side: int = 512
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def parts_of(self, names: Collection[str]) -> tuple[str, dict[str, str]] | None:
        """The prefix of all names of a file of this layout, and `{name: name below the prefix}` of the head.

        `None` for a file of another layout. Names of an encoder are not among them.
        """
        first = re.compile(f"((?:.+?\\.)??){re.escape(self.prefix)}(?:{self.requires[0]})")
        for before in sorted({match[1] for name in names if (match := first.fullmatch(name))}):
            encoder = tuple(before + each for each in (*self.encoder, *self.encoder_parts))
            of_head = [name for name in names if not (encoder and name.startswith(encoder))]
            start = before + self.prefix
            below = {name: name.removeprefix(start) for name in of_head if name.startswith(start)}
            known = len(below) == len(of_head) and all(map(self.knows, below.values()))
            if known and all(any(map(re.compile(each).fullmatch, below.values())) for each in self.requires):
                return before, below
        return None

    def from_file(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """`{name below the prefix: array}` to `{path in the head: array}`, without those that nothing reads."""
        tensors: Arrays = {}
        for name, array in arrays.items():
            if rename := self._find(name, "external"):
                tensors |= dict(zip(rename.internal, rename.from_file(name, array), strict=True))
        return tensors

    def to_file(self, tensors: Mapping[str, np.ndarray]) -> Arrays:
        """`{path in the head: array}` to `{name in a file: array}`, with the row's prefix."""
        renames = {rename.external: rename for path in tensors if (rename := self._find(path, "internal"))}
        back = {there: here for here, there in self.spellings.items()}
        return {self.prefix + _spelled(name, back): rename.to_file(tensors, None) for name, rename in renames.items()}

    def unmapped(self, paths: Iterable[str]) -> list[str]:
        """Paths in the head that the layout has no name for."""
        return [path for path in paths if self._find(path, "internal") is None]

    def is_ignored(self, name: str) -> bool:
        """Whether nothing reads the array of a name below the prefix."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignores)

    def knows(self, name: str) -> bool:
        """Whether a name below the prefix is of the head, read or not."""
        return self._find(name, "external") is not None or self.is_ignored(name)

    def _find(self, name: str, side: str) -> Rename | None:
        name = _spelled(name, self.spellings) if side == "external" else name
        return next((rename for group in self._groups if (rename := group.find(name, side))), None)

    @functools.cached_property
    def _groups(self) -> tuple[Group, ...]:
        return tuple(Group(*prefixes, layers, TORCH) for prefixes, layers in self.names.items())


def _spelled(name: str, spellings: Mapping[str, str]) -> str:
    return functools.reduce(lambda found, pair: found.replace(*pair), spellings.items(), name)


def dpt_names(words: Mapping[str, str], numbers: Mapping[str, Sequence[str]]) -> Names:
    """Names of the layers of a `DPTHead`, by what a software calls those that are numbered.

    Args:
        words: of single layers.
        numbers: `{"project_{}": names of the four}`, and the same of others; `"fuse_{}"` are prefixes of fusions, and
            `"unit_{}"`, `"filter_{}"`, `"batch_norm_{}"` of what is in them, after a dot.
    """
    inside = ("fuse_{}", "unit_{}", "filter_{}", "batch_norm_{}", "out")
    layers: dict[Any, str] = {here: there for here, there in words.items() if here not in inside}
    for here, names in numbers.items():
        if here not in inside:
            layers |= {here.format(number): name for number, name in enumerate(names) if name}
    for number, fusion in enumerate(numbers["fuse_{}"]):
        layers[f"fuse_{number}/out"] = f"{fusion}.{words['out']}"
        for unit, name in enumerate(numbers["unit_{}"], start=1):
            for part in ("filter_{}", "batch_norm_{}"):
                pairs = enumerate(numbers.get(part, ()), start=1)
                layers |= {
                    f"fuse_{number}/unit_{unit}/{part.format(i)}": f"{fusion}.{name}.{each}" for i, each in pairs
                }
    return {("", ""): layers}


def counted(name: str, numbers: Iterable[int] = range(4)) -> tuple[str, ...]:
    """Four names, empty for other numbers."""
    return tuple(name.format(number) if number in numbers else "" for number in range(4))


_RESIZED = (0, 1, 3)  # of four maps those with a layer that changes their size
OF_MMSEG = dpt_names(  # and of DINOv2 and DINOv3
    {
        "out": "project.conv",
        "before": "project.conv",
        "batch_norm_before": "project.bn",
        "out_1": "conv_depth.head.0",
        "out_2": "conv_depth.head.2",
        "out_3": "conv_depth.head.4",
    },
    {
        "readout_{}": counted("reassemble_blocks.readout_projects.{}.0"),
        "batch_norm_tap_{}": counted("reassemble_blocks.batchnorm_layers.{}"),
        "project_{}": counted("reassemble_blocks.projects.{}.conv"),
        "resize_{}": counted("reassemble_blocks.resize_layers.{}", _RESIZED),
        "conv_level_{}": counted("convs.{}.conv"),
        "fuse_{}": counted("fusion_blocks.{}"),
        "unit_{}": ("res_conv_unit1", "res_conv_unit2"),
        "filter_{}": ("conv1.conv", "conv2.conv"),
        "batch_norm_{}": ("conv1.bn", "conv2.bn"),
    },
)
OF_TRANSFORMERS = dpt_names(
    {
        "out": "projection",
        "before": "head.projection",
        "out_1": "head.head.0",
        "out_2": "head.head.2",
        "out_3": "head.head.4",
        "conv_out": "head.head.0",
        "batch_norm_out": "head.head.1",
        "conv_auxiliary": "auxiliary_head.head.0",
        "batch_norm_auxiliary": "auxiliary_head.head.1",
        "auxiliary_3": "auxiliary_head.head.4",
    },
    {
        "readout_{}": counted("neck.reassemble_stage.readout_projects.{}.0"),
        "project_{}": counted("neck.reassemble_stage.layers.{}.projection"),
        "resize_{}": counted("neck.reassemble_stage.layers.{}.resize", _RESIZED),
        "conv_level_{}": counted("neck.convs.{}"),
        "fuse_{}": counted("neck.fusion_stage.layers.{}"),
        "unit_{}": ("residual_layer1", "residual_layer2"),
        "filter_{}": ("convolution1", "convolution2"),
        "batch_norm_{}": ("batch_norm1", "batch_norm2"),
    },
)
OF_DEPTH_ANYTHING = dpt_names(
    {
        "out": "out_conv",
        "out_1": "scratch.output_conv1",
        "out_2": "scratch.output_conv2.0",
        "out_3": "scratch.output_conv2.2",
    },
    {
        "project_{}": counted("projects.{}"),
        "resize_{}": counted("resize_layers.{}", _RESIZED),
        "conv_level_{}": tuple(f"scratch.layer{number}_rn" for number in (1, 2, 3, 4)),
        "fuse_{}": tuple(f"scratch.refinenet{number}" for number in (4, 3, 2, 1)),  # the deepest first
        "unit_{}": ("resConfUnit1", "resConfUnit2"),
        "filter_{}": ("conv1", "conv2"),
    },
)


def upernet_names(norm: str, classifier: str, neck: Mapping[str, str]) -> Names:
    """Names of the layers of a `UPerNetHead`.

    Args:
        norm: what a software calls BatchNorm.
        classifier: the last layer.
        neck: names of the layers of its neck.
    """
    unit: Layers = {"conv": "conv", "batch_norm": norm}
    last: Layers = {f"{here}classifier": f"{there}{classifier}" for here, there in _HEADS.items()}
    return {
        ("", ""): {**last, **{f"neck/{here}": there for here, there in neck.items()}},
        ("auxiliary/conv_{block}/", "auxiliary_head.convs.{block}."): unit,
        ("pool_{block}/", "decode_head.psp_modules.{block}.1."): unit,
        ("lateral_{block}/", "decode_head.lateral_convs.{block}."): unit,
        ("fpn_{block}/", "decode_head.fpn_convs.{block}."): unit,
        ("bottleneck/", "decode_head.bottleneck."): unit,
        ("fpn_bottleneck/", "decode_head.fpn_bottleneck."): unit,
    }


def pyramid_names(first: str, second: str) -> dict[str, str]:
    """Names of the layers of Feature2Pyramid, by what a software calls those of the first and the second tap."""
    places = {"up_0_first": "0", "batch_norm": "1", "up_0_second": "3"}
    return {here: f"{first}.{place}" for here, place in places.items()} | {"up_1": f"{second}.0"}


_HEADS = {"": "decode_head.", "auxiliary/": "auxiliary_head."}


def without(names: Names, *layers: str, **others: str) -> Names:
    """Names of fewer layers, and of some others."""
    return {("", ""): {here: there for here, there in names["", ""].items() if here not in layers} | others}
