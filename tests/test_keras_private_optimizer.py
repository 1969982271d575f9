"""What is private in Keras' optimizers and used all the same; see `test_keras_private.py`."""

import types

import keras
import numpy as np
import pytest
from conftest import numpy
from keras import ops
from private_hooks import relies_on

from keras_vit.keras_private import HookedOptimizer

OVERRIDES = ("_clip_gradients", "_apply_weight_decay", "_backend_update_step", "_all_reduce_sum_gradients")


class Spy(HookedOptimizer):
    """Notes what Keras calls, in its order."""

    def __init__(self):
        super().__init__(0.5, weight_decay=0.1, global_clipnorm=1e-3, name="spy")
        self.calls, self.seen = [], []

    def update_all(self, gradients, variables, learning_rate):
        self.calls.append("update_all")
        self.seen.append((list(map(numpy, gradients)), list(map(numpy, variables)), float(learning_rate)))
        self.update_each(self.sum_over_replicas(gradients), variables, (learning_rate, "handed on"))

    def update_step(self, gradient, variable, learning_rate):
        self.calls.append(f"update_step {self.index_of(variable)} {learning_rate[1]}")


def noted(name):
    def override(self, *arguments):
        self.calls.append(name)
        return getattr(super(Spy, self), name)(*arguments)

    return override


for name in OVERRIDES:
    setattr(Spy, name, noted(name))


@pytest.mark.parametrize("apply", ["apply", "apply_gradients"])
def test_optimizer_is_called_in_the_order_that_it_relies_on(apply):
    """Clipping and decay come before the sum over replicas and do nothing; then one call sees all gradients."""
    variables = [keras.Variable(np.full((2,), 3.0, "float32")), keras.Variable(np.full((3,), 4.0, "float32"))]
    gradients = [np.full((2,), 5.0, "float32"), np.full((3,), 6.0, "float32")]
    spy = Spy()
    spy.build(variables)
    with relies_on("HookedOptimizer"):
        tensors = list(map(ops.convert_to_tensor, gradients))
        spy.apply_gradients(zip(tensors, variables, strict=True)) if apply == "apply_gradients" else spy.apply(tensors)
        before, update, after = OVERRIDES[:2], OVERRIDES[2], OVERRIDES[3]
        assert spy.calls == [*before, update, "update_all", after, "update_step 0 handed on", "update_step 1 handed on"]
        ((seen, values, rate),) = spy.seen
        assert rate == 0.5
        for found, expected in zip((*seen, *values), (*gradients, *map(numpy, variables)), strict=True):
            np.testing.assert_array_equal(found, expected)  # neither clipped nor decayed, before and after
        assert [numpy(variable)[0] for variable in variables] == [3, 4]
        assert int(numpy(spy.iterations)) == 1


def test_what_the_optimizer_overrides_is_there():
    """An override of what Keras has no more is called by nobody: it would clip and decay twice."""
    with relies_on("HookedOptimizer"):
        for name in (*OVERRIDES, "_get_variable_index"):
            assert callable(getattr(keras.optimizers.Optimizer, name))
        overridden = {name for name in vars(HookedOptimizer) if name.startswith("_") and not name.startswith("__")}
        assert overridden & set(dir(keras.optimizers.Optimizer)) == set(OVERRIDES)


def test_optimizer_knows_the_strategy_of_its_replicas():
    """With one replica; what several do, `tests/test_backends.py` and `tests/model/test_accumulation.py` show."""
    with relies_on("HookedOptimizer"):
        import tensorflow as tf

        spy = Spy()
        assert spy._distribution_strategy is tf.distribute.get_strategy()
        assert spy.num_replicas == 1
        spy._distribution_strategy = types.SimpleNamespace(num_replicas_in_sync=3)
        assert spy.num_replicas == 3
