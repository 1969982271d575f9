"""Where the tensors of a file of torch lie: a zip of one pickle and of storages, each stored as it is.

The pickle is read as plain data: nothing of it is imported, called or given a state. What Python's `pickle` makes of
it are dicts, lists, tuples, numbers, texts and records of tensors. Names of a few harmless objects stand for
themselves, any other name is refused. Every tensor must lie inside its storage, without overlap.

Sources: torch, `torch/serialization.py`, `torch/_utils.py` and `torch/_weights_only_unpickler.py`.
"""

import collections
import dataclasses
import io
import pickle
import pickletools
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from keras_vit.weights.read.headers import (
    BFLOAT16,
    LONGEST_NAME,
    Entry,
    FileBytes,
    FormatError,
    Member,
    byte_count,
    check_name,
    open_zip,
    small_float_error,
    zip_members,
)

_SAVE_WEIGHTS = "In the program that made it, save its weights alone: `torch.save(model.state_dict(), path)`"
_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
_OTHER_DTYPES = ("uint16", "uint32", "uint64", "complex64", "complex128")
_KINDS = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_STORAGES = {
    **dict(zip(_KINDS, _DTYPES, strict=True)),
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "Untyped": "",  # whose tensors have the dtype
}
_BUILTINS = ("set", "frozenset", "list", "dict", "tuple", "int", "long", "float", "complex", "str", "bytearray", "bool")
_PATHS = ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath")
_RANGES = ("slice", "range", "xrange")  # the last one by protocol 2
_TIMES = ("datetime", "date", "time", "timedelta", "timezone")
_OMEGACONF = {  # configs of a training
    "dictconfig": ("DictConfig",),
    "listconfig": ("ListConfig",),
    "base": ("ContainerMetadata", "Metadata"),
    "nodes": ("AnyNode", "StringNode", "IntegerNode", "FloatNode", "BooleanNode"),
}
_DICTS = {("collections", name) for name in ("OrderedDict", "defaultdict", "Counter")}
_TENSORS = {("torch._utils", f"_rebuild_tensor{version}") for version in ("", "_v2", "_v3")}
_PARAMETERS = {("torch._utils", f"_rebuild_parameter{state}") for state in ("", "_with_state")}
_SIZE = ("torch", "Size")
_HARMLESS = {  # other objects in files of weights; none of them is made
    *(("torch", name) for name in (*_DTYPES, *_OTHER_DTYPES, "device", "Tensor")),
    *((place, name) for place in ("builtins", "__builtin__") for name in (*_BUILTINS, *_RANGES)),
    *((f"numpy.{place}.multiarray", name) for place in ("core", "_core") for name in ("scalar", "_reconstruct")),
    *((f"numpy.{place}.numeric", "_frombuffer") for place in ("core", "_core")),
    *(("numpy", name) for name in ("dtype", "ndarray")),
    *((place, name) for place in ("pathlib", "pathlib._local") for name in _PATHS),  # the second one by Python 3.13
    *((f"omegaconf.{place}", name) for place, names in _OMEGACONF.items() for name in names),
    *(("typing", "Any"), ("torch.torch_version", "TorchVersion"), ("_codecs", "encode")),
    *(("datetime", name) for name in _TIMES),
    *(("collections", "deque"), ("types", "SimpleNamespace"), ("decimal", "Decimal"), ("uuid", "UUID")),
    *(("argparse", "Namespace"), ("torch.serialization", "_get_layout")),
    ("torch.nn.parameter", "Parameter"),
}
_KNOWN = {*_DICTS, *_TENSORS, *_PARAMETERS, *_HARMLESS, _SIZE}
_SCALARS = (str, int, float, bytes, type(None))  # what may be a key; hashing nested tuples can take for ever
_LARGEST = 2**100  # of sizes, offsets and strides: products of numbers of any length take for ever
_LARGEST_HASHED = 2**60  # of keys and counts: from there on many numbers have the hash of each other
_MOST_COPIED = 100_000  # values; a short pickle that copies one long list again and again would fill the memory
_Global: TypeAlias = tuple[str, str]  # module and name


