"""From names and files to models: `build`, and a builder for every published variant.

The signature is that of `keras.applications`, but outputs are logits unless an activation is asked for.
"""

import contextlib
import dataclasses
import os

import keras

from keras_vit import weights as checkpoints
from keras_vit.variants import ViTConfig, check_positive_int, did_you_mean, variant
from keras_vit.vit import DEFAULT_IMAGE_SIZE, Head, VisionTransformer, check_input_shape, wire

DEFAULT_CLASSES = 1000
_FIELDS = tuple(field.name for field in dataclasses.fields(ViTConfig))


def build(
    config,
    include_top=True,
    weights=None,
    input_tensor=None,
    input_shape=None,
    pooling=None,
    classes=None,
    classifier_activation=None,
    name=None,
    **config_overrides,
) -> VisionTransformer:
    """Builds a Vision Transformer.

    Args:
        config: a `ViTConfig`, or the name of a published variant as `"B/16"`.
        include_top: whether to end in a classifier; else the output is the representation.
        weights: `None` for random weights, or the path of a checkpoint in the official layout. The file
            decides `classes`, `input_shape`, `representation_size` and `class_token` where they are left open.
        input_tensor: a Keras tensor to build upon instead of a new input.
        input_shape: `(H, W, C)`; H and W may be `None`, then the position table is resized in the graph to
            what arrives. By default 224 x 224 x 3, or what the checkpoint was trained at.
        pooling: replaces `config.pooling`: `"token"`, `"gap"`, `"map"` or `"none"`.
        classes: K. By default the checkpoint's, or 1,000 without one. Another number than the file's gets a new
            head of zeros, without `pre_logits` (unless `representation_size` asks for them), as section 3.2 fine-tunes.
        classifier_activation: of the head, as `"softmax"`; by default the outputs are logits.
        name: of the model.
        **config_overrides: fields of `ViTConfig` to replace.

    Returns:
        A `VisionTransformer`.

    Raises:
        ValueError: for arguments that are wrong or contradict each other.
        TypeError: for an argument of the wrong type.
        FileNotFoundError: if `weights` is no file.
        CheckpointError: (a `ValueError`) if the file cannot be read or does not fit.

    Source: arXiv:2010.11929, section 3.
    """
    name = name or (f"vit_{config}".replace("/", "").replace("+", "_").lower() if isinstance(config, str) else "vit")
    config = _resolve_config(config, pooling, config_overrides)
    _check_top(include_top, classes, classifier_activation)
    checkpoint = None if weights is None else checkpoints.read_checkpoint(_weights_path(weights))
    head = Head(classes if include_top else 0, classifier_activation)
    table_grid, set_aside, fresh = None, (), ()
    if checkpoint is not None:
        config, head, set_aside, fresh = _follow(checkpoint, config, head, "representation_size" in config_overrides)
        table_grid = checkpoint.grid
    elif include_top:
        head = dataclasses.replace(head, classes=classes or DEFAULT_CLASSES)
    inputs = _input(input_tensor, input_shape, config, table_grid, checkpoint)
    with checkpoints.deferred_variables() if checkpoint is not None else contextlib.nullcontext():
        model = wire(inputs, config, head, table_grid, name)
    if checkpoint is not None:
        model.weights_report = checkpoints.fill(model, checkpoint, set_aside=set_aside, fresh=fresh, deferred=True)
    return model


def _resolve_config(config, pooling, overrides):
    if isinstance(config, str):
        config = variant(config)
    if not isinstance(config, ViTConfig):
        raise TypeError(f"`config` must be a ViTConfig or the name of a variant.\nReceived: config={config!r}")
    for key in overrides:
        if key not in _FIELDS:
            raise ValueError(
                "keyword arguments beyond the builder's own must be fields of ViTConfig: "
                f"{', '.join(_FIELDS)}.\nReceived: {key}={overrides[key]!r}.{did_you_mean(key, _FIELDS)}"
            )
    return dataclasses.replace(config, **({} if pooling is None else {"pooling": pooling}), **overrides)


def _check_top(include_top, classes, activation):
    if include_top not in (True, False):
        raise TypeError(f"`include_top` must be True or False.\nReceived: include_top={include_top!r}.")
    if classes is not None:
        check_positive_int("classes", classes)
    if not include_top and (classes, activation) != (None, None):
        raise ValueError(
            "`classes` and `classifier_activation` belong to the head, which `include_top=False` leaves out.\n"
            f"Received: classes={classes}, classifier_activation={activation!r}."
        )
    keras.activations.get(activation)
    if keras.config.image_data_format() != "channels_last":
        raise ValueError(
            'images are (B, H, W, C) here, so Keras must run with image_data_format="channels_last".\n'
            f"Received: {keras.config.image_data_format()!r}. Call keras.config.set_image_data_format, "
            "or change image_data_format in keras.json."
        )


