"""Files beside their place until they are proven: who may read them, and what two exports do to one folder."""

import contextlib
import os
import signal
import stat
import threading

import pytest
from forks import forked

from keras_vit.exporting.staging import check_served, publish_absent, publish_files, publish_version
from keras_vit.files import staging


@pytest.fixture(params=[0o022, 0o027], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def fail(error, parent, made):
    with staging(parent) as place:
        (place / made).mkdir(parents=True)
        raise error


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_published_is_readable_as_umask_says(tmp_path, umask):
    with staging(tmp_path / "new" / "trees") as place:
        (place / "version").mkdir()
        (place / "version" / "saved_model.pb").write_text("x")
        version = publish_version(place / "version", tmp_path / "new" / "trees")
    for folder in (version, version.parent, version.parent.parent):
        assert mode(folder) == 0o777 & ~umask
    assert mode(version / "saved_model.pb") == 0o666 & ~umask


def test_unfinished_files_are_the_writers_own(tmp_path):
    with staging(tmp_path) as place:
        assert mode(place) == 0o700
        assert place.name.startswith(".")  # a server takes it for no version


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_failure_takes_all_away_that_was_made(tmp_path, error):
    with pytest.raises(error):
        fail(error, tmp_path / "a" / "b", "x/y")
    assert names(tmp_path) == []


def test_folder_with_anothers_files_stays(tmp_path):
    with pytest.raises(ValueError, match="wrong"):
        fail(ValueError("wrong"), tmp_path / "a", "../anothers")
    assert names(tmp_path / "a") == ["anothers"]


def test_folder_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError("read-only")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(PermissionError, match="read-only"), staging(tmp_path / "a" / "b"):
        pass
    assert names(tmp_path) == []


def test_file_goes_last_after_what_it_refers_to(tmp_path, monkeypatch):
    moved, replace = [], os.replace
    monkeypatch.setattr("os.replace", lambda old, new: moved.append(os.path.basename(new)) or replace(old, new))
    with staging(tmp_path) as place:
        for name in ("a.onnx", "a.onnx.data", "z"):
            (place / name).write_text(name)
        publish_files(place, tmp_path / "a.onnx", is_own_file=None)
    assert (len(moved), moved[-1]) == (3, "a.onnx")
    assert names(tmp_path) == ["a.onnx", "a.onnx.data", "z"]


class Killed(BaseException):
    """What comes in place of a kill: nothing is done behind it."""


def kill_before(monkeypatch, step):
    """The process ends before that one of the operations that change names."""
    count = [0]

    def counted(operation):
        def call(*arguments, **named):
            count[0] += 1
            if count[0] > step:
                raise Killed
            return operation(*arguments, **named)

        return call

    for name in ("replace", "rename", "unlink", "remove", "link"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))


@pytest.mark.parametrize("others", [["a.bin"], ["a.bin", "b.bin"]])
@pytest.mark.parametrize("there", ["all", "graph", "data", "nothing"])
def test_export_killed_anywhere_leaves_old_or_new_files_or_no_graph(tmp_path, monkeypatch, others, there):
    seen = []
    for step in range(len(others) + 4):
        folder, place = tmp_path / f"{step}", tmp_path / f"staged {step}"
        for where, version in ((folder, "old"), (place, "new")):
            where.mkdir()
            for name in ("a.xml", *others):
                (where / name).write_text(version)
        if there in ("graph", "nothing"):
            for name in others:
                (folder / name).unlink()
        if there in ("data", "nothing"):
            (folder / "a.xml").unlink()
        with monkeypatch.context() as patched:
            kill_before(patched, step)
            with contextlib.suppress(Killed):
                publish_files(place, folder / "a.xml", is_own_file=lambda file: True)
        found = {path.name: path.read_text() for path in folder.iterdir()}
        if found.get("a.xml") == "new" or (found.get("a.xml") == "old" and there == "all"):
            assert found == dict.fromkeys(("a.xml", *others), found["a.xml"])
        seen.append(found.get("a.xml"))
    assert seen[-1] == "new"
    assert seen[0] == ("old" if there in ("all", "graph") else None)


def test_graph_stays_where_its_data_cannot_be_replaced(tmp_path, monkeypatch):
    replace = os.replace

    def refuse(old, new):
        if os.path.basename(new) == "a.bin":
            raise PermissionError("read-only")
        replace(old, new)

    monkeypatch.setattr(os, "replace", refuse)
    (tmp_path / "staged").mkdir()
    for name in ("a.xml", "a.bin"):
        (tmp_path / name).write_text("old")
        (tmp_path / "staged" / name).write_text("new")
    with pytest.raises(PermissionError, match="read-only"):
        publish_files(tmp_path / "staged", tmp_path / "a.xml", is_own_file=lambda file: True)
    assert {(tmp_path / name).read_text() for name in ("a.xml", "a.bin")} == {"old"}


