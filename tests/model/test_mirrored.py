"""Several devices train, evaluate and predict as one: clipped, in half precision, in parts, with masks, averages."""

import functools
import json
import os

import keras
import numpy as np
import pytest
from conftest import ROOT, run_python
from mirrored import TOLERANCES, compared, deviation, make_optimizer, on, pictures, small_model, values

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strategies are TensorFlow's")
# Devices, precision, optimizer, clipping, rates by layer with the encoders' switches or averages, and micro-batches.
# The tests below have float16 and several steps at once.
CASES = ((2, "float32", "adamw", True, "switches", 2), (3, "mixed_bfloat16", "sgd", True, "averaged", 1))
TOLERANCE = 1e-5  # float32 sums in another order


def some_cases():
    return compared(CASES)


def check(found):
    too_far = {label: value for label, value in found.items() if not value < TOLERANCES[label.partition(":")[0]]}
    assert too_far == {}


@pytest.mark.elsewhere("two devices", "some_cases")
def test_devices_train_as_one_with_clipping_micro_batches_masks_and_half_precision(found):
    assert len(found) == len(CASES)
    check(found)


def overflow_on_one_device():
    """Counts on one device and two, and the deviation, where the second half of the first batch overflows.

    The first device has finite gradients of that step. It must leave it out like the second.
    """
    images, labels = pictures(16)
    images[4:8] *= 7e4
    said, models = [], []
    for devices in (1, 2):
        model = on(devices, small_model, functools.partial(make_optimizer, "sgd", True, "averaged"), "mixed_float16")
        loss = model.fit(images, labels, 8, shuffle=False, verbose=0).history["loss"][0]
        optimizer = model.optimizer
        counts = [optimizer.dynamic_scale, optimizer.step_counter, optimizer.inner_optimizer.iterations]
        said.append(list(map(float, values(counts))))
        models.append((model, 1.0 if not np.isfinite(loss) else loss))  # that of the step that was left out is not
    return *said, deviation(models[1], models[0])


@pytest.mark.elsewhere("two devices", "overflow_on_one_device")
def test_step_that_overflows_on_one_device_is_left_out_by_all(found):
    one, two, apart = found
    assert one == [2.0**14, 1.0, 1.0]  # the scale halved once; the second step of two
    assert two == one
    assert apart < TOLERANCES["mixed_float16"]


def measured_in_steps():
    """Deviations of `fit` with validation, `evaluate` and `predict` with 4 steps at once and an uneven last batch.

    Under an optimizer of Keras' own which clips, and that was compiled twice, as it is mended once.
    """
    images, labels = pictures(21)
    said = []
    for devices in (1, 2):
        optimizer = functools.partial(keras.optimizers.SGD, 0.05, momentum=0.9, clipnorm=0.1)
        model = on(devices, small_model, optimizer, steps_per_execution=4)
        model.compile(model.optimizer, model.loss, metrics=["accuracy"], steps_per_execution=4)
        history = model.fit(
            images, labels, 4, epochs=2, shuffle=False, verbose=0, validation_data=(images[:13], labels[:13])
        ).history
        numbers = [value for name in sorted(history) for value in history[name]]
        measured = model.evaluate(images[:13], labels[:13], 8, verbose=0)
        said.append(np.concatenate([numbers, measured, model.predict(images[:13], 8, verbose=0).ravel()]))
    return float(np.abs(said[0] - said[1]).max())


@pytest.mark.elsewhere("two devices", "measured_in_steps")
def test_several_steps_at_once_clip_measure_and_predict_as_on_one_device(found):
    assert found < TOLERANCE


def in_a_child(tmp_path, *policies):
    code = "import mirrored, sys; mirrored.main(*sys.argv[1:])"
    out = tmp_path / "found.json"
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    run_python(code, out, *policies, backend="tensorflow", timeout=7000, PYTHONPATH=path)
    return json.loads(out.read_text())["found"]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("policy", TOLERANCES)
def test_devices_train_as_one_in_every_case(tmp_path, policy):
    """2, 3 and 4 devices x SGD, AdamW x clipping x accumulation 1, 4 x EMA, layer-wise rates, 4 steps at once."""
    found = in_a_child(tmp_path, policy)
    assert len(found) == 3 * 2 * 2 * 2 * 3
    check(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_number_of_images_is_trained_measured_and_predicted_as_on_one_device(tmp_path):
    """1 to 33 images in batches of 8, on 2, 3 and 4 devices: each counts once."""
    found = in_a_child(tmp_path)
    assert set(found) == {"2", "3", "4"}
    assert {name: value for worst in found.values() for name, value in worst.items() if not value < TOLERANCE} == {}
