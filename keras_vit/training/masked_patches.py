"""Pre-training without labels: a model learns to predict hidden patches from those around them.

Masked patch prediction, section 4.6 and appendix B.1.2 of arXiv:2010.11929. What is predicted is in `TARGETS`: colours
of three bits a channel, or the patch itself. SimMIM, arXiv:2111.09886, is it with other options.
"""

import inspect
import math
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Arguments, Tensor
from keras_vit.checks import check_choice, check_positive_int
from keras_vit.images.preprocessing import Preprocessing, unscaled
from keras_vit.layers import PatchCorruption
from keras_vit.layers.configurable import at_least_float32
from keras_vit.model.copies import is_distributed
from keras_vit.model.image_model import check_floats
from keras_vit.model.input_checks import check_first_batch
from keras_vit.model.layer_access import first_layer, patch_embedding, token_layers
from keras_vit.model.replicated_model import ReplicatedModel
from keras_vit.model.training_step import accumulated_train_step, check_accumulation
from keras_vit.model.vision_transformer import VisionTransformer, check_vision_transformer
from keras_vit.training.selfsupervised.features import every_token

CELLS = {"mean_color": 1, "downsized": 4}  # a side of a patch, each of one colour
TARGETS = (*CELLS, "pixels")
LOSSES = ("mse", "mae")  # of pixels
LEVELS = 8  # of a channel, 3 bits
_MOST_CHANNELS = 3  # of which all colours are classes: 512
_ROUNDING = 2e-4  # pixel values: float32 is off by up to 8e-6, and means of 64 x 64 whole pixels differ by 2.4e-4


