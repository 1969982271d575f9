import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, picture, turned

from keras_vit.images.exif import orientation

PIXELS = picture(9, 11)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_is_what_pillow_has_written(kind, value):
    assert orientation(turned(PIXELS, value, kind)) == value


def test_orientation_is_read_in_the_other_order_of_bytes():
    tiff = (
        b"MM\0*\0\0\0\x08\0\x02"
        + b"\x01\x00\0\x03\0\0\0\x01\0\x63\0\0"
        + b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0"
        + bytes(4)
    )
    assert orientation(encoded(PIXELS, exif=b"Exif\0\0" + tiff)) == 6


@pytest.mark.parametrize(
    "data", [b"", b"text", encoded(PIXELS), encoded(PIXELS, "PNG"), turned(PIXELS, 9), turned(PIXELS, 0)]
)
def test_orientation_is_upright_where_nothing_sensible_is_said(data):
    assert orientation(data) == 1


@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from(["JPEG", "PNG"]), changes=st.lists(st.tuples(st.integers(2, 120), st.integers(0, 255))))
def test_damaged_block_gives_an_orientation_all_the_same(kind, changes):
    data = bytearray(turned(PIXELS, 6, kind))
    for place, value in changes:
        data[place] = value
    assert 1 <= orientation(bytes(data)) <= 8