@dataclasses.dataclass(frozen=True)
class Storage:
    """The bytes of tensors: `count` numbers of `dtype` in the member `data/{key}`; `""` is an unknown dtype."""

    key: str
    dtype: str
    count: int


@dataclasses.dataclass(frozen=True)
class TensorView:
    """A tensor of a storage: offset and strides count its numbers."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Other:
    """Anything that is neither a tensor nor a container; it stands where that would be, and holds nothing."""

    name: _Global

    def extend(self, items: Any) -> None:
        """Takes what a list or a set would take, and drops it."""

    append = extend


def read_pickle(data: bytes) -> tuple[Any, set[Storage]]:
    """What a pickle of `torch.save` holds, and the storages that it refers to.

    Args:
        data: the whole pickle.

    Returns:
        Dicts, lists, tuples, numbers, texts, `TensorView` and `Other`, as the pickle nests them; and its storages.

    Raises:
        FormatError: for a name that stands neither for a tensor nor for a container, and other opcodes.
        Exception: whatever `pickle` or a missing value on the stack raise for damaged bytes.
    """
    reader = _Unpickler(io.BytesIO(data), encoding="latin1")  # of texts by Python 2
    try:
        found = reader.load()
    except EOFError:
        raise FormatError("is cut short or damaged: its pickle has no end") from None
    if reader.stack or reader.metastack:
        raise FormatError("is damaged: its pickle holds more than one value")
    return found, reader.storages


_MACHINE: Any = pickle._Unpickler  # in Python; joblib and others derive theirs from it as well
_REFUSED = {"PERSID", "INST", "OBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER", "POP_MARK"}
_REFUSED |= {"DICT", "LIST", "LONG4"}  # of protocol 0, which writes storages by PERSID; of numbers beyond 2**2000
_OPCODES = {ord(each.code): each.name for each in pickletools.opcodes if each.proto <= 5}


class _Steps(dict):
    """What each opcode does, by its number; another one is refused."""

    def __missing__(self, code: int) -> None:
        name = _OPCODES.get(code, f"{code:#x}")
        raise FormatError(f"has a pickle with the opcode {name}, which no weights need", _SAVE_WEIGHTS)


class _Unpickler(_MACHINE):
    """Python's machine for pickles, in which names stand for themselves, and nothing is called or given a state.

    That in C, `pickle.Unpickler`, has no place to refuse a key of nested tuples, whose hash can take for ever, or a
    place of 2**32 in its memory, which it allocates.
    """

    def __init__(self, file: BinaryIO, **options: Any) -> None:
        super().__init__(file, **options)
        self.storages: set[Storage] = set()
        self.copied = 0

    def find_class(self, module: str, name: str) -> Other:
        """A name, if it is one of those that are known."""
        if module == "torch" and name.startswith(("float8_", "float4_")):
            raise small_float_error(f"tensors of {name[:100]}")
        is_storage = module in ("torch", "torch.storage") and _kind(name) in _STORAGES
        if not is_storage and (module, name) not in _KNOWN:
            raise FormatError(
                f"has a pickle that names `{module[:100]}.{name[:100]}`, and only tensors and containers are read; "
                "nothing of it was run",
                _SAVE_WEIGHTS,
            )
        return Other((module, name))

    def persistent_load(self, place: Any) -> Storage:
        """A storage, which stands outside of the pickle."""
        kind, dtype, key, _, count = place
        of_numbers = kind == "storage" and isinstance(dtype, Other) and _kind(dtype.name[1]) in _STORAGES
        if not (of_numbers and isinstance(key, str) and type(count) is int and 0 <= count < _LARGEST_HASHED):
            raise FormatError("is damaged: its pickle refers to something that is no storage of numbers")
        found = Storage(key, _STORAGES[_kind(dtype.name[1])], count)
        self.storages.add(found)
        return found

    def set_items(self, items: list[Any]) -> None:
        """Puts pairs of key and value into the dict on top."""
        found = _pairs(items[::2], items[1::2])
        if isinstance(self.stack[-1], dict):
            self.stack[-1].update(found)
        elif not isinstance(self.stack[-1], Other):
            raise _unexpected("a dict")

    def reduce(self) -> None:
        """Replaces the call of what is named; nothing is called."""
        arguments, made = self.stack.pop(), self.stack.pop()
        if not isinstance(made, Other) or not isinstance(arguments, tuple):
            raise _unexpected("a name and its arguments")
        self.copied += sum(len(part) for part in arguments if isinstance(part, (list, tuple, dict)))
        if self.copied > _MOST_COPIED:
            raise FormatError(f"has a pickle that copies more than {_MOST_COPIED} values, which no weights need")
        self.append(_call_result(made.name, arguments))

    def build(self) -> None:
        """Drops the state of what is on top, as the versions of modules that an OrderedDict carries."""
        self.stack.pop()
        if not isinstance(self.stack[-1], (dict, Other, TensorView)):
            raise _unexpected("an object")

    dispatch = _Steps({code: _MACHINE.dispatch[code] for code, name in _OPCODES.items() if name not in _REFUSED})
    dispatch[pickle.SETITEM[0]] = lambda self: self.set_items([self.stack.pop(-2), self.stack.pop()])
    dispatch[pickle.SETITEMS[0]] = lambda self: self.set_items(self.pop_mark())
    dispatch |= {pickle.REDUCE[0]: reduce, pickle.NEWOBJ[0]: reduce, pickle.BUILD[0]: build}
    # A set of unknown values is not made, as their hashes may take for ever; and bytes are enough for an array of them.
    dispatch |= {pickle.EMPTY_SET[0]: _MACHINE.load_empty_list, pickle.ADDITEMS[0]: _MACHINE.load_appends}
    dispatch |= {pickle.FROZENSET[0]: _MACHINE.load_list, pickle.BYTEARRAY8[0]: _MACHINE.load_binbytes8}


def _kind(name: object) -> str:
    """`"Float"` of `"FloatStorage"`."""
    return str(name).removesuffix("Storage")


def _call_result(name: _Global, arguments: tuple) -> Any:
    """What a call would give, of the few that give tensors or containers."""
    if name in _DICTS:
        given = arguments[-1] if arguments and isinstance(arguments[-1], (dict, list)) else {}
        pairs = list(given.items()) if isinstance(given, dict) else given
        return _pairs([key for key, _ in pairs], [value for _, value in pairs])
    if name in _TENSORS:
        return _tensor(name, *arguments)
    if name in _PARAMETERS:
        if not isinstance(arguments[0], TensorView):
            raise _unexpected("a tensor")
        return arguments[0]
    if name == _SIZE and not isinstance(arguments[0], (list, tuple)):  # a text is not counted by what it copies
        raise _unexpected("a list of sizes")
    return tuple(arguments[0]) if name == _SIZE else Other(name)


def _tensor(name: _Global, storage: Any, offset: Any, shape: Any, strides: Any, *others: Any) -> TensorView:
    """A tensor by the arguments of torch's function; in version 3 `others[2]` is the dtype, before the metadata."""
    dtype = storage.dtype if isinstance(storage, Storage) else ""
    if name[1].endswith("_v3") and len(others) > 2 and isinstance(others[2], Other):
        dtype = others[2].name[1]
    if bits := [str(bit)[:100] for part in others[2:] if isinstance(part, dict) for bit in part if part[bit]]:
        raise FormatError(
            f"has a tensor with the bit {bits[0]!r}, by which its numbers are others than those stored",
            "In a program with torch, save `tensor.resolve_conj().resolve_neg().clone()` of each tensor",
        )
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, Storage) or any(type(n) is not int or not 0 <= n < _LARGEST for n in numbers):
        raise FormatError("is damaged: a tensor of its pickle must have a storage, and sizes that are not negative")
    return TensorView(storage, dtype, offset, tuple(shape), tuple(strides))