@keras.saving.register_keras_serializable("keras_vit")
class MaskedPatchPrediction(ReplicatedModel, keras.Model):
    """Pre-trains a model on images without labels, with `fit`: it hides half of the patches and predicts their content.

    Compile it with an optimizer, without a loss: the loss is the mean over an image's hidden patches, and then over the
    images. Labels are ignored. What is trained is `model` itself, but for its pooling and head: save that one, and
    fine-tune from its file. `evaluate` and `predict` hide the same patches of every image every time.

    Example:
        >>> encoder = keras_vit.ViTTi16(num_layers=1, input_shape=(32, 48, 3))
        >>> pretraining = keras_vit.MaskedPatchPrediction(encoder, rate=0.5)
        >>> pretraining.compile(keras_vit.AdamW(1e-3))
        >>> history = pretraining.fit(images, verbose=0)
        >>> tuple(pretraining(images)["predictions"].shape)
        (2, 6, 512)

    Args:
        model: a `VisionTransformer` with one input, without patch dropout.
        target: what is predicted of each hidden patch. `"mean_color"` is the class of its mean colour, at 3 bits a
            channel, `"downsized"` are those of its 4 x 4 parts, by cross-entropy; `"pixels"` are its numbers as the
            model gets them, by `loss`.
        rate, mask_share, random_share, seed: of `keras_vit.layers.PatchCorruption`.
        loss: of pixels, `"mse"`, squared errors, or `"mae"`, absolute ones.
        square: side in patches of the squares that are hidden whole; of images of a fixed size if above 1. SimMIM is
            `target="pixels"`, `rate=0.6`, `mask_share=1.0`, `random_share=0.0`, `loss="mae"` and squares of 32 pixels.

    Call arguments:
        images: `(B, H, W, C)` floats, prepared by `model.preprocessing`.

    Returns:
        A dict of `"predictions"` and `"hidden"`, bool `(B, N)`. Predictions of colours are logits `(B, N, 512)` or
        `(B, N, 16, 512)`. Those of pixels are numbers `(B, N, P, P, C)`, where a patch covers P x P pixels.

    Raises:
        TypeError: for what is no `VisionTransformer`.
        ValueError: for a model or target that this cannot be done with, or a share out of range.

    Source: arXiv:2010.11929, appendix B.1.2; loss and squares of SimMIM, arXiv:2111.09886, section 3.
    """

    def __init__(
        self,
        model: VisionTransformer,
        target: str = "mean_color",
        *,
        rate: float = 0.5,
        mask_share: float = 0.8,
        random_share: float = 0.1,
        seed: int | None = None,
        loss: str = "mse",
        square: int = 1,
        name: str = "masked_patch_prediction",
    ) -> None:
        check_choice("target", target, TARGETS)
        check_choice("loss", loss, LOSSES)
        _check_model(model)
        _check_target(target, model)
        policy, squares = patch_embedding(model).dtype_policy, _squares(model, square)
        corruption = PatchCorruption(
            rate, mask_share, random_share, seed, squares, dtype=policy, name="patch_corruption"
        )
        super().__init__(*_network(model, target, corruption), name=name)
        self._wrapped = lambda: model  # as an attribute its head would be trained, or decay, without being used
        self.corruption = corruption
        self.target = target
        self.pixel_loss, self.square = loss, square
        self.accumulation_steps = 1
        self._mean = MeanOverImages(name="mean_over_images", dtype="float32")
        self.accuracy = keras.metrics.Mean(name="accuracy") if target in CELLS else None

    @property
    def model(self) -> VisionTransformer:
        """The model that is trained."""
        return self._wrapped()

    def compile(self, *args: Any, accumulation_steps: int = 1, **kwargs: Any) -> None:
        """Keras' `compile`, without a loss or metrics.

        Args:
            accumulation_steps: micro-batches of a batch, as for `keras_vit.VisionTransformer`.

        Raises:
            ValueError: for a loss or metrics, for what a strategy cannot compute, and under `keras.distribution`.
        """
        given = inspect.signature(keras.Model.compile).bind(self, *args, **kwargs).arguments
        refused = [name for name in ("loss", "loss_weights", "metrics", "weighted_metrics") if given.get(name)]
        if refused:
            raise ValueError(
                f"the target {self.target!r} sets the loss and the metrics.\n"
                f"Received: {', '.join(refused)}. Pass an optimizer alone."
            )
        if is_distributed():
            raise ValueError(
                "masked patches are predicted on one device, or on several by a strategy of TensorFlow.\n"
                f"Received: {type(keras.distribution.distribution()).__name__} of `keras.distribution`."
            )
        super().compile(*args, **kwargs)
        check_accumulation(accumulation_steps, self.optimizer, None)
        self.accumulation_steps = accumulation_steps

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Keras' `fit`, on images without labels; it warns of pixels that were not scaled."""
        return super().fit(check_first_batch(self.model, x), *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Keras' `evaluate`, on images without labels; it warns of pixels that were not scaled."""
        return super().evaluate(check_first_batch(self.model, x), *args, **kwargs)

    def train_step(self, *args: Any) -> Any:
        return accumulated_train_step(self, *args) if self.accumulation_steps > 1 else super().train_step(*args)

    def call(self, inputs: Tensor, training: bool | None = None, mask: Tensor = None) -> dict[str, Tensor]:
        check_floats(inputs)
        return super().call(inputs, training=training, mask=mask)

    def compute_loss(
        self,
        x: Tensor = None,
        y: Tensor = None,
        y_pred: Tensor = None,
        sample_weight: Tensor = None,
        training: bool | None = True,
    ) -> Tensor:
        """The mean over images of the mean over their hidden patches."""
        targets, predictions = self._targets(x), ops.cast(y_pred["predictions"], "float32")
        if self.target in CELLS:
            losses = keras.losses.sparse_categorical_crossentropy(targets, predictions, from_logits=True)
        else:
            losses = (ops.square if self.pixel_loss == "mse" else ops.abs)(predictions - targets)
        hidden = ops.cast(y_pred["hidden"], "float32")  # (B, N)
        losses = ops.sum(_mean_of_each(losses) * hidden, axis=1) / ops.sum(hidden, axis=1)  # (B,)
        return self._mean(losses, losses, sample_weight=sample_weight)

    def compute_metrics(self, x: Tensor, y: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> dict[str, Tensor]:
        """Metrics of training; for colours also the accuracy over all hidden patches."""
        if self.accuracy is not None:
            right = ops.equal(self._targets(x), ops.argmax(y_pred["predictions"], axis=-1))
            right = _mean_of_each(ops.cast(right, "float32"))
            self.accuracy.update_state(right, sample_weight=ops.cast(y_pred["hidden"], "float32"))
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _targets(self, images: Tensor) -> Tensor:
        """What is predicted of every patch."""
        images, side = ops.cast(images, "float32"), self.model.config.stride
        if self.target == "pixels":
            return patches_of(images, side)
        classes = color_classes(images, self.model.preprocessing, side, CELLS[self.target])
        return classes[..., 0] if self.target == "mean_color" else classes

    def get_config(self) -> Arguments:
        names = ("rate", "mask_share", "random_share", "seed")
        config = {"model": keras.saving.serialize_keras_object(self.model), "target": self.target, "name": self.name}
        config |= {"loss": self.pixel_loss, "square": self.square}
        return config | {name: getattr(self.corruption, name) for name in names}

    @classmethod
    def from_config(cls, config: Arguments, custom_objects: Any = None) -> "MaskedPatchPrediction":
        """Makes the same again, around a model of its own."""
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects=custom_objects)
        return cls(**config | {"model": model})

    def get_compile_config(self) -> Arguments | None:
        config = super().get_compile_config()
        return config and {**config, "accumulation_steps": self.accumulation_steps}

    def compile_from_config(self, config: Arguments) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)  # so that its state can be loaded


