"""Exports of models of pixels: logits and depths in each runtime, and masks as PNG files of photos as files."""

import io

import numpy as np
import pytest
import tensorflow as tf
from conftest import numpy, randomise
from PIL import Image
from served import pictures

import keras_vit
from keras_vit.exporting.formats import FORMATS

NAMES = ("ground", "car", "tree")


def encoder(shape):
    config = keras_vit.ViTConfig(8, 16, num_layers=4, num_heads=2, mlp_dim=32)
    return keras_vit.build(config, include_top=False, pooling="none", input_shape=shape)


def random(model):
    for weight in randomise(model).weights:
        if weight.name == "moving_variance":
            weight.assign(np.abs(weight) + 0.1)
    return model


@pytest.fixture(scope="module")
def segmenter():
    """It pads 19 x 26 pixels to 24 x 32 with zeros, which are no pixels of 0."""
    return random(keras_vit.segmenter(encoder((24, 32, 3)), "linear", classes=3, input_shape=(19, 26, 3)))


@pytest.fixture(scope="module")
def masks():
    """It pads 19 x 26 pixels at bottom and right, and crops the answer."""
    return random(keras_vit.segmenter(encoder((24, 32, 3)), "segmenter", classes=3, input_shape=(19, 26, 3)))


@pytest.fixture(scope="module")
def sums():
    return random(keras_vit.segmenter(encoder((24, 32, 3)), "upernet", classes=3))


@pytest.fixture(scope="module")
def estimator():
    return random(keras_vit.depth_estimator(encoder((24, 32, 3)), "dpt", max_depth=20))


def answer(model, pixels):
    return numpy(model(numpy(model.preprocessing(pixels)), training=False))


@pytest.mark.parametrize(
    ("kind", "form", "options"),
    [
        ("segmenter", "onnx", {}),
        ("segmenter", "litert", {"batch_size": "any"}),
        ("estimator", "openvino", {}),
        ("masks", "onnx", {}),
        ("sums", "onnx", {}),
        *(pytest.param(kind, "litert", {}, marks=pytest.mark.nightly) for kind in ("masks", "sums")),
        *(pytest.param(kind, "openvino", {}, marks=pytest.mark.nightly) for kind in ("masks", "sums")),
        *(pytest.param(kind, "onnx", {"image_size": "any"}, marks=pytest.mark.nightly) for kind in ("masks", "sums")),
        pytest.param("estimator", "onnx", {"image_size": "any"}, marks=pytest.mark.nightly),
        pytest.param("segmenter", "openvino", {"image_size": "any"}, marks=pytest.mark.nightly),
        pytest.param("estimator", "litert", {"image_size": "any"}, marks=pytest.mark.nightly),
    ],
)
def test_file_gives_the_logits_or_depths_of_each_pixel(request, tmp_path, kind, form, options):
    model = request.getfixturevalue(kind)
    path = tmp_path / f"maps{FORMATS[form].extension}"
    report = keras_vit.export(model, path, form, images=list(pictures(3)), options=options)
    output = "depths" if kind == "estimator" else "logits"
    assert [drift.output for drift in report.drift] == [output]
    assert report.top1_agreement == (None if kind == "estimator" else 1.0)
    assert report.drift[0].deviation > 0.05  # not of one number
    pixels = pictures(2, *(model.input_shape[1:3] if not options.get("image_size") else (16, 40)))
    if options.get("image_size"):
        model = keras_vit.with_input_shape(model, pixels.shape[1:])
    (found,) = FORMATS[form].open_runtime(path).run(pixels).values()
    np.testing.assert_allclose(found, answer(model, pixels), atol=2e-5 * np.abs(found).max())


def test_savedmodel_gives_masks_of_photos_at_their_size_or_depths(segmenter, estimator, tmp_path):
    report = keras_vit.export(segmenter, tmp_path / "masks", labels=NAMES, images=list(pictures(3, 40, 33)))
    assert [drift.output for drift in report.drift] == ["logits", "masks of files"]
    served = tf.saved_model.load(str(report.path)).signatures["serving_default"]
    photo, turned = Image.fromarray(pictures(1, 40, 57)[0]), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # upright it is 57 high and 40 wide
    photo.save(turned, "PNG", exif=exif)
    found = served(image_bytes=tf.constant([turned.getvalue(), b"no photo"]))
    assert found["status"].numpy().tolist() == [b"ok", b"not a JPEG or PNG"]
    mask = np.asarray(Image.open(io.BytesIO(found["masks"].numpy()[0])))
    assert (mask.dtype, mask.shape, found["masks"].numpy()[1]) == (np.uint8, (57, 40), b"")
    upright = np.asarray(photo.transpose(Image.Transpose.ROTATE_270))
    small = answer(segmenter, upright[None])[0].argmax(-1)
    wanted = np.asarray(Image.fromarray(small.astype("uint8")).resize((40, 57), Image.Resampling.NEAREST))
    assert len(np.unique(wanted)) > 1
    np.testing.assert_array_equal(mask, wanted)
    assert "3 classes of each pixel" in (tmp_path / "masks" / "README.md").read_text()
    report = keras_vit.export(estimator, tmp_path / "depths", images=list(pictures(3)))
    assert [drift.output for drift in report.drift] == ["depths", "depths of files"]


@pytest.mark.parametrize(
    ("kind", "bad"), [("segmenter", {"options": {"activation": "softmax"}}), ("estimator", {"labels": ["far"]})]
)
def test_activation_and_names_of_depths_are_refused(segmenter, estimator, tmp_path, kind, bad):
    with pytest.raises(ValueError, match=r"`(activation|labels)`"):
        keras_vit.export({"segmenter": segmenter, "estimator": estimator}[kind], tmp_path / "a.onnx", **bad)


def test_engine_answers_for_each_pixel(segmenter):
    engine = keras_vit.accelerate(segmenter, "onnxruntime", images=list(pictures(3)))
    pixels = pictures(2, 19, 26)
    np.testing.assert_allclose(engine.predict(pixels), answer(segmenter, pixels), atol=2e-5)
    with pytest.raises(ValueError, match="features are the input"):
        engine.features(pixels)
