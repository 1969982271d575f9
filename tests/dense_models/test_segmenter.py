"""Segmenters: published heads against DINOv2's and DINOv3's own code, and the whole against its parts.

golden/dense/heads holds small heads of random weights as their software names them, what enters them from each tap, and
what it puts out: DINOv2 b8931f7 and DINOv3 6876159 on torch 2.13. The parts are `keras_vit.features` and NumPy.
"""

import json
import shutil

import keras
import numpy as np
import pytest
from checks import is_same, on_other_backends
from conftest import GOLDEN, images, numpy, randomise
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import dense
from keras_vit.config.heads import tap_blocks
from keras_vit.layers import LinearHead
from keras_vit.weights.read import CheckpointError

HEADS = GOLDEN / "dense" / "heads"
NAMES = ("dinov2_seg_linear", "dinov2_seg_ms", "dinov3_seg_linear", "dinov3_seg_four")
NEAR = 1e-5  # of a fifth of the largest number, in float32


def golden(name):
    with np.load(HEADS / f"{name}.npz") as arrays:
        return dict(arrays)


def write_head(name, folder):
    """The head of a golden file as its software writes it."""
    folder.mkdir(exist_ok=True)
    arrays = {key[5:]: array for key, array in golden(name).items() if key.startswith("file/")}
    save_file(arrays, folder / "model.safetensors")
    return folder / "model.safetensors"


def encoder(hidden_size=16, num_layers=2, num_heads=2, **arguments):
    config = keras_vit.ViTConfig(8, hidden_size, num_layers, num_heads, 2 * hidden_size, activation="gelu")
    arguments = {"include_top": False, "pooling": "none", "input_shape": (24, 24, 3)} | arguments
    return randomise(keras_vit.build(config, **arguments))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"2": "c", "0": "a", "1": "b"}, ("a", "b", "c")),
        (["a", "b", "c"], ("a", "b", "c")),
        ({"0": "a", "1": "", "2": "c"}, None),
        ({"0": "a", "1": 3, "2": "c"}, None),
        ({"0": "a", "2": "c"}, None),
    ],
)
def test_class_names_of_a_head_are_read_or_a_line_says_that_they_are_not(tmp_path, names, found):
    model = keras_vit.segmenter(encoder(num_layers=4), "dpt", classes=3)
    path = keras_vit.save_checkpoint(model, tmp_path / "head.safetensors")
    save_file(load_file(path), path)  # without its note
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "dpt", "id2label": names, "backbone_out_indices": [0, 1, 2, 3]})
    )
    again = keras_vit.segmenter(encoder(num_layers=4), weights=path)
    assert again.class_names == found
    lines = [line for line in again.load_report if line.startswith("id2label of config.json not understood")]
    assert len(lines) == (found is None)


def faults_of_heads(folder):
    """Where heads of files put out other numbers than their own software, from the same taps."""
    found = {}
    for name in NAMES:
        arrays = golden(name)
        taps = sorted(key for key in arrays if key.startswith("tap_") and key.endswith("_a"))
        model = keras_vit.segmenter(
            encoder(arrays[taps[0]].shape[-1], 4 if len(taps) == 4 else 2), weights=write_head(name, folder / name)
        )
        if model.blocks != ((1, 2, 3, 4) if len(taps) == 4 else (2,)):
            found[f"{name} blocks"] = list(model.blocks)
        for size in "ab":
            maps = [arrays[f"{tap[:-1]}{size}"] for tap in taps]
            wanted = arrays[f"head_{size}"]
            error = np.abs(numpy(model.head(maps)) - wanted).max()
            if not error <= NEAR * max(1, np.abs(wanted).max() / 5):
                found[f"{name} {size}"] = float(error)
    return found


def test_heads_of_files_compute_what_their_software_does(tmp_path):
    assert faults_of_heads(tmp_path) == {}


def faults_elsewhere():
    """On another backend: heads, and a padded model at a fixed and an open size."""
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.mkdtemp())
    found = faults_of_heads(folder)
    model = keras_vit.segmenter(encoder(), weights=folder / "dinov2_seg_linear" / "model.safetensors")
    photo = images(1, 19, 26, 3)
    wanted = by_parts(model, photo)
    for shape in ((19, 26, 3), (None, None, 3)):
        error = np.abs(keras_vit.with_input_shape(padded_copy(model), shape).predict(photo, verbose=0) - wanted).max()
        if not error <= 1e-4:
            found[str(shape)] = float(error)
    shutil.rmtree(folder)
    return found


