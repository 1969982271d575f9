"""Files that lie in their directories and headers: refused before any array is read, alike in both formats."""

import io
import json
import re
import struct
import sys
import zipfile

import numpy as np
import pytest
from conftest import ROOT, run_python
from forged import deflated, npy, npy_with_text, patched, zipped
from forged import safetensors as with_header
from safetensors.numpy import save_file

from keras_vit.weights.read import CheckpointError, headers, scan

A = np.arange(35, dtype="float32").reshape(5, 7)
HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"
RECORD = {"dtype": "F32", "shape": [5, 7], "data_offsets": [0, 140]}
DAMAGED, NOT_PLAIN, IMPOSSIBLE = "is cut short or damaged", "no array of plain numbers", "impossible shape"
UNSAFE = "unsafe name"
both = pytest.mark.parametrize("kind", ["stored", "deflated", "safetensors"])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.npz"


def assert_refused(path, rule):
    with pytest.raises(CheckpointError, match=rule) as error:
        scan(path)
    assert f"\nReceived: {path}" in str(error.value)


def forge(path, kind, names=("a",), dtype=None, shape=(5, 7)):
    """Writes A under each name, with what its header says replaced."""
    if kind == "safetensors":
        said = {"dtype": dtype or "F32", "shape": list(shape) if isinstance(shape, tuple) else shape}
        places = [140 * sorted(set(names), key=names.index).index(name) for name in names]  # one for a name twice
        records = [said | {"data_offsets": [place, place + 140]} for place in places]
        pairs = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in zip(names, records, strict=True)]
        return with_header(path, b"{%s}" % ", ".join(pairs).encode(), A.tobytes() * len(set(names)))
    member = npy(A, shape=shape, **({"descr": dtype} if dtype else {}))
    method = zipfile.ZIP_DEFLATED if kind == "deflated" else zipfile.ZIP_STORED
    return zipped(path, [(f"{name}.npy", member) for name in names], method)


@both
def test_forged_file_that_does_not_lie_is_read(path, kind):
    read = scan(forge(path, kind, ["a", "b/c"])).read()
    assert list(read) == ["a", "b/c"]
    np.testing.assert_array_equal(read["b/c"], A)


@both
@pytest.mark.parametrize(
    ("shape", "rule"),
    [
        *((shape, DAMAGED) for shape in [(10**12,), (3 * 10**9,), (5, 8), (5, 6)]),
        *((shape, f"{IMPOSSIBLE}|{DAMAGED}") for shape in [(2**40, 2**40), (0, 2**59, 8), (10**40,)]),
        ((35, *(1,) * 32), IMPOSSIBLE),
        *((shape, f"{NOT_PLAIN}|{DAMAGED}") for shape in [(-5, -7), (True, 35), (5.0, 7), "57"]),
    ],
)
def test_shape_that_the_file_does_not_have_is_refused(path, kind, shape, rule):  # N3
    assert_refused(forge(path, kind, shape=shape), rule)


@both
def test_axis_of_zero_hides_no_impossible_shape(path, kind):  # N3
    if kind == "safetensors":
        with_header(path, {"a": {"dtype": "F32", "shape": [0, 2**59, 8], "data_offsets": [0, 0]}})
    else:
        zipped(path, [("a.npy", npy(np.zeros(0, "f4"), shape=(0, 2**59, 8)))])
    assert_refused(path, IMPOSSIBLE)


NUMBERLESS = ["<U3", "|S5", "<M8[D]", "|V4", "|V140", [("a", "<f4"), ("b", "|O")], [("a", "<f4", (2,))], "<f3", "|O"]


@pytest.mark.parametrize(("kind", "dtype"), [*(("stored", dtype) for dtype in NUMBERLESS), ("safetensors", 3)])
def test_what_is_no_number_is_refused(path, kind, dtype):  # N1
    assert_refused(forge(path, kind, dtype=dtype), f"'a(.npy)?', which is {NOT_PLAIN}|{DAMAGED}")


def test_small_floats_of_a_byte_are_named(path):
    record = {"dtype": "F8_E4M3", "shape": [140], "data_offsets": [0, 140]}
    assert_refused(with_header(path, {"a": record}, A.tobytes()), "'a' of F8_E4M3, and floats below 16 bits")


