"""`Embedder`: the model's numbers for photos in any process, and a status for a photo that has none."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, make_tiny
from forks import forked
from photos import BAD, add_odd_files, make_photos

import keras_vit
from keras_vit.exporting.engines.accelerate import write_engine

# TensorFlow counts the tracing of every test's own function as one that is traced again and again.
pytestmark = pytest.mark.filterwarnings("ignore:.*triggered tf.function retracing")
ENGINE = "engine.onnx"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with photos, a model, and the model in a file of ONNX that takes prepared images."""
    place = tmp_path_factory.mktemp("embedder")
    add_odd_files(make_photos(place / "photos", per_class=3))
    model = make_tiny()
    model.save(place / "model.keras")
    write_engine(model, place / ENGINE)
    return place


@pytest.fixture(scope="module")
def photos(place):
    return sorted(path for path in (place / "photos").rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def expected(place, photos):
    """What the model says of each photo that can be read: features, logits and scores."""
    import keras

    model = keras.saving.load_model(place / "model.keras")
    good = [path for path in photos if path.relative_to(place / "photos").as_posix() not in BAD]
    images = np.stack([np.asarray(model.preprocessing(keras_vit.read_image(path))) for path in good])
    logits = model.predict(images, verbose=0)
    features = keras.Model(model.input, model.layers[-1].input).predict(images, verbose=0)
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return {"features": features, "logits": logits, "scores": exponents / exponents.sum(axis=1, keepdims=True)}


def largest(found, expected):
    ok = found["status"] == "ok"
    ((name, rows),) = ((name, rows) for name, rows in found.items() if name != "status")
    assert np.isnan(rows[~ok]).all()
    assert rows.dtype == np.float32
    return np.abs(rows[ok] - expected[name]).max()


@pytest.mark.parametrize("outputs", ["features", "logits", "scores"])
def test_rows_are_the_models_numbers_and_a_bad_photo_is_a_status(place, photos, expected, outputs):
    found = keras_vit.Embedder(place / ENGINE, outputs, batch_size=4)(photos)
    assert largest(found, expected) < 5e-6  # numbers up to 3 in float32, in another order of sums
    names = [path.relative_to(place / "photos").as_posix() for path in photos]
    assert {name: status for name, status in zip(names, found["status"], strict=True) if status != "ok"} == BAD


@pytest.mark.parametrize(
    "engine", ["tensorflow", *(pytest.param(name, marks=pytest.mark.slow) for name in ("auto", "openvino"))]
)
def test_every_engine_gives_the_models_numbers(place, photos, expected, engine):
    embedder = keras_vit.Embedder(place / "model.keras", engine=engine, batch_size=8)
    assert largest(embedder([path.read_bytes() for path in photos]), expected) < 5e-6
    assert embedder.opened.engine == ("onnxruntime" if engine == "auto" else engine)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
def test_exported_file_takes_whole_grey_levels(place, photos, expected, tmp_path, suffix):
    """So it differs by what half a grey level does."""
    import keras

    keras_vit.export(keras.saving.load_model(place / "model.keras"), tmp_path / f"pixels{suffix}", verify=False)
    assert 0 < largest(keras_vit.Embedder(tmp_path / f"pixels{suffix}")(photos), expected) < 0.1


def test_pickle_carries_words_alone_and_opens_nothing(place, photos, monkeypatch):
    monkeypatch.chdir(place)
    embedder = keras_vit.Embedder("engine.onnx", threads=1)
    before = pickle.dumps(embedder)
    found = embedder(photos[:3])
    assert len(before) < 500
    assert pickle.dumps(embedder) == before
    monkeypatch.chdir("/")  # where workers of Ray and Spark stand
    copy = pickle.loads(before)
    np.testing.assert_array_equal(copy(photos[:3])["features"], found["features"])


def test_a_file_is_opened_anew_in_a_forked_process(place, photos):
    embedder = keras_vit.Embedder(place / ENGINE, threads=1)
    before = embedder(photos)

    def child():
        opened = embedder.opened
        assert (embedder(photos)["features"] == before["features"])[before["status"] == "ok"].all()
        assert embedder.opened is opened

    parents = embedder.opened
    assert forked(child) == 0
    assert embedder.opened is parents


def test_a_model_that_needs_keras_is_refused_in_a_fork_of_a_process_that_used_it(place, photos, expected):
    def child():
        with pytest.raises(RuntimeError, match="forked from"):
            keras_vit.Embedder(place / "model.keras", engine="tensorflow")(photos)

    assert forked(child) == 0


@pytest.mark.slow
def test_spawned_process_answers_alike(place, photos):
    embedder = keras_vit.Embedder(place / ENGINE, threads=1)
    code = "import pickle, sys; e, p = pickle.load(sys.stdin.buffer); pickle.dump(e(p), sys.stdout.buffer)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    given = pickle.dumps((embedder, photos))
    done = subprocess.run([sys.executable, "-c", code], input=given, env=environment, capture_output=True, check=True)
    np.testing.assert_array_equal(pickle.loads(done.stdout)["features"], embedder(photos)["features"])


def test_places_without_a_photo_and_no_photos_at_all(place, tmp_path):
    embedder = keras_vit.Embedder(place / ENGINE)
    os.mkfifo(tmp_path / "pipe.jpg")
    found = embedder(np.array([tmp_path / "no.jpg", tmp_path, None, b"", tmp_path / "pipe.jpg"], object))
    reasons = ["no such file", "a folder, not a regular file", "nothing was given", "empty file"]
    assert found["status"].tolist() == [*reasons, "a pipe, not a regular file"]
    assert np.isnan(found["features"]).all()
    assert embedder([])["features"].shape == (0, 12)
    assert embedder([])["status"].shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((5,), TypeError, "`model`"),
        (("",), TypeError, "`model`"),
        (("m.onnx", "feature"), ValueError, r"`outputs`(?s:.*)'features'"),
        (("m.onnx", "scores", "onnx"), ValueError, "`engine`"),
        (("m.onnx", "scores", "auto", "float64"), ValueError, "`precision`"),
        (("m.onnx", "scores", "auto", None, 0), ValueError, "`threads`"),
    ],
)
def test_wrong_words_are_reported_before_anything_is_opened(arguments, error, words):
    with pytest.raises(error, match=words):
        keras_vit.Embedder(*arguments)


@pytest.mark.parametrize(
    ("model", "named", "error", "words"),
    [
        ("no.onnx", {}, FileNotFoundError, r"`model`(?s:.*)no\.onnx"),
        ("engine.onnx", {"engine": "openvino"}, ValueError, "its own software, onnxruntime"),
        ("engine.onnx", {"precision": "int8"}, ValueError, "written in, float32"),
        ("model.tflite", {}, ValueError, "ONNX or OpenVINO"),
        ("no-such-model", {}, FileNotFoundError, "nothing is there"),
    ],
)
def test_what_cannot_be_opened_is_reported_at_the_first_call(place, monkeypatch, model, named, error, words):
    monkeypatch.chdir(place)
    embedder = keras_vit.Embedder(model, **named)
    with pytest.raises(error, match=words):
        embedder([b""])


def test_what_is_no_batch_of_photos_is_reported(place):
    embedder = keras_vit.Embedder(place / ENGINE)
    for wrong, words in (("photo.jpg", "a str"), ({"bytes": [b""]}, "a dict"), ([5], "its bytes or its path")):
        with pytest.raises(TypeError, match=words):
            embedder(wrong)
