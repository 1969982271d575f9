"""Files are replaced whole (`weights/test_convert.py` has faults and kills), and small JSON is read within bounds."""

import os
import re
import time
from pathlib import Path

import pytest

from keras_vit import files
from keras_vit.cli.terminal import check_data, check_photos_exist
from keras_vit.embedding.photo_lists import list_photos
from keras_vit.files import FileKindError, access_error, atomic_write, json_object, read_json_object, read_regular


def test_replacing_keeps_the_ending_that_a_writer_looks_at(tmp_path):
    with atomic_write(tmp_path / "best.keras", ".part.keras") as part:
        assert part.endswith(".part.keras")
    assert [entry.name for entry in tmp_path.iterdir()] == ["best.keras"]


def test_replacing_removes_what_killed_writers_left_and_nothing_else(tmp_path):
    old = time.time() - 2 * files.ABANDONED
    names = [".keras_vit-abcd_123.part", ".keras_vit-young_12.part", "a.txtabcd_123.part", ".keras_vit-abcd.part"]
    for name in names:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (old, old) if "young" not in name else None)
    with atomic_write(tmp_path / "a.txt", ".part.keras"):
        pass
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(["a.txt", *names[1:]])


def test_json_object_gives_what_the_file_says(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"name": "Gänseblümchen"}', "utf-8")
    assert json_object(path) == read_json_object(path) == {"name": "Gänseblümchen"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1]", "object.\nReceived: list"),
        (b'{"a": 1', "Expecting"),
        (b'{"a": %s}' % (b"9" * 5000), "value has 5000 digits"),
        (b"\xff\xfe\x00", "codec can't decode"),
        (b'{"a":' * 100_000, "nested too deep"),
        (b'{"a": "%s"}' % (b"x" * 2**20), "1,048,576 bytes.\nReceived: 1,048,585 bytes"),
    ],
    ids=["list", "cut", "digits", "bytes", "deep", "large"],
)
def test_json_object_refuses_what_is_none_and_what_would_hold_it_up(tmp_path, content, words):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(words)):
        json_object(path, most_bytes=2**20)
    assert read_json_object(path, most_bytes=2**20) is None


def test_json_object_says_why_a_file_cannot_be_read(tmp_path):
    (tmp_path / "a.json").symlink_to("a.json")
    with pytest.raises(ValueError, match="symbolic links"):
        json_object(tmp_path / "a.json")


def test_json_object_opens_regular_files_only(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", tmp_path, tmp_path / "missing.json"):
        with pytest.raises(ValueError, match="regular file"):
            json_object(path)


def special_files(folder):
    """Paths that never end, hang, or are no file: by themselves and by a link; each with its reason."""
    os.mkfifo(folder / "pipe")
    (folder / "link to a pipe").symlink_to(folder / "pipe")
    (folder / "link to a device").symlink_to("/dev/zero")
    with open(folder / "sparse", "wb") as file:
        file.truncate(2**41)  # takes no room
    return {
        folder / "pipe": "a pipe",
        folder / "link to a pipe": "a pipe",
        folder / "link to a device": "a device",
        Path("/dev/zero"): "a device",
        folder: "a folder",
        folder / "sparse": "2,199,023,255,552 bytes",
    }


def test_regular_files_of_bounded_size_are_opened_and_nothing_else(tmp_path):  # N13
    for path, words in special_files(tmp_path).items():
        with pytest.raises(FileKindError, match=words):
            read_regular(path, 2**20)
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(FileKindError, match=r"4 bytes\.\nReceived: 5 bytes"):
        read_regular(tmp_path / "file", 4)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "missing", 4)


@pytest.mark.parametrize("name", ["a.csv", "a.tar", "a.jpg", "train-{0..1}.tar"])
def test_what_nobody_may_reach_is_not_said_to_be_missing(tmp_path, locked, name):
    path = tmp_path / "locked" / name
    assert (access_error(path), access_error(tmp_path / name)) == ("Permission denied", None)
    for check in (check_data, list_photos, lambda what: check_photos_exist([what])):
        with pytest.raises((ValueError, FileNotFoundError), match=r"\nReceived(?s:.*)(Permission denied|is missing)"):
            check(str(path) if check is check_data else path)


def test_file_that_says_it_is_empty_and_is_not_stays_bounded():
    with pytest.raises(FileKindError, match="10 bytes"):
        read_regular("/proc/self/status", 10)  # its size is given as 0
