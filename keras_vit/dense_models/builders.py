"""From names and files to models of maps: `segmenter`, `depth_estimator` and `keypoint_estimator`.

The encoder of a published head is in its file, in a folder next to it, or passed; a fresh head takes any encoder.
"""

import dataclasses
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import FilePath, Shape, Tensor
from keras_vit.builders import build, config_and_shape
from keras_vit.checks import ArgumentError, check_choice, check_positive_int, with_hints
from keras_vit.config.heads import DEPTH, DEPTHS, DETECTION, KEYPOINTS, MASKS, QUERIES, SEGMENTATION, tap_blocks
from keras_vit.config.variants import DEFAULT_IMAGE_SIZE, variant
from keras_vit.config.vit import ViTConfig
from keras_vit.dense_models.heads import filled_head, fresh_head, fresh_queries, taps_of
from keras_vit.dense_models.queries import between_tokens, mask_scores, rebuilt, with_queries
from keras_vit.layers import DepthFromBins, DepthOutput, PadToMultiple, ResizeToImages, TapMaps
from keras_vit.model.copies import with_input_shape
from keras_vit.model.dense_model import DenseModel
from keras_vit.model.freezing import set_trainable
from keras_vit.model.layer_access import (
    encoder_blocks,
    encoder_norm,
    lora_layers,
)
from keras_vit.model.vision_transformer import VisionTransformer, check_vision_transformer
from keras_vit.weights.families import HEAD_LAYOUTS
from keras_vit.weights.families.dense_heads import HeadLayout
from keras_vit.weights.heads import ENCODER, HeadCheckpoint, read_head, unread_arrays
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.resolve import find_file

_FRESH = {  # heads: the layout whose rules they follow on DINOv3, and on others
    (SEGMENTATION, "linear"): ("dinov3_segmentation", "dinov2_segmentation"),
    (SEGMENTATION, "linear4"): ("dinov3_segmentation", "dinov2_segmentation"),
    (SEGMENTATION, "dpt"): ("huggingface_dpt_classes",) * 2,
    (SEGMENTATION, "upernet"): ("mmseg_upernet_pyramid",) * 2,
    (SEGMENTATION, "segmenter"): ("segmenter",) * 2,
    (SEGMENTATION, "eomt"): ("eomt",) * 2,
    (DEPTH, "linear"): ("dinov3_depth", "dinov2_depth"),
    (DEPTH, "linear4"): ("dinov3_depth", "dinov2_depth"),
    (DEPTH, "dpt"): ("depth_anything",) * 2,
    (DEPTH, "dpt_metric"): ("depth_anything",) * 2,
}
_BINS = 256
_PIXELS = {"mean", "std"}  # facts that no config has
_FIRST_VERSION = "depth_anything_vit"  # how names of Depth Anything's files of version 1 begin


