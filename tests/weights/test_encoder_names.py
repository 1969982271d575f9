"""The table of encoders: each row is whole, and each family's file gives the model that its record says."""

import dataclasses
import json
import logging

import keras
import numpy as np
import pytest
from conftest import randomise
from published_files import shrink, write_encoder
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.config.position_tables import RESIZE_METHODS
from keras_vit.config.variants import ENCODERS, FAMILIES, encoder, family_of
from keras_vit.weights import resolve
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.download import OfflineError
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.file_checks import check_for
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.registry import all_records, find_weights, list_weights
from keras_vit.weights.registry.record import read_records

pytestmark = pytest.mark.filterwarnings("ignore:.*(scaled|range|preprocessing):UserWarning")
RECORDS = read_records("encoders.csv")


def identity(record):
    return f"{record.name}:{record.variant}"


def test_every_row_is_whole():
    for record in RECORDS:
        height, width = record.preprocessing.image_size
        assert height % record.config.stride == width % record.config.stride == 0, identity(record)
        assert record.layout in LAYOUTS, identity(record)
        assert record.resize_method in (None, *RESIZE_METHODS), identity(record)
        assert record.measure in ("top-1", "kNN", "zero-shot", "fine-tuned", "linear", "attentive probe"), identity(
            record
        )
        assert record.accuracy is None or 55 < record.accuracy < 92, identity(record)
        assert (record.accuracy is None) == (record.accuracy_source == "none reported"), identity(record)
        assert record.license, identity(record)
        assert len(record.sha256_start) in (0, 8), identity(record)
        assert record.parameters is None or record.parameters > 4e5, identity(record)
        assert record.url.startswith("https://"), identity(record)
        assert not {"", ".", ".."} & set(record.path.split("/")), identity(record)
    assert len({(record.name, record.variant) for record in all_records()}) == len(all_records())
    assert len({record.path for record in all_records()}) == len(all_records())


def test_every_row_is_found_by_its_name_and_by_its_repository():
    for record in RECORDS:
        assert find_weights(record.name, record.variant) is record
        assert record in list_weights(record.variant)
        assert record in list_weights(family=record.family)
        if record.hf_repo:
            assert find_weights(f"hf:{record.hf_repo}") is record


def test_every_encoder_has_a_builder_and_a_config_of_its_family():
    assert len(set(ENCODERS.values())) == len(ENCODERS)
    for name, builder in ENCODERS.items():
        assert getattr(keras_vit, builder).__name__ == builder
        assert keras_vit.weights.registry.variant_of(builder) == name
        assert encoder(name).activation == FAMILIES[family_of(name)].fields["activation"]


def test_what_authors_and_frameworks_do_otherwise_is_that_of_the_authors():
    """Facts that frameworks get wrong, typed again from the authors' code and papers."""
    resizes = {record.name: record.resize_method for record in list_weights("dinov2/S14")}
    assert resizes["dinov2"] == resizes["hf:facebook/dinov2-small"] == "bicubic_offset"
    assert resizes["dinov2-reg4"] == resizes["hf:facebook/dinov2-with-registers-small"] == "bicubic_antialias"
    assert {record.config.activation for record in list_weights(family="siglip")} == {"gelu_tanh"}
    assert {(r.preprocessing.resize, r.preprocessing.mean) for r in list_weights(family="siglip")} == {
        ("squash", (0.5, 0.5, 0.5))
    }
    quick = {(r.name, r.variant) for r in list_weights(family="clip") if r.config.activation == "quick_gelu"}
    assert {("openai", f"clip/{size}") for size in ("B32", "B16", "L14")} <= quick
    assert {("dfn2b", "clip/L14"), ("dfn5b", "clip/H14"), ("laion400m-e32", "clip/B32")} <= quick
    assert len(quick) == 17
    assert not quick & {("laion2b", "clip/B32"), ("dfn2b", "clip/B16"), ("datacompxl", "clip/L14")}
    half = {r.variant for r in list_weights(family="clip") if r.preprocessing.mean == (0.5, 0.5, 0.5)}
    assert "clip/L14" in half
    assert find_weights("laion2b", "clip/L14").preprocessing.mean == (0.5, 0.5, 0.5)
    assert {r.config.layer_norm_epsilon for r in list_weights(family="clip")} == {1e-5}


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path))
    return tmp_path


