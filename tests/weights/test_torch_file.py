"""Files of `torch.save` are read as data: what their pickles name is never run, and their tensors stay in the file."""

import collections
import datetime
import decimal
import os
import pathlib
import pickle
import types
import uuid
import zipfile

import ml_dtypes
import numpy as np
import pytest
from conftest import GOLDEN
from forged import patched, zipped
from torch_files import Call, Stored, Tensor, members_of, pickled, size_of_torch, write_torch

from keras_vit.weights.read import CheckpointError, scan
from keras_vit.weights.read.torch_file import Other, read_pickle

NUMBERS = (np.arange(15, dtype="float32") / 4).reshape(3, 5)
A = Stored(NUMBERS, "0")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.pth"


def write(path, tree, *stored, **replaced):
    """Writes a file with these storages, and with members replaced by name."""
    members = members_of(tree, stored) | {f"archive/{name}": data for name, data in replaced.items()}
    return zipped(path, members.items())


def assert_refused(path, message):
    with pytest.raises(CheckpointError, match=message) as error:
        scan(path).read()
    assert str(path) in str(error.value)


def test_file_of_a_training_that_torch_wrote_is_read():
    """Of torch 2.14: `state_dict` is an OrderedDict beside an optimizer, a Namespace, a device and a Counter."""
    file = scan(GOLDEN / "torch" / "training.pth.tar")
    assert (file.kind, file.note) == ("torch", {})
    expected = dict.fromkeys(("a", "tied", "parameter"), NUMBERS)
    expected |= {"transposed": NUMBERS.T, "part": NUMBERS[1:, ::2], "half": NUMBERS.astype("float16")}
    expected |= {"bfloat16": NUMBERS.astype(ml_dtypes.bfloat16), "double": NUMBERS.astype("float64")}
    expected |= {"one": np.array(2.5, "float32"), "none": np.zeros((0, 3), "float32")}
    for name, array in file.read([f"state_dict.module.{name}" for name in expected]).items():
        wanted = expected[name.rpartition(".")[2]]
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(array, wanted)
    assert file.entries["state_dict.module.batches"].dtype == np.int64
    assert {name.partition(".")[0] for name in file.entries} == {"state_dict", "optimizer"}
    file.check()


@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_are_read_only_views(path, protocol):
    losses = [0.5] * 200_000  # more than a directory may have
    write_torch(path, {"a": NUMBERS}, lambda tensors: {"state_dict": tensors, "losses": losses}, protocol=protocol)
    array = scan(path).read()["state_dict.a"]
    np.testing.assert_array_equal(array, NUMBERS)
    assert not array.flags.owndata
    assert not array.flags.writeable


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (os.mkdir, lambda told: (told,)),
        (eval, lambda told: (f"__import__('os').mkdir({told!r})",)),
        (exec, lambda told: (f"import os; os.mkdir({told!r})",)),
        (pickle.loads, lambda told: (pickle.dumps(Call(os.mkdir, told)),)),
        (getattr, lambda told: ("", "upper")),
    ],
)
def test_pickle_that_calls_anything_is_refused_and_not_run(path, tmp_path, function, arguments, beside, protocol):
    told = str(tmp_path / "PWNED")
    attack = Call(function, *arguments(told))
    tree = {"state_dict": {"a": Tensor(A)}, "more": attack} if beside else attack
    write(path, {"a": Tensor(A)}, A, **{"data.pkl": pickled(tree, protocol)})
    assert_refused(path, rf"names `\w+\.{function.__name__}`.*nothing of it was run")
    assert not os.path.exists(told)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"cposix\nsystem\n.", "posix.system"),
        (b"cposix\nFloatStorage\n.", "posix.FloatStorage"),  # only torch's is one
        (b"\x80\x02(S'true'\niposix\nsystem\n.", "INST"),
        (b"\x80\x02(cposix\nsystem\nS'true'\no.", "posix.system"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
        (b"ctorch\nfloat8_e4m3fn\n.", "tensors of float8_e4m3fn, and floats below 16 bits"),
        (b"\x80\x02(((((.", "damaged|no tensor"),
        (b"\x80\x02]]R.", "damaged: its pickle has something else in the place of a name and its arguments"),
        *((data, "damaged") for data in (b"\x80\x02R.", b"\x80\x02u.")),
        (b"\x80\x02}", "no end|damaged"),
        (b"\x80\x02j\xff\xff\xff\xff.", "damaged"),
        (b"\x80\x02K\x01r\xff\xff\xff\xff.", "no tensor"),  # a memory of 4 thousand million places
        (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.", "damaged"),  # a text of 2**63 bytes
        (b"\x80\x02]X\x01\x00\x00\x00aQ.", "damaged"),
        (b"\x80\x02})" + b"2\x86" * 60 + b"K\x01s.", "keys"),  # a nested key, whose hash takes 2**60 steps
        (b"\x80\x02}\x8a\x08" + (2**61 - 1).to_bytes(8, "little") + b"Ns.", "keys"),  # 60,000 of one hash take a minute
        (b"\x80\x02}\x8a\x08" + (1 - 2**61).to_bytes(8, "little", signed=True) + b"Ns.", "keys"),
    ],
)
def test_opcodes_of_no_weights_are_refused(path, data, said):
    assert_refused(write(path, {"a": Tensor(A)}, A, **{"data.pkl": data}), said)


