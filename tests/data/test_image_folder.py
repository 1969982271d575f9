import os
import shutil

import pytest
from pictures import encoded, picture, sixteen_bit, write_photos
from PIL import Image

from keras_vit.data import open_source
from keras_vit.data.splits import SPLITS


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


def test_official_layout_is_taken_as_it_is(tmp_path):
    for number, (folder, each) in enumerate({"train": 5, "val": 2, "test": 3}.items()):
        write_photos(tmp_path / folder, each=each, seed=number)
    source = open_source(tmp_path)
    assert source.sizes == {"train": 15, "validation": 6, "test": 9}
    assert source.class_names == ("ash", "birch", "cedar")
    assert all("/val/" in path for path in paths(source, "validation"))


def test_validation_may_be_missing(tmp_path):
    for folder in ("train", "test"):
        write_photos(tmp_path / folder, seed=len(folder))
    assert open_source(tmp_path).sizes == {"train": 15, "test": 15}


def test_rows_and_pixels_are_of_the_same_file(tmp_path):
    source = open_source(write_photos(tmp_path))
    for row in source.rows("train"):
        assert row["class"] == source.class_names[row["label"]] == row["path"].split("/")[-2]
        if row["path"].endswith(".png"):
            assert (source.pixels("train", row["index"]) == Image.open(row["path"])).all()


def test_nested_folders_any_case_and_other_files_are_understood(tmp_path):
    write_photos(tmp_path)
    (tmp_path / "ash" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "ash" / "deep" / "er" / "X.JPG").write_bytes(encoded(picture(seed=99)))
    (tmp_path / "ash" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "birch" / "notes.txt").write_text("x")
    (tmp_path / "labels.csv").write_text("x")
    source = open_source(tmp_path)
    assert sum(source.sizes.values()) == 16
    assert source.describe()["ignored_files"] == 3


def test_two_hundred_photos_with_five_odd_ones_name_the_bad(tmp_path):
    write_photos(tmp_path, each=67)
    (tmp_path / "ash" / "cmyk.jpg").write_bytes(encoded(Image.fromarray(picture(seed=7)).convert("CMYK")))
    (tmp_path / "ash" / "grey.jpg").write_bytes(encoded(picture(seed=8)[..., 0]))
    (tmp_path / "birch" / "sixteen.png").write_bytes(sixteen_bit()[1])
    (tmp_path / "cedar" / "cut.jpg").write_bytes(encoded(picture(seed=9))[:500])
    (tmp_path / "cedar" / "text.jpg").write_text("not a photo")
    with pytest.warns(UserWarning, match="2 bad images"):
        source = open_source(tmp_path)
    assert sum(source.sizes.values()) == 204
    named = {image["path"].split("/")[-1]: image["reason"] for image in source.describe()["bad_images"]}
    assert named == {"cut.jpg": "truncated JPEG", "text.jpg": "not an image: text"}
    with pytest.raises(ValueError, match=r"cut.jpg: truncated JPEG(?s:.*)text.jpg: not an image: text"):
        open_source(tmp_path, on_bad_image="raise")


