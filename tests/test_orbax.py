"""Why checkpoints here are not Orbax' by Keras: what Keras 3.15.1 restores on JAX (keras issue 23251)."""

import os
import sys

import pytest
from conftest import run_python

RESTORED = """
import sys, numpy as np, keras
rng = np.random.default_rng(0)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
callback = keras.callbacks.OrbaxCheckpoint(sys.argv[1], save_freq="epoch", save_on_background=False)
model.fit(rng.normal(size=(128, 8)), rng.normal(size=(128, 1)), epochs=2, callbacks=[callback], verbose=0)
again = keras.saving.load_model(sys.argv[1])
print(max(float(abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(again.weights, model.weights)))
"""


@pytest.mark.slow
def test_keras_still_restores_other_weights_from_orbax(tmp_path, monkeypatch):
    """KERAS_VIT_ORBAX_PYTHON names an interpreter with Keras, JAX and orbax-checkpoint."""
    python = os.environ.get("KERAS_VIT_ORBAX_PYTHON")
    if python is None:
        pytest.importorskip("orbax.checkpoint")
    monkeypatch.setattr("sys.executable", python or sys.executable)
    said = run_python(RESTORED, tmp_path / "checkpoints", backend="jax")
    assert float(said.splitlines()[-1]) > 0.1, "Keras restores what it saved: compare Orbax with `resuming` anew"
