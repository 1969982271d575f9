"""`engine="torch"`: models of every kind answer in torch as Keras does, and what torch would not compute is refused."""

import weakref

import numpy as np
import onnx
import pytest
from conftest import images, make_tiny, numpy, randomise, tiny_config
from exporting.lively import lively
from pictures import picture

import keras_vit
from keras_vit.exporting.engines.torch_graph import TorchGraph
from keras_vit.exporting.onnx.convert import Graph
from keras_vit.exporting.report import ExportError
from keras_vit.model.classifiers import answering_network

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*triggered tf.function retracing")]
torch = pytest.importorskip("torch")

PHOTOS = [picture(33 + n, 47 - n, seed=n) for n in range(3)]
CLOSE = 1e-5  # the promise of float32, of the largest number where that is above 1
HYBRID = {"patch_size": 1, "resnet_stages": (1, 2), "resnet_width_factor": 0.5}
ANY = (None, None, 3)


def built(input_shape=(20, 28, 3), **fields):
    return randomise(keras_vit.build(tiny_config(**fields), input_shape=input_shape, classes=7))


def any_size(model, method="align_corners"):
    model = keras_vit.with_input_shape(model, ANY)
    model.get_layer("position_embedding").resize_method = method
    return model


MODELS = {
    "Ti/16": lambda: lively("Ti/16", small=True),
    "B/16": lambda: lively("B/16", small=True),
    "DeiT": lambda: lively("DeiT", small=True),
    "hybrid": lambda: built((64, 96, 3), **HYBRID),
    "hybrid of any size": lambda: any_size(built((64, 96, 3), **HYBRID)),
    "ResNet": lambda: randomise(
        keras_vit.build_resnet(keras_vit.ResNetConfig((2, 1), 0.5), classes=7, input_shape=(37, 50, 3))
    ),
    "exact GELU, mean": lambda: built(activation="gelu", pooling="gap"),
    "attention pooling of any size": lambda: any_size(built(pooling="map", position_embedding="learned2d"), "bicubic"),
    "sine and cosine of any size": lambda: keras_vit.with_input_shape(built(position_embedding="sincos2d"), ANY),
    "relative positions": lambda: built(position_embedding="relative"),
    "axial attention": lambda: built(attention="axial", pooling="gap"),
    "tanh layer": lambda: built(representation_size=9),
    "merged tokens": lambda: keras_vit.merge_tokens(built(), 5),
    "features alone": lambda: make_tiny(include_top=False, classes=None),
    "scores": lambda: make_tiny(classifier_activation="sigmoid"),
}


@pytest.mark.parametrize("name", MODELS)
def test_engine_answers_as_keras_does(name):
    model = MODELS[name]()
    engine = keras_vit.accelerate(model, "torch", images=PHOTOS)
    assert engine.report.runtime.startswith("torch ")
    height, width, channels = (got or side for got, side in zip(model.input_shape[1:], (64, 48, 3), strict=True))
    network = answering_network(model)
    for batch in (1, 3):
        x = images(batch, height, width, channels)
        wanted = {name: numpy(tensor) for name, tensor in network(x, training=False).items()}
        answer = model.predict(x, verbose=0)
        assert np.abs(engine(x) - answer).max() < CLOSE * max(1, np.abs(answer).max())
        features = wanted["features"]
        assert np.abs(engine.features(x) - features).max() < CLOSE * max(1, np.abs(features).max())


@pytest.mark.parametrize("name", ["Ti/16", "hybrid", "ResNet", "relative positions"])
def test_bfloat16_is_near_and_is_computed_in_it(name):
    model = MODELS[name]()
    x = images(5, *model.input_shape[1:])
    wanted = model.predict(x, verbose=0)
    found = keras_vit.accelerate(model, "torch", "bfloat16", images=PHOTOS)(x)
    assert found.dtype == np.float32
    assert 1e-3 < np.abs(found - wanted).max() / wanted.std() < 0.25  # 8 bits for each number; the bound of `export`


