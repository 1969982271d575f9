"""The header of a JPEG or PNG, read by TensorFlow's string operations, so also in a served graph; and EXIF.

The limits of training, predicting and serving are defined here. The orientation equals that of
`exif_orientation` in plain Python, also for damaged files. Only `MAX_STEPS` segments are read, since a file of
millions of empty segments would keep a server busy.
"""

import collections
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Literal

from keras_vit.annotations import Tensor

JPEG_START = b"\xff\xd8\xff"
PNG_START = b"\x89PNG\r\n\x1a\n"
HEADER = b"\0\0\0\x0dIHDR"  # follows PNG_START: size and kind of the first chunk; libpng accepts any chunk there
PNG_HEADER_END = 33  # first byte after that chunk
MAX_STEPS = 4096  # segments of a JPEG or chunks of a PNG; a photo of 8 MB in chunks of 8 kB has 1,024
MAX_SCANS = 64  # of a JPEG; progressive ones have about 10. Each passes over the whole picture, even an empty one
TEXTS = ("zTXt", "iTXt")  # compressed chunks; libpng unpacks 7 kB to 7 MB
_PIECE = 2**18  # bytes that are searched at a time
_FRAMES = (0xC0, 0xCF)  # markers SOF0 to SOF15; three of them have another meaning
_NOT_FRAMES = (0xC4, 0xC8, 0xCC)
_SEQUENTIAL = 0xC1  # last marker of a frame with Huffman codes that is not progressive
_START, _END, _EXIF = 0xDA, 0xD9, 0xE1
_LONE = (0x01, *range(0xD0, 0xD9))  # markers without a length
_ORIENTATION = 0x0112  # tag of the entry
_SHORTS, _LONGS = (3, 8), (4, 9, 13)  # its types, of 2 and of 4 bytes; it should be 3, and Pillow reads them all

HeaderFacts = collections.namedtuple("HeaderFacts", "orientation one_scan within_limits")


def is_jpeg(data: Tensor) -> Tensor:
    """Whether a file, a string scalar, starts as a JPEG."""
    import tensorflow as tf

    return tf.strings.substr(data, 0, len(JPEG_START)) == JPEG_START


def is_png(data: Tensor) -> Tensor:
    """Whether a file starts as a PNG and with its header, from which `stored_size` reads."""
    import tensorflow as tf

    start = PNG_START + HEADER
    return (tf.strings.substr(data, 0, len(start)) == start) & (tf.strings.length(data) >= PNG_HEADER_END)


def stored_size(data: Tensor) -> Tensor:
    """`(H, W)` from the header of a file that `is_jpeg` or `is_png`, int32 `(2,)`."""
    import tensorflow as tf

    def png() -> Tensor:
        sides = tf.io.decode_raw(tf.strings.substr(data, 16, 8), tf.int32, little_endian=False)
        return sides[::-1]

    return tf.ensure_shape(tf.cond(is_jpeg(data), lambda: tf.io.extract_jpeg_shape(data)[:2], png), (2,))


