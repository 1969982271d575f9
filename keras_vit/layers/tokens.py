"""Which tokens there are: class token (equation 1) and registers before the patches, and patches left out or hidden."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor, Variable
from keras_vit.checks import check_fraction, check_number, check_positive_int, check_seed
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
        return self.inserted(self.tokens, tokens)

    def inserted(self, learned: Variable, tokens: Tensor) -> Tensor:
        """`(B, T + R, D)`: learned tokens between those of the prefix and of patches."""
        learned = ops.cast(learned, tokens.dtype)
        learned = ops.broadcast_to(learned, (ops.shape(tokens)[0], self.count, tokens.shape[-1]))
        prefix, patches = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        return ops.concatenate([prefix, learned, patches], axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, num_tokens, size = input_shape
        return (batch, None if num_tokens is None else num_tokens + self.count, size)


@keras.saving.register_keras_serializable("keras_vit")
class PatchDropout(ConfiguredLayer):
    """While training, leaves patch tokens out; which, is drawn for every example by itself.

    What is kept of N patch tokens is `max(1, floor(N * (1 - rate)))` of them, unscaled, in no order. Otherwise the
    layer is the identity. Positions are added before, or blocks take the places of the patches that stay.

    Args:
        rate: share that is left out, in [0, 1).
        num_prefix_tokens: tokens before the patches, which always stay.
        seed: of the draws; by default another one each time.
        return_indices: whether the places of the patches that stay are a second output.

    Call arguments:
        tokens: `(B, num_prefix_tokens + N, D)`.

    Returns:
        `(B, num_prefix_tokens + kept, D)` while training, else the shape of `tokens`. With `return_indices` also int32
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
        return_indices: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_fraction("rate", rate)
        self.rate = rate
        self.num_prefix_tokens = num_prefix_tokens
        self.seed = seed
        self.return_indices = return_indices
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, tokens: Tensor, training: bool | None = None) -> Any:
        if not training or self.rate == 0:
            count = ops.shape(tokens)[1] - self.num_prefix_tokens
            return (tokens, _everywhere(tokens, count)) if self.return_indices else tokens
        prefix, patches = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        # A number is drawn for every patch. The first patches in the order of their numbers are a draw without
        # replacement.
        noise = uniform(ops.shape(patches)[:2], self.seed_generator)
        kept = ops.argsort(noise, axis=1)[:, : self._count(patches.shape[1], ops.shape(patches)[1])]  # (B, kept)
        patches = ops.take_along_axis(patches, ops.expand_dims(kept, -1), axis=1)  # (B, kept, D)
        tokens = ops.concatenate([prefix, patches], axis=1)
        return (tokens, ops.cast(kept, "int32")) if self.return_indices else tokens

    def _count(self, known: int | None, counted: Tensor) -> Any:
        """How many patches are kept: an int, as XLA needs it, wherever the graph knows their number."""
        if known is not None:
            return kept_patches(known, self.rate)
        return ops.maximum(1, ops.cast(ops.cast(counted, "float32") * (1 - self.rate) + 1e-3, "int32"))

    def compute_output_spec(self, tokens: Tensor, training: bool | None = None) -> Any:
        batch, num_tokens, size = tokens.shape
        shape = (batch, num_tokens if self.rate == 0 else None, size)
        kept = keras.KerasTensor(shape, self.compute_dtype)
        return (kept, keras.KerasTensor((batch, None), "int32")) if self.return_indices else kept


def _everywhere(tokens: Tensor, count: Any) -> Tensor:
    """The places `(B, N)` of all `count` patches."""
    return ops.repeat(ops.arange(count, dtype="int32")[None], ops.shape(tokens)[0], axis=0)


def kept_patches(number: int, rate: float) -> int:
    """How many of `number` patch tokens `PatchDropout` keeps."""
    return max(1, int(number * (1 - rate) + 1e-6))  # 10 * (1 - 0.8) is 1.9999999999999996