@on_other_backends
def test_heads_compute_the_same_on_other_backends(backend, found):
    assert found == {}, backend


def padded_copy(model):
    """The same weights in a model that pads, which the one that shares its encoder's input does not."""
    again = keras_vit.segmenter(model.encoder, "linear", classes=model.classes, input_shape=(20, 20, 3))
    again.head.set_weights(model.head.get_weights())
    return again


def by_parts(model, photo, norm=True, epsilon=1e-5, cropped=False):
    """What a model must put out, of `features` of its encoder and the arithmetic of a linear head, in NumPy.

    Args:
        model: with a head on one tap.
        photo: `(B, H, W, C)`, of any size.
        norm: whether taps are normed.
        epsilon: of BatchNorm.
        cropped: whether the padded answer is cut instead of resized.
    """
    padded, (top, _, left, _) = dense.pad_to_multiple(photo, 8)
    whole = keras_vit.with_input_shape(model.encoder, padded.shape[1:])
    tap = keras_vit.features(whole, padded, model.blocks, norm=norm)[model.blocks[-1]]
    gamma, beta, mean, variance, kernel, bias = (numpy(each) for each in model.head.weights)
    logits = ((tap - mean) / np.sqrt(variance + epsilon) * gamma + beta) @ kernel[0, 0] + bias
    if cropped:
        height, width = photo.shape[1:3]
        return dense.resize(logits, padded.shape[1:3])[:, top : top + height, left : left + width]
    return dense.resize(logits, photo.shape[1:3])


def trained_head(model):
    """Gives a fresh head numbers that hide no mistake."""
    rng = np.random.default_rng(3)
    values = [rng.normal(size=weight.shape) for weight in model.head.weights]
    values[3] = np.abs(values[3]) * 0.02  # a variance near BatchNorm's epsilon
    model.head.set_weights(values)
    return model


def test_a_model_is_its_parts_and_every_mistake_shows():
    photo = images(2, 19, 26, 3)
    model = trained_head(keras_vit.segmenter(encoder(), "linear", classes=4, input_shape=(19, 26, 3)))
    found = numpy(model(photo))
    assert found.shape == (2, 19, 26, 4)
    assert model.output_shape == (None, 19, 26, 4)
    largest = np.abs(found).max()
    np.testing.assert_allclose(found, by_parts(model, photo), 0, NEAR * largest)
    for mistake in ({"norm": False}, {"epsilon": 1e-3}, {"cropped": True}):
        assert np.abs(found - by_parts(model, photo, **mistake)).max() > 1e-3 * largest, mistake


def test_sizes_may_be_any_or_open_and_features_know_the_padding():
    photo = images(1, 19, 26, 3)
    model = trained_head(keras_vit.segmenter(encoder(), "linear", classes=4, input_shape=(20, 20, 3)))
    wanted = by_parts(model, photo)
    for shape in ((19, 26, 3), (None, None, 3)):
        copy = keras_vit.with_input_shape(model, shape)
        assert isinstance(copy, keras_vit.DenseModel)
        np.testing.assert_allclose(numpy(copy(photo)), wanted, 0, 1e-5 * np.abs(wanted).max())
        np.testing.assert_allclose(copy.predict(photo, verbose=0), wanted, 0, 1e-5 * np.abs(wanted).max())
    closed = keras_vit.with_input_shape(model, (19, 26, 3))
    assert keras_vit.features(closed, photo, [1])[1].shape == (1, 3, 4, 16)
    grid = keras_vit.with_input_shape(model, (19, 26, 3)).get_layer("segmentation_head").output
    assert grid.shape == (None, 3, 4, 4)
    with pytest.raises(ValueError, match="size"):
        closed(images(1, 24, 24, 3))
    shared = keras_vit.segmenter(encoder(), "linear", classes=4)
    with pytest.raises(ValueError, match="multiple"):
        keras_vit.with_input_shape(shared, (19, 26, 3))


