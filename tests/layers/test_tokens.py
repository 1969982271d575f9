import numpy as np
import pytest
from conftest import images, numpy, randomise, tiny_config

import keras_vit
from keras_vit.layers import ClassToken


def test_class_token_stands_first_and_is_the_same_for_every_image():
    x = images(2, 6, 5)
    layer = ClassToken()
    layer.build(x.shape)
    assert (numpy(layer.token) == 0).all()
    randomise(layer)
    tokens = numpy(layer(x))
    np.testing.assert_array_equal(tokens[:, 0], np.repeat(numpy(layer.token)[0], 2, axis=0))
    np.testing.assert_array_equal(tokens[:, 1:], x)


def test_class_token_is_not_zero_where_no_position_is_added_to_it():
    """Before LayerNorm a token of zeros has a gradient that outweighs all others."""
    for kind, deviation in (("learned", 0.0), ("sincos2d", 0.0), ("none", 0.02), ("relative", 0.02)):
        sizes = {"hidden_size": 192, "position_embedding": kind, "distilled": True}
        model = keras_vit.build(tiny_config(**sizes), input_shape=(20, 28, 3), classes=7)
        for name in ("class_token", "distillation_token"):
            assert numpy(model.get_layer(name).token).std() == pytest.approx(deviation, rel=0.2)
