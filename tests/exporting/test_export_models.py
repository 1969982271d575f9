"""`keras_vit.export` for models of every kind: what the writer gets, and that the model stays what it was."""

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, randomise
from exporting.fake_format import FakeFormat, register
from pictures import encoded, picture

import keras_vit
from keras_vit.exporting.folding import takes_pixels

LABELS = ["fig", "birch", "cedar", "douglas fir", "elm", "ash", "ginkgo"]  # in no order of their own
PHOTOS = [picture(33 + n, 47 - n, seed=n) for n in range(3)]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(7)
    return make_tiny(num_layers=1)


@pytest.fixture
def fake(monkeypatch):
    """A format of one file, `"fake"`."""
    return register(monkeypatch, "fake", FakeFormat())


@pytest.fixture
def fake_folder(monkeypatch):
    """A format of a folder of versions, `"fake_folder"`."""
    return register(monkeypatch, "fake_folder", FakeFormat(""))


def export(model, path, format="fake", **options):
    return keras_vit.export(model, path, format, images=PHOTOS, **options)


def computing_dtypes(model):
    return {layer.compute_dtype for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)}


@pytest.mark.parametrize(
    ("arguments", "activation", "outputs"),
    [
        ({"include_top": False, "classes": None}, "none", ["features"]),
        ({"classifier_activation": "softmax"}, "none", ["features", "scores"]),
        ({"distilled": True}, "softmax", ["logits", "features", "scores"]),
        ({"distilled": True, "classifier_activation": "softmax"}, "none", ["features", "scores"]),
        ({"distilled": True, "include_top": False, "classes": None}, "none", ["features"]),
        ({"input_shape": (20, 28, 1)}, "softmax", ["logits", "features", "scores"]),
        ({"input_shape": (20, 28, 4)}, "softmax", ["logits", "features", "scores"]),
        ({"representation_size": 9}, "softmax", ["logits", "features", "scores"]),
        ({"classes": 1}, "sigmoid", ["logits", "features", "scores"]),
    ],
)
def test_model_of_any_kind_is_compared(fake, tmp_path, arguments, activation, outputs):
    model = make_tiny(num_layers=1, **arguments)
    report = export(
        model, tmp_path / "x.fake", options={"activation": "softmax" if activation == "none" else activation}
    )
    assert [drift.output for drift in report.drift] == outputs
    spec = fake.jobs[0]
    assert spec.activation == activation
    assert (spec.labels is None) == (spec.top_k == 0) == ("scores" not in outputs)
    assert (report.top1_agreement is None) == ("scores" not in outputs)
    assert spec.calibration_photos.shape[-1] == model.input_shape[-1]


def around(encoder, kind):
    images, dense = keras.Input((20, 28, 3)), keras.layers.Dense(5, name="own")
    flipped = keras.layers.RandomFlip()(images) if kind == "augmented" else images
    if kind == "scaled":
        flipped = keras.layers.Rescaling(2.0)(images)
    features = encoder(flipped)
    if kind == "sequential":
        return keras.Sequential([keras.Input((20, 28, 3)), encoder, dense])
    if kind == "scores":
        return keras.Model(images, keras.layers.Softmax()(dense(features)))
    if kind == "images":  # whose pixels no other layer gets scaled otherwise
        return keras.Model(images, dense(features + keras.layers.Dense(12)(keras.layers.Flatten()(images))))
    if kind == "features":
        return keras.Model(images, keras.layers.LayerNormalization()(dense(features)))
    hidden = features + keras.layers.Dense(12, "gelu")(keras.layers.Dropout(0.1, name="pooling")(features))
    return keras.Model(images, dense(hidden))


@pytest.mark.parametrize(
    ("kind", "outputs"),
    [
        ("deep", ["logits", "features", "scores"]),
        ("sequential", ["logits", "features", "scores"]),
        ("augmented", ["logits", "features", "scores"]),
        ("scores", ["features", "scores"]),
        ("features", ["features"]),
        ("images", ["logits", "features", "scores"]),
    ],
)
def test_encoder_in_a_model_of_the_users_is_exported_with_its_layers(fake, tmp_path, kind, outputs):
    encoder = randomise(make_tiny(num_layers=1, include_top=False, classes=None))
    model = around(encoder, kind)
    report = export(model, tmp_path / "x.fake", labels=LABELS[:5] if "scores" in outputs else None)
    assert [drift.output for drift in report.drift] == outputs
    written, x = fake.jobs[0].model, images(2, 20, 28, 3)
    np.testing.assert_allclose(numpy(written(x)), numpy(model(x, training=False)), atol=1e-5)  # sums in a copy
    assert written.preprocessing == encoder.preprocessing
    assert takes_pixels(fake.jobs[0]) == (kind != "images")  # else other layers would get them unscaled


def test_what_stands_around_an_encoder_and_cannot_be_served_is_refused(fake, tmp_path):
    encoder = make_tiny(num_layers=1, include_top=False, classes=None)
    with pytest.raises(TypeError, match=r"in front of an encoder(?s:.*)'rescaling"):
        export(around(encoder, "scaled"), tmp_path / "x.fake")
    with pytest.raises(TypeError, match=r"no head(?s:.*)include_top=False"):
        export(around(make_tiny(num_layers=1, classes=12), "deep"), tmp_path / "x.fake")
    subclassed = type("Subclassed", (keras.Model,), {"call": lambda self, x: self.encoder(x)})()
    subclassed.encoder = encoder
    subclassed(images(1, 20, 28, 3))
    for model in (keras.Model(encoder.input, keras.layers.Dense(5)(encoder.output)), subclassed):
        with pytest.raises(TypeError, match="one encoder that it calls as a layer"):
            export(model, tmp_path / "x.fake")