def test_pickles_that_grow_are_refused(path):
    nested = {"x": 1}
    for _ in range(60):
        nested = {"a": nested, "b": nested}  # 2**60 values to look at
    assert_refused(write(path, nested), "nested")
    wide = dict.fromkeys(range(600))
    assert_refused(write(path, dict.fromkeys(range(600), wide)), "200000 values")  # 10,000 of 10,000 in 0.1 MB
    sides = list(range(40_000))
    assert_refused(write(path, [size_of_torch(sides) for _ in range(20)]), "copies more")
    assert_refused(write(path, size_of_torch("s" * 400_000)), "a list of sizes")  # 60,000 times in 0.8 MB
    key = "k" * 500
    assert_refused(write(path, {key: {key: {key: 1}}}), "keys longer")


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (Tensor(A, (3, 6), (6, 1)), "beyond its storage"),
        (Tensor(A, (3, 5), (5, 1), 1), "beyond its storage"),
        (Tensor(A, (3, 5), (6, 1)), "beyond its storage"),
        (Tensor(A, (2,), (2**62,)), "beyond its storage"),
        (Tensor(A, (2**40, 2**40), (2**40, 1)), "impossible shape"),
        (Tensor(A, (3, 5), (-5, 1), 10), "not negative"),
        (Tensor(A, (3, 5), (5, 1), -1), "not negative"),
        (Tensor(A, (10**9,), (0,)), r"overlap(.|\n)*\.contiguous\(\)"),
        (Tensor(A, (4, 4), (1, 1)), "overlap"),
        (Tensor(A, (3, 5), (3, 1)), "overlap"),
        (Tensor(A, (3, 5), (5,)), "axes"),
        *((Tensor(A, sides, (15, 1)), "is damaged: a tensor") for sides in ((1.0, 15), (2**100, 0))),
        *((Tensor(A, **{bit: True}), f"bit '{bit}'(.|\n)*resolve_conj") for bit in ("neg", "conj")),
    ],
)
def test_view_that_leaves_its_storage_or_overlaps_itself_is_refused(path, tensor, said):
    assert_refused(write(path, {"a": tensor}, A), said)


def test_strides_of_axes_of_one_place_say_nothing(path):
    write(path, {"a": Tensor(A, (1, 15), (2**70, 1)), "b": Tensor(A, (0, 2), (2**70, 1))}, A)
    read = scan(path).read()
    np.testing.assert_array_equal(read["a"], NUMBERS.reshape(1, 15))
    assert read["b"].shape == (0, 2)


@pytest.mark.parametrize("count", [14, 16, 0, 2**59, 2**61 + 14])
def test_storage_that_lies_about_its_size_is_refused(path, count):
    lying = Stored(NUMBERS, "0", count)
    words = (
        "'0' must have .* bytes by the pickle" if count < 2**60 else "no storage"
    )  # 30,000 of one hash take a minute
    assert_refused(write(path, {"a": Tensor(lying, (1,), (1,))}, lying), words)


def test_many_views_of_one_storage_are_refused_by_their_sum(path):
    large = Stored(np.zeros(100_000, "float32"), "0")
    assert_refused(write(path, {f"a{n}": Tensor(large) for n in range(100)}, large), "limit for its size")


def test_shared_storage_is_checked_once(path, monkeypatch):
    """A thousand small views of one large storage would take its checksum a thousand times."""
    large, looked = Stored(np.zeros(1000, "float32"), "0"), []
    write(path, {f"a{n}": Tensor(large, (1,), (1,), n) for n in range(1000)}, large)
    file = scan(path)
    original = type(file)._load
    monkeypatch.setattr(type(file), "_load", lambda *a, **k: looked.append(a[3]) or original(*a, **k))
    assert len(file.read()) == 1000
    assert len(looked) == 1


