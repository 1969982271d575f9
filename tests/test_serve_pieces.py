"""What `examples/serve.py` is made of, and its stand-in on a model that was exported."""

import sys
import tracemalloc

import numpy as np
import pytest
from conftest import ROOT, make_tiny
from serving_model import write_served

pytest.importorskip("grpc")
pytest.importorskip("requests")
pytest.importorskip("uvicorn")
sys.path.insert(0, str(ROOT / "examples"))

import serve as example
from serving_json import BadRequestError, parse_body
from serving_stand_in import BusyError, Room, ServedModel, StandIn

pytestmark = pytest.mark.docs  # an example


def test_body_of_millions_of_values_is_refused_before_it_is_parsed():
    body = b'{"instances": [' + b"[]," * 2**21 + b"[]]}"  # as lists 184 MB
    tracemalloc.start()
    try:
        with pytest.raises(BadRequestError, match="at most 4194304"):
            parse_body(body)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert len(parse_body(body[: 15 + 3 * 2**20] + b"[]]}")["instances"]) == 2**20 + 1


def test_bodies_that_are_held_are_bounded():
    room = Room(10)
    with room.of_one() as take, room.of_one() as other:
        take(6)
        other(4)
        with pytest.raises(BusyError, match="10 bytes"):
            other(1)
    assert room.held == 0


def test_folder_without_versions_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no version folder"):
        ServedModel(tmp_path, "birds")


def test_name_is_the_configs(tmp_path):
    folder = write_served(tmp_path / "served")
    assert example.model_name(folder) == "birds"
    assert example.model_name(folder, "given") == "given"
    assert example.model_name(tmp_path / "owls") == "owls"


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        ({"status": "ok", "labels": ["ash", "elm"], "top_scores": [0.912, 0.05]}, ["   91.2%  ash", "    5.0%  elm"]),
        ({"status": "damaged", "labels": ["", ""], "top_scores": [0, 0]}, ["  not read: damaged"]),
        ({"status": "ok", "features": [0.5, 0.25]}, ["  2 features"]),
    ],
)
def test_describe_prints_names_or_the_reason(answer, lines):
    assert example.describe("a.jpg", answer).splitlines() == ["a.jpg", *lines]


def test_exported_model_answers_photos_as_keras_does(tmp_path):
    """No resize: the PNG has the model's size. A broken file and a larger photo stand beside it."""
    import keras
    import tensorflow as tf

    import keras_vit

    model, pixels = make_tiny(num_layers=1), np.random.default_rng(4).integers(0, 256, (20, 28, 3), dtype="uint8")
    names = [f"bird {number}" for number in range(7)]
    keras_vit.export(model, tmp_path / "tiny", labels=names, verify=False, images=[pixels] * 2, options={"top_k": 2})
    file = tf.io.encode_png(pixels).numpy()
    large = tf.io.encode_jpeg(pixels.repeat(3, 0).repeat(5, 1)).numpy()
    with StandIn(ServedModel(tmp_path / "tiny", "tiny")) as server:
        assert server.model.warm_up(tmp_path / "tiny") >= 4
        answers = example.ask_by_rest([file, file[:50], large], "tiny", server.rest_port)
        by_grpc = example.ask_by_grpc([file], "tiny", server.grpc_port)
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(model(model.preprocessing(pixels[None]))))[0]
    np.testing.assert_allclose(answers[0]["scores"], expected, atol=1e-5)
    np.testing.assert_allclose(by_grpc[0]["scores"], expected, atol=1e-5)
    assert answers[0]["labels"] == [names[k] for k in np.argsort(-expected)[:2]]
    assert [answer["status"] for answer in answers] == ["ok", "damaged", "ok"]
