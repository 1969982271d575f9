"""How often a step is traced, which is most of the time until the first one is done."""

import keras
import numpy as np
import pytest
from conftest import make_tiny

import keras_vit
from keras_vit.model.replicated_model import _build_variables_first

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the others trace once by themselves")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("distilled", [False, True])
def test_step_is_traced_once(distilled, in_batches, monkeypatch):
    """TensorFlow traces a function in which variables are made, as those of optimizer and metrics, a second time."""
    traced = []
    model = make_tiny(num_layers=1, distilled=distilled)
    if distilled:
        model = keras_vit.Distiller(model, make_tiny(num_layers=1))
    compute_loss = type(model).compute_loss

    def counted(self, *args, **kwargs):
        traced.append(kwargs.get("training", True))
        return compute_loss(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "compute_loss", counted)
    model.compile(keras_vit.AdamW(1e-3, use_ema=True), LOSS, metrics=["accuracy"])
    images, labels = np.zeros((8, 20, 28, 3), "float32"), np.arange(8) % 5
    if in_batches:
        for start in (0, 4, 0, 4):
            model.train_on_batch(images[start : start + 4], labels[start : start + 4])
    else:
        model.fit(images, labels, batch_size=4, epochs=2, verbose=0)
    assert traced.count(True) == 1
    assert int(model.optimizer.iterations) == 4


def test_labels_that_do_not_fit_are_told_of_by_the_step():
    model = make_tiny(num_layers=1)
    model.compile("sgd", LOSS, metrics=["accuracy"])
    with pytest.raises(ValueError, match="ndim"):
        model.fit(np.zeros((4, 20, 28, 3), "float32"), np.zeros((4, 3), int), verbose=0)
    with pytest.raises(ValueError, match="ndim"):
        model.train_on_batch(np.zeros((4, 20, 28, 3), "float32"), np.zeros((4, 3), int))


def test_no_weight_is_moved_by_an_update():
    """TensorFlow moves one that lies in memory of NumPy, as some of a file do, at its first update: amid the step."""

    def addresses():
        return [np.from_dlpack(variable.value.read_value()).ctypes.data for variable in model.trainable_variables]

    def update(iterator):
        before = addresses()
        for variable in model.trainable_variables:
            variable.value.assign_add(np.zeros(variable.shape))
        moved.append(sum(new != old for old, new in zip(before, addresses(), strict=True)))

    model, moved = make_tiny(num_layers=6), []
    for step in (update, _build_variables_first(model, update)):
        for variable in model.trainable_variables:
            variable.assign(np.ones(variable.shape, "float32"))
        step(iter([()]))
    assert moved[0] > 0  # about one in four, whose address fits
    assert moved[1] == 0
