"""A step over micro-batches is the step of the whole batch: on both backends and under XLA; on several devices in
`test_mirrored.py`."""

import functools

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, randomise, tiny_config

import keras_vit
from keras_vit.model.training_step import check_accumulation
from keras_vit.training.optimizers import SGD, AdamW
from keras_vit.training.schedules import WarmupCosine

TOLERANCE = 1e-6  # float32 sums in another order, over 3 steps
BATCH, CLASSES = 8, 7
pytestmark = pytest.mark.skipif(keras.backend.backend() == "torch", reason="TensorFlow and JAX only")


def optimizer_of(name):
    if name == "sgd":
        return SGD(WarmupCosine(0.1, 4, 1), global_clipnorm=0.5, use_ema=True, ema_momentum=0.9)
    return AdamW(WarmupCosine(0.01, 4, 1), global_clipnorm=0.5, weight_decay=0.1, epsilon=1e-3)


def train(steps, optimizer="sgd", weights=None, batch=BATCH, count=None, **arguments):
    """Three steps, or all of `count` images: the weights after them, and the history."""
    count = count or 3 * batch
    model = randomise(keras_vit.build(tiny_config(num_layers=1), input_shape=(20, 28, 3), classes=CLASSES))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer_of(optimizer),
        loss,
        metrics=["accuracy"],
        accumulation_steps=steps,
        **arguments,
    )
    labels = np.arange(count) % CLASSES
    history = model.fit(
        images(count, 20, 28, 3), labels, batch, sample_weight=weights, shuffle=False, verbose=0
    ).history
    state = [*model.trainable_variables, *model.optimizer.variables]
    return [numpy(v).astype("float64") for v in state], history


def furthest(found, expected):
    """The largest difference of a weight, or of anything in the optimizer or the history by its size if above 1."""
    pairs = [
        *zip(found[0], expected[0], strict=True),
        *((found[1][key][0], expected[1][key][0]) for key in expected[1]),
    ]
    return float(max((abs(a - b) / np.maximum(abs(b), 1)).max() for a, b in pairs))


@functools.cache
def whole(optimizer="sgd", count=13):
    """One of the whole batches: of 13 images, one of 8 and one of 5."""
    return train(1, optimizer, count=count)


@pytest.mark.parametrize(
    ("steps", "optimizer", "arguments"),
    [
        (4, "sgd", {}),
        (4, "sgd", {"jit_compile": True}),
        (4, "sgd", {"run_eagerly": True}),
        (2, "adamw", {}),
        pytest.param(2, "sgd", {}, marks=pytest.mark.slow),
        pytest.param(4, "adamw", {}, marks=pytest.mark.slow),
    ],
)
def test_micro_batches_train_as_the_whole_batch_even_and_uneven(steps, optimizer, arguments):
    """Batches of 8 and 5, in 2 or 4 parts."""
    assert furthest(train(steps, optimizer, count=13, **arguments), whole(optimizer)) < TOLERANCE


@pytest.mark.parametrize(("steps", "count"), [(4, 13), (8, 3)])
def test_sample_weights_count_as_in_the_whole_batch(steps, count):
    """Also where an uneven batch is smaller than the number of its parts."""
    weights = np.random.default_rng(2).uniform(0, 3, count)
    batch = min(count, BATCH)
    weighed = train(1, weights=weights, batch=batch, count=count)
    assert furthest(train(steps, weights=weights, batch=batch, count=count), weighed) < TOLERANCE
    assert count < BATCH or furthest(whole(), weighed) > 1e-3


