"""Heads by kind: which taps each reads, and its layer, begun afresh or with the weights of a file.

A new kind is a record here, a layer in `layers/dense_heads`, and the names of its files in a family.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import Shape
from keras_vit.checks import ArgumentError
from keras_vit.config.heads import BOX_HEAD, DENSE_HEADS, KEYPOINTS, MASKS, OPEN_BOX_HEAD, SEGMENTATION
from keras_vit.config.vit import ViTConfig
from keras_vit.dense_models.queries import QUERY_WEIGHTS
from keras_vit.layers import (
    BoxHead,
    DPTHead,
    KeypointHead,
    LinearHead,
    MaskHead,
    MaskTransformerHead,
    OpenBoxHead,
    SETRHead,
    UPerNetHead,
)
from keras_vit.layers.configurable import at_least_float32
from keras_vit.model.copies import initialize_variables, release, uninitialized_variables
from keras_vit.weights.families.dense_heads import HeadLayout
from keras_vit.weights.heads import HeadCheckpoint
from keras_vit.weights.read import CheckpointError


@dataclasses.dataclass(frozen=True)
class HeadKind:
    """A kind of head.

    Attributes:
        layer: its class.
        taps: given the layout, the file or `None`, the word for a fresh head, and the encoder's config: how many taps
            it reads, and whether the class token is concatenated to each patch.
        fresh: given the layout, the config, and the channels of each tap: arguments of the layer of a fresh head.
        of_file: given the file and the encoder's config: those of the layer of a file.
        last: name of the layer of K outputs.
        none: how many outputs it has besides, of no class.
    """

    layer: type[keras.layers.Layer]
    taps: Callable[[HeadLayout, HeadCheckpoint | None, str | None, ViTConfig], tuple[int, bool]]
    fresh: Callable[[HeadLayout, ViTConfig, Sequence[int]], dict[str, Any]]
    of_file: Callable[[HeadCheckpoint, ViTConfig], dict[str, Any]]
    last: str = "classifier"
    none: int = 0

    def count(self, found: HeadCheckpoint) -> int:
        """K of a file."""
        return found.last_axis(f"{self.last}/kernel") - self.none

    def renewed(self, found: HeadCheckpoint, count: int) -> tuple[dict[str, np.ndarray], list[str]]:
        """The tensors of a file for K outputs, with a last layer of zeros where the file has others, and its lines."""
        tensors, last, outputs = dict(found.tensors), self.last, count + self.none
        if count == self.count(found):
            return tensors, []
        shape = (*tensors[f"{last}/kernel"].shape[:-1], outputs)
        tensors |= {f"{last}/kernel": np.zeros(shape), f"{last}/bias": np.zeros(outputs)}
        return tensors, [f"new {last}", f"set aside {last} of {self.count(found)} classes"]


def taps_of(row: HeadLayout, found: HeadCheckpoint | None, head: str | None, config: ViTConfig) -> tuple[int, bool]:
    """How many taps a head reads, and whether the class token is concatenated to each patch."""
    return _KINDS[row.kind].taps(row, found, head, config)


def fresh_head(row: HeadLayout, count: int, config: ViTConfig, widths: Sequence[int]) -> keras.layers.Layer:
    """A head with weights as its initializers draw them.

    Args:
        row: whose rules it follows.
        count: K.
        config: of the encoder.
        widths: channels of each tap.
    """
    kind = _KINDS[row.kind]
    return kind.layer(outputs=count, **kind.fresh(row, config, widths), **_shared(row))


def filled_head(
    found: HeadCheckpoint, count: int | None, config: ViTConfig, shapes: Sequence[Shape], strict: bool
) -> tuple[keras.layers.Layer, list[str]]:
    """A head with the weights of its file, and report lines on new weights.

    Args:
        found: the file's head.
        count: K, or `None` for the file's; another gets a new last layer.
        config: of the encoder.
        shapes: of the maps of taps, or of tokens and images.
        strict: whether to refuse a new last layer.

    Raises:
        CheckpointError: if the file's arrays have other shapes than its layout's layers.
    """
    row, kind = found.layout, _KINDS[found.layout.kind]
    count = kind.count(found) if count is None else count
    tensors, lines = kind.renewed(found, count)
    tensors.pop(QUERY_WEIGHTS, None)  # which are among the encoder's tokens
    if strict and lines:
        raise CheckpointError(
            "with `strict=True` a head must fit as it is.\n"
            f"Received: {found.path}, which would need: {'; '.join(lines)}. Pass strict=False to allow this."
        )
    with uninitialized_variables():
        layer = kind.layer(outputs=count, **kind.of_file(found, config), **_shared(row))
        built: Any = [tuple(shape) for shape in shapes]
        layer.build(built[0] if row.kind == BOX_HEAD else built)
    variables = {weight.path.partition(f"{layer.name}/")[2]: weight for weight in layer.weights}
    try:
        _check_fit(found, variables, tensors)
    except BaseException:
        release(variables.values())
        raise
    initialize_variables(variables, tensors)
    return layer, lines


def _shared(row: HeadLayout) -> dict[str, Any]:
    return {"dtype": at_least_float32(), "name": DENSE_HEADS[row.task], **row.options}


def _check_fit(found: HeadCheckpoint, variables: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    shapes = {path: tuple(variable.shape) for path, variable in variables.items()}
    in_file = {path: tuple(array.shape) for path, array in tensors.items()}
    wrong = [
        f"{path}: file {in_file.get(path, 'none')}, model {shapes.get(path, 'none')}"
        for path in sorted({*shapes, *in_file})
        if shapes.get(path) != in_file.get(path)
    ]
    if wrong:
        raise CheckpointError(
            f"the head of a file must have the shapes of its layout.\nReceived: {found.path} with "
            f"{'; '.join(wrong[:5])}. Bring the file again, or pass the encoder that it was trained on."
        )


def _linear_taps(
    row: HeadLayout, found: HeadCheckpoint | None, head: str | None, config: ViTConfig
) -> tuple[int, bool]:
    if found is None:
        return {"linear": 1, "linear4": 4}[str(head)], row.class_token and bool(config.num_prefix_tokens)
    width = config.hidden_size * (1 + row.class_token)
    channels = found.tensors["classifier/kernel"].shape[2]
    ratios = (1, 4) if row.class_token or row.task == SEGMENTATION else (1, 4, 2, 8)  # DINOv3's may join the token
    if channels not in [width * ratio for ratio in ratios]:
        raise CheckpointError(
            f"a head must read one tap of the encoder or four, of width {width}.\n"
            f"Received: {found.path}, which reads {channels} channels. Pass the encoder that it was trained on."
        )
    ratio = channels // width
    return {2: 1, 8: 4}.get(ratio, ratio), row.class_token or ratio in (2, 8)


def _fresh_linear(row: HeadLayout, config: ViTConfig, widths: Sequence[int]) -> dict[str, Any]:
    return {"use_batch_norm": row.rule != "bins" or "upsample" not in row.options}


def _linear_of_file(found: HeadCheckpoint, config: ViTConfig) -> dict[str, Any]:
    return {"use_batch_norm": "batch_norm/gamma" in found.tensors}


_SIZES = {  # D: channels of the four maps, and F, of Depth Anything
    384: ((48, 96, 192, 384), 64),
    768: ((96, 192, 384, 768), 128),
    1024: ((256, 512, 1024, 1024), 256),
}


def _dpt_taps(row: HeadLayout, found: HeadCheckpoint | None, head: str | None, config: ViTConfig) -> tuple[int, bool]:
    fresh = row.name.startswith("huggingface") and bool(config.num_prefix_tokens)
    return 4, "readout_0/kernel" in found.tensors if found is not None else fresh


def _fresh_dpt(row: HeadLayout, config: ViTConfig, widths: Sequence[int]) -> dict[str, Any]:
    width = config.hidden_size
    channels, features = _SIZES.get(width, (tuple(max(width // part, 1) for part in (8, 4, 2, 1)), max(width // 6, 8)))
    classes = row.options.get("end") == "classes"
    return {
        "channels": channels,
        "features": features,
        "readout": widths[0] > width,
        "unit_bias": not classes,
        "unit_norm": classes,
        "first_units": 1,
        "patch_size": config.stride,
    }


def _dpt_of_file(found: HeadCheckpoint, config: ViTConfig) -> dict[str, Any]:
    there = found.tensors
    has_before = {"before": "relu"} if "before/kernel" in there and found.layout.name == "huggingface_dpt" else {}
    return {
        "channels": [found.last_axis(f"project_{number}/kernel") for number in range(4)],
        "features": found.last_axis("conv_level_0/kernel"),
        "readout": "readout_0/kernel" in there,
        "tap_norm": "batch_norm_tap_0/gamma" in there,
        "unit_bias": "fuse_0/unit_2/filter_1/bias" in there,
        "unit_norm": "fuse_0/unit_2/batch_norm_1/gamma" in there,
        "first_units": 2 if "fuse_0/unit_1/filter_1/kernel" in there else 1,
        "patch_size": config.stride,
        "auxiliary": found.last_axis("auxiliary_3/kernel"),
        "end_width": found.last_axis("out_2/kernel") or 32,
        **has_before,
    }


def _upernet_taps(
    row: HeadLayout, found: HeadCheckpoint | None, head: str | None, config: ViTConfig
) -> tuple[int, bool]:
    return 4, False


def _fresh_upernet(row: HeadLayout, config: ViTConfig, widths: Sequence[int]) -> dict[str, Any]:
    return {"channels": config.hidden_size}  # as BEiT's and MAE's


def _upernet_of_file(found: HeadCheckpoint, config: ViTConfig) -> dict[str, Any]:
    scales = found.facts.get("pool_scales")
    auxiliary = [found.last_axis(f"auxiliary/{name}/kernel") for name in ("conv_0/conv", "classifier")]
    return {
        "channels": found.last_axis("bottleneck/conv/kernel"),
        "neck_channels": found.last_axis("neck/level_0/kernel") or None,
        "auxiliary": auxiliary if all(auxiliary) else (),
        **({} if scales is None else {"pool_scales": scales}),
    }


class _MaskTransformer(HeadKind):
    """The mask transformer, whose classes are embeddings and not outputs of a last layer."""

    def count(self, found: HeadCheckpoint) -> int:
        return found.tensors["embeddings"].shape[1]

    def renewed(self, found: HeadCheckpoint, count: int) -> tuple[dict[str, np.ndarray], list[str]]:
        tensors, old = dict(found.tensors), self.count(found)
        if count == old:
            return tensors, []
        drawn = keras.initializers.TruncatedNormal(stddev=0.02)((1, count, tensors["embeddings"].shape[2]))
        tensors |= {"embeddings": keras.ops.convert_to_numpy(drawn)}
        tensors |= {"mask_norm/gamma": np.ones(count), "mask_norm/beta": np.zeros(count)}
        return tensors, ["new class embeddings", f"set aside embeddings of {old} classes"]


def _last_tap(row: HeadLayout, found: HeadCheckpoint | None, head: str | None, config: ViTConfig) -> tuple[int, bool]:
    return 1, False


def _fresh_segmenter(row: HeadLayout, config: ViTConfig, widths: Sequence[int]) -> dict[str, Any]:
    width = config.hidden_size
    return {"hidden_size": width, "num_heads": config.num_heads if width % _HEAD_WIDTH else width // _HEAD_WIDTH}


def _segmenter_of_file(found: HeadCheckpoint, config: ViTConfig) -> dict[str, Any]:
    width = found.last_axis("project/kernel")
    num_heads = found.facts.get("num_heads") or max(width // _HEAD_WIDTH, 1)
    if type(num_heads) is not int or num_heads < 1 or width % num_heads:
        raise CheckpointError(
            f"the number of heads of the mask transformer must divide its width, {width}.\n"
            f"Received: {num_heads!r} for {found.path}, as `decoder_heads` of its config.json says, or by default its "
            f"width over {_HEAD_WIDTH}. Put a config.json with `decoder_heads` into its folder, or correct it."
        )
    blocks = {path.partition("/")[0] for path in found.tensors if path.startswith("block_")}
    mlp_dim = found.last_axis("block_00/mlp/dense_1/kernel")
    return {"hidden_size": width, "num_heads": num_heads, "num_layers": len(blocks), "mlp_dim": mlp_dim}


def _fresh_setr(row: HeadLayout, config: ViTConfig, widths: Sequence[int]) -> dict[str, Any]:
    return {"channels": 256}  # as SETR's


def _setr_of_file(found: HeadCheckpoint, config: ViTConfig) -> dict[str, Any]:
    there = found.tensors
    if "up_3/conv/kernel" not in there or there["up_0/conv/kernel"].shape[:2] != (3, 3):
        count = sum(f"up_{number}/conv/kernel" in there for number in range(4))
        raise CheckpointError(
            "a head of SETR must be that of progressive upsampling, with four convolutions of 3 x 3, which is computed "
            f"here.\nReceived: {found.path} with {count} of {there['up_0/conv/kernel'].shape[0]} x "
            f"{there['up_0/conv/kernel'].shape[1]}, as its naive head has."
        )
    names = [path.partition("/")[0] for path in there if path.endswith("up_0/conv/kernel")]
    auxiliary = sorted((name for name in names if name.startswith("auxiliary")), key=lambda name: (len(name), name))
    return {
        "channels": found.last_axis("up_0/conv/kernel"),
        "auxiliary": [
            tuple(found.last_axis(f"{name}/{part}/kernel") for part in ("up_0/conv", "classifier"))
            for name in auxiliary
        ],
    }


_QUERIES = 100  # of a fresh head of masks, as EoMT has for ADE20K


def fresh_queries(config: ViTConfig) -> tuple[np.ndarray, int]:
    """The first values of queries `(Q, D)`, and how many of the last blocks have them, by depth as EoMT's models.

    Raises:
        ValueError: for an encoder whose attention has no place for more tokens.
    """
    fields = {"rotary": ("none", "axial"), "relative_bias": ("none",), "position_injection": ("stem",)}
    wrong = [f"{name}={value!r}" for name, known in fields.items() if (value := getattr(config, name)) not in known]
    wrong += ["position_embedding='relative'"] if config.position_embedding == "relative" else []
    wrong += [f"blocks of the kind {config.blocks.kind!r}"] if config.blocks.kind != "global" else []
    if wrong:
        raise ArgumentError(
            "queries pass an encoder's last blocks with its tokens: each token must see all others, and positions must "
            "be added to tokens before the blocks, or turn those of all blocks alike.\n"
            f"Received: an encoder with {', '.join(wrong)}. Pass another, as of DINOv2 or DINOv3, or another head.",
            parameters=("head",),
        )
    drawn = keras.initializers.RandomNormal(stddev=1.0)((_QUERIES, config.hidden_size), "float32")
    blocks = 3 if config.num_layers <= 12 else 4 if config.num_layers <= 24 else 5
    return keras.ops.convert_to_numpy(drawn), min(blocks, config.num_layers)


def _fresh_masks(row: HeadLayout, config: ViTConfig, widths: Sequence[int]) -> dict[str, Any]:
    return {
        "num_queries": _QUERIES,
        "num_prefix_tokens": config.num_prefix_tokens,
        "patch_size": config.stride,
        "upscales": max(round(math.log2(config.stride / 4)), 1),  # masks of a fourth of the image's size
    }


def _no_fresh(row: HeadLayout, config: ViTConfig, widths: Sequence[int]) -> dict[str, Any]:
    raise NotImplementedError  # heads of boxes and of points are of files alone


def _masks_of_file(found: HeadCheckpoint, config: ViTConfig) -> dict[str, Any]:
    upscales = sum(path.startswith("deconv_") and path.endswith("kernel") for path in found.tensors)
    return {
        "num_queries": len(found.tensors[QUERY_WEIGHTS]),
        "num_prefix_tokens": config.num_prefix_tokens,
        "patch_size": config.stride,
        "upscales": upscales,
    }


def _boxes_of_file(found: HeadCheckpoint, config: ViTConfig) -> dict[str, Any]:
    return {"num_tokens": config.class_tokens - 1}


class _OpenBoxes(HeadKind):
    """Boxes that are compared with texts, whose embeddings the caller has put among the file's tensors."""

    def count(self, found: HeadCheckpoint) -> int:
        return len(found.tensors["queries"])


