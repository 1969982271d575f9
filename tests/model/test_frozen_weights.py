"""`TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1` makes TensorFlow faster and deaf to new weights, so nothing of ours sets it."""

import json
from pathlib import Path

import keras
import pytest
from conftest import run_python

import keras_vit
from keras_vit.processor import processor_flags

SWITCH = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"
STALE = """
import json

import numpy as np

import keras_vit
from keras_vit.model.layer_access import dense_parts

model = keras_vit.build("Ti/16", num_layers=1, classes=10, input_shape=(32, 32, 3))
rng = np.random.default_rng(0)
model.set_weights([rng.normal(0, 0.1, w.shape) for w in model.weights])
images = rng.uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
before = model.predict_on_batch(images)
for found in dense_parts(model):
    found.dense.kernel.assign(np.zeros(found.dense.kernel.shape))
after, right = model.predict_on_batch(images), np.asarray(model(images))
print(json.dumps([float(np.abs(after - other).max()) for other in (before, right)]))
"""


def test_nothing_of_ours_sets_it():
    sources = [path.read_text() for path in Path(keras_vit.__file__).parent.rglob("*.py")]
    assert sources
    assert not any(SWITCH in source for source in sources)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a switch of TensorFlow")
@pytest.mark.skipif("avx512_vnni" not in processor_flags(), reason="TensorFlow does without oneDNN by default")
def test_with_it_new_weights_are_ignored_without_a_word():
    """If this fails with a difference from before, TensorFlow has mended it, and the warnings of our pages can go."""
    of_before, of_right = json.loads(run_python(STALE, **{SWITCH: "1"}).splitlines()[-1])
    assert of_before == 0
    assert of_right > 0.1
    of_before, of_right = json.loads(run_python(STALE).splitlines()[-1])
    assert of_before > 0.1
    assert of_right < 1e-5
