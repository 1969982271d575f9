"""Small checkpoint files, damaged at random, and what reading them must hold.

Needs neither Keras nor the package's `__init__`, so that a child process can weigh the reader alone:
`hunt` is run there by `tests/weights/test_damaged_files.py`.
"""

import dataclasses
import io
import json
import os
import random
import struct
import sys
import tempfile
import time
import types
import zlib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def import_alone():
    """Imports the reader with empty packages above it."""
    for name in ("keras_vit", "keras_vit.weights"):
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT / name.replace(".", "/"))]
        sys.modules[name] = package
    from keras_vit.weights.read import CheckpointError, scan

    return CheckpointError, scan


@dataclasses.dataclass
class Seed:
    """A good file.

    Attributes:
        data: its bytes.
        arrays: what reading must give.
        members: `(first byte, bytes, where the CRC-32 stands)` of each stored zip member.
        structure: positions that belong to no array, where damage reaches furthest.
    """

    data: bytes
    arrays: dict
    members: list = dataclasses.field(default_factory=list)
    structure: list = dataclasses.field(default_factory=list)


def seeds():
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import save
    from torch_files import write_torch

    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(5, 7)).astype("float32"), rng.normal(size=(3,)).astype("float16")
    bfloat = rng.normal(size=(2, 3)).astype(ml_dtypes.bfloat16)
    zeros = np.zeros((11, 13), "float32")
    groups = [(np.savez, {"a": a, "b/c": b, "n": np.array(0.5)}), (np.savez_compressed, {"a": a, "head/kernel": zeros})]
    groups += [(np.savez, {"f": np.asfortranarray(a), "v": bfloat})]
    made = []
    for write, arrays in groups:
        file = io.BytesIO()
        write(file, **arrays)
        made.append(_with_places(Seed(file.getvalue(), arrays), stored=write is np.savez))
    made.append(dataclasses.replace(made[0], data=_with_end64(made[0].data)))
    made[-1].structure = [*made[0].structure, *range(len(made[0].data), len(made[-1].data))]
    arrays = {"a": a, "b.c": b, "v": bfloat}
    file = io.BytesIO()
    write_torch(file, arrays)
    made.append(_with_places(Seed(file.getvalue(), arrays), stored=True))
    data = save(arrays, {"format": "pt"})
    made.append(Seed(data, arrays, structure=list(range(8 + struct.unpack_from("<Q", data)[0]))))
    return made


def _with_end64(data):
    """The file as it would end beyond 4 GB."""
    end = data.index(b"PK\x05\x06")
    count, size, offset = struct.unpack_from("<H2I", data, end + 10)
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, offset)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    return data[:end] + end64 + locator + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, size, 2**32 - 1, 0)


def _with_places(seed, stored):
    data, kept = seed.data, set(range(len(seed.data)))
    central = data.index(b"PK\x01\x02")
    while data[central : central + 4] == b"PK\x01\x02":
        (size,), (name, extra, comment) = (
            struct.unpack_from(*at) for at in (("<I", data, central + 20), ("<3H", data, central + 28))
        )
        (first,) = struct.unpack_from("<I", data, central + 42)
        start = first + 30 + sum(struct.unpack_from("<2H", data, first + 26))
        if stored:
            seed.members.append((start, size, central + 16))
        kept -= set(range(start + (128 if stored else 0), start + size))
        central += 46 + name + extra + comment
    seed.structure = sorted(kept)
    return seed


