"""The official figures on an accelerator, in float32. Run with `-m gpu`, and KERAS_BACKEND=jax for JAX."""

import numpy as np
import pytest
from test_golden import CASES, expected_of, load

import keras_vit
from keras_vit.model.image_model import has_accelerator

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_accelerator(), reason="there is no accelerator")]


@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_official_ones(case):
    """TensorFloat-32, the default of such a device, is off by some 1e-3."""
    expected = expected_of(case)
    with keras_vit.strategy("one", precision="float32"):
        model = load(case)
    np.testing.assert_allclose(model.predict(expected["images"], verbose=0), expected["logits"], atol=2e-5)
