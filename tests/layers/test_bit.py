import numpy as np
import oracle
import pytest
from conftest import images, numpy, randomise

from keras_vit.layers import BiTRoot, BiTUnit, StdConv2D


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


def normed(x, w, name):
    return np.maximum(oracle.group_norm(x, w[f"{name}/gamma"], w[f"{name}/beta"], epsilon=1e-5), 0)


@pytest.mark.parametrize("size", [(33, 18), (32, 19), (1, 2)])
def test_root_equals_float64(size):
    x = images(2, *size, 3)
    layer = BiTRoot(7)
    y = unfolded_conv(x, weights(layer, x.shape)["conv/kernel"], 2, 3)
    y = np.pad(y, ((0, 0), (1, 1), (1, 1), (0, 0)))  # zeros, which the pooling sees
    y = np.max([oracle.window(y, i, j, 3, 2) for i in range(3) for j in range(3)], axis=0)
    np.testing.assert_allclose(numpy(layer(x)), y, atol=5e-5)  # 147 terms in float32
    assert layer.compute_output_shape(x.shape) == y.shape


@pytest.mark.parametrize(("stride", "projection", "channels"), [(1, False, 128), (1, True, 64), (2, True, 128)])
@pytest.mark.parametrize("size", [(9, 6), (8, 7)])
def test_unit_equals_float64(stride, projection, channels, size):
    x = images(2, *size, channels)
    layer = BiTUnit(32, strides=stride, projection=projection)
    w = weights(layer, x.shape)
    first = normed(x, w, "norm_1")
    y = normed(unfolded_conv(first, w["conv_1/kernel"], 1, 0), w, "norm_2")
    y = normed(unfolded_conv(y, w["conv_2/kernel"], stride, 1), w, "norm_3")
    y = unfolded_conv(y, w["conv_3/kernel"], 1, 0)
    y += unfolded_conv(first, w["conv_proj/kernel"], stride, 0) if projection else x
    np.testing.assert_allclose(numpy(layer(x)), y, atol=1e-4)  # convolutions of up to 288 terms of order 1 in float32
    assert layer.compute_output_shape(x.shape) == y.shape


def test_skip_connection_carries_the_input_unchanged():
    x = images(2, 5, 6, 128)
    layer = BiTUnit(32)
    layer.build(x.shape)
    layer.norm_3.gamma.assign(np.zeros(32))
    np.testing.assert_array_equal(numpy(layer(x)), x)


def test_strides_beyond_two_are_refused():
    with pytest.raises(ValueError, match=r"`strides` must be 1 or 2(.|\n)*strides=3"):
        BiTUnit(32, strides=3)


@pytest.mark.parametrize(("epsilon_in", "divisor"), [("deviation", 3e-6 + 1e-5), ("variance", (9e-12 + 1e-10) ** 0.5)])
def test_epsilon_of_the_standardised_kernel_is_where_it_is_said(epsilon_in, divisor):
    """Of a kernel with a deviation of 3e-6 both epsilons decide the result."""
    layer = StdConv2D(1, (2, 1), use_bias=False, epsilon_in=epsilon_in)
    layer.build((1, 2, 1, 1))
    layer.kernel.assign(np.array([3e-6, -3e-6]).reshape(2, 1, 1, 1))
    out = numpy(layer(np.array([1.0, -1.0], "float32").reshape(1, 2, 1, 1)))
    np.testing.assert_allclose(out.item(), 6e-6 / divisor, rtol=1e-5)
    assert StdConv2D.from_config(layer.get_config()).epsilon_in == epsilon_in


def test_unknown_place_of_the_epsilon_is_refused():
    with pytest.raises(ValueError, match=r"`epsilon_in` must be one of(.|\n)*Did you mean 'variance'"):
        StdConv2D(1, 1, epsilon_in="variances")


@pytest.mark.parametrize(("kind", "sizes"), [(BiTRoot, {"width": 5}), (BiTUnit, {"filters": 32, "strides": 2})])
def test_layer_is_made_again_from_its_configuration(kind, sizes):
    layer = kind(**sizes)
    assert sizes.items() <= layer.get_config().items()
    assert kind.from_config(layer.get_config()).get_config() == layer.get_config()
