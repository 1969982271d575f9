"""Photos in tars: the same as in a folder, whatever writes the headers, and words about tars that are no good."""

import io
import json
import os
import pickle
import re
import shutil
import tarfile
import warnings

import numpy as np
import pytest
from photos import make_photos
from pictures import encoded, picture
from shard_sets import members_of, rows_of, write_tar

from keras_vit.cache import cache_dir
from keras_vit.data import load_dataset, open_source
from keras_vit.data.pipeline import report_missing_files
from keras_vit.data.shards import index
from keras_vit.data.shards.finding import find_shards
from keras_vit.data.shards.opening import shard_photos
from keras_vit.data.shards.packing import pack
from keras_vit.data.shards.tars import read_rows
from keras_vit.data.source import fingerprint
from keras_vit.embedding.photo_lists import list_photos
from keras_vit.images.byte_ranges import close_shards
from keras_vit.images.preprocessing import Preprocessing

RECORD = Preprocessing(image_size=(24, 32))
JPEG = encoded(picture(20, 28))
PNG = encoded(picture(20, 28, seed=1), "PNG")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_photos(tmp_path_factory.mktemp("photos") / "photos", 6)


def photos_in(source, split="train"):
    return [source.pixels(split, number) for number in range(source.sizes[split])]


def labelled(*names, label="1"):
    """Members of a tar with two classes: photos of these names, and one of class 0."""
    found = [("zero.png", PNG), ("zero.cls", b"0")]
    for name in names:
        found += [(name, JPEG), (name.partition(".")[0] + ".cls", label.encode())]
    return found


