"""SGD and AdamW as the official JAX code runs them, on one device or many.

Keras' own SGD folds the rate into its momentum, which is another optimizer once the rate has a schedule. Its clipping
sees the gradients of one replica alone. All else is Keras': schedules, averaging, saving, loss scaling.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Arguments, Rate, Tensor, Variable
from keras_vit.checks import ArgumentError, check_choice, check_number, with_hints
from keras_vit.training.arithmetic import (
    before_cast,
    bias_correction,
    decayed,
    has_kernel,
    scaled,
    square_sum,
    tensorflow_adam,
    tensorflow_sgd,
)
from keras_vit.training.joint_step import JointStepOptimizer, num_replicas, sum_over_replicas
from keras_vit.training.layer_decay import check_layer_decay, layer_multipliers

ACCUMULATOR_DTYPES = ("float32", "bfloat16")
LEFT_OUT = -1.0  # in place of a norm that is not finite


class GuardedOptimizer(JointStepOptimizer):
    """What `SGD` and `AdamW` share: a global norm over all devices, decay of kernels, rates by depth.

    A step whose gradients and rate are not all finite changes neither weights nor moments, bit for bit. It costs
    nothing: only scalars differ, and a moving average (`use_ema`) goes on towards the weights as they stay.

    Attributes:
        gradient_norm: variable, the global norm of the last step's gradients before clipping, averaged over the
            batch of all devices. It is -1 if that step was left out, so that all of a saved optimizer is finite.
    """

    def __init__(
        self,
        learning_rate: Rate,
        *,
        weight_decay: float | None,
        global_clipnorm: float | None,
        accumulator_dtype: str | None,
        layer_decay: float | None,
        use_ema: bool,
        ema_momentum: float,
        ema_overwrite_frequency: int | None,
        loss_scale_factor: float | None,
        name: str,
    ) -> None:
        if isinstance(learning_rate, (int, float)):
            _check_positive("learning_rate", learning_rate, zero_too=True)  # a saved one may have come down to 0
        _check_positive("weight_decay", weight_decay, zero_too=True)
        _check_positive("global_clipnorm", global_clipnorm)
        if accumulator_dtype is not None:
            check_choice("accumulator_dtype", accumulator_dtype, ACCUMULATOR_DTYPES)
        if layer_decay is not None:
            check_layer_decay(layer_decay)
        super().__init__(
            float(learning_rate) if isinstance(learning_rate, int) else learning_rate,
            weight_decay=weight_decay,
            global_clipnorm=global_clipnorm,
            use_ema=use_ema,
            ema_momentum=ema_momentum,
            ema_overwrite_frequency=ema_overwrite_frequency,
            loss_scale_factor=loss_scale_factor,
            name=name,
        )
        self.accumulator_dtype = accumulator_dtype
        self.layer_decay = layer_decay

    def build(self, variables: Sequence[Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self.gradient_norm = self.add_variable(
            (), dtype="float32", aggregation="only_first_replica", name="gradient_norm"
        )
        paths = [getattr(variable, "path", variable.name) for variable in variables]
        self._multipliers = layer_multipliers(variables, self.layer_decay or 1.0)
        self._decays = [bool(self.weight_decay) and path.split("/")[-1] == "kernel" for path in paths]

    def get_config(self) -> Arguments:
        config = super().get_config()
        for refused in ("clipnorm", "clipvalue", "gradient_accumulation_steps"):
            del config[refused]
        return {**config, "accumulator_dtype": self.accumulator_dtype, "layer_decay": self.layer_decay}

    def _scalars(self, rate: Tensor, finite: Tensor) -> tuple[Tensor, ...]:
        """What `update_one` needs of numbers, in a tuple of scalar tensors; neutral ones unless `finite`."""
        raise NotImplementedError

    def _accumulators(self, variables: Sequence[Variable], name: str) -> list[Variable]:
        """One zero tensor for each variable, in `accumulator_dtype`."""
        if self.accumulator_dtype is None:
            return self.add_optimizer_variables(variables, name)
        return [
            self.add_variable(
                variable.shape,
                dtype=self.accumulator_dtype,
                layout=_layout_of(variable),
                name=f"{getattr(variable, 'path', variable.name).replace('/', '_')}_{name}",
            )
            for variable in variables
        ]

    def update_all(self, gradients: Sequence[Tensor], variables: Sequence[Variable], learning_rate: Tensor) -> None:
        gradients = [before_cast(gradient) for gradient in sum_over_replicas(gradients)]
        norm = ops.sqrt(sum(square_sum(gradient) for gradient in gradients))
        finite = ops.logical_and(ops.isfinite(norm), ops.isfinite(learning_rate))
        self.gradient_norm.assign(ops.where(finite, norm, LEFT_OUT))
        scale = 1.0 if self.global_clipnorm is None else self.global_clipnorm / ops.maximum(norm, self.global_clipnorm)
        scale = ops.where(finite, scale, 0.0)
        rate = ops.where(finite, ops.cast(learning_rate, "float32"), 0.0)
        self._last_update = None
        self.update_each(gradients, variables, (rate, scale, *self._scalars(rate, finite)))
        self._last_update = None

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[Callable[[Any], None]]:
        """Lets a TensorFlow graph update one variable after the other, so that one scaled gradient exists at a time.

        Gives a function to call with the update. Many devices take no turns, since none should wait for another.
        """
        import tensorflow as tf

        def done(update: Any) -> None:
            if num_replicas() == 1:
                self._last_update = update  # None when not in a graph

        with tf.control_dependencies([] if self._last_update is None else [self._last_update]):
            yield done

    def _decay(self, variable: Variable, rate: Tensor, index: int) -> None:
        if self._decays[index]:
            self.assign_sub(variable, ops.cast(variable, "float32") * (rate * self.weight_decay))


@keras.saving.register_keras_serializable("keras_vit")
class SGD(GuardedOptimizer):
    """Stochastic gradient descent with momentum, as the official code fine-tunes.

    `m = momentum * m + g; p -= rate * m`, and for kernels `p -= rate * weight_decay * p` besides. The rate stands
    outside of m: Keras' `m = momentum * m - rate * g` goes on at the old rate after a change of rate.

    Example:
        >>> weight = keras.Variable([1.0])
        >>> optimizer = keras_vit.SGD(learning_rate=0.1, momentum=0.9)
        >>> for _ in range(2):
        ...     optimizer.apply([keras.ops.ones(1)], [weight])
        ...     print(keras.ops.convert_to_numpy(weight))
        [0.9]
        [0.71]

    Args:
        learning_rate: a float of at least 0, or a schedule.
        momentum: in [0, 1).
        accumulator_dtype: how m is stored, `"float32"` or `"bfloat16"` (the official code; half the memory); by
            default as the variable. The step uses the sum before it is rounded. In bfloat16 the momentum is
            rounded too, 0.9 to 0.8984375, as in the official code's optimizer.
        weight_decay: decoupled, times the rate, of kernels only (arXiv:1711.05101).
        global_clipnorm: the largest norm of all gradients together, after their sum over devices.
        layer_decay: d in (0, 1]: the rate of a layer k stations below the head is `d ** k` of the rate, see
            `layer_multipliers`. It holds for the decay as well.
        use_ema: whether an average of the weights is kept, Keras' way: `keras.callbacks.SwapEMAWeights` puts it
            into the model, and the first step takes the weights as they are.
        ema_momentum: of the average; 0.9999 in the paper.
        ema_overwrite_frequency: as in `keras.optimizers.Optimizer`.
        loss_scale_factor: as in `keras.optimizers.Optimizer`.
        name: of the optimizer.

    Raises:
        TypeError, ValueError: for a value out of range; at the first step if `layer_decay` finds no blocks.

    Source: arXiv:2010.11929, section 4.1 and Table 4.
    """

    @with_hints
    def __init__(
        self,
        learning_rate: Rate = 0.03,
        momentum: float = 0.9,
        accumulator_dtype: str | None = None,
        weight_decay: float | None = None,
        global_clipnorm: float | None = None,
        layer_decay: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.9999,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        name: str = "sgd",
    ) -> None:
        _check_momentum("momentum", momentum)
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            global_clipnorm=global_clipnorm,
            accumulator_dtype=accumulator_dtype,
            layer_decay=layer_decay,
            use_ema=use_ema,
            ema_momentum=ema_momentum,
            ema_overwrite_frequency=ema_overwrite_frequency,
            loss_scale_factor=loss_scale_factor,
            name=name,
        )
        self.momentum = momentum

    def build(self, variables: Sequence[Variable]) -> None:
        if not self.built:
            super().build(variables)
            self._momenta = self._accumulators(variables, "momentum")

    def get_config(self) -> Arguments:
        return {**super().get_config(), "momentum": self.momentum}

    def _scalars(self, rate: Tensor, finite: Tensor) -> tuple[Tensor, ...]:
        return (ops.where(finite, self.momentum, 1.0),)

    def update_one(self, variable: Variable, gradient: Tensor, scalars: Any, index: int) -> None:
        rate, scale, momentum = scalars
        rate, accumulator = rate * self._multipliers[index], self._momenta[index]
        if has_kernel(variable, accumulator):
            with self._in_turn() as done:
                self._decay(variable, rate, index)
                done(tensorflow_sgd(variable, accumulator, scaled(gradient, scale), rate, momentum))
            return
        gradient = scaled(gradient, scale)
        self._decay(variable, rate, index)
        total = gradient + decayed(accumulator, momentum)
        self.assign(accumulator, ops.cast(total, accumulator.dtype))
        self.assign_sub(variable, ops.cast(rate * total, variable.dtype))


@keras.saving.register_keras_serializable("keras_vit")
class AdamW(GuardedOptimizer):
    """Adam with decoupled weight decay of kernels, as the official code pre-trains.

    `p -= rate * (m_hat / (sqrt(v_hat) + epsilon) + weight_decay * p)`, decay for kernels only.

    Example:
        >>> kernel = keras.Variable([[1.0]], name="kernel")
        >>> optimizer = keras_vit.AdamW(learning_rate=0.1, weight_decay=0.1)
        >>> optimizer.apply([keras.ops.ones((1, 1))], [kernel])
        >>> keras.ops.convert_to_numpy(kernel)
        array([[0.89]], dtype=float32)

    Args:
        learning_rate: a float of at least 0, or a schedule.
        beta_1: in [0, 1).
        beta_2: in [0, 1).
        epsilon: added to the root; 1e-8 in the official code, 1e-7 in Keras.
        accumulator_dtype: how m is stored, `"float32"` or `"bfloat16"` (then `beta_1` of m's decay is rounded too, as
            in `SGD`); v always is as the variable.
        weight_decay: decoupled, times the rate, of kernels only.
        global_clipnorm: as in `SGD`.
        layer_decay: as in `SGD`.
        use_ema: as in `SGD`.
        ema_momentum: as in `SGD`.
        ema_overwrite_frequency: as in `keras.optimizers.Optimizer`.
        loss_scale_factor: as in `keras.optimizers.Optimizer`.
        name: of the optimizer.

    Raises:
        TypeError, ValueError: for a value out of range; at the first step if `layer_decay` finds no blocks.

    Source: arXiv:1711.05101, algorithm 2; arXiv:2010.11929, Table 3.
    """

    @with_hints
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        accumulator_dtype: str | None = None,
        weight_decay: float | None = None,
        global_clipnorm: float | None = None,
        layer_decay: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.9999,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        name: str = "adamw",
    ) -> None:
        _check_momentum("beta_1", beta_1)
        _check_momentum("beta_2", beta_2)
        _check_positive("epsilon", epsilon)
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            global_clipnorm=global_clipnorm,
            accumulator_dtype=accumulator_dtype,
            layer_decay=layer_decay,
            use_ema=use_ema,
            ema_momentum=ema_momentum,
            ema_overwrite_frequency=ema_overwrite_frequency,
            loss_scale_factor=loss_scale_factor,
            name=name,
        )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def build(self, variables: Sequence[Variable]) -> None:
        if not self.built:
            super().build(variables)
            self._momenta = self._accumulators(variables, "momentum")
            self._velocities = self.add_optimizer_variables(variables, "velocity")

    def get_config(self) -> Arguments:
        return {**super().get_config(), "beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}

    def _scalars(self, rate: Tensor, finite: Tensor) -> tuple[Tensor, ...]:
        steps = ops.cast(self.iterations + 1, "float32")
        root = ops.sqrt(bias_correction(self.beta_2, steps))
        # Both corrections in the rate and epsilon, so that no pass over the moments is spent on them.
        return (
            root / bias_correction(self.beta_1, steps),
            self.epsilon * root,
            ops.where(finite, self.beta_1, 1.0),
            ops.where(finite, self.beta_2, 1.0),
        )

    def update_one(self, variable: Variable, gradient: Tensor, scalars: Any, index: int) -> None:
        rate, scale, correction, epsilon, beta_1, beta_2 = scalars
        rate, first, second = rate * self._multipliers[index], self._momenta[index], self._velocities[index]
        if has_kernel(variable, first, second):
            with self._in_turn() as done:
                self._decay(variable, rate, index)
                gradient = scaled(gradient, scale)
                rate = rate * correction
                done(tensorflow_adam(variable, first, second, gradient, rate, beta_1, beta_2, epsilon))
            return
        gradient = scaled(gradient, scale)
        self._decay(variable, rate, index)
        mean = decayed(first, beta_1) + (1 - beta_1) * gradient
        square = decayed(second, beta_2) + (1 - beta_2) * ops.square(gradient)
        self.assign(first, ops.cast(mean, first.dtype))
        self.assign(second, ops.cast(square, second.dtype))
        step = rate * correction * mean / (ops.sqrt(square) + epsilon)
        self.assign_sub(variable, ops.cast(step, variable.dtype))


def _layout_of(variable: Variable) -> Any:
    """How a variable is spread over several devices of JAX; `None` elsewhere."""
    sharding = getattr(variable.value, "sharding", None)
    return sharding if sharding is not None and len(sharding.device_set) > 1 else None


def _check_positive(name: str, value: Any, zero_too: bool = False) -> None:
    if value is None:
        return
    check_number(name, value)
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero_too):
        raise ArgumentError(
            f"`{name}` must be {'at least' if zero_too else 'above'} 0.\nReceived: {name}={value}.", parameters=(name,)
        )


def _check_momentum(name: str, value: Any) -> None:
    check_number(name, value)
    if not 0 <= value < 1:
        raise ArgumentError(f"`{name}` must be in [0, 1).\nReceived: {name}={value}.", parameters=(name,))
