"""From a checkpoint file into a model.

Loading is strict and total. Every tensor of the file is used or set aside by name, and every weight of the model is
assigned once. All of it is checked before the first weight changes. The name of a weight is its Keras path, as
`block_00/attention/query/kernel`.
"""

import itertools
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import keras
import numpy as np

from keras_vit.annotations import FilePath, Pair
from keras_vit.checks import check_choice
from keras_vit.config.position_tables import ANY_RESIZE_METHODS
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.model.copies import float32_copy, initialize_variables, release
from keras_vit.model.image_model import ImageModel
from keras_vit.model.layer_access import (
    bias_layers,
    encoder_blocks,
    inferred_fields,
    position_layers,
    weight_paths,
)
from keras_vit.weights.adapt import (
    check_pre_logits,
    drop_layer,
    fit_axis_positions,
    fit_biases,
    fit_channels,
    fit_patches,
    fit_positions,
    select_head,
)
from keras_vit.weights.checkpoint import HEAD_KERNEL, HEADS, Checkpoint, read_checkpoint
from keras_vit.weights.families import LAYOUTS, cut, is_known, is_same_epsilon, with_shapes
from keras_vit.weights.families.dinov3 import PERIODS
from keras_vit.weights.families.layout import UNSTORED_FIELDS
from keras_vit.weights.infer_fields import infer_fields
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.text_tower import ADAPTER, IN_FOLDER, NO_PASS, OF_OTHERS

_log = logging.getLogger("keras_vit")
# Lines on layers after the output of a model without a head.
_PHOTOS_OR_NAMES = re.compile(  # remarks by which photos are prepared, or answers named, otherwise than a file says
    r"(preprocessing|text|do_pad|crop_to_patches|id2label|label2id|label_names|class_names) of .* not understood"
    r"|set aside ((\d+ )?class names|problem_type)|label2id of .* contradicts|photos (of \d+ x|that are not square)"
)
_OVERRULED = re.compile("set aside .* and its note are followed")
_WARNED = {"photos may be prepared, or classes named,": _PHOTOS_OR_NAMES, "a model is computed": _OVERRULED}
_LEFT_OUT = re.compile(
    r"set aside (head(_distillation)?|pre_logits|pooling|pooled_norm|problem_type) .*|pooling none, where .*"
)


def load_checkpoint(
    model: keras.Model,
    path: FilePath,
    *,
    grid: Pair | None = None,
    resize_method: str | None = None,
    strict: bool = False,
) -> tuple[str, ...]:
    """Loads a checkpoint into a built model: every tensor of the file is used once, and every weight is set.

    Example:
        >>> encoder = keras_vit.ViTTi16(num_layers=2, include_top=False)
        >>> path = keras_vit.save_checkpoint(encoder, "encoder.npz")
        >>> keras_vit.load_checkpoint(encoder, path)
        ()
        >>> larger = keras_vit.with_input_shape(encoder, (64, 96, 3))
        >>> keras_vit.load_checkpoint(larger, path)
        ('position embedding resized from (14, 14) to (4, 6) (align_corners)',)

    Args:
        model: a model of `keras_vit`, or a `keras.Model` made of its layers. One with layers of your own that have
            weights is refused, since no file has these. Load the model that they were put on, which shares its weights.
        path: a file in the layout of the official code, big_vision, timm or transformers; its
            content decides which one. Also a folder with a `model.safetensors`.
        grid: `(h, w)` of the file's position table, if it is not square and the file does not say.
        resize_method: how the table is resized to another grid, one of
            `keras_vit.config.position_tables.RESIZE_METHODS`, and of relative biases one of
            `keras_vit.config.position_tables.RELATIVE_RESIZE_METHODS`; by default as the software does whose layout the
            file has: `"align_corners"` the official code and big_vision, `"bicubic_antialias"` timm, `"bicubic"`
            transformers.
        strict: whether to refuse a file for which there would be a line.

    Returns:
        One line for each adaptation: of positions, patch size or input channels. One line for each field that the
        model computes otherwise than the file says: activation, LayerNorm's epsilon, pooling, kind of positions. One
        line for metadata that were not understood. Empty if the file fitted as it was.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if the file cannot be read or does not fit; the model is then unchanged.

    Warns:
        UserWarning: if the file's head is all zeros, as in the paper's ImageNet-21k files.
    """
    if resize_method is not None:
        check_choice("resize_method", resize_method, ANY_RESIZE_METHODS)
    checkpoint = read_checkpoint(path, grid=grid)
    if HEAD_KERNEL in weight_paths(model):
        checkpoint = select_head(checkpoint, classifies=True)
    names = checkpoint.class_names  # while its tensors are there
    report = fill(model, checkpoint, resize_method=resize_method, strict=strict)
    if isinstance(model, ImageModel) and HEAD_KERNEL in weight_paths(model):
        model.class_names = names or model.class_names
    return report