def test_photos_of_shards_are_those_of_the_folder_in_its_order(folder, tmp_path):
    rows = rows_of(folder)
    members = list(members_of(rows, by_name=True))
    write_tar(tmp_path / "shards" / "b.tar", members[20:])
    write_tar(tmp_path / "shards" / "a.tar", members[:20][::-1])
    ours, theirs = open_source(tmp_path / "shards", seed=3), open_source(folder, seed=3)
    assert (ours.kind, ours.name, ours.class_names, ours.sizes) == (
        "shards",
        "shards",
        theirs.class_names,
        theirs.sizes,
    )
    for image, other in zip(photos_in(ours, "test"), photos_in(theirs, "test"), strict=True):
        np.testing.assert_array_equal(image, other)
    assert ours.rows("train")[0]["path"].startswith(f"{tmp_path / 'shards' / 'a.tar'}:0000")
    assert fingerprint(ours) == fingerprint(open_source(str(tmp_path / "shards" / "*.tar"), seed=3))
    assert fingerprint(ours) != fingerprint(open_source(tmp_path / "shards", seed=4))
    assert [image.shape[2] for image in ours.split("train").sample(2)] == [3, 3]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_are_those_that_tarfile_reads(tmp_path, kind):
    deep = "/".join(["klein-und-groß"] * 3)
    long = f"{deep}/{'x' * (90 if kind == tarfile.USTAR_FORMAT else 180)}.jpg"
    path = write_tar(tmp_path / "a.tar", labelled(long, "b/plain.JPG", "._hidden.jpg", "__MACOSX/c.jpg"), kind)
    with tarfile.open(path, "a", format=kind) as tar:
        folder = tarfile.TarInfo("b")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        link = tarfile.TarInfo("b/link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/".join(["far"] * (20 if kind == tarfile.USTAR_FORMAT else 80))
        tar.addfile(link)
        for name, data in [("last.webp", JPEG), ("last.json", json.dumps({"label": 1}).encode())]:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1.5  # a fraction, which pax has a record of
            tar.addfile(member, io.BytesIO(data))
    rows = read_rows(str(path)).rows
    with tarfile.open(path) as tar:
        expected = {row.key: tar.getmember(row.key).offset_data for row in rows}
    assert {row.key: row.offset for row in rows} == expected
    assert [(row.key, row.label) for row in rows][1:] == [(long, "1"), ("b/plain.JPG", "1"), ("last.webp", "1")]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_hard_link_is_the_member_that_it_names_and_another_link_refused(tmp_path, kind):
    first = "x" * (90 if kind == tarfile.USTAR_FORMAT else 180)
    path = write_tar(tmp_path / "a.tar", labelled(f"{first}.jpg"), kind)

    def linked(name, target, how=tarfile.LNKTYPE):
        with tarfile.open(path, "a", format=kind) as tar:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = how, target
            tar.addfile(link)
        return read_rows(str(path)).rows

    linked(f"{first}.jpg", f"{first}.jpg")  # as GNU tar writes a file that was named twice
    linked("b.jpg", f"{first}.jpg")
    rows = linked("b.cls", "zero.cls")
    assert [(row.key, row.label) for row in rows] == [("zero.png", "0"), (f"{first}.jpg", "1"), ("b.jpg", "0")]
    assert (rows[2].offset, rows[2].size) == (rows[1].offset, len(JPEG))
    linked("b.txt", "b.jpg", tarfile.SYMTYPE)
    whole = path.read_bytes()
    linked("c", "", tarfile.FIFOTYPE)  # which is no photo
    found = (("c.jpg", tarfile.SYMTYPE), ("zero.json", tarfile.SYMTYPE), ("c.jpg", tarfile.LNKTYPE))
    for name, how in (*found, ("c.jpg", tarfile.FIFOTYPE), ("c.cls", tarfile.CHRTYPE)):
        path.write_bytes(whole)
        with pytest.raises(ValueError, match=f"(?s)hard link to a.* before it.*a.tar, member '{name}'.*--deref"):
            linked(name, "b.jpg" if how == tarfile.SYMTYPE else "nowhere.jpg", how)


def test_photo_with_two_dots_is_refused_unless_another_of_its_key_is_plain(tmp_path):
    path = write_tar(tmp_path / "a.tar", [*labelled("b.jpg"), ("b.seg.png", PNG), ("b.seg.cls.txt", b"")])
    assert [row.key for row in read_rows(str(path)).rows] == ["zero.png", "b.jpg"]
    with pytest.warns(UserWarning, match=r"1 image\(s\) of tars are further fields .* as .*a\.tar:b\.seg\.png"):
        assert len([*shard_photos(path)]) == 2
    names = ["./c.jpg", "./d/e.jpg", "../f.jpg", "g//h.mpo"]  # as `tar cf a.tar -C folder .` writes them
    members = [("./c.cls", b"1"), ("d/e.cls", b"0"), ("../f.cls", b"1"), ("g/h.cls", b"1"), ("w.jpg.1", JPEG)]
    write_tar(path, [*labelled("b.jpg"), *((name, JPEG) for name in names), *members])
    found = read_rows(str(path))
    assert found.unread == ["w.jpg.1"]
    assert [(row.key, row.label) for row in found.rows][2:] == list(zip(names, "1011", strict=True))
    write_tar(path, [*labelled("b.jpg"), ("./b.jpg", JPEG)])
    with pytest.raises(ValueError, match=r"must differ in more.*\n.*members 'b.jpg' and './b.jpg'"):
        read_rows(str(path))
    for more in (["c.2019.jpg", "c.2019.cls"], ["b.1.jpg", "b.1.cls"]):
        write_tar(path, labelled("b.jpg") + [(name, JPEG) for name in more])
        with pytest.raises(ValueError, match=f"(?s)must have one dot.*a.tar, 1 photo.* member '{more[0]}'. Replace"):
            read_rows(str(path))


def test_hidden_photos_of_a_tar_are_named_each_time_by_training_and_embedding(tmp_path):
    hidden = [".z.png", "a/.git/z.png", "__MACOSX/z.png", "@eaDir/b/1.jpg", "@eaDir/b/2.jpg"]
    members = [*labelled("b.jpg", *hidden), ("._b.jpg", b"x"), ("__MACOSX/._b.jpg", b"x"), (".cache/a.txt", b"x")]
    write_tar(tmp_path / "a.tar", members)
    line = rf"4 hidden or system items with photos not read: {tmp_path}/a\.tar:\.z\.png, .*:@eaDir, .*:__MACOSX\.$"
    for read in (open_source, list_photos, shard_photos):
        with pytest.warns(UserWarning, match=line):
            found = [*read(tmp_path)] if read is shard_photos else read(tmp_path)
    assert [key for key, _ in found] == ["a.tar:zero.png", "a.tar:b.jpg"]


def test_sizes_of_more_than_eight_gigabytes_are_read(tmp_path):
    """As GNU and pax write them; the photo lies after 9 GiB of nothing, which takes no room on the disk."""
    hole = 9 * 2**30
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / str(kind) / "large.tar"
        path.parent.mkdir()
        with open(path, "wb") as file:
            member = tarfile.TarInfo("hole.bin")
            member.size = hole
            file.write(member.tobuf(kind))
            file.seek(hole, os.SEEK_CUR)
            with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
                member = tarfile.TarInfo("a.jpg")
                member.size = len(JPEG)
                tar.addfile(member, io.BytesIO(JPEG))
        ((key, read),) = shard_photos(path)
        assert (key, read()) == ("large.tar:a.jpg", JPEG)


def folder_of_size(field):
    """The header of a folder, which has no bytes, with this size."""
    head = bytearray(tarfile.TarInfo("b").tobuf())
    head[124:136], head[156:157], head[148:156] = field, tarfile.DIRTYPE, b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


BROKEN = {
    "cut inside of a photo": (lambda whole: whole[: whole.index(JPEG) + 100], "cut short inside of member 'b.jpg'"),
    "cut between members": (lambda whole: whole[: whole.index(b"b.cls")], "cut short after member 'b.jpg'"),
    "empty": (lambda whole: b"", "a.tar, which has 0 bytes"),
    "compressed": (lambda whole: b"\x1f\x8b" + whole, "compressed"),
    "joined by cat": (lambda whole: whole + whole, "(?s)nothing after its empty.* member 'b.cls'.*--conc"),
    "a hole over a header": (
        lambda whole: whole[: whole.index(b"b.cls")] + bytes(512) + whole[whole.index(b"b.cls") + 512 :],
        "(?s)nothing after its empty blocks.*after member 'b.jpg'",
    ),
    "another header": (lambda whole: whole.replace(b"b.cls", b"c.cls"), "checksum"),
    "a size beyond any disk": (lambda whole: folder_of_size(b"\x80" + b"\xff" * 11) + whole, "whole numbers"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_broken_tar_is_named_with_the_place(tmp_path, how):
    change, words = BROKEN[how]
    path = write_tar(tmp_path / "a.tar", labelled("b.jpg"))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=words):
        open_source(path)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("a.jpg", JPEG)], "must have a label.*a.tar, member 'a.jpg'"),
        ([("a.jpg", JPEG), ("a.json", b'{"caption": "a"}')], "must have a label.*member 'a.jpg'"),
        ([("a.jpg", JPEG), ("a.json", b'{"label": ')], "member 'a.json'"),
        ([("a.jpg", JPEG), ("a.json", b'{"label": 0, "label": 1}')], "member 'a.json': the name 'label' twice"),
        ([("a.cls", b"1")], "label of a tar must have its photo.*'a.cls'"),
        ([("a.jpg", JPEG), ("a.png", PNG), ("a.cls", b"1")], "members 'a.jpg' and 'a.png'"),
        ([("a.jpg", JPEG), ("a.jpg", JPEG), ("a.cls", b"1")], "two members 'a.jpg'"),
        ([("a.jpg", JPEG), ("a.cls", b"7")], "one of the 2 classes.*member 'a.jpg' with '7'"),
        ([("a.jpg", JPEG), ("a.cls", b"-1")], "numbers from 0 on, and -1.* is no class.*member 'a.jpg' with '-1'"),
        ([("a.jpg", JPEG), ("a.json", b"[1]")], "must have a label.*member 'a.jpg'. A label is"),
        (
            [("a.jpg", JPEG), ("a.cls", b"1"), ("a.json", b'{"label": 0}')],
            "must be equal.*member 'a.cls' with '1', and 'a.json' with '0'",
        ),
        (
            [("a.jpg", JPEG), ("a.json", b'{"label": 0, "cls": 1}')],
            "must be equal.*'a.json' with .'label': '0', 'cls': '1'",
        ),
        ([("a.jpg", JPEG), ("a.cls", b"owl")], "member 'a.jpg' with 'owl'"),
        ([("a.jpg", JPEG), ("a.cls", b"\xff")], "member 'a.cls'"),
    ],
)
def test_member_that_is_no_good_is_named(tmp_path, members, words):
    write_tar(tmp_path / "a.tar", labelled("b.jpg") + members)
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(ValueError, match=f"(?s){words}"):
        open_source(tmp_path)


