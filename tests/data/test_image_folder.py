import contextlib
import os
import re
import shutil
import warnings

import numpy as np
import pytest
from pictures import encoded, picture, sixteen_bit, write_photos
from PIL import Image

from keras_vit.data import open_source
from keras_vit.data.splits import SPLITS, divide
from keras_vit.embedding.photo_lists import list_photos
from keras_vit.images.photo_files import PassedOver
from keras_vit.runs.messages import data_lines


def paths(source, split):
    return [row["path"] for row in source.rows(split)]


def test_class_folders_are_divided_without_loss_and_evenly(tmp_path):
    source = open_source(write_photos(tmp_path, each=20))
    assert source.sizes == {"train": 48, "validation": 6, "test": 6}
    everything = [path for split in SPLITS for path in paths(source, split)]
    assert sorted(everything) == sorted(str(path) for path in tmp_path.rglob("*.*"))
    for split in SPLITS:
        labels = [row["label"] for row in source.rows(split)]
        assert [labels.count(k) for k in range(3)] == [len(labels) // 3] * 3


def test_folder_in_which_the_process_works_has_its_own_name(tmp_path, monkeypatch):
    monkeypatch.chdir(write_photos(tmp_path / "flowers", each=20))
    assert [open_source(place).name for place in (".", "../flowers/", "ash/..")] == ["flowers"] * 3


def test_division_depends_on_the_seed_alone(tmp_path):
    write_photos(tmp_path, each=20)
    first, again, other = (paths(open_source(tmp_path, seed=seed), "test") for seed in (0, 0, 1))
    assert first == again != other


def test_division_of_a_large_class_takes_no_square_of_its_size():
    """100,000 photos of one class: a second, where sums in a loop would take an hour."""
    sizes = {name: len(numbers) for name, numbers in divide(np.zeros(100_000, int), 0).items()}
    assert sizes == {"train": 80_000, "validation": 10_000, "test": 10_000}


def test_official_layout_is_taken_as_it_is(tmp_path):
    for number, (folder, each) in enumerate({"train": 5, "val": 2, "test": 3}.items()):
        write_photos(tmp_path / folder, each=each, seed=number)
    source = open_source(tmp_path)
    assert source.sizes == {"train": 15, "validation": 6, "test": 9}
    assert source.class_names == ("ash", "birch", "cedar")
    assert all("/val/" in path for path in paths(source, "validation"))
    shutil.rmtree(tmp_path / "val")  # which may be missing, and a class empty in one split
    for file in (tmp_path / "test" / "cedar").iterdir():
        file.unlink()
    assert open_source(tmp_path).sizes == {"train": 15, "test": 6}


def test_rows_and_pixels_are_of_the_same_file(tmp_path):
    write_photos(tmp_path)
    (tmp_path / "cedar").rename(tmp_path / "Cedar")
    source = open_source(tmp_path)
    assert source.class_names == ("Cedar", "ash", "birch")  # by code point, as Keras and torchvision number classes
    for row in source.rows("train"):
        assert row["class"] == source.class_names[row["label"]] == row["path"].split("/")[-2]
        if row["path"].endswith(".png"):
            assert (source.pixels("train", row["index"]) == Image.open(row["path"])).all()


def test_nested_folders_links_any_case_and_other_files_are_understood(tmp_path):
    root, extra = write_photos(tmp_path / "photos"), encoded(picture(seed=99))
    write_photos(tmp_path / "elsewhere", classes=("elm",), seed=1)
    (root / "elm").symlink_to(tmp_path / "elsewhere" / "elm")
    (root / "ash" / "deep" / "er").mkdir(parents=True)
    (root / "ash" / "deep" / "er" / "X.JPG").write_bytes(extra)
    (root / "ash" / "dir.jpg").mkdir()  # a folder with the name of a photo
    (root / "ash" / "dir.jpg" / "x.jpg").write_bytes(extra)
    (root / "ash" / ".DS_Store").write_bytes(b"x")
    (root / "birch" / "notes.txt").write_text("x")
    (root / "labels.csv").write_text("x")
    source = open_source(root)
    assert sum(source.sizes.values()) == 22
    assert source.describe()["ignored_files"] == 3


def test_bad_files_among_odd_ones_are_named_with_their_reasons(tmp_path):
    write_photos(tmp_path, each=5)
    ash = tmp_path / "ash"
    (ash / "cmyk.jpg").write_bytes(encoded(Image.fromarray(picture(seed=7)).convert("CMYK")))
    (ash / "grey.jpg").write_bytes(encoded(picture(seed=8)[..., 0]))
    (ash / "sixteen.png").write_bytes(sixteen_bit()[1])
    (ash / "cut.jpg").write_bytes(encoded(picture(seed=9))[:500])
    (ash / "text.jpg").write_text("not a photo")
    (ash / "lost.jpg").symlink_to(tmp_path / "gone.jpg")
    os.mkfifo(ash / "pipe.jpg")
    os.mkfifo(tmp_path / "elm")
    (ash / "zero.png").symlink_to("/dev/zero")
    (ash / os.fsdecode(b"x\xff.png")).write_bytes(encoded(picture(8, 8), "PNG"))
    with pytest.warns(UserWarning, match="7 bad images"):
        source = open_source(tmp_path)
    assert sum(source.sizes.values()) == 18
    assert source.describe()["ignored_files"] == 0
    reasons = {os.path.basename(image.path): image.reason for image in source.bad_images}
    assert reasons == {
        r"x\udcff.png'": "a file name that is not UTF-8",  # of a path as `ascii` gives it
        "cut.jpg": "truncated JPEG",
        "text.jpg": "not an image: text",
        "lost.jpg": "a link to nothing",
        "pipe.jpg": "a pipe, not a regular file",
        "elm": "a pipe, not a regular file",  # in place of a class's folder
        "zero.png": "a device, not a regular file",
    }
    with pytest.raises(ValueError, match=r"cut.jpg: truncated JPEG(?s:.*)text.jpg: not an image"):
        open_source(tmp_path, on_bad_image="raise")


def test_images_of_kinds_that_are_not_read_are_counted_by_kind(tmp_path):
    write_photos(tmp_path)
    ppm, tiff = encoded(picture(8, 8), "PPM"), encoded(picture(8, 8), "TIFF")
    files = {"a.ppm": ppm, "b.PPM": ppm, "c.cr2": tiff, "d.cr3": b"\0\0\0\x18ftypcrx \0\0\0\1crx isom", "e.tif": tiff}
    files |= {"f.jp2": b"\0\0\0\x0cjP  \r\n\x87\n", "g.ico": b"\0\0\1\0\1\0", "h.svg": b"<svg/>", "i.txt": b"a note"}
    for name, data in files.items():
        (tmp_path / "ash" / name).write_bytes(data)
    with pytest.warns(UserWarning, match=r"8 bad images:\n  2 PPM, as .*a\.ppm\n") as told:
        source = open_source(tmp_path)
    kinds = ("CR2", "CR3", "ICO", "JP2", "SVG", "TIFF")
    assert all(f"\n  1 {kind}, as " in str(told[0].message) for kind in kinds)
    assert source.facts["ignored_kinds"] == {"other files": 1}  # the text
    lines = " ".join(data_lines(source, "3 classes"))
    assert f"1 other files, as {tmp_path}/ash/i.txt" in " ".join(lines.split())
    assert sum(source.sizes.values()) == 15


def test_copies_of_one_file_stay_in_one_split(tmp_path):
    photos = sorted(write_photos(tmp_path, each=10).glob("ash/*"))
    copies = [shutil.copy(photo, photo.with_name(f"copy {photo.stem}.jpg")) for photo in photos]
    source = open_source(tmp_path)
    split_of = {path: split for split in SPLITS for path in paths(source, split)}
    for photo, copy in zip(photos, copies, strict=True):
        assert split_of[str(photo)] == split_of[str(copy)]


def test_file_in_two_given_splits_and_a_folder_next_to_them_are_warned_of(tmp_path):
    write_photos(tmp_path / "train")
    write_photos(tmp_path / "test", seed=1)
    shutil.copy(tmp_path / "train" / "ash" / "0.jpeg", tmp_path / "test" / "ash" / "again.jpeg")
    (tmp_path / "extra").mkdir()
    with (
        pytest.warns(UserWarning, match=r"1 file\(s\) .*more than one split"),
        pytest.warns(UserWarning, match="left out: extra"),
    ):
        source = open_source(tmp_path)
    assert source.describe()["files_in_two_splits"] == 1


def test_folder_without_two_classes_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"at least two folders(?s:.*)no class folder\. Put"):
        open_source(tmp_path)
    write_photos(tmp_path, classes=("ash",))
    with pytest.raises(ValueError, match=r"1 class folder\(s\) \['ash'\](?s:.*)5 image"):
        open_source(tmp_path)
    (tmp_path / "dogwood").mkdir()
    (tmp_path / "dogwood" / "a.jpg").write_bytes(b"")
    with pytest.warns(UserWarning, match="1 bad"), pytest.raises(ValueError, match="'dogwood', and 1 bad"):
        open_source(tmp_path)


