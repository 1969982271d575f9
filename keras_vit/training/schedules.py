"""Learning rates by step: a linear warm-up from 0, then cosine, linear or reciprocal square root.

The official code's formulas, with t the number of optimizer steps already made, so that the first step of a warm-up
has rate 0. Everything is float32, written so that no digits cancel near the end of a run of a million steps.
"""

import math

import keras
from keras import ops

from keras_vit.annotations import Arguments, Tensor
from keras_vit.checks import check_nonnegative, check_positive, check_positive_int, check_steps, with_hints


class _Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """rate(t) = base_rate's decay(t) * min(1, t / warmup_steps)."""

    @with_hints
    def __init__(self, base_rate: float, total_steps: int, warmup_steps: int = 0) -> None:
        super().__init__()
        check_positive("base_rate", base_rate)
        check_positive_int("total_steps", total_steps)
        check_steps("warmup_steps", warmup_steps)
        if not warmup_steps < total_steps:
            raise ValueError(
                "the rate falls after its warm-up, so `warmup_steps` must be fewer than `total_steps`.\n"
                f"Received: warmup_steps={warmup_steps}, total_steps={total_steps}."
            )
        self.base_rate = base_rate
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.convert_to_tensor(step)
        rate = self._decay(step)
        if self.warmup_steps:
            rate = rate * ops.minimum(1.0, _float(step) / self.warmup_steps)
        return rate

    def _decay(self, step: Tensor) -> Tensor:
        raise NotImplementedError

    def _remaining(self, step: Tensor) -> Tensor:
        """1 at the end of the warm-up and before, 0 at the end of training and after."""
        steps_left = _float(self.total_steps - step)  # of integers, so that nothing is rounded but the quotient
        return ops.clip(steps_left / (self.total_steps - self.warmup_steps), 0.0, 1.0)

    def get_config(self) -> Arguments:
        return {"base_rate": self.base_rate, "total_steps": self.total_steps, "warmup_steps": self.warmup_steps}


@keras.saving.register_keras_serializable("keras_vit")
class WarmupCosine(_Warmup):
    """A warm-up, then half a cosine to 0.

    rate(t) = base_rate * (1 + cos(pi * p)) / 2 * min(1, t / warmup_steps), p = clip((t - warmup) / (total - warmup))

    Example:
        >>> schedule = keras_vit.WarmupCosine(0.1, total_steps=100, warmup_steps=10)
        >>> [round(float(schedule(step)), 3) for step in (0, 5, 10, 55, 100)]
        [0.0, 0.05, 0.1, 0.05, 0.0]

    Args:
        base_rate: the rate at the end of the warm-up, above 0.
        total_steps: optimizer steps after which the rate is 0.
        warmup_steps: optimizer steps of the warm-up, fewer than `total_steps`; 0 for none.

    Raises:
        ValueError: for a value out of range.
        TypeError: for a value of the wrong type.

    Source: official code, `vit_jax/utils.py`.
    """

    def _decay(self, step: Tensor) -> Tensor:
        # (1 + cos(pi p)) / 2 = sin(pi (1 - p) / 2) ** 2, which keeps its digits where it is nearly 0.
        return self.base_rate * ops.square(ops.sin(math.pi / 2 * self._remaining(step)))