_PROPORTIONS = ("rate", "mask_share", "random_share")
_EVALUATION_SEED = 0  # of the one draw that every image has outside of training


@keras.saving.register_keras_serializable("keras_vit")
class PatchCorruption(ConfiguredLayer):
    """Hides a share of the patch tokens, so that a model learns to predict them.

    Most hidden tokens become one learned token. Some become another patch's token of the same image, drawn evenly, and
    the rest stay as they are. Of n tokens a kind of share s has floor(n s) or ceil(n s) in every image, and n s in
    expectation. The kinds are drawn by systematic sampling of a random order.

    In training every image and every call draws anew. Outside of training all images have one draw, always the same,
    so that an evaluation does not depend on its batches.

    Args:
        rate: share of the tokens that are hidden, in (0, 1]; 0.5 in the paper, which found 0.15 slightly worse.
        mask_share: share of the hidden ones that become the learned token; 0.8 in the paper.
        random_share: share of the hidden ones that become another patch's token; 0.1 in the paper.
        seed: of the draws in training, and of the learned token's first value.
        squares: `(h, w, s)` hides squares of s x s patches whole, of a grid of h x w, of which s divides both sides; by
            default each patch is drawn by itself.

    Call arguments:
        tokens: `(B, N, D)`, of patches only, before positions are added; at least 2, and 1 that `rate` hides.

    Returns:
        The tokens `(B, N, D)`, and bool `(B, N)`: whether a token is hidden, the unchanged ones among them.

    Raises:
        TypeError, ValueError: for a share that is none, squares that do not tile the grid, or too few tokens.

    Source: arXiv:2010.11929, appendix B.1.2; the shares are those of BERT, arXiv:1810.04805, section 3.1. Squares are
    SimMIM's, arXiv:2111.09886, section 3.2.

    Example:
        >>> corrupt = keras_vit.layers.PatchCorruption(rate=0.5)
        >>> tokens, hidden = corrupt(keras.random.normal((2, 7, 12)), training=True)
        >>> tuple(tokens.shape), tuple(hidden.shape)
        ((2, 7, 12), (2, 7))
    """

    def __init__(
        self,
        rate: float = 0.5,
        mask_share: float = 0.8,
        random_share: float = 0.1,
        seed: int | None = None,
        squares: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value in zip(_PROPORTIONS, (rate, mask_share, random_share), strict=True):
            check_number(name, value)
            if not 0 <= value <= 1:
                raise ValueError(f"`{name}` is a share of the patches, so it must be in [0, 1].\nReceived: {value}.")
        if rate == 0 or mask_share + random_share > 1:
            raise ValueError(
                "`rate` must be above 0, and `mask_share` and `random_share` at most 1 together.\n"
                f"Received: rate={rate}, mask_share={mask_share}, random_share={random_share}."
            )
        self.rate = rate
        self.mask_share = mask_share
        self.random_share = random_share
        self.seed = seed if seed is None else check_seed("seed", seed)
        self.squares = None if squares is None else tuple(check_positive_int("squares", number) for number in squares)
        if self.squares is not None and (len(self.squares) != 3 or any(n % self.squares[2] for n in self.squares)):
            raise ValueError(
                "`squares` must be (h, w, s), a grid of patches and the side of squares, which divides both.\n"
                f"Received: squares={squares}."
            )
        self.seed_generator = keras.random.SeedGenerator(self.seed)

    def build(self, input_shape: Shape) -> None:
        self.check_count(input_shape[1])
        initializer = keras.initializers.RandomNormal(0.0, 0.02, self.seed)  # as positions have; the paper is silent
        self.mask_token = self.add_weight(name="mask_token", shape=(1, 1, input_shape[-1]), initializer=initializer)

    def call(self, tokens: Tensor, training: bool | None = None) -> tuple[Tensor, Tensor]:
        self.check_count(tokens.shape[1])
        batch, count = ops.shape(tokens)[:2]
        count = count if self.squares is None else tokens.shape[1]
        ranks, start, others = self._drawn(batch if training else 1, count, training)
        drawn = self._num_drawn(count)
        masked, replaced, hidden = (
            self._of_patches(ranks < self._count(share, drawn, start)) for share in self._bounds()
        )  # (B, N)
        others = ops.expand_dims(ops.broadcast_to(others, (batch, count)), -1)
        shown = ops.where(ops.expand_dims(replaced, -1), ops.take_along_axis(tokens, others, axis=1), tokens)
        shown = ops.where(ops.expand_dims(masked, -1), ops.cast(self.mask_token, tokens.dtype), shown)  # (B, N, D)
        return shown, ops.broadcast_to(hidden, (batch, count))

    def _bounds(self) -> tuple[float, float, float]:
        """Shares that become the learned token, that or another, and all that are hidden."""
        return self.rate * self.mask_share, self.rate * (self.mask_share + self.random_share), self.rate

    def _drawn(self, batch: Any, count: Any, training: bool | None) -> tuple[Tensor, Tensor, Tensor]:
        """A random order `(B, N)`, a number `(B, 1)` in [0, 1), and for every token another one's number `(B, N)`."""
        shape = (batch, 2 * count + 1)
        if training:
            noise = uniform(shape, self.seed_generator)
        else:
            noise = keras.random.uniform(shape, dtype="float32", seed=_EVALUATION_SEED)
        ranks = ops.argsort(ops.argsort(noise[:, : self._num_drawn(count)], axis=1), axis=1)
        others = ops.cast(count - 1, "float32") * noise[:, count + 1 :]
        steps = 1 + ops.cast(others, "int32")  # in [1, N - 1], so never back to the token itself
        return ranks, noise[:, count : count + 1], (ops.arange(count, dtype="int32") + steps) % count

    def _num_drawn(self, count: Any) -> Any:
        """Of how many things each is hidden or not: patches, or squares of them."""
        return count if self.squares is None else count // self.squares[2] ** 2

    def _of_patches(self, drawn: Tensor) -> Tensor:
        """What holds for each patch, `(B, N)`, by what holds for each thing that is drawn."""
        if self.squares is None:
            return drawn
        height, width, side = self.squares
        drawn = ops.reshape(drawn, (-1, height // side, width // side))
        return ops.reshape(ops.repeat(ops.repeat(drawn, side, axis=1), side, axis=2), (-1, height * width))

    def _count(self, share: float, count: Any, start: Tensor) -> Tensor:
        """How many of `count` tokens lie below `share`, if each lies at its rank and `start` after it: `(B, 1)`."""
        exact = share * (count if isinstance(count, int) else ops.cast(count, "float32"))
        whole = ops.floor(exact)
        return ops.cast(whole, "int32") + ops.cast(start < exact - whole, "int32")

    def check_count(self, count: int | None) -> None:
        """Raises if so many tokens, where it is known, are too few to hide one of them after another."""
        if self.squares is not None and count != math.prod(self.squares[:2]):
            raise ValueError(
                "`squares` must begin with the grid of the patches.\n"
                f"Received: squares={self.squares}, {count} patches. Give images of a fixed size."
            )
        count = count and self._num_drawn(count)
        if count is not None and (count < 2 or math.floor(count * self.rate) < 1):
            raise ValueError(
                "there must be two patches or more, and one at least that `rate` hides.\n"
                f"Received: {count} patches, rate={self.rate}. Use larger images or smaller patches."
            )

    def compute_output_spec(self, tokens: Tensor, training: bool | None = None) -> tuple[Tensor, Tensor]:
        hidden = keras.KerasTensor(tokens.shape[:2], "bool")
        return keras.KerasTensor(tokens.shape, self.compute_dtype), hidden