def test_classes_that_differ_between_splits_are_refused(tmp_path):
    write_photos(tmp_path / "train")
    write_photos(tmp_path / "test", classes=("ash", "birch", "elm"))
    with pytest.raises(ValueError, match=r"differ: only `train` has cedar; only `test` has elm\."):
        open_source(tmp_path)


def test_split_that_is_empty_or_unknown_is_refused_when_asked_for(tmp_path):
    source = open_source(write_photos(tmp_path, each=1))
    with pytest.raises(ValueError, match="test set is empty"):
        source.split("test")
    with pytest.raises(ValueError, match="Did you mean 'train'"):
        source.split("trian")


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("/no/such/folder", ValueError, "no such file"),
        ("cifar 10", ValueError, "'cifar10'"),
        (7, TypeError, "int"),
    ],
)
def test_what_is_no_data_is_refused(what, error, words):
    with pytest.raises(error, match=words):
        open_source(what)


def test_names_of_files_and_folders_steer_no_terminal_and_make_no_line(tmp_path):  # D17
    root = tmp_path / "\x1b[31mset"
    for split in ("train", "test"):
        write_photos(root / split, each=2)
    (root / "other\nsplit").mkdir()
    (root / "train" / "ash" / "a\n  forged.jpg: fine\x1b[2J.jpg").write_text("no picture")
    with pytest.warns(UserWarning, match=r"left out|stand in more than one split|are left out") as warned:
        open_source(root)
    texts = [str(each.message) for each in warned]
    assert any("are left out: other\\nsplit" in text for text in texts)
    assert any(r"1 not an image: text, as " in text and r"a\n  forged.jpg: fine\x1b[2J.jpg" in text for text in texts)
    assert all(line.isprintable() for text in texts for line in text.split("\n"))
    shutil.rmtree(root / "test" / "ash")
    (root / "test" / "a\x1b[2Jsh").mkdir()
    with (
        pytest.warns(UserWarning, match="are left out"),
        pytest.raises(ValueError, match="has ash; only `test` has a") as caught,
    ):
        open_source(root)
    assert all(line.isprintable() for line in str(caught.value).split("\n"))