def test_parts_that_torch_does_not_write_are_refused(path):
    tree = {"a": Tensor(A)}
    members = members_of(tree, [A])
    zipped(path, members.items(), zipfile.ZIP_DEFLATED)
    assert_refused(path, "compressed")
    zipped(path, [*members.items(), ("archive/data/0", NUMBERS.tobytes())])
    assert_refused(path, "twice")
    assert_refused(write(path, tree, A, **{"data/9": b"1234"}), "'9', to which no tensor refers")
    assert_refused(write(path, tree), "lacks the storage '0'")
    assert_refused(write(path, tree, A, **{"code/x.py": b""}), "code/x.py")
    assert_refused(write(path, tree, A, **{"constants.pkl": b""}), "TorchScript")
    assert_refused(write(path, tree, A, byteorder=b"big"), "little-endian")
    assert_refused(write(path, tree, A, **{"data.pkl": bytes(4_000_001)}), r"limit(.|\n)*state_dict\(\)")
    assert_refused(write(path, {"x": 1}), r"no tensor(.|\n)*state_dict\(\)")
    assert_refused(write(path, {"x": NUMBERS}), r"arrays of NumPy(.|\n)*numpy\.savez")
    assert_refused(write(path, {"a": {"b": Tensor(A)}, "a.b": Tensor(A)}, A), "twice")
    assert_refused(write(path, {"../a": Tensor(A)}, A), "unsafe")
    patched(write(path, tree, A), 16, "<I", 1)
    assert_refused(path, "CRC-32|damaged")


def test_numbers_of_a_view_are_looked_at(path):
    bad = Stored(np.array([1, np.nan, 2, np.inf], "float32"), "0")
    write(path, {"good": Tensor(bad, (2,), (2,)), "bad": Tensor(bad, (2,), (1,), 0)}, bad)
    assert list(scan(path).read(["good"])["good"]) == [1, 2]
    assert_refused(path, "'bad' holds 1 NaN")


@pytest.mark.parametrize(
    "name",
    [
        *("__builtin__ long", "__builtin__ complex", "builtins bytearray", "pathlib PosixPath"),
        *("pathlib._local PosixPath", "pathlib._local WindowsPath", "argparse Namespace", "torch uint16"),
        *("numpy.core.multiarray scalar", "numpy._core.multiarray scalar", "numpy._core.numeric _frombuffer"),
        *("omegaconf.dictconfig DictConfig", "omegaconf.base ContainerMetadata", "torch.torch_version TorchVersion"),
    ],
)
def test_object_of_a_training_stands_for_itself_by_each_of_its_names(name):
    """Python 3.13 writes `pathlib._local`, NumPy 2 `numpy._core`; nothing of them is made."""
    found, _ = read_pickle(f"c{name.replace(' ', chr(10))}\n(Vx\ntR.".encode())
    assert found == Other(tuple(name.split()))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "made",
    [
        datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
        *(datetime.date(2026, 1, 2), datetime.time(3, 4), datetime.timedelta(5), datetime.UTC),
        *(types.SimpleNamespace(rate=0.1, steps=[1, 2]), decimal.Decimal("0.1"), uuid.UUID(int=2**127 + 1)),
        *(collections.deque([1, 2], maxlen=3), slice(1, 5, 2), range(3), pathlib.PurePosixPath("a/b")),
    ],
    ids=lambda made: type(made).__name__,
)
def test_value_beside_the_weights_that_is_harmless_stands_for_itself(path, made, protocol):
    write_torch(path, {"a": NUMBERS}, lambda tensors: {"model": tensors, "beside": [made]}, protocol=protocol)
    np.testing.assert_array_equal(scan(path).read()["model.a"], NUMBERS)
    found, _ = read_pickle(pickle.dumps(made, protocol))
    assert isinstance(found, Other)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a pickle"),
        (pickle.dumps(0x1950A86A20F9469CFC6C, 3), "a pickle"),
        (b"sys_info".ljust(257, b"\0") + b"ustar", "no known format|text"),
    ],
)
def test_older_files_of_torch_are_refused_in_words(path, start, said):
    path.write_bytes(start.ljust(600, b"\0"))
    assert_refused(path, said)