OF_FAMILIES = {}
for _record in sorted((r for r in RECORDS if r.variant in ENCODERS), key=lambda r: r.preprocessing.image_size):
    OF_FAMILIES.setdefault((_record.family, _record.layout, _record.config.registers), _record)
# The default suite builds the first of each layout that is not timm's, and of those two that have tensors' names of it.
DRAWN = {record.layout: record for record in reversed(OF_FAMILIES.values()) if not record.layout.startswith("timm")}
DRAWN |= {family: next(r for r in OF_FAMILIES.values() if r.family == family) for family in ("dino", "clip", "ijepa")}


@pytest.mark.filterwarnings("ignore:.*unless set otherwise:UserWarning")
@pytest.mark.parametrize(
    "record",
    [
        pytest.param(record, marks=() if record in DRAWN.values() else pytest.mark.slow)
        for key, record in OF_FAMILIES.items()
        if key[:2] != ("ijepa", "huggingface")  # which is read, and not written
    ],
    ids=identity,
)
def test_published_name_gives_the_authors_model_from_a_mirror(mirror, monkeypatch, record):
    shrink(record, monkeypatch)
    model = write_encoder(record, mirror / record.path)
    check_for(dataclasses.replace(record, sha256_start=""))(mirror / record.path)
    if record.sha256_start:
        with pytest.raises(CheckpointError, match=f"must begin with {record.sha256_start}"):
            check_for(record)(mirror / record.path)
    again = getattr(keras_vit, ENCODERS[record.variant])(weights=record.name, include_top=bool(record.classes))
    token = {"class_token": again.config.class_token}
    assert again.config == record.config.replace(**token)
    assert again.preprocessing == record.preprocessing
    assert again.input_shape == (None, *record.preprocessing.image_size, 3)
    assert again.load_report == ()
    pixels = np.random.default_rng(2).integers(0, 256, (1, *again.input_shape[1:]), dtype="uint8")
    x = again.preprocessing(pixels)
    np.testing.assert_allclose(np.asarray(again(x)), np.asarray(model(x)), atol=1e-5)
    step = record.config.stride
    shape = (step * 3, step * 4, 3)
    resized = keras_vit.build(record.variant, weights=record.name, input_shape=shape, include_top=False)
    method = record.resize_method or read_checkpoint(mirror / record.path).resize_method
    has_table = record.config.position_embedding == "learned"
    assert any(line.endswith(f"({method})") for line in resized.load_report) == has_table


@pytest.mark.filterwarnings("ignore:.*unless set otherwise:UserWarning")
def test_name_alone_tells_the_model_where_one_has_it(mirror, monkeypatch):
    record = find_weights("franca-laion600m")
    shrink(record, monkeypatch)
    write_encoder(record, mirror / record.path)
    model = keras_vit.build(weights="franca-laion600m", include_top=False, pooling="none")
    assert model.output_shape == (None, 257, record.config.hidden_size)
    assert model.config.num_heads == 16
    with pytest.raises(ValueError, match=r"named too(.|\n)*dinov2/S14, dinov2/B14"):
        keras_vit.build(weights="dinov2")


