import os
import re

import pytest
from pictures import encoded, picture, write_photos

from keras_vit.data import open_source
from keras_vit.data.label_checks import warn_doubtful_class_names
from keras_vit.embedding.photo_lists import list_photos


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "photos", each=10)


def table(folder, *lines):
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return path


def rows_of(photos):
    return [
        f"{file.relative_to(photos)},{file.parent.name}"
        for file in sorted(photos.rglob("*.*"))
        if file.suffix != ".csv"
    ]


def test_table_without_splits_is_divided(photos):
    source = open_source(table(photos, "path,label", *rows_of(photos)))
    assert source.sizes == {"train": 24, "validation": 3, "test": 3}
    assert source.class_names == ("ash", "birch", "cedar")
    assert all(row["class"] in row["path"] for row in source.rows("train"))


def test_table_with_splits_is_taken_as_it_is(photos):
    names = ["train", "val", "test", "Training"]
    lines = [f"{row},{names[number % 4]}" for number, row in enumerate(rows_of(photos))]
    assert open_source(table(photos, "path,label,split", *lines)).sizes == {"train": 15, "validation": 8, "test": 7}


@pytest.mark.parametrize("header", ["Path,Label,Split", "path , label, SPLIT"])
def test_names_of_columns_may_have_capitals_and_spaces(photos, header):
    lines = [f"{row},{('train', 'test')[number % 2]}" for number, row in enumerate(rows_of(photos))]
    assert open_source(table(photos, header, *lines)).sizes == {"train": 15, "test": 15}


