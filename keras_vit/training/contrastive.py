"""Training both towers on pairs of photo and caption: softmax loss as CLIP, sigmoid loss as SigLIP.

Source: arXiv:2103.00020, section 2.3, figure 3 (CLIP); arXiv:2303.15343, section 3.2 (SigLIP); arXiv:2111.07991 (LiT,
whose image tower is locked).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt
from keras import ops

from keras_vit.annotations import Arguments, Tensor
from keras_vit.checks import ArgumentError, check_choice, check_flag, check_int, with_parameters
from keras_vit.model.layer_access import head_layers
from keras_vit.model.replicated_model import ReplicatedModel, num_replicas
from keras_vit.model.training_step import replica_share
from keras_vit.model.two_towers.text_tower import TextTransformer, check_ids
from keras_vit.model.two_towers.zero_shot import (
    check_bias,
    check_finite,
    check_logit_scale,
    check_projections,
    check_same_size,
    real_rows,
    unit_rows,
    warn_other_source,
)
from keras_vit.training.masked_patches import MeanOverImages

LOSSES = ("softmax", "sigmoid")
_FIRST_SCALES = {"softmax": math.log(1 / 0.07), "sigmoid": math.log(10)}
_FIRST_BIAS, _MOST_SCALE = -10.0, math.log(100)
_LENGTH = 1e-12  # below which an embedding has no direction
_CHUNK = 1024  # rows of cosines at once
_ROUNDING = 1e-12  # of cosines in float64: of equal rows they may differ in the last bits


def softmax_loss(images: Tensor, texts: Tensor, scale: Tensor, first: Tensor = 0, there: Tensor = None) -> Tensor:
    """CLIP's loss of each pair: the mean of the cross-entropies of its photo among photos and its text among texts.

    Args:
        images: `(b, E)` of length 1, or a pair of these and all `(B, E)` of which they are some.
        texts: likewise.
        scale: the factor on cosines.
        first: place of the first of b among B.
        there: bool `(B,)`, false for pairs that take no part, as padding of a batch.

    Returns:
        `(b,)`. Its mean over B is the loss of a batch.

    Source: arXiv:2103.00020, figure 3.
    """
    (own_images, all_images), (own_texts, all_texts) = _pair(images), _pair(texts)
    places = first + ops.arange(ops.shape(own_images)[0], dtype="int32")
    losses = []
    for own, others in ((own_images, all_texts), (own_texts, all_images)):
        logits = scale * ops.matmul(own, ops.transpose(others))  # (b, B)
        if there is not None:
            logits = ops.where(there[None], logits, -1e9)
        losses.append(keras.losses.sparse_categorical_crossentropy(places, logits, from_logits=True))
    return (losses[0] + losses[1]) / 2


def sigmoid_loss(
    images: Tensor, texts: Tensor, scale: Tensor, bias: Tensor, first: Tensor = 0, there: Tensor = None
) -> Tensor:
    """SigLIP's loss of each photo: summed over texts -log sigmoid(z (scale cos + bias)), z = 1 for its own, else -1.

    Args:
        images: `(b, E)` of length 1.
        texts: `(b, E)`, or a pair of these and all `(B, E)` of which they are some.
        scale: the factor on cosines.
        bias: what is added.
        first: place of the first of b among B.
        there: bool `(B,)`, false for texts that take no part.

    Returns:
        `(b,)`. Its mean over B is the loss of a batch.

    Source: arXiv:2303.15343, equation 1.
    """
    (own, _), (_, others) = _pair(images), _pair(texts)
    places = first + ops.arange(ops.shape(own)[0], dtype="int32")
    is_own = places[:, None] == ops.arange(ops.shape(others)[0], dtype="int32")[None]  # (b, B)
    signs = 2.0 * ops.cast(is_own, own.dtype) - 1.0
    losses = -ops.log_sigmoid(signs * (scale * ops.matmul(own, ops.transpose(others)) + bias))
    return ops.sum(losses if there is None else ops.where(there[None], losses, 0.0), axis=1)


def _pair(rows: Any) -> tuple[Tensor, Tensor]:
    return rows if isinstance(rows, tuple) else (rows, rows)


def recall(
    images: npt.ArrayLike, texts: npt.ArrayLike, most: tuple[int, ...] = (1, 5, 10), alike: Sequence[Any] = ()
) -> dict[str, float]:
    """How often a pair is among the nearest of its photo, and of its text.

    Example:
        >>> keras_vit.recall(np.eye(3), np.eye(3), (1,))
        {'image_to_text_1': 1.0, 'text_to_image_1': 1.0}

    Args:
        images: `(N, E)`; row i belongs to row i of the texts. Of any length above 0.
        texts: `(N, E)`.
        most: numbers of nearest ones that count, each at least 1.
        alike: arrays `(N,)`, as numbers of captions. Pairs with equal values in one of them do not count against each
            other.

    Returns:
        As `{"image_to_text_1": 0.5, "text_to_image_1": 0.25, ...}`, in [0, 1]. Of equal cosines the pair's own counts
        last.

    Raises:
        TypeError: for numbers of nearest ones that are no list of ints.
        ValueError: for other shapes, and for rows that are not finite or zero.
    """
    if not isinstance(most, Iterable):
        raise with_parameters(
            TypeError(f"`most` must be several ints, as (1, 5, 10).\nReceived: most={most!r}."), "most"
        )
    counts = [check_int("most", k, 1) for k in most]
    rows = [real_rows("images", images), real_rows("texts", texts)]
    if rows[0].shape != rows[1].shape or rows[0].ndim != 2 or not len(rows[0]):
        raise ArgumentError(
            "`images` and `texts` must be (N, E), a row for each pair.\n"
            f"Received: shapes {rows[0].shape} and {rows[1].shape}."
        )
    for each in alike:
        if np.shape(each) != (len(rows[0]),):
            raise ArgumentError(
                "`alike` must be arrays (N,), a number for each pair.\n"
                f"Received: shape {np.shape(each)}, for {len(rows[0])} pairs."
            )
    ranks = pair_ranks(unit_rows("images", rows[0]), unit_rows("texts", rows[1]), alike)
    return recall_at(ranks, counts)


def recall_at(ranks: dict[str, np.ndarray], most: Sequence[int] = (1, 5, 10)) -> dict[str, float]:
    """The shares of ranks, as `pair_ranks` gives them, that are at most so large."""
    return {f"{name}_{k}": float((of_way <= k).mean()) for name, of_way in ranks.items() for k in most}


def pair_ranks(images: np.ndarray, texts: np.ndarray, alike: Sequence[Any] = ()) -> dict[str, np.ndarray]:
    """Place of each pair's text among the texts of its photo, and of its photo among the photos of its text, from 1.

    Args:
        images: float64 `(N, E)` of length 1.
        texts: likewise.
        alike: as of `recall`.
    """
    groups, found = [np.asarray(each) for each in alike], {}
    for name, (rows, others) in {"image_to_text": (images, texts), "text_to_image": (texts, images)}.items():
        ranks = []
        for part, cosines in _cosines(rows, others):
            own = cosines[np.arange(len(cosines)), part]
            nearer = cosines >= own[:, None] - _ROUNDING
            nearer[np.arange(len(cosines)), part] = False
            for group in groups:
                nearer &= group[part][:, None] != group[None]
            ranks.append(1 + nearer.sum(axis=1))
        found[name] = np.concatenate(ranks)
    return found


def _cosines(rows: np.ndarray, others: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Numbers of some rows, and their cosines with all others, part by part."""
    for start in range(0, len(rows), _CHUNK):
        part = np.arange(start, min(start + _CHUNK, len(rows)))
        yield part, rows[part] @ others.T


