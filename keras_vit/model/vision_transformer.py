"""The class of the Vision Transformers."""

from typing import Any, ClassVar

import keras

from keras_vit.config.vit import ViTConfig
from keras_vit.model.image_model import ImageModel, check_takes_images


@keras.saving.register_keras_serializable("keras_vit")
class VisionTransformer(ImageModel):
    """A Vision Transformer as a Keras model, with its `config`, its `preprocessing` and where its weights came from.

    Made by `build` and the builders. It is saved and loaded as every Keras model, with `keras_vit` imported.

    Example:
        >>> model.config.hidden_size, model.preprocessing.image_size
        (192, (32, 48))
        >>> tuple(model(images).shape)
        (2, 3)

    Attributes:
        config: the `ViTConfig`.
        preprocessing: the `Preprocessing` record; call it to prepare images.
        load_report: one line for each adaptation that loading made, as a resized position table.

    Call arguments:
        inputs: `(B, H, W, C)` floats, prepared by `preprocessing`.

    Returns:
        Logits `(B, K)`; without a top `(B, D)`, or `(B, T, D)` with `pooling="none"`.
    """

    config_class: ClassVar[type] = ViTConfig
    config: ViTConfig


def check_vision_transformer(model: Any) -> None:
    """Raises unless `model` is a `VisionTransformer`; of a ResNet with the reason."""
    if isinstance(model, VisionTransformer):
        return
    check_takes_images(model)
    reason = ", since a ResNet has no tokens, blocks or attention" if isinstance(model, ImageModel) else ""
    raise TypeError(
        f"`model` must be a VisionTransformer{reason}.\nReceived: {model!r} of type {type(model).__name__}."
    )