def _weights_path(weights):
    if not isinstance(weights, (str, os.PathLike)):
        raise TypeError(f"`weights` must be None or a path.\nReceived: weights={weights!r}")
    if not os.path.isfile(weights):
        raise FileNotFoundError(
            "`weights` must be None or the path of a checkpoint file in the official layout (.npz).\n"
            f"Received: weights={os.fspath(weights)!r}, and there is no such file. Published checkpoints cannot "
            "yet be named here: download the file and pass its path."
        )
    return weights


def _follow(checkpoint, config, head, representation_is_given):
    """What the file decides where the caller left it open: config, head, layers set aside, layers new."""
    if config.class_token is None and config.pooling != "token":
        config = dataclasses.replace(config, class_token=bool(checkpoint.num_prefix_tokens))
    if head.classes is None and checkpoint.classes is None:
        raise checkpoints.CheckpointError(
            "the checkpoint has no head, so `classes` must be given, or `include_top=False`.\n"
            f"Received: {checkpoint.path}, classes=None."
        )
    if head.classes in (None, checkpoint.classes):
        if not representation_is_given and config.representation_size is None:
            config = dataclasses.replace(config, representation_size=checkpoint.representation_size)
        return config, dataclasses.replace(head, classes=checkpoint.classes), (), ()
    set_aside = ("head",) if config.representation_size else ("head", "pre_logits")
    new = {"pre_logits": config.representation_size and not checkpoint.representation_size, "head": head.classes}
    return config, head, set_aside, tuple(layer for layer, wanted in new.items() if wanted)


def _input(input_tensor, input_shape, config, table_grid, checkpoint):
    if input_tensor is not None:
        if not keras.backend.is_keras_tensor(input_tensor):
            raise TypeError(f"`input_tensor` must be a Keras tensor, as `keras.Input` gives.\nReceived: {input_tensor}")
        shape = tuple(input_tensor.shape[1:])
        if input_shape is not None and tuple(input_shape) != shape:
            raise ValueError(
                "`input_shape` must be that of `input_tensor` if both are given.\n"
                f"Received: input_shape={tuple(input_shape)}, input_tensor of shape {shape}."
            )
        check_input_shape(shape, config)
        return input_tensor
    if input_shape is None and checkpoint is not None and table_grid is None and checkpoint.has_positions:
        raise ValueError(
            "`input_shape` must be given: the checkpoint's position table is not square, and does not tell its grid.\n"
            f"Received: {checkpoint.path}, input_shape=None."
        )
    if input_shape is None:
        grid = table_grid or config.grid(DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
        input_shape = (grid[0] * config.stride, grid[1] * config.stride, 3)
    check_input_shape(input_shape, config)
    return keras.Input(tuple(input_shape), name="images")


def _builder(variant_name):
    """The builder function of one row of `VARIANTS`: `build` with that name, under the name users know."""

    def builder(
        include_top=True,
        weights=None,
        input_tensor=None,
        input_shape=None,
        pooling=None,
        classes=None,
        classifier_activation=None,
        name=None,
        **config_overrides,
    ):
        return build(
            variant_name,
            include_top=include_top,
            weights=weights,
            input_tensor=input_tensor,
            input_shape=input_shape,
            pooling=pooling,
            classes=classes,
            classifier_activation=classifier_activation,
            name=name,
            **config_overrides,
        )

    hybrid, _, size = variant_name.rpartition("+")
    builder.__name__ = builder.__qualname__ = f"{hybrid}ViT{size.replace('/', '')}"
    builder.__doc__ = f"Builds ViT {variant_name}; arguments, result and errors are those of `keras_vit.build`."
    return builder


ViTTi16 = _builder("Ti/16")
ViTS16 = _builder("S/16")
ViTS32 = _builder("S/32")
ViTB8 = _builder("B/8")
ViTB16 = _builder("B/16")
ViTB32 = _builder("B/32")
ViTL16 = _builder("L/16")
ViTL32 = _builder("L/32")
ViTH14 = _builder("H/14")
ViTg14 = _builder("g/14")
ViTG14 = _builder("G/14")
RViTTi16 = _builder("R+Ti/16")
R26ViTS32 = _builder("R26+S/32")
R26ViTB32 = _builder("R26+B/32")
R50ViTB16 = _builder("R50+B/16")
R50ViTL32 = _builder("R50+L/32")