@with_hints
def segmenter(
    encoder: VisionTransformer | ViTConfig | str | None = None,
    head: str | None = None,
    *,
    weights: FilePath | None = None,
    classes: int | None = None,
    blocks: Sequence[int] | None = None,
    input_shape: Shape | None = None,
    output_size: str = "image",
    raw: bool = False,
    freeze: bool = True,
    resize_method: str | None = None,
    strict: bool = False,
    name: str | None = None,
) -> DenseModel:
    """Builds a model that gives the class of each pixel.

    Example:
        >>> small = keras_vit.ViTConfig(8, 64, num_layers=4, num_heads=4, mlp_dim=128)
        >>> encoder = keras_vit.build(small, include_top=False, pooling="none")
        >>> keras_vit.segmenter(encoder, "linear", classes=5).output_shape
        (None, 224, 224, 5)

    Args:
        encoder: a `VisionTransformer`, or what `build` takes as `config`. One that puts out all tokens of images of
            this shape shares its weights with the result; of any other they are copied.
        head: of a fresh one, `"linear"`, BatchNorm and a convolution of one pixel on the last block; `"linear4"`, on
            four: for DINOv3 evenly spread, else the last; `"dpt"`, of Dense Prediction Transformers; `"upernet"`, with
            the pyramid of BEiT and MAE, on the blocks after a third, a half, two thirds and all, not normed;
            `"segmenter"`, the mask transformer of Segmenter, on the last block; or `"eomt"`, 100 queries with a class
            and a mask each among the tokens of the last three blocks, four of more than 12, five of more than 24. It
            learns by `keras_vit.dense.MaskClassification`, and the encoder is copied.
        weights: of a published head, or one that `save_checkpoint` wrote: a file, a folder, `"hf:owner/repository"` or
            an https URL. Its names tell what it is, and a `config.json` in its folder. DINOv2's and DINOv3's heads are
            published alone: the encoder is the argument `encoder`, or in the folder `encoder` next to the file.
        classes: K. Another number than the file's gets a new last layer, whose kernel is zero; of a mask transformer
            new class embeddings.
        blocks: numbers of the passed blocks that the head reads; by default the family's.
        input_shape: `(H, W, C)`, any H and W for heads that pad, as those of DINOv2 and DINOv3: zeros around the
            centre, and the output is resized from the padded to the unpadded size; and of Segmenter: zeros at bottom
            and right, and the output is cropped. Else multiples of the patch. They may be `None`. By default the
            encoder's.
        output_size: `"image"`, or `"head"` for the head's own grid.
        raw: of EoMT, whether to give classes and masks of queries, from which `keras_vit.dense` has `panoptic` and
            `instances`, instead of scores of each pixel.
        freeze: whether the encoder is frozen, one that is shared too.
        resize_method: of the encoder's position table, as in `build`.
        strict: whether to refuse weights that must be adapted.
        name: of the model.

    Returns:
        A `DenseModel` of float32 logits `(B, H, W, K)`. EoMT's are scores: the sum over queries of class probability
        times mask. With `raw` a dict: `class_logits` `(B, Q, K + 1)`, the last class is none, and `mask_logits`
        `(B, h, w, Q)`, of a fourth of the image's size.

    Raises:
        ValueError: for arguments that are wrong or contradict each other, and a head without an encoder.
        FileNotFoundError: if `weights` is a path and nothing is there.
        CheckpointError: (a `ValueError`) if the file cannot be read, or does not fit the encoder.

    Warns:
        UserWarning: of an encoder with random weights.

    Source: the linear heads of DINOv2, arXiv:2304.07193, and DINOv3, arXiv:2508.10104; DPT, arXiv:2103.13413; UPerNet,
    arXiv:1807.10221, with the pyramid of BEiT, arXiv:2106.08254; Segmenter, arXiv:2105.05633; EoMT, arXiv:2503.19108.
    """
    check_choice("output_size", output_size, ("image", "head"))
    classes = None if classes is None else check_positive_int("classes", classes)
    wanted = _Wanted(SEGMENTATION, encoder, head, blocks, input_shape, resize_method, strict)
    found = _head(wanted, weights)
    of_masks = head == "eomt" if found is None else found.layout.kind == MASKS
    if raw and not of_masks:
        raise ArgumentError(
            "`raw` is for heads of masks.\nReceived: raw=True for a head of classes. Leave it out.", parameters=("raw",)
        )
    opened = _open(wanted, found)
    if opened.found is None and classes is None:
        raise ArgumentError(
            "a fresh head needs the number of its classes.\nReceived: classes=None. Pass `classes=`.",
            parameters=("classes",),
        )
    outputs, lines = _outputs(opened, classes, strict)
    if of_masks:
        outputs = outputs if raw else mask_scores(outputs, opened.encoder.images, output_size)
    elif output_size == "image":
        multiple = opened.encoder.model.config.stride if opened.row.pads == "end" else 1
        back = ResizeToImages(opened.row.resize, multiple=multiple, dtype="float32", name="resize")
        outputs = back([outputs, opened.encoder.images])
    return _model(opened, outputs, freeze, name, lines, {})