def patches_of(images: Tensor, side: int) -> Tensor:
    """Patches in reading order.

    Args:
        images: `(B, H, W, C)`.
        side: of a patch; H and W are multiples of it.

    Returns:
        `(B, N, side, side, C)`.
    """
    batch, height, width, channels = ops.shape(images)
    rows, columns = height // side, width // side
    x = ops.reshape(images, (batch, rows, side, columns, side, channels))
    return ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (batch, rows * columns, side, side, channels))


def color_classes(images: Tensor, record: Preprocessing, side: int, cells: int) -> Tensor:
    """The colour of each part of each patch as one number.

    A channel's level is floor(8 mean / 256) of its pixels in 0..255. Levels are the digits of the class, red first: of
    three channels it is 64 r + 8 g + b.

    Args:
        images: floats `(B, H, W, C)`, prepared by `record`.
        record: a `Preprocessing`.
        side: of a patch; H and W are multiples of it.
        cells: parts on each side of a patch. Where they do not divide it, a pixel counts by its share.

    Returns:
        int `(B, N, cells * cells)`, parts in reading order.

    Source: arXiv:2010.11929, appendix B.1.2, "3-bit, mean color"; how it is rounded is not in the paper.
    """
    patches = patches_of(unscaled(ops.cast(images, "float32"), record), side)
    means = _means(_means(patches, cells, axis=2), cells, axis=3)  # (B, N, cells, cells, C)
    levels = ops.floor((means + _ROUNDING) * (LEVELS / 256))
    levels = ops.cast(ops.clip(levels, 0, LEVELS - 1), "int32")
    channels = images.shape[-1]
    digits = ops.convert_to_tensor([LEVELS ** (channels - 1 - i) for i in range(channels)], "int32")
    classes = ops.sum(levels * digits, axis=-1)
    return ops.reshape(classes, (*ops.shape(classes)[:2], cells * cells))


def _means(x: Tensor, cells: int, axis: int) -> Tensor:
    """Means of `cells` equal parts of an axis. By repeats and sums: products of matrices may have few bits on a GPU."""
    times = cells // math.gcd(cells, x.shape[axis])
    x = ops.repeat(x, times, axis=axis) if times > 1 else x
    shape = ops.shape(x)
    return ops.mean(ops.reshape(x, (*shape[:axis], cells, -1, *shape[axis + 1 :])), axis=axis + 1)