def test_dropout_draws_anew_for_each_micro_batch():
    """Twice the same image: with one mask for both parts their predictions would be equal."""
    model = keras_vit.build(tiny_config(dropout_rate=0.5, num_layers=1), input_shape=(20, 28, 3), classes=CLASSES)
    randomise(model)
    model.compile(optimizer_of("sgd"), "mse", metrics=[Spread()], accumulation_steps=2)
    model.fit(np.repeat(images(1, 20, 28, 3), 2, 0), np.zeros((2, CLASSES)), 2, verbose=0)
    assert float(numpy(model.metrics[1].metrics[0].spread)) > 1e-3


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX draws anew for each part")
def test_micro_batches_drop_what_the_whole_batch_drops():
    found = []
    for steps in (1, 2):
        keras.utils.set_random_seed(3)
        model = keras_vit.build(tiny_config(dropout_rate=0.5, num_layers=1), input_shape=(20, 28, 3), classes=CLASSES)
        randomise(model)
        model.compile(keras.optimizers.SGD(0.1), "mse", accumulation_steps=steps)
        model.fit(images(4, 20, 28, 3), np.zeros((4, CLASSES)), 4, epochs=2, verbose=0, shuffle=False)
        found.append(np.concatenate([numpy(weight).ravel() for weight in model.weights]))
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)


@keras.saving.register_keras_serializable("tests")
class Spread(keras.metrics.Metric):
    """How far the first two predictions of a batch are apart."""

    def __init__(self, name="spread"):
        super().__init__(name=name)
        self.spread = self.add_variable((), initializer="zeros", name="spread")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.spread.assign(keras.ops.max(keras.ops.abs(y_pred[0] - y_pred[1])))

    def result(self):
        return self.spread.value

    def reset_state(self):
        """Kept for the test to read."""


def test_regularisers_count_once_in_an_uneven_batch():
    trained = []
    for steps in (1, 4):
        model = make_tiny(num_layers=1)
        model.get_layer("head").kernel.regularizer = keras.regularizers.L2(0.1)
        assert len(model.losses) == 1
        model.compile(keras.optimizers.SGD(0.1), "mse", accumulation_steps=steps)
        history = model.fit(images(5, 20, 28, 3), np.zeros((5, CLASSES)), 8, verbose=0).history
        trained.append([numpy(weight) for weight in model.weights] + [np.array(history["loss"])])
    assert max(np.abs(one - other).max() for one, other in zip(*trained, strict=True)) < TOLERANCE


def test_an_optimizer_that_accumulates_by_itself_is_refused():
    theirs = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
    model = make_tiny()
    with pytest.raises(ValueError, match="gradient_accumulation_steps=4"):
        model.compile(theirs, "mse", accumulation_steps=2)
    model.compile(theirs, "mse")


class Unweighed(keras.losses.Loss):
    """A mean over what it is given, which nobody else weighs."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return keras.ops.mean(keras.ops.square(y_true - y_pred))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (keras.losses.MeanSquaredError(reduction="sum"), "reduction"),
        (keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"), "reduction"),
        (keras.losses.SparseCategoricalCrossentropy(ignore_class=3), "ignore_class=3"),
        (Unweighed(), "__call__"),
    ],
)
def test_a_loss_that_is_no_weighed_mean_over_the_batch_is_refused(loss, words):
    with pytest.raises(ValueError, match=words):
        check_accumulation(2, None, [loss])
    check_accumulation(1, None, [loss])


@pytest.mark.parametrize(("steps", "error"), [(0, ValueError), (2.0, TypeError), (True, TypeError)])
def test_steps_that_are_no_positive_int_are_refused(steps, error):
    with pytest.raises(error, match="`accumulation_steps`"):
        make_tiny().compile("sgd", "mse", accumulation_steps=steps)


def test_a_saved_model_goes_on_as_it_was_compiled(tmp_path):
    data = (images(8, 20, 28, 3), np.zeros((8, CLASSES)))
    model = make_tiny(num_layers=1)
    model.compile(optimizer_of("adamw"), "mse", accumulation_steps=2)
    model.fit(*data, 4, verbose=0, shuffle=False)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.accumulation_steps == 2
    for each in (model, again):
        each.fit(*data, 4, verbose=0, shuffle=False)
    for ours, theirs in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(theirs))


def micro_batches_against_the_whole():
    return furthest(train(4, "adamw", count=21), train(1, "adamw", count=21))  # whose last batch is uneven


@pytest.mark.elsewhere("jax", "micro_batches_against_the_whole")
def test_micro_batches_on_jax_train_as_the_whole_batch(found):
    assert found < TOLERANCE
