"""Gradients of our own: the same numbers as automatic ones, and what a training step keeps for them."""

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, randomise
from keras import ops

import keras_vit
from keras_vit import kernels
from keras_vit.kernels import tensorflow_training
from keras_vit.layers import MultiHeadAttention
from keras_vit.layers.norms import LayerNorm

tf = pytest.importorskip("tensorflow")
TENSORFLOW_GELU = 1e-6  # its constants are in float32, whatever the dtype


def values(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(0, 1.5, shape), "float64")


def gradients_of(function, *arguments):
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        outputs = function(*arguments)
        loss = tf.reduce_sum(outputs * values(*outputs.shape, seed=9))
    return outputs, tape.gradient(loss, arguments)


def assert_same(ours, automatic, tolerance=1e-9):  # float64 rounding
    for one, other in zip(tf.nest.flatten(ours), tf.nest.flatten(automatic), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_layer_norm_equals_automatic_differentiation():
    arguments = values(2, 5, 7), values(7, seed=1), values(7, seed=2)
    ours = gradients_of(lambda x, gamma, beta: tensorflow_training.layer_norm(x, gamma, beta, 1e-6), *arguments)
    automatic = gradients_of(lambda x, gamma, beta: ops.layer_normalization(x, gamma, beta, epsilon=1e-6), *arguments)
    assert_same(ours, automatic)


@pytest.mark.filterwarnings("ignore:You passed `rms_scaling=True`")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"axis": 2},
        {"axis": 1},
        {"axis": [1, 2]},
        {"center": False},
        {"scale": False},
        {"rms_scaling": True},
        {"center": False, "scale": False},
        {"dtype": "float16"},
        {"dtype": "float64"},
    ],
    ids=str,
)
def test_layer_norm_trains_as_keras_layer_of_the_same_arguments(arguments):
    x, results = tf.cast(values(2, 5, 7), "float32"), []
    for cls in (LayerNorm, keras.layers.LayerNormalization):
        layer = cls(epsilon=1e-3, **arguments)
        layer.build(x.shape)
        randomise(layer)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(tf.cast(y, "float64") * values(2, 5, 7, seed=9))
        results.append([y, *tape.gradient(loss, [x, *[weight.value for weight in layer.trainable_weights]])])
    assert [one.dtype for one in results[0]] == [other.dtype for other in results[1]]
    assert_same(*results, 3e-3 if arguments.get("dtype") == "float16" else 2e-5)  # roundings of the two ways


@pytest.mark.parametrize("norm", [keras.layers.RMSNormalization, keras.layers.LayerNormalization, LayerNorm])
def test_norm_before_dense_layers_is_the_one_given(norm):
    norm = norm(**({} if norm is keras.layers.RMSNormalization else {"center": False}))
    attention, x = MultiHeadAttention(6, 2), tf.cast(values(2, 5, 6), "float32")
    attention.build(x.shape)
    norm.build(x.shape)
    randomise(norm)
    expected = attention(norm(x), training=False)
    np.testing.assert_allclose(kernels.after_norm(norm, attention, x, True), expected, atol=1e-5)  # float32 rounding


def test_norm_dense_equals_automatic_differentiation():
    arguments = (
        values(2, 5, 7),
        *(values(*shape, seed=i) for i, shape in enumerate([(7,), (7,), (7, 3), (7, 4), (3,), (4,)])),
    )

    def ours(x, gamma, beta, *weights):
        return tf.concat(tensorflow_training.norm_products(x, gamma, beta, 1e-6, weights[:2], weights[2:]), 1)

    def plain(x, gamma, beta, kernel_1, kernel_2, bias_1, bias_2):
        x = tf.reshape(ops.layer_normalization(x, gamma, beta, epsilon=1e-6), (-1, 7))
        return tf.concat([x @ kernel_1 + bias_1, x @ kernel_2 + bias_2], 1)

    assert_same(gradients_of(ours, *arguments), gradients_of(plain, *arguments))


@pytest.mark.parametrize("approximate", [True, False])
def test_gelu_dense_equals_automatic_differentiation(approximate):
    arguments = values(5, 7), values(7, 3, seed=1), values(3, seed=2)

    def plain(x, kernel, bias):
        return ops.gelu(x, approximate=approximate) @ kernel + bias

    ours = gradients_of(lambda *a: tensorflow_training.gelu_dense(*a, approximate), *arguments)
    assert_same(ours, gradients_of(plain, *arguments), TENSORFLOW_GELU)


def test_attention_equals_automatic_differentiation():
    arguments = values(2, 3, 4, 5), values(2, 3, 5, 7, seed=1), values(2, 3, 7, 5, seed=2)
    automatic = gradients_of(lambda query, key, value: tf.nn.softmax(query @ key) @ value, *arguments)
    assert_same(gradients_of(tensorflow_training.attention, *arguments), automatic)