@with_hints
def depth_estimator(
    encoder: VisionTransformer | ViTConfig | str | None = None,
    head: str | None = None,
    *,
    weights: FilePath | None = None,
    depth_range: Sequence[float] | None = None,
    max_depth: float | None = None,
    bins: str = "linear",
    normalise: str = "linear",
    blocks: Sequence[int] | None = None,
    input_shape: Shape | None = None,
    output_size: str = "image",
    freeze: bool = True,
    resize_method: str | None = None,
    strict: bool = False,
    name: str | None = None,
) -> DenseModel:
    """Builds a model that gives the depth of each pixel.

    Example:
        >>> small = keras_vit.ViTConfig(8, 64, num_layers=4, num_heads=4, mlp_dim=128)
        >>> encoder = keras_vit.build(small, include_top=False, pooling="none")
        >>> model = keras_vit.depth_estimator(encoder, "linear", depth_range=(0.1, 10))
        >>> model.output_shape, model.unit
        ((None, 224, 224), 'metres')

    Args:
        encoder: as for `segmenter`.
        head: of a fresh one, `"linear"` or `"linear4"`, 256 bins of depths; `"dpt"`, an inverse depth as Depth
            Anything's; or `"dpt_metric"`, metres up to `max_depth`.
        weights: as for `segmenter`: heads of DINOv2, DINOv3, Depth Anything, and Intel's DPT.
        depth_range: smallest and largest depth in metres, of bins and of DINOv2's DPT. No file holds it: DINOv2's heads
            of NYU have 0.001 to 10, those of KITTI 0.001 to 80.
        max_depth: largest depth in metres of Depth Anything's metric files with the authors' names, 20 for Hypersim and
            80 for Virtual KITTI; files of transformers say it.
        bins: `"linear"` or `"log"`, as for `keras_vit.dense.depth_from_bins`.
        normalise: `"linear"`, `"softmax"` or `"sigmoid"`, likewise.
        blocks: numbers of the passed blocks that the head reads. Depth Anything's versions have the same names, so of
            a file that is not called as its authors call it version 2 is assumed; version 1 has the last four.
        input_shape: as for `segmenter`.
        output_size: `"image"`, or `"head"` for the head's own grid.
        freeze: whether the encoder is frozen, one that is shared too.
        resize_method: of the encoder's position table, as in `build`.
        strict: whether to refuse weights that must be adapted.
        name: of the model.

    Returns:
        A `DenseModel` of float32 `(B, H, W)`: metres, or an inverse depth of no known unit, as its `unit` says.

    Raises:
        ValueError: for arguments that are wrong or contradict each other, a missing range, and a head without an
            encoder.
        FileNotFoundError: if `weights` is a path and nothing is there.
        CheckpointError: (a `ValueError`) if the file cannot be read, or does not fit the encoder.

    Warns:
        UserWarning: of an encoder with random weights.

    Source: DINOv2, arXiv:2304.07193; Depth Anything, arXiv:2401.10891 and 2406.09414; DPT, arXiv:2103.13413.
    """
    check_choice("output_size", output_size, ("image", "head"))
    wanted = _Wanted(DEPTH, encoder, head, blocks, input_shape, resize_method, strict)
    found = _head(wanted, weights)
    fresh = _FRESH[DEPTH, head][1] if head is not None else ""
    depths = _depths(found, fresh, head, depth_range, max_depth, bins=bins, normalise=normalise)
    opened = _open(wanted, found)
    outputs, lines = _outputs(opened, _BINS if opened.row.rule == "bins" else 1, strict)
    if opened.row.rule == "bins":
        outputs = DepthFromBins(depths.range or (), depths.bins, depths.normalise, dtype="float32", name=DEPTHS)(
            outputs
        )
    else:
        outputs = DepthOutput(depths.rule, depths.range, dtype="float32", name=DEPTHS)(outputs)
    if output_size == "image" and opened.row.options.get("end") != "depth_of_image":
        outputs = ResizeToImages(opened.row.resize, dtype="float32", name="resize")([outputs, opened.encoder.images])
    return _model(opened, outputs, freeze, name, lines, {"unit": depths.unit, "depth_range": depths.range})