def _pairs(keys: Any, values: Any) -> dict:
    if any(not isinstance(key, _SCALARS) or (isinstance(key, int) and abs(key) >= _LARGEST_HASHED) for key in keys):
        raise FormatError("has a pickle with a dict whose keys are neither texts nor small numbers", _SAVE_WEIGHTS)
    return dict(zip(keys, values, strict=True))


def _unexpected(wanted: str) -> FormatError:
    return FormatError(f"is damaged: its pickle has something else in the place of {wanted}")


_OTHER_ENTRIES = {"version", "byteorder", ".format_version", ".storage_alignment", ".data/serialization_id"}
_PICKLE = "data.pkl"
_PROGRAM = "constants.pkl"  # which TorchScript has with its code
PROGRAM_ADVICE = (  # OpenAI publishes such files of CLIP alone
    "Save `model.state_dict()` with `torch.save`. OpenAI's ViT-B-32.pt, ViT-B-16.pt, ViT-L-14.pt and ViT-L-14-336px.pt "
    "have the tensors of open_clip_model.safetensors in 'hf:timm/vit_base_patch32_clip_224.openai', "
    "'..._base_patch16_clip_224...', '..._large_patch14_clip_224...' and '..._large_patch14_clip_336...'"
)
_SAVE_AGAIN = "In a program with torch, load it with `weights_only=True`, and save it again with `torch.save`"
_SAVE_NUMPY = (
    "In a program that trusts it, load it with `torch.load(path, weights_only=False)`, which runs code of the file, "
    "save its arrays with `numpy.savez`, and pass that file"
)
# Bytes: an array takes about 150, and a list of the losses of a training 9 for each. One of this size takes at most
# 0.5 GB and some seconds.
_LARGEST_PICKLE = 4_000_000
_MOST_DEPTH, _MOST_VALUES = 8, 200_000  # of nested dicts; one that stands in another twice is counted twice


