"""`keras_vit.accelerate`: each engine answers as the model does, and refuses what the model would not take."""

import concurrent.futures
import copy
import pickle
import sys
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import images, make_tiny, numpy
from exporting.fake_format import traced
from pictures import picture

import keras_vit
from keras_vit.exporting.engines import accelerate as module
from keras_vit.exporting.engines.runtimes import ALL
from keras_vit.exporting.formats import onnx, openvino
from keras_vit.exporting.report import ExportError
from keras_vit.model.outputs import inference_model

PHOTOS = [picture(33 + n, 47 - n, seed=n) for n in range(3)]
CLOSE = 1e-5  # the promise of float32; numbers of these models are below 5
XLA = pytest.param("xla", marks=pytest.mark.slow)  # which compiles for seconds
BATCHES = (1, 2, 5)


def accelerated(model, engine, precision="float32", **options):
    return keras_vit.accelerate(model, engine, precision, images=PHOTOS, **options)


@pytest.fixture(autouse=True, scope="module")
def one_reference():
    """A model is traced once for all comparisons with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Reference", traced)
        yield


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(7)
    return make_tiny()


@pytest.fixture(scope="module", params=ALL)
def engine(request, model):
    """The model in each engine."""
    return accelerated(model, request.param)


# The same numbers


def test_engine_takes_pixels_of_the_models_size(engine, model):
    pixels = np.random.default_rng(2).integers(0, 256, (2, 20, 28, 3), dtype="uint8")
    expected = engine(model.preprocessing(pixels))
    for answer in (engine, engine.predict_on_batch, engine.predict):
        np.testing.assert_array_equal(answer(pixels), expected)


def test_engine_answers_as_the_model_at_every_batch(engine, model):
    for batch in BATCHES:
        x = images(batch, 20, 28, 3)
        assert np.abs(engine(x) - numpy(model(x, training=False))).max() < CLOSE
        assert np.array_equal(engine.predict_on_batch(x), engine(x))


def test_features_are_what_the_head_reads(engine, model):
    x = images(3, 20, 28, 3)
    expected = numpy(inference_model(model)(x, training=False)["features"])
    found = engine.features(x)
    assert (found.shape, found.dtype) == ((3, 12), np.float32)
    assert np.abs(found - expected).max() < CLOSE


def test_engine_knows_what_the_model_knows(engine, model):
    assert engine.preprocessing == model.preprocessing
    assert engine.config == model.config
    assert (engine.name, engine.input_shape, engine.output_shape) == (model.name, (None, 20, 28, 3), (None, 7))
    assert engine.output_spec == model.output_spec
    assert (engine.precision, engine.threads, engine.output_activation) == ("float32", None, "linear")
    assert repr(engine) == f"<Engine {engine.engine}, float32, of 'vit' (None, 20, 28, 3) to (None, 7)>"


def test_report_says_what_was_compared_and_timed(engine):
    report = engine.report
    assert (report.images, report.top1_agreement, report.left_out, report.batch_size) == (3, 1.0, {}, 1)
    assert [drift.output for drift in report.drift] == ["logits", "features", "scores"]
    assert report.max_difference == max(drift.max_difference for drift in report.drift) < CLOSE
    assert list(report.seconds) == [engine.engine, "model"]
    assert min(report.seconds.values()) > 0
    assert report.line().startswith(f"{engine.engine} ({report.runtime}) in float32, ")
    assert "| logits |" in report.table()
    assert report.summary()["engine"] == engine.engine


def test_images_of_any_kind_are_predicted_in_order(engine, model):
    x = images(5, 20, 28, 3)
    expected = numpy(model(x, training=False))
    pairs = tf.data.Dataset.from_tensor_slices((x, np.arange(5))).batch(2)
    arrays = x, list(x), tf.constant(x), x.astype("float64")
    for given in (*arrays, pairs, pairs.map(lambda x, y: x), parts(x), Parts(x)):
        found = engine.predict(given, batch_size=2, verbose=0)
        assert found.dtype == np.float32
        assert np.abs(found - expected).max() < CLOSE


def parts(x):
    """A generator of batches and labels."""
    for start in range(0, len(x), 2):
        yield x[start : start + 2], np.zeros(2)


class Parts(keras.utils.PyDataset):
    """Batches of two."""

    def __init__(self, x):
        super().__init__()
        self.x = x

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return (self.x[2 * index : 2 * index + 2],)


@pytest.mark.parametrize("name", ["tensorflow", XLA, "openvino", "onnxruntime"])
def test_sides_may_be_chosen_at_each_call(name):
    model = make_tiny(input_shape=(None, 28, 3), num_layers=1)
    engine = accelerated(model, name)
    for shape in ((2, 36, 28, 3), (1, 8, 28, 3)):
        x = images(*shape)
        assert np.abs(engine(x) - numpy(model(x, training=False))).max() < CLOSE
    with pytest.raises(ValueError, match=r"`patch_size`(?s:.*)\(22, 28, 3\)"):
        engine(images(1, 22, 28, 3))  # whose last rows a convolution would drop


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("tensorflow", {"classifier_activation": "softmax"}),
        ("openvino", {"include_top": False, "classes": None}),
        ("onnxruntime", {"classifier_activation": "softmax"}),
    ],
)
def test_scores_and_features_are_answered_where_the_model_ends_in_them(name, ending):
    model = make_tiny(num_layers=1, **ending)
    x = images(2, 20, 28, 3)
    assert np.abs(accelerated(model, name)(x) - numpy(model(x, training=False))).max() < CLOSE


def test_mixed_precision_is_answered_in_float32():
    """What the engine is asked for, whatever policy the model computes in."""
    model = make_tiny(num_layers=1)
    keras.config.set_dtype_policy("mixed_bfloat16")
    mixed = make_tiny(num_layers=1)
    x = images(3, 20, 28, 3)
    assert np.abs(accelerated(mixed, "tensorflow")(x) - numpy(model(x, training=False))).max() < CLOSE


# Precisions


@pytest.mark.parametrize("name", ["tensorflow", XLA, "openvino"])
def test_bfloat16_is_computed_in_bfloat16(name, model):
    """Near the model, and not as near as float32 is."""
    if name == "openvino" and not has_bfloat16():
        pytest.skip("the processor has no bfloat16")
    x = images(5, 20, 28, 3)
    expected = numpy(model(x, training=False))
    difference = np.abs(accelerated(model, name, "bfloat16")(x) - expected).max() / expected.std()
    assert 1e-3 < difference < 0.25  # 8 bits for each number; the bound of `export`


def has_bfloat16():
    try:
        openvino.check_bfloat16()
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", ["tensorflow", XLA, "openvino", "onnxruntime"])
def test_int8_is_near_the_model(name, model):
    photos = [picture(33 + n, 67 - n, seed=n) for n in range(32)]
    engine = keras_vit.accelerate(model, name, "int8", images=photos)
    x = np.stack([numpy(model.preprocessing(photo[None]))[0] for photo in photos[:5]])
    expected = numpy(model(x, training=False))
    difference = np.abs(engine(x) - expected).max() / expected.std()
    assert 1e-4 < difference < 0.5
    assert engine.report.images == 16  # for OpenVINO others than it was calibrated on


def test_quantised_model_runs_in_tensorflow_alone(model):
    quantised = keras_vit.with_input_shape(model, (20, 28, 3))
    quantised.quantize("int8", filters=r".*query.*|.*mlp.*")
    x = images(2, 20, 28, 3)
    assert np.abs(accelerated(quantised, "tensorflow", "int8")(x) - numpy(quantised(x, training=False))).max() < CLOSE
    with pytest.raises(ValueError, match="quantised"):
        accelerated(quantised, "openvino", "int8")
    with pytest.raises(ValueError, match='Pass precision="int8"'):
        accelerated(quantised, "tensorflow")


def test_processor_without_bfloat16_is_not_taken_for_one(model, monkeypatch):
    import openvino as package

    monkeypatch.setattr(package.Core, "get_property", lambda *_: ["FP32", "INT8"])
    with pytest.raises(ValueError, match='precision="bfloat16"'):
        accelerated(model, "openvino", "bfloat16")


# Refusals


@pytest.fixture(scope="module")
def any_engine(model):
    return accelerated(model, "tensorflow")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "openvin"}, "`engine`.*\n.*Did you mean 'openvino'"),
        ({"precision": "float16"}, "`precision`.*\n.*float16"),
        ({"engine": "onnxruntime", "precision": "bfloat16"}, "ONNX Runtime has no bfloat16"),
        ({"engine": "torch"}, "`engine`.*\n.*'torch'"),
        ({"engine": "tensorflow", "threads": 1}, "threads=1.*INTRAOP"),
        ({"engine": "xla", "threads": 1}, "threads=1"),
        ({"threads": 0}, "threads=0"),
        ({"threads": 4097}, "cores.*\n.*threads=4097"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_what_no_engine_can_do_is_refused(model, options, words):
    with pytest.raises(ValueError, match=words):
        keras_vit.accelerate(model, **options)


def test_models_of_others_and_without_pooling_are_refused(model):
    with pytest.raises(TypeError, match="VisionTransformer or ResNet"):
        keras_vit.accelerate(keras.Model(model.input, model.output))
    with pytest.raises(ValueError, match="one row for each image"):
        keras_vit.accelerate(make_tiny(num_layers=1, pooling="none", include_top=False, classes=None))


def test_another_backend_is_refused(model, monkeypatch):
    monkeypatch.setattr("keras.config.backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="backend 'jax'"):
        keras_vit.accelerate(model)


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (np.zeros((2, 20, 28, 3), "int16"), TypeError, "images must be floats"),
        (images(20, 28, 3), ValueError, r"shape \(20, 28, 3\)"),
        (images(2, 28, 20, 3), ValueError, r"shape \(2, 28, 20, 3\)"),
        (images(0, 20, 28, 3), ValueError, "at least one"),
        (np.full((1, 20, 28, 3), np.nan, "float32"), ValueError, "finite"),
        (np.full((1, 20, 28, 3), 1e300), ValueError, "finite"),
    ],
)
def test_images_that_are_none_are_refused(any_engine, x, error, words):
    for call in (any_engine, any_engine.features, any_engine.predict_on_batch):
        with pytest.raises(error, match=words):
            call(x)


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        ([], ValueError, "at least one image"),
        ("photo.jpg", TypeError, "`x`.*\n.*type str"),
        (([*images(2, 20, 28, 3)], [1, 2]), TypeError, r"`x`(?s:.*)type tuple"),
        (tf.data.Dataset.from_tensors(images(2, 20, 28, 3)).repeat(), ValueError, "must end"),
        (tf.data.Dataset.from_tensors(images(2, 20, 28, 3)).take(0), ValueError, "at least one image"),
    ],
    ids=["no images", "a path", "images and labels", "an endless dataset", "an empty dataset"],
)
def test_what_holds_no_images_is_refused(any_engine, x, error, words):
    with pytest.raises(error, match=words):
        any_engine.predict(x)


def test_engine_is_of_one_process(any_engine):
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"copied or pickled.\n.*<Engine tensorflow"):
            copied(any_engine)


def test_onnxruntime_takes_the_cores_of_the_process(monkeypatch):
    """It would take those of the machine, whose threads then wait for one another (openvino 2.1 times as slow beside
    it, on one core of two)."""
    onnxruntime, seen = pytest.importorskip("onnxruntime"), []

    def opened(place, options, providers):
        seen.append((options.intra_op_num_threads, options.get_session_config_entry("session.force_spinning_stop")))
        raise RuntimeError("enough")

    monkeypatch.setattr(onnxruntime, "InferenceSession", opened)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    for mine, threads in ((range(4), None), ((1, 3), None), ((1, 3), 1)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, mine=mine: set(mine), raising=False)
        with pytest.raises(ExportError, match="enough"):
            onnx.Onnx().open_runtime("model.onnx", threads)
    assert seen == [(0, "1"), (2, "1"), (1, "1")]


def test_engine_does_not_train(any_engine):
    with pytest.raises(ValueError, match="does not train"):
        any_engine(images(1, 20, 28, 3), training=True)


def test_pixels_that_were_not_scaled_are_warned_of(any_engine):
    pixels = np.tile(np.float32([0, 100, 255]), (2, 20, 28, 1))
    with pytest.warns(UserWarning, match="0 to 255.* -1 to 1"):
        any_engine.predict(pixels)
    for call in (any_engine, any_engine.features, any_engine.predict_on_batch):
        any_engine.checked_methods = {None}
        with pytest.warns(UserWarning, match="0 to 1"):
            call(pixels / 255)
        call(pixels / 255)  # which was said already
    for wrong in (pixels[0], pixels[:, :16], np.moveaxis(pixels, -1, 1), pixels[..., :1]):
        with pytest.raises(ValueError, match=r"Received: shape .*\(None, 20, 28, 3\)"):
            any_engine.predict(wrong)


@pytest.mark.parametrize("package", ["openvino", "onnxruntime"])
def test_package_that_is_missing_is_named_with_its_extra(model, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r'pip install "\.\[export\]"'):
        accelerated(model, package)


# What it costs


@pytest.mark.parametrize(("name", "follows"), [("tensorflow", True), ("openvino", False)])
def test_weights_are_shared_where_the_engine_can(name, follows):
    """In TensorFlow the model's own variables compute, so that weights are not held twice."""
    model = make_tiny(num_layers=1)
    engine, x = accelerated(model, name), images(2, 20, 28, 3)
    before = engine(x)
    bias = model.get_layer("head").bias
    bias.assign_add(np.ones(7))
    assert np.abs(engine(x) - before).max() == pytest.approx(float(follows), abs=CLOSE)


