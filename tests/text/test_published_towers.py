"""Published names open both towers: from a Hub on this machine, from a mirror, and by what the table says of them."""

import json
import shutil

import numpy as np
import pytest
from conftest import GOLDEN, numpy
from hub_server import HubServer, turn_to
from published_files import shrink, write_encoder
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.checks import ArgumentError
from keras_vit.weights.registry import all_records, find_weights
from keras_vit.weights.registry.record import read_text_rows

pytestmark = pytest.mark.filterwarnings("ignore:.*(scaled|range|preprocessing|otherwise):UserWarning")
FOLDER = GOLDEN / "text" / "towers"
BUCKET = "tips_data/v1_0/checkpoints"


def expected(name):
    with np.load(FOLDER / name / "expected.npz") as arrays:
        return dict(arrays)


def strings(name):
    return json.loads((FOLDER / name / "texts.json").read_text())["strings"]


def contents_of(name, **more):
    files = [file for file in (FOLDER / name).iterdir() if file.name not in ("expected.npz", "texts.json")]
    return {file.name: file.read_bytes() for file in files} | more


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with HubServer() as server:
        turn_to(server, monkeypatch, tmp_path)
        yield server


def test_rows_are_of_the_table_and_each_name_with_two_towers_has_one():
    rows = {(row["name"], row["variant"]): row for row in read_text_rows()}
    records = {(record.name, record.variant): record for record in all_records()}
    assert rows.keys() <= records.keys()
    assert len(rows) == len(read_text_rows()) == 115
    for name, record in records.items():
        trained = record.family in ("clip", "tinyclip", "siglip", "eva_clip", "pe_core", "tips")
        assert name not in rows or record.has_text
        if trained and not record.name.startswith("hf:"):
            assert name in rows
    assert {row["vocabulary"] for row in rows.values()} == {"", "c4_en", "mc4", "gemma", "tips"}
    assert all(row["num_heads"] for name, row in rows.items() if name[0].startswith(("pe-", "tips")))
    assert rows["laion2b", "clip/B16"]["text"] == "hf:laion/CLIP-ViT-B-16-laion2B-s34B-b88K"
    assert rows["openai", "clip/B16"]["text"] == "hf:timm/vit_base_patch16_clip_224.openai"  # next to timm's file


def test_terms_are_said_before_a_text_tower_is_brought(hub, caplog):
    hub.contents = contents_of("oc_clip")
    for _ in range(2):  # and not again
        keras_vit.build_text("clip/B16", weights="metaclip-400m")
    assert [record.message for record in caplog.records if "commercially" in record.message] == [
        find_weights("metaclip-400m", "clip/B16").terms
    ]


def test_both_towers_of_a_published_name_come_from_the_hub(hub, monkeypatch, tmp_path):
    """timm's `config.json` says nothing of the text tower, so that OpenCLIP's is brought all the same."""
    record = find_weights("laion2b", "clip/B16")
    shrink(record, monkeypatch)
    write_encoder(record, tmp_path / "model.safetensors")
    both = load_file(FOLDER / "oc_clip" / "open_clip_model.safetensors")
    both["text_projection"] = np.random.default_rng(0).normal(size=(32, 512)).astype("float32")
    save_file(both, tmp_path / "both.safetensors")
    config = json.loads((FOLDER / "oc_clip" / "open_clip_config.json").read_text())
    config["model_cfg"] |= {"quick_gelu": True, "embed_dim": 512}  # which the record knows better, as of DFN's B/16
    hub.contents = contents_of("oc_clip", **{"config.json": b'{"pretrained_cfg": {}, "num_classes": 512}'}) | {
        "model.safetensors": (tmp_path / "model.safetensors").read_bytes(),
        "open_clip_model.safetensors": (tmp_path / "both.safetensors").read_bytes(),
        "open_clip_config.json": json.dumps(config).encode(),
    }
    text = keras_vit.build_text("clip/B16", weights="laion2b")
    assert (text.config.activation, text.config.num_heads, text.output_shape) == ("gelu", 2, (None, 512))
    assert text.provenance["activation"] == ("gelu", "the record of laion2b")
    assert text.load_report == ("activation gelu of the record, where the folder has quick_gelu",)
    np.testing.assert_array_equal(text.tokenizer(strings("oc_clip")), expected("oc_clip")["ids"])
    np.testing.assert_array_equal(keras_vit.tokenizer("clip/B16")(strings("oc_clip")), expected("oc_clip")["ids"])
    assert {path.split("/resolve/")[0] for path in hub.asked} == {"laion/CLIP-ViT-B-16-laion2B-s34B-b88K"}
    own = keras_vit.build_text(weights="hf:timm/mine")  # of those who publish an image tower in the other file
    assert {path.split("/")[-1] for path in hub.asked if "timm/mine" in path} >= {"open_clip_model.safetensors"}
    np.testing.assert_array_equal(own.tokenizer(strings("oc_clip")), expected("oc_clip")["ids"])
    image = keras_vit.build("clip/B16", weights="laion2b", input_shape=(32, 32, 3))
    photos = np.load(FOLDER / "images.npy").astype("float32")
    zero = keras_vit.zero_shot(image, classes=["cat", "dog"])  # whose text tower is in another repository
    rows = [row / np.linalg.norm(row) for row in numpy(image(photos))]
    words = text.embed(["a photo of a cat.", "a photo of a dog."])
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    np.testing.assert_allclose(numpy(zero(photos)), np.exp(text.logit_scale) * np.array(rows) @ words.T, atol=2e-5)