def is_torch_zip(start: bytes) -> bool:
    """Whether a zip begins as `torch.save` begins it: with the pickle."""
    return start[30 : 30 + _name_size(start)].endswith(f"/{_PICKLE}".encode())


def _name_size(data: bytes | FileBytes) -> int:
    """Bytes of the first member's name in a zip."""
    return int.from_bytes(data[26:28], "little")


def read_torch(file: BinaryIO, data: FileBytes) -> tuple[dict[str, Member], dict]:
    """Tensors by name, which for those in nested dicts is joined by dots; and no note.

    Args:
        file: the file, open.
        data: the bytes of the same file.

    Raises:
        FormatError: for anything else than what `torch.save` writes of tensors in dicts.
        Exception: whatever zipfile and pickletools raise for damaged bytes.
    """
    with open_zip(file) as archive:
        pickled, stored = _parts(archive, data)
    tree, storages = read_pickle(pickled)
    _check_storages(storages, stored)
    members: dict[str, Member] = {}
    for name, view in _views(tree):
        check_name(name)
        if name in members:
            raise FormatError(f"holds the name {name!r} twice")
        members[name] = _member(name, view, stored[view.storage.key])
    if not members:
        if b"numpy" in pickled:
            raise FormatError("holds arrays of NumPy, and no tensor in a dict of names", _SAVE_NUMPY)
        raise FormatError("holds no tensor in a dict of names", _SAVE_WEIGHTS)
    return members, {}


def _parts(archive: zipfile.ZipFile, data: FileBytes) -> tuple[bytes, dict[str, Member]]:
    """The pickle, and the storages by their keys; raises for members that torch does not write."""
    pickled, stored = b"", {}
    top = data[30 : 30 + _name_size(data)].decode().removesuffix(_PICKLE)
    for info, start in zip_members(archive, data):
        name = info.orig_filename.removeprefix(top)
        if info.compress_type:
            raise FormatError(f"holds {name!r} compressed, and torch stores its members as they are", _SAVE_AGAIN)
        if name == _PROGRAM:
            raise FormatError("is a TorchScript program, which has code", PROGRAM_ADVICE)
        if name == _PICKLE:
            pickled = _read_pickle_bytes(info, data, start)
        if name == "byteorder" and data[start : start + info.file_size] != b"little":
            raise FormatError("must have little-endian numbers", _SAVE_AGAIN)
        if name.startswith("data/"):
            entry = Entry((info.file_size,), np.dtype("u1"))
            stored[name.removeprefix("data/")] = Member(entry, start, info.file_size, info.file_size, crc=info.CRC)
        elif name not in (_PICKLE, *_OTHER_ENTRIES) or not info.orig_filename.startswith(top):
            raise FormatError(f"holds {name!r}, which torch.save does not write")
    return pickled, stored


