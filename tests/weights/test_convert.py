import json
import os

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_vit.weights.convert import write_json, write_npz, write_safetensors
from keras_vit.weights.read import scan

ARRAYS = {
    "a": np.arange(35, dtype="float32").reshape(5, 7),
    "b/c": np.full((3,), 0.5, "float16"),
    "n": np.array(0.5, "float32"),
    "t": np.arange(6, dtype="float32").reshape(2, 3).T,
}
WRITERS = [(write_npz, "x.npz"), (write_safetensors, "x.safetensors")]
both = pytest.mark.parametrize(("write", "name"), WRITERS)


def failing():
    yield "a", ARRAYS["a"]
    raise OSError(28, "No space left on device")


@both
def test_we_and_the_formats_own_library_read_what_the_writer_wrote(tmp_path, write, name):
    write(tmp_path / name, ARRAYS.items(), {"position_grid": [3, 5]})
    file = scan(tmp_path / name)
    assert file.note == {"position_grid": [3, 5]}
    arrays, theirs = file.read(), (np.load if write is write_npz else load_file)(tmp_path / name)
    assert arrays.keys() == ARRAYS.keys()
    for key, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[key], array, strict=True)
        np.testing.assert_array_equal(theirs[key], array)


def test_note_of_safetensors_is_its_metadata(tmp_path):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, ARRAYS.items(), {"heads": 3})
    header = path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")]
    assert json.loads(header)["__metadata__"] == {"format": "pt", "keras_vit": '{"heads": 3}'}


def test_writer_keeps_bfloat16(tmp_path):
    array = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    for write, name in WRITERS:
        write(tmp_path / name, [("a", array)], {})
        read = scan(tmp_path / name).read(void_is_bfloat16=True)["a"]
        assert read.dtype == array.dtype
        np.testing.assert_array_equal(read, array)


@both
def test_writer_leaves_what_was_there_when_it_fails(tmp_path, write, name):  # T8
    path = tmp_path / name
    write(path, ARRAYS.items(), {})
    before = path.read_bytes()
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'"):
        write(path, failing(), {})
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [name]


@both
def test_writer_flushes_file_and_folder_around_the_rename(tmp_path, write, name, monkeypatch):  # T7
    events = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(handle):
        events.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        fsync(handle)

    def record_replace(source, target):
        assert os.path.dirname(source) == os.path.dirname(target) == str(tmp_path)
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    write(tmp_path / name, ARRAYS.items(), {})
    assert events == ["file", "rename", "folder"]


@both
def test_writer_gives_the_file_the_mode_of_any_new_file(tmp_path, write, name):
    write(tmp_path / name, ARRAYS.items(), {})
    (tmp_path / "other").touch()
    assert (tmp_path / name).stat().st_mode == (tmp_path / "other").stat().st_mode


@both
def test_writer_refuses_a_name_that_comes_twice(tmp_path, write, name):
    with pytest.raises(ValueError, match="'a' twice"):
        write(tmp_path / name, [("a", ARRAYS["a"])] * 2, {})
    assert not list(tmp_path.iterdir())


@both
def test_writer_refuses_a_folder_that_does_not_exist(tmp_path, write, name):
    with pytest.raises(FileNotFoundError, match=r"folder(.|\n)*x\.\w+$"):
        write(tmp_path / "no" / name, ARRAYS.items(), {})


@both
def test_writer_refuses_another_ending(tmp_path, write, name):
    with pytest.raises(ValueError, match=rf"\{os.path.splitext(name)[1]}"):
        write(tmp_path / "x.ckpt", ARRAYS.items(), {})


def test_writer_says_what_the_serializer_could_not_do(tmp_path, monkeypatch):
    from safetensors import SafetensorError

    def full(*arguments):
        raise SafetensorError("IoError: No space left on device")

    monkeypatch.setattr("keras_vit.weights.convert.save_file", full)
    with pytest.raises(OSError, match=r"IoError(.|\n)*x.safetensors"):
        write_safetensors(tmp_path / "x.safetensors", ARRAYS.items(), {})
    assert not list(tmp_path.iterdir())


def test_json_is_written_whole_or_not_at_all(tmp_path):
    write_json(tmp_path / "config.json", {"hidden_size": 12})
    with pytest.raises(TypeError):
        write_json(tmp_path / "config.json", {"bad": object()})
    assert json.loads((tmp_path / "config.json").read_text()) == {"hidden_size": 12}
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
