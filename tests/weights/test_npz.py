import io
import struct
import zipfile
import zlib

import numpy as np
import pytest
from forged import deflated, npy, npy_with_text, patched, zipped

from keras_vit.weights.reader import CheckpointError, Entry, scan

A = np.arange(35, dtype="float32").reshape(5, 7)
HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.npz"


def assert_refused(path, message):
    with pytest.raises(CheckpointError, match=message) as error:
        scan(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_scan_lists_shapes_and_dtypes_as_stored(path, save):
    save(path, a=A, n=np.array(3, "int32"), b=np.zeros((2, 0), ">f8"), v=np.zeros(3, "V2"), t=np.array([True]))
    file = scan(path)
    assert (file.kind, file.note, file.path) == ("npz", {}, path)
    assert file.entries == {
        "a": Entry((5, 7), np.dtype("<f4")),
        "n": Entry((), np.dtype("<i4")),
        "b": Entry((2, 0), np.dtype(">f8")),
        "v": Entry((3,), np.dtype("V2")),
        "t": Entry((1,), np.dtype("?")),
    }


def test_scan_passes_over_a_foreign_comment(path):
    for comment in (b"made by somebody", b"[1]", b'{"keras_vit": 3}', b"\xff", b"[" * 60_000):
        np.savez(path, a=A)
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = comment
        assert scan(path).note == {}


@pytest.mark.parametrize("limit", [100, 300])
def test_scan_reads_what_python_writes_beyond_its_limit_of_2_gib(path, monkeypatch, limit):
    """From there on it adds a 64-bit record, whether the numbers need it or not; the limit is lowered here."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", limit)
    arrays = {"a": np.arange(100.0), "b": np.ones(3, "float32")}
    np.savez(path, **arrays)
    read = scan(path).read()
    assert {name: array.tolist() for name, array in read.items()} == {name: a.tolist() for name, a in arrays.items()}


def test_scan_reads_a_directory_with_64_bit_sizes(path):
    with zipfile.ZipFile(path, "w") as archive, archive.open("a.npy", "w", force_zip64=True) as member:
        member.write(npy(A))
    data = bytearray(path.read_bytes())
    central, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    sizes = struct.pack("<2HQQQ", 1, 24, len(npy(A)), len(npy(A)), 0)
    struct.pack_into("<I", data, central + 20, 2**32 - 1)
    struct.pack_into("<I", data, central + 24, 2**32 - 1)
    struct.pack_into("<H", data, central + 30, len(sizes))
    struct.pack_into("<I", data, central + 42, 2**32 - 1)
    directory = data[central:end] + sizes
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(directory), central)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, central + len(directory), 1)
    record = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 2**16 - 1, 2**16 - 1, 2**32 - 1, 2**32 - 1, 0)
    path.write_bytes(data[:central] + directory + end64 + locator + record)
    np.testing.assert_array_equal(scan(path).read()["a"], A)
    path.write_bytes(data[:central] + directory + record)
    assert_refused(path, "64-bit record is missing")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_scan_reads_what_was_written_into_a_pipe(path, save):
    class Pipe(io.RawIOBase):  # sizes then stand behind the data, and in the directory
        written = b""

        def writable(self):
            return True

        def write(self, data):
            self.written += bytes(data)
            return len(data)

    pipe = Pipe()
    save(pipe, a=A, b=A[::-1])
    path.write_bytes(pipe.written)
    read = scan(path).read()
    np.testing.assert_array_equal(read["a"], A)
    np.testing.assert_array_equal(read["b"], A[::-1])


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "holds no array"),
        ([("a.npy", npy(A)), ("a.npy", npy(A))], "holds the name 'a' twice"),  # N9
        ([("a.txt", b"hello")], "holds 'a.txt', which is no .npy array"),
        ([("a.npy", b"hello, world")], "holds 'a.npy', which is no .npy array"),
        ([("a.npy", b"")], "holds 'a.npy', which is no .npy array"),
        ([("../x.npy", npy(A))], r"unsafe name '\.\./x\.npy'"),  # N9
        ([("a/../../x.npy", npy(A))], "unsafe name"),
        ([("/etc/x.npy", npy(A))], "unsafe name"),
        ([("C:/x.npy", npy(A))], "unsafe name"),
        ([("a\\x.npy", npy(A))], "unsafe name"),
        ([(".npy", npy(A))], "no .npy array"),
        ([("a" * 1000 + ".npy", npy(A))], "unsafe name 'aaa"),
    ],
)
def test_scan_refuses_members(path, members, message, compression):
    assert_refused(zipped(path, members, compression), message)


@pytest.mark.parametrize(
    ("offset", "form", "value", "message"),
    [
        (8, "<H", 1, "'a.npy' encrypted"),  # N9: flag bit 0
        (10, "<H", 12, "'a.npy' compressed by method 12"),  # N9: bzip2
        (20, "<I", 5, "cannot have the size"),
        (24, "<I", 2**32 - 1, "sizes of 'a.npy' are missing"),
        (34, "<H", 1, "cannot have the size"),  # on another disk
        (42, "<I", 7, "not where the directory says"),
        (46, "<B", ord("z"), "has another name"),
        (46, "<B", 0, "unsafe name"),  # a NUL, behind which zipfile reads nothing
        (28, "<H", 900, "unsafe name 'a.npyPK"),
    ],
)
def test_scan_refuses_a_directory_that_lies(path, offset, form, value, message):
    zipped(path, [("a.npy", npy(A)), ("b.npy", npy(A))])
    patched(path, offset, form, value)
    assert_refused(path, message)


@pytest.mark.parametrize("offset", [4, 6, 8, 10, 12, 16, 20])
def test_scan_refuses_an_end_record_that_lies(path, offset):
    zipped(path, [("a.npy", npy(A))])
    patched(path, offset, "<H", 3, magic=b"PK\x05\x06")
    assert_refused(path, "cut short or damaged")


def test_scan_refuses_bytes_before_and_behind_the_archive(path):
    data = zipped(path, [("a.npy", npy(A))]).read_bytes()
    for damaged in (data + b"\0", data[:30] + b"\0" + data[30:]):
        path.write_bytes(damaged)
        assert_refused(path, "cut short or damaged|is not where")


def test_scan_refuses_a_directory_that_lists_fewer_members_than_it_counts(path):
    data = bytearray(zipped(path, [("a.npy", npy(A)), ("b.npy", npy(A))]).read_bytes())
    second, end = data.rindex(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    struct.pack_into("<H", data, data.index(b"PK\x01\x02") + 32, end - second)  # the first entry's comment takes it in
    path.write_bytes(data)
    assert_refused(path, "it must hold 2 members, and lists 1")


def test_scan_refuses_a_name_that_is_no_text(path):
    zipped(path, [("é.npy", npy(A))])  # written as UTF-8
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xc3\xc3"))
    assert_refused(path, r"holds the name b'\\xc3\\xc3.npy', which is no text")


def test_scan_refuses_a_member_that_cannot_be_inflated(path):
    deflated(path, b"\xff" * 50, 268)
    assert_refused(path, "'a.npy' cannot be inflated")


def test_scan_refuses_members_in_the_same_bytes(path):
    inner = zipped(path, [("b.npy", npy(A))]).read_bytes()[: 30 + len("b.npy") + len(npy(A))]
    text = HEADER.replace(b"(3,)", b"(%d,)" % len(inner)).replace(b"<f4", b"|u1")
    zipped(path, [("a.npy", npy_with_text(text, inner)), ("b.npy", npy(A))])
    with zipfile.ZipFile(path) as archive:
        second = archive.getinfo("b.npy").header_offset
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.rindex(b"PK\x01\x02") + 42, data.index(inner))  # quote the b inside a
    assert data.index(inner) < second
    path.write_bytes(data)
    assert_refused(path, "'b' and 'a' in the same bytes")


def test_scan_never_unpickles(path, tmp_path):  # N1
    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "PWNED"), "w"))

    np.savez(path, a=np.array([Payload()], dtype=object))
    assert_refused(path, r"dtype '\|O'; only plain numbers are read, pickles and structures never")
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize("dtype", ["<U3", "|S5", "<M8[D]", "V4", [("a", "<f4"), ("b", "O")], [("a", "<f4", (2,))]])
def test_scan_refuses_what_is_no_number(path, dtype):  # N1
    zipped(path, [("a.npy", npy(np.zeros(3, "<f4"), descr=np.lib.format.dtype_to_descr(np.dtype(dtype))))])
    assert_refused(path, "only plain numbers are read")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"shape": (10**12,)}, "must have 4000000000128 bytes by its header, and has 268"),
        ({"shape": (3 * 10**9,)}, "must have 12000000128 bytes"),
        ({"shape": (2**40, 2**40)}, "impossible shape"),
        ({"shape": (0, 2**59, 8)}, "impossible shape"),
        ({"shape": (10**40,)}, "damaged header"),
        ({"shape": (1,) * 33}, "impossible shape"),
        ({"shape": (-5, -7)}, "damaged header"),
        ({"shape": (True, 35)}, "damaged header"),
        ({"shape": (5, 8)}, "must have 288 bytes"),
        ({"shape": [5, 7]}, "damaged header"),
        ({"fortran_order": 1}, "damaged header"),
    ],
)
def test_scan_refuses_a_header_that_lies(path, header, message):  # N3
    assert_refused(zipped(path, [("a.npy", npy(A, **header))]), message)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"()",
        b"{}" * 40,
        HEADER[:-1],
        HEADER.replace(b"'shape'", b"'sharp'"),
        HEADER.replace(b", }", b", 'shape': (3,), }"),
        HEADER.replace(b"False", b"not print()"),
        b"{'descr': '<f4', 'fortran_order': False, 'shape': " + b"(" * 5000,
        HEADER.replace(b"3", b"3+0"),
        b"__import__('os').abort()",
    ],
)
def test_scan_refuses_header_text_that_numpy_does_not_write(path, text):
    assert_refused(zipped(path, [("a.npy", npy_with_text(text))]), "'a.npy', which has a damaged header")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_scan_refuses_a_header_bomb(path, compression):  # N3
    bomb = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{" * 50_000
    assert_refused(zipped(path, [("a.npy", bomb)], compression), "2147483648 bytes long where at most 10000 are read")


@pytest.mark.parametrize("version", [b"\0\0", b"\4\0", b"\1\1"])
def test_scan_refuses_another_version_of_npy(path, version):
    assert_refused(zipped(path, [("a.npy", npy(A).replace(b"\x93NUMPY\1\0", b"\x93NUMPY" + version))]), "no .npy array")


@pytest.mark.parametrize("version", [b"\2\0", b"\3\0"])
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_scan_reads_the_later_versions_of_npy(path, version, compression):
    text = HEADER + b" " * 9000
    member = b"\x93NUMPY" + version + struct.pack("<I", len(text)) + text + np.arange(3, dtype="<f4").tobytes()
    zipped(path, [("a.npy", member)], compression)
    np.testing.assert_array_equal(scan(path).read()["a"], [0, 1, 2])


def test_scan_refuses_a_bomb_by_its_directory(path):  # N2
    zeros = np.zeros(30_000_000, "u1")
    zipped(path, [("a.npy", npy(zeros))], zipfile.ZIP_DEFLATED)
    assert_refused(path, r"declares 30000128 bytes of arrays; 161\d+ is the limit")


def test_scan_reads_a_head_of_zeros_that_deflated_a_thousandfold(path):
    zeros = np.zeros((1000, 3000), "float32")
    assert len(zlib.compress(zeros.tobytes())) * 800 < zeros.nbytes
    np.savez_compressed(path, **{"head/kernel": zeros})
    np.testing.assert_array_equal(scan(path).read()["head/kernel"], zeros)


def test_scan_refuses_more_members_than_any_model_has(path, monkeypatch):
    monkeypatch.setattr("keras_vit.weights.reader.npz._MOST_MEMBERS", 2)
    assert_refused(zipped(path, [(f"{name}.npy", npy(A)) for name in "abc"]), "more than 2 members")
