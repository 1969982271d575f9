"""`Checkpoints` in a user's own `fit`: bitwise the same run, whatever stopped it (RELIABILITY T4, T6, T8-T11)."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib

import keras
import numpy as np
import pytest
from conftest import ROOT, images, numpy
from stopped_training import EPOCHS, STEPS, last_rows, state_of, train

import keras_vit
from keras_vit.training.checkpoints import StopSignals
from keras_vit.training.resuming.checkpoint_folder import CheckpointFolder
from keras_vit.training.resuming.variables import StateReader, restore

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Signal(keras.callbacks.Callback):
    """Sends this process a signal in a step, or in the validation of an epoch."""

    def __init__(self, number, epoch, batch=None):
        super().__init__()
        self.number, self.epoch, self.batch, self.now = number, epoch, batch, None

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.now, batch) == (self.epoch, self.batch):
            os.kill(os.getpid(), self.number)

    def on_test_batch_begin(self, batch, logs=None):
        if self.batch is None and self.now == self.epoch:
            os.kill(os.getpid(), self.number)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    model, best, log = train(tmp_path_factory.mktemp("undisturbed") / "run", "plain")
    return state_of(model), best.best, last_rows(log)


def test_run_stopped_by_signals_in_a_step_and_in_a_validation_goes_on_bit_for_bit(undisturbed, tmp_path):  # T9, T11
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    folder = tmp_path / "run"
    with pytest.raises(SystemExit) as left:
        train(folder, "plain", [Signal(signal.SIGTERM, epoch=0, batch=4)], every_steps=None)
    assert left.value.code == 143
    assert keras_vit.Checkpoints(folder).step == 5  # the step was finished
    with pytest.raises(KeyboardInterrupt):
        train(folder, "plain", [Signal(signal.SIGINT, epoch=1)], every_steps=None)
    assert keras_vit.Checkpoints(folder).step == 2 * STEPS
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    model, best, log = train(folder, "plain", every_steps=None)
    state, best_loss, rows = undisturbed
    found = state_of(model)
    assert [name for name in state if state[name].tobytes() != found[name].tobytes()] == []
    assert best.best == best_loss
    assert last_rows(log) == rows
    assert len(rows) == EPOCHS


def test_signals_of_a_run_that_failed_do_not_count_in_the_next_one():
    """Two signals end the process at once: those of two runs do not, though an earlier one still listens."""
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    StopSignals().listen()
    for number in (signal.SIGTERM, signal.SIGINT):
        signals = StopSignals()
        signals.listen()
        os.kill(os.getpid(), number)
        time.sleep(0.1)  # for the thread that counts them
        assert signals.received == number
        signals.close()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def small():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), LOSS, metrics=["accuracy"])
    return model


def fit(model, checkpoints, *others, epochs=2, **arguments):
    arguments |= {"batch_size": 4, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(images(12, 3), np.arange(12) % 2, callbacks=[*others, checkpoints], **arguments)


def test_finished_training_is_taken_up_at_its_end(tmp_path):
    model = small()
    fit(model, keras_vit.Checkpoints(tmp_path / "run"))
    again = small()
    assert fit(again, keras_vit.Checkpoints(tmp_path / "run")).history == {}
    for one, other in zip(model.variables, again.variables, strict=True):
        np.testing.assert_array_equal(numpy(one), numpy(other))
    assert fit(again, keras_vit.Checkpoints(tmp_path / "run"), epochs=3).epoch == [2]
    assert fit(again, keras_vit.Checkpoints(tmp_path / "other"), epochs=1).epoch == [0]  # `fit` begins as ever


@pytest.mark.parametrize(
    "fingerprint", [[1], "text", {"a": float("nan")}, {"x": np.float32(0.1)}, {"path": ROOT}], ids=str
)
def test_fingerprint_with_which_no_run_could_go_on_is_refused_at_once(tmp_path, fingerprint):
    with pytest.raises(TypeError, match="`fingerprint`"):
        keras_vit.Checkpoints(tmp_path, fingerprint=fingerprint)


def test_wrong_callbacks_and_folders_are_named(tmp_path):
    for also in ([1], 1):
        with pytest.raises(TypeError, match="`also`"):
            keras_vit.Checkpoints(tmp_path, also=also)
    stopping = keras.callbacks.EarlyStopping(restore_best_weights=True)
    with pytest.raises(ValueError, match="restore_best_weights=True"):
        keras_vit.Checkpoints(tmp_path, also=[stopping])
    assert len(keras_vit.Checkpoints(tmp_path, also=keras.callbacks.TerminateOnNaN()).also) == 1
    with pytest.raises(ValueError, match="path"):
        keras_vit.Checkpoints("")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file"):
        fit(small(), keras_vit.Checkpoints(tmp_path / "file"))


def test_write_that_fails_after_going_on_names_the_checkpoint_it_went_on_from(tmp_path, monkeypatch):
    fit(small(), keras_vit.Checkpoints(tmp_path), epochs=1)
    again = keras_vit.Checkpoints(tmp_path)
    assert again.path is not None

    def save(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(again._folder, "save", save)
    with pytest.warns(UserWarning, match="No space left on device.*step-"):
        fit(small(), again, epochs=2)


def test_other_model_fingerprint_and_place_in_the_data_are_refused(tmp_path):
    fit(small(), keras_vit.Checkpoints(tmp_path, fingerprint={"seed": 0, "sizes": (1, 2)}))
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5), keras.layers.Dense(2)])
    other.compile("sgd", LOSS)
    with pytest.raises(ValueError, match=r"\(3, 4\)"):
        fit(other, keras_vit.Checkpoints(tmp_path))
    with pytest.raises(ValueError, match="seed: 0 before, 1 now"):
        fit(small(), keras_vit.Checkpoints(tmp_path, fingerprint={"seed": 1, "sizes": (1, 2)}))
    model = small()
    model.data_start_step = 5
    with pytest.raises(ValueError, match="step 5, a checkpoint of step 6"):
        fit(model, keras_vit.Checkpoints(tmp_path))
    fit(small(), keras_vit.Checkpoints(tmp_path, fingerprint={"seed": 0, "sizes": (1, 2)}))


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise InterruptedError


def test_arrays_go_on_where_they_were_in_their_epoch(tmp_path):
    """Their first batches are drawn and left out, since nothing else places them."""
    undisturbed, model = small(), small()
    fit(undisturbed, keras_vit.Checkpoints(tmp_path / "undisturbed"))
    with pytest.raises(InterruptedError):
        model.fit(
            *(images(12, 3), np.arange(12) % 2),
            **{"batch_size": 4, "shuffle": False, "verbose": 0, "epochs": 2},
            callbacks=[keras_vit.Checkpoints(tmp_path / "run", every_steps=2), Stop()],
        )
    again = small()
    history = fit(again, keras_vit.Checkpoints(tmp_path / "run"))
    assert history.epoch == [0, 1]
    for one, other in zip(undisturbed.variables, again.variables, strict=True):
        np.testing.assert_array_equal(numpy(one), numpy(other))


class Spoil(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.layers[0].bias.assign([np.nan] * 4)


def test_state_that_is_not_finite_is_never_written(tmp_path):  # T4, with an optimizer that guards nothing
    model, checkpoints = small(), keras_vit.Checkpoints(tmp_path)
    with pytest.warns(UserWarning, match="step 6 in .* not finite.*step-0"):
        fit(model, checkpoints, Spoil())
    assert keras_vit.Checkpoints(tmp_path).step == 3


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"every_minutes": 0}, ValueError), ({"every_steps": 0}, ValueError), ({"keep": 1.5}, TypeError)],
)
def test_wrong_numbers_are_refused(tmp_path, arguments, error):
    with pytest.raises(error, match=next(iter(arguments))):
        keras_vit.Checkpoints(tmp_path, **arguments)


class Fail(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        raise OSError("the photos are gone")


def test_error_in_fit_lets_signals_and_folder_go(tmp_path):
    model = keras_vit.build(
        keras_vit.ViTConfig(patch_size=4, hidden_size=12, num_layers=1, num_heads=3, mlp_dim=17),
        input_shape=(12, 20, 1),
        classes=2,
    )
    model.compile(keras_vit.SGD(0.1), LOSS)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    for _ in range(2):  # the second would find the folder taken
        with pytest.raises(OSError, match="the photos are gone"):
            model.fit(images(4, 12, 20, 1), np.zeros(4), verbose=0, callbacks=[keras_vit.Checkpoints(tmp_path), Fail()])
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_signals_after_a_fit_that_failed_go_to_the_earlier_handlers(tmp_path):
    """Keras' own models call no callback when `fit` fails."""
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(OSError, match="the photos are gone"):
        fit(small(), keras_vit.Checkpoints(tmp_path), Fail())
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_second_signal_ends_the_process_within_a_step():  # T9
    code = f"""
import hashlib, os, signal, sys, time, threading, types
package = sys.modules["keras_vit"] = types.ModuleType("keras_vit")  # without its public names, which need Keras
package.__path__ = [{str(ROOT / "keras_vit")!r}]
from keras_vit.training.checkpoints import StopSignals
signals = StopSignals()
signals.listen()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.01)
print(signals.received, flush=True)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)  # some 10 minutes outside of Python, as a step
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (143, "15\n"), done.stderr


def sharded_and_back(folder):
    """On devices of JAX: a state saved sharded is read whole, and one saved whole is read sharded."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = jax.devices()
    mesh = Mesh(np.array(devices).reshape(-1), ("data",))
    shapes = {"rows": ((8, 6), ("data",)), "columns": ((3, 12), (None, "data")), "whole": ((5,), ()), "one": ((), ())}
    values = {
        name: np.random.default_rng(0).normal(size=shape).astype("float32") for name, (shape, _) in shapes.items()
    }

    def variables(is_sharded, filled):
        made = []
        for name, (shape, spec) in shapes.items():
            layout = NamedSharding(mesh, PartitionSpec(*spec)) if is_sharded else None
            value = values[name] if filled else np.zeros(shape, "float32")
            made.append(keras.Variable(value, **({"layout": layout} if is_sharded else {})))
        return made

    found = {"devices": len(devices)}
    for before, after in ((True, False), (False, True), (True, True)):
        place = CheckpointFolder(folder / f"{before}-{after}")
        saved, given = variables(before, True), variables(after, False)
        pieces = list(StateReader().shards_of("model", saved))
        place.save(pieces, {"step": 1, "epoch": 0})
        restore(place.newest(), "model", given)
        same = [numpy(one).tobytes() == values[name].tobytes() for one, name in zip(given, shapes, strict=True)]
        kept = [
            one.value.sharding == other.value.sharding
            for one, other in zip(given, variables(after, False), strict=True)
        ]
        found[f"{before}-{after}"] = [len(pieces), all(same), all(kept)]
    return found