def fill(
    model: keras.Model,
    checkpoint: Checkpoint,
    *,
    resize_method: str | None = None,
    dropped_layers: Sequence[str] = (),
    new_layers: Sequence[str] = (),
    user_layers: Sequence[str] = (),
    strict: bool = False,
    deferred: bool = False,
    preprocessing: Preprocessing | None = None,
) -> tuple[str, ...]:
    """Gives every weight of `model` its value from `checkpoint`.

    Args:
        model: made of the layers of this package.
        checkpoint: a `Checkpoint`, of which the tensors are taken.
        resize_method: for the position table or those of relative bias; by default that of the file's layout.
        dropped_layers: layers whose tensors in the file are set aside.
        new_layers: layers of the model that keep their initial values.
        user_layers: layers of the user's own, which were there before the model.
        strict: whether to refuse a file for which there would be a line. Lines about a missing head do not count
            when the model has no head.
        deferred: whether the model was made inside `uninitialized_variables`.
        preprocessing: the record that the model's own was made of, if the model's images are prepared by it.

    Returns:
        One line for each adaptation.
    """
    variables = weight_paths(model, besides=user_layers)
    tensors = dict(checkpoint.tensors)
    report = [*checkpoint.remarks, *(f"new {name}" for name in new_layers)]
    report += [
        f"kept {layer.name}, which is no part of the file"
        for layer in model.layers
        if layer.name in user_layers and layer.weights
    ]
    for name in dropped_layers:
        report += drop_layer(tensors, name)
    try:
        _check_unstored_fields(model, checkpoint)
        _check_pooling(checkpoint, tensors, variables)
        if PERIODS in tensors and PERIODS not in variables:  # the model computes them
            report.append(f"set aside {PERIODS} {tensors.pop(PERIODS).shape}")
        shapes = {path: tuple(variable.shape) for path, variable in variables.items()}
        table_method, bias_method = checkpoint.resize_methods(resize_method)
        tables = (fit_positions(layer, checkpoint, tensors, table_method) for layer in position_layers(model))
        report += [
            *fit_patches(shapes, tensors),
            *fit_channels(shapes, tensors, preprocessing),
            *dict.fromkeys(itertools.chain.from_iterable(tables)),  # equal lines count once
            *fit_biases(bias_layers(model), checkpoint, tensors, bias_method),
            *fit_axis_positions(encoder_blocks(model), tensors),
        ]
        wanted = {path: v for path, v in variables.items() if path.split("/")[0] not in new_layers}
        _check_fit(model, checkpoint, tensors, wanted)
        check_pre_logits(checkpoint, tensors)
        report += _differing_fields(model, checkpoint)
        if strict:
            _check_strict(checkpoint, report, variables)
    except BaseException:
        if deferred:
            release(variables.values())
        raise
    zero_head = HEAD_KERNEL in tensors and not np.any(tensors[HEAD_KERNEL])
    cast(dict, checkpoint.tensors).clear()  # so that each array is freed once the model has its numbers
    if deferred:
        initialize_variables(wanted, tensors)
    else:
        for path, variable in wanted.items():
            variable.assign(float32_copy(tensors.pop(path)))
    for line in report:
        _log.info("%s: %s", checkpoint.path.name, line)
    for what, kind in _WARNED.items():
        if deferred and (lines := [line for line in checkpoint.remarks if kind.match(line)]):
            place = checkpoint.path.parent
            warnings.warn(f"{what} otherwise than the files of {place} say. {'; '.join(lines)}", stacklevel=3)
    if zero_head:  # at the end, so that a model is whole even where warnings are errors
        warnings.warn(
            f"the head of {checkpoint.path.name} is all zeros, except perhaps its bias, so every photo gets the same "
            "scores: the paper's ImageNet-21k files were published without their head. Pass `classes=k` to fine-tune, "
            "or use weights with a trained head (AugReg's ImageNet-21k files have one) to predict.",
            stacklevel=3,
        )
    return tuple(report)


def _check_unstored_fields(model: keras.Model, checkpoint: Checkpoint) -> None:
    """Raises unless both have the same rotary positions and places of norms, which most files do not store."""
    for name, usual in UNSTORED_FIELDS.items():
        in_model, in_file = (fields.get(name, usual) for fields in (inferred_fields(model), checkpoint.fields))
        if in_model != in_file:
            raise CheckpointError(
                f"the model must have the file's `{name}`, or its numbers would be others.\n"
                f"Received: {name}={in_model!r}, and {in_file!r} of {checkpoint.path}. Build with "
                f"{name}={in_file!r}, or leave the config out: `keras_vit.build(weights=...)`."
            )


