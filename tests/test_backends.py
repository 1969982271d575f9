"""The same file gives the same logits on every backend."""

import keras
import numpy as np
import pytest
from conftest import GOLDEN, run_python

import keras_vit

CASES = {
    "token": keras_vit.ViTConfig(8, 48, 3, 4, 96),
    "gap": keras_vit.ViTConfig(8, 48, 3, 4, 96, pooling="gap"),
    "hybrid_stages": keras_vit.ViTConfig(1, 48, 3, 4, 96, resnet_stages=(1, 2), resnet_width_factor=0.5),
}
PREDICT = """
import sys, keras, keras_vit, numpy as np
golden, out = sys.argv[1:]
results = {"backend": keras.backend.backend()}
for case, fields in CASES.items():
    expected = np.load(f"{golden}/{case}.expected.npz")
    for shape in ((32, 32, 3), (None, None, 3)):
        model = keras_vit.build(keras_vit.ViTConfig(**fields), weights=f"{golden}/{case}.npz", input_shape=shape)
        results[f"{case}{shape[0]}"] = model.predict(expected["images"], verbose=0)
    wide = keras_vit.with_input_shape(model, (64, 48, 3))
    images = expected["images"].repeat(2, 1)[:, :, [*range(32), *range(16)]]
    results[f"{case}64"] = wide.predict(images, verbose=0)
model.save(f"{out}.keras")
again = keras.saving.load_model(f"{out}.keras")
assert (again.predict(expected["images"], verbose=0) == results[f"{case}None"]).all()
model = keras_vit.build("Ti/16", input_shape=(32, 32, 3), num_layers=2, classes=4, dropout_rate=0.1)
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
losses = model.fit(expected["images"], np.arange(4), epochs=3, verbose=0).history["loss"]
assert abs(losses[0] - np.log(4)) < 1e-5 and losses[-1] < losses[0], losses
np.savez(out, **results)
"""


def fields(config):
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def assert_backend_gives_the_same_logits(backend, tmp_path):
    code = f"CASES = { {case: fields(config) for case, config in CASES.items()}!r}\n" + PREDICT
    run_python(code, GOLDEN, tmp_path / f"{backend}.npz", backend=backend)
    got = np.load(tmp_path / f"{backend}.npz")
    assert str(got["backend"]) == backend
    for case, config in CASES.items():
        expected = np.load(GOLDEN / f"{case}.expected.npz")
        for shape in ("32", "None"):
            np.testing.assert_allclose(got[case + shape], expected["logits"], atol=1e-5)
        ours = keras_vit.build(config, weights=GOLDEN / f"{case}.npz", input_shape=(64, 48, 3))
        x = expected["images"].repeat(2, 1)[:, :, [*range(32), *range(16)]]
        np.testing.assert_allclose(got[f"{case}64"], ours.predict(x, verbose=0), atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="compares JAX with this process' backend")
def test_jax_gives_the_same_logits(tmp_path):
    pytest.importorskip("jax")
    assert_backend_gives_the_same_logits("jax", tmp_path)


@pytest.mark.torch
def test_torch_gives_the_same_logits(tmp_path):
    assert_backend_gives_the_same_logits("torch", tmp_path)