SYSTEM = (".ipynb_checkpoints", "@eaDir", "__MACOSX", ".Trash-1000/files", "$RECYCLE.BIN", "lost+found", ".git/x")
SYSTEM += ("System Volume Information", "#recycle", "@Recycle", ".thumbnails", "found.000", ".AppleDouble")


def test_hidden_and_system_folders_and_files_do_not_count(tmp_path):
    root = write_photos(tmp_path / ".cache" / "photos")  # what lies above the folder does not count
    for number, name in enumerate(SYSTEM):
        for place in ("", "ash"):  # as a class, and below one
            folder = root / place / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "0-checkpoint.png").write_bytes(encoded(picture(seed=[number, len(place)]), "PNG"))
    (root / "ash" / "._1.png").write_bytes(encoded(picture(), "PNG"))  # a photo all the same
    for name in ("._0.jpeg", ".DS_Store", "Thumbs.db", "desktop.ini"):
        (root / "ash" / name).write_bytes(b"x")
    (root / "loose.JPG").write_bytes(encoded(picture()))
    for name in ("w.jpg?width=300", "w.jpg.1", "w.jpg_large", "w.png~", "w.part", "w.jpg.bak", "w.dat"):
        (root / "ash" / name).touch()
    for name in ("w.jpg.json", "w.md5", "w.csv~"):  # which are no photos
        (root / "ash" / name).touch()
    (root / "ILSVRC2012_devkit_t12.tar.gz").touch()  # holds none
    for name in ("more.tar", "vectors/photos.jsonl", "vectors/part-00000.parquet"):  # the last is of `embed`
        (root / "birch" / name).parent.mkdir(exist_ok=True)
        (root / "birch" / name).touch()
    line = f"7 files not read, as the suffix is not that of a photo: {root}/ash/w.dat. Rename those that are photos"
    with (
        pytest.warns(UserWarning, match=re.escape(line)),
        pytest.warns(UserWarning, match="25 hidden or system items with photos not read: .*/photos/#recycle, "),
        pytest.warns(UserWarning, match=r"class folders \(1, as .*loose.JPG\); shards \(1, as .*birch/more.tar\)"),
    ):
        source = open_source(root)
    assert source.class_names == ("ash", "birch", "cedar")
    assert sum(source.sizes.values()) == 15
    assert len(list_photos(root).entries) == 16
    assert list_photos(root).notes == [
        f"1 shard not read, as photos lie in folders here: {root}/birch/more.tar",
        line,
        f"25 hidden or system items with photos not read: {root}/#recycle, {root}/$RECYCLE.BIN, {root}/.AppleDouble",
    ]
    kinds = source.describe()["ignored_kinds"]
    assert kinds["photos in @eaDir"] == 2
    assert kinds["photos outside of the class folders"] == 1
    assert kinds["other files"] == 18
    assert list(kinds) == sorted(kinds, key=lambda kind: (-kinds[kind], kind))  # not as the disk has them