def test_scan_never_unpickles(path, tmp_path):  # N1
    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "PWNED"), "w"))

    np.savez(path, a=np.array([Payload()], dtype=object))
    assert_refused(path, rf"'a.npy'.*{NOT_PLAIN}.*'\|O'")
    assert not (tmp_path / "PWNED").exists()


def test_no_code_of_the_package_unpickles():  # N1
    for source in (ROOT / "keras_vit").rglob("*.py"):
        assert "allow_pickle=True" not in source.read_text()
    for source in (ROOT / "keras_vit/weights/read").glob("*.py"):
        assert not re.search(r"np\.load|pickle\.(load|Unpickler\()|literal_eval", source.read_text())


@both
@pytest.mark.parametrize(
    ("names", "rule"),
    [
        ([], "holds no array"),
        (["a", "a"], "'a' twice"),  # N9
        (["../x"], rf"{UNSAFE} '\.\./x"),  # N9
        *(([name], UNSAFE) for name in ("a/../../x", "/etc/x", "C:/x", "a\\x", "a\x1b[2J")),
        ([""], f"{UNSAFE}|no .npy array"),
        (["a" * 1001], f"{UNSAFE} 'aaa"),
    ],
)
def test_names_that_could_do_harm_are_refused(path, kind, names, rule):
    assert_refused(forge(path, kind, names), rule)


@both
def test_bytes_behind_the_file_and_missing_ones_are_refused(path, kind):  # N4
    data = forge(path, kind, ["a", "b"]).read_bytes()
    for damaged in (data + b"\0", data[:-1], data[:-150], data[: len(data) // 2], data[:40]):
        path.write_bytes(damaged)
        assert_refused(path, DAMAGED)


@pytest.mark.parametrize("kind", ["stored", "safetensors"])
def test_arrays_in_the_same_bytes_are_refused(path, kind):
    if kind == "safetensors":
        return assert_refused(with_header(path, {"a": RECORD, "b": RECORD}, A.tobytes()), DAMAGED)
    forge(path, kind, ["a", "b"])
    with zipfile.ZipFile(path) as archive:
        second = archive.getinfo("b.npy").header_offset
    inner = path.read_bytes()[second:][: 35 + len(npy(A))]  # the whole member b, to be quoted inside a
    text = HEADER.replace(b"(3,)", b"(%d,)" % len(inner)).replace(b"<f4", b"|u1")
    zipped(path, [("a.npy", npy_with_text(text, inner)), ("b.npy", npy(A))])
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.rindex(b"PK\x01\x02") + 42, data.index(inner))
    path.write_bytes(data)
    return assert_refused(path, "'b'.*same bytes")


@both
def test_directory_larger_than_any_models_is_refused(path, kind, monkeypatch):
    names = [f"{n:02}" for n in range(20)]
    assert len(scan(forge(path, kind, names)).entries) == 20
    monkeypatch.setattr(headers, "LARGEST_DIRECTORY", 1000)
    assert_refused(path, r"directory of \d{4} bytes.* 1000")


@both
def test_scan_passes_over_what_others_noted(path, kind):
    for text in ("made by somebody", "[1]", '{"keras_vit": 3}', "3", '{"a"', "[" * 60_000):
        if kind == "safetensors":
            save_file({"a": A}, path, metadata={"keras_vit": text, "format": "pt"})
        else:
            with zipfile.ZipFile(forge(path, kind), "a") as archive:
                archive.comment = text.encode()
        assert scan(path).note in ({}, {"keras_vit": 3})


# Safetensors alone


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"{\xff}",
        b"[]  ",
        b'{"a":' + b"[" * 100_000,
        b'{"a": NaN}',
        b'{"a": {"dtype": "F32", "dtype": "F16", "shape": [5, 7], "data_offsets": [0, 140]}}',
        {"__metadata__": [], "a": RECORD},
        {"__metadata__": {"format": 3}, "a": RECORD},
        {"a": RECORD, "b": RECORD | {"data_offsets": [144, 284]}},
        {"a": []},
        *({"a": RECORD | {"data_offsets": offsets}} for offsets in ([140, 280], [140, 0], [0], [0, 140, 140])),
        {"a": RECORD | {"more": 1}},
    ],
)
def test_header_that_lies_is_refused(path, header):
    assert_refused(with_header(path, header, A.tobytes()), "is (cut short or )?damaged|no known format")


