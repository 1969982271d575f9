"""Checkpoint files put together by hand, where NumPy and safetensors would write none such."""

import io
import json
import struct
import warnings
import zipfile

import numpy as np


def npy(array, **replaced):
    """The bytes of an `.npy`, with fields of its header replaced."""
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape} | replaced
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


def npy_with_text(text, data=b"\0" * 12):
    """An `.npy` of version 1 with any header text."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def zipped(path, members, compression=zipfile.ZIP_STORED):
    """Writes a zip of `(name, bytes)`, also with names twice."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as archive:
        warnings.simplefilter("ignore")  # of duplicate names, which are the point
        for name, data in members:
            archive.writestr(name, data)
    return path


def patched(path, offset, form, value, magic=b"PK\x01\x02"):
    """Overwrites one number of the first zip record with this signature; of the directory by default."""
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, data.index(magic) + offset, value)
    path.write_bytes(data)


def safetensors(path, header, data=b""):
    """Writes a safetensors file with this header, a dict or text."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path