@pytest.mark.parametrize(
    ("header", "both"),
    [
        ("path,Label,label", "'Label' and 'label'"),
        ("path,LABEL,Label", "'LABEL' and 'Label'"),
        ("path,label,Split,split", "'Split' and 'split'"),
        ("Path,label,path", "'Path' and 'path'"),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_two_columns_of_one_known_name_are_refused_with_both(photos, header, both, suffix):
    names = header.split(",")
    path = table(photos, header, ",".join("x" for _ in names))
    if suffix == ".parquet":
        pa, pyarrow = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        path = photos / "table.parquet"
        pyarrow.write_table(pa.table({name: ["x"] for name in names}), path)
    for opens in (open_source, list_photos):
        with pytest.raises(ValueError, match=rf"one column '\w+'.*\n.*with the columns {both}\. Rename"):
            opens(path)


def test_classes_that_are_numbers_are_sorted_as_numbers(photos):
    lines = [f"{row.split(',')[0]},{number % 3 * 5}" for number, row in enumerate(rows_of(photos))]
    assert open_source(table(photos, "path,label", *lines)).class_names == ("0", "5", "10")
    for other in ("5e0", "\u0665", "5.0"):
        lines[1] = f"{lines[1].rpartition(',')[0]},{other}"
        with pytest.warns(UserWarning, match=rf"'5' and {re.escape(ascii(other))} are one number"):
            open_source(table(photos, "path,label", *lines))
    with pytest.warns(UserWarning, match="'5' and '5.0' are one number"):
        open_source(table(photos, "path,label", *lines))


def test_quotes_and_other_columns_are_understood(photos):
    (photos / "a, b.jpg").write_bytes(encoded(picture(seed=77)))
    source = open_source(
        table(
            photos,
            "who, path, label",
            'x,"a, b.jpg","oak, red"',
            *("y," + row for row in rows_of(photos) if "/" in row),
        )
    )
    assert "oak, red" in source.class_names


def test_caption_may_have_several_lines(photos):
    rows = [f'{row},"two, or\nthree, ""quoted"" lines" ' for row in rows_of(photos)]
    path = table(photos, "path,label,caption", *rows)
    assert sum(open_source(path).sizes.values()) == len(list_photos(path).entries) == 30


@pytest.mark.parametrize("folder", ["gone/", ""])
def test_missing_photos_without_a_suffix_are_rows_too(photos, folder):
    path = table(photos, "path,label,caption", *(f"{folder}{n},{n % 2},x" for n in range(3)))
    path.write_text(path.read_text().replace("0,x", '0,"5 wide').replace("1,x", '1,5 wide"'))
    with pytest.raises(ValueError, match=f"line 2 of .*goes on to '{folder}1'"):
        list_photos(path)


@pytest.mark.parametrize(
    ("line", "row", "found"),
    [
        (2, '{0},{1},"5 wide', "ash/1"),  # closed by the quote of line 4
        (9, '{0},{1},"5 wide', "the table ends"),
        (9, '"{0},{1},x', "the table ends"),
        (2, '{0},"{1},x', "(cell 'label' has several lines|goes on to 'ash/1)"),
        (9, '{0},"{1}"s,x', "',' expected"),
        (1, '{0},{1},"caption', "the table ends"),
    ],
)
def test_quote_without_its_end_is_named_by_its_line(photos, line, row, found):
    """Else it makes one cell of the rows that follow, without a word: 10 of 30 photos were lost."""
    lines = ["path,label,caption", *(f"{each},x" for each in rows_of(photos))]
    lines[3] = lines[3].removesuffix(",x") + ',5 wide"' * (line == 2)
    lines[line - 1] = row.format(*lines[line - 1].split(","))
    path = table(photos, *lines)
    for read in (open_source, list_photos):
        with pytest.raises(ValueError, match=rf"line {line} of .*table\.csv.*{found}.*A quote may lack its end"):
            read(path)


@pytest.mark.parametrize("again", ["ash/0.jpeg", "./ash/../ash/0.jpeg", "link.jpeg"])
def test_file_with_two_labels_is_refused_with_both_lines(photos, again):
    path = table(photos, "path,label", "ash/0.jpeg,ash", *rows_of(photos)[1:], f"{again},birch")
    (photos / "link.jpeg").symlink_to("ash/0.jpeg")
    with pytest.raises(ValueError, match=rf"{again}' is 'ash' on line 2 and 'birch' on line 32"):
        open_source(path)


@pytest.mark.parametrize(
    ("split", "words"), [("", r"1 line\(s\).*'ash/0.jpeg' on lines 2 and 32"), (",test", r"1 file\(s\).*split")]
)
def test_file_that_stands_twice_is_warned_of_once(photos, split, words):
    column, rows = (",split", [f"{row},train" for row in rows_of(photos)]) if split else ("", rows_of(photos))
    path = table(photos, f"path,label{column}", *rows, f"ash/0.jpeg,ash{split}")
    with pytest.warns(UserWarning, match=words) as caught:
        open_source(path)
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["file,label", "a,b"], r"path, label(?s:.*)\['file', 'label'\]"),
        (["path;label", "a.jpg;b"], "commas(?s:.*)';' between them: 'path;label'"),
        (["path,labels", "a.jpg,b;c"], r"path, label(?s:.*)--task multi-label`; in Python"),
        (["path,age", "a.jpg,3"], "path, label(?s:.*)--task multi-label`, and one of numbers with `--task regression`"),
        (["path,label", "a.jpg,"], "label(?s:.*)line 2"),
        (["path,label,split", "a.jpg,b,evaluation"], "a split in a table(?s:.*)line 2"),
        (["path,label"], r"0 row\(s\)"),
        (["path,label", "a.jpg,b", "c.jpg,b"], r"2 row\(s\).*1 class\(es\) \['b'\]"),
        ([""], "columns"),
        (["path,label,label", "a.jpg,b,c"], "each once"),
        (["path,label", "a.jpg,cat, tabby"], r"quotes(?s:.*)line 2 .*tabby"),
        (["path,label", "a\0.jpg,cat"], r"NUL(?s:.*)line 2 "),
    ],
)
def test_table_that_says_too_little_is_refused(tmp_path, lines, error):
    with pytest.raises(ValueError, match=error):
        open_source(table(tmp_path, *lines))


def test_table_that_cannot_be_read_is_refused_by_name(photos):
    with pytest.raises(ValueError, match="no such table"):
        open_source(photos / "none.csv")
    path = photos / "mine.csv"
    path.write_bytes("path,label\na.jpg,Bär".encode("latin-1"))
    with pytest.raises(ValueError, match=r"UTF-8(?s:.*)mine.csv"):
        open_source(path)
    path.unlink()
    path.symlink_to("gone.csv")
    with pytest.raises(ValueError, match=r"must be readable(?s:.*)No such file"):
        open_source(path)
    path = table(photos, "path,label", *rows_of(photos)[:4], f'"{"x" * 140_000},ash')  # a cell without an end
    with pytest.raises(ValueError, match=r"CSV(?s:.*)line 6 of '.*table.csv'"):
        open_source(path)