NUMBERS = [0, 1, 2, 8, 97, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63, 2**64 - 1]
WORDS = b"<f4 >f4 |O <i4 <f8 |V2 True False -1 ( ) [ { } ' \" 99999999 F32 I64 BF16 ../x a b.c".split()
WORDS += [b"\0", b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"]


def flip_bits(rng, data, seed):
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def flip_structure(rng, data, seed):
    data[rng.choice(seed.structure)] ^= 1 << rng.randrange(8)


def overwrite_run(rng, data, seed):
    start = rng.randrange(len(data))
    length = min(rng.choice((1, 2, 4, 16, 100)), len(data) - start)
    data[start : start + length] = rng.randbytes(length) if rng.random() < 0.5 else bytes([rng.randrange(256)]) * length


def truncate(rng, data, seed):
    del data[rng.randrange(len(data)) :]


def extend(rng, data, seed):
    data += rng.randbytes(rng.choice((1, 4, 22, 300)))


def splice(rng, data, seed):
    start, target = rng.randrange(len(data)), rng.randrange(len(data))
    piece = data[start : start + rng.choice((4, 30, 46, 128, 400))]
    data[target : target + rng.choice((0, len(piece)))] = piece


def cut_out(rng, data, seed):
    start = rng.randrange(len(data))
    del data[start : start + rng.choice((1, 2, 4, 30, 128))]


def edit_number(rng, data, seed):
    width = rng.choice((1, 2, 4, 8))
    number = rng.choice((*NUMBERS, len(data), len(data) - 1, rng.randrange(len(data))))
    start = rng.choice(seed.structure)
    data[start : start + width] = (number % 256**width).to_bytes(width, "little")


def edit_word(rng, data, seed):
    word = rng.choice(WORDS)
    start = rng.choice(seed.structure)
    data[start : start + len(word)] = word


def swap_members(rng, data, seed):
    (start, size, _), (other, other_size, _) = rng.sample(seed.members, 2)
    data[start : start + size], data[other : other + other_size] = (
        seed.data[other : other + other_size][:size].ljust(size, b" "),
        seed.data[start : start + size][:other_size].ljust(other_size, b" "),
    )


def swap_entries(rng, data, seed):
    """Two entries of the directory change places, or only what they say of sizes and places."""
    one, other = sorted(place - 16 for _, _, place in rng.sample(seed.members, 2))
    width = rng.choice(((0, 46), (16, 12), (42, 4)))
    for a, b in ((one, other), (other, one)):
        data[a + width[0] : a + sum(width)] = seed.data[b + width[0] : b + sum(width)]


def forge_member(rng, data, seed):
    """Damage with a checksum that fits, as an enemy would."""
    start, size, place = rng.choice(seed.members)
    reach = min(size, rng.choice((12, 128, size)))
    for _ in range(rng.choice((1, 2, 5))):
        word = rng.choice((rng.choice(WORDS), rng.randbytes(1), b"%d" % rng.randrange(1000)))
        position = start + rng.randrange(reach)
        data[position : min(position + len(word), start + size)] = word[: start + size - position]
    struct.pack_into("<I", data, place, zlib.crc32(data[start : start + size]))


ANYWHERE = [flip_bits, flip_structure, flip_structure, overwrite_run, truncate, extend, splice, cut_out]
ANYWHERE += [edit_number, edit_number, edit_word, edit_word]
IN_MEMBERS = [swap_members, swap_entries, forge_member, forge_member]


def hunt(seed=0, files=None, seconds=None):
    """Reads damaged files until the count or the time is up, and gives figures.

    Raises:
        AssertionError: with the number of the file, if a rule is broken; the same seed breaks it again.
    """
    checkpoint_error, scan = import_alone()
    rng, originals, accepted, done = random.Random(seed), seeds(), 0, 0
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    before, start = peak(), time.perf_counter()
    with tempfile.TemporaryDirectory(dir=place) as folder:
        path = Path(folder) / "x.npz"
        for original in originals:
            path.write_bytes(original.data)
            assert not_as_written(read(path, scan, checkpoint_error), original.arrays) is None
        while done < (files or done + 1) and time.perf_counter() - start < (seconds or 1e9):
            original = rng.choice(originals)
            data = bytearray(original.data)
            mutation = rng.choice(ANYWHERE + IN_MEMBERS if original.members else ANYWHERE)
            mutation(rng, data, original)
            path.write_bytes(data)
            trusted = data[:2] == b"PK" and mutation is not forge_member
            outcome = read(path, scan, checkpoint_error)
            if isinstance(outcome, dict):
                wrong = not_as_written(outcome, original.arrays) if trusted else not_numbers(outcome, len(data))
                accepted += 1
            else:
                wrong = outcome
            assert not wrong, f"file {done}, {mutation.__name__}: {wrong}"
            done += 1
    return {
        "files": done,
        "accepted": accepted,
        "per_minute": 60 * done / (time.perf_counter() - start),
        "memory": peak() - before,
    }


def read(path, scan, checkpoint_error):
    """The arrays; nothing if the file is refused as documented; else what is wrong with the refusal."""
    try:
        return scan(path).read(void_is_bfloat16=True)
    except checkpoint_error as error:
        return None if str(path) in str(error) else f"no path in {error}"
    except BaseException as error:
        return repr(error)


def not_as_written(arrays, originals):
    """What differs from what was written, bit by bit; nothing may."""
    if arrays.keys() != originals.keys():
        return f"names {list(arrays)}"
    for name, original in originals.items():
        array = arrays[name]
        same = array.dtype == original.dtype and array.shape == original.shape
        if not same or array.tobytes() != original.tobytes():
            return f"array {name}"
    return None


def not_numbers(arrays, size):
    """What is no array of finite numbers that the file has room for; other numbers cannot be told from true ones."""
    import numpy as np

    for name, array in arrays.items():
        if array.dtype.name not in ("float16", "float32", "float64", "bfloat16"):
            return f"dtype of {name}"
        with np.errstate(over="ignore"):
            if array.nbytes > size or not np.isfinite(array.astype("float32")).all():
                return f"array {name}"
    return None


def peak():
    """Highest memory in bytes since this program began; `ru_maxrss` is that of the process that started it too."""
    with open("/proc/self/status") as status:
        return int(status.read().split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    print(json.dumps(hunt(**json.loads(sys.argv[1]))))
