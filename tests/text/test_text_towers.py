"""Text towers of 22 folders, in every layout: ids, places, embeddings and scores are those of the software."""

import argparse
import contextlib
import csv
import dataclasses
import functools
import json
import re
import shutil
import sys
import types

import keras
import numpy as np
import pytest
from conftest import GOLDEN, numpy
from mirrored import engine
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.checks import ArgumentError
from keras_vit.cli.models import check_model
from keras_vit.config.text import TextConfig
from keras_vit.embedding import neighbors
from keras_vit.files import file_sha256
from keras_vit.model.two_towers import text_tower
from keras_vit.text.templates import prompts
from keras_vit.weights.families.text import TEXT_LAYOUTS
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.read.sharded import scan_any
from keras_vit.weights.text import of_open_clip, of_transformers, read_text_checkpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(scaled|range|preprocessing):UserWarning"),  # images are normal
    # Of one folder: its class leaves capitals, and the ids that it is compared with have none.
    pytest.mark.filterwarnings("ignore:capitals become small letters:UserWarning"),
]
FOLDER = GOLDEN / "text" / "towers"
INDEX = json.loads((FOLDER / "index.json").read_text())
TOKENIZERS = GOLDEN / "text" / "tokenizers"
FILES = {"bv_siglip": "siglip_mini.npz", "bv_siglip2": "siglip_mini.npz", "tips_text": "tips_mini_text.npz"}
UNIT = 3e-6  # of rows of length 1: a wrong epsilon moves them by 5e-6 at least
SMALL = TextConfig(64, 8, 16, num_layers=2, num_heads=2, mlp_dim=32, projection_size=12)


def given_of(name):
    """What no file of its authors says."""
    facts = INDEX[name]
    return {field: facts[key] for field, key in (("num_heads", "heads"), ("max_length", "length")) if key in facts}


@functools.cache
def tower(name):
    return keras_vit.build_text(weights=FOLDER / name, **given_of(name))


@functools.cache
def expected(name):
    with np.load(FOLDER / name / "expected.npz") as arrays:
        return dict(arrays)


@functools.cache
def texts(name):
    found = json.loads((FOLDER / name / "texts.json").read_text())
    used = INDEX[name].get("strings_used", range(len(found["strings"])))
    return {**found, "strings": [found["strings"][place] for place in used]}


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize("name", sorted(INDEX))
def test_tower_is_that_of_its_software(name):
    """Ids of texts, vectors of all places, of the pooled one and of the text; scale and bias of the logits."""
    model, arrays, facts = tower(name), expected(name), INDEX[name]
    np.testing.assert_array_equal(model.tokenizer(texts(name)["strings"]), arrays["ids"])
    inside = keras.Model(
        model.input, [model.get_layer("encoder_norm").output, model.get_layer("pooling").output, model.output]
    )
    tokens, pooled, embedding = map(numpy, inside(arrays["ids"]))
    if "text_tokens" in arrays:
        np.testing.assert_allclose(tokens[:4], arrays["text_tokens"], atol=1e-5)
    if "text_pooled" in arrays:
        np.testing.assert_allclose(pooled, arrays["text_pooled"], atol=1e-5)
    np.testing.assert_allclose(unit(embedding), arrays["text_unit"], atol=UNIT)
    np.testing.assert_allclose(unit(model.embed(texts(name)["strings"])), arrays["text_unit"], atol=UNIT)
    scale = facts["logit_scale"] if facts["temperature"] is None else -np.log(facts["temperature"])
    assert (model.logit_scale, model.logit_bias) == pytest.approx((scale, facts["logit_bias"] or 0.0))
    assert model.config.layer_norm_epsilon == (1e-6 if "siglip" in name else 1e-5)  # rows of TIPS do not show it


@pytest.mark.parametrize(("name", "start"), [("pe_core", "<start_of_text>"), ("openai_clip", "<|startoftext|>")])
def test_words_for_special_ids_are_those_of_the_authors(name, start):
    """Perception Encoder's tokenizer is OpenCLIP's, and no config says so."""
    for tokenizer in (tower(name).tokenizer, keras_vit.tokenizer(FOLDER / name)):
        found = tokenizer(["<start_of_text>", "<|startoftext|>"])[:, 1] == tokenizer.start_id
        assert list(found) == [start == "<start_of_text>", start == "<|startoftext|>"]


WITH_TIMM_TRUNK = ("oc_custom_text", "oc_siglip", "oc_siglip2", "oc_siglip_noproj")  # of sizes that timm has not
GELUS = {"oc_siglip": "gelu", "oc_siglip_noproj": "gelu", "oc_siglip2": "gelu_tanh"}  # which their configs do not say
WITH_IMAGES = [name for name in sorted(INDEX) if "zero_shot_logits" in INDEX[name]["arrays"]]


def classifier_of(name):
    """By names of classes and prompts, from the folder alone where it says the heads of both."""
    words, source, text = texts(name), FOLDER / name, None
    if "image_heads" in INDEX[name] or name in WITH_TIMM_TRUNK:
        fields = {"num_heads": 2} | ({"activation": GELUS[name]} if name in GELUS else {})
        source, text = keras_vit.build(weights=source, include_top="siglip" not in name, **fields), tower(name)
    return keras_vit.zero_shot(source, classes=words["classes"], templates=words["templates"], text=text)


@pytest.mark.filterwarnings("ignore:1 of 9 prompts are longer:UserWarning")
@pytest.mark.parametrize("name", WITH_IMAGES)
def test_zero_shot_logits_are_those_of_both_towers(name):
    model = classifier_of(name)
    found = numpy(model(np.load(FOLDER / "images.npy").astype("float32")))
    np.testing.assert_allclose(found, expected(name)["zero_shot_logits"], atol=2e-5)
    assert model.class_names == tuple(texts(name)["classes"])


HERE = ("dinotxt_text", "hf_clip", "hf_metaclip2", "hf_siglip", "tips_text")  # one of each place, mask and activation


def rows_here(names=HERE):
    """For `elsewhere`: the largest difference of unit rows of each tower, and whether all ids are right."""
    differences = {}
    for name in names:
        model, arrays, words = tower(name), expected(name), texts(name)["strings"]
        ids = model.tokenizer(words)
        assert (ids == arrays["ids"]).all(), name
        differences[name] = float(np.abs(unit(numpy(model(ids))) - arrays["text_unit"]).max())
    return {"backend": keras.backend.backend(), "differences": differences}


def all_rows_here():
    """For `elsewhere`: the same of all towers, with the logits of zero-shot classifiers."""
    found = rows_here(sorted(INDEX))
    photos = np.load(FOLDER / "images.npy").astype("float32")
    found["logits"] = {
        name: float(np.abs(numpy(classifier_of(name)(photos)) - expected(name)["zero_shot_logits"]).max())
        for name in WITH_IMAGES
    }
    return found