def sharded_here():
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        return sharded_and_back(Path(folder))


@pytest.mark.elsewhere("jax", "sharded_here")
def test_state_saved_sharded_is_read_whole_and_the_other_way(found):
    parts = 2 * found.pop("devices") + 2  # of two variables that are sharded and two that are not
    assert found == {"True-False": [parts, True, True], "False-True": [4, True, True], "True-True": [parts, True, True]}


def views_and_donations():
    """What was taken of arrays that later steps are given to write into, on one device and on all: (before, later)."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("data",))
    layouts = [{}, *[{"layout": NamedSharding(mesh, PartitionSpec(*axes))} for axes in ((), ("data",))]]
    step = jax.jit(lambda values: [3 * value + 1 for value in values], donate_argnums=0)
    variables = [
        keras.Variable(np.arange(16 * width, dtype="float32").reshape(16, width), dtype=dtype, **layout)
        for width in (1, 40_000)
        for dtype in ("float32", "bfloat16")
        for layout in layouts
    ]
    for variable, value in zip(variables, step([each.value for each in variables]), strict=True):
        variable.assign(value)  # of XLA's own making, as in training
    taken = [piece.array for piece in StateReader().shards_of("model", variables)]
    before = [zlib.crc32(array.tobytes()) for array in taken]
    for _ in range(3):
        for variable, value in zip(variables, step([each.value for each in variables]), strict=True):
            variable.assign(value)
    return before, [zlib.crc32(array.tobytes()) for array in taken]


@pytest.mark.elsewhere("jax", "views_and_donations")
def test_what_was_taken_stays_when_a_step_may_write_into_its_place(found):
    before, later = found
    assert before == later
    assert len(before) >= 12


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_20_random_pairs_of_kills_are_resumed_bit_for_bit(tmp_path, backend):  # T6
    rng = random.Random(12)
    kinds = {"plain": 6, "sgd": 4, "float16": 3, "mirrored": 2, "several": 3, "jit": 2}
    kinds = kinds if backend == "tensorflow" else {"jax": 1}
    cases = []
    for kind in [kind for kind, count in kinds.items() for _ in range(count)]:
        steps = sorted(rng.sample(range(1, EPOCHS * STEPS), 2))
        cases.append({"kind": kind, "kills": [[step, round(rng.uniform(0, 0.05), 4)] for step in steps]})
    environment = os.environ | {
        "KERAS_BACKEND": backend,
        "PYTHONPATH": f"{ROOT}:{ROOT}/tests",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [
        sys.executable,
        str(ROOT / "tests" / "training" / "stopped_training.py"),
        str(tmp_path),
        json.dumps(cases),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [{"kind": case["kind"], "kills": case["kills"]} for case in found] == cases
    assert [case for case in found if case["differing"] or case["codes"] != [-9, -9, 0]] == []
