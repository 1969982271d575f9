"""SGD and AdamW as the official JAX code runs them, on one device or many.

Keras' own SGD folds the rate into its momentum, which is another optimizer once the rate has a schedule. Its clipping
sees the gradients of one replica alone. Here one step sees all gradients, in as few passes over memory as a backend
allows. All else is Keras': schedules, averaging, saving, loss scaling.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Arguments, Rate, Tensor, Variable
from keras_vit.checks import ArgumentError, check_choice, check_number, check_share, with_hints


def layer_multipliers(variables: Sequence[Variable], layer_decay: float) -> list[float]:
    """The factor of the learning rate for each weight, by how far below the head it lies.

    The factor is `layer_decay ** (L + 1 - depth)`. All that comes before the blocks has depth 0: ResNet, patch
    embedding, tokens, positions. Block i has i + 1. What comes after (norm, pooling, head) has L + 1, so a factor of
    1. A weight knows its depth from the model that it was made for. One of a layer around that model has a factor of 1.

    Args:
        variables: weights of a model.
        layer_decay: in (0, 1].

    Raises:
        ValueError: if no weight knows its depth, and `layer_decay` is not 1.

    Source: BEiT, arXiv:2106.08254, appendix H; MAE, arXiv:2111.06377, Table 9.
    """
    if layer_decay == 1:
        return [1.0] * len(variables)
    depths = [getattr(variable, "layer_depth", None) for variable in variables]
    if not any(depth and 0 < depth[0] < depth[1] for depth in depths):
        paths = [getattr(variable, "path", variable.name) for variable in variables[:3]]
        raise ArgumentError(
            "`layer_decay` needs trainable weights of blocks, by whose number the depth of a layer is known.\n"
            f"Received: layer_decay={layer_decay} and {len(variables)} weights, {', '.join(map(repr, paths))}, ... "
            "Leave it out where only the head learns."
        )
    return [1.0 if depth is None else float(layer_decay) ** (depth[1] - depth[0]) for depth in depths]


def is_tensorflow() -> bool:
    return keras.backend.backend() == "tensorflow"


def undo_cast(gradient: Tensor) -> Tensor:
    """A gradient before its cast from half precision, if a graph of TensorFlow has computed it so; else as it is.

    Whoever needs float32 casts it anew: the same numbers, and of all gradients together half the memory.
    """
    if not is_tensorflow():
        return gradient
    import tensorflow as tf

    if tf.executing_eagerly() or not isinstance(gradient, tf.Tensor) or gradient.op.type != "Cast":
        return gradient
    (source,) = gradient.op.inputs
    return source if source.dtype in (tf.bfloat16, tf.float16) and gradient.dtype == tf.float32 else gradient


def square_sum(gradient: Tensor) -> Tensor:
    if is_tensorflow():
        import tensorflow as tf

        return 2 * tf.nn.l2_loss(tf.cast(gradient, tf.float32))  # one pass, no second tensor
    return ops.sum(ops.square(ops.cast(gradient, "float32")))


def scale_gradient(gradient: Tensor, scale: Tensor) -> Tensor:
    """`gradient * scale`, and 0 where `scale` is 0, whatever the gradient: 0 times infinity would be NaN."""
    gradient = ops.cast(gradient, "float32")
    if is_tensorflow():
        import tensorflow as tf

        return tf.math.multiply_no_nan(gradient, scale)  # one pass
    return ops.where(scale == 0, 0.0, gradient * scale)


def decay_accumulator(accumulator: Variable, decay: Tensor) -> Tensor:
    """The accumulator times a decay that optax rounds to its dtype: 0.9 is 0.8984375 in bfloat16, say golden files."""
    decay = ops.cast(ops.cast(decay, accumulator.dtype), "float32")
    return decay * ops.cast(accumulator, "float32")


def bias_correction(beta: float, steps: Tensor) -> Tensor:
    """`1 - beta ** steps` for the float32 nearest to `beta`; float32's own difference would be off by 1e-4."""
    beta = float(np.float32(beta))
    return -ops.expm1(steps * math.log(beta)) if beta else ops.ones_like(steps)


def has_fused_kernel(*variables: Variable) -> bool:
    """Whether TensorFlow can do the whole step in one pass: its kernels want one dtype."""
    return is_tensorflow() and all(keras.backend.standardize_dtype(v.dtype) == "float32" for v in variables)