def assert_rows_are_right(found, backend, names):
    assert found["backend"] == backend
    assert found["differences"].keys() == {*names}
    assert max(found["differences"].values()) < UNIT, found
    assert max(found.get("logits", {"": 0}).values()) < 2e-5, found


@pytest.mark.elsewhere("jax", "rows_here")
def test_rows_on_jax(found):
    assert_rows_are_right(found, "jax", HERE)


@pytest.mark.slow
@pytest.mark.elsewhere("jax", "all_rows_here")
def test_all_rows_and_logits_on_jax(found):
    assert_rows_are_right(found, "jax", INDEX)


@pytest.mark.torch
@pytest.mark.elsewhere("torch", "all_rows_here")
def test_all_rows_and_logits_on_torch(found):
    assert_rows_are_right(found, "torch", INDEX)


def test_saved_tower_embeds_the_same_texts_to_the_same_numbers(tmp_path):
    model = tower("hf_siglip")
    model.save(tmp_path / "x.keras")
    loaded = keras.saving.load_model(tmp_path / "x.keras")
    words = texts("hf_siglip")["strings"]
    np.testing.assert_array_equal(loaded.embed(words), model.embed(words))
    assert (loaded.config, loaded.logit_scale, loaded.logit_bias) == (model.config, model.logit_scale, model.logit_bias)
    assert loaded.provenance == model.provenance == {**model.provenance, "pooling": ("last", "config.json")}


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        ("oc_clip", ("open_clip_text", "open_clip_linear_text", "huggingface_text")),
        ("oc_siglip", ("open_clip_linear_text", "huggingface_siglip_text")),
        ("bv_siglip", ("open_clip_linear_text", "huggingface_siglip_text", "big_vision_text")),
        ("tips_text", ("tips_text",)),
        ("dinotxt_text", ("dino_text",)),
    ],
)
def test_layout_that_is_read_is_written(name, layouts, tmp_path):
    """Bit for bit, with its config; and no layout whose software computes otherwise."""
    model = tower(name)
    for layout in layouts:
        file = tmp_path / f"{layout}{TEXT_LAYOUTS[layout].suffix}"
        read = keras_vit.build_text(weights=keras_vit.save_checkpoint(model, file, layout))
        assert read.config == model.config
        assert (read.logit_scale, read.logit_bias) == pytest.approx((model.logit_scale, model.logit_bias))
        for ours, theirs in zip(model.variables, read.variables, strict=True):
            np.testing.assert_array_equal(numpy(ours), numpy(theirs))
    for layout in TEXT_LAYOUTS.keys() - {*layouts}:
        with pytest.raises(ArgumentError, match="`format` must be one of"):
            keras_vit.save_checkpoint(model, tmp_path / f"x{TEXT_LAYOUTS[layout].suffix}", layout)


@pytest.mark.parametrize(
    ("name", "layout", "change"),
    [
        *(("oc_clip", "huggingface_text", change) for change in ({"causal": False}, {"pooling": "last"})),
        *(("oc_clip", "open_clip_text", change) for change in ({"activation": "relu"}, {"pooling": "mean"})),
        *(("oc_clip", "open_clip_text", {word: True}) for word in ("mask_padding", "scale_tokens")),
        *(("bv_siglip", "big_vision_text", change) for change in ({"activation": "gelu"}, {"causal": True})),
        ("bv_siglip", "big_vision_text", {"layer_norm_epsilon": 1e-5}),
        *(("bv_siglip", "huggingface_siglip_text", change) for change in ({"pooling": "argmax"}, {"causal": True})),
        ("bv_siglip", "huggingface_siglip_text", {"projection_bias": False}),
        *(("tips_text", "tips_text", change) for change in ({"activation": "gelu"}, {"causal": True})),
        *(("tips_text", "tips_text", {word: False}) for word in ("mask_padding", "scale_tokens")),
        *(("dinotxt_text", "dino_text", change) for change in ({"activation": "quick_gelu"}, {"pooling": "last"})),
        ("dinotxt_text", "dino_text", {"layer_norm_epsilon": 1e-6}),
    ],
)
def test_tower_that_a_software_does_not_compute_is_not_written_for_it(name, layout, change, tmp_path):
    """Each fact that its classes fix; a config says the others, as the epsilon of OpenCLIP and transformers."""
    config = read_text_checkpoint(FOLDER / name).config(**given_of(name))
    model = keras_vit.build_text(config.replace(**change))
    with pytest.raises((ArgumentError, CheckpointError), match=r"must be one of|layout of a text tower must compute"):
        keras_vit.save_checkpoint(model, tmp_path / f"x{TEXT_LAYOUTS[layout].suffix}", layout)
    keras_vit.save_checkpoint(keras_vit.build_text(config), tmp_path / f"y{TEXT_LAYOUTS[layout].suffix}", layout)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("hf_clip", {"pooling": "last"}),
        ("hf_clip", {"activation": "gelu"}),
        ("hf_clip", {"num_heads": 4}),
        ("hf_clip_eos", {"pooling": "argmax"}),
        ("oc_clipa", {"pooling": "argmax"}),
        ("oc_siglip", {"activation": "gelu_tanh"}),
        ("hf_clip", {"layer_norm_epsilon": 1e-6}),
        ("hf_metaclip2", {"pooling": "argmax"}),
        ("hf_siglip", {"causal": True}),
        ("hf_siglip", {"mask_padding": True}),
        ("hf_siglip", {"layer_norm_epsilon": 1e-5}),
        ("oc_custom_text", {"causal": True}),
        ("oc_siglip2", {"activation": "gelu"}),
        ("tips_text", {"activation": "gelu"}),
        ("tips_text", {"scale_tokens": False}),
        ("tips_text", {"mask_padding": False}),
        ("tips_text", {"pooling": "last"}),
    ],
)
@pytest.mark.filterwarnings("ignore:the text tower is computed otherwise")
def test_each_fact_that_no_tensor_says_moves_the_rows_beyond_the_bound(name, change):
    ((field, value),) = change.items()
    is_warned = pytest.warns(UserWarning, match="otherwise than its file says: num_heads 4, where .* has 2")
    with is_warned if field == "num_heads" else contextlib.nullcontext():
        model = keras_vit.build_text(weights=FOLDER / name, **given_of(name) | change)
    assert model.provenance[field] == (value, "the caller")
    assert [line for line in model.load_report if line.startswith(f"{field} {value}, where ")]
    with pytest.raises(CheckpointError, match=f"{field} {value}, where "):
        keras_vit.build_text(weights=FOLDER / name, **given_of(name) | change, strict=True)
    assert np.abs(unit(numpy(model(expected(name)["ids"]))) - expected(name)["text_unit"]).max() > UNIT


