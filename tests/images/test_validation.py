import dataclasses
import io
import os

import numpy as np
import pytest
import tensorflow as tf
from pictures import chunk, disguised, encoded, forged_png, picture, sixteen_bit, turned, with_scans, with_texts
from PIL import Image

from keras_vit.images import validation
from keras_vit.images.decode import decode_image
from keras_vit.images.headers import MAX_SCANS, MAX_STEPS
from keras_vit.images.pillow_formats import READABLE_KINDS
from keras_vit.images.read import ImageError, read_image
from keras_vit.images.validation import BadImage, ValidImage, check_image, check_images

PIXELS = picture()
JPEG, PNG = encoded(PIXELS, quality=90), encoded(PIXELS, "PNG")
PROGRESSIVE = encoded(PIXELS, progressive=True)
MANY = "more than 64 scans or 4,096 segments"
CHUNKS = "more than 4,096 chunks"
GOOD = {
    "texts.png": with_texts(PNG, 2),
    "scans.jpg": with_scans(PROGRESSIVE, MAX_SCANS),
    "grey.jpg": encoded(PIXELS[..., 0]),
    "cmyk.jpg": encoded(Image.fromarray(PIXELS).convert("CMYK")),
    "alpha.png": encoded(np.dstack([PIXELS, PIXELS[..., 0]]), "PNG"),
    "sixteen.png": sixteen_bit()[1],
    "palette.png": encoded(Image.fromarray(PIXELS).quantize(9), "PNG"),
    "a png.jpg": PNG,
    "turned.jpg": turned(PIXELS, 6),
}
BAD = {
    "half.jpg": (JPEG[: len(JPEG) // 2], "truncated JPEG"),
    "end.jpg": (JPEG[:-2], "truncated JPEG"),
    "half.png": (PNG[: len(PNG) // 2], "truncated PNG"),
    "damaged.png": (PNG[:60] + bytes(20) + PNG[80:], "damaged PNG"),
    "damaged.jpg": (JPEG[:2] + b"\xff\xdb\0\x03\0" + JPEG[2:], "damaged JPEG"),
    "empty.jpg": (b"", "empty file"),
    "text.jpg": (b"<html>not found</html>\n", "not an image: text"),
    "noise.jpg": (bytes(range(256)), "not an image"),
    "gif.jpg": (encoded(PIXELS, "GIF"), f"GIF, not {READABLE_KINDS}"),
    "tiff.jpg": (encoded(PIXELS, "TIFF"), f"TIFF, not {READABLE_KINDS}"),
    "avif.jpg": (b"\0\0\0\x18ftypavif\0\0\0\0avifmiaf", f"AVIF, not {READABLE_KINDS}"),
    "cut.webp": (encoded(PIXELS, "WEBP")[:-90], "damaged or truncated WebP"),
    "bomb.png": (forged_png(20000, 20000), "400,000,000 pixels, more than the 67,108,864 of KERAS_VIT_MAX_PIXELS"),
    "nothing.png": (forged_png(0, 7), "no pixels"),
    "disguised.png": (disguised(forged_png(20000, 20000)), "damaged PNG"),
    "start.jpg": (JPEG[:3], "truncated JPEG"),
    "start.png": (PNG[:32], "truncated PNG"),
    "scans.jpg": (with_scans(PROGRESSIVE, MAX_SCANS + 1), MANY),
    "segments.jpg": (JPEG[:2] + b"\xff\xe2\0\2" * MAX_STEPS + JPEG[2:], MANY),
    "chunks.png": (PNG[:33] + chunk(b"abCd", b"") * MAX_STEPS + PNG[33:], CHUNKS),
}


TOO_MANY_PARTS = {"scans.jpg", "segments.jpg", "chunks.png"}  # the check alone counts them
in_graph = tf.function(decode_image)


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_named_with_its_reason_and_not_decoded(tmp_path, name):
    data, reason = BAD[name]
    (tmp_path / name).write_bytes(data)
    assert check_image(tmp_path / name) == BadImage(str(tmp_path / name), reason)
    if name not in TOO_MANY_PARTS:
        for decode in (decode_image, in_graph):
            with pytest.raises(tf.errors.InvalidArgumentError):
                decode(tf.constant(data))


@pytest.mark.parametrize("name", GOOD)
def test_odd_but_whole_file_is_good_and_decodes(tmp_path, name):
    (tmp_path / name).write_bytes(GOOD[name])
    found = check_image(tmp_path / name)
    assert isinstance(found, ValidImage)
    assert found.orientation == (6 if name == "turned.jpg" else 1)
    assert decode_image(tf.constant(GOOD[name])).shape == (45, 67, 3)


def test_what_is_no_file_of_a_photo_is_bad_and_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    with open(tmp_path / "large.jpg", "wb") as file:
        file.truncate(2**30 + 2**29)  # takes no place on the disk
    for name, reason in {
        "none.jpg": "no such file",
        ".": "a folder, not a regular file",
        "pipe.jpg": "a pipe, not a regular file",
        "large.jpg": "more than 1,073,741,824 bytes",
    }.items():
        assert check_image(tmp_path / name).reason == reason
    with pytest.raises(ImageError, match="more than 1,073,741,824 bytes"):
        read_image(tmp_path / "large.jpg")


@pytest.mark.parametrize("progressive", [False, True])
def test_truncated_jpeg_is_found_without_a_word_of_libjpeg(tmp_path, progressive, capfd):
    data = encoded(PIXELS, progressive=progressive)
    for cut in range(4, len(data), 61):
        with pytest.raises(ImageError, match="truncated JPEG"):
            read_image(_written(tmp_path / "a.jpg", data[:cut]))
    assert capfd.readouterr().err == ""


def _written(path, data):
    path.write_bytes(data)
    return path


def test_every_truncation_that_passes_can_be_decoded(tmp_path):
    # The check decodes a JPEG at an eighth of its size, the pipeline whole: they must find the same files bad.
    for progressive in (False, True):
        data = encoded(picture(90, 130), progressive=progressive)
        for cut in range(20, len(data), 97):
            found = validation.decode_error(data[:cut], validation._try_decode)
            try:
                decode_image(tf.constant(data[:cut]))
                assert found is None
            except tf.errors.InvalidArgumentError:
                assert found is not None


def test_skip_warns_once_of_every_kind_with_an_example_and_without_a_word_of_libjpeg(tmp_path, capfd):
    for name, (data, _) in BAD.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "good.jpg").write_bytes(JPEG)
    with pytest.warns(UserWarning, match=f"{len(BAD)} bad images") as caught:
        found = check_images(sorted(tmp_path.iterdir()))
    assert len(caught) == 1
    assert capfd.readouterr().err == ""  # of libjpeg
    told = str(caught[0].message).splitlines()
    assert any(line.startswith(f"  3 truncated JPEG, as {tmp_path}/") for line in told)
    assert any(line == f"  1 GIF, as {tmp_path}/gif.jpg" for line in told)
    assert "Save those of other formats as JPEG or PNG." in told[-1]
    assert sum(int(line.split()[0]) for line in told[1:-1]) == len(BAD)
    assert [isinstance(image, ValidImage) for image in found].count(True) == 1


def test_raise_refuses_and_names_the_first_twenty(tmp_path):
    for number in range(23):
        (tmp_path / f"{number:02}.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"23 bad images(?s:.*)19.jpg: empty file\n  and 3 more"):
        check_images(sorted(tmp_path.iterdir()), "raise")


def test_file_is_read_again_only_if_it_has_changed(tmp_path, monkeypatch):
    reads, read = [], validation._read
    monkeypatch.setattr(validation, "_read", lambda path: reads.append(path) or read(path))
    (tmp_path / "a.jpg").write_bytes(JPEG)
    first, again = (check_image(tmp_path / "a.jpg") for _ in range(2))
    (tmp_path / "a.jpg").write_bytes(JPEG[:-9])
    assert first == again
    assert isinstance(check_image(tmp_path / "a.jpg"), BadImage)
    assert len(reads) == 2


def test_equal_bytes_have_equal_digests(tmp_path):
    for name, data in {"a.jpg": JPEG, "b.jpg": JPEG, "c.jpg": PNG}.items():
        (tmp_path / name).write_bytes(data)
    a, b, c = (check_image(tmp_path / name) for name in ("a.jpg", "b.jpg", "c.jpg"))
    assert a.digest == b.digest != c.digest
    assert dataclasses.replace(a, path=b.path) == b


def test_progress_is_shown_on_a_terminal_after_a_second(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for patience, shown in ((0.0, True), (60.0, False)):
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setattr(validation, "_PATIENCE", patience)
        assert list(validation.with_progress(iter("abc"), 3)) == ["a", "b", "c"]
        assert ("Checking images" in terminal.getvalue()) == shown