def test_class_called_train_is_a_class_among_classes(tmp_path):
    write_photos(tmp_path / "a", classes=("bus", "car", "train"))
    assert open_source(tmp_path / "a").class_names == ("bus", "car", "train")
    write_photos(tmp_path / "b" / "train", classes=("steam", "electric"))  # in folders of its own
    write_photos(tmp_path / "b", classes=("bus", "car"), seed=1)
    assert open_source(tmp_path / "b").class_names == ("bus", "car", "train")
    write_photos(tmp_path / "c", classes=("dev", "bus", "car", "train", "plane"))  # several names of splits
    with pytest.warns(UserWarning, match="^dev, train count as classes, and have the names of splits"):
        assert len(open_source(tmp_path / "c").class_names) == 5
    write_photos(tmp_path / "d" / "train", classes=("bus", "train"))
    write_photos(tmp_path / "d" / "test", classes=("bus", "train"), seed=1)
    assert open_source(tmp_path / "d").sizes == {"train": 10, "test": 10}
    (tmp_path / "d" / "test").rename(tmp_path / "d" / "testing")
    assert open_source(tmp_path / "d").sizes == {"train": 10, "test": 10}
    write_photos(tmp_path / "d", classes=("more",), seed=2)  # next to splits
    with (
        pytest.warns(UserWarning, match="left out: more"),
        pytest.warns(UserWarning, match=r"left out: photos outside of the class folders \(5, as .*more/0"),
    ):
        assert open_source(tmp_path / "d").sizes == {"train": 10, "test": 10}


def test_photo_of_two_classes_is_warned_of(tmp_path):
    write_photos(tmp_path)
    for photo in sorted((tmp_path / "ash").iterdir())[:3]:
        shutil.copy(photo, tmp_path / "cedar" / f"copy {photo.name}")
    with pytest.warns(UserWarning, match=r"3 photo\(s\) stand under more than one class.*'ash'.*'cedar'"):
        open_source(tmp_path)


ALIKE = [("Ash", "ash"), ("caf\u00e9", "cafe\u0301"), ("big ash", "big  ash"), ("ash", "ash\u200b")]


