"""The official fine-tuning, step by step, through `model.fit`: 12 steps from one checkpoint, in four ways."""

import keras
import numpy as np
import pytest
from conftest import GOLDEN, numpy

import keras_vit
from keras_vit.training.optimizers import SGD
from keras_vit.training.schedules import WarmupCosine, WarmupLinear
from keras_vit.weights.families import from_file

SMALL = keras_vit.ViTConfig(patch_size=8, hidden_size=48, num_layers=3, num_heads=4, mlp_dim=96)
STEPS, WARMUP, BASE_RATE = 12, 3, 0.03
CASES = [(schedule, dtype) for schedule in ("cosine", "linear") for dtype in ("float32", "bfloat16")]


class Steps(keras.callbacks.Callback):
    """The rate before and the norm after each step."""

    def __init__(self):
        super().__init__()
        self.norms, self.rates = [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.rates.append(float(numpy(self.model.optimizer.learning_rate)))

    def on_epoch_end(self, epoch, logs=None):
        self.norms.append(float(numpy(self.model.optimizer.gradient_norm)))


def expected_of(schedule, dtype):
    return np.load(GOLDEN / "finetune" / f"{schedule}_{dtype}.expected.npz")


def schedule_of(name):
    if name == "cosine":
        return WarmupCosine(BASE_RATE, STEPS, WARMUP)
    return WarmupLinear(BASE_RATE, STEPS, WARMUP, final_rate=1e-5)


def finetune(schedule, dtype, **compile_arguments):
    """The trained model, and the losses, norms and rates of its steps. An epoch is a step, so Keras logs each loss."""
    model = keras_vit.build(SMALL, input_shape=(32, 32, 3), weights=GOLDEN / "token.npz")
    head = model.get_layer("head")
    head.set_weights([np.zeros_like(weight) for weight in head.get_weights()])
    model.compile(
        optimizer=SGD(schedule_of(schedule), momentum=0.9, accumulator_dtype=dtype, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **compile_arguments,
    )
    images, labels = expected_of("cosine", "float32")["images"], expected_of(schedule, dtype)["labels"]
    steps = Steps()
    batches = (batch for batch in zip(images, labels, strict=True))
    history = model.fit(batches, steps_per_epoch=1, epochs=STEPS, shuffle=False, verbose=0, callbacks=[steps])
    return model, history.history["loss"], steps


def deviations(schedule, dtype, **compile_arguments):
    """How far the losses and weights are from the official ones, and by which part the norms."""
    model, losses, steps = finetune(schedule, dtype, **compile_arguments)
    expected = expected_of(schedule, dtype)
    keys = [key for key in expected.files if key.startswith("final:")]
    weights = {v.path: numpy(v) for v in model.weights}
    final, _ = from_file("official", "final:", {key: expected[key] for key in keys})
    return {
        "weights compared": len(keys),
        "loss": float(abs(losses - expected["losses"]).max()),
        "norm": float(abs(steps.norms / expected["grad_norms"] - 1).max()),
        "rate": float(abs(steps.rates - expected["learning_rates"]).max()),
        "weight": max(float(abs(weights[path] - wanted).max()) for path, wanted in final.items()),
    }


def assert_official(found):
    assert found["weights compared"] >= 4
    assert found["loss"] < 1e-4
    assert found["norm"] < 1e-3
    assert found["rate"] < 1e-8  # float32 at .03
    assert found["weight"] < 1e-4


@pytest.mark.parametrize(("schedule", "dtype"), CASES)
def test_finetuning_is_the_official_one(schedule, dtype):
    assert_official(deviations(schedule, dtype))


def test_finetuning_in_micro_batches_is_the_official_one():
    assert_official(deviations("cosine", "float32", accumulation_steps=4))


def test_finetuning_under_xla_is_the_official_one():
    assert_official(deviations("cosine", "bfloat16", jit_compile=True))


def test_the_accumulator_dtype_shows_in_the_golden_losses():
    """The two dtypes differ by more than what is allowed, so the cases do tell them apart."""
    exact, rounded = (expected_of("cosine", dtype)["losses"] for dtype in ("float32", "bfloat16"))
    assert abs(exact - rounded).max() > 1e-3


def all_deviations():
    return [deviations(*case) for case in CASES]


@pytest.mark.elsewhere("jax", "all_deviations")
def test_finetuning_on_jax_is_the_official_one(found):
    assert len(found) == len(CASES)
    for each in found:
        assert_official(each)
