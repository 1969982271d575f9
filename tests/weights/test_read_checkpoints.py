import os
import sys
import time
import zipfile
import zlib

import ml_dtypes
import numpy as np
import pytest
from conftest import GOLDEN, ROOT, run_python
from forged import deflated, npy, patched, zipped
from forged import safetensors as write_header
from safetensors.numpy import save_file
from torch_files import write_torch

from keras_vit.weights.read import CheckpointError, Entry, TensorFile, scan
from keras_vit.weights.read.headers import LARGEST_DIRECTORY

ARRAYS = {"a": np.arange(35, dtype="float32").reshape(5, 7), "b/c": np.full((3,), 0.5, "float16")}
SAVERS = [np.savez, np.savez_compressed, lambda path, **arrays: save_file(arrays, path)]
every_kind = pytest.mark.parametrize("save", SAVERS, ids=["stored", "deflated", "safetensors"])
ALONE = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); from mutations import import_alone, peak\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.npz"


def assert_refused(path, message, names=None, **arguments):
    with pytest.raises(CheckpointError, match=message) as error:
        scan(path).read(names, **arguments)
    assert str(path) in str(error.value)


@every_kind
def test_scan_lists_shapes_and_dtypes_as_stored(path, save):
    arrays = {"a": ARRAYS["a"], "n": np.array(3, "int32"), "b": np.zeros((2, 0)), "t": np.array([True])}
    save(path, **arrays)
    file = scan(path)
    assert (file.kind, file.note, file.path) == ("safetensors" if save is SAVERS[2] else "npz", {}, path)
    assert file.entries == {name: Entry(array.shape, array.dtype) for name, array in arrays.items()}


@every_kind
def test_read_gives_what_was_written(path, save):
    arrays = ARRAYS | {"d": np.linspace(0, 1, 3), "n": np.array(2.5, "float32")}
    arrays["v"] = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    arrays |= {"e": np.zeros((0, 3), "float32"), "z": np.zeros((2, 0), "float32")}
    save(path, **arrays)
    read = scan(path).read(void_is_bfloat16=True)
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(read[name], array)
        assert not read[name].flags.writeable


@pytest.mark.parametrize("save", SAVERS[:2])
def test_read_gives_arrays_in_fortran_order(path, save):
    save(path, f=np.asfortranarray(ARRAYS["a"]))
    read = scan(path).read()["f"]
    assert read.flags.f_contiguous
    np.testing.assert_array_equal(read, ARRAYS["a"])


@every_kind
def test_read_gives_only_what_was_asked_for(path, save):
    save(path, **ARRAYS, step=np.array([7], "int32"), bad=np.array([np.nan], "float32"))
    assert list(scan(path).read(["b/c"])) == ["b/c"]
    assert_refused(path, "'d'", names=["d"])


@pytest.mark.parametrize("save", [*SAVERS, lambda path, **arrays: write_torch(path, arrays)])
def test_arrays_outlive_a_file_that_is_cut(path, save):
    """A mapped file would end the process by a signal; one that is cut while it is read is refused."""
    save(path, **ARRAYS)
    file = scan(path)
    array = file.read()["a"]
    os.truncate(path, 40)
    np.testing.assert_array_equal(array, ARRAYS["a"])
    for read in (file.read, file.check, lambda: scan(path)):
        with pytest.raises(CheckpointError, match=r"changed|cut short"):
            read()


