import dataclasses
import functools
import io
import time

import numpy as np
import pytest
import tensorflow as tf
from conftest import make_tiny, numpy
from exporting.served import RECORDS, make_job, with_record
from pictures import (
    chunk,
    decoded,
    disguised,
    encoded,
    forged_png,
    picture,
    sixteen_bit,
    turned,
    with_scans,
    with_texts,
)
from PIL import Image, ImageOps

from keras_vit.exporting import serving_inputs
from keras_vit.exporting.serving_inputs import MAX_SIDE, STATUSES, prepare_files, prepare_pixels, takes_files
from keras_vit.images.decode import decode_image

PIXELS = picture()
JPEG, PNG = encoded(PIXELS, quality=90), encoded(PIXELS, "PNG")
# "bicubic" and "squash" are tested each, so their pair is for the slow run.
some_records = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "bicubic squash" else name for name in RECORDS]
)
LEVEL = 1 / 127.5  # of grey, as the model sees it
BAD = {
    "empty": b"",
    "too many bytes": JPEG + bytes(2**17),
    "not a JPEG or PNG": encoded(PIXELS, "GIF"),
    "too many pixels": forged_png(20000, 20000),
    "damaged": JPEG[:400],
}
NOT_ONES = [BAD["not a JPEG or PNG"], disguised(PNG), disguised(forged_png(20000, 20000)), PNG[:32]]


@functools.cache
def prepared_by(name, channels=3):
    """The model, and its preparation of files as a traced function."""
    spec = make_job(with_record(name, input_shape=(20, 28, channels), num_layers=1))
    files = tf.function(lambda files: prepare_files(files, spec), input_signature=[tf.TensorSpec((None,), tf.string)])
    return spec.model, lambda *given: [tensor.numpy() for tensor in files(tf.constant(given, tf.string))]


@functools.cache
def pixels_by(name):
    """The model, and its preparation of pixels as a traced function."""
    spec, pixels = make_job(with_record(name, num_layers=1)), tf.TensorSpec((None, None, None, 3), tf.uint8)
    return spec.model, tf.function(lambda pixels: prepare_pixels(pixels, spec), input_signature=[pixels])


def check_same(name, found, wanted):
    """Bilinear rounds nowhere; bicubic to grey levels, and of a number between two of them either may come out."""
    difference = np.abs(found - wanted)
    assert difference.max() < (1.01 * LEVEL if "bicubic" in name else 2e-6)
    assert (difference > 2e-6).mean() < 0.003  # 0.0012 where products take AVX2


def words(codes):
    return [list(STATUSES)[code] for code in codes]


def expected(model, pixels):
    return numpy(model.preprocessing(pixels[None]))[0]


@some_records
def test_png_is_prepared_as_the_model_prepares_its_pixels(name):
    model, prepare = prepared_by(name)
    pictures = [picture(*size) for size in [(45, 67), (67, 45), (20, 28), (9, 11), (211, 157)]]
    images, codes = prepare(*(encoded(pixels, "PNG") for pixels in pictures))
    assert set(words(codes)) == {"ok"}
    check_same(name, images, np.stack([expected(model, pixels) for pixels in pictures]))


@some_records
def test_photo_is_turned_before_it_is_resized_and_cut(name):
    model, prepare = prepared_by(name)
    files = [turned(PIXELS, orientation, "PNG") for orientation in range(1, 9)]
    upright = [np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file)))) for file in files]
    check_same(name, prepare(*files)[0], np.stack([expected(model, pixels) for pixels in upright]))


