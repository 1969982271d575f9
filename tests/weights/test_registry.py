"""The table of published checkpoints: each row against an independent computation, and its lookup."""

import collections

import pytest
from conftest import run_python
from fault_server import EMPTY_PACKAGES
from test_variants import PUBLISHED_PARAMETERS

from keras_vit.config.flops import parameter_count
from keras_vit.config.variants import RESNETS, VARIANTS, ResNetConfig
from keras_vit.config.vit import ViTConfig
from keras_vit.weights.registry import all_records, find_weights, list_weights
from keras_vit.weights.registry.augreg import augreg_record, looks_like_augreg
from keras_vit.weights.registry.record import listed_size, published_config, read_records

RECORDS = read_records("vit.csv")


def identity(record):
    return f"{record.name}:{record.variant}"


def tensor_bytes(record):
    """Bytes of a record's tensors: the official count, corrected for positions, tokens, head and pre_logits."""
    config = record.config
    if isinstance(config, ResNetConfig):  # whose counts test_resnets.py compares with timm's
        return 4 * parameter_count(config, record.resolution, record.classes)
    width, grid = config.hidden_size, record.resolution // config.stride
    count = PUBLISHED_PARAMETERS[record.variant] - (width + 1) * 1000 + (width + 1) * record.classes
    count += (grid**2 - (224 // config.stride) ** 2) * width
    if config.pooling == "gap":
        count -= 2 * width  # the class token and its position
    if config.distilled:
        count += 2 * width + (width + 1) * record.classes
    if config.representation_size:
        count += (width + 1) * width
    return 4 * count


def size_is_right(record):
    if record.bytes is None:
        return "not listed" in record.bytes_source and record.bytes_tolerance == 0
    copies = 3 if record.path == "vit_models/sam/ViT-S_16.npz" else 1  # Adam's moments beside the weights
    arrays = 16 * getattr(record.config, "num_layers", 40) + 180  # at most, of a hybrid's or a ResNet's
    headers = 400 * copies * arrays
    surplus = record.bytes - copies * tensor_bytes(record)
    return -record.bytes_tolerance <= surplus <= record.bytes_tolerance + headers


def test_every_size_agrees_with_the_tensors():
    assert [identity(record) for record in RECORDS if not size_is_right(record)] == []


def test_parameter_counts_are_the_official_ones():
    assert {name: parameter_count(VARIANTS[name], 224, 1000) for name in VARIANTS} == PUBLISHED_PARAMETERS


def test_parameters_of_encoders_are_those_that_their_software_counts():
    """But for what is stored otherwise: class tokens without a position, the larger table of DINOv2."""
    known = [record for record in read_records("encoders.csv") if record.parameters]
    counts = [parameter_count(r.config, r.preprocessing.image_size, r.classes) for r in known]
    off = [abs(count / record.parameters - 1) for count, record in zip(counts, known, strict=True)]
    assert (len(known), max(off) < 0.02, off.count(0) > 300) == (395, True, True)


def test_size_in_words_is_the_files_or_computed_and_marked():
    sizes = {(r.name, r.variant): r.megabytes for r in all_records()}
    assert sizes["augreg-imagenet21k", "B/16"] == "410"
    assert sizes["dinov2", "dinov2/S14"] == "~88"
    assert sizes["big_vision-imagenet2012-300ep", "S/16"] == "~88"
    assert not [key for key, size in sizes.items() if int(size.strip("~")) < 1]


def test_listed_size_is_true_within_half_its_last_digit_or_a_tenth_of_a_mebibyte():
    size, tolerance = listed_size("somewhere: 1.22 GiB")
    assert size == round(1.22 * 2**30)
    assert tolerance == pytest.approx(0.005 * 2**30, abs=1)
    assert listed_size("a: 37 MiB")[1] == 2**19 + 1
    assert listed_size("a: 393.69 MiB")[1] == 2**20 // 10
    assert listed_size("not listed") == (None, 0)


def test_every_record_is_a_valid_configuration_that_its_resolution_fits():
    for record in RECORDS:
        assert isinstance(record.config, ResNetConfig if record.variant in RESNETS else ViTConfig), identity(record)
        assert record.resolution % record.config.stride == 0, identity(record)
        assert record.preprocessing.image_size == (record.resolution, record.resolution), identity(record)


def test_every_record_says_what_its_head_is_and_where_its_figures_come_from():
    for record in RECORDS:
        assert (record.head == "none") == (record.classes == 0), identity(record)
        assert record.head in ("real", "zero", "none"), identity(record)
        assert record.bytes_source, identity(record)
        assert record.accuracy_source, identity(record)
        assert record.license == "Apache-2.0", identity(record)
        if record.accuracy is not None:
            assert record.classes == 1000, identity(record)
            assert 70 < record.accuracy < 90, identity(record)


def test_url_is_https_and_ends_in_the_path():
    for record in RECORDS:
        if record.hf_repo:
            assert record.url == f"https://huggingface.co/{record.hf_repo}/resolve/main/model.safetensors"
            assert record.path == f"hf/{record.hf_repo}/model.safetensors"
        else:
            assert record.url == "https://storage.googleapis.com/" + record.path.replace("+", "%2B")
        parts = record.path.split("/")  # a safe place below a folder
        assert "\\" not in record.path
        assert not {"", ".", ".."} & set(parts)
        assert parts[0] in ("vit_models", "big_vision", "bit_models", "hf")


def test_fields_are_those_that_differ_from_the_variant():
    for record in RECORDS:
        assert all(getattr(published_config(record.variant), field) != value for field, value in record.fields)


def test_names_are_unique_per_variant_and_paths_are_unique():
    assert len({(record.name, record.variant) for record in RECORDS}) == len(RECORDS)
    assert len({record.path for record in RECORDS}) == len(RECORDS)


def test_sets_are_whole():
    counts = collections.Counter(record.name for record in RECORDS if not record.name.startswith("hf:"))
    assert counts == {
        "imagenet21k": 9,
        "imagenet21k+imagenet2012": 6,
        "imagenet21k+imagenet2012-224": 2,
        "augreg-imagenet21k": 10,
        "augreg-imagenet21k+imagenet2012-224": 10,
        "augreg-imagenet21k+imagenet2012-384": 9,  # B/8 was adapted at 224 pixels only
        "sam": 5,
        "gsam": 4,
        **{f"big_vision-imagenet2012-{epochs}ep": 1 for epochs in (90, 150, 300)},
        "big_vision-imagenet21k-300ep": 1,
        "flexivit-imagenet2012": 3,
        **{f"flexivit-imagenet2012-{epochs}ep": 3 for epochs in (90, 300, 600)},
        **{f"flexivit-imagenet21k-{epochs}ep": 1 for epochs in (90, 300, 1000)},
        **{f"deit3-{data}imagenet2012-{side}": 3 for data in ("", "imagenet21k+") for side in (224, 384)},
        "deit-imagenet2012": 3,
        "deit-imagenet2012-384": 1,
        "deit-distilled-imagenet2012": 3,
        "deit-distilled-imagenet2012-384": 1,
        **{f"bit-{data}": 6 for data in ("imagenet2012", "imagenet21k", "imagenet21k+imagenet2012")},
        **{f"bit-distilled-imagenet2012-{side}": 1 for side in (160, 224)},
        **{f"bit-teacher-imagenet21k+imagenet2012-{side}": 1 for side in (224, 384)},
    }


def test_only_the_papers_imagenet21k_heads_are_zero():
    assert {record.name for record in RECORDS if record.head == "zero"} == {"imagenet21k"}
    assert all(record.config.representation_size for record in RECORDS if record.head == "zero")


def test_copies_of_other_frameworks_compute_as_they_do():
    record = find_weights("hf:google/vit-huge-patch14-224-in21k", "H/14")
    assert dict(record.fields) == {
        "activation": "gelu",
        "dropout_rate": 0.0,
        "layer_norm_epsilon": 1e-12,
        "representation_size": 1280,
    }
    assert (record.head, record.preprocessing.antialias, record.preprocessing.resize) == ("none", True, "squash")
    record = find_weights("deit-distilled-imagenet2012-384", "B/16")
    assert record.config.distilled
    assert record.preprocessing.mean == (0.485, 0.456, 0.406)
    assert (record.preprocessing.interpolation, record.preprocessing.crop_fraction) == ("bicubic", 1.0)


def test_google_weights_take_minus_one_to_one():
    for record in RECORDS:
        if not record.name.startswith("deit-"):
            assert record.preprocessing.value_range == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("imagenet21k+imagenet2012-384", "imagenet21k+imagenet2012"),
        ("augreg-imagenet21k+imagenet2012", "augreg-imagenet21k+imagenet2012-384"),
        ("flexivit-imagenet2012-1200ep", "flexivit-imagenet2012"),
        ("hf:timm/deit_base_patch16_224.fb_in1k", "deit-imagenet2012"),
        ("B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz", "augreg-imagenet21k"),
    ],
)
def test_other_names_of_a_row_find_it(alias, name):
    assert find_weights(alias, "B/16") is find_weights(name, "B/16")


