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
    """Writes a zip of `(name, bytes)`, also with names twice; of one date, so that bytes do not change with time."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as archive:
        warnings.simplefilter("ignore")  # of duplicate names, which are the point
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return path


def deflated(path, body, size, crc=0):
    """Writes a zip of the one member `a.npy`, whose deflated bytes and what is said of them need not agree."""
    said = (0, 0, crc, len(body), size, 5)  # time, date, CRC-32, two sizes, length of the name
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 8, *said, 0) + b"a.npy"
    central = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 8, *said, *[0] * 6) + b"a.npy"
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, len(central), len(local + body), 0)
    path.write_bytes(local + body + central + end)


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