def test_second_gradients_equal_automatic_ones():
    x, kernel, bias = values(4, 5), values(5, 3, seed=1), values(3, seed=2)

    def slope(function):
        with tf.GradientTape() as tape:
            tape.watch(x)
            first = gradients_of(function, x)[1][0]
        return tape.gradient(first, x)

    plain = slope(lambda x: ops.gelu(x, approximate=True) @ kernel + bias)
    assert_same(slope(lambda x: tensorflow_training.gelu_dense(x, kernel, bias, True)), plain, TENSORFLOW_GELU)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_norm_is_the_plain_one(policy):
    layer = LayerNorm(epsilon=1e-6, dtype=policy)
    x = 30 * images(2, 5, 7) + 3
    np.testing.assert_allclose(
        ops.cast(layer(x, training=True), "float32"), ops.cast(layer(x), "float32"), rtol=1e-2
    )  # one step of bfloat16 where the last float32 bit differs
    dense, far = keras.layers.Dense(3, dtype=policy), ops.cast(x + 3000, layer.compute_dtype)
    dense.build((None, 7))
    (joined,) = tensorflow_training.norm_dense(layer, [dense], far, True)  # a mean in half precision is off by 8
    plain = dense(layer(far))
    np.testing.assert_allclose(ops.cast(joined, "float32"), ops.cast(plain, "float32"), atol=0.03)


@pytest.mark.parametrize("frozen", [False, True])
def test_training_gradients_of_a_model_equal_those_of_inference(frozen):
    model = make_tiny()
    model.get_layer("block_00").trainable = not frozen
    x, weights = images(3, 20, 28, 3), model.trainable_weights

    @tf.function
    def slopes(training):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x, training=training)))
        return tape.gradient(loss, [weight.value for weight in weights])

    largest = max(float(tf.reduce_max(tf.abs(slope))) for slope in slopes(False))
    for ours, plain in zip(slopes(True), slopes(False), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-6 * largest)  # float32 rounding


def kept_by_a_block():
    """Forward arrays of one block that the backward pass reads, in units of (B, T, D)."""
    config = keras_vit.ViTConfig(patch_size=4, hidden_size=64, num_layers=3, num_heads=2, mlp_dim=256)
    model = keras_vit.build(config, input_shape=(32, 32, 3), classes=2)
    weights = [weight.value for weight in model.trainable_weights]

    @tf.function
    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(images, training=True), name="loss")
        return tape.gradient(loss, weights, output_gradients=loss)  # so that all that follows depends on the loss

    graph = step.get_concrete_function(tf.TensorSpec((8, 32, 32, 3))).graph
    backward, unit = set(), 8 * 65 * 64
    for operation in graph.get_operations():  # in an order in which inputs come first
        before = [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
        if operation.name == "loss" or not backward.isdisjoint(before):
            backward.add(operation)
    read = {tensor.ref(): tensor for operation in backward for tensor in operation.inputs if tensor.op not in backward}
    buffers = {buffer_of(tensor).ref(): tensor for tensor in read.values() if "block_01" in tensor.name}
    sizes = [tensor.shape.num_elements() or 0 for tensor in buffers.values()]
    return sum(size for size in sizes if size >= unit) / unit


def buffer_of(tensor):
    """The array whose memory a tensor shares."""
    while tensor.op.type in ("Reshape", "Identity", "IdentityN"):
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def test_block_keeps_fewer_arrays_than_plain_tensorflow():
    """Two inputs of norms, query, key, value, mixed values, and the MLP's width once."""
    ours = kept_by_a_block()
    assert ours == 2 + 4 + 4
    with kernels.use("plain"):
        plain = kept_by_a_block()
    assert plain > ours + 4 * 4


def needed_for(tensor):
    """All operations that run before a tensor is there."""
    found, waiting = set(), [tensor.op]
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting += [*(source.op for source in operation.inputs), *operation.control_inputs]
    return found


@pytest.mark.parametrize("frozen", [False, True])
def test_what_goes_back_waits_for_the_gradients_of_weights_that_learn(frozen):
    model = make_tiny(num_layers=3)
    block = model.get_layer("block_01")
    block.trainable = not frozen
    denses = (block.attention.query, block.attention.key, block.attention.value, block.mlp.dense_1, block.mlp.dense_2)
    late = [weight.value for dense in denses for weight in dense.weights]

    @tf.function
    def slopes(images):
        with tf.GradientTape() as tape:
            tape.watch(late)
            loss = tf.reduce_sum(tf.square(model(images, training=True)))
        return tape.gradient(loss, [model.get_layer("block_00").mlp.dense_2.kernel.value, *late])

    early, *others = slopes.get_concrete_function(tf.TensorSpec((3, 20, 28, 3))).graph.outputs
    before = needed_for(early)
    assert [buffer_of(slope).op in before for slope in others] == [not frozen] * len(others)


def test_other_backends_are_left_to_their_compiler():
    for kernel in ("block", "mlp", "layer_norm", "norm_dense"):
        for training in (False, None, True):
            trains_here = bool(training) and keras.config.backend() == "tensorflow"
            assert (kernels.select(kernel, training=training).name == "tensorflow_training") == trains_here
