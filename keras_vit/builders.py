"""From names and files to models: `build`, `build_resnet`, and a builder for every published variant.

The signature is that of `keras.applications`, but outputs are logits unless an activation is asked for.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Collection
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import keras

from keras_vit.annotations import Arguments, FilePath, Shape, Tensor
from keras_vit.checks import check_choice, check_positive_int, check_process, did_you_mean, with_hints
from keras_vit.config.position_tables import ANY_RESIZE_METHODS, CROPPED
from keras_vit.config.records import PAPER_VALUES
from keras_vit.config.variants import (
    DEFAULT_CLASSES,
    DEFAULT_IMAGE_SIZE,
    ENCODERS,
    RESNETS,
    VARIANTS,
    ResNetConfig,
    builder_name,
    resnet,
    variant,
)
from keras_vit.config.vit import RECORD_OF, ViTConfig
from keras_vit.model.copies import uninitialized_variables
from keras_vit.model.graph import build_graph
from keras_vit.model.head import Head
from keras_vit.model.input_checks import check_input_shape
from keras_vit.model.layer_access import layers_before
from keras_vit.model.resnet import ResNet, wire_resnet
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.renamed import accepts_old_arguments
from keras_vit.weights.adapt import drop_pooling, drop_tokens, replaced_layers, resolve_classes, select_head
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.infer_config import (
    assumed_defaults,
    differing_parts,
    final_norm_override,
    find_provenance,
    infer_config,
    open_checkpoint,
)
from keras_vit.weights.load import fill
from keras_vit.weights.registry import WeightsRecord, suggest_model
from keras_vit.weights.resolve import WeightsFile, find_file, only_variant

_Arguments = ParamSpec("_Arguments")
_Model = TypeVar("_Model")
_FIELDS = tuple(RECORD_OF)


@accepts_old_arguments
def build(
    config: ViTConfig | str | None = None,
    include_top: bool = True,
    weights: FilePath | None = None,
    input_tensor: Tensor = None,
    input_shape: Shape | None = None,
    pooling: str | None = None,
    classes: int | None = None,
    classifier_activation: str | Callable[[Tensor], Tensor] | None = None,
    name: str | None = None,
    sha256: str | None = None,
    strict: bool = False,
    resize_method: str | None = None,
    **config_overrides: Any,
) -> VisionTransformer:
    """Builds a Vision Transformer.

    Example:
        >>> small = keras_vit.ViTConfig(8, 64, num_layers=4, num_heads=4, mlp_dim=128)
        >>> keras_vit.build(small, include_top=False).output_shape
        (None, 64)

    Args:
        config: a `ViTConfig`, or the name of a published variant as `"B/16"` or `"dinov2/S14"`. By default it is
            inferred from the file of `weights` and its `config.json`.
        include_top: whether to end in a classifier; else the output is the representation, and `classes` and
            `classifier_activation` are ignored, as in `keras.applications`.
        weights: `None` for random initialisation, or where the weights are: a published name as `"imagenet21k"`, an
            AugReg file name, `"hf:owner/repository"`, an https URL, or the path of a file or of a mirror's folder.
            `keras_vit.list_weights` has the published names. File and record decide what is left open here:
            `classes`, `input_shape`, preprocessing, and fields of the config such as `pooling`, `activation`,
            `representation_size`, `distilled`. Of a `ViTConfig` they decide `activation` and `layer_norm_epsilon`
            where these are left out; a value that is given stays.
        input_tensor: a Keras tensor to build upon instead of a new input. Layers that it comes from keep their
            weights, and `load_report` says so.
        input_shape: `(H, W, C)`; H and W may be `None`, then the position table is resized in the graph to
            what arrives. By default 224 x 224 x 3, or what the checkpoint was trained at.
        pooling: replaces `config.pooling`: `"token"`, `"gap"` (the mean, elsewhere `"avg"`), `"token_gap"`, `"map"` or
            `"none"`.
        classes: K. By default the checkpoint's, or 1,000 without one. Another number than the file's gets a new
            zero-initialised head, without `pre_logits` (unless `representation_size` is given), as section 3.2
            fine-tunes.
        classifier_activation: of the head, as `"softmax"`; by default the outputs are logits.
        name: of the model.
        sha256: hexadecimal digest that the file of `weights` must have.
        strict: whether to refuse weights that must be adapted in any way, as by a new head. With `include_top=False`
            the file's head, and with `pooling="none"` its pooling, may be left out; `load_report` says so.
        resize_method: of the position table, one of `RESIZE_METHODS` in `keras_vit.config.position_tables`, or of
            relative biases, one of its `RELATIVE_RESIZE_METHODS`; by default that of the software that the weights are
            from, `"align_corners"` for the official ones.
        **config_overrides: fields of `ViTConfig` to replace.

    Returns:
        A `VisionTransformer`.

    Raises:
        ValueError: for arguments that are wrong or contradict each other.
        TypeError: for an argument of the wrong type.
        FileNotFoundError: if `weights` is a path and nothing is there.
        CheckpointError: (a `ValueError`) if the file cannot be read, does not fit, or has another `sha256`.
        DownloadError: (an `OSError`) if the file cannot be brought; it says how to bring it by hand.

    Source: arXiv:2010.11929, section 3.
    """
    name = name or _name_of(config)
    given = _given_fields(config, pooling, config_overrides)
    head = _checked_head(include_top, classes, classifier_activation, weights)
    _check_weights_arguments(weights, sha256, strict, resize_method)
    # Open: the config, and the file of the weights if there are any.
    config, source, checkpoint = _opened(config, pooling, config_overrides, weights, sha256, include_top)
    if source is None or checkpoint is None:
        inputs = _images_input(input_tensor, input_shape, config, functools.partial(_infer_shape, config, None, None))
        return build_graph(inputs, ViTConfig(**config.as_dict()), head, None, name)
    # Config: what the caller left open is the file's.
    config = ViTConfig(**_follow(checkpoint, config, given).as_dict())  # every field has its value now
    checkpoint = drop_pooling(drop_tokens(checkpoint, config.prefix_tokens), config)
    # Head: the file's, or a new one.
    config, head, dropped_layers, new_layers = _follow_head(
        checkpoint, config, head, "representation_size" in config_overrides
    )
    # Graph: without values, and what the file says of the model.
    rule = resize_method or (source.record and source.record.resize_method) or None
    methods = checkpoint.resize_methods(rule)
    inputs = _images_input(input_tensor, input_shape, config, lambda: _infer_shape(config, checkpoint, source.record))
    with uninitialized_variables():
        model = build_graph(inputs, config, head, checkpoint.grid, name, checkpoint.preprocessing, *methods)
    model.logit_scale, model.logit_bias = checkpoint.logit_scale_and_bias
    model.class_names = _names_of(checkpoint, head)
    model.provenance = find_provenance(checkpoint, source.record, config, {*given, resize_method}, methods)
    model.weights_source = source.record or checkpoint.path
    model.weights_layout, model.mask_token = checkpoint.layout, checkpoint.mask_token
    model.lacks_projection = (checkpoint.embeds() or checkpoint.lacks_projection()) and not head.classes
    # Fill: every weight gets its value.
    model.load_report = fill(
        model,
        checkpoint,
        resize_method=rule,
        dropped_layers=dropped_layers,
        new_layers=new_layers,
        user_layers=layers_before(inputs),
        strict=strict,
        deferred=True,
        preprocessing=checkpoint.preprocessing,
    )
    if source.record is None and input_shape is None and input_tensor is None:
        model.load_report += _other_photos(checkpoint, model)
    return model


def _other_photos(checkpoint: Checkpoint, model: keras.Model) -> tuple[str, ...]:
    """A line if the folder prepares photos of another size than its weights give the model, as that of DINOv2."""
    size, own = getattr(checkpoint.preprocessing, "image_size", None), tuple(model.input_shape[1:3])
    if size in (None, own) or any(line.startswith("photos of ") for line in checkpoint.remarks):
        return ()
    (height, width), (own_height, own_width) = size, own
    return (
        f"photos are resized to {own_height} x {own_width}, the size of the weights, and not to the {height} x {width} "
        "of the folder; `input_shape` sets another size",
    )


def _name_of(config: ViTConfig | str | None) -> str:
    """As `"vit_b16"` or `"dinov2_s14"`; `"vit"` of a config that has no name."""
    if not isinstance(config, str):
        return "vit"
    if config in ENCODERS:
        return config.replace("/", "_").lower()
    return f"vit_{config}".replace("/", "").replace("+", "_").lower()


def published_variant(config: ViTConfig | str) -> str | None:
    """The name of the published variant with these sizes, or `None`; a name is given back."""
    if isinstance(config, str):
        return config
    sizes = ("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim", "resnet_stages")
    same = (name for name, v in VARIANTS.items() if all(getattr(v, s) == getattr(config, s, None) for s in sizes))
    return next(same, None)


def _given_fields(config: ViTConfig | str | None, pooling: str | None, overrides: Arguments) -> set[str]:
    """Fields that the caller has decided.

    In a config of the caller's own these are all, but for activation and epsilon where they are left out.
    """
    given = {name for name, value in overrides.items() if name not in PAPER_VALUES or value is not None}
    given |= set() if pooling is None else {"pooling"}
    if config is None or isinstance(config, str):
        return given
    left = config.blocks.unspecified if isinstance(config, ViTConfig) else ()
    return given | (set(_FIELDS) - set(left))


def _opened(
    config: ViTConfig | str | None,
    pooling: str | None,
    overrides: Arguments,
    weights: FilePath | None,
    sha256: str | None,
    include_top: bool = True,
) -> tuple[ViTConfig, WeightsFile | None, Checkpoint | None]:
    """The config that is given, or inferred from `weights`; and their file, which is brought, checked and read."""
    if config is None and weights is None:
        raise TypeError(
            "`config` or `weights` must be given, or both.\n"
            'Received: config=None, weights=None. Pass a `ViTConfig` or a name as "B/16".'
        )
    resolved = None if config is None else _resolve_config(config, pooling, overrides)
    if weights is None:
        return cast(ViTConfig, resolved), None, None
    named = only_variant(weights) if config is None else published_variant(config)
    source = find_file(weights, named, sha256=sha256)
    checkpoint = select_head(open_checkpoint(source), include_top)
    if resolved is None:
        resolved = _resolve_config(infer_config(checkpoint, pooling, overrides), pooling, overrides)
        lines = assumed_defaults(checkpoint, overrides) if source.record is None else ()
        checkpoint = dataclasses.replace(checkpoint, remarks=(*checkpoint.remarks, *lines))
    elif isinstance(config, str) and source.record is None:
        lines = differing_parts(checkpoint, resolved, config, overrides)
        checkpoint = dataclasses.replace(checkpoint, remarks=(*checkpoint.remarks, *lines))
    return resolved, source, checkpoint


def _check_weights_arguments(
    weights: FilePath | None, sha256: str | None, strict: bool, resize_method: str | None = None
) -> None:
    """Raises for arguments that cannot say how `weights` are taken."""
    if strict not in (True, False):
        raise TypeError(f"`strict` must be True or False.\nReceived: strict={strict!r}.")
    if resize_method is not None:
        check_choice("resize_method", resize_method, ANY_RESIZE_METHODS)
    if weights is None and (sha256 is not None or strict or resize_method is not None):
        raise ValueError(
            "`sha256`, `strict` and `resize_method` go with `weights`.\n"
            f"Received: weights=None, sha256={sha256!r}, strict={strict}, resize_method={resize_method!r}."
        )


def config_of_weights(weights: FilePath) -> ViTConfig:
    """The config that `build(weights=...)` starts from without one; a file of the Hub is brought for it.

    Raises:
        CheckpointError: if the file does not show it; and what else `build` raises for weights.
    """
    return _opened(None, None, {}, weights, None)[0]


def config_and_shape(weights: FilePath, **fields: Any) -> tuple[ViTConfig, Shape]:
    """The config of `config_of_weights`, and `(H, W, C)` of the images that the weights are for.

    Args:
        weights: a file or folder.
        **fields: of the config, as `num_heads`, that the file does not say.
    """
    config, source, checkpoint = _opened(None, None, fields, weights, None, include_top=False)
    return config, _infer_shape(config, checkpoint, None if source is None else source.record)


def _resolve_config(config: ViTConfig | str, pooling: str | None, overrides: Arguments) -> ViTConfig:
    if isinstance(config, str) and config in RESNETS:
        raise ValueError(
            "`build` builds Vision Transformers, and this is a ResNet baseline.\n"
            f"Received: config={config!r}. Call `keras_vit.{config}`, or `keras_vit.build_resnet({config!r})`."
        )
    if isinstance(config, str) and (hint := "" if config in (*VARIANTS, *ENCODERS) else suggest_model(config)):
        raise ValueError(
            f"`config` must be the name of a model, and this is one of weights.\nReceived: {config!r}.{hint}"
        )
    if isinstance(config, str):
        config = variant(config)
    if not isinstance(config, ViTConfig):
        raise TypeError(f"`config` must be a ViTConfig or the name of a variant.\nReceived: config={config!r}")
    for key in overrides:
        if key not in _FIELDS:
            hint = did_you_mean(key, (*_FIELDS, *inspect.signature(build).parameters))
            raise ValueError(
                "keyword arguments beyond the builder's own must be fields of ViTConfig: "
                f"{', '.join(_FIELDS)}.\nReceived: {key}={overrides[key]!r}.{hint}"
            )
    return config.replace(**({} if pooling is None else {"pooling": pooling}), **overrides)


def _checked_head(
    include_top: bool,
    classes: int | None,
    activation: str | Callable[[Tensor], Tensor] | None,
    weights: FilePath | None,
) -> Head:
    """The head that a builder's arguments ask for, whose classes a file may still decide; raises for what none has."""
    if include_top not in (True, False):
        raise TypeError(f"`include_top` must be True or False.\nReceived: include_top={include_top!r}.")
    keras.activations.get(activation)
    if keras.config.image_data_format() != "channels_last":
        raise ValueError(
            'images are (B, H, W, C) here, so Keras must run with image_data_format="channels_last".\n'
            f"Received: {keras.config.image_data_format()!r}. Call keras.config.set_image_data_format, "
            "or change image_data_format in keras.json."
        )
    if classes is not None:
        classes = check_positive_int("classes", classes)
    if not include_top:
        return Head(0, None)
    return Head(DEFAULT_CLASSES if classes is None and weights is None else classes, activation)