def test_labels_are_numbers_or_names_and_names_lie_next_to_them(tmp_path):
    write_tar(tmp_path / "a" / "a.tar", labelled("b.jpg", label="12"))
    assert open_source(tmp_path / "a").class_names == ("0", "12")  # in the order of numbers, as of a table
    for name in ("labels.txt", "Classes.txt", "class_names.json", "class_to_idx.json", "label_map.pbtxt"):
        (tmp_path / "a" / name).touch()
        with pytest.warns(UserWarning, match=f"a/{name} is not read. .* call it labels.json or classes.txt"):
            open_source(tmp_path / "a")
        (tmp_path / "a" / name).unlink()
    named = [("c.json", b'{"class": "owl"}')]  # the name of a class next to its number
    write_tar(tmp_path / "c" / "c.tar", [*labelled("c.jpg", label="12"), *named])
    with pytest.warns(UserWarning, match="names next to class numbers are not used, as class 0 has none"):
        assert open_source(tmp_path / "c").class_names == ("0", "12")
    write_tar(tmp_path / "a" / "b.tar", [("c.jpg", JPEG), *named])
    with pytest.raises(ValueError, match=r"b.tar, member 'c.jpg' with 'owl', and a.tar with '0'"):
        open_source(tmp_path / "a")
    write_tar(tmp_path / "n" / "train" / "a.tar", labelled("b.jpg"))
    write_tar(tmp_path / "n" / "val" / "a.tar", labelled("b.jpg"))
    for text in ('["owl", "ant"]', '{"owl": 0, "ant": 1}', '{"0": "owl", "1": "ant"}'):
        (tmp_path / "n" / "labels.json").write_text(text)
        source = open_source(tmp_path / "n" / "train")
        assert source.class_names == ("owl", "ant")
    for text in ('["owl", ""]', '["", "ant"]', '{"0": "owl", "1": " "}', '{"owl": 0, "": 1}'):
        (tmp_path / "n" / "labels.json").write_text(text)
        with pytest.raises(ValueError, match=r"labels\.json, whose name of class [01] is empty"):
            open_source(tmp_path / "n" / "train")
    for text in ('{"owl": 0, "ant": 2}', "7", '["owl", "owl"]', "[", "[" * 10**5, '{"owl": null, "ant": 1}'):
        (tmp_path / "n" / "labels.json").write_text(text)
        with pytest.raises(ValueError, match=r"labels\.json"):
            open_source(tmp_path / "n" / "train")
    (tmp_path / "n" / "labels.json").write_text('{"0": "owl", "1": "ant", "0": "elk"}')
    with pytest.raises(ValueError, match=r"labels\.json, the name '0' twice"):
        open_source(tmp_path / "n" / "train")
    (tmp_path / "n" / "labels.json").unlink()
    for place, names in (("train", "owl\nant"), ("val", "ant\nowl")):
        (tmp_path / "n" / place / "classes.txt").write_text(names)
    with pytest.raises(ValueError, match=r"must be equal.*\n.*val/classes\.txt, which differs from .*train/classes"):
        open_source(tmp_path / "n")


