import numpy as np
from conftest import images, numpy, randomise

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