def _follow(checkpoint: Checkpoint, config: ViTConfig, given: Collection[str]) -> ViTConfig:
    """The config with what file and record decide where the caller has left it open."""
    decided = dict(checkpoint.fields)
    if "pooling" in given and config.pooling in ("gap", "token_gap", "map"):  # no distilled model pools so
        decided.pop("distilled", None)
    decided |= final_norm_override(checkpoint, config.pooling)
    if "representation_size" not in given:
        decided.pop("representation_size", None)  # it depends on the head, which is not known yet
    config = config.replace(**{name: value for name, value in decided.items() if name not in given})
    if config.class_token is None and config.pooling != "token":
        config = config.replace(class_token=checkpoint.has_class_token)
    return config


def _follow_head(
    checkpoint: Checkpoint, config: ViTConfig, head: Head, representation_is_given: bool
) -> tuple[ViTConfig, Head, tuple[str, ...], tuple[str, ...]]:
    """Config and head by the file's, layers of the file that are set aside, and layers of the model that are new."""
    classes = resolve_classes(checkpoint, head.classes)
    is_open = config.representation_size is None and not representation_is_given
    if is_open and classes == checkpoint.classes:  # a new head goes without pre-logits
        config = config.replace(representation_size=checkpoint.representation_size)
    replaced = replaced_layers(checkpoint, classes, config.pooled_tokens, config.representation_size)
    return config, dataclasses.replace(head, classes=classes), *replaced


