"""Rates by step, against the formulas in NumPy float64."""

import keras
import numpy as np
import pytest
from conftest import numpy

from keras_vit.training.schedules import WarmupCosine, WarmupLinear, WarmupReciprocalSqrt

TOTAL, WARMUP = 1_000_003, 10_000
STEPS = [0, 1, 2, 137, 9_999, 10_000, 10_001, 59_999, 500_003, 950_003, 999_900, 1_000_001, 1_000_002, 1_000_003]


def cosine(t, total=TOTAL, warmup=WARMUP, base=0.03):
    progress = np.clip((t - warmup) / (total - warmup), 0, 1)
    return base * 0.5 * (1 + np.cos(np.pi * progress)) * np.minimum(1, t / warmup)


def linear(t, total=TOTAL, warmup=WARMUP, base=0.03, end=1e-5):
    progress = np.clip((t - warmup) / (total - warmup), 0, 1)
    return (end + (base - end) * (1 - progress)) * np.minimum(1, t / warmup)


def reciprocal_sqrt(t, total=TOTAL, warmup=WARMUP, base=0.03, timescale=7_000, cooldown=50_000):
    decay = np.sqrt(timescale / (timescale + np.maximum(t - warmup, 0)))
    return base * decay * np.minimum(1, t / warmup) * np.minimum(1, (total - t) / cooldown)


CASES = [
    (WarmupCosine(0.03, TOTAL, WARMUP), cosine),
    (WarmupLinear(0.03, TOTAL, WARMUP), linear),
    (WarmupReciprocalSqrt(0.03, TOTAL, WARMUP, timescale=7_000, cooldown_steps=50_000), reciprocal_sqrt),
]
by_name = pytest.mark.parametrize(("schedule", "formula"), CASES, ids=lambda case: type(case).__name__)


@by_name
def test_schedule_equals_its_formula_over_a_million_steps(schedule, formula):
    ours = [float(schedule(step)) for step in STEPS]
    # float32 rounds each of a handful of factors by 6e-8; where the formula itself cancels (1 + cos) float64
    # is off by 1e-16, which the absolute tolerance allows.
    np.testing.assert_allclose(ours, formula(np.array(STEPS, "float64")), rtol=1e-6, atol=1e-17)


@pytest.mark.parametrize(("schedule", "last"), [(CASES[0][0], 0.0), (CASES[1][0], 1e-5), (CASES[2][0], 0.0)])
def test_schedule_stays_at_its_last_rate(schedule, last):
    assert [float(schedule(step)) for step in (TOTAL, TOTAL + 1, 2 * TOTAL)] == pytest.approx([last] * 3, rel=1e-6)


@by_name
def test_schedule_takes_integers_of_any_width_tensors_and_variables(schedule, formula):
    step = 123_457
    kinds = [np.int32(step), np.int64(step), keras.ops.array(step), keras.Variable(step, dtype="int32"), float(step)]
    assert {float(numpy(schedule(kind))) for kind in kinds} == {float(schedule(step))}


@by_name
def test_schedule_returns_from_its_config(schedule, formula):
    restored = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert type(restored) is type(schedule)
    assert restored.get_config() == schedule.get_config()


@pytest.mark.parametrize("kind", [WarmupCosine, WarmupLinear, WarmupReciprocalSqrt])
def test_schedule_without_warmup_begins_at_its_base_rate(kind):
    assert float(kind(0.25, 10)(0)) == 0.25


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "words"),
    [
        (WarmupCosine, (0.03, 100, 100), ValueError, "warmup_steps=100"),
        (WarmupCosine, (0.03, 100, -1), ValueError, "warmup_steps=-1"),
        (WarmupCosine, (0.0, 100, 10), ValueError, "base_rate=0.0"),
        (WarmupCosine, (float("nan"), 100, 10), ValueError, "base_rate=nan"),
        (WarmupCosine, (0.03, 0, 0), ValueError, "total_steps=0"),
        (WarmupCosine, (0.03, 100.5), TypeError, "`total_steps`"),
        (WarmupLinear, (1e-6, 100, 10, 1e-5), ValueError, "final_rate=1e-05"),
        (WarmupReciprocalSqrt, (0.03, 100, 60, 10, 50), ValueError, "cooldown"),
        (WarmupReciprocalSqrt, (0.03, 100, 10, 0), ValueError, "timescale=0"),
    ],
)
def test_schedule_refuses_what_makes_no_rate(kind, arguments, error, words):
    with pytest.raises(error, match=words):
        kind(*arguments)


def rates():
    return [[float(schedule(step)) for step in STEPS] for schedule, _ in CASES]


@pytest.mark.elsewhere("jax", "rates")
def test_schedules_are_the_same_on_jax(found):
    for line, (_, formula) in zip(found, CASES, strict=True):
        np.testing.assert_allclose(line, formula(np.array(STEPS, "float64")), rtol=1e-6, atol=1e-17)