def _open_boxes_of_file(found: HeadCheckpoint, config: ViTConfig) -> dict[str, Any]:
    return {
        "embedding_size": found.last_axis("class_embedding/kernel"),
        "patch_size": config.stride,
        "objectness": "objectness_1/kernel" in found.tensors,
        "layer_norm_epsilon": config.layer_norm_epsilon,
    }


def _points_of_file(found: HeadCheckpoint, config: ViTConfig) -> dict[str, Any]:
    channels, upsample = found.last_axis("batch_norm_1/gamma"), found.facts.get("upsample")
    if channels:
        return {"kind": "classic", "channels": channels}
    return {} if upsample is None else {"upsample": upsample}


_HEAD_WIDTH = 64  # of attention in the mask transformer, where nothing says another


_KINDS: Mapping[str, HeadKind] = {  # by `HeadLayout.kind`
    "linear": HeadKind(LinearHead, _linear_taps, _fresh_linear, _linear_of_file),
    "dpt": HeadKind(DPTHead, _dpt_taps, _fresh_dpt, _dpt_of_file, last="out_3"),
    "upernet": HeadKind(UPerNetHead, _upernet_taps, _fresh_upernet, _upernet_of_file),
    "segmenter": _MaskTransformer(MaskTransformerHead, _last_tap, _fresh_segmenter, _segmenter_of_file),
    "setr": HeadKind(SETRHead, _last_tap, _fresh_setr, _setr_of_file),
    MASKS: HeadKind(MaskHead, _last_tap, _fresh_masks, _masks_of_file, last="class_head", none=1),
    KEYPOINTS: HeadKind(KeypointHead, _last_tap, _no_fresh, _points_of_file),
    OPEN_BOX_HEAD: _OpenBoxes(OpenBoxHead, _last_tap, _no_fresh, _open_boxes_of_file),
    BOX_HEAD: HeadKind(BoxHead, _last_tap, _no_fresh, _boxes_of_file, last="class_3", none=1),
}
