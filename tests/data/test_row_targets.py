"""Targets that are no single class, read from tables, tars, Parquet and arrays; wrong ones are named by their place."""

import json
import re

import numpy as np
import pytest
from photos import make_photos
from pictures import encoded, picture
from shard_sets import write_tar

from keras_vit.data import load_dataset, open_source
from keras_vit.data.row_targets import LabelTargets, NumberTargets, mean_and_deviation, warn_of_constant_labels
from keras_vit.data.source import fingerprint
from keras_vit.images.preprocessing import Preprocessing


def open_labels(what, names=None):
    return open_source(what, targets=LabelTargets(names))


def open_numbers(what, names=None):
    return open_source(what, targets=NumberTargets(names))


SETS = [("cat", "dog"), ("dog",), ("cow", "cat", "dog"), ("cow",), ("cat",)]


@pytest.fixture
def photos(tmp_path):
    for number in range(len(SETS) * 4):
        (tmp_path / f"{number}.png").write_bytes(encoded(picture(seed=number), "png"))
    return tmp_path


def table(folder, header, rows, name="table.csv"):
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def listed(folder, separator=";", **changes):
    sets = [list(SETS[number % len(SETS)]) for number in range(len(SETS) * 4)]
    rows = [f"{number}.png,{separator.join([*names, names[0]])}" for number, names in enumerate(sets)]  # one twice
    return table(folder, "path,labels", rows)


def rows_by_name(source):
    """`{file: targets}` of all splits."""
    found = {}
    for split in source.splits:
        for row in source.rows(split):
            found[row["path"].rpartition("/")[2]] = dict(zip(source.class_names, row["label"], strict=True))
    return found


@pytest.mark.parametrize("separator", [";", "|", " ; "])
def test_list_of_labels_becomes_a_row_of_bits(photos, separator):
    source = open_labels(listed(photos, separator))
    assert source.class_names == ("cat", "cow", "dog")
    rows = rows_by_name(source)
    assert len(rows) == 20
    for number in range(20):
        assert rows[f"{number}.png"] == {name: float(name in SETS[number % 5]) for name in source.class_names}


def test_columns_of_a_table_with_lists_are_refused(photos):
    with pytest.raises(ValueError, match=r"`columns`(?s:.*)columns=cat,dog(?s:.*)\['path', 'labels'\]"):
        open_source(listed(photos), targets=LabelTargets(None, ("cat", "dog")))


def test_columns_of_bits_are_the_same_labels(photos):
    names = ("cat", "cow", "dog")
    rows = [f"{n}.png," + ",".join(str(int(name in SETS[n % 5])) for name in names) for n in range(20)]
    for kind in (LabelTargets(None, ("cat", "cat")), NumberTargets(("cat", "cat"))):
        with pytest.raises(ValueError, match=r"must differ(?s:.*)'cat' more than once"):
            open_source(table(photos, "path,cat,cow,dog", rows), targets=kind)
    source = open_labels(table(photos, "path,cat,cow,dog", rows))
    assert rows_by_name(source) == rows_by_name(open_labels(listed(photos)))
    words = [row.replace("1", "True").replace("0", "0.0") if n else row for n, row in enumerate(rows)]
    words = [f"{n}.png," + row.partition(",")[2] for n, row in enumerate(words)]
    assert rows_by_name(open_labels(table(photos, "path,cat,cow,dog", words))) == rows_by_name(source)


def test_each_label_has_its_share_in_every_split(photos):
    source = open_labels(listed(photos))
    assert set(source.sizes) == {"train", "validation", "test"}
    for split in source.splits.values():
        assert (split.labels.sum(axis=0) > 0).all()


def test_label_with_a_comma_is_taken_whole_and_named(photos):
    rows = [f'{n}.png,"{"car,red" if n == 3 else "car"}"' for n in range(20)]
    with pytest.warns(UserWarning, match=r"car,red'.*put ; or \| between them"):
        source = open_labels(table(photos, "path,labels", rows))
    assert source.class_names == ("car", "car,red")