def test_file_of_pickles_is_taken_where_there_is_no_other_and_a_tokenizer_from_where_it_is_named(hub, monkeypatch):
    hub.contents = contents_of("oc_clip_bin")
    text = keras_vit.build_text(weights="hf:me/mine")
    np.testing.assert_array_equal(text.tokenizer(strings("oc_clip_bin")), expected("oc_clip_bin")["ids"])
    taken = [name for name in hub.downloads if name.endswith((".bin", ".safetensors"))]
    assert taken == ["open_clip_pytorch_model.bin"]
    hub.contents = {}
    with pytest.raises(OSError, match=r"(?s)model\.safetensors.*404|EntryNotFound"):
        keras_vit.build_text(weights="hf:me/other")


def test_tower_in_shards_of_another_software_than_the_image_tower_is_brought(hub, tmp_path):
    """TinyCLIP's, whose image towers are timm's; the activation is that of the record."""
    arrays, places = load_file(FOLDER / "hf_clip" / "model.safetensors"), {}
    for number, names in enumerate((sorted(arrays)[::2], sorted(arrays)[1::2])):
        name = f"model-0000{number + 1}-of-00002.safetensors"
        save_file({each: arrays[each] for each in names}, tmp_path / name)
        places |= dict.fromkeys(names, name)
    index = json.dumps({"metadata": {}, "weight_map": places}).encode()
    hub.contents = contents_of("hf_clip", **{"model.safetensors.index.json": index})
    hub.contents |= {file.name: file.read_bytes() for file in tmp_path.glob("model-*")}
    del hub.contents["model.safetensors"]
    text = keras_vit.build_text("tinyclip/8M16")
    assert {path.split("/resolve/")[0] for path in hub.asked} == {"wkcn/TinyCLIP-ViT-8M-16-Text-3M-YFCC15M"}
    assert text.load_report == ("activation gelu of the record, where the folder has quick_gelu",)
    wanted = keras_vit.build_text(weights=FOLDER / "hf_clip", activation="gelu").embed(strings("hf_clip"))
    np.testing.assert_array_equal(text.embed(strings("hf_clip")), wanted)


@pytest.mark.parametrize(
    ("variant", "weights", "tower", "places"),
    [
        ("siglip/B16", "siglip-224", "bv_siglip", ["t5-data/vocabs/cc_en.32000/sentencepiece.model"]),
        ("siglip/B16", "siglip2-224", "bv_siglip2", ["big_vision/gemma_tokenizer.model"]),
        ("tips/L14", "tips", "tips_text", [f"{BUCKET}/pytorch/tips_oss_l14_highres_distilled_text.npz"]),
        ("pe_core/B16", "pe-core-224", "pe_core", []),
    ],
)
def test_names_whose_tokenizer_is_elsewhere(variant, weights, tower, places, monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path))
    record = find_weights(weights, variant)
    text, *_ = [place for place in places if place.endswith(".npz")] or [record.path]
    vocabulary = f"{BUCKET}/tokenizer.model" if tower == "tips_text" else places[0] if places else None
    files = [file for file in (FOLDER / tower).iterdir() if file.suffix in (".pt", ".npz") and "mini" in file.name]
    for place, file in ((text, files[0]), (vocabulary, next((FOLDER / tower).glob("*.model"), None))):
        if place is not None:
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, tmp_path / place)
    model = keras_vit.build_text(variant, weights=weights)
    ids = {} if tower == "pe_core" else expected(tower)
    if ids:
        used = [text for text in strings(tower) if text] if tower == "tips_text" else strings(tower)
        length = ids["ids"].shape[1]
        found = keras_vit.tokenizer(variant, max_length=length) if weights == "siglip-224" else model.tokenizer
        np.testing.assert_array_equal(found(used)[:, :length], ids["ids"])
    if tower in ("pe_core", "tips_text"):
        assert model.provenance["num_heads"] == (model.config.num_heads, f"the record of {weights}")


def test_names_without_a_text_tower_are_refused():
    with pytest.raises(ArgumentError, match=r"(?s)these have none.*dinov2"):
        keras_vit.build_text("dinov2/S14")
    with pytest.raises(ArgumentError, match="Did you mean 'clip/B16'"):
        keras_vit.build_text("clip/B17")
