"""Low-rank adaptation (arXiv:2106.09685): few new weights learn beside kernels that stay as they are.

A kernel W becomes W + alpha / rank * A B. It rests on `keras.layers.Dense.enable_lora`.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Variable
from keras_vit.checks import check_choice, check_number, check_positive_int
from keras_vit.config.parts import GROUPS
from keras_vit.model.copies import bare_copy
from keras_vit.model.deferred import deferred_variables, initialise
from keras_vit.model.freezing import forget_compilation, set_trainable
from keras_vit.model.layer_lookup import dense_parts, head_layers, lora_layers, mark_depths
from keras_vit.model.vision_transformer import VisionTransformer, check_vision_transformer

TARGETS = GROUPS


def add_lora(
    model: VisionTransformer, rank: int, alpha: float | None = None, targets: str | Sequence[str] = TARGETS
) -> None:
    """Adds LoRA: low-rank factors in the dense layers of every block. These and the head learn; all else is frozen.

    B starts at zero, so the outputs are what they were. Saving as `.keras` merges. The reloaded model gives the same
    numbers and has no LoRA, so all of it learns if it is trained on. Keras' `load_weights` into a model
    with LoRA sets A and B to zero, from where no gradient leads away: load first, add LoRA after.

    Example:
        >>> tuned = keras_vit.with_input_shape(model, model.input_shape[1:])  # a copy
        >>> keras_vit.add_lora(tuned, rank=4)
        >>> learn = [keras.ops.convert_to_numpy(w).size for w in tuned.trainable_weights]
        >>> sum(learn), model.count_params()
        (28227, 1039875)

    Args:
        model: a `VisionTransformer`, changed in place. If it was compiled, it must be compiled again.
        rank: r, columns of A and rows of B, at least 1 and at most the smaller side of each kernel.
        alpha: the factors' weight is `alpha / rank`; `rank` by default, so 1.
        targets: which layers: `"attention"` (query, key, value, out) and `"mlp"` (both dense layers), of the
            blocks and of attention pooling. Parameters: 2rD for each kernel of attention, r(D + M) of an MLP.

    Raises:
        TypeError: for a value of the wrong type, or if `model` is no `VisionTransformer`.
        ValueError: if `rank` or `alpha` is out of range, or the model is quantised or has LoRA already.

    Source: arXiv:2106.09685, section 4.1.
    """
    check_vision_transformer(model)
    targets = (targets,) if isinstance(targets, str) else tuple(targets)
    dense_layers = _find_dense_layers(model, targets)
    rank = _check_factors(rank, alpha, dense_layers)
    _check_model(model, dense_layers)
    set_trainable(model, True)  # a frozen block would hide the factors in it
    for weight in model.weights:
        weight.trainable = False
    for head in head_layers(model):
        set_trainable(head, True)
    for dense in dense_layers:
        dense.enable_lora(rank, lora_alpha=alpha)
    mark_depths(model)
    forget_compilation(model)


def merge_lora(model: VisionTransformer) -> VisionTransformer:
    """Copies a model without LoRA: the product of the factors, A B, is added to the kernels.

    Example:
        >>> tuned = keras_vit.with_input_shape(model, model.input_shape[1:])  # a copy
        >>> keras_vit.add_lora(tuned, rank=4)
        >>> merged = keras_vit.merge_lora(tuned)
        >>> tuned.count_params(), merged.count_params()
        (1067523, 1039875)

    Args:
        model: a `VisionTransformer` with LoRA; it is not changed.

    Returns:
        A new `VisionTransformer` with the same config, preprocessing and outputs, all its weights trainable, not
        compiled. `save_checkpoint` and `with_input_shape` take it.

    Raises:
        TypeError: if `model` is no `VisionTransformer`.
        ValueError: if the model has no LoRA.

    Source: arXiv:2106.09685, section 4.1 ("No Additional Inference Latency").
    """
    check_vision_transformer(model)
    if not lora_layers(model):
        raise ValueError(f"`model` must have LoRA.\nReceived: {model.name!r}. Call `add_lora(model, rank)` first.")
    values = _merged_values(model)
    with deferred_variables():
        copy = bare_copy(model, model.input_shape[1:])
    copy.load_report = model.load_report
    variables = dict(enumerate(copy.weights))
    initialise(variables, dict(zip(variables, values, strict=True)))
    return copy


def _merged_values(model: VisionTransformer) -> list[np.ndarray]:
    """The value of each weight that is left when LoRA is gone, in the order of `model.weights`."""
    deltas = {id(_part(dense, "kernel")): _delta(dense) for dense in lora_layers(model)}
    return [
        ops.convert_to_numpy(weight) + deltas.get(id(weight), 0)
        for weight in model.weights
        if weight.name not in ("lora_kernel_a", "lora_kernel_b")
    ]


def _delta(dense: keras.layers.Dense) -> np.ndarray:
    a, b = (ops.convert_to_numpy(_part(dense, f"lora_kernel_{factor}")) for factor in "ab")
    return dense.lora_alpha / dense.lora_rank * np.matmul(a, b, dtype="float32")


def _part(dense: keras.layers.Dense, name: str) -> Variable:
    return next(weight for weight in dense.weights if weight.name == name)


def _find_dense_layers(model: VisionTransformer, targets: Sequence[str]) -> list[keras.layers.Dense]:
    if not targets:
        raise ValueError(f"`targets` must name at least one of {TARGETS}.\nReceived: targets={targets}.")
    for target in targets:
        check_choice("targets", target, TARGETS)
    return [found.dense for found in dense_parts(model) if found.part.group in targets]


def _check_factors(rank: int, alpha: float | None, dense_layers: Sequence[keras.layers.Dense]) -> int:
    rank = check_positive_int("rank", rank)
    most = min(min(dense.kernel.shape) for dense in dense_layers)
    if rank > most:
        raise ValueError(
            "`rank` must be at most the smaller side of each kernel; beyond it, A B could be any matrix and LoRA would "
            f"save nothing.\nReceived: rank={rank}, smallest side {most}."
        )
    if alpha is not None:
        check_number("alpha", alpha)
        if not 0 < alpha < float("inf"):
            raise ValueError(
                f"`alpha` must be positive: the factors' weight is alpha / rank.\nReceived: alpha={alpha}."
            )
    return rank


def _check_model(model: VisionTransformer, dense_layers: Sequence[keras.layers.Dense]) -> None:
    if lora_layers(model):
        raise ValueError(
            f"`model` must not have LoRA already.\nReceived: {model.name!r}. Pass what `merge_lora(model)` gives."
        )
    quantized = next((dense for dense in dense_layers if dense.quantization_mode), None)
    if quantized is not None:
        raise ValueError(
            "LoRA learns beside kernels in full precision; merged into integers it would be rounded away.\n"
            f"Received: {quantized.path} in {quantized.quantization_mode}. Add LoRA, merge, and quantise then."
        )