def test_augreg_file_beyond_the_table_is_found_by_its_name():
    name = "Ti_16-i1k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0--kitti-steps_2k-lr_0.01-res_224"
    record = find_weights(name, "Ti/16")
    assert (record.name, record.classes) == (name, 4)


@pytest.mark.parametrize(
    ("name", "variant", "message"),
    [
        ("imagenet21K", "B/16", r"list_weights\('ViTB16'\)(.|\n)*'imagenet21K' for B/16.*'imagenet21k'"),
        ("gsam", "L/16", r"S/16, S/32, B/16, B/32\."),
        ("imagenet21k", "R26+S/32", r"list_weights\('R26ViTS32'\)(.|\n)* B/8, B/16,"),
        ("hf:google/vit-base-patch16-223", "B/16", "'hf:google/vit-base-patch16-224'"),
        ("imagenet21k", "g/14", "no weights.* g/14"),
        ("imagenet21k", "B/17", "`variant`"),
        ("hf:google/vit-base-patch16-224", "B/32", r"it is B/16: use ViTB16"),
        ("R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", "Ti/16", "it is R\\+Ti/16: use RViTTi16"),
        ("B_16-i21k-300ep-lr_0.001-aug_no-wd_0.03-do_0.0-sd_0.0", "B/16", "augmentation"),
        *(("nope", each, r"Some of them: \w|list_weights\(\)") for each in ("B/16", "G/14")),
        ("hf:no/where", "H/14", r"Did you mean|Some of them: \w|list_weights\(\)"),
    ],
)
def test_unknown_name_lists_the_nearest_and_who_has_it(name, variant, message):
    with pytest.raises(ValueError, match=message):
        find_weights(name, variant)