def test_members_that_may_be_photos_are_named_each_time(tmp_path):
    strange = [
        ("900", JPEG),
        ("d/901", PNG),
        ("y.dat", JPEG),
        ("more.zip", b"PK"),
        ("inner.tar", b"x"),
        ("x.gif.1", b""),
    ]
    others = [("notes", b"text"), ("b.txt", b"a cat"), ("b.npy", b"x"), (".902", JPEG), ("__MACOSX/903", JPEG)]
    write_tar(tmp_path / "a.tar", [*labelled("b.jpg"), *strange, *others])
    assert read_rows(str(tmp_path / "a.tar")).unread == [name for name, _ in strange]
    for _ in range(2):  # the second time by the index
        with pytest.warns(UserWarning, match=r"6 member\(s\) or field\(s\) of shards not read, .* as .*a\.tar:900\."):
            open_source(tmp_path, on_bad_image="raise")


def test_numbers_that_name_other_classes_are_told(tmp_path):
    members = [(f"{number}.jpg", encoded(picture(20, 28, seed=number))) for number in range(4)]
    members += [(f"{number}.cls", str(number % 2).encode()) for number in range(4)]
    write_tar(tmp_path / "set-train-000.tar", members)
    (tmp_path / "classes.txt").write_text("1\n0\n")
    with pytest.warns(
        UserWarning, match="label 0 .* counted from 0: '1'. If it stands for the class named '0', remove"
    ):
        assert open_source(tmp_path).class_names == ("1", "0")
    for text in ("0\n1\n", "7\n8\n", "1\n2\n"):
        (tmp_path / "classes.txt").write_text(text)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            open_source(tmp_path)
    names = ("0", "1", "10", "2")  # as folders of numbers are sorted
    photos = np.stack([picture(20, 28, seed=number) for number in range(8)])
    pack({"train": (photos, np.arange(8) % 4), "class_names": names}, tmp_path / "packed")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_source(tmp_path / "packed").class_names == names


