"""Real photos for verification: from wherever the user has them, and a clear word on a file that is none."""

import os
import sys

import numpy as np
import pytest
from pictures import encoded, picture, turned

from keras_vit.exporting.sample_photos import load_photos, resize_photos

PHOTOS = [picture(33 + n, 47 - n, seed=n) for n in range(5)]


@pytest.fixture
def folder(tmp_path):
    """Photos with a folder between, in the order of their paths, and a file that is no photo by its name."""
    for name, pixels in zip(("a/0.png", "a/1.PNG", "b/c/0.png", "z.png"), PHOTOS, strict=False):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(encoded(pixels, "PNG"))
    (tmp_path / "notes.txt").write_text("remember the milk")
    return tmp_path


def assert_same(found, expected):
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_samples_are_parts_of_photos_of_many_sizes_and_the_same_each_time():
    photos = load_photos(None, 20)
    assert_same(photos, load_photos(None, 20))
    sizes = {photo.shape[:2] for photo in photos}
    assert len(sizes) == 20
    assert all(160 <= side < 420 for size in sizes for side in size)
    assert min(photo.std() for photo in photos) > 10  # levels: no part is one colour
    assert all(photo.dtype == np.uint8 and photo.flags["C_CONTIGUOUS"] for photo in photos)


@pytest.mark.parametrize("missing", ["sklearn.datasets", "PIL"])
def test_missing_scikit_learn_or_pillow_is_told_with_the_way_out(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r'".\[export\]".*`images=`'):
        load_photos(None, 3)
    assert_same(load_photos(PHOTOS, 9), PHOTOS)


def test_folder_is_looked_through_in_order(folder):
    assert_same(load_photos(folder, 9), PHOTOS[:4])
    assert_same(load_photos(str(folder), 9), PHOTOS[:4])
    assert_same(load_photos(folder / "z.png", 9), PHOTOS[3:4])


def test_paths_and_arrays_may_be_mixed(folder):
    assert_same(load_photos([folder / "z.png", PHOTOS[1], str(folder / "a/0.png")], 9), [PHOTOS[n] for n in (3, 1, 0)])
    assert_same(load_photos(np.stack([PHOTOS[0]] * 2), 9), [PHOTOS[0]] * 2)


def test_of_many_some_are_taken_evenly_and_the_rest_is_not_read(folder):
    assert_same(load_photos(PHOTOS, 3), [PHOTOS[n] for n in (0, 2, 4)])
    (folder / "a" / "1.PNG").write_text("no picture")
    assert_same(load_photos(folder, 2), [PHOTOS[0], PHOTOS[3]])


def test_photo_held_sideways_is_turned(tmp_path):
    (tmp_path / "x.png").write_bytes(turned(PHOTOS[0], 6, "PNG"))
    assert_same(load_photos(tmp_path, 1), [np.rot90(PHOTOS[0], -1)])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty file"),
        (b"no picture", "not an image: text"),
        (encoded(PHOTOS[0], "PNG")[:-300], "truncated PNG"),
        (encoded(PHOTOS[0])[:200], "truncated JPEG"),
    ],
)
def test_file_that_is_broken_is_named_in_two_lines(folder, content, why):
    (folder / "b" / "broken.jpg").write_bytes(content)
    with pytest.raises(ValueError, match=rf"`images`.*\n.*broken\.jpg: {why}") as caught:
        load_photos([folder / "b" / "broken.jpg"], 99)
    assert "{{" not in str(caught.value)
    with pytest.warns(UserWarning, match=rf"left out 1 bad image:\n  1 {why}, as .*broken\.jpg"):
        assert_same(load_photos(folder, 99), PHOTOS[:4])


def test_folder_says_what_is_passed_over(folder):
    (folder / "again.png").symlink_to(folder / "z.png")
    (folder / "x.jpg.1").write_bytes(b"x")
    with (
        pytest.warns(UserWarning, match=r"1 link not followed.*again\.png, which is .*z\.png"),
        pytest.warns(UserWarning, match=r"1 file not read.*x\.jpg\.1"),
    ):
        assert_same(load_photos(folder, 9), PHOTOS[:4])
    (folder / "again.png").unlink()
    (folder / "x.jpg.1").unlink()
    os.mkfifo(folder / "pipe.jpg")
    (folder / "lost.jpg").symlink_to("gone")
    (folder / "a.gif").write_bytes(encoded(PHOTOS[0], "GIF"))
    with pytest.warns(UserWarning, match=r"3 bad images:\n  1 GIF, as .*\n  1 a link to nothing, .*\n  1 a pipe, not"):
        assert_same(load_photos(folder, 9), PHOTOS[:4])
    for path in folder.rglob("*.[pP][nN][gG]"):
        path.unlink()
    with pytest.raises(ValueError, match=r"`images`.*\n.* none can: 1 GIF, 1 a link to nothing, 1 a pipe"):
        load_photos(folder, 9)


def test_nothing_is_told(tmp_path):
    for nothing in ([], (), np.zeros((0, 3, 4, 3), "uint8")):
        with pytest.raises(ValueError, match="at least one"):
            load_photos(nothing, 3)
    with pytest.raises(ValueError, match=f"at least one.*\n.*{tmp_path}"):
        load_photos(tmp_path, 3)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_photos(tmp_path / "nowhere", 3)
    with pytest.raises(FileNotFoundError, match=r"x\.png"):
        load_photos([tmp_path / "x.png"], 3)


@pytest.mark.parametrize(
    "wrong", [np.zeros((3, 4, 3)), np.zeros((3, 4), "uint8"), np.zeros((0, 4, 3), "uint8"), None, 5]
)
def test_what_is_no_photo_is_refused(wrong):
    with pytest.raises(ValueError, match=r"uint8 \(H, W, C\)"):
        load_photos([PHOTOS[0], wrong], 3)


@pytest.mark.parametrize("wrong", [5, {"a": 1}, {"a"}, iter(PHOTOS)])
def test_other_collections_are_refused(wrong):
    with pytest.raises(TypeError, match="`images`"):
        load_photos(wrong, 3)


def test_channels_are_those_of_the_model():
    (photo,) = load_photos(PHOTOS[:1], 1, channels=1)
    assert photo.shape == (33, 47, 1)
    np.testing.assert_allclose(photo[..., 0], PHOTOS[0].mean(-1), atol=0.5)
    (photo,) = load_photos(PHOTOS[:1], 1, channels=5)
    np.testing.assert_array_equal(photo, PHOTOS[0][..., [0, 1, 2, 0, 1]])
    (photo,) = load_photos([PHOTOS[0][..., :1]], 1)
    np.testing.assert_array_equal(photo, PHOTOS[0][..., [0, 0, 0]])


def test_photo_of_a_camera_is_shrunk_by_averaging():
    small = picture(1000, 997)
    large = np.repeat(np.repeat(small, 3, axis=0), 3, axis=1)[:, :-1]  # a column is cut, so that squares do not fit
    (photo,) = load_photos([large], 1)
    np.testing.assert_array_equal(photo, small[:, :-1])
    assert_same(load_photos([np.zeros((1, 2**21, 3), "uint8")], 1), [np.zeros((1, 2**21, 3), "uint8")])


def test_resize_squashes_with_antialias():
    stripes = np.tile(np.array([0, 200], "uint8")[:, None, None], (20, 46, 3))  # (40, 46, 3)
    found = resize_photos([stripes, PHOTOS[0]], (10, 23))
    assert (found.shape, found.dtype) == ((2, 10, 23, 3), np.uint8)
    assert np.abs(found[0, 2:-2].astype(int) - 100).max() <= 3  # grey, where a resize without it gives stripes
