"""Which weights learn: all, the last blocks, the head alone (a linear probe), or low-rank factors.

LoRA (arXiv:2106.09685): a kernel W becomes W + alpha / rank * A B. It rests on `keras.layers.Dense.enable_lora`.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Variable
from keras_vit.checks import check_choice, check_number, check_positive_int
from keras_vit.config.parts import GROUPS
from keras_vit.layers.configurable import flatten_layers
from keras_vit.model.copies import clone_graph, initialize_variables, uninitialized_variables
from keras_vit.model.image_model import ImageModel, check_image_model
from keras_vit.model.layer_access import (
    bias_layers,
    dense_parts,
    encoder_blocks,
    head_layers,
    lora_layers,
    rotary_layers,
    set_layer_depths,
    trained_heads,
)
from keras_vit.model.two_towers.text_tower import TextTransformer
from keras_vit.model.vision_transformer import VisionTransformer, check_vision_transformer

_Model = TypeVar("_Model", bound=ImageModel)
_Transformer = TypeVar("_Transformer", VisionTransformer, TextTransformer)
TRAINABLE = ("all", "head", "last_blocks", "none")


def freeze(model: _Model, trainable: str = "head", blocks: int | None = None) -> _Model:
    """Chooses which weights of a model learn. The others keep their values bit for bit.

    What changes is `layer.trainable` of the model's layers, so that it is saved with the model. Dropout and
    stochastic depth of frozen blocks go on: set their rates to 0 for a linear probe on fixed features.

    Example:
        >>> frozen = keras_vit.with_input_shape(model, model.input_shape[1:])  # a copy
        >>> frozen = keras_vit.freeze(frozen, "head")
        >>> [weight.path for weight in frozen.trainable_weights]
        ['head/kernel', 'head/bias']

    Args:
        model: a `VisionTransformer` or `ResNet`, changed in place. If it was compiled, it must be compiled again:
            Keras' fit says so, because the optimizer knows the weights of before.
        trainable: `"all"`; `"none"`; `"head"`, a linear probe; or `"last_blocks"`: the last `blocks` blocks and all
            that comes after them, of a Vision Transformer.
        blocks: k, in [1, L], with `"last_blocks"` only.

    Returns:
        `model` itself.

    Raises:
        TypeError: if `model` is neither, or a ResNet with `"last_blocks"`.
        ValueError: if the model has no head to train, too few blocks, or LoRA, which freezes by itself.
    """
    check_image_model(model)
    check_choice("trainable", trainable, TRAINABLE)
    last = _checked_blocks(model, trainable, blocks)
    if lora_layers(model):
        raise ValueError(
            "LoRA has frozen the kernels that its factors are added to, and freezing again would let them learn.\n"
            f"Received: {model.name!r}, which has LoRA. Pass what `merge_lora(model)` gives."
        )
    learning = _learning_layers(model, trainable, last)
    model.trainable = True
    for layer in model.layers:
        set_trainable(layer, layer in learning)
    forget_compilation(model)
    return model


def _learning_layers(model: ImageModel, trainable: str, last: int) -> list[keras.layers.Layer]:
    if trainable in ("all", "none"):
        return list(model.layers) if trainable == "all" else []
    if trainable == "head":
        return trained_heads(model)
    first = next(
        index for index, layer in enumerate(model.layers) if layer is encoder_blocks(model)[-last]
    )  # Keras lists layers in the order of the graph, and what a block alone reads before it
    tables = (rotary_layers(model), bias_layers(model))
    of_blocks = (found for found in tables if len(found) == len(encoder_blocks(model)))
    return [*model.layers[first:], *(layer for found in of_blocks for layer in found[-last:])]


def _checked_blocks(model: ImageModel, trainable: str, blocks: int | None) -> int:
    """How many blocks learn by themselves; 0 where they are not counted."""
    if trainable == "head" and not trained_heads(model):
        raise ValueError(
            f'`trainable="head"` needs a head.\nReceived: {model.name!r} without one. Build it with `classes=`. Of two '
            "towers, `lock_image` trains the text tower alone."
        )
    if trainable != "last_blocks":
        if blocks is not None:
            raise ValueError(
                '`blocks` counts what `trainable="last_blocks"` leaves trainable.\n'
                f"Received: trainable={trainable!r}, blocks={blocks!r}."
            )
        return 0
    if not encoder_blocks(model):
        check_vision_transformer(model)
    last = check_positive_int("blocks", blocks)
    if last > len(encoder_blocks(model)):
        raise ValueError(
            "`blocks` must be at most the number of blocks.\n"
            f"Received: blocks={blocks}, {model.name!r} with {len(encoder_blocks(model))} blocks."
        )
    return last


def set_trainable(layer: keras.layers.Layer, trainable: bool) -> None:
    """Makes a layer, the layers inside it and all their weights learn, or not; means of BatchNorm have no gradients."""
    means = set()
    for part in flatten_layers(layer):
        part.trainable = trainable
        if isinstance(part, keras.layers.BatchNormalization):
            means |= {id(part.moving_mean), id(part.moving_variance)}
    for weight in layer.weights:
        weight.trainable = trainable and id(weight) not in means


def forget_compilation(model: keras.Model) -> None:
    """Makes `fit` ask for `compile`, and `predict` trace anew.

    A function that was traced before would train what is frozen now, and answer without the factors of LoRA.
    """
    model.compiled = False
    model.train_function = model.test_function = model.predict_function = None


TARGETS = GROUPS


def add_lora(
    model: _Transformer, rank: int, alpha: float | None = None, targets: str | Sequence[str] = TARGETS
) -> _Transformer:
    """Adds LoRA: low-rank factors in the dense layers of every block. These and the head learn; all else is frozen.

    B starts at zero, so the outputs are what they were. A `.keras` file and `save_weights` keep the factors. A model
    without LoRA loads such weights merged, and one with LoRA takes weights without it under factors that start anew.

    Example:
        >>> tuned = keras_vit.with_input_shape(model, model.input_shape[1:])  # a copy
        >>> tuned = keras_vit.add_lora(tuned, rank=4)
        >>> learn = [keras.ops.convert_to_numpy(w).size for w in tuned.trainable_weights]
        >>> sum(learn), model.count_params()
        (28227, 1039875)

    Args:
        model: a `VisionTransformer`, or a `TextTransformer`, which has no head; changed in place. If it was compiled,
            it must be compiled again.
        rank: r, columns of A and rows of B, at least 1 and at most the smaller side of each kernel.
        alpha: the factors' weight is `alpha / rank`; `rank` by default, so 1.
        targets: which layers: `"attention"` (query, key, value, out) and `"mlp"` (both dense layers), of the
            blocks and of attention pooling. Parameters: 2rD for each kernel of attention, r(D + M) of an MLP.

    Returns:
        `model` itself.

    Raises:
        TypeError: for a value of the wrong type, or if `model` is neither.
        ValueError: if `rank` or `alpha` is out of range, or the model is quantised or has LoRA already.

    Source: arXiv:2106.09685, section 4.1.
    """
    _check_transformer(model)
    targets = (targets,) if isinstance(targets, str) else tuple(targets)
    dense_layers: list[keras.layers.Dense] = _find_dense_layers(model, targets)
    rank = _check_factors(rank, alpha, dense_layers)
    _check_model(model, dense_layers)
    set_trainable(model, True)  # a frozen block would hide the factors in it
    learning = [*dense_layers, *head_layers(model)]
    for layer in flatten_layers(model):
        if not any(part in learning for part in flatten_layers(layer)):
            layer.trainable = False
    for weight in model.weights:
        weight.trainable = False
    for head in head_layers(model):
        set_trainable(head, True)
    for dense in dense_layers:
        dense.enable_lora(rank, lora_alpha=alpha)
    set_layer_depths(model)
    forget_compilation(model)
    return model


def merge_lora(model: _Transformer) -> _Transformer:
    """Copies a model without LoRA: the product of the factors, A B, is added to the kernels.

    Example:
        >>> tuned = keras_vit.with_input_shape(model, model.input_shape[1:])  # a copy
        >>> tuned = keras_vit.add_lora(tuned, rank=4)
        >>> merged = keras_vit.merge_lora(tuned)
        >>> tuned.count_params(), merged.count_params()
        (1067523, 1039875)

    Args:
        model: a `VisionTransformer` or `TextTransformer` with LoRA; it is not changed.

    Returns:
        A new one with the same config, preprocessing or tokenizer, and outputs, all its weights trainable, not
        compiled. `save_checkpoint` takes it, and that of images `with_input_shape`.

    Raises:
        TypeError: if `model` is neither.
        ValueError: if the model has no LoRA.

    Source: arXiv:2106.09685, section 4.1 ("No Additional Inference Latency").
    """
    _check_transformer(model)
    if not lora_layers(model):
        raise ValueError(f"`model` must have LoRA.\nReceived: {model.name!r}. Call `add_lora(model, rank)` first.")
    values = _merged_values(model)
    with uninitialized_variables():
        copy: Any = clone_graph(model, model.input_shape[1:], keeps_lora=False)
    copy.load_report = model.load_report
    variables = dict(enumerate(copy.weights))
    initialize_variables(variables, dict(zip(variables, values, strict=True)))
    return copy


def _merged_values(model: keras.Model) -> list[np.ndarray]:
    """The value of each weight that is left when LoRA is gone, in the order of `model.weights`."""
    deltas = {id(_weight_named(dense, "kernel")): _delta(dense) for dense in lora_layers(model)}
    return [
        ops.convert_to_numpy(weight) + deltas.get(id(weight), 0)
        for weight in model.weights
        if weight.name not in ("lora_kernel_a", "lora_kernel_b")
    ]


def _delta(dense: keras.layers.Dense) -> np.ndarray:
    a, b = (ops.convert_to_numpy(_weight_named(dense, f"lora_kernel_{factor}")) for factor in "ab")
    return dense.lora_alpha / dense.lora_rank * np.matmul(a, b, dtype="float32")


def _weight_named(dense: keras.layers.Dense, name: str) -> Variable:
    return next(weight for weight in dense.weights if weight.name == name)


def _check_transformer(model: Any) -> None:
    if not isinstance(model, TextTransformer):
        check_vision_transformer(model)


def _find_dense_layers(model: keras.Model, targets: Sequence[str]) -> list[keras.layers.Dense]:
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


def _check_model(model: keras.Model, dense_layers: Sequence[keras.layers.Dense]) -> None:
    if lora_layers(model):
        raise ValueError(
            f"`model` must not have LoRA already.\nReceived: {model.name!r}. Pass what `merge_lora(model)` gives."
        )
    quantized = next((dense for dense in dense_layers if dense.quantization_mode), None)
    if quantized is not None:
        raise ValueError(
            "LoRA is added to kernels in full precision; merged into integers it would be rounded away.\n"
            f"Received: {quantized.path} in {quantized.quantization_mode}. Add LoRA, merge, and quantise then."
        )