def test_splits_are_named_by_files_or_folders(tmp_path):
    for name in ("set-train-000.tar", "set-train-001.tar", "set-val-000.tar"):
        stem = name.partition(".")[0]
        photos = [encoded(picture(20, 28, seed=len(stem) * 7 + ord(stem[-1]) * 31 + number)) for number in range(4)]
        for root, path in (("flat", name), ("deep", f"{stem[4:-4]}/{name[-7:]}")):
            (tmp_path / root).mkdir(exist_ok=True)
            members = [(f"{stem}-{number}.jpg", photo) for number, photo in enumerate(photos)]
            members += [(f"{stem}-{number}.cls", str(number % 2).encode()) for number in range(4)]
            write_tar(tmp_path / root / path, members)
    sizes = {"train": 8, "validation": 4}
    assert open_source(tmp_path / "flat").sizes == open_source(tmp_path / "deep").sizes == sizes
    assert open_source(f"{tmp_path}/flat/set-train-*.tar").sizes == {"train": 8}
    assert open_source(f"{tmp_path}/flat/set-train-{{000..001}}.tar").sizes == {"train": 8}
    with pytest.raises(ValueError, match=r"set-train-002\.tar, which is missing"):
        open_source(f"{tmp_path}/flat/set-train-{{000..009}}.tar")
    (tmp_path / "flat" / "set-train-000.parquet").touch()  # facts of img2dataset about the tar
    assert open_source(tmp_path / "flat").sizes == sizes
    (tmp_path / "flat" / "set-val-000.tar").rename(tmp_path / "flat" / "set-000.tar")
    with pytest.raises(ValueError, match=r"set-000\.tar, next to set-train-000\.tar"):
        open_source(tmp_path / "flat")
    (tmp_path / "flat" / "set-000.tar").rename(tmp_path / "flat" / "test_val-000.tar")
    with pytest.raises(ValueError, match=r"test_val-000\.tar, with test and validation"):
        open_source(tmp_path / "flat")
    (tmp_path / "flat" / "test_val-000.tar").rename(tmp_path / "flat" / "more.parquet")
    with pytest.raises(ValueError, match="one kind"):
        open_source(tmp_path / "flat")
    (tmp_path / "flat" / "more.array_record-00000-of-00001").touch()
    for what in (tmp_path / "flat", f"{tmp_path}/flat/*.array_record*"):
        with pytest.raises(ValueError, match=r"the last that reads ArrayRecord.*\n.*commit 248787cb, `keras-vit pack"):
            open_source(what)
    (tmp_path / "flat" / "more.array_record-00000-of-00001").unlink()
    with pytest.raises(ValueError, match="fits none"):
        open_source(f"{tmp_path}/flat/test-*.tar")
    (tmp_path / "flat" / "set.tar.gz").touch()
    with pytest.raises(ValueError, match="compressed"):
        open_source(f"{tmp_path}/flat/*.tar.gz")
    for pattern, words in (("*.foo", "none"), ("*.g?", r"1 file\(s\) or folder\(s\), as '.*set.tar.gz'")):
        with pytest.raises(ValueError, match=f"(?s)pattern of data must fit shards.*/flat/.*', which fits {words}"):
            open_source(f"{tmp_path}/flat/{pattern}")


def test_shard_and_names_of_classes_that_cannot_be_reached_are_named(tmp_path, locked):
    write_tar(tmp_path / "a.tar", labelled("x.jpg"))
    (tmp_path / "labels.json").symlink_to("gone")
    with pytest.raises(ValueError, match=r"class names(?s:.*)labels\.json, No such file"):
        open_source(tmp_path)
    (tmp_path / "locked.tar").symlink_to(shutil.copy(tmp_path / "a.tar", tmp_path / "disk"))
    for read in (open_source, list_photos):
        with pytest.raises(ValueError, match=r"must be there and readable(?s:.*)locked\.tar, Permission denied"):
            read(tmp_path)