def test_class_of_too_many_digits_for_a_number_is_a_name(photos):
    label = "9" * 5000
    lines = [row.replace(",cedar", f",{label}").replace(",ash", ",10") for row in rows_of(photos)]
    assert open_source(table(photos, "path,label", *lines)).class_names == ("10", label, "birch")


@pytest.mark.parametrize("target", ["pipe", "/dev/zero"])
def test_table_that_is_no_regular_file_is_refused(tmp_path, target):  # N13
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "table.csv").symlink_to(tmp_path / target)
    with pytest.raises(ValueError, match=r"regular file(?s:.*)a (pipe|device)"):
        open_source(tmp_path / "table.csv")


def test_photo_of_a_table_that_is_missing_or_never_ends_is_a_bad_image(photos):  # N13
    rows = rows_of(photos)
    os.mkfifo(photos / "pipe.jpg")
    with open(photos / "sparse.jpg", "wb") as file:
        file.truncate(2**41)
    path = table(photos, "path,label", "pipe.jpg,ash", "/dev/zero,ash", "sparse.jpg,ash", "gone.jpg,ash", *rows)
    with pytest.warns(UserWarning, match="4 bad images"):
        reasons = [image.reason for image in open_source(path).bad_images]
    most = "more than 1,073,741,824 bytes"
    assert reasons == ["a pipe, not a regular file", "a device, not a regular file", most, "no such file"]


def test_hidden_file_that_a_table_lists_is_used(photos):
    (photos / ".ipynb_checkpoints").mkdir()
    for name in (".ipynb_checkpoints/0.png", "._1.png"):
        (photos / name).write_bytes(encoded(picture(seed=len(name)), "PNG"))
    rows = [row for row in rows_of(photos) if row.startswith(("ash", "birch"))]
    path = table(photos, "path,label", ".ipynb_checkpoints/0.png,birch", "._1.png,birch", *rows)
    assert sum(open_source(path).sizes.values()) == len(rows) + 2


def test_hidden_labels_of_a_split_are_refused_and_other_lone_classes_warned_of(photos):
    lines = [f"{row.split(',')[0]},{number % 3},train" for number, row in enumerate(rows_of(photos))]
    hidden = [line.replace(",train", ",test") for line in lines[:3]]
    for label in ("-1", "unknown"):
        wrong = [f"{line.split(',')[0]},{label},test" for line in hidden]
        path = table(photos, "path,label,split", *lines[3:], *wrong)
        if label == "-1":
            with pytest.raises(ValueError, match=r"hidden label(?s:.*)line 29 .*'-1'"):
                open_source(path)
        else:
            with pytest.warns(UserWarning, match=r"no example of 1 class\(es\).*'unknown'"):
                open_source(path)
    signs = [f"{row.split(',')[0]},{number % 2 * 2 - 1}" for number, row in enumerate(rows_of(photos))]
    assert set(open_source(table(photos, "path,label", *signs)).class_names) == {"-1", "1"}
    with pytest.raises(ValueError, match=r"hidden label, is no class.\n.*line 2 of .* with '-1'. Leave"):
        open_source(table(photos, "path,label", signs[0], *(f"{row.split(',')[0]},0" for row in rows_of(photos)[1:])))


def test_equal_bytes_under_two_labels_are_warned_of(photos):
    (photos / "copy.jpeg").write_bytes((photos / "ash" / "0.jpeg").read_bytes())
    with pytest.warns(UserWarning, match=r"1 photo\(s\) stand under more than one class.*'cedar'.*'ash'"):
        open_source(table(photos, "path,label", "copy.jpeg,cedar", *(row for row in rows_of(photos) if "/" in row)))


@pytest.mark.parametrize(
    ("name", "words"), [("nan", "missing label"), ("#N/A", "missing"), ('"ash,elm"', "several labels")]
)
def test_class_name_that_is_most_likely_none_is_warned_of(photos, name, words):
    rows = [row.replace("birch", name) if row.endswith("birch") else row for row in rows_of(photos)]
    rows = [row if name not in row else row.replace(name, "birch", row.count(name) - 1) for row in rows]
    with pytest.warns(UserWarning, match=words):
        assert len(open_source(table(photos, "path,label", *rows)).class_names) == 3
    with pytest.warns(UserWarning, match="'NA' and 'null' each count as the name of a class"):
        warn_doubtful_class_names(["NA", "null"])


