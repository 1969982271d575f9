"""The same file gives the same logits on every backend."""

import tempfile

import keras
import numpy as np
import pytest
from conftest import GOLDEN, numpy

import keras_vit

CASES = {
    "token": keras_vit.ViTConfig(8, 48, 3, 4, 96),
    "gap": keras_vit.ViTConfig(8, 48, 3, 4, 96, pooling="gap"),
    "hybrid_stages": keras_vit.ViTConfig(1, 48, 3, 4, 96, resnet_stages=(1, 2), resnet_width_factor=0.5),
}


def predictions():
    """Logits by case and size on this backend; before that, a model is reloaded and another trained."""
    results = {}
    for case, config in CASES.items():
        for shape in ((32, 32, 3), (None, None, 3)):
            model = keras_vit.build(config, weights=GOLDEN / f"{case}.npz", input_shape=shape)
            results[f"{case}{shape[0]}"] = model.predict(expected_of(case)["images"], verbose=0)
        moved = keras_vit.with_input_shape(model, (64, 48, 3))
        results[f"{case}64"] = moved.predict(wide(case), verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        again = keras.saving.load_model(f"{folder}/model.keras")
    same = (again.predict(expected_of(case)["images"], verbose=0) == results[f"{case}None"]).all()
    model = keras_vit.build("Ti/16", input_shape=(32, 32, 3), num_layers=2, classes=4, dropout_rate=0.1)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(expected_of(case)["images"], np.arange(4), epochs=3, verbose=0).history["loss"]
    logits = {name: array.tolist() for name, array in results.items()}
    return {"backend": keras.backend.backend(), "reloaded": bool(same), "losses": losses, "logits": logits}


def expected_of(case):
    return np.load(GOLDEN / f"{case}.expected.npz")


def wide(case):
    return expected_of(case)["images"].repeat(2, 1)[:, :, [*range(32), *range(16)]]


def assert_backend_gives_the_same_logits(found, backend):
    assert found["backend"] == backend
    assert found["reloaded"]
    losses, got = found["losses"], found["logits"]
    assert abs(losses[0] - np.log(4)) < 1e-5
    assert losses[-1] < losses[0], losses
    assert len(got) == 3 * len(CASES)
    for case, config in CASES.items():
        for shape in ("32", "None"):
            np.testing.assert_allclose(got[case + shape], expected_of(case)["logits"], atol=1e-5)
        ours = keras_vit.build(config, weights=GOLDEN / f"{case}.npz", input_shape=(64, 48, 3))
        np.testing.assert_allclose(got[f"{case}64"], numpy(ours(wide(case))), atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="compares JAX with this process' backend")
@pytest.mark.elsewhere("jax", "logits")
def test_jax_gives_the_same_logits(found):
    assert_backend_gives_the_same_logits(found, "jax")


@pytest.mark.torch
@pytest.mark.elsewhere("torch", "logits")
def test_torch_gives_the_same_logits(found):
    assert_backend_gives_the_same_logits(found, "torch")