def test_shards_in_further_folders_are_read_or_named(tmp_path):
    """Else 20 of 30 photos are lost without a word."""
    for number, place in enumerate(("train/0/a.tar", "train/1/b.tar", "test/c.tar")):
        write_tar(tmp_path / "set" / place, [(f"{number}{name}", data) for name, data in labelled("x.jpg", "y.jpg")])
    for what in (tmp_path / "set", f"{tmp_path}/set/**/*.tar"):
        with pytest.warns(UserWarning, match="in more than one split"):  # all of two pictures
            assert open_source(what).sizes == {"train": 6, "test": 3}
        assert len(list_photos(what).entries) == 9
    write_tar(tmp_path / "set" / "other" / "d.tar", labelled("d.jpg"))
    shutil.copytree(tmp_path / "set" / "train" / "0", tmp_path / "hub" / "data")
    shutil.copytree(tmp_path / "set" / "other", tmp_path / "hub" / "d")
    for read in (open_source, list_photos, shard_photos):
        with pytest.raises(ValueError, match=r"1 shard in other folders, as .*other/d\.tar\. Pass a pattern.*/\*\*/"):
            read(tmp_path / "set")
        with pytest.warns(UserWarning, match=r"left out 1 shard in other folders, as .*hub/d/d\.tar"):
            read(tmp_path / "hub")
    shutil.rmtree(tmp_path / "set" / "train")
    shutil.rmtree(tmp_path / "set" / "test")
    with pytest.raises(ValueError, match=r"with 1 shard in other folders, as .*other/d\.tar"):
        list_photos(tmp_path / "set")


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_shard_with_two_names_counts_once_and_is_named(tmp_path, link):
    write_tar(tmp_path / "train-a.tar", labelled("x.jpg", "y.jpg", "z.jpg"))
    (tmp_path / "x.jpg").write_bytes(JPEG)
    for place in ("test/0.tar", "test/1.tar", "train-b.tar"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        link(tmp_path / "train-a.tar", tmp_path / place)
    with (
        pytest.warns(UserWarning, match=r"3 shards not read again, as .*\.tar, which is .*(train-a|0)\.tar"),
        pytest.warns(UserWarning, match=r"1 photo next to shards left out: .*x\.jpg"),
    ):
        assert len(list_photos(tmp_path).entries) == 4
    (tmp_path / "x.jpg").unlink()
    with (
        pytest.warns(UserWarning, match=r"2 shards not read again, as "),
        pytest.warns(UserWarning, match="in more than one split"),
    ):
        assert open_source(tmp_path).sizes == {"train": 4, "test": 4}


def test_index_is_made_once_and_anew_for_a_shard_that_changed(tmp_path, monkeypatch):
    for name in ("a", "b"):
        write_tar(tmp_path / f"{name}.tar", labelled("x.jpg", f"{name}.jpg"))
    walked = []
    monkeypatch.setattr(index.tars, "read_rows", lambda path: (walked.append(path[-5:]), read_rows(path))[1])

    def opened(words=None):
        walked.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            keys = [key for key, _ in shard_photos(tmp_path)]
        assert [words in str(each.message) for each in caught] == [True] * (words is not None)
        return walked, len(keys)

    assert opened() == (["a.tar", "b.tar"], 6)
    assert opened() == ([], 6)
    status = os.stat(tmp_path / "a.tar")
    write_tar(tmp_path / "a.tar", labelled("x.jpg", "z.jpg"))
    os.utime(tmp_path / "a.tar", ns=(status.st_atime_ns, status.st_mtime_ns))  # the same size, and the same time
    assert opened("1 shard(s) have changed") == (["a.tar"], 6)
    write_tar(tmp_path / "c.tar", labelled("x.jpg"))
    assert opened() == (["c.tar"], 8)
    place = tmp_path / index.NAME
    whole = place.read_bytes()
    for damaged in (whole[:-30], b"", b"text", whole.replace(b"x.jpg", b"q.jpg")):
        place.write_bytes(damaged)
        assert opened("damaged") == (["a.tar", "b.tar", "c.tar"], 8)
    np.savez(place, facts=np.frombuffer(b"{}", "uint8"))  # of another program
    assert opened("damaged") == (["a.tar", "b.tar", "c.tar"], 8)
    with np.load(place) as arrays:
        whole = {name: arrays[name] for name in arrays.files}
    facts = json.loads(whole["facts"].tobytes())
    older = json.dumps(facts | {"format": 2}).encode()  # of a version that lost photos of tars
    np.savez(
        place, **({name: whole[name] for name in whole if name != "digest"} | {"facts": np.frombuffer(older, "u1")})
    )
    assert opened() == (["a.tar", "b.tar", "c.tar"], 8)
    keys = np.frombuffer(b"\0".join(whole["keys"].tobytes().split(b"\0")[::-1]), "u1")
    for edited in ({"label": whole["label"][::-1]}, {"keys": keys}, {"looks": whole["looks"] + 1}):
        np.savez(place, **(whole | edited))
        assert opened("damaged") == (["a.tar", "b.tar", "c.tar"], 8), edited
    shard, others = facts["shards"][0], facts["shards"][1:]
    changes = [{"offset": whole["offset"] + 0.5}, {"size": whole["size"] + 2**40}, {"offset": whole["offset"][None]}]
    for key, value in (("name", 5), ("stamp", None), ("count", "2"), ("class_names", [1]), ("more", 1)):
        changes.append(facts | {"shards": [shard | {key: value}, *others]})
    changes += [facts | {"shards": [1]}, facts | {"labels": {"0": 0}}, [facts]]
    for change in changes:
        text = (
            {}
            if "size" in change or "offset" in change
            else {"facts": np.frombuffer(json.dumps(change).encode(), "u1")}
        )
        edited = whole | (text or change)
        np.savez(place, **(edited | {"digest": index._digest(edited)}))
        assert opened("damaged") == (["a.tar", "b.tar", "c.tar"], 8), change


def test_folder_that_cannot_be_written_has_its_index_in_the_cache(tmp_path, monkeypatch):
    write_tar(tmp_path / "a.tar", labelled("x.jpg"))

    def refused(path, *rest):
        if path.parent == tmp_path:
            raise PermissionError(13, "Permission denied")
        return real(path, *rest)

    real = index.atomic_write
    monkeypatch.setattr(index, "atomic_write", refused)
    assert len(list(shard_photos(tmp_path))) == 2
    assert not (tmp_path / index.NAME).exists()
    assert list((cache_dir() / "shards").glob("*.npz"))
    monkeypatch.setattr(index, "_scan", None)
    photos = pickle.loads(pickle.dumps(dict(shard_photos(tmp_path))))
    assert {key: read() for key, read in photos.items()} == {"a.tar:zero.png": PNG, "a.tar:x.jpg": JPEG}


def test_bad_photo_is_left_out_and_a_lost_one_named(folder, tmp_path):
    path = write_tar(tmp_path / "train.tar", list(members_of(rows_of(folder))) + labelled("bad.jpg")[2:])
    data = path.read_bytes()
    path.write_bytes(data.replace(JPEG, bytes(len(JPEG))))
    with pytest.warns(UserWarning, match="left out 1 bad image"):
        source = open_source(path)
    assert [(image.path, image.reason) for image in source.bad_images] == [(f"{path}:bad.jpg", "not an image")]
    batches = load_dataset(source, batch_size=4, preprocessing=RECORD)
    path.write_bytes(data[: len(data) // 2])
    close_shards()
    with (
        pytest.raises(ValueError, match=f"{path}:0000.*in a shard that was cut short"),
        report_missing_files(source.split("train")),
    ):
        list(batches)


def test_tar_that_was_rewritten_at_its_size_gives_no_photo(folder, tmp_path):
    members = list(members_of(rows_of(folder)))
    path = write_tar(tmp_path / "train.tar", members)
    source = open_source(path)
    size = path.stat().st_size
    assert write_tar(path, [*members[2:], *members[:2]]).stat().st_size == size
    with pytest.raises(ValueError, match=rf"{path}:0000.*in a shard that has changed"):
        source.pixels("train", 0)
    with (
        pytest.raises(ValueError, match=r"must stay .*\n.*in a shard that has changed"),
        report_missing_files(source.split("train")),
    ):
        list(load_dataset(source, batch_size=4, preprocessing=RECORD))


def test_copied_shards_and_files_that_may_be_some_are_named(tmp_path):
    write_tar(tmp_path / "a.tar", labelled("x.jpg"))
    shutil.copy(tmp_path / "a.tar", tmp_path / "b.tar")
    for name in (".x.tar", "x.tar.tmp", "x.tar.bak", "x.zip", "x.wds", "x.pq", "x.arrow", "x"):  # which may be some
        (tmp_path / name).touch()
    for name in ("._x.tar", "a.tar.md5", "a.tar.json", "a.csv.gz", "a.bib~", "README", "_metadata", "a.idx"):
        (tmp_path / name).touch()
    for read in (open_source, list_photos):
        with (
            pytest.warns(UserWarning, match=r"8 files not read, as the name is not that of a shard: .*/\.x\.tar\."),
            pytest.warns(UserWarning, match=r"1 shard\(s\) are copies of others.* as .*b\.tar of .*a\.tar"),
        ):
            read(tmp_path)


def test_shards_that_are_gone_are_named(tmp_path):
    folder = tmp_path / "data"  # as in a download of the Hub
    folder.mkdir()
    for number in (0, 2):
        write_tar(folder / f"train-0000{number}-of-00003.tar", labelled(f"{number}.jpg"))
    with pytest.warns(UserWarning, match=r"1 shard missing, as the names .*train-00001-of-00003\.tar") as lines:
        list(shard_photos(tmp_path))
    assert len(lines) == 1
    (folder / "train-00002-of-00003.tar").unlink()
    with (
        pytest.warns(UserWarning, match="2 shards missing, as the names"),
        pytest.warns(UserWarning, match=r"1 shard\(s\) are gone since .* as train-00002"),
    ):
        list(shard_photos(tmp_path))


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        (["train-00000.tar", "train-00001.tar", "train-00003.tar"], "1 shard missing.*train-00002.tar"),
        ([f"a_{number}_of_5.tar" for number in range(4)], "1 shard missing.*a_4_of_5.tar"),
        (["2019.tar", "2024.tar", "1.tar", "3.tar", "train-000.tar", "train-907.tar"], ""),  # no places in a row
        (["train-00000.tar", "val-00001.tar", "train-00002.tar"], ""),  # numbers run on over splits
    ],
)
def test_shards_missing_between_others_are_named(tmp_path, there, missing):
    for name in there:
        (tmp_path / name).touch()
    with warnings.catch_warnings(record=True) as lines:
        warnings.simplefilter("always")
        find_shards(tmp_path, by_split=False)
    assert [bool(re.search(missing, str(line.message))) for line in lines] == [True] * bool(missing)


def test_shards_that_count_from_1_or_without_zeros_are_all_there(tmp_path):
    for number in range(1, 11):
        write_tar(tmp_path / f"a-{number}-of-10.tar", labelled(f"a{number}.jpg"))
        write_tar(tmp_path / f"b-{number - 1}-of-10.tar", labelled(f"b{number}.jpg"))
    assert len(list(shard_photos(tmp_path))) == 40  # and no warning


@pytest.mark.parametrize("odd", ["link", "pipe", "folder", "nothing", "zeros", "tail", "empty"])
def test_shard_without_its_photos_is_named(tmp_path, odd):
    write_tar(tmp_path / "a.tar", labelled("x.jpg"))
    path = tmp_path / "b.tar"
    makers = {"link": lambda: path.symlink_to("gone"), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}
    contents = {"nothing": b"", "zeros": bytes(20_000), "empty": bytes(10_240)}
    contents["tail"] = write_tar(path, labelled("y.jpg")).read_bytes() + bytes(10_240)
    path.unlink()
    makers.get(odd, lambda: path.write_bytes(contents[odd]))()
    if odd == "empty":  # what GNU tar writes of nothing
        for _ in range(2):
            with pytest.warns(UserWarning, match=r"1 shard\(s\) hold no photo, as .*b\.tar"):
                assert sum(open_source(tmp_path).sizes.values()) == 2
        return
    words = {"link": "a link to nothing", "pipe": "a pipe", "folder": "a folder", "nothing": "0 bytes"}
    with pytest.raises(ValueError, match=rf"b\.tar, .*{words.get(odd, 'after an empty block')}"):
        open_source(tmp_path)
