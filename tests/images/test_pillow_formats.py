"""WebP, BMP and HEIC give the same pixels in a check, a photo that is read, a pipeline and a graph."""

import contextlib
import dataclasses
import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from pictures import encoded, picture
from PIL import Image

from keras_vit.data import load_dataset, open_source
from keras_vit.images.decode import decode_image
from keras_vit.images.headers import exif_orientation
from keras_vit.images.pillow_formats import PillowError, container_format, pillow_format, to_png, to_png_in_graph
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.images.read import read_image
from keras_vit.images.validation import BadImage, check_image

PIXELS = picture(24, 37)
ALPHA = Image.fromarray(np.dstack([PIXELS, PIXELS[..., 0] // 2]))
FRAMES = [Image.fromarray(picture(24, 37, seed=seed)) for seed in (1, 2, 3)]
TURNED = Image.Exif()
TURNED[0x0112] = 6
LOSSLESS = {
    "plain.bmp": encoded(PIXELS, "BMP"),
    "alpha.BMP": encoded(ALPHA, "BMP"),
    "lossless.WebP": encoded(PIXELS, "WEBP", lossless=True),
    "alpha.webp": encoded(ALPHA, "WEBP", lossless=True, exact=True),
    "a webp.jpg": encoded(PIXELS, "WEBP", lossless=True),
}
KINDS = LOSSLESS | {
    "grey.bmp": encoded(PIXELS[..., 0], "BMP"),
    "palette.bmp": encoded(Image.fromarray(PIXELS).quantize(9), "BMP"),
    "lossy.webp": encoded(PIXELS, "WEBP", quality=80),
    "animated.webp": encoded(FRAMES[0], "WEBP", save_all=True, append_images=FRAMES[1:], lossless=True),
    "turned.webp": encoded(PIXELS, "WEBP", lossless=True, exif=TURNED.tobytes()),
    "cmyk.jpg": encoded(Image.fromarray(PIXELS).convert("CMYK")),
    "plain.png": encoded(PIXELS, "PNG"),
}


def written(folder, files=KINDS):
    """The files below two class folders, which all hold each kind."""
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
        for name, data in files.items():
            (folder / label / name).write_bytes(data + label.encode())  # after the end, where no decoder looks
    return folder


@pytest.mark.parametrize("channels", [1, 3])
def test_training_prediction_and_graph_have_the_same_pixels_of_every_kind(tmp_path, channels):
    source = open_source(written(tmp_path))
    assert sum(source.sizes.values()) == 2 * len(KINDS)
    record = dataclasses.replace(Preprocessing(), image_size=None, mean=(0.0,) * channels, std=(1 / 255,) * channels)
    split = "train+validation+test"
    batches = load_dataset(source, split, batch_size=1, preprocessing=record)
    for row, (images, _) in zip(source.rows(split), batches, strict=True):
        pixels = read_image(row["path"], channels)
        np.testing.assert_array_equal(np.round(images[0].numpy()), pixels)
        if channels == 3:
            np.testing.assert_array_equal(source.pixels(split, row["index"]), pixels)
        data = Path(row["path"]).read_bytes()
        turn = tf.constant(exif_orientation(data))
        np.testing.assert_array_equal(decode_image(to_png_in_graph(tf.constant(data)), turn, channels), pixels)


def test_pixels_are_those_that_were_written(tmp_path):
    for name, data in KINDS.items():
        (tmp_path / name).write_bytes(data)
    for name in LOSSLESS:
        np.testing.assert_array_equal(read_image(tmp_path / name), PIXELS)
    np.testing.assert_array_equal(read_image(tmp_path / "turned.webp"), np.rot90(PIXELS, -1))
    np.testing.assert_array_equal(read_image(tmp_path / "animated.webp"), np.asarray(FRAMES[0]))
    assert np.abs(read_image(tmp_path / "lossy.webp").astype(int) - PIXELS).mean() < 40  # of noise, which is hard


@pytest.mark.parametrize("kind", ["WEBP", "BMP"])
def test_every_truncation_and_damage_is_reported(kind):
    data, rng = encoded(PIXELS, kind), np.random.default_rng(0)
    for cut in range(20, len(data) - 1, max(len(data) // 60, 1)):
        with pytest.raises(PillowError, match=r"damaged or truncated|more than|no pixels"):
            to_png(data[:cut])
    for _ in range(100):
        changed = bytearray(data)
        for place in rng.integers(14, 60, 3):
            changed[place] = rng.integers(256)
        with contextlib.suppress(PillowError):  # the one error that may come
            to_png(bytes(changed))


def test_huge_picture_is_refused_by_its_header():
    bmp, webp = bytearray(encoded(PIXELS, "BMP")), bytearray(encoded(PIXELS, "WEBP", lossless=True))
    bmp[18:26] = struct.pack("<ii", 20_000, -20_000)
    webp[21:25] = struct.pack("<I", (16_000 - 1) | (16_000 - 1) << 14)
    for data, pixels in ((bmp, "400,000,000"), (webp, "256,000,000")):
        with pytest.raises(PillowError, match=f"{pixels} pixels, more than the 67,108,864 of"):
            to_png(bytes(data))


def test_kind_is_known_by_the_first_bytes():
    assert pillow_format(b"BMW is a car of many colours") is None
    assert pillow_format(KINDS["plain.png"]) is None
    assert to_png(KINDS["plain.png"]) == KINDS["plain.png"]
    for brand, kind in ((b"heic", "HEIC"), (b"mif1", "HEIC"), (b"avif", "AVIF"), (b"isom", "video")):
        assert container_format(b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0" + brand + b"miaf") == kind
    assert container_format(b"\0\0\0\x18ftypmif1\0\0\0\0avifmiaf") == "AVIF"


def test_heic_is_read_where_its_plugin_is_there(tmp_path):
    plugin = pytest.importorskip("pillow_heif")
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number, name in enumerate(("x.heic", "y.HEIF", "z.jpg")):
            pixels = np.kron(picture(4, 6, seed=[number, ord(label)]), np.ones((16, 16, 1), "uint8"))
            plugin.from_pillow(Image.fromarray(pixels)).save(tmp_path / label / name, quality=90)
            assert np.abs(read_image(tmp_path / label / name).astype(int) - pixels).mean() < 12  # of HEVC at 90
    source = open_source(tmp_path)
    batches = load_dataset(
        source, "train", batch_size=1, preprocessing=dataclasses.replace(Preprocessing(), image_size=None)
    )
    for row, (images, _) in zip(source.rows("train"), batches, strict=True):
        np.testing.assert_allclose(images[0], read_image(row["path"]) / 127.5 - 1, atol=1e-6)  # float32


def test_kind_whose_package_is_missing_is_left_out_with_its_name(tmp_path, monkeypatch):
    missing = {"WebP": "Pillow", "HEIC": "pillow-heif"}
    monkeypatch.setattr("keras_vit.images.validation.missing_package", missing.get)
    monkeypatch.setattr("keras_vit.images.pillow_formats.missing_package", missing.get)
    (tmp_path / "x.webp").write_bytes(KINDS["lossy.webp"])
    assert check_image(tmp_path / "x.webp") == BadImage(str(tmp_path / "x.webp"), "WebP, which needs Pillow")
    (tmp_path / "y.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0heicmif1")
    with pytest.raises(ImportError, match=r"HEIC needs pillow-heif(?s:.*)\[heic\]"):
        read_image(tmp_path / "y.heic")
