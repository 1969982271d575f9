"""Files of checkpoints: whole or not there, whatever is done to them (RELIABILITY T7, T8)."""

import fcntl
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from conftest import ROOT
from forks import forked
from safetensors.numpy import load_file

from keras_vit.training.resuming.async_writer import AsyncWriter, differences
from keras_vit.training.resuming.checkpoint_folder import CheckpointFolder
from keras_vit.training.resuming.tensor_file import Shard, dtype_of, find_damage, read_shard, write_shards
from keras_vit.training.resuming.variables import StateReader, not_finite

# Saves for ever a state of which every variable is full of the number of its step, and tells of each save.
SAVER = f"""
import sys, types
package = sys.modules["keras_vit"] = types.ModuleType("keras_vit")  # without its public names, which need Keras
package.__path__ = [{str(ROOT / "keras_vit")!r}]
import numpy as np
from pathlib import Path
from keras_vit.training.resuming.checkpoint_folder import CheckpointFolder
from keras_vit.training.resuming.tensor_file import Shard

folder = CheckpointFolder(Path(sys.argv[1]))
folder.acquire()
folder.sweep()
found = folder.newest()
folder.sweep()  # as a training does: a kill has left half of the next checkpoint under its name
step = found.facts["step"] if found else 0
variables = [np.zeros(int(sys.argv[2]), "float32") for _ in range(5)]
print("ready", flush=True)
while True:
    step += 1
    for variable in variables:
        variable[:] = step
    pieces = [Shard(f"model/{{number:05d}}", (0,), variable) for number, variable in enumerate(variables)]
    folder.save(pieces, {{"step": step, "epoch": 0}})
    print("saved", flush=True)
"""


def pieces(value, size=11):
    return [Shard(f"model/{number:05d}", (0,), np.full(size, value, "float32")) for number in range(3)]


def saved(path, *steps, keep=2):
    folder = CheckpointFolder(path, keep)
    for step in steps:
        folder.save(pieces(step), {"step": step, "epoch": 0})
    return folder


def names(path):
    return sorted(entry.name for entry in path.iterdir())


def test_pieces_are_a_safetensors_file_and_come_back_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    values = {
        "a": rng.normal(size=(3, 5)).astype("float32"),
        "b": np.array(7, "int64"),
        "c": rng.normal(size=(2, 0, 3)).astype("float16"),
        "d": np.array([True, False, True]),
        "e": np.arange(4, dtype="uint32"),
        "f": rng.normal(size=7).astype(dtype_of("bfloat16")),
        "g": np.asfortranarray(rng.normal(size=(4, 3))),
    }
    facts = write_shards(tmp_path / "x", [Shard(name, (0,) * value.ndim, value) for name, value in values.items()])
    assert find_damage(tmp_path / "x", facts) is None
    for piece in facts["pieces"]:
        read, written = read_shard(tmp_path / "x", piece), values[piece["name"]]
        assert (read.dtype, read.shape, read.tobytes()) == (written.dtype, written.shape, written.tobytes())
    del values["f"]  # which safetensors gives to NumPy in another form
    read = load_file(tmp_path / "x")
    assert all(read[name].tobytes() == value.tobytes() for name, value in values.items())


def test_two_pieces_of_one_place_are_refused(tmp_path):
    with pytest.raises(ValueError, match="name"):
        write_shards(tmp_path / "x", [Shard("a", (0,), np.zeros(3)), Shard("a", (0,), np.zeros(3))])


def test_newest_checkpoint_is_read_and_only_the_newest_are_kept(tmp_path):
    folder = saved(tmp_path, 3, 12, 100)
    assert names(tmp_path) == ["step-0000000012-epoch-000000", "step-0000000100-epoch-000000"]
    found = folder.newest()
    assert found.facts == {"step": 100, "epoch": 0}
    assert (found.read("model/00002") == 100).all()


