"""A classifier of an image tower and text embeddings: their cosines are logits.

Source: arXiv:2103.00020 (CLIP), section 3.1.2, and arXiv:2303.15343 (SigLIP), equation 1.
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from keras_vit.annotations import Tensor
from keras_vit.checks import ArgumentError, check_number, check_order
from keras_vit.files import file_sha256
from keras_vit.model.head import Head, classifier, embedding
from keras_vit.model.layer_access import head_layers
from keras_vit.model.outputs import check_no_activation
from keras_vit.model.two_towers.text_tower import TextTransformer
from keras_vit.model.vision_transformer import VisionTransformer, check_vision_transformer
from keras_vit.pages.formatting import printable

_LARGEST_SCALE = 20  # exp(20) is 4.9e8; published models stay below exp(5)


def zero_shot_classifier(
    model: VisionTransformer,
    text_embeddings: npt.ArrayLike,
    class_names: Sequence[str] | None = None,
    *,
    logit_scale: float | None = None,
    logit_bias: float | None = None,
    classifier_activation: str | Callable[[Tensor], Tensor] | None = None,
    unique: bool = True,
) -> VisionTransformer:
    """Makes a classifier of an image tower and one text embedding for each class; `keras_vit.zero_shot` says how.

    Args:
        model: an image tower.
        text_embeddings: `(K, E)` or `(K, n, E)`.
        class_names: names of the K classes.
        logit_scale: logarithm of the factor on the cosines.
        logit_bias: what is added to the logits.
        classifier_activation: of the logits.
        unique: whether each name must stand once.
    """
    check_image_tower(model)
    heads, config = head_layers(model), model.config
    texts = _unit_embeddings(text_embeddings, model.output_spec.size)
    scale, bias = _scale_and_bias(model, logit_scale, logit_bias)
    check_order("class_names", class_names)
    names = None if class_names is None else tuple(map(str, class_names))
    _check_names(names, len(texts), unique)
    pooled = heads[0].input if heads else model.output
    config = config.replace(projection_size=heads[0].units if heads else None, normalize_embedding=True)
    head = classifier(Head(len(texts), classifier_activation), "head", classifier_activation)
    outputs = head(embedding(pooled, config))
    found = VisionTransformer(
        model.inputs[0],
        outputs,
        name=model.name,
        config=config,
        preprocessing=model.preprocessing,
        weights_report=model.load_report,
        class_names=names,
        similarity=(scale, bias),
    )
    for old, new in zip(heads, [layer for layer in found.layers if layer.name == "projection"], strict=True):
        if old.quantization_mode:
            new.quantize(old.quantization_mode)
        new.set_weights(old.get_weights())
    head.set_weights([(np.exp(scale) * texts).T, np.full(len(texts), bias)])
    return found


def is_of_sigmoid_loss(model: Any) -> bool:
    """Whether a model is a classifier of `zero_shot_classifier` with SigLIP's bias, which a training has not moved."""
    bias, heads = model.logit_bias, head_layers(model)
    is_made_here = bool(bias) and bool(heads) and getattr(model.config, "normalize_embedding", False)
    return is_made_here and np.allclose(keras.ops.convert_to_numpy(heads[0].bias), bias, rtol=1e-5)


def check_same_size(image: keras.Model, text: keras.Model) -> None:
    """Raises unless an image tower and a text tower give embeddings of the same size, one of each input."""
    shapes = image.output_shape, text.output_shape
    if len(shapes[0]) != 2 or len(shapes[1]) != 2 or shapes[0][-1] != shapes[1][-1]:
        raise ValueError(
            "both towers must give one embedding of the same size.\n"
            f"Received: outputs {shapes[0]} of the image tower and {shapes[1]} of the text tower. Take both from "
            "one source, or build a new text tower with that `projection_size`."
        )


def check_projections(image: keras.Model, text: keras.Model) -> None:
    """Raises for a tower without its projection, next to one with weights: the widths may be equal by chance.

    A tower of random numbers may learn to be near to the features of the other.
    """
    for tower, other, call in ((image, text, "build"), (text, image, "build_text")):
        is_trained = (
            getattr(other, "weights_source", None) is not None or getattr(other, "logit_scale", None) is not None
        )
        if is_trained and getattr(tower, "lacks_projection", False):
            raise projection_error(tower.name, tower.output_shape[-1], call)


def projection_error(name: str, size: int, call: str) -> ValueError:
    """The error for features of so many numbers, of a tower that `call` has built without its projection."""
    return ValueError(
        "images and texts are compared after the projections of their towers.\n"
        f"Received: {name!r}, {size} features before the projection. Build the tower by `keras_vit.{call}` without "
        "`include_top=False`, of a file that has its projection."
    )


def warn_other_source(image: Any, text: TextTransformer, stacklevel: int) -> None:
    """Warns of two towers that were loaded from files of different folders and content, or from different names.

    The scale of both is no proof of one model: most of CLIP's family have learned the largest, ln 100.
    """
    sources = image.weights_source, text.weights_source
    if None not in sources and not _is_one_source(*sources):
        names = [str(source) if isinstance(source, Path) else f"{source.variant} {source.name}" for source in sources]
        warnings.warn(
            "cosines of an image tower and a text tower mean something if both were trained together. The image tower "
            f"is of {printable(names[0])}, the text tower of {printable(names[1])}.",
            UserWarning,
            stacklevel=stacklevel,
        )