def _in_a_graph(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """Traces a function of one file once for eager calls, in which its loops would take 100 times as long."""

    @functools.cache
    def traced() -> Any:
        import tensorflow as tf

        return tf.function(function, input_signature=[tf.TensorSpec((), tf.string)], autograph=False)

    @functools.wraps(function)
    def called(data: Tensor) -> Any:
        import tensorflow as tf

        return (traced() if tf.executing_eagerly() else function)(data)

    return called


@_in_a_graph
def read_header(data: Tensor) -> HeaderFacts:
    """What the bytes of a JPEG or PNG say before the pixels, as scalars.

    `orientation` is the int32 of EXIF, 1 to 8. `one_scan` is true for a PNG and for a JPEG that certainly has a single
    scan. For several scans, as in progressive files, libjpeg keeps the coefficients of the whole picture in memory.
    `within_limits` is true if it respects `MAX_STEPS` and `MAX_SCANS`.
    """
    import tensorflow as tf

    start, stop, *facts = tf.cond(is_jpeg(data), lambda: _in_jpeg(data), lambda: _in_png(data))
    stop = tf.minimum(stop, _length(data))
    block = tf.strings.substr(data, tf.minimum(start, stop), tf.maximum(stop - start, 0))
    return HeaderFacts(_from_tiff(block), *facts)


def respects_limits(data: bytes) -> bool:
    """`read_header(data).within_limits` without a graph, whose first call takes 0.34 s and others 0.014 s."""
    return _has_few_scans(data) if data.startswith(JPEG_START) else len([*png_chunks(data)]) <= MAX_STEPS


def _has_few_scans(data: bytes) -> bool:
    """Step by step as `_in_jpeg`."""
    place, scans_from, components, plain = 2, 2, 0, True
    for _ in range(MAX_STEPS):
        there = len(data) - place
        start, marker, *rest = data[place : place + 12].ljust(12, b"\0")
        size = rest[0] * 256 + rest[1] if there >= 4 else rest[0]
        is_segment, is_fill = start == 0xFF and there > 0, marker == 0xFF and there > 1
        plain = plain and is_segment and marker not in _LONE
        if plain and marker == _START and components > 0 and rest[2] == components:
            return True
        if is_segment and _FRAMES[0] <= marker <= _FRAMES[1] and marker not in _NOT_FRAMES:
            components = rest[7] if marker <= _SEQUENTIAL else -1
        if not is_segment or not (is_fill or (marker not in (_START, _END) and there > 1 and size >= 2)):
            return data.count(bytes((0xFF, _START)), scans_from) <= MAX_SCANS
        place = min(place + (1 if is_fill else 2 + size), len(data))
        scans_from = place if plain else scans_from
    return False


@_in_a_graph
def without_texts(data: Tensor) -> Tensor:
    """A PNG without its `TEXTS`, as a string scalar; if it has any, only its first `MAX_STEPS` chunks."""
    import tensorflow as tf

    def step(place: Tensor, size: Tensor, kind: Tensor, texts: Tensor) -> tuple[Tensor]:
        return (texts | _is_text(kind),)

    _, has_texts = _over_chunks(data, step, tf.constant(False))
    return tf.cond(has_texts, lambda: _other_chunks(data), lambda: data)


def _other_chunks(data: Tensor) -> Tensor:
    import tensorflow as tf

    def step(place: Tensor, size: Tensor, kind: Tensor, count: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        part = tf.strings.substr(data, place, tf.where(_is_text(kind), tf.constant(0, tf.int64), 12 + size))
        return count + 1, parts.write(count, part)

    parts = tf.TensorArray(tf.string, 0, dynamic_size=True, element_shape=())
    *_, parts = _over_chunks(data, step, tf.constant(0), parts)
    return tf.strings.join([tf.constant(PNG_START), tf.strings.reduce_join(parts.stack())])


def _in_jpeg(data: Tensor) -> tuple[Tensor, ...]:
    """Start and stop of the TIFF block in the segment APP1, and the other facts of `read_header`."""
    import tensorflow as tf

    length = _length(data)

    def step(
        place: Tensor,
        going: Tensor,
        start: Tensor,
        stop: Tensor,
        components: Tensor,
        one_scan: Tensor,
        scans_from: Tensor,
        plain: Tensor,
    ) -> tuple[Tensor, ...]:
        head = tf.strings.substr(data, place, 12)
        there = _length(head)
        bytes_ = tf.cast(
            tf.io.decode_raw(head, tf.uint8, fixed_length=12), tf.int64
        )  # zeros follow the end of the file
        marker, size = bytes_[1], bytes_[2] * 256 + bytes_[3]
        size = tf.where(there >= 4, size, bytes_[2])  # as `exif_orientation` reads a truncated number
        is_segment, fill = (bytes_[0] == 0xFF) & (there > 0), (marker == 0xFF) & (there > 1)
        frame = (marker >= _FRAMES[0]) & (marker <= _FRAMES[1]) & tf.reduce_all(marker != _NOT_FRAMES)
        ends = (marker == _START) | (marker == _END) | (there < 2) | (size < 2)
        exif = (marker == _EXIF) & (there >= 10) & tf.reduce_all(bytes_[4:10] == list(b"Exif\0\0"))
        exif &= is_segment & ~fill & ~ends & (stop == 0)
        plain &= is_segment & tf.reduce_all(marker != _LONE)  # otherwise libjpeg may see other segments from here on
        one_scan |= plain & (marker == _START) & (components > 0) & (bytes_[4] == components)
        components = tf.where(is_segment & frame, tf.where(marker <= _SEQUENTIAL, bytes_[9], -1), components)
        start, stop = tf.where(exif, place + 10, start), tf.where(exif, place + 2 + size, stop)
        going = is_segment & (fill | ~ends)
        place = tf.minimum(place + tf.where(fill, tf.constant(1, tf.int64), 2 + size), length)
        return place, going, start, stop, components, one_scan, tf.where(going & plain, place, scans_from), plain

    two, none, yes, no = tf.constant(2, tf.int64), tf.constant(0, tf.int64), tf.constant(True), tf.constant(False)
    _, going, start, stop, _, one_scan, scans_from, _ = _loop(step, (two, yes, none, none, none, no, two, yes))
    within_limits = tf.cond(one_scan, lambda: yes, lambda: _scans(data, scans_from) <= MAX_SCANS)
    return start, stop, one_scan, within_limits & ~going


def _scans(data: Tensor, place: Tensor) -> Tensor:
    """Number of scans from `place` on, int32; it may be too high, since the marker's bytes may also be data."""
    import tensorflow as tf

    def step(place: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        piece = tf.io.decode_raw(tf.strings.substr(data, place, tf.constant(_PIECE + 1, tf.int64)), tf.uint8)
        begins = (piece[:-1] == 0xFF) & (piece[1:] == _START)
        return place + _PIECE, count + tf.reduce_sum(tf.cast(begins, tf.int32))

    def go_on(place: Tensor, count: Tensor) -> Tensor:
        return (place < _length(data)) & (count <= MAX_SCANS)

    return tf.while_loop(go_on, step, (place, tf.constant(0)), parallel_iterations=1)[1]


def _in_png(data: Tensor) -> tuple[Tensor, ...]:
    """Start and stop of the content of the chunk eXIf, and the other facts of `read_header`."""
    import tensorflow as tf

    def step(place: Tensor, size: Tensor, kind: Tensor, start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
        here = (kind == b"eXIf") & (stop == 0)
        return tf.where(here, place + 8, start), tf.where(here, place + 8 + size, stop)

    none = tf.constant(0, tf.int64)
    going, start, stop = _over_chunks(data, step, none, none)
    return start, stop, tf.constant(True), ~going


def _over_chunks(data: Tensor, step: Callable[..., tuple[Tensor, ...]], *state: Tensor) -> tuple[Tensor, ...]:
    """Repeats `step(place, size, kind, *state)` for the chunks of a PNG: whether there are more, and the state."""
    import tensorflow as tf

    def over_one(place: Tensor, going: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        size, kind = _number(data, place, 4, little=False), tf.strings.substr(data, place + 4, 4)
        after = place + 12 + size  # length, kind and checksum take 4 bytes each
        return after, after + 8 <= _length(data), *step(place, size, kind, *state)

    first = tf.constant(len(PNG_START), tf.int64)
    return _loop(over_one, (first, first + 8 <= _length(data), *state))[1:]


def _is_text(kind: Tensor) -> Tensor:
    return (kind == TEXTS[0]) | (kind == TEXTS[1])


def _loop(step: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Repeats `step` while the second part of the state is true, at most `MAX_STEPS` times."""
    import tensorflow as tf

    def go_on(place: Tensor, going: Tensor, *rest: Tensor) -> Tensor:
        return going

    return tf.while_loop(go_on, step, state, parallel_iterations=1, maximum_iterations=MAX_STEPS)


def _from_tiff(block: Tensor) -> Tensor:
    import tensorflow as tf

    order = tf.strings.substr(block, 0, 4)
    little, big = order == b"II*\0", order == b"MM\0*"
    directory = _number(block, 4, 4, little)
    entries = _number(block, directory, 2, little)
    whole = tf.maximum((_length(block) - directory - 2) // 12, 0)
    entries = tf.where(little | big, tf.minimum(entries, whole), 0)
    start = tf.minimum(directory + 2, _length(block))
    table = tf.io.decode_raw(tf.strings.substr(block, start, 12 * entries), tf.uint8)
    table = tf.cast(tf.reshape(table, (-1, 12)), tf.int32)
    table = tf.concat([table, tf.zeros((1, 12), tf.int32)], 0)  # an empty entry, so that there is at least one

    def number(first: int) -> Tensor:
        """The number in two bytes of each entry."""
        one, other = table[:, first], table[:, first + 1]
        return tf.where(little, other * 256 + one, one * 256 + other)

    row = tf.argmax(number(0) == _ORIENTATION)  # the first of several
    kind, first, second = (number(place)[row] for place in (2, 8, 10))
    whole = tf.where(little, first + second * 65536, first * 65536 + second)
    value = tf.where(tf.reduce_any(kind == _SHORTS), first, tf.where(tf.reduce_any(kind == _LONGS), whole, 1))
    right = (number(0)[row] == _ORIENTATION) & (value >= 1) & (value <= 8)
    return tf.where(right, value, 1)


def _number(data: Tensor, place: Tensor, count: int, little: Tensor) -> Tensor:
    """The int64 in `count` bytes from `place`, or in fewer at the end of the data."""
    import tensorflow as tf

    place = tf.minimum(tf.cast(place, tf.int64), _length(data))
    digits = tf.io.decode_raw(tf.strings.substr(data, place, tf.constant(count, tf.int64)), tf.uint8)
    steps = tf.range(tf.size(digits, tf.int64))
    powers = tf.where(little, steps, tf.size(digits, tf.int64) - 1 - steps)
    return tf.reduce_sum(tf.bitwise.left_shift(tf.cast(digits, tf.int64), 8 * powers))


def _length(data: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.cast(tf.strings.length(data), tf.int64)


_ORDERS: dict[bytes, Literal["little", "big"]] = {b"II*\0": "little", b"MM\0*": "big"}


def exif_orientation(data: bytes) -> int:
    """The EXIF orientation in the bytes of a file, 1 to 8; 1, upright, if it is missing or invalid."""
    start, stop = next(_exif_places(data), (0, 0))
    value = _orientation_in_tiff(data[start:stop])
    return value if 1 <= value <= 8 else 1


def _exif_places(data: bytes) -> Iterator[tuple[int, int]]:
    """Start and stop of each TIFF block: in APP1 of a JPEG, in eXIf of a PNG, and in EXIF of a WebP."""
    if data.startswith(JPEG_START):
        for marker, start, stop in jpeg_segments(data):
            if marker == b"\xe1" and data.startswith(b"Exif\0\0", start):
                yield start + 6, stop
    elif data.startswith(PNG_START):
        chunks = itertools.islice(png_chunks(data), MAX_STEPS)
        yield from ((start, stop) for kind, start, stop in chunks if kind == b"eXIf")
    elif data[8:12] == b"WEBP":
        place = 12
        for _ in range(MAX_STEPS):
            if place + 8 > len(data):
                break
            stop = place + 8 + int.from_bytes(data[place + 4 : place + 8], "little")
            if data[place : place + 4] == b"EXIF":  # some writers put the mark of a JPEG first
                yield place + 8 + 6 * data.startswith(b"Exif\0\0", place + 8, stop), stop
            place = stop + stop % 2  # chunks begin at even places


def jpeg_segments(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """`(marker, start, stop)` of each segment of a JPEG before its pixels, at most `MAX_STEPS`.

    The content lies from start to stop. A stop after the end of the data belongs to a truncated segment.
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


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """`(kind, start, stop)` of each chunk of a PNG, one more than `MAX_STEPS` at most; its checksum follows."""
    place = len(PNG_START)
    for _ in range(MAX_STEPS + 1):
        if place + 8 > len(data):
            break
        stop = place + 8 + int.from_bytes(data[place : place + 4])
        yield data[place + 4 : place + 8], place + 8, stop
        place = stop + 4


def _orientation_in_tiff(block: bytes) -> int:
    order = _ORDERS.get(block[:4])
    if order is None:
        return 1
    directory = int.from_bytes(block[4:8], order)
    entries = int.from_bytes(block[directory : directory + 2], order)
    for start in range(directory + 2, min(directory + 2 + 12 * entries, len(block) - 11), 12):
        tag, kind = (int.from_bytes(block[start + i : start + i + 2], order) for i in (0, 2))
        if tag == _ORIENTATION:
            size = 2 if kind in _SHORTS else 4
            return int.from_bytes(block[start + 8 : start + 8 + size], order) if kind in _SHORTS + _LONGS else 1
    return 1
