import io
import re
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import chunk, decoded, disguised, encoded, forged_png, picture, sixteen_bit, turned, with_texts
from PIL import Image, ImageOps

from keras_vit.images.decode import apply_orientation, decode_image, decode_window

PIXELS = picture()
JPEG, PNG = encoded(PIXELS, quality=90), encoded(PIXELS, "PNG")
ALPHA = np.dstack([PIXELS, picture(channels=1, seed=1)])
in_graph = tf.function(decode_image)


@pytest.mark.parametrize(
    "data",
    [
        JPEG,
        encoded(PIXELS, progressive=True),
        encoded(PIXELS[..., 0]),
        encoded(Image.fromarray(PIXELS).convert("CMYK"), quality=95),
        encoded(PIXELS, subsampling=0),
        PNG,
        encoded(PIXELS[..., 0], "PNG"),
        encoded(Image.fromarray(PIXELS).quantize(17), "PNG"),
        encoded(PIXELS[..., 0] > 128, "PNG"),
    ],
    ids=["rgb", "progressive", "grey", "cmyk", "no subsampling", "png", "grey png", "palette", "one bit"],
)
def test_file_decodes_as_pillow_decodes_it(data):
    # Both use the accurate integer transform of libjpeg; other versions of it may round one level apart. PNG is exact.
    apart = np.abs(in_graph(tf.constant(data)).numpy().astype(int) - decoded(data)).max()
    assert apart <= (0 if data.startswith(PNG[:4]) else 1)


def test_alpha_is_dropped():
    np.testing.assert_array_equal(in_graph(tf.constant(encoded(ALPHA, "PNG"))), PIXELS)


def test_of_sixteen_bits_the_high_byte_is_kept():
    pixels, data = sixteen_bit()
    np.testing.assert_array_equal(in_graph(tf.constant(data)), np.repeat(pixels[..., None] >> 8, 3, -1))


@pytest.mark.parametrize("data", [PNG, encoded(PIXELS[..., 0], "PNG")], ids=["rgb", "grey"])
def test_one_channel_is_the_grey_of_pillow(data):
    np.testing.assert_array_equal(decode_image(tf.constant(data), channels=1)[..., 0], decoded(data, "L"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_turns_as_pillow_turns(orientation):
    image = Image.open(io.BytesIO(turned(PIXELS, orientation, "PNG")))
    expected = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(decode_image(tf.constant(PNG), tf.constant(orientation)), expected)
    whole = decode_window(tf.constant(PNG), lambda height, width: (0, 0, height, width), tf.constant(orientation))
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("orientation", [0, -3, 9])
def test_orientation_that_means_nothing_turns_nothing(orientation):
    np.testing.assert_array_equal(apply_orientation(tf.constant(PIXELS), tf.constant(orientation)), PIXELS)


WINDOWS = [(3, 7, 31, 19), (0, 0, 1, 1), (17, 20, 6, 5), (21, 9, 24, 8)]


@pytest.mark.parametrize("data", [encoded(PIXELS, subsampling=0), PNG], ids=["jpeg", "png"])
@pytest.mark.parametrize(
    ("orientation", "window"),
    [  # each orientation with one of the windows; the product is nightly
        pytest.param(turn or None, window, marks=() if turn % 4 == place else pytest.mark.nightly)
        for turn in range(9)
        for place, window in enumerate(WINDOWS)
    ],
)
def test_window_is_that_part_of_the_whole(data, orientation, window):
    orientation = None if orientation is None else tf.constant(orientation)
    y, x, h, w = window
    whole = decode_image(tf.constant(data), orientation)
    part = decode_window(tf.constant(data), tuple(map(tf.constant, window)), orientation)
    np.testing.assert_array_equal(part, whole[y : y + h, x : x + w])


@pytest.mark.parametrize("window", [(3, 7, 31, 19), (17, 20, 6, 5), (0, 0, 45, 67)])
def test_window_of_a_jpeg_with_halved_colours_differs_at_two_edges_only(window):
    y, x, h, w = window
    part = decode_window(tf.constant(JPEG), tuple(map(tf.constant, window)))
    whole = decode_image(tf.constant(JPEG))[y : y + h, x : x + w]
    np.testing.assert_array_equal(part[:-1, :-1], whole[:-1, :-1])


@pytest.mark.parametrize("size", [(20000, 20000), (2**31 - 1, 3), (8193, 8192), (0, 5)])
def test_size_is_refused_from_the_header(size):
    with pytest.raises(tf.errors.InvalidArgumentError, match="67108864 pixels"):
        in_graph(tf.constant(forged_png(*size)))


@pytest.mark.parametrize("kind", [b"abCd", b"tEXt", b"IDAT"])
def test_png_must_begin_with_its_header(kind):
    for decode in (decode_image, in_graph, lambda data: decode_window(data, (0, 0, 1, 1))):
        with pytest.raises(tf.errors.InvalidArgumentError, match="only JPEG and PNG"):
            decode(tf.constant(disguised(PNG, kind)))


def test_packed_texts_of_a_png_are_not_unpacked():
    data = tf.constant(with_texts(PNG, 90))
    for decode in (decode_image, in_graph):
        decode(tf.constant(PNG))  # which traces
        before = time.process_time()
        np.testing.assert_array_equal(decode(data), PIXELS)
        assert time.process_time() - before < 1  # unpacked they take 2.6 s


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is Linux's")
def test_pixel_bomb_costs_no_memory():
    # The file is whole: 20,000 x 20,000 grey pixels in 48 kB, which would take 1.2 GB.
    side, packer = 20_000, zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 + side // 8)) for _ in range(side)) + packer.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    assert len(bomb) < 60_000
    decode_image(tf.constant(PNG))
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak until now
    before = peak()
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode_image(tf.constant(bomb))
    assert peak() - before < 50_000


def peak():
    """Of this process' memory, in kB."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


@settings(max_examples=300, deadline=None)
@given(
    png=st.booleans(), places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1), cut=st.floats(0, 1)
)
def test_mutated_file_gives_pixels_or_the_documented_error(png, places, cut):
    data = bytearray(PNG if png else JPEG)
    for place, value in places:
        data[int(place * (len(data) - 1))] = value
    data = bytes(data[: len(data) if cut > 0.5 else int(2 * cut * len(data))])
    try:
        pixels = in_graph(tf.constant(data))
    except tf.errors.InvalidArgumentError:
        return
    assert pixels.dtype == tf.uint8
    assert pixels.shape[-1] == 3
