import numpy as np
import oracle
import pytest
from conftest import images, numpy, randomise

from keras_vit.layers import ResNetRoot, ResNetUnit, StdConv2D


def weights(layer, shape):
    layer.build(shape)
    randomise(layer)
    return oracle.weights_of(layer)


@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 1), (3, 2), (1, 2)])
@pytest.mark.parametrize("size", [(13, 8), (12, 9)])
def test_standardised_convolution_equals_float64_with_same_padding(kernel, stride, size):
    x = images(2, *size, 5)
    layer = StdConv2D(6, kernel, strides=stride, padding="same", use_bias=False)
    w = weights(layer, x.shape)
    np.testing.assert_allclose(numpy(layer(x)), oracle.std_conv(x, w["kernel"], stride), atol=2e-5)


def test_standardised_convolution_ignores_scale_and_shift_of_its_kernel():
    x = images(2, 8, 6, 5)
    layer = StdConv2D(6, 3, padding="same", use_bias=False)
    kernel = weights(layer, x.shape)["kernel"]
    before = numpy(layer(x))
    layer.kernel.assign(kernel * 3 + 0.5)
    np.testing.assert_allclose(numpy(layer(x)), before, atol=1e-3)  # epsilon 1e-5 beside a deviation of .2


@pytest.mark.parametrize("size", [(32, 20), (33, 19)])
def test_root_equals_float64(size):
    x = images(2, *size, 3)
    layer = ResNetRoot(32)
    w = weights(layer, x.shape)
    y = oracle.std_conv(x, w["conv/kernel"], 2)
    y = oracle.max_pool(np.maximum(oracle.group_norm(y, w["norm/gamma"], w["norm/beta"]), 0))
    np.testing.assert_allclose(numpy(layer(x)), y, atol=2e-5)
    assert layer.compute_output_shape(x.shape) == y.shape


@pytest.mark.parametrize(("stride", "projection", "channels"), [(1, False, 128), (1, True, 64), (2, True, 128)])
def test_unit_equals_float64(stride, projection, channels):
    x = images(2, 9, 6, channels)
    layer = ResNetUnit(32, strides=stride, projection=projection)
    w = weights(layer, x.shape)

    def half(y, name, step=1):
        y = oracle.std_conv(y, w[f"conv_{name}/kernel"], step)
        return oracle.group_norm(y, w[f"norm_{name}/gamma"], w[f"norm_{name}/beta"])

    y = np.maximum(half(np.maximum(half(x, "1"), 0), "2", stride), 0)
    y = np.maximum(half(y, "3") + (half(x, "proj", stride) if projection else x), 0)
    np.testing.assert_allclose(numpy(layer(x)), y, atol=5e-5)  # three convolutions of up to 288 terms in float32
    assert layer.compute_output_shape(x.shape) == y.shape


def test_new_unit_passes_its_input():
    x = np.abs(images(2, 5, 6, 128))
    np.testing.assert_allclose(numpy(ResNetUnit(32)(x)), x, atol=1e-6)
