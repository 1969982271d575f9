"""What stands before the pixels of a JPEG or PNG, in a graph and outside of it: orientation, scans and texts."""

import io

import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pictures import chunk, encoded, picture, turned, with_scans
from PIL import Image

from keras_vit.images.headers import MAX_SCANS, MAX_STEPS, exif_orientation, read_header, respects_limits, without_texts

PIXELS = picture(9, 11)
in_graph = tf.function(read_header, input_signature=[tf.TensorSpec((), tf.string)])
BIG_ENDIAN = (
    b"MM\0*\0\0\0\x08\0\x02" + b"\x01\x00\0\x03\0\0\0\x01\0\x63\0\0" + b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0" + bytes(4)
)
# Of types that EXIF does not allow and Pillow reads: of 4 bytes, and signed.
LONG, SIGNED, SIGNED_LONG = (
    BIG_ENDIAN[:24] + b"\0" + bytes([kind]) + b"\0\0\0\x01" + value + bytes(4)
    for kind, value in ((4, b"\0\0\0\x06"), (8, b"\0\x06\0\0"), (9, b"\0\0\0\x06"))
)
LITTLE_LONG = b"II*\0\x08\0\0\0\x01\0\x12\x01\x04\0\x01\0\0\0\x06\0\0\0" + bytes(4)
LARGE_LONG = LITTLE_LONG[:20] + b"\x01" + LITTLE_LONG[21:]  # 65,542, whose first 2 bytes are 6
BIG_JPEG, BIG_PNG = (encoded(PIXELS, kind, exif=b"Exif\0\0" + BIG_ENDIAN) for kind in ("JPEG", "PNG"))


def found(data):
    said = in_graph(tf.constant(data))
    assert respects_limits(data) == bool(said.within_limits)
    return int(said.orientation), bool(said.one_scan)


def orientations(data):
    """As it is read in a graph and outside of it."""
    return found(data)[0], exif_orientation(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_is_what_pillow_has_written(kind, value):
    assert orientations(turned(PIXELS, value, kind)) == (value, value)


@pytest.mark.parametrize("block", [BIG_ENDIAN, LONG, SIGNED, SIGNED_LONG, LITTLE_LONG, LARGE_LONG])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_orientation_of_either_order_and_any_type_is_that_of_pillow(block, kind):
    data = encoded(PIXELS, kind, exif=b"Exif\0\0" + block)
    value = Image.open(io.BytesIO(data)).getexif()[0x0112]
    assert value == (65542 if block is LARGE_LONG else 6)
    assert orientations(data) == ((1, 1) if value > 8 else (6, 6))


@pytest.mark.parametrize("data", [encoded(PIXELS), encoded(PIXELS, "PNG"), turned(PIXELS, 9), turned(PIXELS, 0)])
def test_orientation_is_upright_where_nothing_sensible_is_said(data):
    assert orientations(data) == (1, 1)


@pytest.mark.parametrize("data", [b"", b"text"])
def test_what_is_no_image_is_upright(data):
    assert exif_orientation(data) == 1


def test_chunk_after_the_pixels_of_a_png_is_found():
    data, chunk = encoded(PIXELS, "PNG"), BIG_PNG[BIG_PNG.index(b"eXIf") - 4 :][: 12 + len(BIG_ENDIAN)]
    data = data[:-12] + chunk + data[-12:]
    assert orientations(data) == (6, 6)


def test_fill_bytes_before_a_segment_are_passed():
    data = turned(PIXELS, 8)
    data = data[:2] + b"\xff" * 5 + data[2:]
    assert orientations(data) == (8, 8)


def test_first_of_two_blocks_is_the_one_that_counts():
    data, other = turned(PIXELS, 8), turned(PIXELS, 3)
    start = other.index(b"\xff\xe1")
    block = other[start : start + 2 + int.from_bytes(other[start + 2 : start + 4], "big")]
    start = data.index(b"\xff\xe1")
    end = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    for place, expected in ((end, 8), (start, 3)):
        both = data[:place] + block + data[place:]
        assert orientations(both) == (expected, expected)


SEEDS = [*(turned(PIXELS, value, kind) for value in (6, 3) for kind in ("JPEG", "PNG")), BIG_JPEG, BIG_PNG]


@settings(max_examples=400, deadline=None)
@given(
    data=st.sampled_from(SEEDS),
    changes=st.lists(st.tuples(st.integers(8, 130), st.integers(0, 255)), max_size=6),
    length=st.integers(33, 160),
)
@example(SEEDS[0], [], 40)
@example(SEEDS[1], [(33, 255)], 160)
def test_damaged_block_gives_one_orientation_in_a_graph_and_outside_of_it(data, changes, length):
    data = bytearray(data)
    for place, value in changes:
        data[place] = value
    first, second = orientations(bytes(data[:length]))
    assert first == second
    assert 1 <= first <= 8


@pytest.mark.parametrize("data", SEEDS)
def test_block_cut_anywhere_gives_one_orientation_in_a_graph_and_outside_of_it(data):
    for length in range(33, 110):
        first, second = orientations(data[:length])
        assert first == second


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encoded(PIXELS), True),
        (encoded(PIXELS[..., 0]), True),
        (turned(PIXELS, 6), True),
        (encoded(PIXELS, "PNG"), True),
        (encoded(PIXELS, progressive=True), False),
        (encoded(PIXELS[..., 0], progressive=True), False),
    ],
    ids=["rgb", "grey", "turned", "png", "progressive", "progressive grey"],
)
def test_a_file_of_one_scan_is_distinguished_from_one_of_several(data, expected):
    assert found(data)[1] is expected