def test_name_that_is_no_text_is_a_type_error():
    with pytest.raises(TypeError, match="string"):
        find_weights(None, "B/16")


def test_table_text_has_its_columns_aligned():
    header, first, *rest = str(list_weights("ViTL16")).splitlines()
    assert header.split() == ["name", "variant", "resolution", "classes", "head", "MB", "accuracy", "licence", "text"]
    assert first.split() == ["imagenet21k", "L/16", "224", "21843", "zero", "1310", "?", "Apache-2.0"]
    assert {line.index("Apache-2.0") for line in rest} == {header.index("licence")}
    assert repr(list_weights("L/16")) == str(list_weights("ViTL16"))


def test_table_is_a_tuple_of_the_models_records():
    assert {record.variant for record in list_weights("R50ViTL32")} == {"R50+L/32"}
    assert tuple(list_weights())[: len(RECORDS)] == RECORDS
    assert list_weights("ViTg14") == ()


def test_table_shows_in_a_notebook():
    text = list_weights("ViTH14")._repr_html_()
    assert text.startswith("<table><thead><tr><th>name</th>")
    assert text.count("<tr>") == 1 + len(list_weights("ViTH14"))


def test_table_is_read_without_keras():
    code = f"""{EMPTY_PACKAGES}
from keras_vit.weights.registry import list_weights
print(len(list_weights()) > 0, {{"keras", "tensorflow", "numpy.testing"}} & set(sys.modules))
"""
    assert run_python(code).split() == ["True", "set()"]


@pytest.mark.parametrize(("model", "near"), [("vitb16", "'ViTB16'"), ("VitB16", "'ViTB16'"), ("zzz", "Some of them: ")])
def test_unknown_model_gives_the_nearest_and_not_all(model, near):
    with pytest.raises(ValueError, match=near) as error:
        list_weights(model)
    assert len(str(error.value)) < 250