@pytest.mark.parametrize("name", ["crop", "bicubic"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_strips_give_what_the_whole_gives(name, orientation, monkeypatch):
    record = with_record(name).preprocessing
    stored, turn = tf.constant(PIXELS), tf.constant(orientation)
    whole = serving_inputs.prepare_stored(stored, turn, record)
    monkeypatch.setattr(serving_inputs, "STRIP", 7 * 67)  # 45 and 67 rows are no multiples of it
    check_same(name, serving_inputs.prepare_stored(stored, turn, record).numpy(), whole.numpy())


@pytest.mark.parametrize(
    "data",
    [
        JPEG,
        encoded(PIXELS, progressive=True),
        encoded(PIXELS[..., 0]),
        encoded(Image.fromarray(PIXELS).convert("CMYK"), quality=95),
        encoded(np.dstack([PIXELS, picture(channels=1, seed=1)]), "PNG"),
        encoded(Image.fromarray(PIXELS).quantize(17), "PNG"),
        sixteen_bit()[1],
    ],
    ids=["rgb", "progressive", "grey", "cmyk", "alpha", "palette", "16 bit"],
)
def test_file_of_any_kind_is_decoded_as_in_training(data):
    model, prepare = prepared_by("squash")
    (image,), codes = prepare(data)
    assert words(codes) == ["ok"]
    np.testing.assert_allclose(image, expected(model, decode_image(tf.constant(data)).numpy()), atol=2e-6)


@pytest.mark.parametrize("name", ["squash", "bicubic"])
def test_model_of_grey_gets_the_grey_of_pillow(name):
    model, prepare = prepared_by(name, channels=1)
    (image,), _ = prepare(PNG)
    check_same(name, image, expected(model, decoded(PNG, "L")[..., None]))


@pytest.mark.parametrize("status", BAD)
def test_bad_file_has_its_status_and_a_black_image(status):
    _, prepare = prepared_by("squash")
    images, codes = prepare(BAD[status])
    assert words(codes) == [status]
    assert not images.any()


def test_every_status_is_tested():
    assert set(STATUSES) == {"ok", "wrong size", "too many parts", *BAD}


@pytest.mark.parametrize(
    "data",
    [JPEG[:3], JPEG[:-2], PNG[:-20], PNG[:60], forged_png(0, 5)],
    ids=["start", "without end", "png cut", "png start", "no rows"],
)
def test_what_only_the_decoder_can_know_is_damage(data):
    assert words(prepared_by("squash")[1](data)[1]) == ["damaged"]


def test_bad_files_leave_every_bit_of_the_others():
    _, prepare = prepared_by("bicubic")
    good = [encoded(picture(40 + n, 50, seed=n), "PNG") for n in range(4)]
    alone, _ = prepare(*good)
    mixed = [file for pair in zip(good, list(BAD.values())[:4], strict=True) for file in pair]
    images, codes = prepare(*mixed)
    np.testing.assert_array_equal(images[::2], alone)
    assert words(codes) == [word for status in list(BAD)[:4] for word in ("ok", status)]


def test_more_files_or_pixels_than_the_limit_are_an_error():
    _, prepare = prepared_by("squash")
    assert words(prepare(*[b""] * 128)[1]) == ["empty"] * 128
    for call in (lambda: prepare(*[b""] * 100_000), lambda: pixels_by("squash")[1](np.zeros((129, 1, 1, 3), "uint8"))):
        with pytest.raises(tf.errors.InvalidArgumentError, match="at most 128 images"):
            call()


def test_no_file_gives_no_image():
    images, codes = prepared_by("squash")[1]()
    assert images.shape == (0, 20, 28, 3)
    assert codes.shape == (0,)


@pytest.mark.parametrize("progressive", [False, True])
def test_pixels_of_several_scans_count_three_times(progressive):
    _, prepare = prepared_by("squash")
    data = encoded(Image.new("RGB", (601, 587)), progressive=progressive)  # 352,787 pixels of 1,048,576
    assert words(prepare(data)[1]) == ["too many pixels" if progressive else "ok"]


def test_png_must_begin_with_its_header():
    assert words(prepared_by("squash")[1](*NOT_ONES)[1]) == ["not a JPEG or PNG"] * len(NOT_ONES)


def test_packed_texts_of_a_png_are_not_unpacked():
    _, prepare = prepared_by("squash")
    bomb = with_texts(PNG, 17)
    prepare(PNG)  # which traces
    before = time.process_time()
    images, codes = prepare(PNG, *[bomb] * 5)
    assert time.process_time() - before < 1  # unpacked they take 2.5 s
    assert words(codes) == ["ok"] * 6
    assert (images == images[0]).all()


def test_files_of_thousands_of_parts_are_refused():
    data = with_scans(encoded(PIXELS, progressive=True), 900)
    chunks = PNG[:33] + chunk(b"abCd", b"") * 4097 + PNG[33:]
    assert words(prepared_by("squash")[1](data, chunks, PNG)[1]) == ["too many parts"] * 2 + ["ok"]


@pytest.mark.parametrize(("side", "status"), [(MAX_SIDE, "ok"), (MAX_SIDE + 1, "too many pixels")])
def test_a_side_is_limited_too(side, status):
    _, prepare = prepared_by("crop")
    assert words(prepare(encoded(Image.new("L", (3, side)), "PNG"))[1]) == [status]


def test_record_that_never_resizes_refuses_another_size():
    model = make_tiny()
    model.preprocessing = dataclasses.replace(model.preprocessing, resize="none")
    exact = picture(20, 28)
    files = tf.constant([encoded(exact, "PNG"), PNG, turned(np.rot90(exact), 6, "PNG")])
    images, codes = tf.function(lambda files: prepare_files(files, make_job(model)))(files)
    assert words(codes) == ["ok", "wrong size", "ok"]
    np.testing.assert_allclose(images[0], expected(model, exact), atol=2e-6)
    np.testing.assert_array_equal(images[2], images[0])


def test_files_need_colours_or_grey():
    assert takes_files(make_job(make_tiny(input_shape=(20, 28, 1))))
    assert not takes_files(make_job(make_tiny(input_shape=(20, 28, 5))))


@pytest.mark.parametrize(
    ("name", "size"), [("squash", (45, 67)), ("squash", (20, 28)), ("crop", (20, 28)), ("bicubic", (45, 67))]
)
def test_pixels_are_prepared_as_the_model_prepares_them(name, size):
    model, prepare = pixels_by(name)
    pixels = np.stack([picture(*size, seed=seed) for seed in range(3)])
    check_same(name, prepare(pixels).numpy(), numpy(model.preprocessing(pixels)))


@pytest.mark.parametrize("size", [(1500, 900), (3, MAX_SIDE + 1), (0, 5)], ids=str)
def test_pixels_beyond_the_limits_are_an_error(size):
    with pytest.raises(tf.errors.InvalidArgumentError, match="1 to 1048576 pixels"):
        pixels_by("squash")[1](np.zeros((1, *size, 3), "uint8"))