@with_hints
def keypoint_estimator(weights: FilePath, *, input_shape: Shape | None = None, name: str | None = None) -> DenseModel:
    """Builds a model that gives a heatmap of each of a person's points: ViTPose.

    An image shows one person, cut from a photo by a box of the input's aspect, 1.25 times as large as the person's;
    `keras_vit.dense.keypoints` finds the points in the photo.

    Args:
        weights: a file or folder of transformers, `"hf:owner/repository"` or an https URL.
        input_shape: `(H, W, C)`, multiples of the patch; they may be `None`. The position table is resized to it. By
            default that of the table, in published files `(256, 192, 3)`.
        name: of the model.

    Returns:
        A `DenseModel` of float32 heatmaps `(B, h, w, K)`, h and w a fourth of H and W with patches of 16 pixels.

    Raises:
        ValueError: for sizes that cannot be.
        FileNotFoundError: if `weights` is a path and nothing is there.
        CheckpointError: (a `ValueError`) if the file cannot be read, has no such head, or contradicts its config.

    Source: ViTPose, arXiv:2204.12484.
    """
    found = read_task_head(weights, KEYPOINTS)
    opened = _open(_Wanted(KEYPOINTS, None, None, None, input_shape, None, False), found)
    outputs, lines = _outputs(opened, None, strict=False)
    return _model(opened, outputs, False, name, lines, {})


@dataclasses.dataclass(frozen=True)
class Encoder:
    """An encoder in the graph of a model of maps.

    Attributes:
        model: of all tokens.
        images: `(B, H, W, C)`, the input.
        padded: what patches are cut from.
        report: lines on adaptations.
        unread: arrays of its file that no forward pass reads, by name.
    """

    model: VisionTransformer
    images: Tensor
    padded: Tensor
    report: tuple[str, ...] = ()
    unread: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """What a caller wants, whatever the task."""

    task: str
    encoder: Any
    head: str | None
    blocks: Sequence[int] | None
    input_shape: Shape | None
    resize_method: str | None
    strict: bool


@dataclasses.dataclass(frozen=True)
class _Depths:
    """From numbers to depths."""

    rule: str
    range: tuple[float, ...] | None
    unit: str | None
    bins: str = "linear"
    normalise: str = "linear"


@dataclasses.dataclass(frozen=True)
class _Opened:
    """An encoder, the taps of it that a head reads as maps, and the head's file, or `None` for a fresh head."""

    encoder: Encoder
    row: HeadLayout
    found: HeadCheckpoint | None
    maps: list[Tensor]
    blocks: tuple[int, ...]
    facts: dict[str, tuple[str, str]]


def _head(wanted: _Wanted, weights: FilePath | None) -> HeadCheckpoint | None:
    """The head of a file, or `None` for a fresh one."""
    if (wanted.head is None) == (weights is None):
        raise ArgumentError(
            "a model of maps has a fresh head or that of a file.\n"
            f"Received: head={wanted.head!r}, weights={weights!r}. Pass one of both.",
            parameters=("head", "weights"),
        )
    if weights is None:
        check_choice("head", wanted.head, tuple(head for task, head in _FRESH if task == wanted.task))
        return None
    return read_task_head(weights, wanted.task)


_BUILDERS = {
    SEGMENTATION: "segmenter",
    DEPTH: "depth_estimator",
    DETECTION: "detector",
    KEYPOINTS: "keypoint_estimator",
}  # by task


def read_task_head(weights: FilePath, task: str) -> HeadCheckpoint:
    """The head of a file.

    Args:
        weights: a file, a folder, a name or an address.
        task: that the head must be for.

    Raises:
        CheckpointError: for a file that cannot be read, without a head, or with a head for another task.
    """
    found = read_head(find_file(weights, None).path)
    if found.layout.task != task:
        raise CheckpointError(
            f"the file must hold a head of {task}.\nReceived: {found.path}, of {found.layout.task}. Pass it to "
            f"`keras_vit.{_BUILDERS[found.layout.task]}`."
        )
    return found