def contrast(images: np.ndarray, texts: np.ndarray, scale: float, bias: float | None = None) -> float:
    """The loss of all pairs as one batch, in float64 by NumPy: with a bias SigLIP's, else CLIP's.

    Args:
        images: float64 `(N, E)` of length 1.
        texts: likewise.
        scale: the factor on cosines.
        bias: what is added.
    """
    ways = [(images, texts)] if bias is not None else [(images, texts), (texts, images)]
    total = 0.0
    for rows, others in ways:
        for part, cosines in _cosines(rows, others):
            own, logits = (np.arange(len(part)), part), scale * cosines + (bias or 0.0)
            if bias is None:
                total += (np.logaddexp.reduce(logits, axis=1) - logits[own]).sum()
            else:
                logits[own] *= -1
                total += np.logaddexp(0, logits).sum()
    return float(total / len(ways) / len(images))


class EmbeddedPairs(NamedTuple):
    """What both towers give for pairs.

    Args:
        images: float64 `(N, E)` of length 1.
        texts: likewise.
        alike: numbers of equal photos and of equal captions, two arrays `(N,)`; as of `recall`.
    """

    images: np.ndarray
    texts: np.ndarray
    alike: tuple[np.ndarray, np.ndarray]


@keras.saving.register_keras_serializable("keras_vit")
class _AtMost(keras.constraints.Constraint):
    """No value above a limit, by which CLIP's scale stays stable."""

    def __init__(self, limit: float = _MOST_SCALE) -> None:
        self.limit = limit

    def __call__(self, value: Tensor) -> Tensor:
        return ops.minimum(value, self.limit)

    def get_config(self) -> Arguments:
        return {"limit": self.limit}