def test_first_scan_of_one_colour_of_three_means_several_scans():
    data = bytearray(encoded(PIXELS))
    data[data.index(b"\xff\xda") + 4] = 1
    assert found(bytes(data))[1] is False


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_no_more_segments_or_chunks_are_looked_at_than_the_limit(kind):
    data = turned(PIXELS, 6, kind)
    place, part = (2, b"\xff\xe2\0\2") if kind == "JPEG" else (data.index(b"eXIf") - 4, chunk(b"abCd", b""))
    for count, expected in ((MAX_STEPS - 2, 6), (MAX_STEPS, 1)):
        assert orientations(data[:place] + part * count + data[place:]) == (expected, expected)


def test_a_marker_that_no_length_follows_proves_nothing_after_it():
    data = encoded(PIXELS)
    assert found(data[:2] + b"\xff\xd0\0\2" + data[2:])[1] is False


def few(data):
    found(data)
    return respects_limits(data)


def of_scans(count):
    return with_scans(encoded(PIXELS, progressive=True), count)


@pytest.mark.parametrize("hidden", [b"", b"\xff\xd0\xff\xd0", b"\0"], ids=["plain", "lone marker", "no marker"])
def test_scans_are_counted(hidden):
    for count, expected in ((MAX_SCANS, True), (MAX_SCANS + 1, False)):
        data = of_scans(count)
        after = 4 + int.from_bytes(data[4:6], "big")  # the first segment
        assert few(data[:after] + hidden + data[after:]) is expected


def test_scans_are_counted_over_the_bounds_of_pieces(monkeypatch):
    monkeypatch.setattr("keras_vit.images.headers._PIECE", 7)
    count = tf.function(lambda data: read_header(data).within_limits)
    assert count(tf.constant(of_scans(MAX_SCANS)))
    assert not count(tf.constant(of_scans(MAX_SCANS + 1)))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_file_of_too_many_parts_is_reported(kind):
    data, part = encoded(PIXELS, kind), {"JPEG": b"\xff\xe2\0\2", "PNG": b"\0\0\0\0abCd\0\0\0\0"}[kind]
    place = {"JPEG": 2, "PNG": 33}[kind]
    assert few(data[:place] + part * 900 + data[place:])
    assert not few(data[:place] + part * MAX_STEPS + data[place:])


@pytest.mark.parametrize("place", [33, -12], ids=["before the pixels", "after them"])
def test_texts_of_a_png_are_left_out_and_nothing_else(place):
    data = BIG_PNG
    texts = b"".join(b"\0\0\0\5" + name + b"a\0\0bcCRC " for name in (b"zTXt", b"iTXt"))
    given = data[:place] + texts + data[place:]
    assert tf.function(without_texts)(tf.constant(given)).numpy() == data
    assert without_texts(tf.constant(given)).numpy() == without_texts(tf.constant(data)).numpy() == data
