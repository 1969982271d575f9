"""Segmenter's mask transformer: the layer against NumPy, padding that is cropped, and files in both layouts.

The program gives the numbers of Segmenter 20d1bfa and mmsegmentation 1.2.2 too: on small random models the largest
difference was 5.4e-6 of logits up to 4 on TensorFlow, and 8.8e-6 on torch.
"""

import json
import warnings

import keras
import numpy as np
import pytest
from checks import is_same, on_other_backends, random_weights
from conftest import images, numpy, randomise
from dpt_in_numpy import gelu
from safetensors.numpy import load_file, save_file
from test_segmenter import encoder

import keras_vit
from keras_vit import dense
from keras_vit.layers import MaskTransformerHead
from keras_vit.weights.families import HEAD_LAYOUTS
from keras_vit.weights.read import CheckpointError

SIZES = {"hidden_size": 6, "num_heads": 2, "mlp_dim": 11}
WIDTH, CLASSES = 16, 4
MISTAKES = ("transposed", "epsilon", "tanh", "one head", "no length", "norm over patches", "classes by patches' matrix")
NEAR = 1e-5  # of the largest number, in float32; GELU by tanh is off by 9.5e-5


def random_head(seed=1):
    """A `MaskTransformerHead` of random weights, and these by path."""
    layer = MaskTransformerHead(CLASSES, **SIZES, name="segmentation_head")
    return layer, random_weights(layer, [(None, None, None, WIDTH)], scale=0.5, seed=seed)