def test_holes_between_arrays_are_refused(path):
    header = {"a": RECORD, "b": RECORD | {"data_offsets": [144, 284]}}
    assert_refused(with_header(path, header, A.tobytes() + b"hole" + A.tobytes()), DAMAGED)


def test_header_bomb_of_safetensors_is_refused(path):  # N3
    path.write_bytes((2**40).to_bytes(8, "little") + b"{" + b" " * 500)
    assert_refused(path, "directory of 1099511627776 bytes")


# npz alone


@pytest.mark.parametrize("member", [b"hello, world", b"", npy(A)[:90], npy(A) + b"\0"])
def test_member_that_is_no_array_is_refused(path, member):
    assert_refused(zipped(path, [("a.npy", member)]), f"'a.npy'.* (which is {NOT_PLAIN}|must have)")
    assert_refused(zipped(path, [("a.txt", npy(A))]), r"'a.txt', which is no .npy array")


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"()", b"{}" * 40, HEADER[:-1], HEADER + b"#", b"__import__('os').abort()"),
        HEADER.replace(b"'shape'", b"'sharp'"),
        HEADER.replace(b", }", b", 'shape': (3,), }"),
        b"{'descr': '<f4', 'fortran_order': False, 'shape': " + b"(" * 5000,
        *(HEADER.replace(b"False", text) for text in (b"not print()", b"1")),
        *(HEADER.replace(b"3", text) for text in (b"3+0", b"3L", b"9" * 5000)),
        HEADER.replace(b"(3,)", b"(3 3)"),
    ],
)
def test_header_text_that_numpy_does_not_write_is_refused(path, text):
    assert_refused(zipped(path, [("a.npy", npy_with_text(text))]), f"'a.npy', which is {NOT_PLAIN}")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_header_bomb_of_an_array_is_refused(path, compression):  # N3
    for text in (b"{" * 50_000, HEADER + b" " * 2**20):
        bomb = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + text
        assert_refused(zipped(path, [("a.npy", bomb)], compression), f"'a.npy', which is {NOT_PLAIN}")


@pytest.mark.parametrize("version", [b"\0\0", b"\4\0", b"\1\1"])
def test_another_version_of_npy_is_refused(path, version):
    member = npy(A).replace(b"\x93NUMPY\1\0", b"\x93NUMPY" + version)
    assert_refused(zipped(path, [("a.npy", member)]), rf"{NOT_PLAIN}.*version \({version[0]}, {version[1]}\)")


@pytest.mark.parametrize("version", [b"\2\0", b"\3\0"])
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_later_versions_of_npy_are_read(path, version, compression):
    text = HEADER + b" " * 9000
    member = b"\x93NUMPY" + version + struct.pack("<I", len(text)) + text + np.arange(3, dtype="<f4").tobytes()
    np.testing.assert_array_equal(scan(zipped(path, [("a.npy", member)], compression)).read()["a"], [0, 1, 2])


@pytest.mark.parametrize(
    ("offset", "form", "value", "rule"),
    [
        (8, "<H", 1, "'a.npy'.*encrypted"),  # N9: flag bit 0
        (10, "<H", 12, "'a.npy'.*method 12"),  # N9: bzip2
        (20, "<I", 5, "the size"),
        (24, "<I", 2**32 - 1, "the size"),
        (34, "<H", 1, "the size"),  # on another disk
        (42, "<I", 7, DAMAGED),
        (46, "<B", ord("z"), "'z.npy'"),
        (46, "<B", 0, UNSAFE),  # a NUL, behind which zipfile reads nothing
        (28, "<H", 900, DAMAGED),
    ],
)
def test_directory_that_lies_is_refused(path, offset, form, value, rule):
    patched(forge(path, "stored", ["a", "b"]), offset, form, value)
    assert_refused(path, rule)


@pytest.mark.parametrize("offset", [4, 6, 8, 10, 12, 16, 20])
def test_end_record_that_lies_is_refused(path, offset):
    patched(forge(path, "stored"), offset, "<H", 3, magic=b"PK\x05\x06")
    assert_refused(path, DAMAGED)


