"""Text towers of 22 folders, in every layout: ids, places, embeddings and scores are those of the software."""

import csv
import functools
import json
import shutil
import sys

import keras
import numpy as np
import pytest
from conftest import GOLDEN, numpy
from mirrored import engine

import keras_vit
from keras_vit.checks import ArgumentError
from keras_vit.config.text import TextConfig
from keras_vit.model.two_towers import text_tower
from keras_vit.text.templates import prompts
from keras_vit.weights.families.text import TEXT_LAYOUTS
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.text import of_open_clip

pytestmark = pytest.mark.filterwarnings("ignore:.*(scaled|range|preprocessing):UserWarning")  # images are normal
FOLDER = GOLDEN / "text" / "towers"
INDEX = json.loads((FOLDER / "index.json").read_text())
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


WITH_TIMM_TRUNK = ("oc_custom_text", "oc_siglip", "oc_siglip2", "oc_siglip_noproj")  # of sizes that timm has not
WITH_IMAGES = [name for name in sorted(INDEX) if "zero_shot_logits" in INDEX[name]["arrays"]]


def classifier_of(name):
    """By names of classes and prompts, from the folder alone where it says the heads of both."""
    words, source, text = texts(name), FOLDER / name, None
    if "image_heads" in INDEX[name] or name in WITH_TIMM_TRUNK:
        fields = {"num_heads": 2} | ({"activation": "gelu_tanh"} if name == "oc_siglip2" else {})
        source, text = keras_vit.build(weights=source, include_top="siglip" not in name, **fields), tower(name)
    return keras_vit.zero_shot(source, classes=words["classes"], templates=words["templates"], text=text)


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
        ("oc_siglip", ("open_clip_linear_text", "huggingface_siglip_text", "big_vision_text")),
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
        if name in ("tips_text", "dinotxt_text"):
            with pytest.raises(ArgumentError, match="`format` must be one of"):
                keras_vit.save_checkpoint(model, tmp_path / "x.safetensors", layout)


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
def test_each_fact_that_no_tensor_says_moves_the_rows_beyond_the_bound(name, change):
    model = keras_vit.build_text(weights=FOLDER / name, **given_of(name) | change)
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


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_gives_float32_near_the_full_one(policy):
    keras.config.set_dtype_policy(policy)
    try:
        rows = numpy(keras_vit.build_text(weights=FOLDER / "hf_clip")(expected("hf_clip")["ids"]))
    finally:
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
    with pytest.raises(ArgumentError, match="of another vocabulary"):
        model(np.full((1, 8), 64, "int32"))
    with pytest.raises(ArgumentError, match="at most 8 ids"):
        model.predict(np.zeros((1, 9), "int32"))
    with pytest.raises(ArgumentError, match="takes ids"):
        model(np.zeros((1, 8), "float32"))
    with pytest.raises(ValueError, match=r"model\.tokenizer"):
        model.embed(["cat"])
    with pytest.raises(ArgumentError, match="of another vocabulary"):
        model(keras.ops.full((1, 8), 64, "int32"))  # which JAX reads as the last row
    for name, other in ((None, "clip"), ("hf_clip", "hf_siglip"), ("hf_siglip", "hf_clip")):
        found = model if name is None else keras_vit.build_text(weights=FOLDER / name)
        found.tokenizer = keras_vit.tokenizer(other if name is None else FOLDER / other, max_length=8)
        with pytest.raises(ArgumentError, match="of the vocabulary that it was trained with"):
            found.embed(["cat"])
    siglip = keras_vit.build_text(weights=FOLDER / "hf_siglip")
    with pytest.raises(ArgumentError, match="must be padded to 24 ids"):
        siglip(np.zeros((1, 8), "int32"))
    batches = tf.data.Dataset.from_tensors(np.zeros((2, 24), "int32"))
    assert siglip.predict(batches, verbose=0).shape == (2, 32)
    siglip.tokenizer = keras_vit.tokenizer(FOLDER / "hf_siglip", max_length=8)
    with pytest.raises(ArgumentError, match="must be padded to 24 ids"):
        siglip.embed(["cat"])
    for wrong in (5, keras_vit.ViTConfig(8, 16, num_layers=1, num_heads=2, mlp_dim=8)):
        with pytest.raises(TypeError, match=r"`config` must be a `TextConfig`"):
            keras_vit.build_text(wrong)
    tower_only = keras_vit.ViTTi16(num_layers=1, include_top=False)
    with pytest.raises(ValueError, match="text=None"):
        keras_vit.zero_shot(tower_only, classes=["cat"])
    with pytest.raises(ArgumentError, match="E = 192"):
        keras_vit.zero_shot(tower_only, classes=["cat"], text=tower("hf_clip"))
    with pytest.raises(TypeError, match="neither"):
        keras_vit.zero_shot(tower_only)
    for wrong in (tower_only, "clip/B16"):
        with pytest.raises(TypeError, match="`text` must be a text tower"):
            keras_vit.zero_shot(tower_only, classes=["cat"], text=wrong)
    for wrong in ("cat", [], ["cat", " "], ["cat", None]):
        with pytest.raises((TypeError, ValueError), match="classes"):
            keras_vit.zero_shot(FOLDER / "hf_clip", classes=wrong)