@pytest.mark.parametrize(("name", "layers"), [("dinov2_seg_ms", 4), ("dinov3_seg_linear", 2)])
def test_files_are_written_as_they_were_read(name, layers, tmp_path):
    file = write_head(name, tmp_path / "published")
    keras_vit.save_checkpoint(encoder(num_layers=layers), tmp_path / "published" / "encoder", "huggingface")
    model = keras_vit.segmenter(weights=tmp_path / "published")
    assert model.layouts == (f"{name[:6]}_segmentation", "huggingface")
    before = load_file(file)
    photo = images(1, 24, 24, 3)
    model.save(tmp_path / "model.keras")
    kept = keras.models.load_model(tmp_path / "model.keras")
    for number, each in enumerate((model, kept)):
        np.testing.assert_array_equal(numpy(each(photo)), numpy(model(photo)))
        assert is_same(before, load_file(keras_vit.save_checkpoint(each, tmp_path / f"{number}.safetensors")))
        assert is_same(before, load_file(keras_vit.save_checkpoint(each, tmp_path / f"folder{number}")))
    assert kept.own_arguments() == model.own_arguments()
    assert kept.encoder.config == model.config
    again = keras_vit.segmenter(weights=tmp_path / "folder1")
    np.testing.assert_array_equal(numpy(again(photo)), numpy(model(photo)))


def test_an_encoder_next_to_a_head_is_written_with_what_nothing_reads(tmp_path):
    published = GOLDEN / "encoders" / "huggingface_dinov2"
    file = write_head("dinov2_seg_linear", tmp_path / "published")
    wider = {key: np.resize(array, [24 if side == 16 else side for side in array.shape]) for key, array in read(file)}
    save_file(wider, file)
    shutil.copytree(published, file.parent / "encoder")
    model = keras_vit.segmenter(weights=file.parent)
    assert model.layouts == ("dinov2_segmentation", "huggingface_dinov2")
    written = keras_vit.save_checkpoint(model, tmp_path / "written").parent / "encoder" / "model.safetensors"
    before = load_file(published / "model.safetensors")
    assert before["embeddings.mask_token"].any()
    assert is_same(before, load_file(written))


def read(file):
    return load_file(file).items()


def test_a_fresh_head_learns_on_a_frozen_encoder():
    rng = np.random.default_rng(0)
    photos = rng.uniform(-0.5, 0.5, (8, 24, 32, 3)).astype("float32")
    masks = np.zeros((8, 24, 32), "int32")
    photos[:, :, :16] += 0.5
    masks[:, :, :16] = 1
    masks[:, 0] = 255
    inner = encoder(input_shape=(24, 32, 3))
    before = [numpy(weight) for weight in inner.weights]
    model = keras_vit.segmenter(inner, "linear", classes=2)
    assert {weight.path.split("/")[0] for weight in model.trainable_weights} == {"segmentation_head"}
    assert model.encoder.layers[1] is inner.layers[1]
    moving = numpy(model.head.batch_norm.moving_mean)
    model.compile(
        keras.optimizers.Adam(0.05), dense.CrossEntropy(), metrics=[dense.SegmentationIoU(2)], jit_compile=False
    )
    history = model.fit(photos, masks, 4, 20, verbose=0).history
    assert history["mean_iou"][-1] > 0.9 > history["mean_iou"][0]
    assert np.abs(numpy(model.head.batch_norm.moving_mean) - moving).max() > 1e-3
    assert all(np.array_equal(one, numpy(other)) for one, other in zip(before, inner.weights, strict=True))
    free = keras_vit.segmenter(encoder(), "linear4", classes=2, freeze=False, blocks=(1, 1, 2, 2))
    assert free.encoder.trainable_weights
    learning = keras_vit.freeze(free, "head").trainable_weights
    assert learning
    assert not [weight.path for weight in learning if weight.name.startswith("moving")]


def test_batch_norm_has_torch_constants():
    layer = LinearHead(3)
    maps = images(4, 5, 6, 7)
    layer([maps])
    layer([maps], training=True)
    assert layer.batch_norm.epsilon == 1e-5
    np.testing.assert_allclose(numpy(layer.batch_norm.moving_mean), 0.1 * maps.mean((0, 1, 2)), 0, 1e-6)


def test_another_number_of_classes_gets_a_new_last_layer(tmp_path):
    file = write_head("dinov2_seg_linear", tmp_path / "head")
    model = keras_vit.segmenter(encoder(), weights=file, classes=3)
    assert model.load_report[-2:] == ("new classifier", "set aside classifier of 5 classes")
    assert not numpy(model(images(1, 24, 24, 3))).any()
    np.testing.assert_array_equal(
        numpy(model.head.batch_norm.gamma), golden("dinov2_seg_linear")["file/decode_head.bn.weight"]
    )
    assert keras_vit.segmenter(encoder(), weights=file, classes=5, strict=True).classes == 5
    with pytest.raises(CheckpointError, match="strict"):
        keras_vit.segmenter(encoder(), weights=file, classes=3, strict=True)