def test_parquet_table_of_paths_is_read_as_the_same_csv(photos):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    names = [line.split(",")[0] for line in rows_of(photos)]
    numbers = [number % 3 for number in range(len(names))]
    splits = [("train", "test")[number % 2] for number in range(len(names))]
    path = photos / "set.parquet"

    def written(**columns):
        pyarrow.parquet.write_table(pa.table(columns), path)
        return path

    cells = {"Path": names, "label": numbers, "split": splits, "others": [[1.5, 2.5]] * len(names)}
    found = open_source(written(**cells))
    lines = [",".join(map(str, row)) for row in zip(names, numbers, splits, strict=True)]
    expected = open_source(table(photos, "path,label,split", *lines))
    assert (found.kind, found.class_names, found.sizes) == ("table", ("0", "1", "2"), {"train": 15, "test": 15})
    assert [*found.rows("test")] == [*expected.rows("test")]
    assert list_photos(path).entries == list_photos(photos / "table.csv").entries == sorted(names)
    for wrong, words in (
        ({"label": [0, None, *numbers[2:]]}, "must have its label(?s:.*)row 1 of"),
        ({"label": [0.0, float("nan"), *map(float, numbers[2:])]}, "must have its label(?s:.*)row 1 of"),
        ({"Path": [*names[:-1], None]}, "must have its path(?s:.*)row 29 of"),
        ({"label": [0.5, *numbers[1:]]}, "label must be text or a whole number(?s:.*)row 0 of .*0.5"),
        ({"Path": [names[0], *names[:-1]]}, "is 0 on row 0 and 1 on row 1"),
        ({"split": ["later", *splits[1:]]}, "must be train, validation or test(?s:.*)row 0 of .*'later'"),
    ):
        with pytest.raises(ValueError, match=words):
            open_source(written(**cells | wrong))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="a Parquet file must be whole"):
        open_source(path)


def test_missing_photo_is_named_with_what_its_name_is_on_disk(photos):
    rows = rows_of(photos)
    (photos / "ash" / "e\u0301.jpeg").write_bytes(encoded(picture(seed=5)))
    (photos / "disk").symlink_to("not mounted")
    lost = ("gone.jpg,ash", "disk/a.jpg,ash")
    path = table(photos, "path,label", *rows, "ash/\u00e9.jpeg,ash", rows[-1].replace("/", "\\"), *lost)
    line = r"4 bad images(?s:.*)no such file, as \S*/gone.jpg \(line 34 of table.csv\)\n(?s:.*)Correct the paths"
    with pytest.warns(UserWarning, match=line):
        reasons = [image.reason for image in open_source(path).bad_images]
    with pytest.raises(ValueError, match=r"/gone.jpg \(line 34 of table.csv\): no such file"):
        open_source(path, on_bad_image="raise")
    path = table(photos, "path,label", "gone.jpg,ash", "gone.png,birch")
    with (
        pytest.warns(UserWarning, match="2 bad images"),
        pytest.raises(ValueError, match=r"table.csv', of whose 2 photos none can: 2 no such file, as \S*/gone.jpg"),
    ):
        open_source(path)
    assert reasons == [
        "no such file, but one whose name has another Unicode form",
        "no such file, but one with / for \\",
        "no such file",
        "in a folder that is a link to nothing",
    ]


def test_folder_with_the_name_of_a_table_is_a_folder(photos):
    folder = photos.rename(photos.with_suffix(".csv"))
    assert sum(open_source(folder).sizes.values()) == len(list_photos(folder).entries) == 30


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("path,path,label", "a,b,c", "the column path, once"),
        ("path,label", "a\0.jpg,b", r"without NUL(?s:.*)line 2"),
        ("path,label", "file:///a.jpg,b", r"not a URL(?s:.*)line 2 of .*'file:///a.jpg'"),
    ],
)
def test_list_refuses_paths_that_are_none(photos, header, row, words):
    with pytest.raises(ValueError, match=words):
        list_photos(table(photos, header, row))