def _read_pickle_bytes(info: zipfile.ZipInfo, data: FileBytes, start: int) -> bytes:
    if info.file_size > _LARGEST_PICKLE:
        raise FormatError(f"has a pickle of {info.file_size} bytes; {_LARGEST_PICKLE} is the limit", _SAVE_WEIGHTS)
    pickled = data[start : start + info.file_size]
    if zlib.crc32(pickled) != info.CRC:
        raise FormatError("is damaged: CRC-32 of its pickle differs")
    return pickled


def _check_storages(storages: set[Storage], stored: dict[str, Member]) -> None:
    """Raises unless pickle and zip have the same storages, of the same sizes."""
    for storage in storages:
        if storage.key not in stored:
            raise FormatError(f"is cut short or damaged: it lacks the storage {storage.key[:100]!r}")
        found, expected = stored[storage.key].size, storage.count * (_dtype(storage.dtype).itemsize)
        if found != expected:
            raise FormatError(
                f"is cut short or damaged: the storage {storage.key!r} must have {expected} bytes by the pickle, and "
                f"has {found}"
            )
    if unused := stored.keys() - {storage.key for storage in storages}:
        raise FormatError(f"holds the storage {min(unused)!r}, to which no tensor refers")


def _views(tree: Any) -> Iterator[tuple[str, TensorView]]:
    """All tensors in nested dicts, by the keys that lead to them."""
    queue, num_values = collections.deque([("", tree, 0)]), 1
    while queue:
        name, found, depth = queue.popleft()
        if isinstance(found, TensorView):
            yield name, found
        elif isinstance(found, dict) and found:
            num_values += len(found)
            longest = len(name) + bool(name) + max(len(str(key)) for key in found)
            if num_values > _MOST_VALUES or depth == _MOST_DEPTH or longest > LONGEST_NAME:
                raise FormatError(
                    f"has dicts nested deeper than {_MOST_DEPTH}, with more than {_MOST_VALUES} values, or of keys "
                    f"longer than {LONGEST_NAME} together, which no weights need"
                )
            queue += [(f"{name}.{key}" if name else str(key), value, depth + 1) for key, value in found.items()]


def _member(name: str, view: TensorView, stored: Member) -> Member:
    """Where a tensor lies; raises if it leaves its storage, or has two numbers in one place."""
    dtype = _dtype(view.dtype)
    entry = Entry(view.shape, dtype)
    size, count = byte_count(entry), stored.size // dtype.itemsize
    if len(view.shape) != len(view.strides):
        raise FormatError(f"is damaged: {name!r} has {len(view.shape)} axes and {len(view.strides)} strides")
    span = 1  # numbers from the first to the last one, both included
    for length, stride in sorted(zip(view.shape, view.strides, strict=True), key=lambda axis: axis[1]):
        if size and length > 1:
            if stride < span:
                raise FormatError(
                    f"holds {name!r}, whose numbers overlap, as after `expand`: it would be larger than what is stored",
                    "In a program with torch, save `tensor.contiguous()` of each tensor",
                )
            span += stride * (length - 1)
    if size and view.offset + span > count:
        raise FormatError(f"is cut short or damaged: {name!r} reaches beyond its storage of {count} numbers")
    # The stride of an axis of one place is never gone, and may be any number.
    axes = zip(view.shape, view.strides, strict=True)
    strides = tuple(stride * dtype.itemsize if size and length > 1 else 0 for length, stride in axes)
    offset = view.offset * dtype.itemsize if size else 0
    return Member(entry, stored.start, stored.size, size, crc=stored.crc, offset=offset, strides=strides)


def _dtype(name: str) -> np.dtype:
    """NumPy's dtype of torch's; bytes for a storage without one."""
    if name == "bfloat16":
        return BFLOAT16
    return np.dtype(name or "u1").newbyteorder("<")