def _depths(
    found: HeadCheckpoint | None,
    fresh: str,
    head: str | None,
    depth_range: Sequence[float] | None,
    max_depth: float | None,
    **ways: str,
) -> _Depths:
    """How a head's numbers become depths, by the caller, the file, and its layout."""
    row = HEAD_LAYOUTS[fresh] if found is None else found.layout
    facts = {} if found is None else found.facts
    if row.rule in ("bins", "range"):
        between = depth_range or facts.get("depth_range")
        if between is None or len(tuple(between)) != 2 or not 0 < between[0] < between[1] or max_depth:
            raise ArgumentError(
                "a head of depths needs their range, which no file holds: the smallest and the largest in metres, "
                f"above 0.\nReceived: depth_range={depth_range!r}, max_depth={max_depth!r}. DINOv2's heads "
                "of NYU have depth_range=(0.001, 10), those of KITTI (0.001, 80).",
                parameters=("depth_range", "max_depth"),
            )
        ways = {name: facts.get(name, value) for name, value in ways.items()}
        return _Depths(row.rule, tuple(map(float, between)), row.unit, **ways)
    largest = max_depth or facts.get("max_depth")
    of_metres = facts.get("unit") == "metres" and "depth_anything" in row.name
    named = found is not None and ("metric" in found.path.name or of_metres)
    if depth_range is not None or (largest is None and (named or head == "dpt_metric")):
        raise ArgumentError(
            "a head of metres needs its largest depth, and no other range.\n"
            f"Received: max_depth={max_depth!r}, depth_range={depth_range!r}. Pass max_depth=20 for files "
            "of Hypersim, 80 for Virtual KITTI.",
            parameters=("max_depth", "depth_range"),
        )
    if largest is None or head == "dpt":
        return _Depths("relu", None, facts.get("unit", row.unit))
    if not largest > 0 or "depth_anything" not in row.name:
        raise ArgumentError(
            "`max_depth` is for Depth Anything's metric heads, and above 0.\n"
            f"Received: max_depth={largest!r} for {row.name!r}.",
            parameters=("max_depth",),
        )
    return _Depths("sigmoid", (0.0, float(largest)), "metres")


def _open(wanted: _Wanted, found: HeadCheckpoint | None) -> _Opened:
    """The encoder of the caller, of the head's file, or of the folder next to it, and maps of its taps."""
    facts = {} if found is None else found.facts
    layouts = ("", "") if found is not None else _FRESH[wanted.task, str(wanted.head)]
    pads = found.layout.pads if found is not None else HEAD_LAYOUTS[layouts[1]].pads
    whole = found is not None and found.has_encoder and not isinstance(wanted.encoder, keras.Model)
    weights: Path | None = None
    rule, num_heads = wanted.resize_method, None
    if found is not None and whole:
        weights, num_heads = found.path, found.num_heads
        rule = rule or facts.get("resize_method", found.layout.resize_method)
    elif wanted.encoder is None:
        weights = None if found is None else found.path.parent / ENCODER
        if weights is None or not weights.exists():
            raise ArgumentError(
                "a head needs its encoder.\n"
                f"Received: encoder=None, and no folder {ENCODER!r} next to the head. Pass `encoder=`, as "
                "`keras_vit.build(..., weights=..., include_top=False, pooling='none')`.",
                parameters=("encoder",),
            )
    encoder = open_encoder(wanted.encoder, weights, wanted.input_shape, pads, rule, wanted.strict, whole, num_heads)
    if found is not None:
        row = found.layout
    else:
        words = f"{encoder.model.weights_layout} {wanted.encoder if isinstance(wanted.encoder, str) else ''}"
        row = HEAD_LAYOUTS[layouts["dinov3" not in f"{words} {encoder.model.name}"]]
    row = dataclasses.replace(row, normed=facts.get("normed", row.normed))
    if row.kind == MASKS:
        return _open_masks(wanted, encoder, row, found)
    count, joined = taps_of(row, found, wanted.head, encoder.model.config)
    file = "" if wanted.blocks or found is None else f", of {found.path}"
    maps, numbers = _taps(encoder, row, _blocks(wanted, found), count, joined, file)
    default = f"{row.software}, by default"
    values = {"blocks": numbers, "normed_taps": row.normed, "class_token_in_taps": joined, "padding": pads or "none"}
    sources = {"blocks": "the caller" if wanted.blocks else "the file's metadata" if "blocks" in facts else default}
    return _Opened(
        encoder, row, found, maps, numbers, {name: (str(v), sources.get(name, default)) for name, v in values.items()}
    )