def _is_one_source(first: Any, second: Any) -> bool:
    """Whether two files are in one folder or equal, or two records are one, or a file begins as a record says."""
    if isinstance(second, Path) and not isinstance(first, Path):
        first, second = second, first
    if not isinstance(first, Path):
        return first == second
    if not isinstance(second, Path):
        return not first.is_file() or file_sha256(first).startswith(second.sha256_start)
    if first.parent == second.parent or not first.is_file() or not second.is_file():
        return first.parent == second.parent
    return first.stat().st_size == second.stat().st_size and file_sha256(first) == file_sha256(second)


def check_image_tower(model: VisionTransformer) -> None:
    """Raises unless a model gives one embedding of an image, of which `zero_shot` makes a classifier."""
    check_vision_transformer(model)
    check_no_activation(model)
    config = model.config
    if config.distilled or config.normalize_embedding or config.pooling == "none":
        raise ValueError(
            "an image tower must give one embedding for an image, whose length is not 1 yet.\n"
            f"Received: {model.name!r} with distilled={config.distilled}, pooling={config.pooling!r}, "
            f"normalize_embedding={config.normalize_embedding}."
        )
    for head in head_layers(model):
        if f"new {head.name}" in model.load_report and not np.any(keras.ops.convert_to_numpy(head.kernel)):
            raise ValueError(
                "the head of an image tower must be the projection of its file.\n"
                f"Received: {model.name!r} with a head of {head.units} zeros, a new one. Build "
                "the tower without `classes`, and with `include_top=False` if its file has no projection."
            )


def _check_names(names: tuple[str, ...] | None, texts: int, unique: bool) -> None:
    if names is None:
        return
    if len(names) != texts:
        raise ArgumentError(f"`class_names` must be one for each of {texts} texts.\nReceived: {len(names)} names.")
    if unique and (twice := [name for name in dict.fromkeys(names) if names.count(name) > 1 or not name]):
        raise ArgumentError(
            "`class_names` must name each class once, and none may be empty.\n"
            f"Received: {names.count(twice[0])} of {twice[0]!r}. Several texts of one class are rows of "
            "`text_embeddings` of shape (K, n, E)."
        )


def _unit_embeddings(embeddings: npt.ArrayLike, size: int) -> np.ndarray:
    """`(K, E)` of length 1."""
    texts = real_rows("text_embeddings", embeddings)
    if texts.ndim not in (2, 3) or 0 in texts.shape or texts.shape[-1] != size:
        raise ArgumentError(
            f"`text_embeddings` must be (K, E) or (K, n, E), with E = {size} as the model's embedding.\n"
            f"Received: shape {texts.shape}."
        )
    texts = unit_rows("text_embeddings", texts)
    return texts if texts.ndim == 2 else _unit_embeddings(texts.mean(axis=1), size)


def real_rows(name: str, given: npt.ArrayLike) -> np.ndarray:
    """`given` in float64; raises for complex numbers and for what is no number."""
    found = np.asarray(given)
    if found.dtype.kind not in "fiubV":  # V is that of bfloat16
        raise ArgumentError(f"`{name}` must be real numbers.\nReceived: {found.dtype}.")
    return found.astype("float64")


def unit_rows(name: str, rows: np.ndarray) -> np.ndarray:
    """Rows `(..., E)` at length 1; raises for one that has no direction, and names the first."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    wrong = np.argwhere(~np.isfinite(lengths[..., 0]) | (lengths[..., 0] == 0))
    if len(wrong):
        first = tuple(wrong[0].tolist())
        raise ArgumentError(
            f"`{name}` must be finite and not zero, so that they have a direction.\n"
            f"Received: {len(wrong):,} others, first row {', '.join(map(str, first))} of length {lengths[first][0]}."
        )
    return rows / lengths


def _scale_and_bias(
    model: VisionTransformer, logit_scale: float | None, logit_bias: float | None
) -> tuple[float, float]:
    check_bias(logit_bias, model)
    scale = model.logit_scale if logit_scale is None else logit_scale
    bias = (model.logit_bias or 0.0) if logit_bias is None else logit_bias
    if scale is None:
        raise ArgumentError(
            "the scale of the logits must be known, and only files of both towers have it.\n"
            f"Received: logit_scale=None, and a model named {model.name!r} without one. Pass the factor's logarithm, "
            "for CLIP `math.log(100)`."
        )
    return check_logit_scale(scale), check_finite("logit_bias", bias)


def check_bias(given: float | None, *towers: Any) -> None:
    """Raises if the file of a tower has a scale and lacks the bias of its family, and none is given."""
    for tower in towers:
        if given is None and getattr(tower, "logit_scale", None) is not None and tower.logit_bias is None:
            raise ArgumentError(
                "the bias of the logits must be known, which SigLIP and its like have besides the scale.\n"
                f"Received: logit_bias=None, and a model named {tower.name!r}, whose file lacks it. The file may be "
                "cut short. Pass what its authors have."
            )


def check_logit_scale(given: float) -> float:
    """`given` as a float; raises unless it is the logarithm of a factor on cosines."""
    scale = check_finite("logit_scale", given)
    if scale > _LARGEST_SCALE:
        raise ArgumentError(
            "`logit_scale` is the logarithm of the factor on the cosines, so at most "
            f"{_LARGEST_SCALE}.\nReceived: logit_scale={scale}. Pass `math.log({scale:g})` for a factor of {scale:g}."
        )
    return scale


def check_finite(name: str, given: float) -> float:
    """`given` as a float; raises unless it is a finite number, Python's or NumPy's."""
    value = given.item() if isinstance(given, np.generic) else given
    check_number(name, value)
    if not np.isfinite(value):
        raise ArgumentError(f"`{name}` must be finite.\nReceived: {name}={value}.")
    return float(value)
