import json

import ml_dtypes
import numpy as np
import pytest
from forged import safetensors
from safetensors.numpy import save_file

from keras_vit.weights.reader import CheckpointError, Entry, scan

A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
DATA = np.arange(6, dtype="<f4").tobytes()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.safetensors"


def assert_refused(path, message):
    with pytest.raises(CheckpointError, match=message) as error:
        scan(path)
    assert str(path) in str(error.value)


def test_scan_gives_what_the_package_wrote(path):
    arrays = {
        "b": np.arange(5, dtype="float64"),
        "block.0.weight": np.linspace(0, 1, 21, dtype="float32").reshape(3, 7),
        "h": np.array(0.5, "float16"),
        "v": np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16),
        "e": np.zeros((3, 0), "float32"),
    }
    save_file(arrays | {"step": np.array([7])}, path, metadata={"format": "pt"})
    file = scan(path)
    assert (file.kind, file.note) == ("safetensors", {})
    assert file.entries["v"] == Entry((2, 3), np.dtype(ml_dtypes.bfloat16))
    assert file.entries["step"] == Entry((1,), np.dtype("<i8"))
    for name, array in file.read(arrays).items():
        assert array.dtype == arrays[name].dtype
        np.testing.assert_array_equal(array, arrays[name])


def test_scan_passes_over_foreign_metadata(path):
    for text in ("3", "no json", '{"a"', "[" * 5000):
        assert scan(safetensors(path, {"__metadata__": {"keras_vit": text}, "a": A}, DATA)).note == {}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (A | {"dtype": "F8_E4M3"}, "'a' as 'F8_E4M3'; only plain numbers"),
        (A | {"dtype": 3}, "damaged header: 'a' has"),
        (A | {"shape": [2, 4]}, "must have 32 bytes by its shape, and has 24"),
        (A | {"shape": [-2, -3]}, "damaged header: 'a' has"),
        (A | {"shape": [True, 6]}, "damaged header: 'a' has"),
        (A | {"shape": [2.0, 3]}, "damaged header: 'a' has"),
        (A | {"shape": [2**40, 2**40]}, "impossible shape"),
        (A | {"shape": [10**30]}, "damaged header: 'a' has"),
        (A | {"shape": "23"}, "damaged header: 'a' has"),
        (A | {"data_offsets": [24, 48]}, "cut short or damaged"),
        (A | {"data_offsets": [24, 0]}, "has -24"),
        (A | {"data_offsets": [0]}, "damaged header: 'a' has"),
        (A | {"more": 1}, "needs dtype, shape and data_offsets"),
        ([], "needs dtype, shape and data_offsets"),
    ],
)
def test_scan_refuses_a_record_that_lies(path, record, message):
    assert_refused(safetensors(path, {"a": record}, DATA), message)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "no JSON"),
        (b"{\xff}", "no JSON"),
        (b'{"a":' + b"[" * 100_000, "no JSON"),
        (b'{"a": NaN}', "holds NaN"),
        (b'{"a": %s, "a": %s}' % ((json.dumps(A).encode(),) * 2), "holds the name 'a' twice"),
        (b'{"a": {"dtype": "F32", "dtype": "F16", "shape": [], "data_offsets": [0, 4]}}', "'dtype' twice"),
        ({"__metadata__": [], "a": A}, "__metadata__ must map text to text"),
        ({"__metadata__": {"format": 3}, "a": A}, "__metadata__ must map text to text"),
        ({"../a": A}, "unsafe name"),
        ({"": A}, "unsafe name"),
        ({"a": A, "b": A}, "'b' and 'a' in the same bytes"),
        ({"a": A, "b": A | {"data_offsets": [28, 52]}}, "ends at byte"),
        ({}, "must have 10 bytes by its header, and has 34"),
    ],
)
def test_scan_refuses_a_header_that_lies(path, header, message):
    assert_refused(safetensors(path, header, DATA), message)


def test_scan_refuses_a_file_of_no_arrays(path):
    assert_refused(safetensors(path, {}), "holds no array")


def test_scan_refuses_holes_between_arrays(path):
    header = {"a": A, "b": A | {"data_offsets": [28, 52]}}
    assert_refused(safetensors(path, header, DATA + b"hole" + DATA), "must have .* bytes by its header")


def test_scan_refuses_a_header_bomb(path):  # N3
    path.write_bytes((2**40).to_bytes(8, "little") + b"{" + b" " * 500)
    assert_refused(path, "header of 1099511627776 bytes; 800000 is the limit, since parsing")


def test_scan_refuses_a_file_cut_short(path):  # N4
    data = safetensors(path, {"a": A}, DATA).read_bytes()
    for size, message in ((20, "cut short at 20 bytes, inside its header"), (len(data) - 1, "cut short or damaged")):
        path.write_bytes(data[:size])
        assert_refused(path, message)