@pytest.mark.parametrize("names", ALIKE)
def test_classes_that_look_alike_are_warned_of(tmp_path, names):
    write_photos(tmp_path, classes=(*names, "birch"))
    with pytest.warns(UserWarning, match="differ only in case, spaces or Unicode form"):
        assert len(open_source(tmp_path).class_names) == 3
    write_photos(tmp_path / "in" / "train", classes=(names[0], "birch"))
    write_photos(tmp_path / "in" / "test", classes=(names[1], "birch"))
    with pytest.raises(ValueError, match=r"`train` and `test` differ.*Unicode form alone"):
        open_source(tmp_path / "in")


def test_class_without_a_training_photo_is_warned_of(tmp_path):
    write_photos(tmp_path / "train", classes=("ash", "birch"))
    (tmp_path / "train" / "cedar").mkdir()
    write_photos(tmp_path / "test", seed=1)
    with pytest.warns(UserWarning, match=r"`train` has no example of 1 class\(es\).*'cedar'"):
        open_source(tmp_path)


def test_photo_without_a_suffix_counts_by_its_first_bytes(tmp_path):
    write_photos(tmp_path, each=20)
    first = sorted(tmp_path.rglob("*.*"))[0]
    first.rename(first.with_suffix(""))
    (first.parent / "notes").write_text("no photo")
    for kind in ("GIF", "TIFF"):
        (first.parent / kind).write_bytes(encoded(picture(seed=1), kind))
    with pytest.warns(UserWarning, match=r"2 bad images:\n  1 GIF, as .*/GIF\n  1 TIFF"):
        source = open_source(tmp_path)
    assert sum(source.sizes.values()) == 60
    assert str(first.with_suffix("")) in [path for split in SPLITS for path in paths(source, split)]
    assert source.facts["ignored_kinds"] == {"other files": 1}


@pytest.fixture
def forbid(monkeypatch):
    """Forbids to list folders of a name, also to root, who may list all."""
    scandir = os.scandir

    def listed(path="."):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", listed)


@pytest.mark.parametrize("place", ["ash", "train/ash"])
def test_folder_that_cannot_be_listed_is_named_as_a_bad_image_is(tmp_path, forbid, place):
    base = (tmp_path / place).parent
    write_photos(base)
    write_photos(tmp_path / place / "locked", classes=("x",), seed=1)
    with pytest.warns(UserWarning, match=r"left out 1 path:(?s:.*)locked\nGrant the right"):
        source = open_source(tmp_path)
    assert [image.path for image in source.bad_images] == [str(tmp_path / place / "locked")]
    assert source.bad_images[0].reason == "a folder that cannot be listed: Permission denied"
    assert sum(source.sizes.values()) == 15
    with pytest.raises(ValueError, match="locked: a folder that cannot be listed"):
        open_source(tmp_path, on_bad_image="raise")
    for name in ("a", "b"):
        (tmp_path / "c" / name / "locked").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"every folder of photos must be readable(?s:.*)a/locked"):
        open_source(tmp_path / "c")
    with pytest.raises(ValueError, match=r"Received: a, locked\. Grant"):  # once
        PassedOver(unreadable=[("a", "locked")] * 2).check()


def test_links_to_folders_are_followed_once_each_and_others_are_named(tmp_path):
    root, disk = write_photos(tmp_path / "photos"), write_photos(tmp_path / "disk", classes=("one", "two"), seed=1)
    ash = root / "ash"
    (ash / "year").symlink_to(disk / "one")
    (ash / "again").symlink_to(disk / "one")
    (ash / "more").symlink_to(disk)  # which has the one above in it
    (ash / "loop").symlink_to(ash)
    (ash / "up").symlink_to(tmp_path)
    for place in (ash / "gone", root / "elm"):
        place.symlink_to(tmp_path / "not mounted")
    (ash / "itself").symlink_to(ash / "itself")
    (ash / "a.jpeg").symlink_to("0.jpeg")  # another photo of the walk
    (root / "birch" / "b.jpeg").symlink_to(ash / "year" / "0.jpeg")
    (tmp_path / "alone.jpeg").write_bytes(encoded(picture(seed=99)))
    for name in ("c.jpeg", "d.jpeg"):  # a photo of another folder, twice
        (root / "birch" / name).symlink_to(tmp_path / "alone.jpeg")
    for name, target in (("oak", ash), ("pine", root), ("yew", root / "cedar")):  # as classes
        (root / name).symlink_to(target)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        source = open_source(root)
    texts = [str(each.message) for each in caught]
    assert sum(source.sizes.values()) == 26
    assert {image.path.removeprefix(f"{root}/"): image.reason.partition(":")[0] for image in source.bad_images} == {
        "elm": "a link to nothing",
        "ash/gone": "a link to nothing",
        "ash/itself": "cannot be read",
    }
    assert source.class_names == ("ash", "birch", "cedar")
    (line,) = [text for text in texts if "a label is wrong" in text]
    assert re.fullmatch(r"1 link\(s\) of a class lead .* as .*birch/b.jpeg to .*/0.jpeg, .* under 'ash'\.", line)
    (line,) = [text for text in texts if "not followed" in text]
    assert list_photos(root).notes == [line]
    assert len(list_photos(root).entries) == 26 + 3  # and the bad ones
    assert line.startswith("10 links not followed, so that no photo counts twice")
    for words in ("ash/loop, a link to a folder that it is in", "ash/up, a link", "ash/year, which is", "more/one, "):
        assert words in line
    for words in (f"a.jpeg, which is {ash}/0", "b.jpeg, which is", "oak, which is", "pine, a link to a folder that"):
        assert words in line