@keras.saving.register_keras_serializable("keras_vit")
class ContrastiveModel(ReplicatedModel, keras.Model):
    """Trains an image tower and a text tower on pairs of photo and caption, with `fit`.

    Each batch is one contrast: every photo against every text of the batch, over all devices. Compile it with an
    optimizer, without a loss. What is trained are the towers themselves: save those.

    Example:
        >>> image = keras_vit.ViTTi16(input_shape=(32, 48, 3), include_top=False)
        >>> config = keras_vit.TextConfig(64, 8, 16, 1, num_heads=2, mlp_dim=32)
        >>> text = keras_vit.build_text(config, projection_size=192)
        >>> both = keras_vit.ContrastiveModel(image, text)
        >>> found = both({"images": images, "ids": np.zeros((2, 8), "int32")})
        >>> tuple(found["texts"].shape)
        (2, 192)

    Args:
        image: an image tower with one embedding `(B, E)` for each image; or any Keras model of that output, as a dense
            layer on features that were computed once.
        text: a text tower with embeddings of the same size.
        loss: `"softmax"`, CLIP's, or `"sigmoid"`, SigLIP's; by default that of the towers: the sigmoid loss if their
            file has a bias, or `logit_bias` is given.
        lock_image: whether the image tower neither learns nor drops anything (LiT).
        logit_scale: logarithm of the factor on cosines at the start; by default that of the text tower's file, else
            ln(1 / 0.07), or ln 10 of the sigmoid loss. It learns, up to ln 100.
        logit_bias: what is added to the logits of the sigmoid loss at the start; by default that of the file, else -10.
            The softmax loss does not depend on it, and keeps it as it is.

    Call arguments:
        inputs: `{"images": (B, H, W, C), "ids": (B, T)}`, or images alone.

    Returns:
        `{"images": (B, E), "texts": (B, E)}`, of length 1, float32; of images alone what the image tower gives.

    Raises:
        TypeError: for towers of another kind.
        ValueError: for towers whose embeddings differ in size, one without the projection of its file, another loss,
            a scale or bias that is not finite, or without the bias of SigLIP's file where no loss is given.

    Warns:
        UserWarning: if `build` and `build_text` loaded the towers from files of two different models. Of a tower from a
            `.keras` file, or of an image tower without a scale, it is not known whether it belongs to the other.

    Source: arXiv:2103.00020, section 2.3; arXiv:2303.15343, section 3.2; arXiv:2111.07991.
    """

    def __init__(
        self,
        image: keras.Model,
        text: TextTransformer,
        loss: str | None = None,
        *,
        lock_image: bool = False,
        logit_scale: float | None = None,
        logit_bias: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if loss is not None:
            check_choice("loss", loss, LOSSES)
        check_flag("lock_image", lock_image)
        logit_scale = None if logit_scale is None else check_logit_scale(logit_scale)
        logit_bias = None if logit_bias is None else check_finite("logit_bias", logit_bias)
        if not isinstance(image, keras.Model) or not isinstance(text, TextTransformer):
            raise TypeError(
                "the towers must be a Keras model of images and a text tower of `build_text`.\n"
                f"Received: {type(image).__name__} and {type(text).__name__}."
            )
        check_same_size(image, text)
        check_projections(image, text)
        if getattr(image, "logit_scale", None) is not None:  # else of images alone, which has no text tower
            warn_other_source(image, text, stacklevel=3)
        biases = (logit_bias, text.logit_bias or None, getattr(image, "logit_bias", None) or None)
        bias = next((value for value in biases if value is not None), None)
        if loss is None:
            check_bias(logit_bias, text, image)
        kind = loss or ("sigmoid" if any(biases) else "softmax")
        self.image, self.text, self.kind, self.lock_image = image, text, kind, lock_image
        if lock_image:
            image.trainable = False
        for layer in head_layers(image):  # a projection, whose bias is zero and has no place in files of both towers
            if layer.use_bias:
                layer.bias.trainable = False
        self.data_start_step: int | None = None
        first = (logit_scale, text.logit_scale, getattr(image, "logit_scale", None), _FIRST_SCALES[kind])
        scale = next(value for value in first if value is not None)
        self.logit_scale = self.add_weight(
            name="logit_scale",
            shape=(),
            initializer=keras.initializers.Constant(min(scale, _MOST_SCALE)),
            constraint=_AtMost(),
            dtype="float32",
        )
        self.logit_bias = None
        self._constant_bias = bias or None if kind == "softmax" else None
        if kind == "sigmoid":
            constant = keras.initializers.Constant(_FIRST_BIAS if bias is None else bias)
            self.logit_bias = self.add_weight(name="logit_bias", shape=(), initializer=constant, dtype="float32")
        self._mean = MeanOverImages(name="mean_over_pairs", dtype="float32")
        self.built = True

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Keras' `compile`, without a loss or metrics.

        Raises:
            ValueError: for a loss or metrics, since the pairs of a batch say both.
        """
        if refused := [name for name in ("loss", "metrics", "weighted_metrics") if kwargs.get(name)]:
            raise ValueError(
                "the loss is of the pairs of a batch, as the argument `loss` of the model says.\n"
                f"Received: {', '.join(refused)}. Pass an optimizer alone."
            )
        super().compile(*args, **kwargs)

    @property
    def config(self) -> Any:
        """That of the image tower."""
        return self.image.config

    @property
    def preprocessing(self) -> Any:
        """That of the image tower."""
        return self.image.preprocessing

    @property
    def input_shape(self) -> tuple:
        """`(None, H, W, C)` of the images."""
        return self.image.input_shape

    @property
    def load_report(self) -> tuple[str, ...]:
        """A line for each adaptation that loading either tower made."""
        kept = () if self._constant_bias is None else (f"logit_bias {self._constant_bias:.4g} kept as it is",)
        return (*getattr(self.image, "load_report", ()), *self.text.load_report, *kept)

    def loss_in_words(self) -> str:
        """The kind of loss, and the scale and bias of the logits as they are."""
        scale, bias = self.scale_and_bias()
        learned = ", which it does not learn" if self._constant_bias else ""
        return f"{self.kind}, logit scale {scale:.4g}" + ("" if bias is None else f", logit bias {bias:.4g}{learned}")

    def scale_and_bias(self) -> tuple[float, float | None]:
        """Logarithm of the factor on cosines, and what is added to logits, as they are; `None` if nothing is."""
        scale, bias = (
            None if weight is None else float(ops.convert_to_numpy(ops.convert_to_tensor(weight)))
            for weight in (self.logit_scale, self.logit_bias)
        )
        return scale or 0.0, self._constant_bias if bias is None else bias

    def fit(self, x: Any = None, y: Any = None, batch_size: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """Keras' `fit`, which `Checkpoints` can go on with.

        Raises:
            ValueError: for batches of one pair, which has nothing to be compared with; and for ids in arrays that the
                text tower does not have.
        """
        _check_batches(x, batch_size or 32)
        self._check_ids(x)
        self.data_start_step = getattr(x, "start_step", None)
        return super().fit(x, y, batch_size, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_ids(x)
        return super().predict(x, *args, **kwargs)

    def _check_ids(self, x: Any) -> None:
        if not isinstance(x, dict) or "ids" not in x:
            return
        check_ids(x["ids"], self.text.config)
        counts = [len(x[name]) for name in ("images", "ids") if getattr(x.get(name), "shape", ())]
        if len({*counts}) > 1:
            raise ArgumentError(
                "`images` and `ids` must be pairs, as many of the one as of the other.\n"
                f"Received: {counts[0]:,} images and {counts[1]:,} rows of ids."
            )

    def evaluate(
        self,
        x: Any,
        *args: Any,
        batch_size: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **_: Any,
    ) -> Any:
        """The loss of all pairs as one batch, and the mean of their recall at 1, 5 and 10 both ways.

        Args:
            x: `{"images": ..., "ids": ...}` as arrays, or batches of these; as for `embed_pairs`.
            *args: not used, as all that Keras' `evaluate` takes besides.
            batch_size: pairs at once, for speed and memory only.
            callbacks: those of `fit`.
            return_dict: whether to give both by name, or the loss alone.
        """
        self._check_ids(x)
        calls = callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else None
        if calls:
            calls.on_test_begin()
        pairs = self.embed_pairs(_batches(x, batch_size or 32), calls)
        logs = {"loss": self.loss_of(pairs), "recall": mean_recall(pair_ranks(*pairs))}
        if calls:
            calls.on_test_end(logs)
        return logs if return_dict else logs["loss"]

    def loss_of(self, pairs: EmbeddedPairs) -> float:
        """The loss of all pairs as one batch."""
        scale, bias = self.scale_and_bias()
        return contrast(pairs.images, pairs.texts, math.exp(scale), None if self.kind == "softmax" else bias)

    def embed_pairs(self, batches: Iterable[Any], calls: Any = None) -> EmbeddedPairs:
        """Both embeddings of each pair.

        Args:
            batches: of `{"images": ..., "ids": ...}`, and `"captions"`, ints `(B, n)` that are equal for equal texts
                alone. Without these pairs of equal ids are alike, also if their texts were cut to them.
            calls: callbacks of a validation.

        Raises:
            ValueError: for embeddings that are not finite.
        """
        found: list[dict[str, np.ndarray]] = []
        photos: list[int] = []
        ids: list[np.ndarray] = []
        captions: list[np.ndarray] = []
        size = 0
        for number, batch in enumerate(batches):
            if calls:
                calls.on_test_batch_begin(number)
            inputs = {name: np.asarray(part) for name, part in batch.items()}
            captions.append(inputs.pop("captions", inputs["ids"]))
            self._check_ids(inputs)
            count, size = len(inputs["ids"]), max(size, len(inputs["ids"]))
            padded = {
                name: np.take(part, np.minimum(np.arange(size), count - 1), axis=0) for name, part in inputs.items()
            }
            rows = self.predict_on_batch(padded)  # each size of a batch is compiled, so there is one
            found.append({name: ops.convert_to_numpy(part)[:count] for name, part in rows.items()})
            photos += [hash(image.tobytes()) for image in inputs["images"]]
            ids.append(inputs["ids"])
            if calls:
                calls.on_test_batch_end(number)
        images, texts = (
            np.concatenate([each[name] for each in found]).astype("float64") for name in ("images", "texts")
        )
        for name, rows in (("photo", images), ("text", texts)):
            if not np.isfinite(rows).all():
                raise ValueError(
                    "embeddings must be finite; NaN comes of damaged weights.\n"
                    f"Received: others of the {name} of pair {int(np.isfinite(rows).all(axis=1).argmin())}."
                )
        _, equal_photos = np.unique(photos, return_inverse=True)
        _, equal_captions = np.unique(np.concatenate(captions), axis=0, return_inverse=True)
        _, first, equal_ids = np.unique(np.concatenate(ids), axis=0, return_index=True, return_inverse=True)
        texts = texts[first[equal_ids.ravel()]]  # another place in a batch gives other last bits
        return EmbeddedPairs(images, texts, (equal_photos, equal_captions.ravel()))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if not isinstance(inputs, dict):  # of images alone
            return self.image(inputs, training=training and not self.lock_image)
        images = self.image(inputs["images"], training=training and not self.lock_image)
        return {"images": _unit(images), "texts": _unit(self.text(inputs["ids"], training=training))}

    def compute_loss(
        self,
        x: Tensor = None,
        y: Tensor = None,
        y_pred: Tensor = None,
        sample_weight: Tensor = None,
        training: bool | None = True,
    ) -> Tensor:
        """The mean over the pairs of all devices; a pair of weight 0 takes no part."""
        own = ops.shape(y_pred["images"])[0]
        weight = ops.ones((own,)) if sample_weight is None else ops.cast(sample_weight, "float32")
        images, texts = ((rows, of_all_devices(self, rows)) for rows in (y_pred["images"], y_pred["texts"]))
        there = of_all_devices(self, weight) > 0
        first = 0 if num_replicas(self) == 1 else replica_share(weight)[1]
        scale = ops.exp(ops.convert_to_tensor(self.logit_scale))
        if self.kind == "softmax":
            losses = softmax_loss(images, texts, scale, first, there)
        else:
            bias = ops.convert_to_tensor(self.logit_bias)
            losses = sigmoid_loss(images, texts, scale, bias, first, there)
        losses = ops.where(weight > 0, losses, 0.0)
        return self._mean(losses, losses, sample_weight=sample_weight)

    def get_config(self) -> Arguments:
        towers = {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in ("image", "text")}
        kept = {} if self._constant_bias is None else {"logit_bias": self._constant_bias}
        return {**towers, "loss": self.kind, "lock_image": self.lock_image, **kept, "name": self.name}

    def compile_from_config(self, config: Arguments) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)  # so that its state can be loaded

    @classmethod
    def from_config(cls, config: Arguments, custom_objects: Any = None) -> "ContrastiveModel":
        """Makes the same again, around towers of its own."""
        towers = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects=custom_objects)
            for name in ("image", "text")
        }
        towers["text"].lacks_projection = False  # an earlier version trained with such a tower
        lost = {"logit_bias": 0.0} if config["loss"] == "softmax" else {}  # by an earlier version
        return cls(**lost | config | towers)


def mean_recall(ranks: dict[str, np.ndarray]) -> float:
    """The mean of recall at 1, 5 and 10 both ways."""
    return float(np.mean([*recall_at(ranks).values()]))


def _batches(x: Any, size: int) -> Iterable[Any]:
    """Batches of pairs, of arrays by name or a data set."""
    if not isinstance(x, dict):
        return x
    return ({name: part[start : start + size] for name, part in x.items()} for start in range(0, len(x["ids"]), size))


def _check_batches(x: Any, size: int) -> None:
    """Raises where each batch is known to have one pair alone: its loss is 0 and nothing is learned."""
    spec = getattr(x, "element_spec", None)  # of a data set
    inputs = spec[0] if isinstance(spec, tuple) else x if spec is None else spec
    if not isinstance(inputs, dict) or "ids" not in inputs:
        return
    shape = tuple(getattr(inputs["ids"], "shape", ()) or ())
    if shape and (shape[0] if spec is not None else min(shape[0], size)) == 1:
        raise ArgumentError(
            "`batch_size` must be at least 2, as pairs of a batch are compared.\nReceived: batches of 1 pair."
        )


def _unit(rows: Tensor) -> Tensor:
    """Rows of length 1, in float32."""
    rows = ops.cast(rows, "float32")
    return rows / ops.sqrt(ops.maximum(ops.sum(ops.square(rows), axis=-1, keepdims=True), _LENGTH))


def of_all_devices(model: keras.Model, rows: Tensor) -> Tensor:
    """The rows of all devices of a strategy in their order, with gradients to each. On JAX a batch is whole already."""
    if num_replicas(model) == 1:
        return rows
    import tensorflow as tf

    return tf.distribute.get_replica_context().all_gather(rows, axis=0)