def test_laws():
    """What stands behind a causal end changes nothing, rows do not see each other, and classes may change places."""
    model = tower("hf_clip")
    ids = expected("hf_clip")["ids"].copy()
    whole = numpy(model(ids))
    place = int(ids[0].argmax())
    np.testing.assert_allclose(numpy(model(ids[:1, : place + 1])), whole[:1], atol=1e-6)
    ids[0, place + 1 :] = 5
    np.testing.assert_allclose(numpy(model(ids)), whole, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([numpy(model(row[None])) for row in ids]), whole, atol=1e-6)
    siglip, padded = tower("hf_siglip"), expected("hf_siglip")["ids"].copy()
    padded[padded == siglip.tokenizer.pad_id] = 0  # of SigLIP 2, where 1 is that of SigLIP
    assert np.abs(unit(numpy(siglip(padded))) - expected("hf_siglip")["text_unit"]).max() > UNIT
    words, images = ["cat", "red car", "cat"], np.load(FOLDER / "images.npy").astype("float32")
    logits = numpy(keras_vit.zero_shot(FOLDER / "hf_clip", classes=words)(images))
    turned = numpy(keras_vit.zero_shot(FOLDER / "hf_clip", classes=words[1:], templates="a photo of a {}.")(images))
    np.testing.assert_allclose(logits[:, 1:], turned, atol=1e-5)
    np.testing.assert_array_equal(logits[:, 0], logits[:, 2])  # names may repeat
    image = keras_vit.build(weights=FOLDER / "hf_siglip", include_top=False)
    options = {"templates": "imagenet-7", "text": siglip}
    both = [keras_vit.zero_shot(image, classes=[name], **options) for name in ("Cat, puss", "cat")]
    np.testing.assert_array_equal(*(numpy(each(images)) for each in both))  # as SigLIP's authors write names
    assert not tower("tips_text").embed([""]).any()  # a mean of no place is 0, and no NaN


def test_prompts_of_a_class_count_alike():
    """Each has length 1 before the mean; without it the classes of every given folder move."""
    words, model = texts("hf_clip"), tower("hf_clip")
    rows = model.embed(prompts(words["classes"], words["templates"])).reshape(len(words["classes"]), -1, 24)
    wanted = expected("hf_clip")["class_embeddings"]
    np.testing.assert_allclose(unit(unit(rows).mean(1)), wanted, atol=UNIT)
    assert np.abs(unit(rows.mean(1)) - wanted).max() > 100 * UNIT


@pytest.mark.parametrize("batch_size", [3, 256])
@pytest.mark.parametrize(("name", "widths"), [("hf_clip", {6, 12, 18, 24}), ("hf_siglip", {24})])
def test_short_texts_are_cut_to_few_widths_with_the_numbers_of_the_full_length(name, widths, batch_size, monkeypatch):
    """A causal tower computes nothing after the longest end; one that reads padding has its full length."""
    model, computed = keras_vit.build_text(weights=FOLDER / name), []
    monkeypatch.setattr(text_tower, "_WIDTHS", 6)  # of 24 places, as 16 of 77
    monkeypatch.setattr(model, "predict_on_batch", lambda ids: (computed.append(ids.shape[1]), model(ids))[1])
    found = unit(model.embed(texts(name)["strings"], batch_size=batch_size))
    np.testing.assert_allclose(found, expected(name)["text_unit"], atol=UNIT)
    assert {*computed} <= widths
    assert name == "hf_siglip" or batch_size > 3 or min(computed) < 24


def rows_on_two_devices():
    """For `elsewhere`: the largest difference of unit rows of a tower that is mirrored."""
    with engine(2).scope():
        model = keras_vit.build_text(weights=FOLDER / "hf_clip")
    found = model.predict(expected("hf_clip")["ids"], batch_size=4, verbose=0), model.embed(texts("hf_clip")["strings"])
    return [float(np.abs(unit(rows) - expected("hf_clip")["text_unit"]).max()) for rows in found]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strategies are TensorFlow's")
@pytest.mark.elsewhere("two devices", "rows_on_two_devices")
def test_two_devices_give_the_rows_of_one(found):
    assert max(found) < UNIT


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float16"])
def test_half_precision_gives_float32_near_the_full_one(policy):
    """Of Keras' `floatx` too, by which places would be int16, for which TensorFlow has no range in a graph."""
    keras.config.set_dtype_policy(policy)
    keras.config.set_floatx("float16" if policy == "float16" else "float32")
    try:
        model, ids = keras_vit.build_text(weights=FOLDER / "hf_clip"), expected("hf_clip")["ids"]
        rows = model.predict(ids, verbose=0) if policy == "float16" else numpy(model(ids))
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
    assert rows.dtype == np.float32
    np.testing.assert_allclose(unit(rows), expected("hf_clip")["text_unit"], atol=0.03)


