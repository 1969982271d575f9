import numpy as np
import oracle
import pytest
from conftest import images, numpy, randomise

from keras_vit.layers import PatchEmbedding


@pytest.mark.parametrize(("patch", "height", "width"), [(4, 20, 28), (7, 14, 35), (1, 5, 3)])
def test_patch_embedding_is_unfold_and_matmul(patch, height, width):
    x = images(2, height, width, 3)
    layer = PatchEmbedding(11, patch)
    layer.build(x.shape)
    randomise(layer)
    w = oracle.weights_of(layer)
    expected = oracle.unfold(x, patch) @ w["projection/kernel"].reshape(-1, 11) + w["projection/bias"]
    np.testing.assert_allclose(numpy(layer(x)), expected, atol=1e-5)


def test_patch_embedding_of_a_new_layer_has_unit_variance():
    x = np.random.default_rng(0).normal(size=(4, 64, 64, 3)).astype("float32")
    tokens = numpy(PatchEmbedding(256, 16)(x))
    assert tokens.std() == pytest.approx(1, abs=0.05)  # LeCun normal: 256 * 64 samples


@pytest.mark.parametrize("shape", [(None, 21, 28, 3), (None, 20, None, 3, 1), (None, None, 27, 3)])
def test_patch_embedding_refuses_what_patches_do_not_tile(shape):
    with pytest.raises(ValueError, match="Received: shape"):
        PatchEmbedding(11, 4).build(shape)


def test_patch_embedding_refuses_a_size_that_is_known_only_in_the_call():
    layer = PatchEmbedding(11, 4)
    layer.build((None, None, None, 3))
    with pytest.raises(ValueError, match="patches tile the image"):
        layer(images(1, 20, 30, 3))
