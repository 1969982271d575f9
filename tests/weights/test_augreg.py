"""AugReg's names, its index, and the official rule that picks the best."""

import csv
import dataclasses
import io
import random

import pytest

from keras_vit.weights.hub.augreg_records import (
    AugRegRow,
    augreg_record,
    best_augreg,
    looks_like_augreg,
    read_augreg_index,
)

UPSTREAM = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
ADAPTED = f"{UPSTREAM}--oxford_iiit_pet-steps_2k-lr_0.003-res_384"
COLUMNS = [field.name for field in dataclasses.fields(AugRegRow)]


def line(filename="B_16-a", final_val=0.4, adapt=None, **cells):
    """One row of an index: an upstream file, and with `adapt` = (dataset, resolution, accuracy) an adaptation."""
    row = dict.fromkeys(COLUMNS, "")
    row |= {"name": "B/16", "ds": "i21k", "epochs": "300.0", "lr": "0.001"}
    row |= {"filename": filename, "final_val": final_val}
    if adapt is not None:
        dataset, resolution, accuracy = adapt
        row |= {"adapt_ds": dataset, "adapt_resolution": resolution, "adapt_final_val": accuracy, "adapt_steps": "500"}
        row["adapt_filename"] = f"{filename}--{dataset}-{resolution}-{accuracy}"
    return row | cells


def index(*rows, columns=COLUMNS):
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read(*rows):
    return read_augreg_index(index(*rows))


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


def test_columns_are_the_official_ones():  # as the official vit_jax/checkpoint.py explains them
    assert " ".join(COLUMNS) == (
        "name ds epochs lr aug wd do sd best_val final_val final_test adapt_ds adapt_lr adapt_steps adapt_resolution "
        "adapt_final_val adapt_final_test params infer_samples_per_sec filename adapt_filename"
    )


def test_index_rows_are_typed_and_empty_cells_are_none():
    (row,) = read(line(adapt=("kitti", "224.0", 0.75), final_test="nan", params="1e6"))
    assert (row.epochs, row.adapt_resolution, row.adapt_steps, row.adapt_final_val) == (300.0, 224, 500, 0.75)
    assert row.final_test is None
    assert row.wd is None
    assert row.params == 1e6


def test_index_is_read_from_a_file(tmp_path):
    path = tmp_path / "index.csv"
    path.write_text(index(line(), line("B_16-b")))
    assert [row.filename for row in read_augreg_index(path)] == ["B_16-a", "B_16-b"]


def test_index_may_have_more_columns_in_any_order():
    text = index(line(), columns=["", *reversed(COLUMNS)])
    assert read_augreg_index(text) == read(line())


def test_index_without_a_column_names_it():
    text = index(line(), columns=[column for column in COLUMNS if column not in ("wd", "adapt_ds")])
    with pytest.raises(ValueError, match="wd, adapt_ds"):
        read_augreg_index(text)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"final_val": "high"}, "number"),
        ({"adapt_steps": "2.5"}, "whole number"),
        ({"adapt_steps": "inf"}, "whole number"),
        ({"final_val": "inf"}, "number"),
    ],
)
def test_cell_that_is_no_number_is_named_with_its_line(cells, message):
    ((name, value),) = cells.items()
    with pytest.raises(ValueError, match=rf"`{name}`.*{message}(.|\n)*line 3: '{value}'"):
        read(line(), line(**cells))


def test_line_of_another_length_is_named():
    with pytest.raises(ValueError, match=r"line 3: 2 cells.* 21 columns"):
        read_augreg_index(index(line()) + "B/16,i21k\n")


@pytest.mark.parametrize("text", ["\n", '"\n', "a,b\nc,d\n", '"a"b\n'])
def test_what_is_no_index_is_a_value_error(text):
    with pytest.raises(ValueError, match="Received: the text"):
        read_augreg_index(text)


def test_missing_file_and_binary_file_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_augreg_index(tmp_path / "index.csv")
    (tmp_path / "index.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="text file"):
        read_augreg_index(tmp_path / "index.csv")
    with pytest.raises(TypeError, match="path or a string"):
        read_augreg_index(7)


ROWS = (
    line("B_16-worse", 0.30, ("imagenet2012", 384, 0.99)),
    line("B_16-best", 0.41, ("imagenet2012", 224, 0.85)),
    line("B_16-best", 0.41, ("imagenet2012", 384, 0.86)),
    line("B_16-best", 0.41, ("imagenet2012", 384, "")),
    line("B_16-best", 0.41, ("cifar100", 384, 0.93)),
    line("B_16-i1k", 0.80, ds="i1k"),
    line("B_16-short", 0.39, ds="i21k_30"),
    line("B_16-unknown", ""),
    line("B_32-other", 0.50),
)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("asked", "file"),
    [({}, "B_16-best"), ({"ds": "i1k"}, "B_16-i1k"), ({"ds": "i21k_30"}, "B_16-short")],
)
def test_best_upstream_has_the_highest_final_validation_in_any_order(asked, file, seed):
    rows = random.Random(seed).sample(ROWS, len(ROWS))
    assert best_augreg(read(*rows), "B/16", **asked).filename == file


@pytest.mark.parametrize(
    ("asked", "file"),
    [
        ({"adapt_dataset": "imagenet2012"}, "B_16-best--imagenet2012-384-0.86"),
        ({"adapt_dataset": "imagenet2012", "resolution": 224}, "B_16-best--imagenet2012-224-0.85"),
        ({"adapt_dataset": "cifar100"}, "B_16-best--cifar100-384-0.93"),
    ],
)
def test_best_adaptation_is_chosen_among_those_of_the_best_upstream(asked, file):
    assert best_augreg(read(*ROWS), "B_16", **asked).adapt_filename == file


def test_equals_are_decided_by_file_name_in_any_order():
    rows = [line(f"B_16-{letter}", 0.4) for letter in "bca"]
    assert {best_augreg(read(*order), "B/16").filename for order in (rows, rows[::-1])} == {"B_16-a"}


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("L/16", {}),
        ("B/16", {"adapt_dataset": "kitti"}),
        ("B/16", {"adapt_dataset": "cifar100", "resolution": 224}),
    ],
)
def test_nothing_that_fits_is_an_error_with_the_models_of_the_index(model, asked):
    with pytest.raises(ValueError, match=r"(?s)index.*B_16, B_32"):
        best_augreg(read(*ROWS), model, **asked)


def test_index_may_begin_with_a_byte_order_mark(tmp_path):
    header = ",".join(field.name for field in dataclasses.fields(AugRegRow))
    text = f"\ufeff{header}\n{',' * header.count(',')}\n"
    (tmp_path / "index.csv").write_text(text, "utf-8")
    assert len(read_augreg_index(text)) == len(read_augreg_index(tmp_path / "index.csv")) == 1