def test_bits_of_an_image_may_all_be_zero(photos):
    rows = [f"{n}.png,{n % 2},{int(n % 3 == 0)}" for n in range(20)]
    source = open_labels(table(photos, "path,a,b", rows))
    assert {tuple(row.values()) for row in rows_by_name(source).values()} == {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize("opens", [open_labels, open_numbers])
def test_tar_with_json_gives_the_same_as_a_table(photos, opens):
    members = []
    for number in range(20):
        found = list(SETS[number % 5]) if opens is open_labels else {"a": number / 8, "b": -number}
        members += [
            (f"{number:03}.png", (photos / f"{number}.png").read_bytes()),
            (f"{number:03}.json", json.dumps(found).encode()),
        ]
    source = opens(write_tar(photos / "tars" / "all.tar", members))
    found = {int(key.rpartition(":")[2].partition(".")[0]): row for key, row in rows_by_name(source).items()}
    for number in range(20):
        numbers = {"a": number / 8, "b": float(-number)}
        bits = {name: float(name in SETS[number % 5]) for name in ("cat", "cow", "dog")}
        assert found[number] == (bits if opens is open_labels else numbers)


def test_parquet_has_lists_of_labels_and_columns_of_numbers(photos):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"bytes": (photos / f"{n}.png").read_bytes(), "path": f"{n:02}.png"} for n in range(20)]
    sets = [list(SETS[n % 5]) for n in range(20)]
    pq.write_table(pa.table({"image": rows, "labels": sets, "size": [n / 4 for n in range(20)]}), photos / "a.parquet")
    labels = open_labels(str(photos / "a.parquet"))
    assert labels.class_names == ("cat", "cow", "dog")
    numbers = open_numbers(str(photos / "a.parquet"), names=["size"])
    assert sorted(row["size"] for row in rows_by_name(numbers).values()) == [n / 4 for n in range(20)]
    for source, wanted in ((labels, lambda n: [float(x in SETS[n % 5]) for x in labels.class_names]),):
        for key, row in rows_by_name(source).items():
            assert list(row.values()) == wanted(int(key.rpartition(":")[2].partition(".")[0]))


def test_numbers_are_the_columns_except_path_and_split(photos):
    rows = [f"{n}.png,{n / 8},train,{1e3 * n}" for n in range(16)] + ["16.png,-1,test,7"]
    source = open_numbers(table(photos, "path,age,split,price", rows))
    assert source.class_names == ("age", "price")
    assert source.sizes == {"train": 16, "test": 1}
    assert rows_by_name(source)["3.png"] == {"age": 0.375, "price": 3000.0}
    chosen = open_numbers(table(photos, "path,age,split,price", rows), names=("price",))
    assert rows_by_name(chosen)["16.png"] == {"price": 7.0}
    means, deviations = mean_and_deviation(source)
    assert means == [np.mean(np.arange(16) / 8), np.mean(np.arange(16) * 1e3)]
    assert deviations == pytest.approx([np.std(np.arange(16) / 8), np.std(np.arange(16) * 1e3)])


def test_arrays_of_targets_are_taken_as_they_are():
    images = np.arange(12 * 8 * 6 * 3).reshape(12, 8, 6, 3).astype("uint8")
    values = np.linspace(-2, 3, 12)
    source = open_numbers({"train": (images, values), "test": (images[:3], values[:3]), "class_names": ["age"]})
    assert source.class_names == ("age",)
    np.testing.assert_array_equal(source.splits["train"].labels, values[:, None].astype("float32"))
    bits = (np.arange(36).reshape(12, 3) % 5 == 0).astype("int32")
    divided = open_labels((images, bits))
    assert divided.sizes["train"] + divided.sizes["validation"] + divided.sizes["test"] == 12
    assert divided.class_names == ("0", "1", "2")


@pytest.mark.parametrize("labels", ["int", "one_hot"])
def test_batches_hold_rows_of_floats(photos, labels):
    source = open_labels(listed(photos))
    record = Preprocessing(image_size=(8, 6))
    batches = load_dataset(source, batch_size=4, preprocessing=record, labels=labels)
    rows = np.concatenate([targets for _, targets in batches])
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, source.splits["train"].labels)


def test_mixup_mixes_the_labels_of_neighbours(photos):
    source = open_labels(listed(photos))
    batches = load_dataset(
        source,
        batch_size=4,
        preprocessing=Preprocessing(image_size=(8, 6)),
        training=True,
        augmentation="augreg-medium1",
        labels="one_hot",
    )
    rows = np.concatenate([targets for _, targets in batches.take(4)])
    assert rows.min() >= 0
    assert rows.max() <= 1
    assert not np.isin(rows, (0, 1)).all()


