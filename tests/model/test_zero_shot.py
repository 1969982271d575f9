"""Image towers out of files of two towers that transformers wrote, as classifiers by its text embeddings."""

import functools

import keras
import numpy as np
import pytest
from conftest import GOLDEN, make_tiny, numpy

import keras_vit
from keras_vit.weights.read import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:.*(scaled|range|preprocessing):UserWarning")  # images are normal
TOWERS = GOLDEN / "towers"
KINDS = ("clip", "siglip")


@functools.cache
def tower(kind):
    return keras_vit.build(weights=TOWERS / kind, include_top=kind == "clip")


@functools.cache
def expected(kind):
    with np.load(TOWERS / kind / "expected.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_both_towers(kind, tmp_path):
    """Also after a file of Keras, and whatever the length of the texts' embeddings; several of a class are averaged."""
    arrays, model = expected(kind), tower(kind)
    embeddings = numpy(model(arrays["images"]))
    embeddings /= np.linalg.norm(embeddings, axis=-1, keepdims=True)
    np.testing.assert_allclose(embeddings, arrays["image_embeds"], atol=1e-5)
    found = keras_vit.zero_shot(model, 3 * arrays["text_embeds"], ["cat", "dog", "eel"])
    np.testing.assert_allclose(numpy(found(arrays["images"])), arrays["logits"], atol=1e-5)
    texts = arrays["text_embeds"]
    near = texts + 0.3 * texts[::-1]
    mirrored = 2 * (texts * near).sum(-1, keepdims=True) * texts - near  # as long, on the other side of the text
    again = keras_vit.zero_shot(model, np.stack([near, 2 * mirrored], axis=1))  # (K, n, E)
    np.testing.assert_allclose(numpy(again(arrays["images"])), arrays["logits"], atol=1e-5)
    found.save(tmp_path / "x.keras")
    loaded = keras.saving.load_model(tmp_path / "x.keras")
    np.testing.assert_array_equal(numpy(loaded(arrays["images"])), numpy(found(arrays["images"])))
    assert (loaded.class_names, loaded.logit_scale, loaded.logit_bias) == (
        ("cat", "dog", "eel"),
        found.logit_scale,
        found.logit_bias,
    )


def test_quantised_tower_keeps_its_integers():
    arrays, model = expected("clip"), keras_vit.build(weights=TOWERS / "clip")
    with pytest.warns(UserWarning, match="does not have a `quantize` method"):  # and needs none
        model.quantize("int8")
    found = keras_vit.zero_shot(model, arrays["text_embeds"])
    (projection,) = (layer for layer in found.layers if layer.name == "projection")
    assert projection.quantization_mode == "int8"
    rows = numpy(model(arrays["images"]))
    cosines = rows / np.linalg.norm(rows, axis=-1, keepdims=True) @ arrays["text_embeds"].T
    np.testing.assert_allclose(numpy(found(arrays["images"])), np.exp(model.logit_scale) * cosines, atol=1e-4)


@pytest.mark.parametrize(("kind", "similarity"), [("clip", (1.7, 0.0)), ("siglip", (1.7, -0.6))])
def test_file_of_both_towers_gives_its_scale_and_says_what_is_set_aside(kind, similarity):
    assert (tower(kind).logit_scale, tower(kind).logit_bias) == pytest.approx(similarity)
    (line,) = tower(kind).load_report
    assert line.startswith("set aside the text tower, ")
    assert "text_" in line
    with pytest.raises(CheckpointError, match="strict=True"):
        keras_vit.build(weights=TOWERS / kind, include_top=kind == "clip", strict=True)


@pytest.mark.parametrize(("kind", "activation"), [("clip", "softmax"), ("siglip", "sigmoid")])
def test_classifier_is_a_model_as_every_other(kind, activation, tmp_path):
    arrays = expected(kind)
    found = keras_vit.zero_shot(tower(kind), arrays["text_embeds"], list("abc"), classifier_activation=activation)
    logits = arrays["logits"].astype("float64")
    wanted = np.exp(logits) / np.exp(logits).sum() if kind == "clip" else 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(found.predict(arrays["images"], verbose=0), wanted, atol=1e-5)
    assert (found.classes, found.output_shape) == (3, (None, 3))
    plain = keras_vit.zero_shot(tower(kind), arrays["text_embeds"], list("abc"))
    kept = keras_vit.with_input_shape(plain, (16, 32, 3))
    assert (kept.logit_scale, kept.logit_bias) == (plain.logit_scale, plain.logit_bias)
    for old, value in {
        "similarity": (plain.logit_scale, plain.logit_bias),
        "weights_report": plain.load_report,
        "weights_facts": plain.provenance,
    }.items():
        with pytest.warns(DeprecationWarning, match=old):
            assert getattr(plain, old) == value
    moved = keras_vit.merge_tokens(plain, 1) if kind == "clip" else None
    assert moved is None or moved.output_shape == (None, 3)
    photos = [np.zeros((24, 24, 3), "uint8")] * 2
    report = keras_vit.export(plain, tmp_path / "x.onnx", "onnx", images=photos)
    assert report.top1_agreement == 1
    counted = {"clip": 2 * (24 * 6 + 6 * 3), "siglip": 2 * 24 * 3}[kind]  # projection and texts
    assert keras_vit.flops(plain.config, (24, 24), classes=3).head == counted
    for layout in ("timm", f"huggingface_{kind}"):
        with pytest.raises(CheckpointError, match=r"divided by its length|no place"):
            keras_vit.save_checkpoint(plain, tmp_path / "x.safetensors", layout)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"text_embeddings": np.ones((3, 5))}, r"\(3, 5\)"),
        ({"text_embeddings": np.zeros((3, 6))}, "not zero"),
        ({"text_embeddings": np.stack([np.eye(6), -np.eye(6)], axis=1)}, "not zero"),
        ({"text_embeddings": []}, r"\(0,\)"),
        ({"class_names": ["a", "b"]}, "3 texts(?s:.*)2 names"),
        ({"class_names": ["a", "b", "a"]}, "2 of 'a'"),
        ({"class_names": ["a", "", "b"]}, "empty(?s:.*)''"),
        ({"class_names": "abc"}, "'abc'"),
        ({"class_names": {"a", "b", "c"}}, "must be a list of names"),
        ({"text_embeddings": np.full((3, 6), np.nan)}, "finite"),
        ({"class_names": ["a"]}, "1 names"),
        ({"model": lambda: keras_vit.zero_shot(tower("clip"), np.eye(6))}, "normalize_embedding=True"),
        ({"model": lambda: make_tiny(pooling="none", include_top=False)}, "pooling='none'"),
        ({"model": lambda: make_tiny(classes=6)}, "logit_scale=None, and a model named '"),
        ({"logit_scale": 100.0}, "math.log"),
        ({"logit_scale": np.float32("nan")}, "`logit_scale` must be finite"),
        ({"logit_bias": np.inf}, "`logit_bias` must be finite"),
    ],
)
def test_what_is_no_tower_or_no_text_is_refused(change, word):
    model = change.pop("model", lambda: tower("clip"))()
    arguments = {"text_embeddings": np.eye(6)[:3]} | change
    with pytest.raises((ValueError, TypeError), match=word):
        keras_vit.zero_shot(model, **arguments)


def test_scale_and_bias_of_the_caller_are_taken():
    arrays = expected("siglip")
    found = keras_vit.zero_shot(tower("siglip"), arrays["text_embeds"], logit_scale=0.0, logit_bias=0.0)
    cosines = arrays["image_embeds"] @ arrays["text_embeds"].T
    np.testing.assert_allclose(numpy(found(arrays["images"])), cosines, atol=1e-5)
