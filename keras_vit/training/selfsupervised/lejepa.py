"""LeJEPA (arXiv:2511.08544): views of an image are pulled together, and their embeddings held to a Gaussian."""

from typing import Any, ClassVar

import keras
from keras import ops

from keras_vit.annotations import Rate, Shape, Tensor
from keras_vit.checks import ArgumentError, check_number, check_positive_int
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.selfsupervised.views import gaussian_distance
from keras_vit.training.contrastive import of_all_devices
from keras_vit.training.optimizers import AdamWOfParts
from keras_vit.training.selfsupervised.features import check_encoder, features, prepared, tiled
from keras_vit.training.selfsupervised.steps import (
    UnlabeledModel,
    by_view,
    flat_views,
    schedule,
    sum_of_all_devices,
)

_EPSILON = 1e-5  # of the batch norms
_LAYERS = 3


class LeJEPA(UnlabeledModel):
    """Trains an encoder without labels and without a teacher, with `fit`.

    Each view of an image is embedded by the encoder and a projector. The loss is `(1 - weight)` times the mean squared
    distance of all views to the mean of the global ones, and `weight` times SIGReg, which is 1.06 for a Gaussian.
    What is trained is `encoder` itself: save that one.

    Example:
        >>> config = keras_vit.ViTConfig(4, 24, num_layers=1, num_heads=3, mlp_dim=48)
        >>> encoder = keras_vit.build(config, include_top=False, input_shape=(8, 8, 3))
        >>> training = keras_vit.LeJEPA(encoder, projection_size=4, hidden_size=16)
        >>> training.compile(learning_rate=1e-3)
        >>> tuple(training({"views": np.zeros((6, 3, 8, 8, 3), "float32")}).shape)
        (3, 6, 24)

    Args:
        encoder: a `VisionTransformer` without a head; its output is what is projected.
        projection_size: d, of the embeddings: 16 for small sets, to 512.
        hidden_size: of the projector's two hidden layers, which have batch norms over all views of a step.
        weight: of SIGReg, in [0, 1]; 0.02 to 0.05.
        num_global: how many of the views come first and are global.
        num_directions: S of SIGReg, where a batch has none; drawn anew in each step, by its number.

    Call arguments:
        x: `{"views": (B, V, H, W, C)}`, floats prepared by `encoder.preprocessing`, or uint8. Also `"local_views"`, as
            many axes, of another size; and `"directions"`, `(B, d, S)`, one for the batch repeated.

    Returns:
        What the projector gets, `(V, B, D)`. `fit` shows `loss`, and unweighted `pull` and `sigreg`.

    Raises:
        TypeError: for what is no `VisionTransformer`.
        ValueError: for an encoder with a head, sizes out of range, a batch without views or with fewer than
            `num_global`, views that patches do not tile, and a loss, metrics or accumulation in `compile`.

    Source: arXiv:2511.08544, section 5; the projector and the integral as its code has them.
    """

    inputs_by_name: ClassVar = {"views": "(B, V, H, W, C)"}
    loss_names = ("pull", "sigreg")
    needs_batch = ": SIGReg and batch norms are of all its images"

    def __init__(
        self,
        encoder: VisionTransformer,
        projection_size: int,
        hidden_size: int = 2048,
        weight: float = 0.05,
        num_global: int = 2,
        num_directions: int = 1024,
        name: str = "lejepa",
    ) -> None:
        check_encoder("encoder", encoder)
        if not 0 <= check_number("weight", weight) <= 1:
            raise ArgumentError(f"`weight` must be in [0, 1].\nReceived: weight={weight}.")
        super().__init__(name)
        self.weight, self.num_global = weight, check_positive_int("num_global", num_global)
        self.num_directions = check_positive_int("num_directions", num_directions)
        self.encoder = encoder
        network = features(encoder)
        self._features = lambda: network  # whose weights are the encoder's
        self.projector = Projector(hidden_size, projection_size, name="projector")
        self.projector.build((None, network.outputs[0].shape[-1]))
        self.directions = keras.random.SeedGenerator(0)  # of a step the same on all devices and in all runs

    def compile(self, learning_rate: Rate, weight_decay: Rate = 0.05, **kwargs: Any) -> None:
        """Keras' `compile`, with AdamW that decays all weights.

        Args:
            learning_rate: a number, an array of one for each step, or a schedule.
            weight_decay: the same; it is multiplied by the rate.
            **kwargs: of Keras' `compile`, without a loss or metrics.
        """
        rate, decay = schedule("learning_rate", learning_rate), schedule("weight_decay", weight_decay)
        self.compile_with(AdamWOfParts(rate, decay, lambda variable: True), kwargs)

    def call(self, x: dict[str, Tensor], training: bool | None = None) -> Tensor:
        self.check_batch(x)
        views = x["views"].shape[1]
        if views < self.num_global:
            raise ArgumentError(
                f"`views` must have at least the {self.num_global} global views.\nReceived: {views} views."
            )
        embedded = [self._vectors(name, x[name], training) for name in ("views", "local_views") if name in x]
        return ops.concatenate(embedded) if len(embedded) > 1 else embedded[0]

    def _vectors(self, name: str, views: Tensor, training: bool | None) -> Tensor:
        """`(V, B, D)`."""
        tiled(name, views.shape, self.encoder)
        vectors, _ = self._features()(prepared(self.encoder, flat_views(views)), training=training)
        return by_view(vectors, views.shape[1])

    def losses_of(
        self, x: dict[str, Tensor], found: Tensor, there: Tensor | None, training: bool | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        number, batch, width = found.shape[0], ops.shape(found)[1], found.shape[2]
        counts = ops.ones((batch,), "float32") if there is None else ops.cast(there, "float32")
        images = sum_of_all_devices(self, ops.sum(counts))

        def mean(values: Tensor, axis: int = 0) -> Tensor:
            """Over the images of all devices, which are on this axis."""
            weights = ops.reshape(counts, (-1, *[1] * (len(values.shape) - 1 - axis % len(values.shape))))
            return sum_of_all_devices(self, ops.sum(values * weights, axis=axis)) / images

        def mean_of_rows(rows: Tensor) -> Tensor:
            return ops.mean(mean(ops.reshape(rows, (number, batch, rows.shape[-1])), axis=1), axis=0)

        rows = ops.reshape(ops.cast(found, "float32"), (-1, width))
        views = self.projector(rows, mean=mean_of_rows)
        views = ops.reshape(views, (number, batch, views.shape[-1]))  # (V, B, d)
        center = ops.mean(views[: self.num_global], axis=0, keepdims=True)
        pull = ops.mean(ops.square(views - center), axis=(0, 2))  # (B,)
        statistic = gaussian_distance(
            views, self._directions_of(x, views.shape[-1]), mean=lambda values: mean(values, axis=-3), count=images
        )
        statistic = ops.broadcast_to(statistic, (batch,))
        return (1 - self.weight) * pull + self.weight * statistic, {"pull": pull, "sigreg": statistic}

    def _directions_of(self, x: dict[str, Tensor], size: int) -> Tensor:
        """`(d, S)`; of a batch those of its first image."""
        if "directions" in x:
            return of_all_devices(self, x["directions"][:1])[0]
        state = self.directions.state
        state.assign(ops.stack([ops.cast(self.step * 0, state.dtype), ops.cast(self.step, state.dtype)]))
        return keras.random.normal((size, self.num_directions), dtype="float32", seed=self.directions)


class Projector(keras.layers.Layer):
    """Three dense layers, with a batch norm and a ReLU after the first two.

    Args:
        hidden_size: of the first two.
        projection_size: of the last.

    Call arguments:
        rows: `(R, D)`.
        mean: of `(R, h)` over all rows of the step; by default over these.
    """

    def __init__(self, hidden_size: int, projection_size: int, **kwargs: Any) -> None:
        super().__init__(dtype="float32", **kwargs)
        self.hidden_size = check_positive_int("hidden_size", hidden_size)
        self.projection_size = check_positive_int("projection_size", projection_size)

    def build(self, rows_shape: Shape) -> None:
        widths = (rows_shape[-1], self.hidden_size, self.hidden_size, self.projection_size)
        self.dense, self.norms = [], []
        for index in range(_LAYERS):
            kernel = self.add_weight(name=f"kernel{index}", shape=widths[index : index + 2])
            bias = self.add_weight(name=f"bias{index}", shape=widths[index + 1 : index + 2], initializer="zeros")
            self.dense.append((kernel, bias))
            if index < _LAYERS - 1:
                gamma = self.add_weight(name=f"gamma{index}", shape=widths[index + 1 : index + 2], initializer="ones")
                beta = self.add_weight(name=f"beta{index}", shape=widths[index + 1 : index + 2], initializer="zeros")
                self.norms.append((gamma, beta))

    def call(self, rows: Tensor, mean: Any = None) -> Tensor:
        mean = mean or (lambda values: ops.mean(values, axis=0))
        x = ops.cast(rows, "float32")
        for (kernel, bias), (gamma, beta) in zip(self.dense, self.norms, strict=False):
            x = ops.matmul(x, kernel) + bias
            centered = x - mean(x)
            x = ops.relu(centered / ops.sqrt(mean(ops.square(centered)) + _EPSILON) * gamma + beta)
        kernel, bias = self.dense[-1]
        return ops.matmul(x, kernel) + bias

    def compute_output_spec(self, rows: Tensor, mean: Any = None) -> Any:
        return keras.KerasTensor((rows.shape[0], self.projection_size), "float32")