def test_other_targets_are_other_data(photos):
    one, other = (table(photos, "path,a", [f"{n}.png,{n * k}" for n in range(20)], f"{k}.csv") for k in (1, 2))
    assert fingerprint(open_numbers(one)) != fingerprint(open_numbers(other))
    assert fingerprint(open_numbers(one)) == fingerprint(open_numbers(one))


def test_subset_of_numbers_is_random_and_not_balanced(photos):
    source = open_numbers(table(photos, "path,a", [f"{n}.png,{n}" for n in range(20)]))
    assert source.subset(5, order="random").sizes["train"] == 5
    with pytest.raises(ValueError, match="each image must have one class"):
        source.subset(5)


NUMBERS = {
    "text": (["0.png,1", "1.png,cheap"], "must be a number", "line 3 .*column 'a': 'cheap'"),
    "underscore": (["0.png,1", "1.png,1_000"], "must be a number", "line 3 .*'1_000'"),
    "comma": (["0.png,1", '1.png,"3,5"'], "must be a number", "line 3 .*'3,5'. Write numbers with a point"),
    "empty": (["0.png,1", "1.png,"], "must have its a", "line 3 .*'a': ''"),
    "nan": (["0.png,nan", "1.png,2"], "must be a finite number", "line 2 .*column 'a': 'nan'"),
    "infinity": (["0.png,1", "1.png,1e39"], "must be a finite number", "line 3 .*'1e39'"),
    "twice": (["0.png,1", "0.png,2"], "must have one value of 'a'", "'1' on line 2 and '2' on line 3"),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_wrong_number_is_named_by_file_row_and_column(photos, case):
    rows, rule, received = NUMBERS[case]
    path = table(photos, "path,a", rows)
    with pytest.raises(ValueError, match=rule) as caught:
        open_numbers(path)
    assert "table.csv" in str(caught.value)
    assert re.search(received, str(caught.value)), str(caught.value)


LABELS = {
    "empty cell": ("path,labels", ["0.png,a", "1.png,"], "must have its labels", "line 3 .*'labels': ''"),
    "empty label": ("path,labels", ["0.png,a;b", "1.png,a;;b"], "must have a name", "line 3 .*'a;;b'"),
    "both signs": ("path,labels", ["0.png,a;b", "1.png,a|b", "2.png,a"], "the same in every row", "line 3.*line 2"),
    "number": ("path,a,b", ["0.png,0,1", "1.png,2,0"], "must hold 0 or 1", "line 3 .*column 'a': '2'"),
    "hole": ("path,a,b", ["0.png,0,1", "1.png,1,"], "must have its b", "line 3 .*'b': ''"),
    "joined": ("path,a;b,c", ["0.png,0,1", "1.png,1,1"], "must be one label", "column 'a;b'"),
    "index": (",path,a", ["0,0.png,1", "1,1.png,0"], "must have a name", "index=False"),
    "none": ("path,split", ["0.png,train", "1.png,test"], "columns of its labels", "'split'"),
}


@pytest.mark.parametrize("case", LABELS)
def test_wrong_label_is_named_by_file_row_and_column(photos, case):
    header, rows, rule, received = LABELS[case]
    with pytest.raises(ValueError, match=rule) as caught:
        open_labels(table(photos, header, rows))
    assert "table.csv" in str(caught.value)
    assert re.search(received, str(caught.value)), str(caught.value)


def test_label_that_the_model_does_not_know_is_refused(photos):
    path = table(photos, "path,labels", [f"{n}.png,cat;{'cow' if n == 4 else 'dog'}" for n in range(10)])
    with pytest.raises(ValueError, match="one of those that are known") as caught:
        open_labels(path, names=("cat", "dog"))
    assert "line 6 of" in str(caught.value)
    assert "'cow'" in str(caught.value)
    known = open_labels(path, names=("dog", "cow", "bird", "cat"))  # in the model's order, with one that none has
    assert known.class_names == ("dog", "cow", "bird", "cat")
    assert rows_by_name(known)["4.png"] == {"dog": 0, "cow": 1, "bird": 0, "cat": 1}


def test_spread_that_float32_cannot_hold_is_refused(photos):
    rows = [f"{n}.png,{1700000000 + 13 * n},{1700000001 + n % 2}" for n in range(20)]
    for name, words in (
        ("a", "spread of a target(.|\n)*to 1.7.*Subtract an offset"),
        ("b", "or subtract an offset"),
    ):
        with pytest.raises(ValueError, match=words):
            mean_and_deviation(open_numbers(table(photos, "path,a,b", rows), [name]))


@pytest.mark.parametrize("far", [{13: "1e30"}, {13: "-9e9", 2: "8e8"}, {13: "1e6", 2: "-1e7", 5: "1e7"}])
def test_numbers_far_off_all_others_are_named_by_file_row_and_column(photos, far):
    rows = [f"{n}.png,{n},{far.get(n, 1 + n / 10)}" for n in range(20)]
    last = max(far, key=lambda number: abs(float(far[number])))
    words = f"{len(far)} of 20 numbers are so far off.*line {last + 2} of .*table.csv, column 'b': '{far[last]}'"
    with pytest.warns(UserWarning, match=f"{words}, where the others are 1 to 2.9") as caught:
        open_numbers(table(photos, "path,a,b", rows))
    assert len(caught) == 1


@pytest.mark.parametrize(
    "value",
    [
        lambda n: 10 ** (n / 6),  # heavy tails
        lambda n: int(n == 7),  # a count that is mostly zero
        lambda n: 1e6 + n,
        lambda n: 200 if n == 7 else n,
        lambda n: (n % 2) * 1e6 + n / 1000,
    ],
)
def test_tails_and_rare_numbers_are_no_outliers(photos, value, recwarn):
    open_numbers(table(photos, "path,a", [f"{n}.png,{value(n)}" for n in range(20)]))
    assert [str(each.message) for each in recwarn] == []


def test_columns_that_differ_only_in_spaces_and_case_are_warned_of(photos):
    with pytest.warns(UserWarning, match=r"1 group\(s\) of numbers differ only in case"):
        open_numbers(table(photos, "path,radius,Radius ", [f"{n}.png,{n},{n % 3}" for n in range(20)]))


def test_unknown_column_has_a_hint(photos):
    with pytest.raises(ValueError, match="Did you mean 'radius'"):
        open_numbers(table(photos, "path,radius", ["0.png,1", "1.png,2"]), ["raduis"])


def test_constant_target_is_refused_and_constant_label_warned_of(photos):
    source = open_numbers(table(photos, "path,a,b", [f"{n}.png,{n},7" for n in range(20)]))
    with pytest.raises(ValueError, match="column 'b': 7 in all 16 training images"):
        mean_and_deviation(source)
    labels = open_labels(table(photos, "path,a,b", [f"{n}.png,{n % 2},1" for n in range(20)]))
    with pytest.warns(UserWarning, match="all training images have 1 label"):
        warn_of_constant_labels(labels)
    none = open_labels(table(photos, "path,a", [f"{n}.png,0" for n in range(20)]))
    with pytest.raises(ValueError, match="where none of the 16 images of train has one"):
        warn_of_constant_labels(none)


@pytest.mark.parametrize("opens", [open_labels, open_numbers])
def test_further_number_of_one_photo_of_a_tar_is_named(photos, opens):
    members = [(f"{n}.png", (photos / f"{n}.png").read_bytes()) for n in range(3)]
    members += [(f"{n}.json", json.dumps({"a": n % 2} | ({"b": 1} if n == 2 else {})).encode()) for n in range(3)]
    path = write_tar(photos / "tars" / "all.tar", members)
    with pytest.raises(ValueError, match=r"same columns(.|\n)*'2.json' of .*all.tar, column 'b': 1, where member '0"):
        opens(path)


@pytest.mark.parametrize("opens", [open_labels, open_numbers])
def test_photo_of_a_tar_without_json_is_named(photos, opens):
    members = [("a.png", (photos / "0.png").read_bytes()), ("b.png", (photos / "1.png").read_bytes())]
    path = write_tar(photos / "tars" / "all.tar", [*members, ("a.json", b'{"labels": ["x"], "a": 1}')])
    with pytest.raises(ValueError, match=r"must have a .json(.|\n)*all.tar, photo 'b.png': none"):
        opens(path)


def test_class_folder_and_source_of_classes_are_refused(photos):
    with pytest.raises(ValueError, match=r"each image must have labels(?s:.*)'path,labels', .*'1.jpg,car;red'"):
        open_labels(make_photos(photos / "classes", per_class=2))
    images = np.zeros((6, 8, 6, 3), "uint8")
    with pytest.raises(ValueError, match=r"each image must have numbers(?s:.*)'path,age'"):
        open_numbers(open_source({"train": (images, [0, 1, 0, 1, 0, 1])}))