def _open_masks(wanted: _Wanted, encoder: Encoder, row: HeadLayout, found: HeadCheckpoint | None) -> _Opened:
    """The encoder with the queries of a head in its last blocks, and what that head reads."""
    if wanted.blocks is not None:
        raise ArgumentError(
            "a head of masks reads the last block, and its file or the encoder's depth says which have queries.\n"
            f"Received: blocks={tuple(wanted.blocks)!r}. Leave it out.",
            parameters=("blocks",),
        )
    default = f"{row.software}, by default"
    if found is None:
        queries, blocks = fresh_queries(encoder.model.config)
        model, source = between_tokens(encoder.model, queries, blocks), default
    else:
        model, blocks, source = with_queries(encoder.model, found), found.facts["num_blocks"], "the file's metadata"
    facts = {"num_blocks": (str(blocks), source), "masked_attention": ("off", default)}
    report = tuple(line for line in encoder.report if not ((match := _UNREAD.match(line)) and row.knows(match[1])))
    encoder = dataclasses.replace(encoder, model=model, images=model.input, padded=model.input, report=report)
    return _Opened(encoder, row, found, [model.output, model.input], (model.config.num_layers,), facts)


def _blocks(wanted: _Wanted, found: HeadCheckpoint | None) -> Sequence[int] | str | None:
    """The taps of the caller or of the file, `"last"` for a file of Depth Anything's first version, or `None`."""
    if wanted.blocks is not None or found is None:
        return wanted.blocks
    first = found.layout.name == "depth_anything" and found.path.name.startswith(_FIRST_VERSION)
    return found.facts.get("blocks") or ("last" if first else None)


def _taps(
    opened: Encoder, row: HeadLayout, blocks: Sequence[int] | str | None, count: int, joined: bool, file: str
) -> tuple[list[Tensor], tuple[int, ...]]:
    """Maps of the taps, and the numbers of their blocks, which stand in a file unless the caller gives them."""
    model = opened.model
    layers, norm = encoder_blocks(model), encoder_norm(model)
    if blocks is None or isinstance(blocks, str):
        numbers = tap_blocks(blocks or row.taps, count, len(layers))
    else:
        numbers = tuple(blocks)
        if len(numbers) != count or any(type(each) is not int or not 0 < each <= len(layers) for each in numbers):
            raise ArgumentError(
                f"`blocks` must be {count} numbers from 1 to {len(layers)}, of blocks that are passed.\n"
                f"Received: blocks={numbers!r}{file}.",
                parameters=("blocks",),
            )
    if row.normed is True and norm is None:
        raise ArgumentError(
            "this head reads taps after the encoder's last LayerNorm, which this encoder lacks.\n"
            f"Received: {model.name!r} with final_norm={model.config.final_norm!r}.",
            parameters=("encoder",),
        )
    tokens = [layers[number - 1].output for number in numbers]
    if norm is not None:
        last = layers[-1].output
        normed = [row.normed is True or (row.normed == "last" and each is last) for each in tokens]
        pairs = zip(tokens, normed, strict=True)
        tokens = [(model.output if each is norm.input else norm(each)) if yes else each for each, yes in pairs]
    maps = TapMaps(model.config.stride, model.config.num_prefix_tokens, joined, name="taps")
    return maps([opened.padded, model.output, *tokens]), numbers


