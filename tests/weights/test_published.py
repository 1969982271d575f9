"""Every name of the table builds from a mirror, with the preprocessing of its record: small here, full-size if slow."""

import dataclasses
import re

import keras
import numpy as np
import pytest
from conftest import randomise
from published_files import folder_layout, shrink, write_published

import keras_vit
from keras_vit.config.variants import BUILDERS, RESNETS, VARIANTS, builder_name
from keras_vit.weights.file_checks import check_for
from keras_vit.weights.registry import find_weights
from keras_vit.weights.registry.record import read_records

RECORDS = read_records("vit.csv")
ZERO_HEAD = "ignore:the head of .* is all zeros:UserWarning"


def builder_of(record):
    return record.variant if record.variant in RESNETS else builder_name(record.variant)


def id_of(record):
    return f"{builder_of(record)}-{record.name}"


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    (tmp_path / "mirror").mkdir()
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    return tmp_path / "mirror"


def build(record, **arguments):
    return getattr(keras_vit, builder_of(record))(weights=record.name, **arguments)


def assert_follows(record, model):
    height = record.resolution
    assert model.input_shape == (None, height, height, 3)
    assert model.output_shape[-1] == (record.classes or model.config.hidden_size)
    assert model.preprocessing == record.preprocessing
    token = {} if record.variant in RESNETS else {"class_token": model.config.class_token}
    assert model.config == dataclasses.replace(record.config, **token)
    if "flexivit_" in record.path:
        assert model.load_report == (
            "patch kernel resized from 32x32 to 16x16 (pseudo-inverse)",
            "position embedding resized from (7, 7) to (15, 15) (bilinear_antialias)",
        )
    else:
        assert model.load_report == ()


SIZES = ("hidden_size", "num_layers", "num_heads", "mlp_dim", "resnet_width_factor", "dropout_rate")


def kind_of(record):
    """All that decides how its file is written and read, but for sizes, rates, classes and pixels."""
    if record.variant in RESNETS:
        return re.sub(r"-\d+$", "", record.name)  # without pixels
    config = {name: value for name, value in record.config.as_dict().items() if name not in SIZES}
    config["representation_size"] = bool(record.config.representation_size)
    given = tuple(name for name, _ in record.fields)
    file = folder_layout(record), record.head, "flexivit_" in record.path, record.path.endswith("sam/ViT-S_16.npz")
    return *config.items(), given, *file, bool(record.classes), record.resize_method


KINDS = {}  # {kind: its records}
for _record in RECORDS:
    KINDS.setdefault(kind_of(_record), []).append(_record)


def facts_of(records):
    """What decides a kind one by one, and how a layout has a head and stages of a ResNet."""
    kind, record = kind_of(records[0]), records[0]
    if isinstance(kind, str):
        return {kind}
    return {*enumerate(kind), (folder_layout(record), bool(record.classes), record.config.resnet_stages is None)}


def covering(kinds):
    """Of records by kind the few that have each fact once, those of most new facts first."""
    chosen, missing = [], set().union(*map(facts_of, kinds))
    while missing:
        chosen.append(max(kinds, key=lambda records: len(facts_of(records) & missing)))
        missing -= facts_of(chosen[-1])
    return {id_of(records[0]) for records in chosen}


FIRST_OF_KINDS, COVERING = {id_of(records[0]) for records in KINDS.values()}, covering(KINDS.values())


def when(record):
    """Facts once by default, their products in the night, and what differs in sizes alone if slow."""
    name = id_of(record)
    marks = () if name in COVERING else pytest.mark.nightly if name in FIRST_OF_KINDS else pytest.mark.slow
    return pytest.param(record, marks=marks)


of_each_kind = pytest.mark.parametrize("record", [when(record) for record in RECORDS], ids=id_of)


@pytest.mark.filterwarnings(ZERO_HEAD)
@of_each_kind
def test_every_name_builds_from_a_mirror_with_its_preprocessing(mirror, monkeypatch, record):
    shrink(record, monkeypatch)
    write_published(record, mirror / record.path)
    check_for(record)(mirror / record.path)
    if record.classes:
        assert_follows(record, build(record))
    side = 378 if record.variant == "H/14" else 384
    model = build(record, classes=10, input_shape=(side, side, 3))
    assert model.output_shape == (None, 10)
    assert model.preprocessing == dataclasses.replace(record.preprocessing, image_size=(side, side))
    for field, value in record.fields:
        if field != "representation_size":  # dropped with the head it was trained for
            assert getattr(model.config, field) == value
    assert "new head" in model.load_report


