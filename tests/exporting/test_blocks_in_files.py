"""Attention in blocks is for TensorFlow: its files have the loops, and what other runtimes read has plain products."""

import unittest.mock

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy
from served import make_job

from keras_vit.exporting import onnx_graph
from keras_vit.exporting.model_function import pixel_function
from keras_vit.kernels import chunked_attention

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf2onnx")
pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports need TensorFlow")


def loops_of(function):
    definition = function.get_concrete_function().graph.as_graph_def()
    graphs = [definition.node, *(inner.node_def for inner in definition.library.function)]
    return {node.op for nodes in graphs for node in nodes if "While" in node.op or node.op.endswith("If")}


@pytest.mark.parametrize("shape", [(20, 28, 3), (None, None, 3)])
def test_served_graphs_have_blocks_and_files_of_other_runtimes_none(shape, tmp_path):
    """TensorFlow's file is the same as the model in blocks and at once; converters see plain products."""
    model = make_tiny(input_shape=shape, position_embedding="sincos2d")
    pictures = [images(2, height, 28, 3) for height in ((20,) if shape[0] else (20, 12))]
    expected = [numpy(model(x)) for x in pictures]
    spec = make_job(model)
    module = tf.Module()
    with unittest.mock.patch.multiple(
        chunked_attention, CHUNK_WEIGHTS=300, MIN_WEIGHTS=22 * 22
    ):  # of 36 and of 22 tokens
        assert not loops_of(pixel_function(spec))
        assert not loops_of(onnx_graph._function(spec)[0])
        module.answer = tf.function(lambda x: model(x, training=False), input_signature=[tf.TensorSpec((None, *shape))])
        module.weights = list(module.answer.get_concrete_function().variables)
        assert loops_of(module.answer)
        tf.saved_model.save(module, str(tmp_path))
    served = tf.saved_model.load(str(tmp_path))
    for x, answer in zip(pictures, expected, strict=True):
        np.testing.assert_allclose(served.answer(x), answer, atol=1e-5)  # float32 rounding