def test_link_that_leads_nowhere_is_a_bad_image(tmp_path):
    write_photos(tmp_path)
    (tmp_path / "ash" / "lost.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.warns(UserWarning, match=r"1 bad image:\n.*lost.jpg: no such file"):
        source = open_source(tmp_path)
    assert sum(source.sizes.values()) == 15
    assert source.describe()["ignored_files"] == 0
    with pytest.raises(ValueError, match=r"lost.jpg: no such file"):
        open_source(tmp_path, on_bad_image="raise")


def test_pipe_and_device_are_bad_images_and_not_opened(tmp_path):
    write_photos(tmp_path, each=3)
    os.mkfifo(tmp_path / "ash" / "pipe.jpg")
    (tmp_path / "ash" / "zero.png").symlink_to("/dev/zero")
    with pytest.warns(UserWarning, match="2 bad images"):
        reasons = [image.reason for image in open_source(tmp_path).bad_images]
    assert reasons == ["a pipe, not a regular file", "a device, not a regular file"]


def test_folder_with_the_name_of_a_photo_is_walked(tmp_path):
    write_photos(tmp_path)
    (tmp_path / "ash" / "dir.jpg").mkdir()
    (tmp_path / "ash" / "dir.jpg" / "x.jpg").write_bytes(encoded(picture(seed=99)))
    assert sum(open_source(tmp_path).sizes.values()) == 16


def test_class_folder_may_be_a_link(tmp_path):
    write_photos(tmp_path / "photos")
    write_photos(tmp_path / "elsewhere", classes=("elm",), seed=1)
    (tmp_path / "photos" / "elm").symlink_to(tmp_path / "elsewhere" / "elm")
    source = open_source(tmp_path / "photos")
    assert sum(source.sizes.values()) == 20
    assert source.describe()["ignored_files"] == 0


def test_copies_of_one_file_stay_in_one_split(tmp_path):
    write_photos(tmp_path, each=10)
    for number in range(10):
        shutil.copy(
            tmp_path / "ash" / f"{number}.{'png' if number % 3 == 2 else 'jpeg'}",
            tmp_path / "ash" / f"copy {number}.jpg",
        )
    source = open_source(tmp_path)
    split_of = {path: split for split in SPLITS for path in paths(source, split)}
    for number in range(10):
        original = tmp_path / "ash" / f"{number}.{'png' if number % 3 == 2 else 'jpeg'}"
        assert split_of[str(original)] == split_of[str(tmp_path / "ash" / f"copy {number}.jpg")]


def test_file_in_two_given_splits_is_warned_of(tmp_path):
    write_photos(tmp_path / "train")
    write_photos(tmp_path / "test", seed=1)
    shutil.copy(tmp_path / "train" / "ash" / "0.jpeg", tmp_path / "test" / "ash" / "again.jpeg")
    with pytest.warns(UserWarning, match=r"1 file\(s\) stand in more than one split"):
        source = open_source(tmp_path)
    assert source.describe()["files_in_two_splits"] == 1


def test_empty_folder_and_single_class_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"at least two folders(?s:.*)with 0 class folder\(s\)"):
        open_source(tmp_path)
    write_photos(tmp_path, classes=("ash",))
    with pytest.raises(ValueError, match=r"with 1 class folder\(s\) \['ash'\], and 5 image file\(s\)"):
        open_source(tmp_path)


def test_class_without_a_good_image_is_refused(tmp_path):
    write_photos(tmp_path)
    (tmp_path / "dogwood").mkdir()
    (tmp_path / "dogwood" / "a.jpg").write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="1 bad image:"),
        pytest.raises(ValueError, match="none for 'dogwood', and 1 bad"),
    ):
        open_source(tmp_path)


def test_classes_that_differ_between_splits_are_refused(tmp_path):
    write_photos(tmp_path / "train")
    write_photos(tmp_path / "test", classes=("ash", "birch", "elm"))
    with pytest.raises(ValueError, match="`train` and `test` differ in cedar, elm"):
        open_source(tmp_path)


def test_class_folder_may_be_empty_in_one_split(tmp_path):
    write_photos(tmp_path / "train")
    write_photos(tmp_path / "test", classes=("ash", "birch"), seed=1)
    (tmp_path / "test" / "cedar").mkdir()
    assert open_source(tmp_path).sizes == {"train": 15, "test": 10}


def test_folder_beside_the_splits_is_warned_of(tmp_path):
    write_photos(tmp_path / "train", each=2)
    write_photos(tmp_path / "test", each=2, seed=1)
    (tmp_path / "extra").mkdir()
    with pytest.warns(UserWarning, match="left out: extra"):
        open_source(tmp_path)


def test_file_name_that_is_not_utf8_is_a_bad_image(tmp_path):
    write_photos(tmp_path, each=3)
    (tmp_path / "ash" / os.fsdecode(b"x\xff.png")).write_bytes(encoded(picture(8, 8), "PNG"))
    with pytest.warns(UserWarning, match="not UTF-8"):
        assert len(open_source(tmp_path).bad_images) == 1


def test_split_that_is_empty_is_refused_when_asked_for(tmp_path):
    write_photos(tmp_path, each=1)
    source = open_source(tmp_path)
    with pytest.raises(ValueError, match="the test set is empty"):
        source.split("test")
    with pytest.raises(ValueError, match="Did you mean 'train'"):
        source.split("trian")


def test_wrong_path_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="no such file or folder"):
        open_source("/no/such/folder")
    with pytest.raises(ValueError, match="Did you mean 'cifar10'"):
        open_source("cifar 10")
    with pytest.raises(TypeError, match="an object of type int"):
        open_source(7)


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
    assert any(r"a\n  forged.jpg: fine\x1b[2J.jpg: not an image: text" in text for text in texts)
    assert all(line.isprintable() for text in texts for line in text.split("\n"))
    shutil.rmtree(root / "test" / "ash")
    (root / "test" / "a\x1b[2Jsh").mkdir()
    with pytest.warns(UserWarning, match="are left out"), pytest.raises(ValueError, match="differ in a") as caught:
        open_source(root)
    assert all(line.isprintable() for line in str(caught.value).split("\n"))
