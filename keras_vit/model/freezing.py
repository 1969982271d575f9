"""Which weights learn: all, the last blocks, or the head alone (a linear probe)."""

import keras

from keras_vit.checks import check_choice, check_positive_int
from keras_vit.layers.sublayers import flatten_layers
from keras_vit.model.image_model import ImageModel, check_image_model
from keras_vit.model.layer_lookup import bias_layers, encoder_blocks, head_layers, lora_layers, rotary_layers
from keras_vit.model.vision_transformer import check_vision_transformer

TRAINABLE = ("all", "head", "last_blocks")


def freeze(model: ImageModel, trainable: str = "head", blocks: int | None = None) -> None:
    """Chooses which weights of a model learn. The others keep their values bit for bit.

    What changes is `layer.trainable` of the model's layers, so that it is saved with the model. Dropout and
    stochastic depth of frozen blocks go on: set their rates to 0 for a linear probe on fixed features.

    Example:
        >>> frozen = keras_vit.with_input_shape(model, model.input_shape[1:])  # a copy
        >>> keras_vit.freeze(frozen, "head")
        >>> [weight.path for weight in frozen.trainable_weights]
        ['head/kernel', 'head/bias']

    Args:
        model: a `VisionTransformer` or `ResNet`, changed in place. If it was compiled, it must be compiled again:
            Keras' fit says so, because the optimizer knows the weights of before.
        trainable: `"all"`; `"head"`, a linear probe; or `"last_blocks"`: the last `blocks` blocks and all that
            comes behind them, of a Vision Transformer.
        blocks: k, in [1, L], with `"last_blocks"` only.

    Raises:
        TypeError: if `model` is neither, or a ResNet where blocks are asked for.
        ValueError: if the model has no head to train, too few blocks, or LoRA, which freezes by itself.
    """
    check_image_model(model)
    check_choice("trainable", trainable, TRAINABLE)
    last = _checked_blocks(model, trainable, blocks)
    if lora_layers(model):
        raise ValueError(
            "LoRA has frozen the kernels that it stands beside, and freezing again would let them learn.\n"
            f"Received: {model.name!r}, which has LoRA. Pass what `merge_lora(model)` gives."
        )
    learning = _learning_layers(model, trainable, last)
    model.trainable = True
    for layer in model.layers:
        set_trainable(layer, layer in learning)
    forget_compilation(model)


def _learning_layers(model: ImageModel, trainable: str, last: int) -> list[keras.layers.Layer]:
    if trainable == "all":
        return list(model.layers)
    if trainable == "head":
        return head_layers(model)
    first = next(
        index for index, layer in enumerate(model.layers) if layer is encoder_blocks(model)[-last]
    )  # Keras lists layers in the order of the graph, and what a block alone reads before it
    beside = (found for found in (rotary_layers(model), bias_layers(model)) if len(found) == len(encoder_blocks(model)))
    return [*model.layers[first:], *(layer for found in beside for layer in found[-last:])]


def _checked_blocks(model: ImageModel, trainable: str, blocks: int | None) -> int:
    """How many blocks learn by themselves; 0 where they are not counted."""
    if trainable == "head" and not head_layers(model):
        raise ValueError(
            f'`trainable="head"` needs a head.\nReceived: {model.name!r} without one. Build it with `classes=`.'
        )
    if trainable != "last_blocks":
        if blocks is not None:
            raise ValueError(
                '`blocks` counts what `trainable="last_blocks"` leaves trainable.\n'
                f"Received: trainable={trainable!r}, blocks={blocks!r}."
            )
        return 0
    check_vision_transformer(model)
    last = check_positive_int("blocks", blocks)
    if last > len(encoder_blocks(model)):
        raise ValueError(
            "`blocks` must be at most the number of blocks.\n"
            f"Received: blocks={blocks}, {model.name!r} with {len(encoder_blocks(model))} blocks."
        )
    return last


def set_trainable(layer: keras.layers.Layer, trainable: bool) -> None:
    """Makes a layer, the layers inside it and all their weights learn, or not."""
    for part in flatten_layers(layer):
        part.trainable = trainable
    for weight in layer.weights:
        weight.trainable = trainable


def forget_compilation(model: ImageModel) -> None:
    """Makes `fit` ask for `compile`, and `predict` trace anew.

    A function that was traced before would train what is frozen now, and answer without the factors of LoRA.
    """
    model.compiled = False
    model.train_function = model.test_function = model.predict_function = None