def tensorflow_sgd(
    variable: Variable, accumulator: Variable, gradient: Tensor, rate: Tensor, momentum: Tensor
) -> Tensor:
    import tensorflow as tf

    return tf.raw_ops.ResourceApplyMomentum(
        var=_handle(variable), accum=_handle(accumulator), lr=rate, grad=gradient, momentum=momentum
    )


def tensorflow_adam(
    variable: Variable,
    first: Variable,
    second: Variable,
    gradient: Tensor,
    rate: Tensor,
    beta_1: Tensor,
    beta_2: Tensor,
    epsilon: Tensor,
) -> Tensor:
    import tensorflow as tf

    none = tf.zeros(())  # the powers of beta: the rate has their part already
    return tf.raw_ops.ResourceApplyAdam(
        var=_handle(variable),
        m=_handle(first),
        v=_handle(second),
        beta1_power=none,
        beta2_power=none,
        lr=rate,
        beta1=beta_1,
        beta2=beta_2,
        epsilon=epsilon,
        grad=gradient,
    )


def _handle(variable: Variable) -> Any:
    """Of a variable of Keras, or of TensorFlow's on one device."""
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle


class GlobalStepOptimizer(keras.optimizers.Optimizer):
    """An optimizer whose subclass sees the gradients of all variables at once, in `update_all`.

    Keras clips the gradients of each TensorFlow replica before it sums them, so the public `apply` is written anew.
    Building, schedules, saving and loss scaling are Keras' own.
    """

    clips_after_sum = True

    def build(self, variables: Sequence[Variable]) -> None:
        before = len(self.variables)
        super().build(variables)
        self._built_with = _BuiltVariables(variables, self.variables[before:])

    def update_all(self, gradients: Sequence[Tensor], variables: Sequence[Variable], learning_rate: Tensor) -> None:
        """One step: `gradients` are those of this replica; it ends by calling `update_each`."""
        raise NotImplementedError

    def update_one(self, variable: Variable, gradient: Tensor, scalars: Any, index: int) -> None:
        """Updates one variable on one device.

        Args:
            variable: of Keras; where several replicas train, the part of TensorFlow's variable on this device.
            gradient: the sum over devices.
            scalars: as `update_each` was given them.
            index: of the variable among those that the optimizer was built with.
        """
        raise NotImplementedError

    def update_each(self, gradients: Sequence[Tensor], variables: Sequence[Variable], scalars: Any) -> None:
        """Calls `update_one` for every variable, on every device.

        Args:
            gradients: one for each variable.
            variables: a part of those that the optimizer was built with.
            scalars: a structure of scalar tensors, handed on as it is.
        """
        indices = [self._built_with.index_of(variable) for variable in variables]
        if num_replicas() == 1:
            for variable, gradient, index in zip(variables, gradients, indices, strict=True):
                self.update_one(variable, gradient, scalars, index)
            return
        import tensorflow as tf

        def on_all(strategy, gradients, scalars):
            for variable, gradient, index in zip(variables, gradients, indices, strict=True):
                given = (gradient, scalars, index)
                strategy.extended.update(variable.value, self.update_one, args=given, group=False)

        tf.distribute.get_replica_context().merge_call(on_all, args=(gradients, scalars))

    def apply(self, grads: Sequence[Tensor], trainable_variables: Sequence[Variable] | None = None) -> None:
        """Keras' `apply`, by `update_all`.

        Args:
            grads: one for each variable; `None` leaves a variable as it is.
            trainable_variables: by default all that the optimizer was built with.

        Raises:
            ValueError: for variables that the optimizer was not built with, or without any gradient.
        """
        if len(grads) == 0:
            return
        if trainable_variables is not None and not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(list(trainable_variables))
        variables = self._built_with.variables if trainable_variables is None else trainable_variables
        pairs = [(grad, variable) for grad, variable in zip(grads, variables, strict=True) if grad is not None]
        _check_gradients(pairs, variables)
        gradients, updated = zip(*pairs, strict=True)
        if self.loss_scale_factor is not None:
            gradients = tuple(gradient / self.loss_scale_factor for gradient in gradients)
        self.update_all(gradients, updated, self.learning_rate)
        self._move_averages()
        for variable in updated:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        self.iterations.assign_add(1)

    def _move_averages(self) -> None:
        """Moves the averages of `use_ema` on as Keras does: the first step takes the weights as they are."""
        if not self.use_ema:
            return
        for variable, average in zip(self._built_with.variables, self._built_with.averages, strict=True):
            momentum = ops.cast(ops.not_equal(self.iterations, 0), variable.dtype) * self.ema_momentum
            average.assign(momentum * average + (1 - momentum) * variable)
            if self.ema_overwrite_frequency:
                is_due = ops.equal((self.iterations + 1) % self.ema_overwrite_frequency, 0)
                variable.assign(ops.where(is_due, average, variable))