@pytest.mark.parametrize("names", [("val", "test"), ("Validation",), ("test", "extra")])
def test_splits_without_train_are_no_classes(tmp_path, names):
    for number, name in enumerate(names):
        write_photos(tmp_path / name, seed=number)
    with pytest.raises(ValueError, match=r"must have `train` among them(?s:.*)pass one of these, as"):
        open_source(tmp_path)
    for number, name in enumerate(("bus", "car")):  # among classes they are some
        write_photos(tmp_path, classes=(name,), seed=7 + number)
    warns = (
        pytest.warns(UserWarning, match="test, val count as classes") if "val" in names else contextlib.nullcontext()
    )
    with warns:
        assert len(open_source(tmp_path).class_names) == len(names) + 2


@pytest.mark.parametrize(
    "names",
    ["val test", "val test photos", "train eval", "trn evaluation", "training_set test_set", "train2017 val2017"],
)
def test_photos_right_in_folders_of_splits_are_no_classes(tmp_path, names):
    write_photos(tmp_path, classes=names.split(), each=2)
    with pytest.raises(ValueError, match=r"class folders in them(?s:.*)photos right in .*Put the photos of each class"):
        open_source(tmp_path)
    shutil.rmtree(tmp_path / names.split()[1])  # one alone is a class next to another one
    write_photos(tmp_path, classes=["cat"], each=2, seed=1)
    assert len(open_source(tmp_path).class_names) == len(names.split())


def test_flat_folders_of_train_and_test_are_named(tmp_path):
    write_photos(tmp_path, classes=("train", "test"))
    with pytest.raises(
        ValueError, match=r"with no class folder; 10 image file\(s\) lie right in train and test, not in class folders"
    ):
        open_source(tmp_path)


def test_folders_of_equal_folders_are_warned_of_as_splits(tmp_path):
    write_photos(tmp_path / "training_set")
    write_photos(tmp_path / "test_set", seed=1)
    with pytest.warns(UserWarning, match="test_set, training_set count as classes, and have the same folders.*ash"):
        assert open_source(tmp_path).class_names == ("test_set", "training_set")
    write_photos(tmp_path / "digits" / "trn", classes=("0", "1", "2"), each=2)
    write_photos(tmp_path / "digits" / "tst", classes=("0", "1"), each=2, seed=1)
    with pytest.warns(UserWarning, match="trn, tst count as classes, and have the same folders in them: 0, 1"):
        open_source(tmp_path / "digits")


def test_folder_without_classes_says_what_is_in_it(tmp_path):
    write_photos(tmp_path, classes=("flat",))
    with pytest.raises(ValueError, match=r"no class folder; 5 image file\(s\) lie right in it(?s:.*)path and label"):
        open_source(tmp_path / "flat")
    write_photos(tmp_path / "zip" / "flowers")
    with pytest.raises(ValueError, match=r"in 'flowers', pass '.*zip/flowers'"):
        open_source(tmp_path / "zip")