def _outputs(opened: _Opened, count: int | None, strict: bool) -> tuple[Tensor, list[str]]:
    """Outputs of the head, and report lines on its new weights."""
    if opened.found is None:
        layer = fresh_head(opened.row, count or 1, opened.encoder.model.config, [m.shape[-1] for m in opened.maps])
        return layer(opened.maps), []
    wanted, config = None if opened.row.task == DEPTH else count, opened.encoder.model.config
    layer, lines = filled_head(opened.found, wanted, config, [tuple(each.shape) for each in opened.maps], strict)
    return layer(opened.maps), lines


def _model(
    opened: _Opened, outputs: Tensor, freeze: bool, name: str | None, lines: Sequence[str], depths: dict[str, Any]
) -> DenseModel:
    model, row, found, images = opened.encoder.model, opened.row, opened.found, opened.encoder.images
    for layer in model.layers:
        if layer.name == QUERIES:
            continue  # which are of the head
        if freeze or (not row.normed and layer is encoder_norm(model)):
            set_trainable(layer, False)
    record = dataclasses.replace(model.preprocessing, resize="squash", interpolation="bilinear", antialias=False)
    if found is not None:
        record = dataclasses.replace(record, **{part: found.facts[part] for part in _PIXELS & found.facts.keys()})
    size = None if None in images.shape[1:3] else tuple(images.shape[1:3])
    whole = found is not None and found.has_encoder
    of_encoder = opened.encoder.unread.items()
    if whole and found is not None:
        unread = {name: array for name, array in of_encoder if name.startswith(found.encoder)}
    else:
        unread = {f"{ENCODER}/{name}": array for name, array in of_encoder}
    names = None if found is None else found.facts.get("class_names")
    made = DenseModel(
        images,
        outputs,
        name=name or f"{model.name}_{row.task}",
        config=model.config,
        preprocessing=dataclasses.replace(record, image_size=size),
        weights_report=(*opened.encoder.report, *(() if found is None else found.remarks), *lines),
        weights_facts=model.provenance | opened.facts,
        task=row.task,
        blocks=opened.blocks,
        normed=row.normed,
        short_side=(None if size is None else min(size)) if found is None else found.facts.get("short_side"),
        layouts=(row.name, model.weights_layout),
        unread={**({} if found is None else found.unread), **unread},
        folder_config={} if found is None or lines else found.folder_config,
        **depths,
    )
    made.class_names = tuple(names) if names and len(names) == made.classes else None
    return made


# Lines on the head in the same file, and on arrays as those of a head next to it.
_OF_HEAD = re.compile(
    r"set aside ((\d+ arrays|head) outside of|\d+ arrays, as (.+\.)?(auxiliary|decode)_head)|.*, as Segmenter computes"
    r"|model_type '(mmseg|segmenter)' is not known|set aside the text tower, "
)
_UNREAD = re.compile(r"set aside (?:\d+ arrays, as )?(\S+), which no forward pass reads")
# A line that is no adaptation: on what is not read, or what the file does not say.
_NO_CHANGE = re.compile(r"set aside|.*(since the file does not say|read off the tensors, since no config says)")