def test_tower_learns_and_is_built_from_a_config():
    model = keras_vit.build_text(SMALL)
    model.compile("sgd", "mse")
    ids = np.random.default_rng(0).integers(0, 64, (8, 8)).astype("int32")
    losses = model.fit(ids, np.ones((8, 12), "float32"), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert keras_vit.build_text(SMALL, include_top=False).output_shape == (None, 16)
    assert keras_vit.build_text(SMALL, pooling="none").output_shape == (None, None, 16)


def test_wrong_ids_and_towers_without_texts_are_refused():
    import tensorflow as tf

    model = keras_vit.build_text(SMALL)
    for rows, refused in ((573, False), (571, True)):  # with the last row of `<mask>` alone, and one of a piece
        found = keras_vit.build_text(SMALL.replace(vocabulary_size=rows - 1, pooling="last"))
        found.tokenizer = keras_vit.tokenizer(TOKENIZERS / "xlm_small", max_length=8)
        with pytest.raises(ArgumentError, match="573 ids") if refused else contextlib.nullcontext():
            found.embed(["cat"])
    with pytest.raises(ArgumentError, match="of at least one text and one id"):
        model.predict(np.zeros((1, 0), "int32"))
    with pytest.raises(ArgumentError, match="of another vocabulary"):
        model(np.full((1, 8), 64, "int32"))
    with pytest.raises(ArgumentError, match="at most 8 ids"):
        model.predict(np.zeros((1, 9), "int32"))
    with pytest.raises(ArgumentError, match="at least one text"):
        model.predict(np.zeros((0, 8), "int32"))
    with pytest.raises(ArgumentError, match="takes ids"):
        model(np.zeros((1, 8), "float32"))
    with pytest.raises(ValueError, match=r"model\.tokenizer"):
        model.embed(["cat"])
    with pytest.raises(ArgumentError, match="of another vocabulary"):
        model(keras.ops.full((1, 8), 64, "int32"))  # which JAX reads as the last row
    for name, other in ((None, "clip"), ("hf_clip", "hf_siglip"), ("hf_siglip", "hf_clip")):
        found = model if name is None else keras_vit.build_text(weights=FOLDER / name)
        source, length = other if name is None else FOLDER / other, found.config.max_length
        with (
            contextlib.nullcontext() if name is None else pytest.warns(UserWarning, match="of 'A photo of a Caf.*, not")
        ):
            found.tokenizer = keras_vit.tokenizer(source, max_length=length)
        with pytest.raises(ArgumentError, match="of the vocabulary that it was trained with"):
            found.embed(["cat"])
    found = keras_vit.build_text(weights=FOLDER / "oc_clip")
    with pytest.warns(UserWarning, match="of 'A photo of a Caf&eacute;"):  # one vocabulary, which cleans otherwise
        found.tokenizer = keras_vit.tokenizer(FOLDER / "hf_clip", max_length=found.config.max_length)
    siglip = keras_vit.build_text(weights=FOLDER / "hf_siglip")
    with pytest.raises(ArgumentError, match="must be padded to 24 ids"):
        siglip(np.zeros((1, 8), "int32"))
    with pytest.warns(UserWarning, match="reads its padding"):
        keras_vit.build_text(weights=FOLDER / "hf_siglip", max_length=8)
    batches = tf.data.Dataset.from_tensors(np.zeros((2, 24), "int32"))
    assert siglip.predict(batches, verbose=0).shape == (2, 32)
    with pytest.raises(ArgumentError, match="takes ids"):
        siglip.predict(tf.data.Dataset.from_tensors(np.zeros((2, 24))), verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"shape"):  # its graph is of any length
        siglip.predict(tf.data.Dataset.from_tensors(np.zeros((2, 8), "int32")), verbose=0)
    with pytest.raises(ArgumentError, match="takes ids"):
        siglip(keras.Input((24,)))  # float32
    for method in (model.fit, model.evaluate):
        with pytest.raises(ArgumentError, match="of another vocabulary"):
            method(np.full((1, 8), -1), np.zeros((1, 12)))
    traced = lambda ids: tf.data.Dataset.from_tensors(ids).map(model).get_single_element()  # noqa: E731
    for call in (traced, lambda ids: model.predict(tf.data.Dataset.from_tensors(ids), verbose=0)):
        for wrong in (64, -1):
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=rf"(?s)(?=.*ids_must_be_from_0_to_63).*\] = {wrong} is not"
            ):
                call(np.full((1, 8), wrong, "int32"))
    layer = keras_vit.layers.TokenEmbedding(5, 3)
    rows = tf.function(layer, jit_compile=True)(np.array([[-1, 5, 4, -6, 0]], "int32"))  # XLA and GPUs do not raise
    assert list(np.isnan(numpy(rows)[0, :, 0])) == [True, True, False, True, False]
    kept = siglip.tokenizer
    for wrong in ("clip", len):
        with pytest.raises(TypeError, match=r"`tokenizer` must be one that `keras_vit\.tokenizer` opens"):
            siglip.tokenizer = wrong
    with pytest.raises(ArgumentError, match=r"must be padded to 24 ids(?s:.*)max_length=8"):
        siglip.tokenizer = keras_vit.tokenizer(FOLDER / "hf_siglip", max_length=8)
    assert siglip.tokenizer is kept
    with pytest.warns(UserWarning, match=r"clean='siglip_transformers', not 'none'"):
        siglip.tokenizer = keras_vit.tokenizer(FOLDER / "hf_siglip", clean="none")
    for wrong in (5, keras_vit.ViTConfig(8, 16, num_layers=1, num_heads=2, mlp_dim=8)):
        with pytest.raises(TypeError, match=r"`config` must be a `TextConfig`"):
            keras_vit.build_text(wrong)
    tower_only = keras_vit.ViTTi16(num_layers=1, include_top=False)
    with pytest.raises(ValueError, match="text=None"):
        keras_vit.zero_shot(tower_only, classes=["cat"])
    with pytest.raises(ValueError, match="activation function identifier: foo"):
        keras_vit.zero_shot(tower_only, classes=["cat"], classifier_activation="foo")  # before any text is read
    with pytest.raises(ValueError, match=r"(?s)one embedding of the same size.*\(None, 192\).*\(None, 24\)"):
        keras_vit.zero_shot(tower_only, classes=["cat"], text=tower("hf_clip"))
    with pytest.raises(TypeError, match="neither"):
        keras_vit.zero_shot(tower_only)
    for wrong in (tower_only, "clip/B16"):
        with pytest.raises(TypeError, match="`text` must be a text tower"):
            keras_vit.zero_shot(tower_only, classes=["cat"], text=wrong)
    for wrong in ("cat", [], ["cat", " "], ["cat", None], {"cat", "dog"}):
        with pytest.raises((TypeError, ValueError), match="classes"):
            keras_vit.zero_shot(FOLDER / "hf_clip", classes=wrong)


def test_gelu_of_a_siglip_of_no_known_name_is_asked_for():
    """Both are usual, and the numbers are near: 5e-5 of rows of length 1."""
    with pytest.warns(UserWarning, match=r"'vit_mini_patch8_siglip2_32' is no model(?s:.*)Took activation='gelu'"):
        keras_vit.build(weights=FOLDER / "oc_siglip2", num_heads=2, include_top=False)


def square(folder):
    """A folder of transformers' CLIP whose images, texts and embeddings have one width."""
    source, kept = FOLDER / "hf_clip", {}
    config, arrays = json.loads((source / "config.json").read_text()), load_file(source / "model.safetensors")
    sizes = {name: arrays[f"{name}_projection.weight"].shape for name in ("visual", "text")}
    size, rng = sizes["text"][1], np.random.default_rng(0)
    width = sizes["visual"][1]
    kept = {"text_projection.weight": (width, size), "visual_projection.weight": (width, width)}
    arrays |= {name: rng.normal(0, 0.2, shape).astype("float32") for name, shape in kept.items()}
    shutil.copytree(source, folder)
    save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | {"projection_dim": width}))
    return folder