def test_no_folder_has_no_checkpoint(tmp_path):
    assert CheckpointFolder(tmp_path / "none").newest() is None


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["process-00000.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "flip first", "flip last", "empty", "gone"])
def test_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path, file, damage):
    folder = saved(tmp_path, 1, 2)
    path = tmp_path / "step-0000000002-epoch-000000" / file
    size = path.stat().st_size
    if damage == "gone":
        path.unlink()
    elif damage.startswith("flip"):
        flip(path, 0 if damage == "flip first" else size - 2)
    else:
        os.truncate(path, size - 1 if damage == "cut" else 0)
    with pytest.warns(UserWarning, match=f"step-0000000002.*{re.escape(file)}"):
        found = folder.newest()
    assert found.facts["step"] == 1
    folder.save(pieces(3), {"step": 3, "epoch": 0})  # the damaged one counts for none
    assert names(tmp_path) == ["step-0000000001-epoch-000000", "step-0000000003-epoch-000000"]


def test_manifest_that_is_a_folder_is_named_as_one(tmp_path):
    folder = saved(tmp_path, 1, 2)
    path = tmp_path / "step-0000000002-epoch-000000" / "manifest.json"
    path.unlink()
    path.mkdir()
    with pytest.warns(UserWarning, match=r"manifest\.json cannot be read \(a folder, not a regular file\)"):
        assert folder.newest().facts["step"] == 1


def test_every_flipped_bit_is_seen(tmp_path):
    folder = saved(tmp_path, 1, 2)
    path = tmp_path / "step-0000000002-epoch-000000" / "process-00000.safetensors"
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        flip(path, place)
        with pytest.warns(UserWarning, match="damaged"):
            found = folder.newest()
        assert found.facts["step"] == 1
        path.write_bytes(whole)
    assert folder.newest().facts["step"] == 2


def test_what_kills_left_is_swept_and_nothing_else(tmp_path):
    saved(tmp_path, 1)
    ours = [".part-step-0000000002-epoch-000000-77", ".old-step-0000000000-epoch-000000"]
    others = ["notes", ".part-x", "step-1", ".old-step-0000000000"]
    for name in (*ours, *others):
        (tmp_path / name).mkdir()
    folder = CheckpointFolder(tmp_path)
    folder.acquire()
    folder.sweep()
    assert names(tmp_path) == sorted([*others, "step-0000000001-epoch-000000"])