# AugReg's names, each of which is a record.
UPSTREAM = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
ADAPTED = f"{UPSTREAM}--oxford_iiit_pet-steps_2k-lr_0.003-res_384"


@pytest.mark.parametrize("suffix", ["", ".npz"])
def test_upstream_name_tells_its_record(suffix):
    record = augreg_record(UPSTREAM + suffix)
    assert (record.name, record.variant, record.classes, record.resolution) == (UPSTREAM, "B/16", 21843, 224)
    assert record.path == f"vit_models/augreg/{UPSTREAM}.npz"
    assert record.url == f"https://storage.googleapis.com/vit_models/augreg/{UPSTREAM}.npz"


@pytest.mark.parametrize(
    ("dataset", "classes"),
    [("imagenet2012", 1000), ("cifar100", 100), ("oxford_iiit_pet", 37), ("kitti", 4), ("resisc45", 45)],
)
def test_adapted_name_has_the_classes_of_its_dataset_and_its_resolution(dataset, classes):
    record = augreg_record(f"R_Ti_16{UPSTREAM[4:]}--{dataset}-steps_0k-lr_0.01-res_384")
    assert (record.variant, record.classes, record.resolution) == ("R+Ti/16", classes, 384)
    assert record.preprocessing.image_size == (384, 384)


def test_dropout_is_off_as_in_the_official_fine_tuning():
    assert augreg_record(UPSTREAM.replace("B_16", "L_16")).config.dropout_rate == 0


def test_size_of_an_adapted_hybrid_agrees_with_the_notebooks_listing():
    stem = "R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0--oxford_iiit_pet-steps_0k-lr_0.003-res_384"
    assert augreg_record(stem).bytes == pytest.approx(137.8 * 2**20, abs=0.1 * 2**20)


def test_size_of_an_i1k_file_allows_for_pre_logits_and_for_none():
    record = augreg_record("B_16-i1k-300ep-lr_0.001-aug_none-wd_0.1-do_0.1-sd_0.1")
    for parameters in (86_567_656, 86_567_656 + 768 * 769):
        assert abs(record.bytes - 4 * parameters) <= record.bytes_tolerance


@pytest.mark.parametrize(
    ("name", "wrong", "hint"),
    [
        (UPSTREAM.replace("medium1", "medium3"), "augmentation", "'aug_medium2' or 'aug_medium1'"),
        (UPSTREAM.replace("B_16", "H_14"), "model", "Ti_16, S_32"),
        (UPSTREAM.replace("wd_0.1", "wd_0.3"), "weight decay", "'wd_0.03'"),
        (UPSTREAM.replace("lr_0.001", "lr_0.002"), "learning rate", "lr_0.001"),
        (ADAPTED.replace("oxford_iiit_pet", "oxford_pet"), "dataset", "'oxford_iiit_pet'"),
        (ADAPTED.replace("res_384", "res_512"), "resolution", "res_224, res_384"),
        (UPSTREAM.removesuffix("-sd_0.0"), "8 parts", "7 parts instead of 8"),
        (f"{UPSTREAM}-more", "8 parts", "9 parts instead of 8"),
        (f"{UPSTREAM}--", "dataset", "''"),
        (f"{ADAPTED}--{ADAPTED}", "4 more", "parts instead of 4"),
        (UPSTREAM.replace("i21k-300ep", "i1k-30ep"), "300 epochs only", "i1k-30ep"),
    ],
)
def test_wrong_name_says_which_part_and_what_may_stand_there(name, wrong, hint):
    with pytest.raises(ValueError, match="Received") as caught:
        augreg_record(name)
    assert wrong in str(caught.value).splitlines()[0]
    assert hint in str(caught.value)


def test_names_of_sets_do_not_look_like_file_names():
    assert looks_like_augreg(UPSTREAM)
    assert looks_like_augreg("B_16-i21k-300ep-lr_0.001-aug_what")
    assert not any(map(looks_like_augreg, ("augreg-imagenet21k", "imagenet21k+imagenet2012-224", "deit3-imagenet2012")))
