"""What is read of an optimizer is that of the one that moves the weights, at the step that is asked for."""

import keras
import numpy as np
import pytest

from keras_vit.training.optimizer_state import inner_optimizer, rate_at, steps_of
from keras_vit.training.optimizers import SGD
from keras_vit.training.schedules import WarmupCosine


@pytest.mark.parametrize("wrap", [lambda inner: inner, keras.optimizers.LossScaleOptimizer], ids=["plain", "scaled"])
def test_optimizer_that_moves_the_weights_is_found_with_its_steps(wrap):
    model, inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), SGD(0.1)
    model.compile(wrap(inner), "mse")
    model.fit(np.ones((6, 2)), np.ones((6, 1)), batch_size=2, verbose=0)
    assert inner_optimizer(model) is inner
    assert steps_of(inner) == 3


def test_rate_is_that_of_the_schedule_at_a_step_or_the_fixed_one():
    schedule = WarmupCosine(0.1, 20, 4)
    assert [rate_at(SGD(schedule), step) for step in (0, 2, 4)] == [float(schedule(step)) for step in (0, 2, 4)]
    assert rate_at(SGD(schedule), 4) == pytest.approx(0.1)  # the highest, after the warm-up
    assert rate_at(SGD(0.25), 7) == 0.25
