"""Which tokens there are: class token (equation 1) and registers before the patches, and patches that are left out."""

from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_fraction, check_number, check_positive_int
from keras_vit.layers.configurable import ConfiguredLayer
from keras_vit.layers.dropout import uniform


@keras.saving.register_keras_serializable("keras_vit")
class ClassToken(ConfiguredLayer):
    """Prepends a learned token to the patch tokens, or several.

    Args:
        stddev: of its first values. By default they are 0, as in the official code. Where no position is added to it,
            LayerNorm would see zeros, and its gradient would outweigh all others: 27 of 28 in Ti/16, then 1.2 of 5.4.
        count: number of tokens.

    Call arguments:
        tokens: `(B, N, D)`.

    Returns:
        `(B, count + N, D)`.

    Source: arXiv:2010.11929, section 3.1, x_class in eq. 1.

    Example:
        >>> tuple(keras_vit.layers.ClassToken()(keras.random.normal((2, 7, 12))).shape)
        (2, 8, 12)
    """

    def __init__(self, stddev: float = 0.0, count: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_number("stddev", stddev)
        self.stddev = stddev
        self.count = check_positive_int("count", count)

    def build(self, input_shape: Shape) -> None:
        initializer = keras.initializers.RandomNormal(stddev=self.stddev) if self.stddev else "zeros"
        self.token = self.add_weight(name="token", shape=(1, self.count, input_shape[-1]), initializer=initializer)

    def call(self, tokens: Tensor) -> Tensor:
        token = ops.cast(self.token, tokens.dtype)
        token = ops.broadcast_to(token, (ops.shape(tokens)[0], self.count, tokens.shape[-1]))  # (B, count, D)
        return ops.concatenate([token, tokens], axis=1)  # (B, count + N, D)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, num_tokens, size = input_shape
        return (batch, None if num_tokens is None else num_tokens + self.count, size)


@keras.saving.register_keras_serializable("keras_vit")
class RegisterTokens(ConfiguredLayer):
    """Puts learned tokens between the prefix tokens and the patches, which get no position.

    Args:
        count: R, number of registers.
        num_prefix_tokens: tokens before them.

    Call arguments:
        tokens: `(B, T, D)`.

    Returns:
        `(B, T + R, D)`.

    Source: arXiv:2309.16588, section 2.2; the first values are DINOv2's.

    Example:
        >>> tokens = keras.random.normal((2, 7, 12))
        >>> tuple(keras_vit.layers.RegisterTokens(4)(tokens).shape)
        (2, 11, 12)
    """

    def __init__(self, count: int, num_prefix_tokens: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = check_positive_int("count", count)
        self.num_prefix_tokens = num_prefix_tokens

    def build(self, input_shape: Shape) -> None:
        first = keras.initializers.RandomNormal(stddev=0.02)
        self.tokens = self.add_weight(name="tokens", shape=(1, self.count, input_shape[-1]), initializer=first)

    def call(self, tokens: Tensor) -> Tensor:
        registers = ops.cast(self.tokens, tokens.dtype)
        registers = ops.broadcast_to(registers, (ops.shape(tokens)[0], self.count, tokens.shape[-1]))
        prefix, patches = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        return ops.concatenate([prefix, registers, patches], axis=1)  # (B, T + R, D)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, num_tokens, size = input_shape
        return (batch, None if num_tokens is None else num_tokens + self.count, size)


@keras.saving.register_keras_serializable("keras_vit")
class PatchDropout(ConfiguredLayer):
    """While training, leaves patch tokens out; which, is drawn for every example by itself.

    What is kept of N patch tokens is `max(1, floor(N * (1 - rate)))` of them, unscaled, in no order. Otherwise the
    layer is the identity. Positions are added before, or blocks are told the places of the patches that stay.

    Args:
        rate: share that is left out, in [0, 1).
        num_prefix_tokens: tokens before the patches, which always stay.
        seed: of the draws; by default another one each time.
        tells_places: whether the places of the patches that stay are a second output.

    Call arguments:
        tokens: `(B, num_prefix_tokens + N, D)`.

    Returns:
        `(B, num_prefix_tokens + kept, D)` while training, else the shape of `tokens`. With `tells_places` also int32
        `(B, kept)`, the places in reading order, from 0.

    Source: PatchDropout, arXiv:2208.07220, section 3; fast image-language pre-training, arXiv:2212.00794.

    Example:
        >>> drop = keras_vit.layers.PatchDropout(rate=0.5)
        >>> tokens = keras.random.normal((2, 7, 12))
        >>> tuple(drop(tokens, training=True).shape)  # the class token and 3 of 6 patches
        (2, 4, 12)
    """

    def __init__(
        self,
        rate: float,
        num_prefix_tokens: int = 1,
        seed: int | None = None,
        tells_places: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_fraction("rate", rate)
        self.rate = rate
        self.num_prefix_tokens = num_prefix_tokens
        self.seed = seed
        self.tells_places = tells_places
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, tokens: Tensor, training: bool | None = None) -> Any:
        if not training or self.rate == 0:
            count = ops.shape(tokens)[1] - self.num_prefix_tokens
            return (tokens, _everywhere(tokens, count)) if self.tells_places else tokens
        prefix, patches = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        # A number is drawn for every patch. The first patches in the order of their numbers are a draw without
        # replacement.
        noise = uniform(ops.shape(patches)[:2], self.seed_generator)
        kept = ops.argsort(noise, axis=1)[:, : self._count(patches.shape[1], ops.shape(patches)[1])]  # (B, kept)
        patches = ops.take_along_axis(patches, ops.expand_dims(kept, -1), axis=1)  # (B, kept, D)
        tokens = ops.concatenate([prefix, patches], axis=1)
        return (tokens, ops.cast(kept, "int32")) if self.tells_places else tokens

    def _count(self, known: int | None, counted: Tensor) -> Any:
        """How many patches are kept: an int, as XLA needs it, wherever the graph knows their number."""
        if known is not None:
            return kept_patches(known, self.rate)
        return ops.maximum(1, ops.cast(ops.cast(counted, "float32") * (1 - self.rate) + 1e-3, "int32"))

    def compute_output_spec(self, tokens: Tensor, training: bool | None = None) -> Any:
        batch, num_tokens, size = tokens.shape
        shape = (batch, num_tokens if self.rate == 0 else None, size)
        kept = keras.KerasTensor(shape, self.compute_dtype)
        return (kept, keras.KerasTensor((batch, None), "int32")) if self.tells_places else kept


def _everywhere(tokens: Tensor, count: Any) -> Tensor:
    """The places `(B, N)` of all `count` patches."""
    return ops.repeat(ops.arange(count, dtype="int32")[None], ops.shape(tokens)[0], axis=0)


def kept_patches(number: int, rate: float) -> int:
    """How many of `number` patch tokens `PatchDropout` keeps."""
    return max(1, int(number * (1 - rate) + 1e-6))  # 10 * (1 - 0.8) is 1.9999999999999996
