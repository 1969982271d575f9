"""A training that can be stopped anywhere: the child processes of the tests of checkpoints.

`python stopped_training.py FOLDER CASES` runs every case of a JSON list. A case is one training undisturbed, and one
that is killed at each step named and started again. All that both came to is compared bit for bit. Each training is a
process of its own, forked off before TensorFlow or JAX computes, so that they are imported once.
"""

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np
from forks import forked

import keras_vit

EPOCHS, STEPS = 3, 8  # epochs, and steps of each


class KillAt(keras.callbacks.Callback):
    """Ends the process by SIGKILL, `delay` seconds after step `step` (from 0) has begun."""

    def __init__(self, step, delay=0.0):
        super().__init__()
        self.step, self.delay, self.seen, self.began = step, delay, 0, None

    def on_epoch_begin(self, epoch, logs=None):
        self.began = epoch * STEPS

    def on_train_batch_begin(self, batch, logs=None):
        if self.began + batch + self.model.steps_per_execution > self.step:
            threading.Thread(target=self.kill, daemon=True).start()
            self.step = 10**9

    def kill(self):
        time.sleep(self.delay)
        os.kill(os.getpid(), signal.SIGKILL)


class Log(keras.callbacks.Callback):
    """Writes the logs of each epoch as a line."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        with open(self.path, "a") as file:
            file.write(json.dumps([epoch, logs]) + "\n")


def data():
    """64 grey images of 12 x 20 in 4 classes, and 16 of them to validate with."""
    rng = np.random.default_rng(0)
    labels = np.arange(64) % 4
    images = (rng.integers(0, 120, (64, 12, 20, 1)) + 30 * labels[:, None, None, None]).astype("uint8")
    return {"train": (images, labels), "validation": (images[:16], labels[:16])}


def scope_of(kind):
    if kind != "mirrored":
        return contextlib.nullcontext()
    import tensorflow as tf

    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope()


def make_model(kind):
    """With dropout, stochastic depth and patch dropout, an average, and a schedule."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_float16" if kind == "float16" else "float32")
    config = keras_vit.ViTConfig(patch_size=4, hidden_size=12, num_layers=1, num_heads=3, mlp_dim=17, dropout_rate=0.1)
    config = dataclasses.replace(config, stochastic_depth_rate=0.2, patch_dropout_rate=0.25)
    schedule = keras_vit.WarmupCosine(0.02, EPOCHS * STEPS, 4)
    kinds = {"use_ema": True, "ema_momentum": 0.9, "global_clipnorm": 1.0}
    with scope_of(kind):
        model = keras_vit.build(config, input_shape=(12, 20, 1), classes=4)
        optimizer = keras_vit.SGD(schedule, **kinds) if kind == "sgd" else keras_vit.AdamW(schedule, **kinds)
        model.compile(
            optimizer,
            keras.losses.CategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.CategoricalAccuracy(name="accuracy")],
            jit_compile=kind == "jit",
            steps_per_execution=4 if kind == "several" else 1,
        )
    return model


def train(folder, kind="plain", before=(), every_steps=3, **arguments):
    """One `fit` with checkpoints; gives the model, what Keras' own callbacks remember, and what it logged."""
    model = make_model(kind)
    log = f"{folder}.log"
    best = keras.callbacks.ModelCheckpoint(
        f"{folder}.weights.h5", "val_loss", save_best_only=True, save_weights_only=True
    )
    checkpoints = keras_vit.Checkpoints(folder, every_steps=every_steps, also=[best], **arguments)
    train_set = keras_vit.load_dataset(
        *(data(), "train"),
        **{"batch_size": 8, "preprocessing": model.preprocessing, "training": True, "labels": "one_hot", "seed": 3},
        augmentation=keras_vit.Augmentation(crop="inception", mixup_alpha=0.2) if kind == "plain" else None,
        start_step=checkpoints.step,
    )
    validation = keras_vit.load_dataset(
        data(), "validation", batch_size=8, preprocessing=model.preprocessing, labels="one_hot"
    )
    callbacks = [keras_vit.NonFiniteGuard(), keras_vit.StepFacts(), *before, best, Log(log), checkpoints]
    fitting = {"epochs": EPOCHS, "steps_per_epoch": STEPS, "shuffle": False, "verbose": 0}
    model.fit(train_set, validation_data=validation, callbacks=callbacks, **fitting)
    return model, best, log


def state_of(model):
    """`{name: values}` of all that training changes."""
    variables = [*model.variables, *model.optimizer.variables]
    return {f"{number:03d}": keras.ops.convert_to_numpy(variable) for number, variable in enumerate(variables)}


def last_rows(path):
    """Of each epoch its last line; that of one which a kill has cut off may stand there twice."""
    lines = Path(path).read_text().splitlines()
    return list({json.loads(line)[0]: line for line in lines}.values())


def train_and_write(folder, out, kind, kill_at=None, delay=0.0):
    before = [] if kill_at is None else [KillAt(kill_at, delay)]
    model, best, log = train(folder, kind, before)
    np.savez(out, best=np.array(best.best), rows=np.array(last_rows(log)), **state_of(model))


def differing(one, other):
    """Names of arrays that are not equal bit for bit."""
    with np.load(one) as first, np.load(other) as second:
        names = sorted({*first.files, *second.files})
        equal = {name: first[name].tobytes() == second[name].tobytes() for name in {*first.files} & {*second.files}}
        return [name for name in names if not equal.get(name)]


def run_case(folder, number, case):
    """A case `{"kind": ..., "kills": [[step, delay], ...]}`, with what came of it."""
    reference = folder / f"{case['kind']}.npz"
    if not reference.exists():
        assert forked(train_and_write, folder / case["kind"], reference, case["kind"]) == 0
    place, out = folder / f"case-{number}", folder / f"case-{number}.npz"
    codes = [forked(train_and_write, place, out, case["kind"], *kill) for kill in case["kills"]]
    codes.append(forked(train_and_write, place, out, case["kind"]))
    return case | {"codes": codes, "differing": differing(reference, out) if out.exists() else ["all"]}


if __name__ == "__main__":
    folder, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    for number, case in enumerate(cases):
        print(json.dumps(run_case(folder, number, case)), flush=True)