def _squares(model: Any, square: int) -> tuple[int, int, int] | None:
    """What `PatchCorruption` takes for squares of a side in patches; `None` for single ones."""
    if check_positive_int("square", square) == 1:
        return None
    height, width = model.input_shape[1:3]
    if None in (height, width):
        raise ValueError(
            "squares of patches lie on a grid, so `model` must be of a fixed size.\n"
            f"Received: square={square}, input_shape={model.input_shape}. Use `keras_vit.with_input_shape`."
        )
    return (*model.config.grid(height, width), square)


def _mean_of_each(x: Tensor) -> Tensor:
    """`(B, N)`: the mean over the numbers of each patch."""
    return ops.mean(x, axis=tuple(range(2, len(x.shape)))) if len(x.shape) > 2 else x


def _network(model: Any, target: str, corruption: keras.layers.Layer) -> tuple[Tensor, Tensor]:
    """Input and outputs of the model's graph run once more, as Keras tensors: corrupted, with all tokens, to the end of
    the encoder, and then one dense layer. Layers and weights are the model's own, whatever stations it has.
    """
    embedding, hidden = patch_embedding(model), []

    def after(layer: keras.layers.Layer, found: Tensor) -> Tensor:
        if layer is not embedding:
            return found
        tokens, drawn = corruption(found)
        hidden.append(drawn)
        return tokens

    graph = every_token(model, token_layers(model)[-1].output, after=after)
    patches = graph.output[:, model.config.num_prefix_tokens :]  # (B, N, D)
    shape, dtype = _shape_of(target, model), at_least_float32(embedding.dtype_policy)
    dense = keras.layers.Dense(math.prod(shape), kernel_initializer="zeros", dtype=dtype, name="prediction")
    predictions = keras.layers.Reshape((-1, *shape), dtype=dtype, name="predictions")(dense(patches))
    return graph.input, {"predictions": predictions, "hidden": hidden[0]}


def _shape_of(target: str, model: Any) -> tuple[int, ...]:
    """Shape of what is predicted of one patch."""
    side, channels = model.config.stride, model.input_shape[-1]
    if target == "pixels":
        return (side, side, channels)
    parts = CELLS[target] ** 2
    return (*((parts,) if parts > 1 else ()), LEVELS**channels)


class MeanOverImages(keras.losses.Loss):
    """The mean of a number for each image, as Keras takes that of a loss: by sample weights, and over all devices."""

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return y_pred


def _check_model(model: Any) -> None:
    check_vision_transformer(model)
    if model.config is None or len(model.inputs) != 1:
        raise ValueError(
            "`model` must know its config and have one input, as the builders give it; `keras.models.clone_model` "
            f"loses it.\nReceived: {model!r}. Copy it by `keras_vit.with_input_shape`."
        )
    if model.config.patch_dropout_rate:
        raise ValueError(
            "hidden patches are predicted in their places, and patch dropout leaves patches out.\n"
            f"Received: patch_dropout_rate={model.config.patch_dropout_rate}. Build the model without."
        )
    if first_layer(model).input is not model.inputs[0]:
        raise ValueError(
            "what is predicted is read off the images, so the model must get them as they are.\n"
            f"Received: {model.name!r}, with layers before its own. Build it without `input_tensor`."
        )


def _check_target(target: str, model: Any) -> None:
    side, channels = model.config.stride, model.input_shape[-1]
    if target in CELLS and channels > _MOST_CHANNELS:
        raise ValueError(
            f"colours of C channels are {LEVELS}**C classes, so there must be at most {_MOST_CHANNELS}.\n"
            f'Received: {channels} channels, target={target!r}. Pass target="pixels".'
        )
    if side < CELLS.get(target, 1):
        raise ValueError(
            f"a patch is predicted in {CELLS[target]} x {CELLS[target]} parts, so it must have as many pixels.\n"
            f'Received: patches of {side} x {side} pixels, target={target!r}. Pass target="mean_color".'
        )