def _images_input(
    input_tensor: Tensor, input_shape: Shape | None, config: ViTConfig | ResNetConfig, infer_shape: Callable[[], Shape]
) -> Tensor:
    """`input_tensor`, or a new input of the caller's shape or that of `infer_shape`; raises for one of another kind."""
    check_process()  # making weights is the first that would hang
    if input_tensor is None:
        shape = infer_shape() if input_shape is None else input_shape
        return keras.Input(check_input_shape(shape, config), name="images")
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


def _infer_shape(config: ViTConfig, checkpoint: Checkpoint | None, record: WeightsRecord | None) -> Shape:
    """The shape of record or file, at the model's own patch size, or the default one."""
    grid = config.grid(DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
    if record is not None and record.preprocessing.image_size is not None:
        return *record.preprocessing.image_size, 3
    if checkpoint is None:
        return grid[0] * config.stride, grid[1] * config.stride, 3
    if checkpoint.grid is None and checkpoint.has_grid_tables:
        raise ValueError(
            "`input_shape` must be given: the checkpoint's position table is not square, so its grid is not known.\n"
            f"Received: {checkpoint.path}, input_shape=None."
        )
    if checkpoint.grid is not None and checkpoint.resize_method == CROPPED:  # of no image, but larger than all
        grid = min(grid[0], checkpoint.grid[0]), min(grid[1], checkpoint.grid[1])
    elif checkpoint.grid is not None:
        grid = checkpoint.grid
    elif checkpoint.image_size is not None:
        grid = config.grid(*checkpoint.image_size)
    return grid[0] * config.stride, grid[1] * config.stride, checkpoint.channels or 3


def builders_by(
    build_any: Callable[Concatenate[Any, _Arguments], _Model], kind: str, name_of: Callable[[str], str]
) -> Callable[[str], Callable[_Arguments, _Model]]:
    """Gives the function that makes the builder of a table's row: `build_any` with that name filled in.

    So the arguments stand in one place, and a type checker, `help` and editors see them in every builder.

    Args:
        build_any: `build` or `build_resnet`.
        kind: of model, as `"ViT"`.
        name_of: gives the builder's name for a row.
    """
    signature = inspect.signature(build_any)
    first, *parameters = signature.parameters.values()
    details = (inspect.getdoc(build_any) or "").partition("\n\n")[2]
    described = re.sub(rf"(?m)^    {first.name}: .*\n( {{8}}.*\n)*", "", details)
    described = re.sub(r"(?m)^Example:\n( {4}.*\n)+\n", "", described)
    public = f"keras_vit.{build_any.__name__}"

    def builder_of(row: str) -> Callable[_Arguments, _Model]:
        def builder(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Model:
            return build_any(row, *args, **kwargs)

        builder.__name__ = builder.__qualname__ = name_of(row)
        example = f"Example:\n    >>> keras_vit.{name_of(row)}(classes=10).output_shape\n    (None, 10)"
        builder.__doc__ = f"Builds {kind} {row}, as `{public}({row!r})` does.\n\n{example}\n\n{described}"
        vars(builder)["__signature__"] = signature.replace(parameters=parameters)
        returned = {"return": signature.return_annotation}
        builder.__annotations__ = {p.name: p.annotation for p in parameters} | returned
        return builder

    return builder_of


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
        include_top: whether to end in a classifier, as of `keras_vit.build`.
        weights: `None` for random initialisation, a published name as `"bit-imagenet21k"`, an https URL, or the path of
            a file or of a mirror's folder. `keras_vit.list_weights` has the published names. File and record decide
            `classes`, `input_shape` and preprocessing where they are left open.
        input_tensor: a Keras tensor to build upon instead of a new input.
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
        ValueError, TypeError, FileNotFoundError, CheckpointError, DownloadError: as `keras_vit.build`.

    Source: arXiv:2010.11929, section 4.1, "ResNet (BiT)"; arXiv:1912.11370.
    """
    name = name or (f"resnet_{config}".lower() if isinstance(config, str) else "resnet")
    known = resnet(config) if isinstance(config, str) else config
    if not isinstance(known, ResNetConfig):
        raise TypeError(f"`config` must be a ResNetConfig or the name of a model.\nReceived: config={config!r}")
    head = _checked_head(include_top, classes, classifier_activation, weights)
    _check_weights_arguments(weights, sha256, strict)
    if weights is None:
        inputs = _images_input(input_tensor, input_shape, known, lambda: _infer_resnet_shape(None))
        return wire_resnet(inputs, known, head, name)
    source = find_file(weights, published_resnet(known), sha256=sha256)
    checkpoint = open_checkpoint(source, is_resnet=True)
    classes = resolve_classes(checkpoint, head.classes)
    head = dataclasses.replace(head, classes=classes)
    inputs = _images_input(input_tensor, input_shape, known, lambda: _infer_resnet_shape(checkpoint))
    with uninitialized_variables():
        model = wire_resnet(inputs, known, head, name, checkpoint.preprocessing)
    model.class_names = _names_of(checkpoint, head)
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


def _names_of(checkpoint: Checkpoint, head: Head) -> tuple[str, ...] | None:
    """The file's class names, if the model has the file's head."""
    return checkpoint.class_names if head.classes == checkpoint.classes else None


def published_resnet(config: ResNetConfig) -> str | None:
    """The name of the model of the papers with this config, or `None`."""
    return next((name for name, known in RESNETS.items() if known == config), None)


def _infer_resnet_shape(checkpoint: Checkpoint | None) -> Shape:
    """The shape of a file, or the default one."""
    size = (checkpoint and checkpoint.image_size) or (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
    return *size, (checkpoint and checkpoint.channels) or 3


_builder = builders_by(build, "ViT", builder_name)

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

_builder_of_resnet = builders_by(build_resnet, "ResNet", str)

R50x1 = _builder_of_resnet("R50x1")
R50x2 = _builder_of_resnet("R50x2")
R50x3 = _builder_of_resnet("R50x3")
R101x1 = _builder_of_resnet("R101x1")
R101x3 = _builder_of_resnet("R101x3")
R152x1 = _builder_of_resnet("R152x1")
R152x2 = _builder_of_resnet("R152x2")
R152x4 = _builder_of_resnet("R152x4")
R200x3 = _builder_of_resnet("R200x3")