@pytest.mark.parametrize(
    ("hidden_size", "taps", "parameters"),
    [(384, 1, 57_750), (768, 1, 115_350), (1024, 1, 153_750), (1536, 1, 230_550), (384, 4, 4 * 57_600 + 150)],
)
def test_heads_have_the_published_numbers_of_parameters(hidden_size, taps, parameters):
    """Of the convolution, of 150 classes; BatchNorm has two of each channel that learn."""
    layer = LinearHead(150)
    layer.build([(None, None, None, hidden_size)] * taps)
    assert layer.classifier.count_params() == parameters
    assert layer.batch_norm.count_params() == 4 * taps * hidden_size


def test_taps_are_those_of_the_families(tmp_path):
    deep = encoder(num_layers=6)
    assert keras_vit.segmenter(deep, weights=write_head("dinov2_seg_ms", tmp_path / "ms")).blocks == (3, 4, 5, 6)
    narrow = encoder(hidden_size=12, num_layers=6)
    assert keras_vit.segmenter(narrow, weights=write_head("dinov3_seg_four", tmp_path / "four")).blocks == (2, 3, 5, 6)
    assert tap_blocks("even", 4, 12) == (3, 6, 9, 12)
    assert tap_blocks("even", 4, 24) == (5, 12, 18, 24)
    assert tap_blocks("dpt", 4, 24) == (6, 12, 18, 24)
    assert tap_blocks("even", 4, 40) == (10, 20, 30, 40)
    assert tap_blocks("last", 4, 24) == (21, 22, 23, 24)
    assert tap_blocks("even", 1, 24) == (24,)


def test_a_classifier_with_a_head_of_its_own_gives_its_encoder():
    """Its last block computes the class token alone, so the layers are copied and compute all tokens."""
    classifier = encoder(include_top=True, classes=7, pooling="token")
    tokens = encoder(pooling="none")
    for layer in tokens.layers:
        if layer.weights:
            layer.set_weights(classifier.get_layer(layer.name).get_weights())
    photo = images(1, 24, 24, 3)
    one, other = (keras_vit.segmenter(each, "linear", classes=2) for each in (classifier, tokens))
    other.head.set_weights(one.head.get_weights())
    np.testing.assert_allclose(numpy(one(photo)), numpy(other(photo)), 0, 1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"head": "linear"}, "classes"),
        ({}, "Pass one of both"),
        ({"head": "dpt9", "classes": 2}, "linear4"),
        ({"head": "linear", "classes": 2, "raw": True}, "heads of masks"),
        ({"head": "linear", "classes": 2, "output_size": "photo"}, "image"),
        ({"head": "linear4", "classes": 2}, "as many blocks"),
        ({"head": "linear", "classes": 2, "blocks": (3,)}, "from 1 to 2"),
        ({"head": "linear", "classes": 2, "blocks": (1, 2)}, "1 numbers"),
        ({"head": "linear", "classes": 2, "input_shape": (24, 24)}, r"\(H, W, C\)"),
        ({"weights": GOLDEN / "encoders" / "huggingface_dinov2"}, "hold a head"),
    ],
)
def test_what_would_be_nonsense_is_refused(arguments, words):
    with pytest.raises((ValueError, CheckpointError), match=words):
        keras_vit.segmenter(encoder(), **arguments)


def test_a_head_for_another_width_or_without_an_encoder_is_refused(tmp_path):
    file = write_head("dinov2_seg_linear", tmp_path / "head")
    with pytest.raises(CheckpointError, match="width 24"):
        keras_vit.segmenter(encoder(24), weights=file)
    with pytest.raises(ValueError, match="needs its encoder"):
        keras_vit.segmenter(weights=file)
    arrays = load_file(file)
    arrays["decode_head.conv_seg.bias"] = np.zeros(4, "float32")
    save_file(arrays, file)
    with pytest.raises(CheckpointError, match="classifier/bias"):
        keras_vit.segmenter(encoder(), weights=file)
    with pytest.warns(UserWarning, match="random weights"):
        keras_vit.segmenter(keras_vit.ViTConfig(8, 16, 1, 2, 16), "linear", classes=2, input_shape=(16, 16, 3))
