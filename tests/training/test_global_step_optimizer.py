"""Our `apply` does what Keras' does, but for clipping and decay, which are the subclass's."""

import keras
import numpy as np
import pytest
from conftest import numpy
from keras import ops

from keras_vit.training.optimizers import GlobalStepOptimizer


class Descent(GlobalStepOptimizer):
    """Plain gradient descent, which notes what it is given."""

    def update_all(self, gradients, variables, learning_rate):
        self.seen = [float(numpy(gradient)[0]) for gradient in gradients]
        self.update_each(gradients, variables, (learning_rate,))

    def update_one(self, variable, gradient, scalars, index):
        (rate,) = scalars
        self.assign_sub(variable, gradient * rate)
        self.seen.append(index)


def variables():
    return [keras.Variable(np.full((n,), float(n), "float32")) for n in (2, 3)]


def gradients(step=0):
    return [ops.convert_to_tensor(np.full((n,), 0.25 * n + step, "float32")) for n in (2, 3)]


OPTIONS = [
    {},
    {"use_ema": True, "ema_momentum": 0.75},
    {"use_ema": True, "ema_momentum": 0.75, "ema_overwrite_frequency": 2},
    {"loss_scale_factor": 4.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "average", "overwritten", "scaled"])
def test_steps_and_state_are_those_of_keras_bit_for_bit(options):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.25])
    states = []
    for kind in (Descent, keras.optimizers.SGD):
        optimizer, weights = kind(schedule, name="descent", **options), variables()
        for step in range(3):
            optimizer.apply_gradients(zip(gradients(step), weights, strict=True))
        states.append([*map(numpy, weights), *map(numpy, optimizer.variables)])
        names = [variable.path for variable in optimizer.variables]
    assert len(states[0]) == len(states[1]) == len(names) + 2
    for ours, theirs in zip(*states, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("option", [{"global_clipnorm": 1e-3}, {"clipnorm": 1e-3}, {"weight_decay": 0.5}])
def test_keras_neither_clips_nor_decays(option):
    optimizer, weights = Descent(1.0, **option), variables()
    optimizer.apply(gradients(), weights)
    assert optimizer.seen == [0.5, 0.75, 0, 1]
    np.testing.assert_array_equal(numpy(weights[0]), [1.5] * 2)


def test_constraints_hold_after_a_step():
    weights = variables()
    weights[0].constraint = keras.constraints.NonNeg()
    optimizer = Descent(5.0)
    optimizer.apply(gradients(), weights)  # 2 - 5 * 0.5 is below 0
    np.testing.assert_array_equal(numpy(weights[0]), [0.0] * 2)


def test_variable_without_a_gradient_stays_with_a_warning():
    optimizer, weights = Descent(1.0), variables()
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([None, gradients()[1]], weights)
    assert optimizer.seen == [0.75, 1]
    np.testing.assert_array_equal(numpy(weights[0]), [2.0] * 2)
    with pytest.raises(ValueError, match="None for all 2"):
        optimizer.apply([None, None])


def test_other_variables_than_those_of_before_are_refused():
    optimizer = Descent(1.0)
    optimizer.build(variables())
    with pytest.raises(ValueError, match="built with"):
        optimizer.apply(gradients(), variables())
    optimizer.apply([])
    assert int(numpy(optimizer.iterations)) == 0