def test_softmax_over_one_class_is_refused(fake, tmp_path):
    model = make_tiny(num_layers=1, classes=1)
    with pytest.raises(ValueError, match=r'activation="softmax".*"sigmoid"'):
        export(model, tmp_path / "x.fake")


def test_model_of_nan_is_told_from_a_wrong_file(fake, tmp_path):
    model = make_tiny(num_layers=1)
    model.get_layer("head").bias.assign([float("nan")] * 7)
    with pytest.raises(ValueError, match="finite"):
        export(model, tmp_path / "x.fake")
    assert not list(tmp_path.iterdir())


def test_labels_for_a_model_without_a_head_are_refused(fake, tmp_path):
    with pytest.raises(ValueError, match=r"`labels`.*\n.*without a head"):
        export(make_tiny(include_top=False, classes=None, num_layers=1), tmp_path / "x.fake", labels=LABELS)


def test_size_of_any_is_left_open_and_compared_at_two_sizes(model, fake, tmp_path):
    sizes = set()
    fake.spoil = lambda answers, pixels: sizes.add(pixels.shape[1:3]) or answers
    report = export(model, tmp_path / "x.fake", options={"image_size": "any"})
    assert (fake.jobs[0].image_size, report.images) == ((None, None), 3)
    assert sizes == {(56, 60), (64, 68)}


def test_lora_is_merged(fake, tmp_path):
    model = make_tiny(num_layers=1)
    keras_vit.add_lora(model, rank=2)
    x = images(2, 20, 28, 3)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.1)
    expected = numpy(model(x))
    export(model, tmp_path / "x.fake")
    merged = fake.jobs[0].model
    np.testing.assert_allclose(numpy(merged(x)), expected, atol=1e-5)  # A B is added to a kernel in another order
    assert len(merged.weights) < len(model.weights)


def test_model_in_mixed_precision_is_exported_in_float32(fake, tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = make_tiny(num_layers=1)
    export(model, tmp_path / "x.fake")
    assert computing_dtypes(fake.jobs[0].model) == {"float32"}
    assert keras.config.dtype_policy().name == "mixed_bfloat16"
    assert model.get_layer("block_00").compute_dtype == "bfloat16"


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")  # of Keras, on its own dropout
def test_quantised_model_is_exported_as_it_is_and_as_nothing_else(fake, fake_folder, tmp_path):
    model = make_tiny(num_layers=1)
    model.quantize("int8")
    report = export(model, tmp_path / "x", "fake_folder", precision="int8")
    assert fake_folder.jobs[0].model is model
    assert report.max_difference < 1e-6  # compared with itself
    with pytest.raises(ValueError, match=r'quantised(?s:.*)precision="int8"'):
        export(model, tmp_path / "y", "fake_folder")
    with pytest.raises(ValueError, match=r"quantised.*\n.*image_size=\(28, 36\)"):
        export(model, tmp_path / "y", "fake_folder", precision="int8", options={"image_size": (28, 36)})
    for precision in ("float32", "int8"):
        with pytest.raises(ValueError, match=r'SavedModel.*\n.*format="fake"'):
            export(model, tmp_path / "y.fake", precision=precision)


def test_trained_model_is_unchanged_and_trains_on(fake, tmp_path):
    model = make_tiny(num_layers=1)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = images(4, 20, 28, 3), np.arange(4)
    model.fit(x, y, verbose=0)
    model.get_layer("block_00").trainable = False
    before, config = model.get_weights(), model.get_config()
    export(model, tmp_path / "x.fake", precision="float16", options={"image_size": (28, 36)})
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert model.get_config() == config
    assert not model.get_layer("block_00").trainable
    model.fit(x, y, verbose=0)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16"])
def test_global_policy_neither_changes_nor_matters(model, fake, tmp_path, policy):
    keras.config.set_dtype_policy(policy)
    report = export(model, tmp_path / "x.fake", options={"image_size": (28, 36)})
    assert keras.config.dtype_policy().name == policy
    assert computing_dtypes(fake.jobs[0].model) == {"float32"}
    assert report.max_difference < 1e-6


# The real format, once


def test_saved_model_is_served_as_the_model_computes(model, tmp_path):
    (tmp_path / "photos").mkdir()
    for number, photo in enumerate(PHOTOS):
        (tmp_path / "photos" / f"{number}.png").write_bytes(encoded(photo, "PNG"))
    limits = {"max_bytes": 1024, "max_pixels": 600}  # photos are shrunk for the comparison until they fit
    report = keras_vit.export(model, tmp_path / "trees", labels=LABELS, images=tmp_path / "photos", options=limits)
    outputs = [drift.output for drift in report.drift]
    assert outputs == ["logits", "features", "scores", "features of files", "scores of files"]
    assert report.runtime.startswith("tensorflow ")
    assert 0 < report.max_difference < 1e-5
    found = sorted(path.name for path in (tmp_path / "trees").iterdir())
    assert found == ["1", "README.md", "batching_parameters.txt", "config.pbtxt"]
    assert (tmp_path / "trees" / "1" / "assets.extra" / "tf_serving_warmup_requests").is_file()


def test_int8_is_not_calibrated_on_photos_that_show_nothing(model, fake, tmp_path):
    fake.calibrates = ("int8",)
    blank = np.full((40, 20, 28, 3), np.arange(40, dtype="uint8")[:, None, None, None])
    with pytest.raises(ValueError, match="`images` of one colour"):
        keras_vit.export(model, tmp_path / "x.fake", "fake", precision="int8", images=blank)
    keras_vit.export(model, tmp_path / "x.fake", "fake", precision="float16", images=blank)