@keras.saving.register_keras_serializable("keras_vit")
class WarmupLinear(_Warmup):
    """A warm-up, then a straight line to `final_rate`.

    rate(t) = (final_rate + (base_rate - final_rate) * (1 - p)) * min(1, t / warmup_steps), p as in `WarmupCosine`

    Example:
        >>> schedule = keras_vit.WarmupLinear(0.1, 100, warmup_steps=10, final_rate=0.02)
        >>> [round(float(schedule(step)), 3) for step in (0, 5, 10, 55, 100)]
        [0.0, 0.05, 0.1, 0.06, 0.02]

    Args:
        base_rate: the rate at the end of the warm-up, above 0.
        total_steps: optimizer steps after which the rate is `final_rate`.
        warmup_steps: optimizer steps of the warm-up, fewer than `total_steps`; 0 for none.
        final_rate: from 0 to `base_rate`; 1e-5 in the official code.

    Raises:
        ValueError: for a value out of range.
        TypeError: for a value of the wrong type.

    Source: official code, `vit_jax/utils.py`.
    """

    @with_hints
    def __init__(self, base_rate: float, total_steps: int, warmup_steps: int = 0, final_rate: float = 1e-5) -> None:
        super().__init__(base_rate, total_steps, warmup_steps)
        check_nonnegative("final_rate", final_rate)
        if final_rate > base_rate:
            raise ValueError(
                "the rate falls, so `final_rate` must not be above `base_rate`.\n"
                f"Received: final_rate={final_rate}, base_rate={base_rate}."
            )
        self.final_rate = final_rate

    def _decay(self, step: Tensor) -> Tensor:
        return self.final_rate + (self.base_rate - self.final_rate) * self._remaining(step)

    def get_config(self) -> Arguments:
        return {**super().get_config(), "final_rate": self.final_rate}


@keras.saving.register_keras_serializable("keras_vit")
class WarmupReciprocalSqrt(_Warmup):
    """A warm-up, then one over the square root of the steps since, and a straight cooldown to 0.

    rate(t) = base_rate / sqrt(1 + max(t - warmup, 0) / timescale) * min(1, t / warmup) * clip((total - t) / cooldown)

    With `timescale` equal to `warmup_steps`, as published, that is base_rate * sqrt(warmup / t).

    Example:
        >>> schedule = keras_vit.WarmupReciprocalSqrt(0.1, 100, 10, timescale=10)
        >>> [round(float(schedule(step)), 3) for step in (0, 5, 10, 40, 90)]
        [0.0, 0.05, 0.1, 0.05, 0.033]

    Args:
        base_rate: the rate at the end of the warm-up, above 0.
        total_steps: optimizer steps in all.
        warmup_steps: optimizer steps of the warm-up, fewer than `total_steps`; 0 for none.
        timescale: steps after the warm-up in which the rate falls to 1 / sqrt(2) of `base_rate`.
        cooldown_steps: optimizer steps at the end in which the rate falls to 0; 0 for none.

    Raises:
        ValueError: for a value out of range.
        TypeError: for a value of the wrong type.

    Source: arXiv:2106.04560, section 3.5, as big_vision's `utils.py` has it.
    """

    @with_hints
    def __init__(
        self,
        base_rate: float,
        total_steps: int,
        warmup_steps: int = 0,
        timescale: int = 10_000,
        cooldown_steps: int = 0,
    ) -> None:
        super().__init__(base_rate, total_steps, warmup_steps)
        check_positive_int("timescale", timescale)
        check_steps("cooldown_steps", cooldown_steps)
        if warmup_steps + cooldown_steps > total_steps:
            raise ValueError(
                "warm-up and cooldown must fit into `total_steps`.\n"
                f"Received: warmup_steps={warmup_steps}, cooldown_steps={cooldown_steps}, total_steps={total_steps}."
            )
        self.timescale = timescale
        self.cooldown_steps = cooldown_steps

    def _decay(self, step: Tensor) -> Tensor:
        since = ops.maximum(_float(step - self.warmup_steps), 0.0)
        rate = self.base_rate * ops.rsqrt(1.0 + since / self.timescale)
        if self.cooldown_steps:
            rate = rate * ops.clip(_float(self.total_steps - step) / self.cooldown_steps, 0.0, 1.0)
        return rate

    def get_config(self) -> Arguments:
        return {**super().get_config(), "timescale": self.timescale, "cooldown_steps": self.cooldown_steps}


def _float(step: Tensor) -> Tensor:
    return ops.cast(step, "float32")
