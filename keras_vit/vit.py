"""The model: layers wired into one functional `keras.Model` by a `ViTConfig`.

Section 3 of arXiv:2010.11929. Every station is a layer of the graph that can be reached by name:
`resnet_root`, `resnet_stage_1_unit_1`, ..., `patch_embedding`, `class_token`, `position_embedding`,
`block_00`, ..., `encoder_norm`, `pooling`, `pre_logits`, `head`; DeiT adds `distillation_token`,
`pooling_distillation`, `head_distillation` and `average`.
"""

import dataclasses
import functools

import keras

from keras_vit import layers
from keras_vit.accumulation import check_accumulation
from keras_vit.accumulation import train_step as accumulated_train_step
from keras_vit.layers.encoder import layer_norm
from keras_vit.posembed import RESIZE_METHODS
from keras_vit.preprocessing import Preprocessing
from keras_vit.variants import ViTConfig, check_choice, check_positive_int
from keras_vit.weights.deferred import deferred_variables
from keras_vit.weights.load import copy_weights

DEFAULT_IMAGE_SIZE = 224  # pixels, the resolution of pre-training
_ENDS = ("head", "head_distillation", "average", "activation")  # layers of at least float32


@keras.saving.register_keras_serializable("keras_vit")
class VisionTransformer(keras.Model):
    """A functional model that knows its `config`, its `preprocessing` and where its weights came from.

    Made by `build` and the builders. It is saved and loaded as every Keras model, with `keras_vit` imported.

    Attributes:
        config: the `ViTConfig`.
        preprocessing: the `Preprocessing` record; call it to prepare images.
        weights_report: one line for each adaptation that loading made, as a resized position table.

    Call arguments:
        inputs: `(B, H, W, C)` floats, prepared by `preprocessing`.

    Returns:
        Logits `(B, K)`; without a top `(B, D)`, or `(B, T, D)` with `pooling="none"`.
    """

    def __init__(self, *args, config=None, preprocessing=None, weights_report=(), **kwargs):
        super().__init__(*args, **kwargs)
        self.config = ViTConfig(**config) if isinstance(config, dict) else config
        if isinstance(preprocessing, dict):
            preprocessing = Preprocessing(**preprocessing)
        self.preprocessing = preprocessing
        self.weights_report = tuple(weights_report)
        frozen = [layer for layer in self.layers if not layer.trainable]
        for weight in (weight for layer in frozen for weight in layer.weights):
            weight.trainable = False  # a layer reloaded as frozen has not told it its parts
        self.accumulation_steps = 1

    def compile(self, *args, accumulation_steps=1, **kwargs):
        """Keras' `compile`, and how many parts a batch is cut into, to be computed one after the other.

        Args:
            *args: as in `keras.Model.compile`.
            accumulation_steps: k: each batch given to `fit` is one step of the optimizer, with the gradients of k
                micro-batches averaged, which is the gradient of the whole batch. The loss must be a mean.
            **kwargs: as in `keras.Model.compile`.
        """
        super().compile(*args, **kwargs)
        check_accumulation(accumulation_steps, self.optimizer, self.loss)
        self.accumulation_steps = accumulation_steps

    def train_step(self, *args):
        if self.accumulation_steps == 1:
            return super().train_step(*args)
        return accumulated_train_step(self, *args)

    def get_compile_config(self):
        config = super().get_compile_config()
        return config and {**config, "accumulation_steps": self.accumulation_steps}

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)  # so that its state can be loaded

    def call(self, inputs, training=None, mask=None):
        for tensor in keras.tree.flatten(inputs):
            if not keras.backend.is_float_dtype(tensor.dtype):
                raise TypeError(
                    "images must be floats in the range the weights expect; integers are pixels not yet scaled.\n"
                    f"Received: dtype {tensor.dtype}. Call `model.preprocessing(images)` first."
                )
        return super().call(inputs, training=training, mask=mask)

    def get_config(self):
        return {
            **super().get_config(),
            "config": None if self.config is None else dataclasses.asdict(self.config),
            "preprocessing": None if self.preprocessing is None else dataclasses.asdict(self.preprocessing),
            "weights_report": list(self.weights_report),
        }


@dataclasses.dataclass(frozen=True)
class Head:
    """The classifier at the end."""

    classes: int | None  # 0 for no head, None for as many as the file has
    activation: str | None