class _BuiltVariables:
    """The variables that an optimizer was built with, and their averages, where Keras' tracking does not look."""

    def __init__(self, variables: Sequence[Variable], averages: Sequence[Variable]) -> None:
        self.variables, self.averages = tuple(variables), tuple(averages)
        self._indices = {id(variable): index for index, variable in enumerate(variables)}

    def index_of(self, variable: Variable) -> int:
        """The place of a variable; raises `ValueError` for another one."""
        if id(variable) not in self._indices:
            raise ValueError(
                "an optimizer updates the variables that it was built with.\n"
                f"Received: {variable}, another one. Make a new optimizer for other variables."
            )
        return self._indices[id(variable)]


def num_replicas() -> int:
    """Replicas of the TensorFlow strategy that runs now; 1 on other backends, whose compilers sum gradients."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def sum_over_replicas(gradients: Sequence[Tensor]) -> list:
    """Gradients added up over the replicas of TensorFlow's strategies."""
    if num_replicas() == 1:
        return list(gradients)
    import tensorflow as tf

    return tf.distribute.get_replica_context().all_reduce("SUM", list(gradients))


def _check_gradients(pairs: Sequence[tuple[Tensor, Variable]], variables: Sequence[Variable]) -> None:
    """Raises if no variable has a gradient, and warns if some have none."""
    if not pairs:
        raise ValueError(
            "a step needs a gradient of at least one variable.\n"
            f"Received: None for all {len(variables)}. Compute the loss from the model's outputs."
        )
    found = {id(variable) for _, variable in pairs}
    if missing := [variable.path for variable in variables if id(variable) not in found]:
        warnings.warn(f"Gradients do not exist for variables {missing}, which stay as they are.", stacklevel=4)


ACCUMULATOR_DTYPES = ("float32", "bfloat16")
LEFT_OUT = -1.0  # in place of a norm that is not finite


class GuardedOptimizer(GlobalStepOptimizer):
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
            check_share("layer_decay", layer_decay)
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
        gradients = [undo_cast(gradient) for gradient in sum_over_replicas(gradients)]
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
    def _one_at_a_time(self) -> Iterator[Callable[[Any], None]]:
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
        if has_fused_kernel(variable, accumulator):
            with self._one_at_a_time() as done:
                self._decay(variable, rate, index)
                done(tensorflow_sgd(variable, accumulator, scale_gradient(gradient, scale), rate, momentum))
            return
        gradient = scale_gradient(gradient, scale)
        self._decay(variable, rate, index)
        total = gradient + decay_accumulator(accumulator, momentum)
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
        if has_fused_kernel(variable, first, second):
            with self._one_at_a_time() as done:
                self._decay(variable, rate, index)
                gradient = scale_gradient(gradient, scale)
                rate = rate * correction
                done(tensorflow_adam(variable, first, second, gradient, rate, beta_1, beta_2, epsilon))
            return
        gradient = scale_gradient(gradient, scale)
        self._decay(variable, rate, index)
        mean = decay_accumulator(first, beta_1) + (1 - beta_1) * gradient
        square = decay_accumulator(second, beta_2) + (1 - beta_2) * ops.square(gradient)
        self.assign(first, ops.cast(mean, first.dtype))
        self.assign(second, ops.cast(square, second.dtype))
        step = rate * correction * mean / (ops.sqrt(square) + epsilon)
        self.assign_sub(variable, ops.cast(step, variable.dtype))


def value_at(rate: Rate, step: Tensor) -> Tensor:
    """The value of a schedule, or the number itself, at a step counted from 0."""
    return ops.cast(rate(step) if callable(rate) else rate, "float32")


