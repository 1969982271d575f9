"""Files of torch put together by hand, in the layout of `torch.save`, since no test needs torch itself."""

import collections
import contextlib
import io
import pickle
import sys
import types
from unittest import mock

import numpy as np
from forged import zipped

KINDS = {"float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "float64": "Double", "int64": "Long"}


def _stand_in():
    """Modules by the names that a pickle of torch has, of which only names are used."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch.Size = type("Size", (), {"__module__": "torch"})
    for kind in KINDS.values():
        setattr(torch, f"{kind}Storage", type(f"{kind}Storage", (), {"__module__": "torch"}))
    for version in ("", "_v2", "_v3"):
        rebuild = types.FunctionType((lambda *arguments: None).__code__, {}, f"_rebuild_tensor{version}")
        rebuild.__module__, rebuild.__qualname__ = "torch._utils", rebuild.__name__
        setattr(utils, rebuild.__name__, rebuild)
    return {"torch": torch, "torch._utils": utils}


MODULES = _stand_in()


class Stored:
    """Numbers of which tensors are views; what a pickle says of their count may be another number."""

    def __init__(self, array, key, count=None):
        self.array, self.key = np.ascontiguousarray(array), key
        self.count = self.array.size if count is None else count


class Tensor:
    """A view of stored numbers, as the pickle has it."""

    def __init__(self, stored, shape=None, strides=None, offset=0, **bits):
        self.stored, self.offset, self.bits = stored, offset, bits
        self.shape = stored.array.shape if shape is None else shape
        whole = [s // stored.array.itemsize for s in stored.array.strides]
        self.strides = tuple(whole if strides is None else strides)

    def __reduce__(self):
        rebuild = MODULES["torch._utils"]._rebuild_tensor_v2
        others = (False, collections.OrderedDict(), *([self.bits] if self.bits else []))
        return rebuild, (self.stored, self.offset, self.shape, self.strides, *others)


class Call:
    """Something that a pickle makes by calling a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def size_of_torch(sides):
    return Call(MODULES["torch"].Size, sides)


class _Pickler(pickle.Pickler):
    def persistent_id(self, found):
        if isinstance(found, Stored):
            kind = getattr(MODULES["torch"], f"{KINDS[found.array.dtype.name]}Storage")
            return "storage", kind, found.key, "cpu", found.count
        return None


def pickled(tree, protocol=2):
    file = io.BytesIO()
    with mock.patch.dict(sys.modules, MODULES), contextlib.closing(file):
        _Pickler(file, protocol).dump(tree)
        return file.getvalue()


def members_of(tree, stored, protocol=2):
    """The members of the zip, by name: a pickle of the tree, and these storages."""
    parts = {"data.pkl": pickled(tree, protocol), "byteorder": b"little"}
    parts |= {f"data/{one.key}": one.array.tobytes() for one in stored} | {"version": b"3\n"}
    return {f"archive/{name}": data for name, data in parts.items()}


def write_torch(path, arrays, wrap=lambda tensors: tensors, protocol=2, **others):
    """Writes arrays by name as torch would; `wrap` puts the dict of tensors into others."""
    stored = [Stored(array, str(number)) for number, array in enumerate(arrays.values())]
    tensors = collections.OrderedDict((name, Tensor(one)) for name, one in zip(arrays, stored, strict=True))
    return zipped(path, members_of(wrap(tensors), stored, protocol).items(), **others)