def test_exports_at_once_to_one_place_leave_the_files_of_one(tmp_path):
    start = threading.Barrier(8)

    def export(number):
        with staging(tmp_path) as place:
            for name in ("a.xml", "a.bin"):
                (place / name).write_text(str(number))
            start.wait(30)
            publish_files(place, tmp_path / "a.xml", is_own_file=lambda file: True)

    threads = [threading.Thread(target=export, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(tmp_path) == ["a.bin", "a.xml"]
    assert (tmp_path / "a.xml").read_text() == (tmp_path / "a.bin").read_text()


def killed_in(folder):
    with staging(folder) as place:
        (place / "half").write_text("x")
        os.kill(os.getpid(), signal.SIGKILL)


def test_next_export_removes_what_a_killed_one_left_and_nothing_else(tmp_path):
    assert forked(killed_in, tmp_path) == -signal.SIGKILL
    assert len(names(tmp_path)) == 1
    (tmp_path / ".export-20261126").mkdir()  # somebody's
    (tmp_path / ".keras_vit-export-12345678").write_text("a file")
    (tmp_path / ".keras_vit-export-abcdefgh").symlink_to(tmp_path / ".export-20261126")
    kept = [".export-20261126", ".keras_vit-export-12345678", ".keras_vit-export-abcdefgh"]
    with staging(tmp_path) as live, staging(tmp_path) as other:
        assert names(tmp_path) == sorted([*kept, live.name, other.name])
    assert names(tmp_path) == kept


@pytest.mark.parametrize("name", ["a.onnx", "a.onnx.data"])
def test_file_that_is_there_stays_unless_it_may_go(tmp_path, name):
    (tmp_path / name).write_text("precious")
    with staging(tmp_path) as place:
        for new in ("a.onnx", "a.onnx.data"):
            (place / new).write_text("new")
        with pytest.raises(FileExistsError, match=f"{tmp_path / name}.*overwrite=True"):
            publish_files(place, tmp_path / "a.onnx", is_own_file=None)
        assert (tmp_path / name).read_text() == "precious"
        assert len(names(place)) == 2
        publish_files(place, tmp_path / "a.onnx", is_own_file=lambda file: True)
    assert {(tmp_path / new).read_text() for new in ("a.onnx", "a.onnx.data")} == {"new"}


@pytest.mark.parametrize(
    ("there", "new"), [((), "1"), (("1", "2"), "3"), (("9", "10"), "11"), (("007", "x8", ".9"), "8")]
)
def test_version_is_the_next_number(tmp_path, there, new):
    for name in there:
        (tmp_path / name).mkdir()
    with staging(tmp_path) as place:
        (place / "version").mkdir()
        assert publish_version(place / "version", tmp_path) == tmp_path / new


def test_two_exports_at_once_get_two_versions(tmp_path):
    count, start, found = 12, threading.Barrier(12), []

    def export(number):
        with staging(tmp_path / "trees") as place:
            (place / "version").mkdir()
            (place / "version" / "saved_model.pb").write_text(str(number))
            start.wait(30)
            found.append(publish_version(place / "version", tmp_path / "trees"))

    threads = [threading.Thread(target=export, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(version.name) for version in found) == list(range(1, count + 1))
    assert {(version / "saved_model.pb").read_text() for version in found} == set(map(str, range(count)))
    assert len(names(tmp_path / "trees")) == count


def test_version_that_cannot_be_moved_is_an_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("read-only")

    with staging(tmp_path) as place:
        (place / "version").mkdir()
        monkeypatch.setattr("os.rename", refuse)
        with pytest.raises(PermissionError, match="read-only"):
            publish_version(place / "version", tmp_path)


def test_files_that_may_have_been_edited_stay(tmp_path):
    (tmp_path / "config.pbtxt").write_text("edited")
    with staging(tmp_path) as place:
        for name in ("config.pbtxt", "batching_parameters.txt"):
            (place / name).write_text("new")
        publish_absent(place, tmp_path)
    assert (tmp_path / "config.pbtxt").read_text() == "edited"
    assert (tmp_path / "batching_parameters.txt").read_text() == "new"


@pytest.mark.parametrize("there", ["photos/cat.png", "best.keras", "1/mine.txt", "7"])
def test_version_goes_into_no_folder_of_something_else(tmp_path, there):
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).write_text("mine")
    with pytest.raises(FileExistsError, match="no version"):
        check_served(tmp_path)
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "saved_model.pb").touch()
    check_served(tmp_path)