def test_bytes_before_and_inside_the_archive_are_refused(path):
    data = forge(path, "stored", ["a", "b"]).read_bytes()
    for damaged in (b"PK\x03\x04" + data, data[:30] + b"\0" + data[30:]):
        path.write_bytes(damaged)
        assert_refused(path, DAMAGED)


def test_directory_that_lists_fewer_members_than_it_counts_is_refused(path):
    data = bytearray(forge(path, "stored", ["a", "b"]).read_bytes())
    second, end = data.rindex(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    struct.pack_into("<H", data, data.index(b"PK\x01\x02") + 32, end - second)  # the first entry's comment takes it in
    path.write_bytes(data)
    assert_refused(path, "2 members.* 1")


def test_name_that_is_no_text_is_refused(path):
    forge(path, "stored", ["é"])  # written as UTF-8
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xc3\xc3"))
    assert_refused(path, DAMAGED)


def test_member_that_cannot_be_inflated_is_refused(path):
    deflated(path, b"\xff" * 50, 268)
    assert_refused(path, DAMAGED)


def test_bomb_is_refused_by_its_directory(path):  # N2
    zipped(path, [("a.npy", npy(np.zeros(30_000_000, "u1")))], zipfile.ZIP_DEFLATED)
    assert_refused(path, r"30000128 bytes.* 161\d+")


@pytest.mark.parametrize("limit", [100, 300])
def test_scan_reads_what_python_writes_beyond_its_limit_of_2_gib(path, monkeypatch, limit):
    """From there on it adds a 64-bit record, whether the numbers need it or not; the limit is lowered here."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", limit)
    arrays = {"a": np.arange(100.0), "b": np.ones(3, "float32")}
    np.savez(path, **arrays)
    read = scan(path).read()
    assert {name: array.tolist() for name, array in read.items()} == {name: a.tolist() for name, a in arrays.items()}


def test_directory_with_64_bit_sizes_is_read(path):
    with zipfile.ZipFile(path, "w") as archive, archive.open("a.npy", "w", force_zip64=True) as member:
        member.write(npy(A))
    data = bytearray(path.read_bytes())
    central, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    sizes = struct.pack("<2HQQQ", 1, 24, len(npy(A)), len(npy(A)), 0)
    struct.pack_into("<I", data, central + 20, 2**32 - 1)
    struct.pack_into("<I", data, central + 24, 2**32 - 1)
    struct.pack_into("<H", data, central + 30, len(sizes))
    struct.pack_into("<I", data, central + 42, 2**32 - 1)
    entries = data[central:end] + sizes
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(entries), central)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, central + len(entries), 1)
    record = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 2**16 - 1, 2**16 - 1, 2**32 - 1, 2**32 - 1, 0)
    path.write_bytes(data[:central] + entries + end64 + locator + record)
    np.testing.assert_array_equal(scan(path).read()["a"], A)
    path.write_bytes(data[:central] + entries + record)
    assert_refused(path, DAMAGED)


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


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="counts peak memory in KiB")
MOST_MEMORY = 50e6  # bytes above the imports


def hunt(**arguments):
    code = (
        "import json, sys, warnings\n"
        f"warnings.simplefilter('error'); sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "import mutations; print(json.dumps(mutations.hunt(**json.loads(sys.argv[1]))))"
    )
    return json.loads(run_python(code, json.dumps(arguments)))


@on_linux
@pytest.mark.parametrize("files", [5_000, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_reader_refuses_or_gives_the_truth_for_thousands_of_damaged_files(files):  # N1 to N4, N7 to N9
    found = hunt(seed=7, files=files)
    assert found["memory"] < MOST_MEMORY
    assert files / 40 < found["accepted"] < files / 2, "the damage is too hard or too soft to tell anything"


@on_linux
@pytest.mark.slow
def test_reader_refuses_or_gives_the_truth_for_a_minute(capsys):
    found = hunt(seed=None, seconds=60)
    with capsys.disabled():
        print(f"\n{found['per_minute']:.0f} damaged files a minute, {found['memory'] / 1e6:.1f} MB above the import")
    assert found["memory"] < MOST_MEMORY
