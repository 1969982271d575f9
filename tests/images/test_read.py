"""Files of every kind become upright RGB of 8 bits, and what is none is refused with its reason (rows B7, B8, N13)."""

import io
import os

import numpy as np
import pytest
from photos import photo
from pictures import forged_png, picture, turned
from PIL import Image, ImageOps

import keras_vit
from keras_vit.images.decode import MAX_PIXELS
from keras_vit.images.headers import exif_orientation
from keras_vit.images.read import ImageError, read_image


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        *((wrong, TypeError, "`path`") for wrong in ((b"photo.jpg",), (None,), (5,))),
        (("",), ValueError, "path=''"),
        (("photo.jpg", 4), ValueError, "channels=4"),
        (("photo.jpg", 3, (0, 8)), ValueError, "least_size=0"),
        (("photo.jpg", 3, "small"), TypeError, "least_size='small'"),
    ],
)
def test_what_is_no_path_is_reported_by_its_name(arguments, error, words):
    with pytest.raises(error, match=words):
        keras_vit.read_image(*arguments)


def test_places_without_a_photo_are_reported_and_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    for name, reason in (("pipe.jpg", "a pipe, not a regular file"), (".", "a folder, not an image")):
        with pytest.raises(ImageError, match=reason) as caught:
            read_image(tmp_path / name)
        assert caught.value.reason == reason
    with pytest.raises(FileNotFoundError, match=r"`path`(?s:.*)no\.jpg"):
        read_image(tmp_path / "no.jpg")


@pytest.mark.parametrize("side", [int(MAX_PIXELS**0.5) + 1, 10_000, 20_000, 60_000])
def test_huge_image_is_refused_by_its_header(tmp_path, side):  # B8
    (tmp_path / "huge.png").write_bytes(forged_png(side, side))
    with pytest.raises(
        ValueError, match=f"too large(?s:.*){side**2:,} pixels, more than the 67,108,864 of KERAS_VIT_MAX_PIXELS"
    ):
        read_image(tmp_path / "huge.png")


def test_kinds_of_images_become_upright_rgb_of_8_bits(tmp_path):  # B7
    pixels = photo("disc", np.random.default_rng(0))
    image, grey = Image.fromarray(pixels), Image.fromarray(pixels).convert("L")
    kinds = {"rgb.png": image, "alpha.png": image.convert("RGBA"), "rgb.bmp": image}
    for name, kind in kinds.items():
        kind.save(tmp_path / name)
        assert (read_image(tmp_path / name) == pixels).all()
    grey.save(tmp_path / "grey.png")
    Image.fromarray(np.asarray(grey).astype("uint16") * 256 + 77).save(tmp_path / "deep.png")
    for name in ("grey.png", "deep.png"):
        assert (read_image(tmp_path / name) == np.asarray(grey)[..., None].repeat(3, -1)).all()
    image.convert("P").save(tmp_path / "palette.png")
    image.convert("CMYK").save(tmp_path / "cmyk.jpg")
    image.save(tmp_path / "photo.webp", lossless=True)
    assert (read_image(tmp_path / "photo.webp") == pixels).all()
    for name in ("palette.png", "cmyk.jpg"):
        assert read_image(tmp_path / name).shape == pixels.shape


def test_photo_held_sideways_is_turned(tmp_path):  # B7
    pixels = photo("tiles", np.random.default_rng(0))
    (tmp_path / "turned.png").write_bytes(turned(pixels, 6, "PNG"))  # the camera was turned to the left
    assert (read_image(tmp_path / "turned.png") == np.rot90(pixels, -1)).all()