def test_features_before_a_projection_of_equal_width_are_refused(tmp_path):
    """The width of the projection says nothing: it is that of the features."""
    folder = square(tmp_path / "square")
    image, text = keras_vit.build(weights=folder), keras_vit.build_text(weights=folder)
    bare = keras_vit.build(weights=folder, include_top=False)
    assert bare.output_shape == image.output_shape == text.output_shape
    assert keras_vit.zero_shot(image, classes=["cat"], text=text).classes == 1
    width = image.output_shape[-1]
    own = keras_vit.build_text(dataclasses.replace(SMALL, projection_size=width))
    assert keras_vit.ContrastiveModel(bare, own).kind == "softmax"  # which may learn to be near to features
    bare_text = keras_vit.build_text(dataclasses.replace(text.config, hidden_size=width, mlp_dim=8), include_top=False)
    for images, texts, call in ((bare, text, "build"), (image, bare_text, "build_text")):
        with pytest.raises(ValueError, match=rf"after the projections(?s:.*)`keras_vit.{call}` without"):
            keras_vit.zero_shot(images, classes=["cat"], text=texts)
        with pytest.raises(ValueError, match=rf"after the projections(?s:.*)`keras_vit.{call}` without"):
            keras_vit.ContrastiveModel(images, texts)
    bare_text.tokenizer = text.tokenizer
    with pytest.raises(ValueError, match=r"after the projections(?s:.*)`keras_vit.build_text` without"):
        keras_vit.zero_shot(image, bare_text.embed(["cat"])[:1], ["cat"])
    with pytest.raises(ArgumentError, match="Build it without `include_top=False`"):
        neighbors._check_queries(bare_text.embed(["cat"]), tmp_path)


@pytest.mark.parametrize("name", ["hf_siglip", "hf_siglip2", "oc_siglip"])
def test_siglip_that_has_lost_its_bias_is_refused(name, tmp_path):
    """As without the scale; one of random numbers, or a CLIP, has none to lose."""
    file = next(shutil.copytree(FOLDER / name, tmp_path / "x").glob("*.safetensors"))
    save_file({key: array for key, array in load_file(file).items() if key != "logit_bias"}, file)
    text = keras_vit.build_text(weights=file, num_heads=2)
    image = keras_vit.build(weights=file, num_heads=2, activation="gelu", include_top=False)
    assert text.logit_bias is image.logit_bias is None
    given = {"classes": ["cat"], "text": text}
    for call in (
        lambda: keras_vit.zero_shot(image, **given),
        lambda: keras_vit.zero_shot(image, text.embed(["cat"]), ["cat"]),
        lambda: keras_vit.ContrastiveModel(image, text),
    ):
        with pytest.raises(ArgumentError, match=r"bias of the logits must be known(?s:.*)logit_bias=None"):
            call()
    assert keras_vit.zero_shot(image, **given, logit_bias=-9).classes == 1


@pytest.mark.parametrize("name", ["square", "oc_clip", "oc_custom_text", "pe_core"])
def test_image_tower_that_has_lost_its_projection_is_refused(name, tmp_path):
    """Also where the widths are equal, and of an image tower of timm, whose projection has a bias."""
    folder = square(tmp_path / "x") if name == "square" else shutil.copytree(FOLDER / name, tmp_path / "x")
    file = next(file for file in folder.iterdir() if file.suffix in (".safetensors", ".pt"))
    whole = keras_vit.build(weights=file, num_heads=2, include_top=False)
    arrays = {
        key: a for key, a in scan_any(file).read().items() if not re.search(r"visual(_|(\.trunk)?\.)(proj|head)", key)
    }
    save_file(arrays, file.with_suffix(".safetensors"))
    image = keras_vit.build(weights=file.with_suffix(".safetensors"), num_heads=2, include_top=False)
    assert (whole.lacks_projection, image.lacks_projection) == (True, True)
    if name == "square":
        with pytest.raises(ValueError, match=r"after the projections(?s:.*)of a file that has its projection"):
            keras_vit.zero_shot(folder, classes=["cat"])


def test_towers_of_two_sources_are_named(tmp_path):
    first = square(tmp_path / "first")
    shutil.copytree(first, tmp_path / "second")
    image, text = keras_vit.build(weights=first), keras_vit.build_text(weights=tmp_path / "second")
    keras_vit.zero_shot(image, classes=["cat"], text=text)  # copies of one file
    tensors = load_file(tmp_path / "second" / "model.safetensors")
    tensors["visual_projection.weight"] += 1  # the scale is the same, as of most CLIPs
    save_file(tensors, tmp_path / "second" / "model.safetensors")
    for make in (
        functools.partial(keras_vit.zero_shot, image, classes=["cat"], text=text),
        functools.partial(keras_vit.zero_shot, first, classes=["cat"], text=text),
        functools.partial(keras_vit.ContrastiveModel, image, text),
    ):
        with pytest.warns(UserWarning, match=r"first.model.safetensors, the text tower of .*second.model.safetensors"):
            make()
    record = types.SimpleNamespace(sha256_start=file_sha256(first / "model.safetensors")[:9], variant="v", name="n")
    text.weights_source = record  # whose file lies in a folder of one's own
    keras_vit.zero_shot(image, classes=["cat"], text=text)
    record.sha256_start = "0"
    with pytest.warns(UserWarning, match="the text tower of v n"):
        keras_vit.zero_shot(image, classes=["cat"], text=text)


def test_classes_of_equal_ids_are_refused_or_named():
    """Refused where the prompts are cut before they differ; named where a vocabulary has one id for both."""
    long = "cat " * 30
    for options in ({"classes": [f"{long}cat", f"{long}dog"]}, {"classes": ["cat", "dog"], "templates": f"{long}{{}}"}):
        with pytest.raises(ArgumentError, match=r"(?s)differ in the first \d+ ids.*cat' and '.*dog'"):
            keras_vit.zero_shot(FOLDER / "hf_clip", **options)
    with pytest.warns(UserWarning, match=r"1 of 2 prompts are longer than \d+ tokens and are cut, as 'a photo"):
        keras_vit.zero_shot(FOLDER / "hf_clip", classes=["dog", f"{long}dog"])
    image = keras_vit.build(weights=FOLDER / "hf_siglip", include_top=False)
    with pytest.warns(UserWarning, match="'猫' and '犬' have the same ids"):
        keras_vit.zero_shot(image, classes=["猫", "犬"], text=tower("hf_siglip"))


def test_new_head_of_zeros_is_no_projection():
    image = keras_vit.build(weights=FOLDER / "hf_siglip", classes=32)
    with pytest.raises(ValueError, match=r"(?s)head of 32 zeros.*without `classes`"):
        keras_vit.zero_shot(image, classes=["cat", "dog"], text=tower("hf_siglip"))


