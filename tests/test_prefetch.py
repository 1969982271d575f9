"""Photos of `keras-vit predict` come prepared, in order, and a large JPEG comes smaller where that is asked for."""

import threading
import types

import numpy as np
import pytest
from pictures import encoded, picture

from keras_vit.cli import predict
from keras_vit.cli.predict import Photo, prefetch_photos
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.images.read import read_image
from keras_vit.images.resizing import least_size

CROP = Preprocessing((24, 32), "crop", interpolation="bicubic", antialias=True, crop_fraction=0.8)


def test_a_photo_may_be_smaller_where_the_resize_takes_means_of_pixels():
    assert least_size(CROP) == (60, 80)  # twice 24 / 0.8 and 32 / 0.8
    assert least_size(Preprocessing((24, 32), antialias=True)) == (48, 64)
    assert least_size(Preprocessing((24, 32), interpolation="area")) == (48, 64)
    for exact in (Preprocessing(), Preprocessing(None, antialias=True), Preprocessing(resize="none", antialias=True)):
        assert least_size(exact) is None


def prepared(photos, record, is_exact):
    """As `keras-vit predict` has photos read."""
    model = types.SimpleNamespace(preprocessing=record, input_shape=(None, 24, 32, 3))
    least = None if is_exact else least_size(record)
    return prefetch_photos(photos, lambda place: predict._prepared(place, model, least))


def assert_same(image, wanted):
    """But for grey levels of which another order of sums has turned a half the other way."""
    apart = np.abs(image - wanted) * 127.5
    assert apart.max() < 1.001
    assert (apart > 1e-3).mean() < 1e-3


@pytest.fixture
def photos(tmp_path):
    """Large JPEGs, a file that is no photo between them, and one that is not there."""
    paths = [tmp_path / f"{number}.jpg" for number in range(9)]
    for number, path in enumerate(paths):
        path.write_bytes(b"text" if number == 4 else encoded(picture(240, 328, seed=number), quality=95))
    return [Photo(str(path), str(path)) for path in (*paths, tmp_path / "gone.jpg")]


def test_photos_come_in_order_prepared_as_the_record_does_it_or_with_the_reason(photos):
    for record in (CROP, Preprocessing((24, 32))):
        found = list(prepared(photos, record, is_exact=True))
        assert [name for name, _ in found] == [photo.name for photo in photos]
        for path, image in found:
            if isinstance(image, str):
                assert image == {"4.jpg": "not an image: text", "gone.jpg": "no such file"}[path.rpartition("/")[2]]
            else:
                assert_same(image, record(read_image(path)[None]))


def test_smaller_photo_gives_nearly_the_same_image(photos):
    """Smooth ones here; docs/images.md has by how much large photos with noise and letters differ."""
    for path, image in prepared(photos[:2], CROP, is_exact=False):
        assert_same(image, CROP(read_image(path, 3, (60, 80))[None]))
        exact = CROP(read_image(path)[None])
        assert 0 < np.abs(image - exact).max() * 127.5 < 4  # grey levels


def test_as_many_photos_are_held_as_there_are_threads_and_one(photos, monkeypatch):
    begun, most = [], []
    monkeypatch.setattr(predict, "cores", lambda: [0, 1])
    monkeypatch.setattr(predict, "_prepared", lambda path, *_: begun.append(threading.current_thread().name) or "")
    for number, _ in enumerate(prepared(photos, CROP, is_exact=True)):
        most.append(len(begun) - number)
    assert max(most) <= 3
    assert len(begun) == len(photos)
    assert len(set(begun)) <= 2


def test_nothing_is_read_once_no_answer_is_asked_for(photos, monkeypatch):
    monkeypatch.setattr(predict, "cores", lambda: [0])
    begun = []
    monkeypatch.setattr(predict, "_prepared", lambda path, *_: begun.append(path) or "")
    asked = prepared(photos, CROP, is_exact=True)
    next(asked)
    asked.close()
    assert len(begun) <= 2