def open_encoder(
    encoder: Any,
    weights: Path | None,
    input_shape: Shape | None,
    pads: str,
    resize_method: str | None,
    strict: bool,
    shares_file: bool = False,
    num_heads: int | None = None,
) -> Encoder:
    """An encoder with an input of its own.

    Args:
        encoder: a `VisionTransformer`, a `ViTConfig`, the name of a variant, or `None` for that of `weights`.
        weights: file or folder of the encoder's weights, or `None`.
        input_shape: `(H, W, C)`; by default that of the encoder.
        pads: where zeros are put around images that patches do not tile, as `HeadLayout` says.
        resize_method: of the position table, or `None`.
        strict: whether to refuse weights that must be adapted.
        shares_file: whether the file of `weights` holds a head too, which is not read.
        num_heads: of the encoder, where its file does not say.

    Raises:
        ValueError: for an encoder that has no maps of patches.
    """
    fields: dict[str, Any] = {} if num_heads is None else {"num_heads": num_heads}
    if isinstance(encoder, keras.Model):
        return _of_model(encoder, input_shape, pads, resize_method)
    if weights is None:
        config = variant(encoder) if isinstance(encoder, str) else encoder
        side = config.grid(DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)[0] * config.stride
        shape: Shape = (side, side, 3)
        warnings.warn(
            f"the encoder {encoder if isinstance(encoder, str) else 'of this config'} has random weights, so its maps "
            "mean nothing yet. Pass a loaded one: `encoder=keras_vit.build(..., weights=..., include_top=False)`.",
            stacklevel=4,
        )
    else:
        config, shape = config_and_shape(weights, **fields)
    images, padded = _inputs(shape if input_shape is None else input_shape, config, pads)
    adapted: dict[str, Any] = (
        {} if weights is None else {"strict": strict and not shares_file, "resize_method": resize_method} | fields
    )
    model = build(encoder, include_top=False, pooling="none", weights=weights, input_tensor=padded, **adapted)
    unread = {} if weights is None else unread_arrays(weights, model.weights_layout)
    report = tuple(line for line in model.load_report if not (shares_file and _OF_HEAD.match(line)))
    adaptations = [line for line in report if not _NO_CHANGE.match(line)]
    if strict and shares_file and adaptations:
        raise CheckpointError(
            "with `strict=True` a file must fit as it is.\n"
            f"Received: {weights}, which would need: {'; '.join(adaptations)}. Pass strict=False to allow this."
        )
    return Encoder(model, images, padded, report, unread)


def _inputs(shape: Shape, config: ViTConfig, pads: str) -> tuple[Tensor, Tensor]:
    """The input, and what patches are cut from."""
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise ArgumentError(
            f"`input_shape` must be (H, W, C).\nReceived: input_shape={shape!r}.", parameters=("input_shape",)
        )
    if not pads and any(side is not None and side % config.stride for side in shape[:2]):
        raise ArgumentError(
            f"height and width must be multiples of the patch, {config.stride} pixels, since this head does not pad.\n"
            f"Received: input_shape={tuple(shape)}.",
            parameters=("input_shape",),
        )
    images = keras.Input(tuple(shape), name="images")
    return images, PadToMultiple(config.stride, pads, name="padding")(images) if pads else images


def _of_model(model: Any, input_shape: Shape | None, pads: str, resize_method: str | None) -> Encoder:
    """A built encoder: itself, where it puts out all tokens of images of this shape; else a copy."""
    check_vision_transformer(model)
    if model.config is None or lora_layers(model) or model.config.merged_tokens:
        raise ArgumentError(
            "an encoder must know its config, and have neither LoRA nor merged tokens.\n"
            f"Received: {model.name!r}. Pass what `merge_lora(model)` gives, or the model that it was made from.",
            parameters=("encoder",),
        )
    shape = tuple(model.input_shape[1:] if input_shape is None else input_shape)
    tiled = None not in shape and not any(side % model.config.stride for side in shape[:2])
    of_tokens = model.config.pooling == "none" and not model.classes and model.config.neck_size is None
    if of_tokens and shape == model.input_shape[1:] and (tiled or not pads):
        return Encoder(model, model.input, model.input, model.load_report)
    images, padded = _inputs(shape, model.config, pads)
    if padded.shape[1:] != model.input_shape[1:]:
        model = with_input_shape(model, padded.shape[1:], resize_method)
    config = model.config.replace(
        pooling="none",
        class_token="class" in model.config.prefix_tokens,
        final_norm="tokens" if model.config.final_norm == "tokens" else "none",
        representation_size=None,
        projection_size=None,
        neck_size=None,
        normalize_embedding=False,
    )
    copy = rebuilt(model, padded, config)
    return Encoder(copy, images, padded, copy.load_report)