def wire(
    images, config, head, table_grid, name, preprocessing=None, resize_method="align_corners"
) -> VisionTransformer:
    """The model from `images`, a Keras tensor, to logits or representation.

    Args:
        images: `(B, H, W, C)`.
        config: a `ViTConfig`.
        head: a `Head`.
        table_grid: `(h, w)` of the position table where the size of `images` is unknown; `None` for the default.
        name: of the model.
        preprocessing: the record that belongs to the weights; by default the official code's.
        resize_method: of the position table in the graph, where the size of `images` is unknown.
    """
    feature_map = _resnet(images, config)  # (B, H, W, C) or what the stem makes of it
    tokens = layers.PatchEmbedding(config.hidden_size, config.patch_size, name="patch_embedding")(feature_map)
    if config.distilled:
        tokens = layers.ClassToken(name="distillation_token")(tokens)
    if config.has_class_token:
        tokens = layers.ClassToken(name="class_token")(tokens)  # (B, T, D)
    if config.position_embedding != "none":
        default_grid = config.grid(DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
        tokens = layers.AddPositionEmbs(
            _known_grid(images.shape[1:], config) or table_grid or default_grid,
            config.patch_size,
            num_prefix_tokens=config.num_prefix_tokens,
            kind=config.position_embedding,
            resize_method=resize_method,
            name="position_embedding",
        )(tokens, feature_map)
        tokens = keras.layers.Dropout(config.dropout_rate, name="dropout")(tokens)
    if config.patch_dropout_rate:
        tokens = layers.PatchDropout(config.patch_dropout_rate, config.num_prefix_tokens, name="patch_dropout")(tokens)
    tokens = _encoder(tokens, config)
    if config.distilled and config.pooling == "none" and head.classes:
        raise ValueError(
            'the two heads of `distilled=True` read one token each, so `pooling="none"` goes without a head.\n'
            f"Received: classes={head.classes}. Pass include_top=False."
        )
    outputs = _top(tokens, config, head)
    sources = keras.utils.get_source_inputs(images)
    return VisionTransformer(
        sources[0] if len(sources) == 1 else sources,
        outputs,
        name=name,
        config=config,
        preprocessing=_preprocessing(images.shape[1:], preprocessing or Preprocessing()),
    )


def _preprocessing(input_shape, record):
    """The record for images of this shape."""
    height, width, channels = input_shape
    size = None if height is None or width is None else (height, width)
    return dataclasses.replace(record.with_channels(channels), image_size=size)


def _resnet(x, config):
    if config.resnet_stages is None:
        return x
    x = layers.ResNetRoot(config.resnet_width, name="resnet_root")(x)  # (B, H/4, W/4, 64)
    for stage, blocks in enumerate(config.resnet_stages, start=1):
        for unit in range(1, blocks + 1):
            x = layers.ResNetUnit(
                config.resnet_width * 2 ** (stage - 1),
                strides=2 if unit == 1 and stage > 1 else 1,
                projection=unit == 1,
                name=f"resnet_stage_{stage}_unit_{unit}",
            )(x)
    return x


def _encoder(tokens, config):
    last = config.num_layers - 1
    only_read_tokens = config.pooling == "token" and config.last_block == "pooled"
    for index in range(config.num_layers):
        tokens = layers.TransformerBlock(
            config.hidden_size,
            config.num_heads,
            config.mlp_dim,
            dropout_rate=config.dropout_rate,
            attention_dropout_rate=config.attention_dropout_rate,
            stochastic_depth_rate=config.stochastic_depth_rate * index / max(last, 1),
            activation=config.activation,
            num_output_tokens=config.num_prefix_tokens if only_read_tokens and index == last else None,
            layer_norm_epsilon=config.layer_norm_epsilon,
            rematerialize=config.rematerialize,
            name=f"block_{index:02}",
        )(tokens)
    return layer_norm(None, "encoder_norm", config.layer_norm_epsilon)(tokens)


def _top(tokens, config, head):
    x = tokens
    if config.pooling in ("token", "gap"):
        x = layers.TokenPooling(config.pooling, config.num_prefix_tokens, name="pooling")(x)  # (B, D)
    elif config.pooling == "map":
        x = layers.AttentionPooling(
            config.hidden_size,
            config.num_heads,
            config.mlp_dim,
            config.activation,
            config.layer_norm_epsilon,
            config.num_prefix_tokens,
            name="pooling",
        )(x)
    if config.distilled and config.pooling == "token":
        return _two_heads(x, tokens, head)
    if config.representation_size is not None:
        x = keras.layers.Dense(
            config.representation_size, activation="tanh", kernel_initializer="lecun_normal", name="pre_logits"
        )(x)
    if head.classes:
        x = _classifier(head, "head", head.activation)(x)  # (B, K)
    return x


def _two_heads(representation, tokens, head):
    """DeiT's end: a head for the class token, one for the distillation token, and their average."""
    distillation = layers.TokenPooling("distillation", name="pooling_distillation")(tokens)  # (B, D)
    if not head.classes:
        return keras.layers.Average(name="average")([representation, distillation])
    logits = [
        _classifier(head, "head")(representation),
        _classifier(head, "head_distillation")(distillation),
    ]
    average = keras.layers.Average(dtype=_at_least_float32(), name="average")(logits)  # (B, K)
    if head.activation is None:
        return average
    return keras.layers.Activation(head.activation, dtype=_at_least_float32(), name="activation")(average)


def _classifier(head, name, activation=None):
    return keras.layers.Dense(
        head.classes, activation=activation, kernel_initializer="zeros", dtype=_at_least_float32(), name=name
    )


def _at_least_float32(policy=None):
    """Logits in half precision cost accuracy (a bfloat16 softmax is off by .02), so the head never is."""
    policy = keras.dtype_policies.get(policy or keras.config.dtype_policy())
    return "float32" if policy.compute_dtype in ("float16", "bfloat16") else policy


def with_input_shape(model, input_shape, resize_method=None) -> VisionTransformer:
    """The same model with the same weights for images of another size.

    Args:
        model: a `VisionTransformer`; it is not changed.
        input_shape: `(H, W, C)` with the model's C; H and W may be `None`.
        resize_method: of the position table, one of `keras_vit.posembed.RESIZE_METHODS`; by default that of the
            model's weights.

    Returns:
        A new model with weights of its own, as trainable or frozen as those of `model`, not compiled.

    Raises:
        ValueError: if the size is no multiple of the patch size, or C differs.

    Source: arXiv:2010.11929, section 3.2.
    """
    if not isinstance(model, VisionTransformer) or model.config is None or len(model.inputs) != 1:
        raise TypeError(
            "`model` must be a VisionTransformer with one input that knows its config, as the builders give it "
            f"(`keras.models.clone_model` loses it; this function copies a model too).\nReceived: {model!r}"
        )
    if resize_method is not None:
        check_choice("resize_method", resize_method, RESIZE_METHODS)
    check_input_shape(input_shape, model.config)
    input_shape = tuple(input_shape)
    if input_shape[2] != model.input_shape[-1]:
        raise ValueError(
            "`input_shape` must have as many channels as the model.\n"
            f"Received: input_shape={input_shape}, model {model.input_shape[1:]}."
        )
    with deferred_variables():
        twin = bare_twin(model, input_shape)
    twin.weights_report = model.weights_report + copy_weights(model, twin, resize_method)
    return twin


def with_dtype(model, dtype) -> VisionTransformer:
    """The same model with its weights and its computation in another precision.

    Args:
        model: a `VisionTransformer` without LoRA that is not quantised; it is not changed.
        dtype: a Keras dtype policy or its name, as `"float32"` or `"bfloat16"`. The head stays in at least float32.

    Returns:
        A new model with weights of its own, not compiled.
    """
    with deferred_variables():
        twin = bare_twin(model, model.input_shape[1:], dtype)
    twin.weights_report = model.weights_report + copy_weights(model, twin, None)
    return twin


def bare_twin(model, input_shape, dtype=None) -> VisionTransformer:
    """The layers of `model` anew, for images of `input_shape`, with weights as their initializers draw them."""
    graph = keras.models.clone_model(
        keras.Model(model.input, model.output),  # the bare graph: a compiled model's clone would be compiled
        input_tensors=keras.Input(input_shape, name=model.inputs[0].name),
        clone_function=functools.partial(_clone_layer, grid=_known_grid(input_shape, model.config), dtype=dtype),
    )
    return VisionTransformer(
        graph.input,
        graph.output,
        name=model.name,
        config=model.config,
        preprocessing=_preprocessing(input_shape, model.preprocessing),
    )


def _known_grid(shape, config):
    return None if None in shape[:2] else config.grid(*shape[:2])


def _clone_layer(layer, grid, dtype):
    config = layer.get_config()
    if dtype is not None:
        config["dtype"] = _at_least_float32(dtype) if layer.name in _ENDS else dtype
    if isinstance(layer, layers.AddPositionEmbs) and grid is not None:
        config["grid"] = grid
    return type(layer).from_config(config)


def check_input_shape(shape, config):
    """Raises unless `shape` is (H, W, C) with sides that are unknown or tiled by the config's patches."""
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise ValueError(f"`input_shape` must be (H, W, C).\nReceived: input_shape={shape!r}.")
    for side in shape[:2]:
        if side is not None:
            check_positive_int("input_shape", side)
    check_positive_int("input_shape", shape[2])
    step = config.stride
    if any(side is not None and side % step for side in shape[:2]):
        nearest = tuple(side and max(round(side / step), 1) * step for side in shape[:2])
        unit = f"patch_size={config.patch_size}"
        if step != config.patch_size:
            unit += f" behind a ResNet, {step} pixels in all"
        raise ValueError(
            "`input_shape` must be a multiple of `patch_size` on both sides, so that patches tile the image.\n"
            f"Received: input_shape={tuple(shape)}, {unit}. Nearest: {(*nearest, shape[2])}."
        )
