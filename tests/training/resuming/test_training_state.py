"""What a run goes on with when its `fit` has code of its own: other callbacks, batches, counters and optimizers."""

import keras
import numpy as np
import pytest
from conftest import images, numpy

import keras_vit

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="`train_step` of TensorFlow")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
PIXELS, LABELS = images(24, 3), np.arange(24) % 2


class Stop(keras.callbacks.Callback):
    """Ends the process, as it were, after the fourth step of the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (1, 3):
            raise InterruptedError


def small(kind=keras.Model, **arguments):
    keras.utils.set_random_seed(3)
    tokens = keras.Input((3,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(4)(tokens))
    model = kind(tokens, keras.layers.Dense(2)(hidden))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), LOSS, metrics=["accuracy"], **arguments)
    return model


def fit(model, folder, *others, data=(PIXELS, LABELS), every_steps=1, **arguments):
    checkpoints = keras_vit.Checkpoints(folder, every_steps=every_steps)
    arguments = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0} | arguments
    try:
        model.fit(*data, callbacks=[*others, checkpoints], **arguments)
    finally:
        checkpoints.close()  # as whoever trains a model of Keras does after an error
    return model


def stopped(folder, make=small, *others, **arguments):
    with pytest.raises(InterruptedError):
        fit(make(), folder, *others, Stop(), **arguments)


def values(model):
    held = [*model.variables, *model.optimizer.variables, *getattr(model, "own", list)()]
    return [numpy(variable).tobytes() for variable in held]


class EachStep(keras.callbacks.Callback):
    """A schedule by steps, which counts them in a state of its own too."""

    def __init__(self):
        super().__init__()
        self.epochs = self.steps = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs += 1

    def on_train_batch_begin(self, batch, logs=None):
        self.steps += 1
        self.model.optimizer.learning_rate = 0.95 * float(self.model.optimizer.learning_rate)

    def get_state(self):
        return {"epochs": self.epochs, "steps": self.steps}

    def set_state(self, state):
        self.epochs, self.steps = state["epochs"], state["steps"]


def test_callbacks_that_move_the_rate_by_what_it_was_move_it_once(tmp_path):
    def callbacks():
        return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5), EachStep()]

    def run(folder, *more):
        schedule, counting = callbacks()
        checkpoints = keras_vit.Checkpoints(folder, every_steps=2, also=[counting])
        model = small()
        model.fit(
            *(PIXELS, LABELS),
            **{"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0},
            callbacks=[schedule, counting, *more, checkpoints],
        )
        return values(model), counting.get_state()

    with pytest.raises(InterruptedError):
        run(tmp_path / "run", Stop())
    assert run(tmp_path / "run") == run(tmp_path / "undisturbed")


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras', where data of unknown length end an epoch
def test_other_batches_within_an_epoch_are_refused_and_the_checkpoint_stays(tmp_path):
    import tensorflow as tf

    def batches(size):
        def drawn():
            yield from ((PIXELS[i : i + size], LABELS[i : i + size]) for i in range(0, 24, size))

        return (tf.data.Dataset.from_generator(drawn, output_signature=signature),)

    def placed(size):
        return tf.data.Dataset.from_tensor_slices((PIXELS, LABELS)).repeat().batch(size)

    signature = (tf.TensorSpec((None, 3)), tf.TensorSpec((None,), "int64"))
    drawn = tmp_path / "drawn"
    stopped(drawn, data=batches(4), batch_size=None)
    for size, said in ((3, "9 examples.*12 were used"), (12, "end before step 3")):
        with pytest.raises(ValueError, match=f"(?s)same size.*{said}"):
            fit(small(), drawn, data=batches(size), batch_size=None)
    with pytest.raises(ValueError, match="3 steps in an epoch, where step 3 of an unknown number of steps"):
        fit(small(), drawn, batch_size=8)
    with pytest.raises(ValueError, match="steps_per_execution=2, where step 3 is next"):
        fit(small(steps_per_execution=2), drawn, data=batches(4), batch_size=None)
    undisturbed = values(fit(small(), tmp_path / "whole", data=batches(4), batch_size=None))
    assert values(fit(small(), drawn, data=batches(4), batch_size=None)) == undisturbed

    stopped(tmp_path / "arrays")
    with pytest.raises(ValueError, match="3 steps in an epoch, where step 3 of 6 steps"):
        fit(small(), tmp_path / "arrays", batch_size=8)

    steps = {"batch_size": None, "steps_per_epoch": 6}
    stopped(tmp_path / "placed", data=(placed(4),), **steps)
    for size in (3, 6):
        checkpoints = keras_vit.Checkpoints(tmp_path / "placed")
        data = placed(size).skip(checkpoints.step)
        with pytest.raises(ValueError, match=f"{size} examples in a step.*batch_size=4"):
            small().fit(data, epochs=2, steps_per_epoch=6, shuffle=False, verbose=0, callbacks=[checkpoints])
    assert keras_vit.Checkpoints(tmp_path / "placed").step == 9


def test_fewer_steps_at_once_go_on_bit_for_bit(tmp_path):
    def model(count):
        return lambda: small(steps_per_execution=count)

    with pytest.raises(InterruptedError):
        fit(model(3)(), tmp_path / "run", LaterStop(), every_steps=3)
    whole = values(fit(model(3)(), tmp_path / "whole", every_steps=3))
    assert values(fit(model(1)(), tmp_path / "run")) == whole


class LaterStop(Stop):
    """Ends it in the second half of the second epoch, by three steps at once."""

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (1, 5):
            raise InterruptedError


class Counting(keras.Model):
    """With counters of its own: of Keras, of TensorFlow, and a metric that `metrics` does not name."""

    def __init__(self, *args, **kwargs):
        import tensorflow as tf

        super().__init__(*args, **kwargs)
        self.weight = self.add_weight(name="seen", shape=(), dtype="int32", initializer="zeros", trainable=False)
        self.others = {"tensorflow": tf.Variable(0.0), "metric": keras.metrics.Sum(name="hidden")}

    @property
    def metrics(self):
        return [metric for metric in super().metrics if metric is not self.others["metric"]]

    def own(self):
        return [self.others["tensorflow"], *self.others["metric"].variables]

    def train_step(self, data):
        self.weight.assign_add(1)
        self.others["tensorflow"].assign_add(1.0)
        self.others["metric"].update_state(1.0)
        return super().train_step(data)


class Late(keras.Model):
    """Makes its counter in the first step."""

    late = None

    def train_step(self, data):
        if self.late is None:
            self.late = keras.Variable(0, dtype="int32", trainable=False, name="late")
        return super().train_step(data)


class Pair(keras.Model):
    """Two models against each other, each with its own optimizer."""

    def __init__(self, is_built):
        super().__init__()
        keras.utils.set_random_seed(1)
        self.maker = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
        self.judge = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        self.maker_optimizer, self.judge_optimizer = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02)
        self.compile()
        if is_built:
            self.maker_optimizer.build(self.maker.trainable_variables)
            self.judge_optimizer.build(self.judge.trainable_variables)

    def own(self):
        return [*self.maker_optimizer.variables, *self.judge_optimizer.variables]

    def train_step(self, data):
        import tensorflow as tf

        pixels, losses = data[0], {}
        for model, optimizer, sign in ((self.judge, self.judge_optimizer, 1), (self.maker, self.maker_optimizer, -1)):
            with tf.GradientTape() as tape:
                loss = sign * keras.ops.mean(self.judge(self.maker(pixels)) - self.judge(pixels))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            losses["judge_loss" if model is self.judge else "maker_loss"] = loss
        return losses  # which are no metrics; of none at all Keras' `fit` on TensorFlow ends in an error


@pytest.mark.parametrize("make", [lambda: small(Counting), lambda: Pair(True)], ids=["counters", "two optimizers"])
def test_what_a_model_holds_of_its_own_goes_on(tmp_path, make):
    stopped(tmp_path / "run", make)
    assert values(fit(make(), tmp_path / "run")) == values(fit(make(), tmp_path / "whole"))
    with pytest.raises(ValueError, match="build them before `fit`"):
        fit(small(), tmp_path / "run")


class StopAtEnd(keras.callbacks.Callback):
    """Ends the process, as it were, between the last step of the second epoch and its end."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise InterruptedError


def test_epoch_whose_steps_were_all_made_says_what_the_last_one_said(tmp_path):
    """Its losses are no metrics, and a callback may look for them."""
    with pytest.raises(InterruptedError):
        fit(Pair(True), tmp_path / "run", StopAtEnd())
    whole = fit(Pair(True), tmp_path / "whole").history.history
    again = fit(Pair(True), tmp_path / "run").history.history
    assert sorted(whole) == ["judge_loss", "maker_loss"]
    assert again == {name: values[1:] for name, values in whole.items()}


@pytest.mark.parametrize(
    ("make", "named"),
    [(lambda: small(Late), "late"), (lambda: Pair(False), "judge_optimizer, maker_optimizer|maker_optimizer, judge")],
    ids=["counter", "optimizers"],
)
def test_what_the_first_step_makes_is_refused_after_it(tmp_path, make, named):
    with pytest.raises(ValueError, match=f"before `fit`(?s:.*)({named})"):
        fit(make(), tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_counter_that_was_added_since_is_named(tmp_path):
    stopped(tmp_path / "run")
    with pytest.raises(ValueError, match=r"not in the file: counting\w*/seen int32 \(\)"):
        fit(small(Counting), tmp_path / "run")