def in_numpy(weights, tap, mistake=""):
    """What a head makes of `(B, h, w, D)`, written from the paper."""
    batch, h, w, width = tap.shape
    size, heads = SIZES["hidden_size"], 1 if mistake == "one head" else SIZES["num_heads"]

    def dense_of(name, x):
        kernel = weights[f"{name}/kernel"]
        kernel = kernel.T if mistake == "transposed" and name.startswith("project_") else kernel
        return x @ kernel + weights.get(f"{name}/bias", 0.0)

    def norm(name, x, axis=-1):
        centred = x - x.mean(axis, keepdims=True)
        centred /= np.sqrt((centred**2).mean(axis, keepdims=True) + (1e-3 if mistake == "epsilon" else 1e-5))
        return centred * weights[f"{name}/gamma"] + weights[f"{name}/beta"]

    def attention(name, x):
        parts = (dense_of(f"{name}/{part}", x) for part in ("query", "key", "value"))
        query, key, value = (part.reshape(batch, -1, heads, size // heads).swapaxes(1, 2) for part in parts)
        scores = query @ key.swapaxes(2, 3) / np.sqrt(size // heads)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        found = (shares / shares.sum(-1, keepdims=True)) @ value
        return dense_of(f"{name}/out", found.swapaxes(1, 2).reshape(batch, -1, size))

    def unit(x):
        return x if mistake == "no length" else x / np.linalg.norm(x, axis=-1, keepdims=True)

    x = dense_of("project", tap.reshape(batch, h * w, width))
    x = np.concatenate([x, np.repeat(weights["embeddings"], batch, 0)], 1)
    for block in ("block_00", "block_01"):
        x = x + attention(f"{block}/attention", norm(f"{block}/norm_1", x))
        hidden = gelu(dense_of(f"{block}/mlp/dense_1", norm(f"{block}/norm_2", x)), mistake == "tanh")
        x = x + dense_of(f"{block}/mlp/dense_2", hidden)
    x = norm("decoder_norm", x)
    name = "project_patches" if mistake == "classes by patches' matrix" else "project_classes"
    cosines = unit(dense_of("project_patches", x[:, :-CLASSES])) @ unit(dense_of(name, x[:, -CLASSES:])).swapaxes(1, 2)
    return norm("mask_norm", cosines, 1 if mistake == "norm over patches" else -1).reshape(batch, h, w, CLASSES)


def test_layer_is_that_of_the_paper_and_every_mistake_shows():
    layer, weights = random_head()
    tap = np.random.default_rng(2).normal(size=(2, 3, 5, WIDTH))
    found, wanted = numpy(layer([tap.astype("float32")])), in_numpy(weights, tap)
    assert found.shape == layer.compute_output_shape([tap.shape]) == (2, 3, 5, CLASSES)
    largest = np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, 0, NEAR * largest)
    for mistake in MISTAKES:
        assert np.abs(found - in_numpy(weights, tap, mistake)).max() > 2 * NEAR * largest, mistake


def faults_elsewhere():
    """On another backend: the layer, and a padded model at a fixed and an open size."""
    found = {}
    layer, weights = random_head()
    tap = np.random.default_rng(2).normal(size=(2, 3, 5, WIDTH))
    wanted = in_numpy(weights, tap)
    error = np.abs(numpy(layer([tap.astype("float32")])) - wanted).max() / np.abs(wanted).max()
    if not error <= NEAR:
        found["layer"] = float(error)
    photo = images(1, 19, 26, 3)
    for shape in ((19, 26, 3), (None, None, 3)):
        model = padded(shape)
        wanted = by_parts(model, photo)
        error = np.abs(model.predict(photo, verbose=0) - wanted).max()
        if not error <= 1e-5 * np.abs(wanted).max():
            found[str(shape)] = float(error)
    return found


@on_other_backends
def test_heads_compute_the_same_on_other_backends(backend, found):
    assert found == {}, backend


def padded(shape=(19, 26, 3)):
    """A model of random weights that takes images of any size."""
    return randomise(keras_vit.segmenter(encoder(), "segmenter", classes=CLASSES, input_shape=shape))


def by_parts(model, photo, norm=True, where="end", cropped=True):
    """What a model must put out, of `features` of its encoder, its head, and NumPy.

    Args:
        model: with a mask transformer.
        photo: `(B, H, W, C)`, of any size.
        norm: whether the tap is normed.
        where: zeros are added.
        cropped: whether the padded answer is cut instead of resized.
    """
    padded, (top, _, left, _) = dense.pad_to_multiple(photo, 8, where)
    whole = keras_vit.with_input_shape(model.encoder, padded.shape[1:])
    tap = keras_vit.features(whole, padded, model.blocks, norm=norm)[model.blocks[-1]]
    logits, (height, width) = numpy(model.head([tap])), photo.shape[1:3]
    if cropped:
        return dense.resize(logits, padded.shape[1:3])[:, top : top + height, left : left + width]
    return dense.resize(logits, (height, width))


def test_zeros_stand_at_bottom_and_right_and_are_cropped():
    assert faults_elsewhere() == {}
    photo, model = images(2, 19, 26, 3), padded()
    assert (model.blocks, model.normed, model.output_shape) == ((2,), True, (None, 19, 26, CLASSES))
    found = numpy(model(photo))
    for mistake in ({"norm": False}, {"where": "centre"}, {"cropped": False}):
        assert np.abs(found - by_parts(model, photo, **mistake)).max() > 1e-3 * np.abs(found).max(), mistake


def test_a_photo_in_one_window_has_the_scores_of_the_model():
    model = padded()
    photo = np.random.default_rng(0).integers(0, 255, (19, 26, 3), "uint8")
    found = keras_vit.segment(model, photo, short_side=None, window=(19, 26), scores=True)
    wanted = numpy(model(numpy(model.preprocessing(photo))[None]))[0]
    np.testing.assert_allclose(found.scores, wanted, 0, 1e-5 * np.abs(wanted).max())
    covered = keras_vit.segment(model, photo, short_side=24, window=16, scores=True)
    assert covered.scores.shape == (19, 26, CLASSES)


CONFIGS = {
    "segmenter": {"model_type": "segmenter", "num_labels": CLASSES},
    "mmseg_segmenter": {"model_type": "mmseg", "blocks": [2], "final_norm": True},
}
CONFIGS = {
    name: config | {"num_attention_heads": 2, "decoder_heads": 2, "patch_size": 8} for name, config in CONFIGS.items()
}


def write_folder(folder, name, config=None, arrays=None):
    """A folder with encoder and head in one file."""
    folder.mkdir()
    row = HEAD_LAYOUTS[name]
    epsilon = 1e-5 if name == "segmenter" else 1e-6
    fields = keras_vit.ViTConfig(8, WIDTH, 2, 2, 32, activation="gelu", layer_norm_epsilon=epsilon)
    inner = randomise(keras_vit.build(fields, include_top=False, pooling="none", input_shape=(24, 24, 3)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of timm's epsilon
        part = keras_vit.save_checkpoint(inner, folder / "part.safetensors", row.encoder_layouts[0])
    found = {row.encoder[0] + key: array for key, array in load_file(part).items()} | row.to_file(random_head()[1])
    part.unlink()
    found = {key: np.ascontiguousarray(array, "float32") for key, array in found.items()} | (arrays or {})
    save_file(found, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIGS[name] if config is None else config))


@pytest.mark.parametrize("name", CONFIGS)
def test_folders_are_written_as_they_were_read(name, tmp_path):
    """The authors' last matrices are stored for x @ W, mmsegmentation's as torch's Linear."""
    write_folder(tmp_path / "folder", name)
    arrays = load_file(tmp_path / "folder" / "model.safetensors")
    shape = (24, 24, 3) if name == "mmseg_segmenter" else (20, 17, 3)
    model = keras_vit.segmenter(weights=tmp_path / "folder", input_shape=shape, strict=True)
    assert "not known" not in str(model.load_report)
    assert model.layouts == (name, HEAD_LAYOUTS[name].encoder_layouts[0])
    assert model.config.layer_norm_epsilon == (1e-5 if name == "segmenter" else 1e-6)
    assert model.provenance["resize_method"][0] == ("bilinear" if name == "segmenter" else "bicubic")
    assert (model.blocks, model.normed, model.head.num_heads) == ((2,), True, 2)
    _, weights = random_head()
    found = {weight.path.partition("segmentation_head/")[2]: numpy(weight) for weight in model.head.weights}
    assert found.keys() == weights.keys()
    assert all(np.array_equal(found[path], weights[path].astype("float32")) for path in weights)
    patches = arrays[{"segmenter": "decoder.proj_patch", "mmseg_segmenter": "decode_head.patch_proj.weight"}[name]]
    np.testing.assert_array_equal(patches if name == "segmenter" else patches.T, found["project_patches/kernel"])
    written = keras_vit.save_checkpoint(model, tmp_path / "again")
    assert is_same(arrays, load_file(written))
    model.save(tmp_path / "model.keras")
    kept = keras.models.load_model(tmp_path / "model.keras")
    photo = images(1, *shape) * (1 if name == "segmenter" else 2)
    for each in (kept, keras_vit.segmenter(weights=written, input_shape=shape)):
        np.testing.assert_array_equal(numpy(each(photo)), numpy(model(photo)))
    (written.parent / "config.json").unlink()
    assert keras_vit.segmenter(weights=written).head.num_heads == 2  # by the note


def test_the_encoder_of_a_segmenter_alone_says_its_epsilon(tmp_path):
    """It has timm's names, and timm's models have another one."""
    write_folder(tmp_path / "folder", "segmenter")
    alone = keras_vit.build(weights=tmp_path / "folder", include_top=False, pooling="none")
    assert alone.config.layer_norm_epsilon == 1e-5
    assert [line for line in alone.load_report if line.startswith("layer_norm_epsilon 1e-05, as Segmenter computes")]
    whole = keras_vit.segmenter(weights=tmp_path / "folder")
    assert not [line for line in whole.load_report if "layer_norm_epsilon" in line]


def test_another_number_of_classes_gets_new_embeddings(tmp_path):
    write_folder(tmp_path / "folder", "segmenter")
    model = keras_vit.segmenter(weights=tmp_path / "folder", classes=7)
    assert model.load_report[-2:] == ("new class embeddings", "set aside embeddings of 4 classes")
    assert model.output_shape == (None, 24, 24, 7)
    assert 0.01 < numpy(model.head.embeddings).std() < 0.03
    np.testing.assert_array_equal(numpy(model.head.mask_norm.gamma), 1)
    with pytest.raises(CheckpointError, match="strict"):
        keras_vit.segmenter(weights=tmp_path / "folder", classes=7, strict=True)


@pytest.mark.parametrize(
    ("name", "change", "arrays", "words"),
    [
        ("segmenter", {"decoder_heads": 4}, {}, "must divide its width, 6.*\nReceived: 4 for .*folder"),
        ("segmenter", {"num_labels": 150}, {}, "num_labels 150, and 4 in the tensors, .*folder"),
        ("segmenter", {"patch_size": 16}, {}, "patch_size 16, and 8 in the tensors"),
        ("mmseg_segmenter", {"final_norm": False}, {}, "final_norm False, and True"),
        ("mmseg_segmenter", {"blocks": [1, 2]}, {}, "1 numbers from 1 to 2"),
        ("segmenter", {}, {"decoder.mask_norm.weight": np.ones(5, "float32")}, "mask_norm/gamma"),
        ("segmenter", {}, {"decoder.proj_patch": np.ones((6, 7), "float32")}, "project_patches/kernel"),
    ],
)
def test_contradictions_are_refused(name, change, arrays, words, tmp_path):
    write_folder(tmp_path / "folder", name, CONFIGS[name] | change, arrays)
    with pytest.raises(ValueError, match=words):
        keras_vit.segmenter(weights=tmp_path / "folder", input_shape=(24, 24, 3))


def test_a_fresh_head_learns_on_a_frozen_encoder():
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    photos = rng.uniform(-0.5, 0.5, (8, 24, 32, 3)).astype("float32")
    masks = np.zeros((8, 24, 32), "int32")
    photos[:, :, :16] += 0.5
    masks[:, :, :16] = 1
    masks[:, 0] = 255
    model = keras_vit.segmenter(encoder(input_shape=(24, 32, 3)), "segmenter", classes=2)
    assert {weight.path.split("/")[0] for weight in model.trainable_weights} == {"segmentation_head"}
    assert (model.head.hidden_size, model.head.num_heads, model.head.num_layers) == (16, 2, 2)
    model.compile(
        keras.optimizers.Adam(0.002), dense.CrossEntropy(), metrics=[dense.SegmentationIoU(2)], jit_compile=False
    )
    history = model.fit(photos, masks, 8, 30, verbose=0).history
    assert history["mean_iou"][-1] > 0.75 > 0.5 > history["mean_iou"][0]  # of four seeds 0.815 to 0.981