class AdamWOfParts(AdamW):
    """AdamW with a clip for each part of a model, a decay by step, and weights whose rate is another.

    Args:
        learning_rate: as of `AdamW`.
        decay: a schedule or number.
        decays: says of a weight whether it decays.
        parts: gives a weight the name of its part, and of its rate: `(part, factor, kind)`. A factor multiplies the
            rate, which is `learning_rate` of the kind 0, `head_rate` of 1 and `last_rate` of 2.
        clip_norm: the largest norm of each part, by min(1, clip / (norm + 1e-6)).
        last_rate: by default that of heads.
        layer_decay: as of `AdamW`.
        head_rate: by default the rate.
    """

    def __init__(
        self,
        learning_rate: Rate,
        decay: Rate,
        decays: Callable[[Variable], bool],
        parts: Callable[[Variable], tuple[str, float, int]] = lambda variable: ("", 1.0, 0),
        clip_norm: float | None = None,
        last_rate: Rate | None = None,
        layer_decay: float | None = None,
        head_rate: Rate | None = None,
    ) -> None:
        super().__init__(learning_rate, layer_decay=layer_decay)
        self._decay_rate, self._decides, self._parts_by = decay, decays, parts
        self.clip_norm, self._head_rate, self._last_rate = clip_norm, head_rate, last_rate

    def build(self, variables: Sequence[Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        placed = [self._parts_by(variable) for variable in variables]
        self._parts = {part: number for number, part in enumerate(dict.fromkeys(part for part, _, _ in placed))}
        self._part = [self._parts[part] for part, _, _ in placed]
        self._kinds = [kind for _, _, kind in placed]
        self._multipliers = [each * factor for each, (_, factor, _) in zip(self._multipliers, placed, strict=True)]
        self._decaying = [self._decides(variable) for variable in variables]

    def update_all(self, gradients: Sequence[Tensor], variables: Sequence[Variable], learning_rate: Tensor) -> None:
        gradients = [undo_cast(gradient) for gradient in sum_over_replicas(gradients)]
        squares: list[Any] = [0.0] * len(self._parts)
        for gradient, variable in zip(gradients, variables, strict=True):
            squares[self._part[self._built_with.index_of(variable)]] += square_sum(gradient)
        norms = [ops.sqrt(ops.convert_to_tensor(each, "float32")) for each in squares]
        rate = ops.cast(learning_rate, "float32")
        head = rate if self._head_rate is None else value_at(self._head_rate, self.iterations)
        last = head if self._last_rate is None else value_at(self._last_rate, self.iterations)
        total = ops.sqrt(sum(squares))
        finite = ops.all(ops.isfinite(ops.stack([total, rate, ops.cast(head, "float32"), ops.cast(last, "float32")])))
        self.gradient_norm.assign(ops.where(finite, total, LEFT_OUT))
        clips = [1.0 if self.clip_norm is None else ops.minimum(1.0, self.clip_norm / (norm + 1e-6)) for norm in norms]
        scales = tuple(ops.where(finite, clip, 0.0) for clip in clips)
        rates = tuple(ops.where(finite, each, 0.0) for each in (rate, head, last))
        decay = value_at(self._decay_rate, self.iterations)
        self._last_update = None
        self.update_each(gradients, variables, (rates, scales, decay, self._scalars(rate, finite)))
        self._last_update = None

    def update_one(self, variable: Variable, gradient: Tensor, scalars: Any, index: int) -> None:
        rates, scales, decay, others = scalars
        rate = rates[self._kinds[index]]
        if self._decaying[index]:
            step = rate * self._multipliers[index] * decay
            self.assign_sub(variable, ops.cast(ops.cast(variable, "float32") * step, variable.dtype))
        super().update_one(variable, gradient, (rate, scales[self._part[index]], *others), index)


def _layout_of(variable: Variable) -> Any:
    """How a variable is sharded over several devices of JAX; `None` elsewhere."""
    sharding = getattr(variable.value, "sharding", None)
    return sharding if sharding is not None and len(sharding.device_set) > 1 else None


def _check_positive(name: str, value: Any, zero_too: bool = False) -> None:
    if value is None:
        return
    check_number(name, value)
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero_too):
        raise ArgumentError(f"`{name}` must be {'at least' if zero_too else 'above'} 0.\nReceived: {name}={value}.")


def _check_momentum(name: str, value: Any) -> None:
    check_number(name, value)
    if not 0 <= value < 1:
        raise ArgumentError(f"`{name}` must be in [0, 1).\nReceived: {name}={value}.")


def inner_optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
    """The optimizer that moves the weights, also where another one scales the loss for it."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def steps_of(optimizer: keras.optimizers.Optimizer) -> int:
    """Steps that an optimizer has made."""
    return int(ops.convert_to_numpy(optimizer.iterations))


def rate_at(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    """The learning rate of a step, counted from 0; without a schedule, the current one."""
    iterations = optimizer.iterations
    counts = isinstance(iterations, keras.Variable)  # not of an optimizer of Keras that accumulates gradients
    with keras.StatelessScope(state_mapping=[(iterations, ops.cast(step, iterations.dtype))] if counts else None):
        return float(ops.convert_to_numpy(optimizer.learning_rate))
