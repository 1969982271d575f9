"""Training on one device and on several logical CPUs, compared: what the tests of strategies have in common.

`python mirrored.py FILE PRECISION...` runs the whole matrix for these precisions, on 2, 3 and 4 devices, and writes
the deviations; without a precision every number of images from 1 to 33.
"""

import contextlib
import functools
import itertools
import json
import sys
import time
from pathlib import Path

import keras
import numpy as np

import keras_vit

CLASSES, BATCH, STEPS = 5, 8, 20
SHAPE = (12, 20, 3)
# Of patches, branches and units; the masks of an image must be those that one device draws for it.
RANDOM = {"patch_dropout_rate": 0.4, "stochastic_depth_rate": 0.3}
# Images of 20 steps; 3 are missing of the last batch, which no number of devices shares evenly.
IMAGES = STEPS * BATCH - 3
TOLERANCES = {"float32": 1e-5, "mixed_bfloat16": 5e-3, "mixed_float16": 5e-2}
EXTRAS = {
    "averaged": {"use_ema": True, "ema_momentum": 0.9},
    "layer-wise": {"layer_decay": 0.7},
    "4 steps at once": {"steps_per_execution": 4},
}
SWITCHES = {  # of the encoders
    "registers": 2,
    "layer_scale": "both",
    "gated_mlp": True,
    "rotary": "axial",
    "qk_norm": "head",
}


def engine(devices):
    """The first logical CPUs; TensorFlow's default sums are numbered by process there, which models would share."""
    import tensorflow as tf

    names = [f"CPU:{index}" for index in range(devices)]
    return tf.distribute.MirroredStrategy(names, tf.distribute.ReductionToOneDevice())


def small_model(optimizer, policy="float32", fields=RANDOM, **arguments):
    """Compiled, with weights that are the same on any devices; it has one block and draws at random."""
    config = {"patch_size": 4, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 24}
    keras.utils.set_random_seed(7)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = keras_vit.build(keras_vit.ViTConfig(**config, **fields), input_shape=SHAPE, classes=CLASSES)
    finally:
        keras.config.set_dtype_policy(before)
    rng = np.random.default_rng(3)
    model.set_weights([rng.normal(0, 0.2, w.shape).astype("float32") + (w.name == "gamma") for w in model.weights])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(), loss, metrics=["accuracy"], **arguments)
    return model


def pictures(count):
    images = np.random.default_rng(5).uniform(-1, 1, (count, *SHAPE)).astype("float32")
    return images, np.arange(count) % CLASSES


def on(devices, make, *arguments, **keywords):
    """What `make` gives, in the scope of so many devices."""
    with engine(devices).scope() if devices > 1 else contextlib.nullcontext():
        return make(*arguments, **keywords)


def trained(devices, optimizer, count=IMAGES, **arguments):
    """A model after an epoch, and its mean loss."""
    model = on(devices, small_model, optimizer, **arguments)
    history = model.fit(*pictures(count), BATCH, shuffle=False, verbose=0).history
    return model, history["loss"][0]


def values(variables):
    return [keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32")).astype("float64") for variable in variables]


def deviation(found, expected):
    """Of a loss, by its size, and of any weight, by the largest one."""
    ours, theirs = values(found[0].trainable_variables), values(expected[0].trainable_variables)
    largest = max(np.abs(weight).max() for weight in theirs)
    furthest = max(np.abs(one - other).max() for one, other in zip(ours, theirs, strict=True))
    worst = max(furthest / largest, abs(found[1] - expected[1]) / abs(expected[1]))
    return float(worst) if np.isfinite(worst) else float("inf")


def make_optimizer(name, clip, extra):
    arguments = {"global_clipnorm": 0.5} if clip else {}
    extra = "layer-wise" if extra == "switches" else extra
    arguments |= {name: value for name, value in EXTRAS[extra].items() if name != "steps_per_execution"}
    if name == "sgd":
        return keras_vit.SGD(0.05, **arguments)
    return keras_vit.AdamW(3e-3, epsilon=1e-3, weight_decay=0.1, **arguments)  # the highest rate of the paper (table 3)


def one_case(devices, policy, name, clip, extra, parts):
    optimizer = functools.partial(make_optimizer, name, clip, extra)
    steps = EXTRAS.get(extra, {}).get("steps_per_execution", 1)
    fields = RANDOM | SWITCHES if extra == "switches" else RANDOM
    return trained(
        devices, optimizer, policy=policy, fields=fields, accumulation_steps=parts, steps_per_execution=steps
    )


def compared(cases):
    """`{case: deviation}` of `(devices, policy, optimizer, clip, extra, parts)`.

    One device takes whole batches, and does not draw anew for micro-batches: so no number of them changes anything.
    """
    found, expected = {}, {}
    for devices, policy, name, clip, extra, parts in cases:
        key = (policy, name, clip, extra)
        if key not in expected:
            expected = {key: one_case(1, *key, 1)}
        case = one_case(devices, *key, parts)
        label = f"{policy}: {devices} devices, {name}, {'clipped' if clip else 'unclipped'}, {extra}, in {parts}"
        found[label] = deviation(case, expected[key])
        print(label, found[label], flush=True)
        keras.utils.clear_session()
    return found


def matrix(policy):
    """All cases of a precision, those with one reference together."""
    settings = itertools.product(("sgd", "adamw"), (False, True), EXTRAS)
    return [
        (devices, policy, name, clip, extra, parts)
        for name, clip, extra in settings
        for devices in (2, 3, 4)
        for parts in (1, 4)
    ]


def every_count(devices, counts=range(1, 34)):
    """Of an epoch, `evaluate` and `predict` on so many images: the largest deviation of each from one device's.

    Momenta, averages and seeds go on from one number to the next, on any devices alike.
    """
    optimizer = functools.partial(make_optimizer, "sgd", True, "averaged")
    models = {number: on(number, small_model, optimizer) for number in (1, devices)}
    start = models[1].get_weights()
    worst = {"fit": 0.0, "evaluate": 0.0, "predict": 0.0}
    for count in counts:
        said = {}
        for number, model in models.items():
            model.set_weights(start)
            images, labels = pictures(count)
            loss = model.fit(images, labels, BATCH, shuffle=False, verbose=0).history["loss"][0]
            measured = np.asarray(model.evaluate(images, labels, BATCH, verbose=0))
            said[number] = (model, loss), measured, model.predict(images, BATCH, verbose=0)
            assert len(said[number][2]) == count
        (one, measured, scores), (many, again, others) = said[1], said[devices]
        found = (deviation(many, one), np.abs(measured - again).max(), np.abs(scores - others).max())
        worst = {name: max(before, float(new)) for (name, before), new in zip(worst.items(), found, strict=True)}
    return worst


def logical_devices(count):
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)


def main(out, *policies):
    """The matrix for these precisions; with none, every number of images."""
    logical_devices(4)
    began = time.monotonic()
    found = {}
    for policy in policies:
        found |= compared(matrix(policy))
    if not policies:
        found = {devices: every_count(devices) for devices in (2, 3, 4)}
    Path(out).write_text(json.dumps({"seconds": time.monotonic() - began, "found": found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