def test_every_record_is_found_by_its_name_and_of_a_kind_that_is_built():
    assert sum(map(len, KINDS.values())) == len(RECORDS)
    for record in RECORDS:
        assert find_weights(record.name, record.variant) is record, id_of(record)
        assert record.preprocessing.image_size == (record.resolution, record.resolution), id_of(record)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings(ZERO_HEAD)
@pytest.mark.parametrize(
    "record", [r for r in RECORDS if r.variant in VARIANTS and not r.path.startswith("hf/")], ids=id_of
)
def test_every_name_builds_at_full_size(mirror, record):
    ramp = np.linspace(-1, 1, 1000, dtype="float32")
    write_published(record, mirror / record.path, lambda shape: np.resize(ramp, shape))
    assert_follows(record, build(record))
    (mirror / record.path).unlink()


@pytest.mark.slow
@pytest.mark.filterwarnings(ZERO_HEAD)
def test_the_issue_in_one_line(mirror):
    record = find_weights("imagenet21k", "B/16")
    write_published(record, mirror / record.path, lambda shape: np.full(shape, 0.01, "float32"))
    model = keras_vit.ViTB16(weights="imagenet21k", classes=10, input_shape=(384, 384, 3))
    assert model.count_params() == 85_798_656 + (24**2 - 14**2) * 768 + 7690


def test_a_folder_of_the_mirror_gives_the_file_of_the_variant(mirror, monkeypatch):
    for record in (find_weights(name, "B/16") for name in ("imagenet21k", "imagenet21k+imagenet2012")):
        shrink(record, monkeypatch)
        write_published(record, mirror / record.path)
    folder = mirror / "vit_models" / "imagenet21k+imagenet2012"
    assert keras_vit.ViTB16(weights=folder).input_shape == (None, 384, 384, 3)
    with pytest.raises(ValueError, match=r"one file of ViT B/16(.|\n)*imagenet21k/ViT-B_16\.npz"):
        keras_vit.ViTB16(weights=mirror)
    with pytest.raises(ValueError, match="one file of ViT L/16"):
        keras_vit.ViTL16(weights=folder)


@pytest.mark.parametrize(("name", "variant"), [("sam", "B/16"), ("bit-imagenet2012", "R50x1")])
def test_a_file_that_is_not_what_the_table_says_is_refused(mirror, monkeypatch, name, variant):
    record = find_weights(name, variant)
    shrink(record, monkeypatch)
    write_published(dataclasses.replace(record, classes=7), mirror / record.path)
    with pytest.raises(keras_vit.CheckpointError, match="1000 classes"):
        build(record, classes=10)
    with pytest.raises(keras_vit.CheckpointError, match="classes: expected 1000, got 7"):
        check_for(record)(mirror / record.path)
    if variant in RESNETS:
        with pytest.raises(keras_vit.CheckpointError, match=r"ViT B/16.* ResNet: expected False"):
            check_for(find_weights("imagenet21k", "B/16"))(mirror / record.path)


def test_names_of_resnets_belong_to_their_models():
    assert find_weights("bit-imagenet21k+imagenet2012", "R50x1").url == (
        "https://storage.googleapis.com/bit_models/BiT-M-R50x1-ILSVRC2012.npz"
    )
    with pytest.raises(ValueError, match="R200x3"):
        find_weights("bit-imagenet21k", "R200x3")
    with pytest.raises(ValueError, match=r"list_weights\('R50x1'\)(.|\n)*'bit-imagenet21k'"):
        find_weights("bit-imagenet22k", "R50x1")


def test_preprocessing_of_the_record_is_kept_by_saving_and_loading(mirror, monkeypatch, tmp_path):
    record = find_weights("deit-distilled-imagenet2012", "Ti/16")
    shrink(record, monkeypatch)
    write_published(record, mirror / record.path)
    model = randomise(build(record, classes=4))
    model.save(tmp_path / "x.keras")
    assert keras.saving.load_model(tmp_path / "x.keras").preprocessing == record.preprocessing
    assert keras_vit.with_input_shape(model, (32, 48, 3)).preprocessing == dataclasses.replace(
        record.preprocessing, image_size=(32, 48)
    )
    assert record.preprocessing.mean == (0.485, 0.456, 0.406)


def test_every_builder_has_published_weights_but_the_two_giants():
    assert set(VARIANTS) - {record.variant for record in RECORDS} == {"g/14", "G/14"}
    resnets = {record.variant for record in RECORDS if record.name == "bit-imagenet21k"}
    assert resnets == {"R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4"}
    assert set(BUILDERS.values()) == set(VARIANTS)