def test_runtimes_are_told_threads_and_precision_and_no_file_is_left(model, tmp_path, monkeypatch):
    import onnxruntime
    import openvino as package

    told, compile_model, session = {}, package.Core.compile_model, onnxruntime.InferenceSession

    def compiled(core, file, device, options):
        told["openvino"] = options
        return compile_model(core, file, device, options)

    def opened(file, options=None, **said):
        told["onnxruntime"] = options and options.intra_op_num_threads
        return session(file, options, **said)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(package.Core, "compile_model", compiled)
    monkeypatch.setattr(onnxruntime, "InferenceSession", opened)
    engines = [accelerated(model, name, threads=1 + turn) for turn, name in enumerate(("openvino", "onnxruntime"))]
    assert told["openvino"] == {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    assert told["onnxruntime"] == 2
    assert [engine.threads for engine in engines] == [1, 2]
    # TensorFlow's own stay until the process ends.
    assert [file for file in tmp_path.iterdir() if "autograph" not in file.name] == [tmp_path / "cache"]


def test_threads_may_share_an_engine(engine):
    batches = [images(2, 20, 28, 3, seed=seed) for seed in range(24)]
    expected = [engine(batch) for batch in batches]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(engine, batches), expected, strict=True):
            assert np.array_equal(found, wanted)