def test_large_jpeg_is_decoded_smaller_where_its_sides_allow_it(tmp_path):
    """As Pillow's `draft` has it from libjpeg. EXIF's 6 turns the picture: its height is the width as stored."""
    pixels = picture(96, 160, seed=5)
    for turn, least, ratio in (
        (1, (12, 20), 8),
        (1, (13, 1), 4),  # a row more than an eighth has
        (1, 48, 2),
        (1, (96, 160), 1),
        (1, (97, 1), 1),
        (6, (20, 12), 8),
        (6, (12, 20), 4),
    ):
        (tmp_path / "x.jpg").write_bytes(turned(pixels, turn))
        with Image.open(tmp_path / "x.jpg") as image:
            image.draft("RGB", (160 // ratio, 96 // ratio))
            expected = np.rot90(np.asarray(image), -1 if turn == 6 else 0)
        np.testing.assert_array_equal(read_image(tmp_path / "x.jpg", 3, least), expected)


def test_smaller_pixels_are_means_of_squares(tmp_path):
    pixels = picture(96, 160, seed=5)
    Image.fromarray(pixels).save(tmp_path / "x.jpg", quality=100, subsampling="4:4:4")
    means = pixels.reshape(12, 8, 20, 8, 3).mean(axis=(1, 3))
    # Three roundings, to YCbCr, of frequencies and to RGB, of a level and a half each.
    np.testing.assert_allclose(read_image(tmp_path / "x.jpg", 3, (12, 20)), means, atol=3)


def test_photo_whose_sides_cannot_be_divided_keeps_them_and_so_does_a_png(tmp_path):
    """Else the last pixel would stand for less than the others, and all would shift."""
    for shape, ratio in (((97, 160), 1), ((98, 160), 2), ((100, 156), 4)):
        (tmp_path / "x").write_bytes(turned(picture(*shape), 1))
        assert read_image(tmp_path / "x", 3, 1).shape[:2] == (shape[0] // ratio, shape[1] // ratio)
    (tmp_path / "x").write_bytes(turned(picture(96, 160), 1, "PNG"))
    assert read_image(tmp_path / "x", 3, 1).shape == (96, 160, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_image_cut_short_is_refused(tmp_path, kind):  # B7
    path = tmp_path / "x"
    Image.fromarray(photo("disc", np.random.default_rng(0))).save(path, kind)
    path.write_bytes(path.read_bytes()[:-600])
    with pytest.raises(ValueError, match=f"truncated {kind}"):
        read_image(path)


@pytest.mark.parametrize("kind", ["WEBP", "BMP"])
def test_other_formats_are_refused_if_huge_or_cut_short(tmp_path, kind, monkeypatch):  # B7, B8
    path = tmp_path / "x"
    Image.fromarray(photo("disc", np.random.default_rng(0))).save(path, kind)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="damaged or truncated"):
        read_image(path)
    path.write_bytes(whole)
    monkeypatch.setenv("KERAS_VIT_MAX_PIXELS", "4319")  # of 60 x 72
    with pytest.raises(ValueError, match=r"4,320 pixels, more than the 4,319"):
        read_image(path)
    monkeypatch.setenv("KERAS_VIT_MAX_PIXELS", "4320")
    assert read_image(path).shape == (60, 72, 3)
    monkeypatch.setenv("KERAS_VIT_MAX_PIXELS", "178956971")
    with pytest.raises(ValueError, match="from 1 to 178,956,970"):
        read_image(path)


def test_grey_models_get_grey_as_in_training(tmp_path):  # B7
    pixels = photo("disc", np.random.default_rng(0))
    for name in ("x.png", "x.bmp"):
        Image.fromarray(pixels).save(tmp_path / name)
        assert (read_image(tmp_path / name, 1)[..., 0] == np.asarray(Image.fromarray(pixels).convert("L"))).all()


def odd_orientation(kind):
    """A JPEG whose EXIF says 6 as no camera does: as LONG; or which says it in XMP alone. Pillow turns both."""
    image = Image.fromarray(photo("tiles", np.random.default_rng(0)))
    file = io.BytesIO()
    if kind == "xmp":
        xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="6"/></x:xmpmeta>'
        image.save(file, "JPEG", xmp=xmp)
    else:
        entry = b"\x12\x01\x04\0\x01\0\0\0\x06\0\0\0"
        image.save(file, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0" + entry + bytes(4))
    return file.getvalue()


@pytest.mark.parametrize(("kind", "orientation"), [("xmp", 1), ("long", 6)])
def test_a_photo_is_read_as_training_reads_it(tmp_path, kind, orientation):
    """And as a served model does; `ImageOps.exif_transpose` would turn one by XMP too."""
    path = tmp_path / "x.jpg"
    path.write_bytes(odd_orientation(kind))
    assert exif_orientation(path.read_bytes()) == orientation
    with Image.open(path) as image:
        turned = ImageOps.exif_transpose(image)
        assert (read_image(path) == np.asarray(image if orientation == 1 else turned)).all()
        assert not np.array_equal(turned, image)


def test_gif_is_no_format_of_ours(tmp_path):
    Image.new("RGB", (9, 9)).save(tmp_path / "x.gif")
    with pytest.raises(ValueError, match="JPEG, PNG, WebP, BMP or HEIC"):
        read_image(tmp_path / "x.gif")
    Image.new("RGB", (9, 9)).save(tmp_path / "x.tif")
    (tmp_path / "x.tif").rename(tmp_path / "x.cr2")
    with pytest.raises(ImageError, match="CR2, not JPEG"):
        read_image(tmp_path / "x.cr2")
