"""The orientation in the EXIF block of a JPEG, PNG or WebP, which tells how the camera was held.

Pillow is not used, since a damaged block must cause neither an error nor a warning, in any thread.
"""

from collections.abc import Iterator
from typing import Literal

from keras_vit.images.segments import JPEG_START, MAX_STEPS, PNG_START

_ORDERS: dict[bytes, Literal["little", "big"]] = {b"II*\0": "little", b"MM\0*": "big"}
_ORIENTATION, _SHORT = 0x0112, 3  # tag and type of the entry


def orientation(data: bytes) -> int:
    """The EXIF orientation, 1 to 8; 1, upright, if it is missing or invalid.

    Args:
        data: the bytes of a file.
    """
    if data.startswith(JPEG_START):
        value = _from_tiff(_in_jpeg(data))
    elif data.startswith(PNG_START):
        value = _from_tiff(_in_png(data))
    else:
        value = _from_tiff(_in_webp(data)) if data[8:12] == b"WEBP" else 1
    return value if 1 <= value <= 8 else 1


def jpeg_segments(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """`(marker, start, stop)` of each segment of a JPEG before its pixels, at most `MAX_STEPS`.

    The content lies from start to stop. A stop behind the end of the data belongs to a truncated segment.

    Args:
        data: the bytes of a file.
    """
    place = 2
    for _ in range(MAX_STEPS):
        if data[place : place + 1] != b"\xff":
            break
        marker = data[place + 1 : place + 2]
        if marker == b"\xff":  # a fill byte
            place += 1
            continue
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        if marker in (b"\xda", b"\xd9", b"") or length < 2:  # pixels, or the end
            break
        yield marker, place + 4, place + 2 + length
        place += 2 + length


def _in_jpeg(data: bytes) -> bytes:
    """The TIFF block in the segment APP1; empty if there is none."""
    for marker, start, stop in jpeg_segments(data):
        if marker == b"\xe1" and data[start : start + 6] == b"Exif\0\0":
            return data[start + 6 : stop]
    return b""


def _in_png(data: bytes) -> bytes:
    """The content of the chunk eXIf; empty if there is none."""
    place = len(PNG_START)
    for _ in range(MAX_STEPS):
        if place + 8 > len(data):
            break
        length = int.from_bytes(data[place : place + 4], "big")
        if data[place + 4 : place + 8] == b"eXIf":
            return data[place + 8 : place + 8 + length]
        place += 12 + length  # length, kind and checksum take 4 bytes each
    return b""


def _in_webp(data: bytes) -> bytes:
    """The content of the chunk EXIF, without the mark of a JPEG that some writers put first; empty if there is none."""
    place = 12
    for _ in range(MAX_STEPS):
        if place + 8 > len(data):
            break
        length = int.from_bytes(data[place + 4 : place + 8], "little")
        if data[place : place + 4] == b"EXIF":
            return data[place + 8 : place + 8 + length].removeprefix(b"Exif\0\0")
        place += 8 + length + length % 2  # chunks begin at even places
    return b""


def _from_tiff(block: bytes) -> int:
    order = _ORDERS.get(block[:4])
    if order is None:
        return 1
    directory = int.from_bytes(block[4:8], order)
    entries = int.from_bytes(block[directory : directory + 2], order)
    for start in range(directory + 2, min(directory + 2 + 12 * entries, len(block) - 11), 12):
        tag, kind = (int.from_bytes(block[start + i : start + i + 2], order) for i in (0, 2))
        if tag == _ORIENTATION:
            return int.from_bytes(block[start + 8 : start + 10], order) if kind == _SHORT else 1
    return 1