def test_table_of_tokens_may_have_more_rows_than_clip_has_ids(tmp_path):
    """OpenCLIP opens its own tokenizer for such a folder."""
    config = {"embed_dim": 12, "vision_cfg": {}, "text_cfg": {"width": 16, "heads": 2, "layers": 1}}
    config["text_cfg"] |= {"vocab_size": 49500, "context_length": 8}
    words = TextConfig(49500, 8, 16, num_layers=1, num_heads=2, mlp_dim=64, projection_size=12, projection_bias=False)
    keras_vit.save_checkpoint(keras_vit.build_text(words), tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    for found in (keras_vit.build_text(weights=tmp_path), keras_vit.build_text(words, weights=tmp_path)):
        assert (found.tokenizer.vocabulary_size, found.tokenizer.max_length) == (49408, 8)
        assert found.embed(["a cat"]).shape == (1, 12)
    np.testing.assert_array_equal(found.tokenizer("a cat"), keras_vit.tokenizer("clip", max_length=8)("a cat"))
    config["text_cfg"]["hf_tokenizer_name"] = "elsewhere"
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    assert (
        "tokenizer left out: a folder must have a tokenizer" in keras_vit.build_text(weights=tmp_path).load_report[-1]
    )


def test_tower_without_its_library_says_which_extra_has_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    model = keras_vit.build_text(weights=FOLDER / "hf_siglip")
    with pytest.raises(ValueError, match=r"(?s)which has none: sentencepiece must be installed.*\[text\]"):
        model.embed(["cat"])


def test_files_that_no_tower_here_computes_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="Pass `num_heads=`"):
        keras_vit.build_text(weights=FOLDER / "pe_core")
    with pytest.raises(CheckpointError, match=r"(?s)number of heads.*, and `text=keras_vit.build_text"):
        keras_vit.zero_shot(FOLDER / "pe_core", classes=["cat"])
    with pytest.raises(CheckpointError, match="towers of BERT"):
        keras_vit.build_text(weights=GOLDEN / "token.npz")
    config = json.loads((FOLDER / "oc_clip" / "open_clip_config.json").read_text())
    for change, match in (
        ({"hf_model_name": "roberta-base"}, "roberta-base"),
        ({"layers": 3}, "num_layers 3"),
        ({"proj_type": "none"}, "proj_type 'none'"),
        ({"norm_kwargs": {"eps": 3}}, "epsilon of a norm(.|\n)*: 3 in"),
        ({"ls_init_value": 0.1}, "layer_scale both, and none"),
        ({"scaled_cosine_attn": True}, "scaled_cosine_attn=True"),  # whose one tensor is another `logit_scale`
        ({"act_kwargs": {"approximate": "x"}}, "act_kwargs="),
    ):
        folder = tmp_path / re.sub(r"\W", "", match)
        shutil.copytree(FOLDER / "oc_clip", folder)
        changed = {**config["model_cfg"], "text_cfg": config["model_cfg"]["text_cfg"] | change}
        (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": changed}))
        with pytest.raises(CheckpointError, match=match):
            keras_vit.build_text(weights=folder)
        (folder / "bpe_simple_vocab_16e6.txt.gz").unlink()  # which OpenCLIP has itself
        with pytest.raises(CheckpointError, match=match):
            keras_vit.tokenizer(folder)
    config = json.loads((FOLDER / "hf_clip" / "config.json").read_text())
    shutil.copytree(FOLDER / "hf_clip", tmp_path / "x")
    for change, match in (
        *(({word: kind}, "must be of the same class of transformers") for word, kind in OTHER_CLASSES),
        ({"text_config": config["text_config"] | {"layer_norm_eps": 5}}, "epsilon of a norm(.|\n)*: 5 in config.json"),
    ):
        (tmp_path / "x" / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(CheckpointError, match=match):
            keras_vit.build_text(weights=tmp_path / "x")
    with pytest.raises(ValueError, match="must be small and positive"):
        SMALL.replace(layer_norm_epsilon=5)


def test_layer_scale_of_openclips_text_multiplies_each_branch(tmp_path):
    """A branch whose last matrix is divided by it gives the golden numbers again."""
    folder = shutil.copytree(FOLDER / "oc_clip", tmp_path / "oc_clip")
    (file,) = folder.glob("*.safetensors")
    arrays, random = load_file(file), np.random.default_rng(0)
    pattern = re.compile(r"(transformer\.resblocks\.\d+\.)(attn\.out_proj|mlp\.c_proj)\.bias")
    for block, last in [match.groups() for name in arrays if (match := pattern.fullmatch(name))]:
        scale = random.uniform(0.5, 2, arrays[f"{block}{last}.bias"].shape).astype("float32")
        arrays[f"{block}ls_{1 if last.startswith('attn') else 2}.gamma"] = scale
        arrays[f"{block}{last}.weight"] /= scale[:, None]
        arrays[f"{block}{last}.bias"] /= scale
    save_file(arrays, file)
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"]["ls_init_value"] = 0.1
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    model = keras_vit.build_text(weights=folder)
    assert model.config.layer_scale == "both"
    found, wanted = unit(numpy(model(expected("oc_clip")["ids"]))), expected("oc_clip")["text_unit"]
    np.testing.assert_allclose(found, wanted, atol=UNIT)


OTHER_CLASSES = (
    ("model_type", "siglip"),
    ("architectures", ["MetaClip2Model"]),
    ("model_type", "metaclip_2"),
)


def tags():
    with open(GOLDEN / "text" / "open_clip_tags.csv") as file:
        return list(csv.DictReader(file))


def open_clip_config(row):
    """The `model_cfg` of a tag."""
    ratio, tanh = int(row["mlp"]) / max(int(row["width"]), 1), row["activation"] == "gelu_tanh"
    text = {"width": row["width"], "heads": row["heads"], "layers": row["layers"]}
    text |= {"context_length": row["context"], "vocab_size": row["vocabulary"]}
    text = {name: int(value) for name, value in text.items() if value}
    text |= {"mlp_ratio": ratio, "pool_type": row["pooling"], "no_causal_mask": row["causal"] == "False"}
    text |= {"act_kwargs": {"approximate": "tanh"}} if tanh else {}
    text |= {"norm_kwargs": {"eps": 1e-6}} if row["epsilon"] == "1e-06" else {}
    text |= {"eos_id": int(row["eos_id"])} if row["eos_id"] else {}
    if row["refused"] == "CoCa":
        return {"embed_dim": 512, "text_cfg": text | {"embed_cls": True}, "multimodal_cfg": {}}
    text |= {"hf_model_name": row["refused"]} if row["refused"] else {}
    text |= {"proj_type": "none"} if row["projection"] == "none" else {"proj_bias": "bias" in row["projection"]}
    return {"embed_dim": int(row["embed_dim"]), "quick_gelu": row["activation"] == "quick_gelu", "text_cfg": text}


def test_published_towers_have_their_switches_and_parameters():
    """Of all tags of OpenCLIP that are taken, as it counts them: on shapes, of one block that stands for all."""
    counts, taken = {}, [row for row in tags() if not row["refused"]]
    for row in taken:
        stated = of_open_clip(open_clip_config(row))
        switches = [str(stated[name]) for name in ("activation", "layer_norm_epsilon", "causal")]
        assert switches == [row["activation"], row["epsilon"], row["causal"]], row["model"]
        poolings = {"argmax": ("argmax", None), "last": ("last", None), "eos": ("end", 2)}
        assert (stated["pooling"], stated["end_id"]) == poolings[row["pooling"]], row["model"]
        fields = {name: value for name, value in stated.items() if value is not None}
        config = TextConfig(**fields, mlp_dim=int(row["mlp"]))
        key = tuple(row[name] for name in list(row)[2:10])
        if key not in counts:
            with keras.StatelessScope(initialize_variables=False):
                model = keras_vit.build_text(config.replace(num_layers=1))
            block = model.get_layer("block_00").count_params()
            counts[key] = model.count_params() + (config.num_layers - 1) * block
        assert counts[key] == int(row["parameters"]), row["model"]
    assert (len(taken), len(counts)) == (156, 30)
    others = ("RN", "convnext", "ViTamin", "MobileCLIP-S", "MobileCLIP2-S")  # image towers that are no ViT
    assert sum(not row["model"].startswith(others) for row in taken) == 115


@pytest.mark.slow
@pytest.mark.parametrize("layers", [12, 24])
def test_one_block_stands_for_all(layers):
    with keras.StatelessScope(initialize_variables=False):
        config = TextConfig(32000, 64, 1024, layers, 16, mlp_dim=4096)
        whole, one = (keras_vit.build_text(config.replace(num_layers=number)) for number in (layers, 1))
    assert whole.count_params() == one.count_params() + (layers - 1) * one.get_layer("block_00").count_params()


def test_defaults_of_transformers_rule_where_a_config_is_silent(tmp_path):
    """As in the published SigLIP's, whose `eos_token_id` and inner `projection_dim` mean nothing."""
    shutil.copytree(FOLDER / "hf_siglip", tmp_path / "x")
    file = tmp_path / "x" / "config.json"
    config = json.loads(file.read_text())
    config["text_config"] = {"model_type": "siglip_text_model", "num_attention_heads": 2, "eos_token_id": 49407}
    config["text_config"]["projection_dim"] = 512
    file.write_text(json.dumps(config))
    silent = keras_vit.build_text(weights=tmp_path / "x", max_length=24)
    assert silent.config == tower("hf_siglip").config


@pytest.mark.parametrize(
    ("name", "config"),
    [
        *(("oc_clip", config) for config in ({}, {"model_cfg": {}}, {"model_cfg": {"text_cfg": {}}})),
        ("hf_clip", {"model_type": "clip", "text_config": {"eos_token_id": 2}, "projection_dim": 24}),
        ("hf_siglip2", {"model_type": "siglip", "text_config": {"model_type": "siglip_text_model"}}),
        ("hf_tipsv2", {"model_type": "tipsv2", "text_config": {"model_type": "tipsv2_text_model"}}),
    ],
)
def test_default_of_heads_is_taken_only_of_the_default_width(name, config, tmp_path):
    """Their number is in no tensor, and that of a class belongs to its width of 512 or 768."""
    folder = shutil.copytree(FOLDER / name, tmp_path / "x")
    (folder / ("open_clip_config.json" if name == "oc_clip" else "config.json")).write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"heads of attention(?s:.*)num_heads=None"):
        keras_vit.build_text(weights=folder)
    if name == "hf_tipsv2":
        assert keras_vit.build_text(weights=folder, num_heads=2, max_length=24).config.num_heads == 2


def test_older_configs_of_both_towers_replace_the_newer_ones(tmp_path):
    """With the values of transformers' classes where they are silent; the facts are those of its CLIPConfig 5.24."""
    folder = shutil.copytree(FOLDER / "hf_clip", tmp_path / "x")
    config = json.loads((folder / "config.json").read_text())

    def built(text, vision, kind="clip"):
        words = {"text_config_dict": text, "vision_config_dict": vision, "model_type": kind}
        (folder / "config.json").write_text(json.dumps(config | words))
        return keras_vit.build_text(weights=folder), keras_vit.build(weights=folder)

    text, vision = config["text_config"], config["vision_config"]
    usual, image = built(None, None)
    silent = {name: text[name] for name in text if name not in ("hidden_act", "eos_token_id", "layer_norm_eps")}
    towers = built(silent | {"num_attention_heads": 4}, vision | {"hidden_act": "gelu", "num_attention_heads": 4})
    assert towers[0].config == usual.config.replace(num_heads=4, pooling="end", end_id=49407)
    assert towers[1].config == image.config.replace(activation="gelu", num_heads=4)
    del config["text_config"]
    assert built(text | {"hidden_act": "gelu"}, None)[0].config == usual.config.replace(activation="gelu")
    config["text_config"] = text | {"max_position_embeddings": 24}
    with pytest.raises(CheckpointError, match=r"vocabulary_size 49408, and 664(?s:.*)max_length 77, and 24"):
        built({"hidden_act": "gelu"}, None)
    with pytest.raises(CheckpointError, match="hidden_size 768, and 32"):
        built(None, {"hidden_act": "gelu"})


USUAL = {  # of a silent config: heads, activation, epsilon, place, end, padding
    "clip": (8, "quick_gelu", 1e-5, "end", 49407, 1),
    "metaclip_2": (8, "quick_gelu", 1e-5, "end", 49407, 1),
    "siglip": (12, "gelu_tanh", 1e-6, "last", None, 1),
    "siglip2": (12, "gelu_tanh", 1e-6, "last", None, 1),
    "tipsv2": (12, "relu", 1e-5, "mean", None, 0),
    "OpenCLIP": (8, "gelu", 1e-5, "argmax", None, 0),
}


@pytest.mark.parametrize("kind", USUAL)
def test_silent_configs_have_the_values_of_their_classes(kind):
    """As transformers 5.24 and OpenCLIP 3.3 print them."""
    found = of_open_clip({"text_cfg": {}}) if kind == "OpenCLIP" else of_transformers({"model_type": kind})
    names = ("num_heads", "activation", "layer_norm_epsilon", "pooling", "end_id", "pad_id")
    assert tuple(found.get(name) for name in names) == USUAL[kind]


def test_scale_of_tipsv2_without_one_is_that_of_its_class(tmp_path):
    """The published files have no temperature; transformers divides cosines by that of the config, or 0.005066."""
    file = shutil.copytree(FOLDER / "hf_tipsv2", tmp_path / "x") / "model.safetensors"
    save_file({name: array for name, array in load_file(file).items() if name != "temperature"}, file)
    config = json.loads(file.with_name("config.json").read_text())
    del config["temperature_init_value"]
    for fields, scale in (
        ({}, 5.28521),
        ({"temperature_init_value": 0.25}, np.log(4)),
        ({"temperature_init_value": 0}, 0),
    ):
        file.with_name("config.json").write_text(json.dumps(config | fields))
        with contextlib.nullcontext() if scale else pytest.raises(CheckpointError, match="above 0"):
            assert read_text_checkpoint(file).logit_scale_and_bias == pytest.approx((scale, 0.0))


@pytest.mark.parametrize(
    ("name", "role", "said"),
    [
        ("hf_clip", "text_projection.weight", "projection_size 24, and None"),
        ("hf_siglip", "text_model.head.bias", "projection_bias True, and False"),
        ("oc_custom_text", "text.text_projection", "projection_size 24, and None"),
        ("oc_siglip", "text.text_projection.bias", "projection_bias True, and False"),
        ("bv_siglip", "params/txt/head/bias", "projection_bias True, and False"),
        ("oc_clip", "positional_embedding", "must be a whole one"),
        ("bv_siglip", "params/txt/Embed_0/embedding", "must be a whole one"),
    ],
)
def test_tensor_that_is_missing_is_named(name, role, said, tmp_path):
    """Without a projection, or its bias, the rest would look like a tower that has none."""
    shutil.copytree(FOLDER / name, tmp_path / "x")
    file = next(
        file
        for file in (tmp_path / "x").iterdir()
        if file.suffix in (".safetensors", ".npz") and file.stem != "expected"
    )
    arrays = load_file(file) if file.suffix == ".safetensors" else dict(np.load(file))
    arrays.pop(role)
    save_file(arrays, file) if file.suffix == ".safetensors" else np.savez(file, **arrays)
    with pytest.raises(CheckpointError, match=said):
        read_text_checkpoint(file)


def test_of_copies_in_a_file_the_text_tower_is_that_of_the_image_tower(tmp_path):
    """The averaged one; of names that say nothing, none."""
    arrays = load_file(FOLDER / "oc_clip" / "open_clip_model.safetensors")
    for names, taken in ((("model", "ema"), "ema"), (("one", "two"), None)):
        copies = {f"{n}.{key}": np.asarray(array + (n == taken)) for n in names for key, array in arrays.items()}
        save_file(copies, tmp_path / "x.safetensors")
        if taken is None:
            with pytest.raises(CheckpointError, match="several models"):
                read_text_checkpoint(tmp_path / "x.safetensors")
        else:
            found = read_text_checkpoint(tmp_path / "x.safetensors").tensors["encoder_norm/gamma"]
            np.testing.assert_array_equal(found, arrays["ln_final.weight"] + 1)


def test_towers_of_other_architectures_are_refused_by_name(tmp_path):
    shutil.copytree(FOLDER / "oc_clip", tmp_path / "x")
    refused = [row for row in tags() if row["refused"]]
    assert len(refused) == 13
    for row in refused:
        (tmp_path / "x" / "open_clip_config.json").write_text(json.dumps({"model_cfg": open_clip_config(row)}))
        with pytest.raises(CheckpointError, match=rf"(?s)towers of BERT, RoBERTa, CoCa and NLLB.*'{row['refused']}'"):
            keras_vit.build_text(weights=tmp_path / "x")


BERT = "text.transformer.encoder.layer.0.attention.self.query.weight"


@pytest.mark.parametrize(
    ("tensors", "text", "family"),
    [
        (["text.cls_emb", "text.positional_embedding", "text_decoder.ln_final.weight"], None, "CoCa"),
        ([BERT], {"hf_model_name": "xlm-roberta-base"}, "RoBERTa ('xlm-roberta-base' in its config)"),
        ([BERT], None, "BERT"),
        (["text_model.roberta.encoder.layer.0.attention.self.query.weight"], None, "RoBERTa"),
        (["text.transformer.shared.weight"], {"hf_model_name": "google/mt5-base"}, "mT5 ('google/mt5-base'"),
        (["text.transformer.layers.0.fc1.weight"], {"hf_model_name": "facebook/nllb-200-distilled-600M"}, "NLLB"),
        (["text.electra.weight"], {"hf_model_name": "google/electra"}, "encoders of transformers ('google/electra'"),
    ],
)
def test_tensors_of_other_architectures_are_refused_by_name(tensors, text, family, tmp_path):
    """Of a folder as of its file; and where the image tower is not computed here either, as CoCa's."""
    tensors = [*tensors, "visual.conv1.weight", "logit_scale"]
    file = tmp_path / "open_clip_model.safetensors"
    save_file({name: np.zeros(3, "float32") for name in tensors}, file)
    if text or family == "CoCa":
        config = {"vision_cfg": {"attentional_pool": True}, "text_cfg": text or {}}
        (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    for source in (tmp_path, file):
        with pytest.raises(CheckpointError, match=rf"(?s)towers of BERT.*{file.name} with one of {re.escape(family)}"):
            keras_vit.build_text(weights=source)
    words = argparse.Namespace(model=str(tmp_path), weights=None, classes="cat", templates=None)
    for opened in (lambda: keras_vit.zero_shot(tmp_path, classes=["cat"]), lambda: check_model(words)):
        with pytest.raises(CheckpointError, match=rf"(?s)towers of BERT.*with one of {re.escape(family)}"):
            opened()


def test_words_of_errors_name_what_is_wrong(tmp_path):
    """The word of a config, the file, and what a class list may be."""
    for model, word in (
        ({"text_cfg": {"embed_cls": True}}, "embed_cls, as"),
        ({"multimodal_cfg": {}}, "multimodal_cfg, as"),
    ):
        with pytest.raises(CheckpointError, match=f"Received: open_clip_config.json with {word}"):
            of_open_clip(model)
    with pytest.raises(CheckpointError, match=r"multiple of `num_heads`(?s:.*)File: .*PE-Core-mini\.pt"):
        keras_vit.build_text(weights=FOLDER / "pe_core", num_heads=7)
    with pytest.raises(TypeError, match=r"`classes` must be a list of texts\.\n"):
        keras_vit.zero_shot(FOLDER / "hf_clip", classes={"a", "b"})
    with pytest.warns(UserWarning, match="'cat' and 'Cat' have the same ids"):
        keras_vit.zero_shot(FOLDER / "hf_clip", classes=["cat", "Cat", "cat"])
