"""How often a step is traced, which is most of the time until the first one is done."""

import keras
import numpy as np
import pytest
from conftest import make_tiny

import keras_vit

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