def write_as_rsync(path):
    """Other bytes of the same number, and the time of the last write as it was."""
    before = path.stat()
    time.sleep(0.02)  # the clock of files may go in steps of 10 ms
    with open(path, "r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"\0\0")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [write_as_rsync, lambda path: os.truncate(path, 40)])
@pytest.mark.parametrize("save", [*SAVERS, lambda path, **arrays: write_torch(path, arrays)])
def test_file_that_changes_while_it_is_read_is_refused(path, save, change, monkeypatch):
    save(path, **ARRAYS)
    file, original = scan(path), TensorFile._load

    def changed(*arguments, **options):
        found = original(*arguments, **options)
        change(path)  # as an `rsync --inplace` does
        return found

    monkeypatch.setattr(TensorFile, "_load", changed)
    with pytest.raises(CheckpointError, match=r"changed while it was being read|cut short"):
        file.read()


@pytest.mark.parametrize("dtype", [">f4", "<i4", "<c8", "|b1", "|V2"])
def test_read_refuses_other_dtypes_by_name(path, dtype):  # N8
    zipped(path, [("a.npy", npy(np.zeros(3, "f4"))), ("step.npy", npy(np.zeros(3, dtype)))])
    assert scan(path).entries["step"].dtype == np.dtype(dtype)
    assert list(scan(path).read(["a"])) == ["a"]
    assert_refused(path, r"'step'(.|\n)*" + dtype.replace("|", r"\|"))


@pytest.mark.parametrize("code", ["|V2", "<V2"])
def test_read_takes_void_for_bfloat16_only_when_told(path, code):  # N8
    array = np.array([0.5, -2, 3e38]).astype(ml_dtypes.bfloat16)
    zipped(path, [("a.npy", npy(array.view("V2"), descr=code))])
    read = scan(path).read(void_is_bfloat16=True)["a"]
    assert read.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read, array)
    assert_refused(path, r"\|V2")


@every_kind
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_read_refuses_numbers_that_are_not_finite(path, save, bad):  # N7
    arrays = {name: np.array(array, "float32") for name, array in ARRAYS.items()}
    for name, array in arrays.items():
        spoilt = array.copy()
        spoilt.reshape(-1)[[0, 2]] = bad
        save(path, **arrays | {name: spoilt})
        assert_refused(path, f"'{name}' holds 2 NaN")
        np.testing.assert_array_equal(scan(path).read(allow_nonfinite=True)[name], spoilt)


@pytest.mark.parametrize(
    ("array", "savers", "said"),
    [
        (np.append(np.ones(100_002, "float32"), np.float32(np.nan)), SAVERS, "1 NaN"),  # of more than one chunk
        (np.array([1, 1e200, 3e38]), SAVERS[:1], "1 NaN.*float32"),
        *((np.array([1, np.nan, np.inf], dtype), SAVERS[2:], "2 NaN") for dtype in ("float16", ml_dtypes.bfloat16)),
        # Signalling ones, without a warning of NumPy.
        *(
            (np.array([bits, 0], "<u2").view(dtype), SAVERS[2:], "1 NaN")
            for dtype, bits in (("<f2", 0x7D01), (ml_dtypes.bfloat16, 0x7F81))
        ),
    ],
)
def test_read_refuses_numbers_of_every_kind_that_are_not_finite(path, array, savers, said):  # N7
    for save in savers:
        save(path, a=array)
        assert_refused(path, f"'a' holds {said}")


@pytest.mark.parametrize("save", SAVERS[:2])
def test_read_takes_large_numbers_whose_sum_overflows(path, save):
    save(path, a=np.full(70_000, 3e38, "float32"))
    assert scan(path).read()["a"].max() == np.float32(3e38)


@pytest.mark.parametrize("save", SAVERS[:2])
def test_read_finds_a_flipped_bit(path, save):  # N4
    save(path, a=np.random.default_rng(3).integers(0, 99, 35).astype("float32"), b=ARRAYS["b/c"])
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x03\x04", 40) - 4] ^= 1
    path.write_bytes(data)
    assert_refused(path, "CRC-32 of 'a'|'a'.* inflate")
    assert list(scan(path).read(["b"])) == ["b"]


@pytest.mark.parametrize("save", SAVERS[:2])
@pytest.mark.parametrize("allow_nonfinite", [False, True])
def test_read_compares_the_checksum(path, save, allow_nonfinite):  # N4
    save(path, **ARRAYS)
    patched(path, 16, "<I", 12345)
    assert_refused(path, "CRC-32 of 'a'", allow_nonfinite=allow_nonfinite)
    found = scan(path).without_checksums().read(allow_nonfinite=True)  # to see what the file holds
    assert {name: array.shape for name, array in found.items()} == {name: ARRAYS[name].shape for name in found}