@pytest.mark.filterwarnings("ignore:.*unless set otherwise:UserWarning")
def test_model_says_what_no_tensor_tells_and_who_says_it(mirror, monkeypatch, tmp_path):
    record = find_weights("mae-imagenet2012", "mae/B16")
    shrink(record, monkeypatch)
    write_encoder(record, mirror / record.path)
    model = keras_vit.MAEB16(weights=record.name, include_top=False, layer_norm_epsilon=1e-5, input_shape=(32, 48, 3))
    by = "the record of 'mae-imagenet2012'"
    facts = {
        "activation": ("gelu", by),
        "layer_norm_epsilon": ("1e-05", "the caller"),
        "pooling": ("token", by),
        "resize_method": ("bicubic", by),
        "preprocessing": ("crop 0.9, bicubic, mean 0.485 0.456 0.406, std 0.229 0.224 0.225", by),
        "licence": ("CC-BY-NC-4.0", by),
    }
    assert model.provenance == facts
    model.save(tmp_path / "x.keras")
    assert keras.saving.load_model(tmp_path / "x.keras").provenance == facts
    assert keras_vit.with_input_shape(model, (48, 32, 3)).provenance == facts
    card = (keras_vit.save_checkpoint(model, tmp_path / "for_timm", "timm").parent / "README.md").read_text()
    assert "| `resize_method` | bicubic | the record of 'mae-imagenet2012' |" in card
    assert "are under CC-BY-NC-4.0" in card
    alone = keras_vit.build(weights=mirror / record.path, num_heads=12, include_top=False)
    assert alone.provenance["activation"] == ("gelu", "timm, by default")
    folder = keras_vit.build(weights=tmp_path / "for_timm", include_top=False)
    assert folder.provenance["activation"] == ("gelu", "the file's metadata")
    assert "licence" not in folder.provenance


@pytest.mark.filterwarnings("ignore:.*unless set otherwise:UserWarning")
def test_timm_folder_with_the_name_of_an_architecture_alone_has_its_heads(tmp_path):
    """As timm's own on the Hub, whose config has no `model_args`; here the one that keeps the model small."""
    config = encoder("clip/B32").replace(num_layers=1)
    model = randomise(keras_vit.build(config, input_shape=(64, 64, 3), include_top=False))
    ours = keras_vit.save_checkpoint(model, tmp_path / "ours.safetensors", "timm")
    save_file(load_file(ours), tmp_path / "model.safetensors")  # without our note
    said = {"architecture": "vit_base_patch32_clip_quickgelu_224", "num_classes": 0, "model_args": {"depth": 1}}
    (tmp_path / "config.json").write_text(json.dumps(said))
    again = keras_vit.build(weights=tmp_path, include_top=False)
    assert (again.config.num_heads, again.config.activation) == (12, "quick_gelu")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: keras_vit.build("dinov2/S16"), "'dinov2/S14'"),
        (lambda: keras_vit.build("facebook/dinov2-small"), "'dinov2/S14', with `weights='hf:facebook/dinov2-small'`"),
        (lambda: keras_vit.build("openai"), "with `weights='openai'`"),
        (lambda: keras_vit.DINOv2S14(weights="dinov2-reg"), "'dinov2-reg4'"),
        (lambda: keras_vit.DINOv2S14(weights="facebook/dinov2-small"), "'hf:facebook/dinov2-small'"),
        (lambda: keras_vit.DINOv2S14(weights="openai"), "published for clip/"),
        (lambda: find_weights("dino-v2"), "'dinov2'"),
        (lambda: list_weights(family="dinov4"), "'dinov2'"),
        (lambda: list_weights("DINOv2S16"), "'DINOv2S14'"),
    ],
)
def test_wrong_name_leads_to_the_right_one(call, words):
    with pytest.raises((ValueError, FileNotFoundError), match=f"(?s)Received.*{words}"):
        call()


def test_licence_that_forbids_something_is_said_before_the_first_download(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    with caplog.at_level(logging.WARNING, "keras_vit"):
        with pytest.raises(OfflineError):
            resolve.find_file("mae-imagenet2012", "mae/B16")
        with pytest.raises(OfflineError):
            resolve.find_file("dino", "dino/S16")
    assert [record.message for record in caplog.records] == [
        "The weights 'mae-imagenet2012' of mae/B16 are under CC-BY-NC-4.0: they may not be used commercially."
    ]
    assert {record.license for record in RECORDS if not record.terms} <= {
        *("Apache-2.0", "MIT", "Apache-2.0, CC-BY-4.0"),
    }


def test_abstract_encoder_has_its_family_in_its_name():
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.DINOv2S14(include_top=False, registers=4)
    assert (model.name, model.config.registers) == ("dinov2_s14", 4)