def test_tower_without_its_library_says_which_extra_has_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    model = keras_vit.build_text(weights=FOLDER / "hf_siglip")
    with pytest.raises(ValueError, match=r"(?s)tokenizer left out: sentencepiece must be installed.*\[text\]"):
        model.embed(["cat"])


def test_files_that_no_tower_here_computes_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="Pass `num_heads=`"):
        keras_vit.build_text(weights=FOLDER / "pe_core")
    with pytest.raises(CheckpointError, match="towers of BERT"):
        keras_vit.build_text(weights=GOLDEN / "token.npz")
    config = json.loads((FOLDER / "oc_clip" / "open_clip_config.json").read_text())
    for change, match in (({"hf_model_name": "roberta-base"}, "roberta-base"), ({"layers": 3}, "num_layers 3")):
        folder = tmp_path / match
        shutil.copytree(FOLDER / "oc_clip", folder)
        changed = {**config["model_cfg"], "text_cfg": config["model_cfg"]["text_cfg"] | change}
        (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": changed}))
        with pytest.raises(CheckpointError, match=match):
            keras_vit.build_text(weights=folder)


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
    return {"embed_dim": int(row["embed_dim"]), "quick_gelu": row["activation"] == "quick_gelu", "text_cfg": text}


def test_published_towers_have_their_switches_and_parameters():
    """Of all tags of OpenCLIP that are taken, as it counts them: on shapes, of one block that stands for all."""
    counts, taken = {}, [row for row in tags() if not row["refused"]]
    for row in taken:
        stated = of_open_clip(open_clip_config(row), TEXT_LAYOUTS["open_clip_text"])
        switches = [str(stated[name]) for name in ("activation", "layer_norm_epsilon", "causal")]
        assert switches == [row["activation"], row["epsilon"], row["causal"]], row["model"]
        poolings = {"argmax": ("argmax", None), "last": ("last", None), "eos": ("end", 2)}
        assert (stated["pooling"], stated["end_id"]) == poolings[row["pooling"]], row["model"]
        fields = {name: value for name, value in stated.items() if value is not None}
        config = TextConfig(
            **fields,
            mlp_dim=int(row["mlp"]),
            projection_size=None if row["projection"] == "none" else int(row["embed_dim"]),
            projection_bias=row["projection"] == "linear with bias",
        )
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


def test_towers_of_other_architectures_are_refused_by_name(tmp_path):
    shutil.copytree(FOLDER / "oc_clip", tmp_path / "x")
    refused = [row for row in tags() if row["refused"]]
    assert len(refused) == 13
    for row in refused:
        (tmp_path / "x" / "open_clip_config.json").write_text(json.dumps({"model_cfg": open_clip_config(row)}))
        with pytest.raises(CheckpointError, match=rf"(?s)towers of BERT, RoBERTa, CoCa and NLLB.*'{row['refused']}'"):
            keras_vit.build_text(weights=tmp_path / "x")