@pytest.mark.parametrize(("says", "holds"), [(30, 35), (40, 35)])
def test_read_refuses_a_member_that_inflates_to_another_size(path, says, holds):  # N2
    member = npy(np.zeros(says, "f4"))[:128] + bytes(4 * holds)
    zipped(path, [("a.npy", member)], zipfile.ZIP_DEFLATED)
    patched(path, 24, "<I", 128 + 4 * says)
    assert_refused(path, f"'a'.*({128 + 4 * says} bytes|cannot be inflated)")


@pytest.mark.parametrize("junk", [1, 2**19])
def test_read_refuses_junk_behind_what_was_deflated(path, junk):
    packer = zlib.compressobj(wbits=-15)
    member = npy(ARRAYS["a"])
    body = packer.compress(member) + packer.flush()
    deflated(path, body, len(member), zlib.crc32(member))
    np.testing.assert_array_equal(scan(path).read()["a"], ARRAYS["a"])
    deflated(path, body + bytes(junk), len(member), zlib.crc32(member))
    assert_refused(path, f"'a'.* {len(member)} bytes")


def test_read_refuses_a_file_that_changed_since_the_scan(path):
    np.savez(path, **ARRAYS)
    file = scan(path)
    np.savez(path, **ARRAYS, more=ARRAYS["a"])
    with pytest.raises(CheckpointError, match="changed"):
        file.read()
    file, data, status = scan(path), bytearray(path.read_bytes()), path.stat()
    data[-1] ^= 1  # of the same size at the same place, and later
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(CheckpointError, match="changed"):
        file.read()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"x\.npz"):
        file.read()


def test_read_inflates_what_ends_near_the_edge_of_a_chunk(path):
    for edge in (2**18, 2**19):
        for size in range(edge // 4 - 34, edge // 4 - 28):  # the header takes 32 numbers' room
            np.savez_compressed(path, a=np.zeros(size, "float32"))
            assert scan(path).read()["a"].shape == (size,)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "this is 0 bytes"),
        (b"<!DOCTYPE html><html>login</html>", "an HTML page"),
        (b"\n <html>", "an HTML page"),
        (b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code>", "an XML page"),
        (b"hello", "text, 'hello'"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b"\x89HDF\r\n\x1a\n\0\0", "an HDF5 file"),  # N12
        (b"\x80\x04N.", "a pickle"),
        (npy(ARRAYS["a"]), "no known format"),
        (b"\x1f\x8b\x08\0", "no known format"),
        (b"\x08\x01\x12\x00\xff\xfe", "no known format"),
        ((GOLDEN / "token.npz").read_bytes()[:-500], "is cut short or damaged"),
        ((GOLDEN / "token.npz").read_bytes()[:40], "is cut short or damaged"),
    ],
)
def test_scan_says_what_a_file_looks_like(path, data, message):  # N4
    path.write_bytes(data)
    assert_refused(path, message)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["metadata.json", "config.json", "model.weights.h5"], r"a Keras \.keras archive(.|\n)*trust"),
        (["archive/version", "archive/data.pkl", "archive/data/0"], "an archive with a pickle"),
        (
            ["archive/data/0", "archive/constants.pkl"],
            r"a TorchScript(.|\n)*hf:timm/vit_base_patch32_clip_224\.openai",
        ),
    ],
)
def test_scan_refuses_archives_that_are_programs(path, names, message):  # N12
    zipped(path, [(name, b"{}") for name in names])
    assert_refused(path, message)


def test_scan_refuses_a_folder(tmp_path):  # N12
    assert_refused(tmp_path, "a folder")
    (tmp_path / "saved_model.pb").touch()
    assert_refused(tmp_path, r"SavedModel(.|\n)*tf\.saved_model\.load")


