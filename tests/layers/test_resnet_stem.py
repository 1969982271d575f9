"""The ResNets before a Vision Transformer and BiT's: convolutions, roots and units, against NumPy in float64."""

import numpy as np
import oracle
import pytest
from conftest import images, numpy, randomise

from keras_vit.layers import BiTRoot, BiTUnit, ResNetRoot, ResNetUnit, StdConv2D

UNITS = pytest.mark.parametrize(("stride", "projection", "channels"), [(1, False, 128), (1, True, 64), (2, True, 128)])


def weights(layer, shape):
    layer.build(shape)
    randomise(layer)
    return oracle.weights_of(layer)


def unfolded_conv(x, kernel, stride, padding):
    """BiT's convolution in float64: the standardised kernel as a matrix, times the image unfolded."""
    kernel = (kernel - kernel.mean((0, 1, 2))) / np.sqrt(kernel.var((0, 1, 2)) + 1e-10)
    size = kernel.shape[0]
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = [oracle.window(x, i, j, size, stride) for i in range(size) for j in range(size)]
    return np.concatenate(windows, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])


def resnet_root(x, w):
    y = oracle.std_conv(x, w["conv/kernel"], 2)
    return oracle.max_pool(np.maximum(oracle.group_norm(y, w["norm/gamma"], w["norm/beta"]), 0))


def bit_root(x, w):
    y = unfolded_conv(x, w["conv/kernel"], 2, 3)
    y = np.pad(y, ((0, 0), (1, 1), (1, 1), (0, 0)))  # zeros, which the pooling sees
    return np.max([oracle.window(y, i, j, 3, 2) for i in range(3) for j in range(3)], axis=0)


def resnet_unit(x, w, stride, projection):
    def half(y, name, step=1):
        y = oracle.std_conv(y, w[f"conv_{name}/kernel"], step)
        return oracle.group_norm(y, w[f"norm_{name}/gamma"], w[f"norm_{name}/beta"])

    y = np.maximum(half(np.maximum(half(x, "1"), 0), "2", stride), 0)
    return np.maximum(half(y, "3") + (half(x, "proj", stride) if projection else x), 0)


def bit_unit(x, w, stride, projection):
    def normed(y, name):
        return np.maximum(oracle.group_norm(y, w[f"{name}/gamma"], w[f"{name}/beta"], epsilon=1e-5), 0)

    first = normed(x, "norm_1")
    y = normed(unfolded_conv(first, w["conv_1/kernel"], 1, 0), "norm_2")
    y = normed(unfolded_conv(y, w["conv_2/kernel"], stride, 1), "norm_3")
    y = unfolded_conv(y, w["conv_3/kernel"], 1, 0)
    return y + (unfolded_conv(first, w["conv_proj/kernel"], stride, 0) if projection else x)


def check(layer, x, by_numpy, atol, *arguments):
    expected = by_numpy(x, weights(layer, x.shape), *arguments)
    np.testing.assert_allclose(numpy(layer(x)), expected, atol=atol)
    assert layer.compute_output_shape(x.shape) == expected.shape


@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 1), (3, 2), (1, 2)])
@pytest.mark.parametrize("size", [(13, 8), (12, 9)])
def test_standardised_convolution_equals_float64_with_same_padding(kernel, stride, size):
    layer = StdConv2D(6, kernel, strides=stride, padding="same", use_bias=False)
    check(layer, images(2, *size, 5), lambda x, w: oracle.std_conv(x, w["kernel"], stride), 2e-5)


@pytest.mark.parametrize(("epsilon_in", "divisor"), [("deviation", 3e-6 + 1e-5), ("variance", (9e-12 + 1e-10) ** 0.5)])
def test_epsilon_of_the_standardised_kernel_is_where_it_is_said(epsilon_in, divisor):
    """Of a kernel with a deviation of 3e-6 both epsilons decide the result."""
    layer = StdConv2D(1, (2, 1), use_bias=False, epsilon_in=epsilon_in)
    layer.build((1, 2, 1, 1))
    layer.kernel.assign(np.array([3e-6, -3e-6]).reshape(2, 1, 1, 1))
    out = numpy(layer(np.array([1.0, -1.0], "float32").reshape(1, 2, 1, 1)))
    np.testing.assert_allclose(out.item(), 6e-6 / divisor, rtol=1e-5)
    assert StdConv2D.from_config(layer.get_config()).epsilon_in == epsilon_in


@pytest.mark.parametrize("size", [(33, 18), (32, 19), (1, 2)])
def test_root_of_bit_equals_float64(size):
    check(BiTRoot(7), images(2, *size, 3), bit_root, 5e-5)  # 147 terms in float32


@pytest.mark.parametrize("size", [(32, 20), (33, 19)])
def test_root_equals_float64(size):
    check(ResNetRoot(32), images(2, *size, 3), resnet_root, 2e-5)


@UNITS
@pytest.mark.parametrize("size", [(9, 6), (8, 7)])
def test_unit_of_bit_equals_float64(stride, projection, channels, size):
    """With convolutions of up to 288 terms of order 1 in float32."""
    unit = BiTUnit(32, strides=stride, projection=projection)
    check(unit, images(2, *size, channels), bit_unit, 1e-4, stride, projection)


@UNITS
def test_unit_equals_float64(stride, projection, channels):
    """With three convolutions of up to 288 terms in float32."""
    unit = ResNetUnit(32, strides=stride, projection=projection)
    check(unit, images(2, 9, 6, channels), resnet_unit, 5e-5, stride, projection)


def test_new_unit_passes_its_input():
    x = np.abs(images(2, 5, 6, 128))
    np.testing.assert_allclose(numpy(ResNetUnit(32)(x)), x, atol=1e-6)


def test_what_no_resnet_has_is_refused():
    with pytest.raises(ValueError, match="strides=3"):
        BiTUnit(32, strides=3)
    with pytest.raises(ValueError, match="'variance'"):
        StdConv2D(1, 1, epsilon_in="variances")
