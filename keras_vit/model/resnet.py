"""The ResNet baseline: layers wired into one functional `keras.Model` by a `ResNetConfig`.

Section 4.1 of arXiv:2010.11929, "ResNet (BiT)". Every layer of the graph can be reached by name: `resnet_root`,
`resnet_stage_1_unit_1`, ..., `resnet_norm`, `resnet_relu`, `pooling`, `head`.
"""

from typing import ClassVar

import keras

from keras_vit import layers
from keras_vit.annotations import Tensor
from keras_vit.config.variants import ResNetConfig
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.layers.resnet import BIT_EPSILON, group_norm
from keras_vit.model.head import Head, classifier
from keras_vit.model.image_model import ImageModel
from keras_vit.model.input_checks import record_for, shape_to_prepare, source_of


@keras.saving.register_keras_serializable("keras_vit")
class ResNet(ImageModel):
    """A ResNet as a Keras model, with its `config`, its `preprocessing` and where its weights came from.

    Made by `build_resnet` and the builders. It is saved and loaded as every Keras model, with `keras_vit` imported.

    Example:
        >>> small = keras_vit.ResNetConfig(stages=(1, 1, 1, 1), width_factor=0.5)
        >>> resnet = keras_vit.build_resnet(small, classes=3, input_shape=(40, 56, 3))
        >>> tuple(resnet(np.zeros((2, 40, 56, 3))).shape)
        (2, 3)

    Attributes:
        config: the `ResNetConfig`.
        preprocessing: the `Preprocessing` record; call it to prepare images.
        load_report: one line for each adaptation that loading made, as a new head.

    Call arguments:
        inputs: `(B, H, W, C)` floats, prepared by `preprocessing`.

    Returns:
        Logits `(B, K)`; without a top `(B, D)`.
    """

    config_class: ClassVar[type] = ResNetConfig
    config: ResNetConfig


def wire_resnet(
    images: Tensor, config: ResNetConfig, head: Head, name: str, preprocessing: Preprocessing | None = None
) -> ResNet:
    """The model from `images`, a Keras tensor, to logits or representation.

    Args:
        images: `(B, H, W, C)`.
        config: a `ResNetConfig`.
        head: a `Head`.
        name: of the model.
        preprocessing: the record that belongs to the weights; by default BiT's.
    """
    x = _stages(layers.BiTRoot(config.width, name="resnet_root")(images), config)  # (B, h, w, D)
    x = group_norm(None, "resnet_norm", epsilon=BIT_EPSILON)(x)
    x = keras.layers.Activation("relu", name="resnet_relu")(x)
    x = keras.layers.GlobalAveragePooling2D(data_format="channels_last", name="pooling")(x)  # (B, D)
    if head.classes:
        x = classifier(head, "head", head.activation)(x)  # (B, K)
    return ResNet(
        source_of(images),
        x,
        name=name,
        config=config,
        preprocessing=record_for(shape_to_prepare(images), preprocessing or Preprocessing()),
    )


def _stages(x: Tensor, config: ResNetConfig) -> Tensor:
    for stage, units in enumerate(config.stages, start=1):
        for unit in range(1, units + 1):
            x = layers.BiTUnit(
                config.width * 2 ** (stage - 1),
                strides=2 if unit == 1 and stage > 1 else 1,
                projection=unit == 1,
                name=f"resnet_stage_{stage}_unit_{unit}",
            )(x)
    return x