def test_scan_tells_the_kind_by_the_bytes_and_not_by_the_name(tmp_path):
    save_file(ARRAYS, tmp_path / "x.npz")
    assert scan(tmp_path / "x.npz").kind == "safetensors"
    with open(tmp_path / "x.safetensors", "wb") as file:
        np.savez(file, **ARRAYS)
    assert scan(str(tmp_path / "x.safetensors")).kind == "npz"


def test_scan_refuses_what_cannot_be_opened(path):
    assert_refused(path.parent / ("x" * 300), "too long")
    for gone in (path, path.parent / "a\0b"):
        with pytest.raises(FileNotFoundError, match=r"no checkpoint.*\n.*(x\.npz|a\0b)"):
            scan(gone)


def test_read_tells_of_a_failing_disk(path, monkeypatch):
    np.savez(path, **ARRAYS)
    file = scan(path)

    def fail(handle):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("keras_vit.weights.read._identity", fail)
    with pytest.raises(CheckpointError, match="Input/output error"):
        file.read()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_scan_refuses_a_pipe_without_waiting(path):
    os.mkfifo(path)
    assert_refused(path, "pipe")


def refusal_in_little_memory(path):
    code = ALONE + (
        "error, scan = import_alone(); before = peak()\n"
        "try: scan(sys.argv[1]).read(allow_nonfinite=True)\n"
        "except error as refusal: print(refusal)\n"
        "print((peak() - before) / 1e6)"
    )
    refusal, *_, memory = run_python(code, path).splitlines()
    assert float(memory) < 50
    return refusal


@pytest.mark.skipif(sys.platform != "linux", reason="counts peak memory in KiB")
@pytest.mark.parametrize(("declared", "message"), [(2**32 - 200, "4294967224 bytes"), (4 * 10**6, "inflate")])
def test_reader_refuses_a_bomb_in_little_memory(path, declared, message):  # N2: the size told honestly, and a lie
    header = npy(np.zeros(0, "f4"), shape=(declared // 4,))
    packer = zlib.compressobj(9, wbits=-15)
    head = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(2**24)) + packer.flush(zlib.Z_FULL_FLUSH)
    deflated(path, head + block * 256 + packer.flush(), len(header) + declared)  # 4 MB that inflate to 4 GB
    assert message in refusal_in_little_memory(path)


@pytest.mark.skipif(sys.platform != "linux", reason="counts peak memory in KiB")
def test_reader_holds_no_second_copy_and_imports_no_framework(path):
    np.savez(path, **{name: np.ones((1000, 4000), "float32") for name in "abcd"})
    code = ALONE + (
        "error, scan = import_alone(); before = peak(); arrays = scan(sys.argv[1]).read()\n"
        "print((peak() - before) / sum(a.nbytes for a in arrays.values()))\n"
        "print(sorted({'keras', 'tensorflow', 'torch', 'jax'} & set(sys.modules)))"
    )
    share, imported = run_python(code, path).splitlines()
    assert 0.99 < float(share) < 1.1  # once, in memory that a change of the file does not reach; in whole pages
    assert imported == "[]"


@pytest.mark.parametrize("save", SAVERS[:2], ids=["stored", "deflated"])
def test_check_looks_through_members_that_are_no_weights(path, save):
    save(path, a=ARRAYS["a"], step=np.arange(1000))
    scan(path).check()
    damaged = bytearray(path.read_bytes())
    damaged[damaged.rindex(b"step.npy", 0, damaged.index(b"PK\x01\x02")) + 200] ^= 1
    path.write_bytes(damaged)
    assert list(scan(path).read(["a"])) == ["a"]
    with pytest.raises(CheckpointError, match=r"'step'"):
        scan(path).check()


@pytest.mark.skipif(sys.platform != "linux", reason="counts peak memory in KiB")
@pytest.mark.parametrize("piece", [b"{},", b"[" * 400 + b"]" * 400 + b","], ids=["dicts", "lists in lists"])
def test_reader_refuses_a_header_of_the_largest_size_in_little_memory(path, piece):  # N2
    write_header(path, b'{"a":[' + piece * ((LARGEST_DIRECTORY - 20) // len(piece)) + b"0]}")
    assert "damaged" in refusal_in_little_memory(path)
