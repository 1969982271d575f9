import io
import struct
import warnings
import zipfile

import numpy as np
import pytest
from conftest import GOLDEN, ROOT

from keras_vit.weights.reader import CheckpointError, read_npz
from keras_vit.weights.writer import write_npz

ARRAYS = {"a": np.arange(35, dtype="float32").reshape(5, 7), "b/c": np.full((3,), 0.5, "float16")}


def npy(array, **replaced):
    """The bytes of an `.npy`, with fields of its header replaced."""
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape} | replaced
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


def zipped(path, members, compression=zipfile.ZIP_STORED):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as archive:
        warnings.simplefilter("ignore")  # of duplicate names, which are the point
        for name, data in members:
            archive.writestr(name, data)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.npz"


def assert_refused(path, message):
    with pytest.raises(CheckpointError, match=message) as error:
        read_npz(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_reader_gives_what_numpy_wrote(path, save):
    save(path, **ARRAYS, f=np.asfortranarray(ARRAYS["a"]), e=np.zeros((0, 3), "float64"))
    arrays, note = read_npz(path)
    assert note == {}
    assert list(arrays) == ["a", "b/c", "f", "e"]
    for name, array in {**ARRAYS, "f": ARRAYS["a"]}.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype


def test_reader_gives_what_the_writer_wrote_and_so_does_numpy(path):
    write_npz(path, ARRAYS.items(), {"position_grid": [3, 5]})
    arrays, note = read_npz(path)
    assert note == {"position_grid": [3, 5]}
    with np.load(path, allow_pickle=False) as theirs:
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(arrays[name], array)
            np.testing.assert_array_equal(theirs[name], array)


def test_reader_passes_over_a_foreign_comment(path):
    for comment in (b"made by somebody", b"[1]", b'{"keras_vit": 3}', b"\xff"):
        np.savez(path, **ARRAYS)
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = comment
        assert read_npz(path)[1] == {}


def test_reader_never_unpickles(path, tmp_path):
    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "PWNED"), "w"))

    np.savez(path, a=np.array([Payload()], dtype=object))
    assert_refused(path, "pickles least of all")
    path.write_bytes(b"\x80\x04N.")
    assert_refused(path, "no zip archive")
    assert not (tmp_path / "PWNED").exists()


def test_no_code_of_the_package_allows_pickles():
    for source in (ROOT / "keras_vit").rglob("*.py"):
        assert "allow_pickle=True" not in source.read_text()


@pytest.mark.parametrize("dtype", [">f4", "<i4", "<c8", "|V2", "|b1", "<U3", "<M8[D]"])
def test_reader_refuses_what_is_no_plain_float(path, dtype):
    zipped(path, [("a.npy", npy(np.zeros(3, dtype)))])
    assert_refused(path, "little-endian floats")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"shape": (10**12,)}, "must have 4000000000128 bytes by its header, and has 268"),
        ({"shape": (-5, -7)}, "damaged header|little-endian|bytes"),
        ({"shape": (5, 8)}, "must have 288 bytes"),
        ({"shape": (True, 35)}, "little-endian"),
    ],
)
def test_reader_refuses_a_header_that_lies(path, header, message):
    zipped(path, [("a.npy", npy(ARRAYS["a"], **header))])
    assert_refused(path, message)


def test_reader_refuses_a_header_bomb(path):
    zipped(path, [("a.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{" * 50_000)])
    assert_refused(path, "damaged header")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "holds no array"),
        ([("a.npy", npy(ARRAYS["a"])), ("a.npy", npy(ARRAYS["a"]))], "holds 'a.npy' twice"),
        ([("a.txt", b"hello")], "'a.txt' and is no .npy array"),
        ([("a.npy", b"hello, world")], "'a.npy' is no .npy array"),
        ([("a.npy", npy(np.array([1, np.nan], "float32")))], "'a.npy' holds NaN or infinite values"),
        ([("a.npy", npy(np.array([1, -np.inf], "float16")))], "'a.npy' holds NaN or infinite values"),
        ([("a.npy", npy(np.array([1, 1e200])))], "'a.npy' holds NaN or infinite values, in float32"),
    ],
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_reader_refuses_members(path, members, message, compression):
    zipped(path, members, compression)
    assert_refused(path, message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (b"<!DOCTYPE html><html>login</html>", "HTML page"),
        (b"hello", "no zip archive"),
        ((GOLDEN / "token.npz").read_bytes()[:-500], "cut short"),
    ],
)
def test_reader_says_what_a_file_that_is_no_checkpoint_looks_like(path, data, message):
    path.write_bytes(data)
    assert_refused(path, message)


def test_reader_finds_a_flipped_bit(path):
    np.savez(path, **ARRAYS)
    data = bytearray(path.read_bytes())
    data[data.index(ARRAYS["a"].tobytes()) + 9] ^= 1
    path.write_bytes(data)
    assert_refused(path, "CRC")


def test_reader_raises_for_a_missing_file(path):
    with pytest.raises(FileNotFoundError, match=r"x\.npz"):
        read_npz(path)


def test_writer_leaves_what_was_there_when_it_fails(path):
    write_npz(path, ARRAYS.items(), {})
    before = path.read_bytes()

    def failing():
        yield "a", ARRAYS["a"]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_npz(path, failing(), {})
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["x.npz"]


def test_writer_refuses_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"folder of `path` must exist.\nReceived: .*x.npz$"):
        write_npz(tmp_path / "no" / "x.npz", ARRAYS.items(), {})


def test_writer_refuses_another_ending(tmp_path):
    with pytest.raises(ValueError, match=r"must end in .npz"):
        write_npz(tmp_path / "x.ckpt", ARRAYS.items(), {})


def test_reader_refuses_encryption_and_unknown_compression(path):
    for offset, value in ((6, 1), (8, 97)):  # general purpose bit 0; compression method
        np.savez(path, **ARRAYS)
        data = bytearray(path.read_bytes())
        central = data.index(b"PK\x01\x02")
        for start in (offset, central + offset + 2):
            data[start] = value
        path.write_bytes(data)
        assert_refused(path, "not a readable .npz file")