def graph_of(nodes, answer, constants=(), shape=(None, None, None, None), kind=onnx.TensorProto.FLOAT):
    """A graph from `images` to one answer."""
    given = onnx.helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, shape)
    found = onnx.helper.make_tensor_value_info(answer, kind, None)
    constants = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in dict(constants).items()]
    return Graph(onnx.helper.make_model(onnx.helper.make_graph(nodes, "graph", [given], [found], constants)), {})


def test_unknown_operator_is_refused_by_its_name():
    node = onnx.helper.make_node("Det", ["images"], ["answer"], name="block/odd")
    with pytest.raises(ExportError, match=r"must be known to be computed in torch.\nReceived: Det, in 'block/odd'"):
        TorchGraph(graph_of([node], "answer"))


def test_unknown_attribute_is_refused_by_its_name():
    node = onnx.helper.make_node("Softmax", ["images"], ["answer"], name="odd", temperature=2.0)
    with pytest.raises(ExportError, match=r"Received: Softmax with temperature, in 'odd'"):
        TorchGraph(graph_of([node], "answer"))


def test_places_are_not_rounded_in_bfloat16():
    """Merged tokens are sorted by their places as floats, of which bfloat16 knows 256."""
    make = onnx.helper.make_node
    nodes = [
        make("TopK", ["images", "count"], ["best", "order"], name="a/b/top"),
        make("Cast", ["order"], ["places"], name="a/b/cast", to=onnx.TensorProto.FLOAT),
        make("Neg", ["places"], ["negative"], name="a/b/neg"),
        make("TopK", ["negative", "count"], ["sorted", "unused"], name="a/b/sorted"),
        make("Neg", ["sorted"], ["answer"], name="a/b/back"),
    ]
    graph = graph_of(nodes, "answer", {"count": np.int64([600])}, (1, 1, 1, 600))
    found = TorchGraph(graph, "bfloat16")(torch.randn(1, 1, 1, 600))["answer"]
    np.testing.assert_array_equal(found.flatten(), np.arange(600))


def test_tensors_are_let_go_when_nothing_reads_them(monkeypatch):
    """Of two blocks' GELU, the first one's answer is gone when the second is computed."""
    model, seen = built(activation="gelu"), []
    engine = keras_vit.accelerate(model, "torch", images=PHOTOS)
    gelu = torch.nn.functional.gelu

    def watched(x, approximate):
        alive.append([kept() is not None for kept in seen])
        found = gelu(x, approximate=approximate)
        seen.append(weakref.ref(found))
        return found

    alive = []
    monkeypatch.setattr(torch.nn.functional, "gelu", watched)
    engine(images(1, 20, 28, 3))
    assert alive == [[], [False]]


def test_threads_are_set_for_a_call_and_put_back(monkeypatch):
    engine = keras_vit.accelerate(make_tiny(num_layers=1), "torch", threads=1, images=PHOTOS)
    told, before, set_num_threads = [], torch.get_num_threads() + 1, torch.set_num_threads
    set_num_threads(before)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: told.append(count) or set_num_threads(count))
    engine(images(1, 20, 28, 3))
    assert told == [1, before]
    assert torch.get_num_threads() == before
    set_num_threads(before - 1)


def test_weights_are_the_engine_s_own():
    for model in (make_tiny(num_layers=1), MODELS["ResNet"]()):
        engine, x = keras_vit.accelerate(model, "torch", images=PHOTOS), images(1, *model.input_shape[1:])
        before = engine(x)
        for weight in model.weights:
            weight.assign_add(np.ones(weight.shape))
        np.testing.assert_array_equal(engine(x), before)


def test_images_that_cannot_be_written_are_taken():
    engine, x = keras_vit.accelerate(make_tiny(num_layers=1), "torch", images=PHOTOS), images(2, 20, 28, 3)
    wanted = engine(x)
    x.flags.writeable = False
    np.testing.assert_array_equal(engine(x), wanted)