def test_folder_is_for_one_process_at_a_time(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.acquire()
    second = CheckpointFolder(tmp_path)
    second.acquire()  # after an error in this process, which no callback is told of
    second.release()
    holder = os.open(tmp_path, os.O_RDONLY)  # a lock is the open file's, so this one is a stranger's
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(ValueError, match="another process"):
        CheckpointFolder(tmp_path).acquire()
    os.close(holder)
    CheckpointFolder(tmp_path).acquire()


def write_to_a_full_disk(path):
    """A limit on the size of files stands for the disk."""
    writer = AsyncWriter(saved(path, 1))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    writer.start(pieces(2, 10_000), {"step": 2, "epoch": 0}, "0")
    with pytest.warns(UserWarning, match="step 2 in .*: File too large"):
        writer.wait()
    writer.start(pieces(3), {"step": 3, "epoch": 0}, "0")
    writer.wait()
    assert writer.path.name == "step-0000000003-epoch-000000"


def test_full_disk_leaves_what_was_there_and_says_so(tmp_path):
    assert forked(write_to_a_full_disk, tmp_path) == 0
    assert CheckpointFolder(tmp_path).newest().facts["step"] == 3
    assert names(tmp_path) == ["step-0000000001-epoch-000000", "step-0000000003-epoch-000000"]


def test_value_that_is_not_finite_is_never_written(tmp_path):
    writer = AsyncWriter(saved(tmp_path, 1))
    for bad in (np.nan, np.inf, -np.inf):
        spoiled = pieces(2)
        spoiled[1].array[7] = bad
        writer.start(spoiled, {"step": 2, "epoch": 0}, "0")
        with pytest.warns(UserWarning, match="model/00001"):
            writer.wait()
    assert names(tmp_path) == ["step-0000000001-epoch-000000"]


def test_opposite_infinities_and_other_types_are_seen():
    large = np.full(1000, np.finfo("float32").max, "float32")
    assert not_finite([Shard("a", (0,), large), Shard("b", (0,), np.arange(3)), Shard("c", (0,), np.zeros(0))]) is None
    assert not_finite([Shard("a", (0,), np.array([np.inf, -np.inf], "float32"))]) == "a"
    assert not_finite([Shard("a", (0,), np.array([1, np.nan]).astype(dtype_of("bfloat16")))]) == "a"
    half = np.full(4, np.finfo("float16").max, "float16")
    assert not_finite([Shard("a", (0,), half)]) is None


def test_differences_are_named_by_their_path():
    before = {"options": {"seed": 0, "sizes": (1, 2)}, "gone": 3}
    assert differences(before, {"options": {"seed": 0, "sizes": [1, 2]}, "gone": 3}) == []
    now = {"options": {"seed": 1, "sizes": [1, 2]}, "new": None}
    expected = ["gone: 3 before, nothing now", "new: nothing before, None now", "options.seed: 0 before, 1 now"]
    assert differences(before, now) == expected


def test_copies_stay_whatever_changes_their_variables():
    """TensorFlow's are views: it makes a copy before it changes what they see, also of what is asked for later."""
    value = np.arange(12, dtype="float32").reshape(3, 4)
    variables = [keras.Variable(value), keras.Variable(value, dtype="bfloat16"), keras.Variable(7, dtype="int32")]
    saved, later = list(StateReader().shards_of("model", variables)), StateReader().shards_of("model", variables)
    before = [piece.array.copy() for piece in saved]
    for _ in range(2):
        for variable in variables:
            variable.assign_add(variable.value)
            variable.assign(variable.value * 3)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        for jit_compile in (False, True):
            tf.function(lambda: variables[0].value.assign_sub(variables[0].value * 0.5), jit_compile=jit_compile)()
        variables[0].value.scatter_nd_update([[0, 0]], [77.0])
        tf.raw_ops.ResourceApplyGradientDescent(var=variables[0].value.handle, alpha=1.0, delta=tf.ones((3, 4)))
    assert len(saved) == 3
    for piece, expected in zip([*saved, *later], before * 2, strict=True):
        assert piece.array.tobytes() == expected.tobytes()


def test_pieces_of_several_processes_are_one_variable(tmp_path):
    whole = np.arange(7 * 5, dtype="float32").reshape(7, 5)
    first = CheckpointFolder(tmp_path, process=0, processes=2)
    second = CheckpointFolder(tmp_path, process=1, processes=2)
    facts = {"step": 4, "epoch": 1}
    second.save([Shard("a", (4, 0), whole[4:])], facts, "9")
    assert CheckpointFolder(tmp_path).newest() is None  # half of it
    first.save([Shard("a", (0, 0), whole[:4]), Shard("b", (), np.array(3))], facts, "9")
    found = CheckpointFolder(tmp_path).newest()
    assert (found.read("a") == whole).all()
    assert (found.read("a", (slice(2, 6), slice(1, 4))) == whole[2:6, 1:4]).all()
    assert (found.read("a", (slice(5, None), slice(None))) == whole[5:]).all()
    assert found.read("b", ()) == found.read("b") == 3


def killed_savers(tmp_path, times, size):
    """Kills a process that saves; gives the steps that were found, after all variables of each were seen to agree."""
    rng, found = np.random.default_rng(0), []
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for _ in range(times):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path), str(size)], env=environment, stdout=subprocess.PIPE
        )
        assert process.stdout.readline() == b"ready\n"
        began = time.monotonic()
        assert process.stdout.readline() == b"saved\n"
        time.sleep(rng.uniform(0, 1.2) * (time.monotonic() - began))  # anywhere in the next save
        process.send_signal(signal.SIGKILL)
        process.communicate()
        newest = CheckpointFolder(tmp_path).newest()
        for name in newest.variables:
            assert (newest.read(name) == newest.facts["step"]).all(), name
        assert len(newest.variables) == 5
        found.append(newest.facts["step"])
    return found


def test_kills_in_saves_leave_a_consistent_checkpoint(tmp_path, recwarn):  # T7
    found = killed_savers(tmp_path, times=3, size=200_000)
    assert all(earlier < later for earlier, later in itertools.pairwise(found))
    assert len(recwarn) == 0  # a kill leaves nothing damaged under a checkpoint's name


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_40_kills_in_saves_of_100_megabytes_leave_a_consistent_checkpoint(tmp_path, recwarn):  # T7
    found = killed_savers(tmp_path, times=40, size=5_000_000)
    print(json.dumps(found))
    assert len(found) == 40
    assert all(earlier < later for earlier, later in itertools.pairwise(found))
    assert len(recwarn) == 0
    assert len([name for name in names(tmp_path) if name.startswith(".part-")]) <= 1