def _check_pooling(checkpoint: Checkpoint, tensors: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
    """Raises if only the model or only the file pools by attention, which has weights of its own."""
    in_file, in_model = (infer_fields(weights, None).get("pooling") for weights in (tensors, variables))
    if in_model == in_file or checkpoint.is_resnet:
        return
    kinds = [f"pooling={kind!r}" if kind else "another pooling" for kind in (in_model, in_file)]
    instead = f"Build with {kinds[1]}, or leave it out" if in_file else "Leave `pooling` out"
    raise CheckpointError(
        "attention pooling has weights of its own, so the model and the file must both have it, or neither.\n"
        f"Received: {kinds[0]}, and {kinds[1]} in {checkpoint.path}. {instead}; or take all tokens, "
        '`include_top=False, pooling="none"`, and pool them in a layer of your own.'
    )


def _check_strict(checkpoint: Checkpoint, report: list[str], variables: Mapping[str, Any]) -> None:
    """Raises if the file needs an adaptation; layers after the output of a model without a head do not count."""
    classifies = any(path.split("/")[0] in HEADS.values() for path in variables)
    used = [line for line in report if not line.endswith((NO_PASS, ADAPTER, OF_OTHERS, IN_FOLDER))]
    adapted = [line for line in used if classifies or not _LEFT_OUT.fullmatch(line)]
    if not adapted:
        return
    raise CheckpointError(
        "with `strict=True` a file must fit as it is.\n"
        f"Received: {checkpoint.path}, which would need:\n"
        + "\n".join(f"    {line}" for line in adapted)
        + "\nPass strict=False to allow this."
    )


def _differing_fields(model: keras.Model, checkpoint: Checkpoint) -> list[str]:
    """A line for each field in which the model differs from what the file says or its software computes."""
    lines, software = [], LAYOUTS[checkpoint.layout].software
    defaults = {name: value for name, value in checkpoint.fields.items() if name != "pooling"}  # which a weight shows
    expected = defaults | checkpoint.recorded_fields
    for name, in_model in inferred_fields(model).items():
        in_file = expected.get(name, in_model)
        if in_model == in_file or (name == "layer_norm_epsilon" and is_same_epsilon(in_model, in_file)):
            continue
        if name == "activation" and model.config.gated_mlp and model.config.pooling != "map":
            lines.append(f"activation {in_model} is not used, since an MLP with a gate computes SiLU")
            continue
        who = "the file says" if name in checkpoint.recorded_fields else f"{software} computes"
        lines.append(f"{name} {in_model}, where {who} {in_file}")
    return lines


def _check_fit(model: keras.Model, checkpoint: Checkpoint, tensors: dict, wanted: dict) -> None:
    """Raises unless the tensors of the file and the weights of the model are the same, by path and shape."""
    heads = next((block.num_heads for block in encoder_blocks(model)), None)
    lacking = [path for path in wanted if path not in tensors]
    unused = [path for path in tensors if path not in wanted]
    extra = with_shapes(unused, tensors, "+ ")
    missing = with_shapes([path for path in lacking if is_known(path)], wanted, "- ")
    own = with_shapes([path for path in lacking if not is_known(path)], wanted, "- ")
    different = [
        f"    ~ {path}  file {tensors[path].shape}  model {tuple(variable.shape)}"
        for path, variable in wanted.items()
        if path in tensors and tensors[path].shape != tuple(variable.shape)
    ]
    if None not in (heads, checkpoint.num_heads) and heads != checkpoint.num_heads:
        different.append(f"    ~ attention heads  file {checkpoint.num_heads}  model {heads}")
    if not (extra or missing or own or different):
        return
    raise CheckpointError(
        "the checkpoint does not fit the model.\n"
        + _section("in the file, not in the model", extra)
        + _section("in the model, not in the file", missing)
        + _section("in the model, and no layout of a file has a place for it", own, most=20)
        + _section("different", different)
        + f"Received: {checkpoint.path}, which looks like {checkpoint.describe()}. Leave the config out, as of "
        "`keras_vit.build(weights=...)`, or give the file's: as `weights=` with `classes=k` it gets a new head, and "
        "with `include_top=False` none. Load it before you add LoRA or layers of your own."
    )


def _section(title: str, lines: list[str], most: int = 5) -> str:
    return f"  {title} ({len(lines)}):\n{cut(lines, most)}\n" if lines else ""
