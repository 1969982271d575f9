"""Photos without TensorFlow have the pixels, values and reasons that they have with it."""

import itertools
import random

import numpy as np
import pytest
from pictures import chunk, encoded, picture, turned
from PIL import Image
from test_pillow_formats import KINDS
from test_validation import BAD, GOOD

from keras_vit.images.numpy_pipeline import decode_photo, preprocess, resize_to_levels
from keras_vit.images.pillow_formats import PillowError
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.images.read import ImageError, read_image

PIXELS = picture(33, 47, seed=3)
PHOTO = Image.fromarray(PIXELS)
INKS = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 60, 4), dtype="uint8"), "CMYK")
PNG = encoded(PHOTO, "PNG")
OTHERS = {
    "inks.jpg": encoded(INKS),
    "profile.jpg": encoded(PHOTO, icc_profile=b"x" * 3000),
    "grey alpha.png": encoded(PHOTO.convert("LA"), "PNG"),
    "two colours.png": encoded(PHOTO.convert("1"), "PNG"),
    "four colours.png": encoded(PHOTO.quantize(4), "PNG", bits=2),
    "transparent.png": encoded(PHOTO.quantize(7), "PNG", transparency=3),
    "no end.png": PNG[:-12],
    "wrong gamma.png": PNG[:33] + chunk(b"gAMA", b"\0\1\2\3")[:-1] + b"x" + PNG[33:],  # of a part that is passed over
    **{f"turned {turn}.jpg": turned(PIXELS, turn) for turn in range(1, 9)},
    **{
        f"{quality} {colours} {progressive}.jpg": encoded(
            PIXELS, quality=quality, subsampling=colours, progressive=progressive
        )
        for quality, colours, progressive in itertools.product((30, 95), ("4:4:4", "4:2:2", "4:2:0"), (False, True))
    },
}


def with_tensorflow(path, data, channels=3):
    """Pixels, or the reason why there are none."""
    path.write_bytes(data)
    try:
        return read_image(path, channels)
    except ImageError as error:
        return error.reason


def plain(data, channels=3):
    try:
        return decode_photo(data, channels)
    except PillowError as error:
        return str(error)


def test_photos_of_every_kind_have_the_same_pixels_or_reason(tmp_path):
    bad = {name: data for name, (data, _) in BAD.items()}
    for (name, data), channels in itertools.product((GOOD | bad | KINDS | OTHERS).items(), (3, 1)):
        expected = with_tensorflow(tmp_path / "photo", data, channels)
        assert (name in BAD or name == "no end.png") == isinstance(expected, str)
        np.testing.assert_array_equal(plain(data, channels), expected, name)


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_photos_have_the_same_pixels_or_reason(tmp_path, count):
    """But for one in 1,500: where damage looks like a marker, TensorFlow's libjpeg gives up, and Pillow's goes on."""
    chance, found, others = random.Random(1), set(), 0
    whole = [encoded(PIXELS, quality=85, progressive=progressive) for progressive in (False, True)] + [PNG]
    for number in range(count):
        data = bytearray(whole[number % len(whole)])
        for _ in range(chance.choice((1, 2, 5))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if number % 7 == 0:
            del data[chance.randrange(len(data)) :]
        expected = with_tensorflow(tmp_path / "photo", bytes(data))
        found.add(expected if isinstance(expected, str) else "pixels")
        others += not np.array_equal(plain(bytes(data)), expected)
    assert others <= count // 500
    assert found >= {"pixels", "damaged JPEG", "truncated JPEG", "damaged PNG", "truncated PNG"}


def records():
    sizes = ((32, 24), (56, 40))
    choices = itertools.product(sizes, ("squash", "crop"), ("bilinear", "bicubic", "area"), (False, True))
    for size, resize, interpolation, antialias in choices:
        for rounding in ("timm", "transformers", "big_vision") if resize == "crop" else ("timm",):
            fraction = 0.875 if resize == "crop" else 1.0
            named = {"interpolation": interpolation, "antialias": antialias, "crop_fraction": fraction}
            yield Preprocessing(size, resize, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), rounding=rounding, **named)
    yield Preprocessing(None)
    yield Preprocessing((32, 24), resize="none")


@pytest.mark.parametrize("shape", [(61, 97, 3), (300, 40, 3), (32, 24, 3), (23, 31, 1)])
def test_prepared_values_are_those_of_the_record(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype="uint8")
    beyond, numbers = 0, 0
    for record in records():
        expected, found = np.asarray(record(pixels)), preprocess(pixels, record)
        assert (found.shape, found.dtype) == (expected.shape, "float32")
        difference = np.abs(found - expected)
        # Where levels are whole, a sum near a half may be rounded the other way, by one level of 1 / 255 / 0.224.
        rounds = record.interpolation == "bicubic" or record.rounding == "big_vision"
        assert difference.max() < (0.018 if rounds else 1e-4), record  # 1e-4: sums of 300 numbers, without antialias 0
        beyond, numbers = beyond + (difference > 1e-4).sum(), numbers + difference.size
    assert beyond < 1e-4 * numbers


def test_squashed_photo_is_bitwise_that_of_the_record():
    """The preprocessing of the paper's weights, on a photo that is shrunk and one that grows."""
    for side in (16, 224):
        record = Preprocessing((side, side))
        np.testing.assert_array_equal(preprocess(PIXELS, record), record(PIXELS))


def test_a_large_photo_is_resized_in_strips_to_the_same_values(monkeypatch):
    record = Preprocessing((20, 28), "crop", interpolation="bicubic", antialias=True, crop_fraction=0.9)
    whole = preprocess(PIXELS, record)
    monkeypatch.setattr("keras_vit.images.numpy_pipeline._STRIP", 500)
    np.testing.assert_allclose(preprocess(PIXELS, record), whole, atol=1e-6)


def test_grey_levels_are_the_values_before_they_are_scaled():
    record = Preprocessing((20, 28), mean=(0.0,) * 3, std=(1 / 255,) * 3)
    levels = resize_to_levels(PIXELS, record)
    assert levels.dtype == np.uint8
    np.testing.assert_array_equal(levels, np.rint(np.asarray(record(PIXELS))))


def test_a_picture_without_pillow_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(ImportError, match=r"PIL must be installed(?s:.*)\[data\]"):
        decode_photo(PNG)
