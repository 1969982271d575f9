"""From names and files to the ResNet baselines of arXiv:2010.11929: `build_resnet`, and a builder for every one.

The signature is that of `keras_vit.build`, without what only a Vision Transformer has.
"""

import dataclasses
from collections.abc import Callable

from keras_vit.annotations import FilePath, Shape, Tensor
from keras_vit.builders import builders_by, check_weights_arguments, checked_head, images_input
from keras_vit.checks import with_hints
from keras_vit.config.variants import DEFAULT_IMAGE_SIZE, RESNETS, ResNetConfig, resnet
from keras_vit.model.copies import uninitialized_variables
from keras_vit.model.layer_access import layers_before
from keras_vit.model.resnet import ResNet, wire_resnet
from keras_vit.weights.adapt import replaced_layers, resolve_classes
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.infer_config import open_checkpoint
from keras_vit.weights.load import fill
from keras_vit.weights.resolve import find_file


@with_hints
def build_resnet(
    config: ResNetConfig | str,
    include_top: bool = True,
    weights: FilePath | None = None,
    input_tensor: Tensor = None,
    input_shape: Shape | None = None,
    classes: int | None = None,
    classifier_activation: str | Callable[[Tensor], Tensor] | None = None,
    name: str | None = None,
    sha256: str | None = None,
    strict: bool = False,
) -> ResNet:
    """Builds a ResNet baseline: pre-activation bottlenecks with GroupNorm and standardised kernels.

    Example:
        >>> small = keras_vit.ResNetConfig(stages=(1, 1, 1, 1), width_factor=0.5)
        >>> keras_vit.build_resnet(small, classes=10).output_shape
        (None, 10)

    Args:
        config: a `ResNetConfig`, or the name of a model of the papers as `"R50x1"`.
        include_top: whether to end in a classifier; else the output is the representation, and `classes` and
            `classifier_activation` are ignored, as in `keras.applications`.
        weights: `None` for random initialisation, a published name as `"bit-imagenet21k"`, an https URL, or the path of
            a file or of a mirror's folder. `keras_vit.list_weights` has the published names. File and record decide
            `classes`, `input_shape` and preprocessing where they are left open.
        input_tensor: a Keras tensor to build upon instead of a new input. Layers that it comes from keep their
            weights, and `load_report` says so.
        input_shape: `(H, W, C)` of any sides; H and W may be `None`. By default 224 x 224 x 3, or what the weights
            were trained at.
        classes: K. By default the file's, or 1,000 without one. Another number than the file's gets a new
            zero-initialised head.
        classifier_activation: of the head, as `"softmax"`; by default the outputs are logits.
        name: of the model.
        sha256: hexadecimal digest that the file of `weights` must have.
        strict: whether to refuse weights that must be adapted in any way, as by a new head.

    Returns:
        A `ResNet`.

    Raises:
        ValueError: for arguments that are wrong or contradict each other.
        TypeError: for an argument of the wrong type.
        FileNotFoundError: if `weights` is a path and nothing is there.
        CheckpointError: (a `ValueError`) if the file cannot be read, does not fit, or has another `sha256`.
        DownloadError: (an `OSError`) if the file cannot be brought; it says how to bring it by hand.

    Source: arXiv:2010.11929, section 4.1, "ResNet (BiT)"; arXiv:1912.11370.
    """
    name = name or (f"resnet_{config}".lower() if isinstance(config, str) else "resnet")
    known = _resolve_config(config)
    head = checked_head(include_top, classes, classifier_activation, weights)
    check_weights_arguments(weights, sha256, strict)
    if weights is None:
        inputs = images_input(input_tensor, input_shape, known, lambda: _infer_shape(None))
        return wire_resnet(inputs, known, head, name)
    source = find_file(weights, published_resnet(known), sha256=sha256)
    checkpoint = open_checkpoint(source, is_resnet=True)
    classes = resolve_classes(checkpoint, head.classes)
    head = dataclasses.replace(head, classes=classes)
    inputs = images_input(input_tensor, input_shape, known, lambda: _infer_shape(checkpoint))
    with uninitialized_variables():
        model = wire_resnet(inputs, known, head, name, checkpoint.preprocessing)
    dropped_layers, new_layers = replaced_layers(checkpoint, classes)
    model.load_report = fill(
        model,
        checkpoint,
        dropped_layers=dropped_layers,
        new_layers=new_layers,
        user_layers=layers_before(inputs),
        strict=strict,
        deferred=True,
        preprocessing=checkpoint.preprocessing,
    )
    return model


def _resolve_config(config: ResNetConfig | str) -> ResNetConfig:
    if isinstance(config, str):
        return resnet(config)
    if not isinstance(config, ResNetConfig):
        raise TypeError(f"`config` must be a ResNetConfig or the name of a model.\nReceived: config={config!r}")
    return config


def published_resnet(config: ResNetConfig) -> str | None:
    """The name of the model of the papers with this config, or `None`."""
    return next((name for name, known in RESNETS.items() if known == config), None)


def _infer_shape(checkpoint: Checkpoint | None) -> Shape:
    """The shape of a file, or the default one."""
    size = (checkpoint and checkpoint.image_size) or (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
    return *size, (checkpoint and checkpoint.channels) or 3


_builder = builders_by(build_resnet, "ResNet", str)

R50x1 = _builder("R50x1")
R50x2 = _builder("R50x2")
R50x3 = _builder("R50x3")
R101x1 = _builder("R101x1")
R101x3 = _builder("R101x3")
R152x1 = _builder("R152x1")
R152x2 = _builder("R152x2")
R152x4 = _builder("R152x4")
R200x3 = _builder("R200x3")
