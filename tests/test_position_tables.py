import jax.image
import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_vit.config.position_tables import RESIZE_METHODS, resize_pos_embed, sincos2d

SIDES = st.integers(1, 40)


def table_of(grid, prefix=1, size=3, seed=0):
    return np.random.default_rng(seed).normal(size=(1, prefix + grid[0] * grid[1], size)).astype("float32")


def scipy_leaves_a_zero_edge(old, new):
    """scipy's rounding can push the last sample outside the table, which it fills with 0."""
    return new > 1 and scipy.ndimage.zoom(np.ones(old), new / old, order=1)[-1] < 0.5


@settings(max_examples=60, deadline=None)
@given(old=st.tuples(SIDES, SIDES), new=st.tuples(SIDES, SIDES))
def test_align_corners_equals_scipy_zoom_wherever_scipy_is_safe(old, new):
    if any(scipy_leaves_a_zero_edge(o, n) for o, n in zip(old, new, strict=True)):
        return
    table = table_of(old)
    patches = table[0, 1:].reshape(*old, -1)
    expected = scipy.ndimage.zoom(patches, (new[0] / old[0], new[1] / old[1], 1), order=1)
    got = resize_pos_embed(table, new, old)[0, 1:].reshape(*new, -1)
    np.testing.assert_allclose(got, expected, atol=1e-5)  # scipy works with 5e-6 here


@pytest.mark.parametrize(("old", "new"), [(16, 30), (28, 14), (28, 24), (32, 16)])  # SPEC: B/8 and H/14 are hit
def test_align_corners_has_no_zero_edge_where_scipy_has(old, new):
    assert scipy_leaves_a_zero_edge(old, new)
    table = np.ones((1, old * old, 2), "float32")
    assert (resize_pos_embed(table, (new, new), num_prefix_tokens=0) == 1).all()


@settings(max_examples=60, deadline=None)
@given(old=st.tuples(SIDES, SIDES), new=st.tuples(SIDES, SIDES))
def test_align_corners_keeps_corners_prefix_constants_and_bounds(old, new):
    table = table_of(old)
    got = resize_pos_embed(table, new, old)
    grid, resized = table[0, 1:].reshape(*old, -1), got[0, 1:].reshape(*new, -1)
    np.testing.assert_array_equal(got[0, 0], table[0, 0])
    np.testing.assert_array_equal(resized[0, 0], grid[0, 0])
    if min(new) > 1:
        np.testing.assert_allclose(resized[-1, -1], grid[-1, -1], atol=1e-6)
    assert resized.max() <= grid.max() + 1e-6
    assert resized.min() >= grid.min() - 1e-6
    constant = resize_pos_embed(np.full_like(table, 0.3), new, old)
    assert (constant == np.float32(0.3)).all()


def test_align_corners_keeps_a_plane_and_comes_back():
    rows, columns = np.mgrid[:5, :7].astype("float32")
    plane = np.stack([2 * rows - columns, columns], -1).reshape(1, 35, 2)
    grown = resize_pos_embed(plane, (9, 13), (5, 7), num_prefix_tokens=0)  # n -> 2 (n - 1) + 1
    rows, columns = np.mgrid[:9, :13] / 2
    np.testing.assert_allclose(grown[0, :, 0], (2 * rows - columns).ravel(), atol=1e-6)
    back = resize_pos_embed(grown, (5, 7), (9, 13), num_prefix_tokens=0)
    np.testing.assert_allclose(back, plane, atol=1e-6)


def torch_bicubic(line, new):
    """One axis by the four weights that torch's upsample_bicubic2d computes, edges repeated."""
    a, old, resized = -0.75, len(line), []
    for i in range(new):
        position = (i + 0.5) * old / new - 0.5
        first, t = int(np.floor(position)), position - np.floor(position)
        far, near = (lambda x: ((a * x - 5 * a) * x + 8 * a) * x - 4 * a), (lambda x: ((a + 2) * x - a - 3) * x * x + 1)
        weights = far(t + 1), near(t), near(1 - t), far(2 - t)
        taps = [line[np.clip(first + k, 0, old - 1)] for k in (-1, 0, 1, 2)]
        resized.append(sum(w * tap for w, tap in zip(weights, taps, strict=True)))
    return np.array(resized)


@pytest.mark.parametrize(("old", "new"), [((5, 7), (9, 4)), ((14, 14), (24, 12)), ((1, 3), (4, 3)), ((6, 6), (3, 18))])
def test_bicubic_is_the_one_of_torch(old, new):
    table = table_of(old, prefix=0)
    rows = torch_bicubic(table.reshape(*old, -1).astype("float64"), new[0])
    expected = torch_bicubic(rows.swapaxes(0, 1), new[1]).swapaxes(0, 1)
    got = resize_pos_embed(table, new, old, num_prefix_tokens=0, method="bicubic")
    np.testing.assert_allclose(got.reshape(*new, -1), expected, atol=1e-6)


@pytest.mark.parametrize("method", RESIZE_METHODS)
def test_resize_to_the_same_grid_is_the_identity(method):
    table = table_of((5, 7))
    assert resize_pos_embed(table, (5, 7), (5, 7), method=method) is table


def test_resize_compares_grids_not_counts():
    table = table_of((24, 24), size=2)
    resized = resize_pos_embed(table, (12, 48))
    assert resized.shape == table.shape
    assert np.abs(resized - table).max() > 0.1


@pytest.mark.parametrize(
    ("method", "jax_method", "antialias"),
    [("bilinear", "linear", False), ("bilinear_antialias", "linear", True), ("bicubic_antialias", "cubic", True)],
)
@pytest.mark.parametrize("new", [(3, 11), (9, 13), (14, 4)])
def test_half_pixel_methods_equal_jax(method, jax_method, antialias, new):
    table = table_of((7, 5), prefix=0)
    expected = jax.image.resize(table.reshape(7, 5, 3), (*new, 3), jax_method, antialias=antialias)
    got = resize_pos_embed(table, new, (7, 5), num_prefix_tokens=0, method=method).reshape(*new, 3)
    np.testing.assert_allclose(got, expected, atol=2e-6)  # jax works in float32


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rank", [2, 3])
def test_resize_keeps_dtype_and_rank(dtype, rank):
    table = table_of((4, 4)).astype(dtype)
    table = table if rank == 3 else table[0]
    resized = resize_pos_embed(table, (2, 6))
    assert (resized.dtype, resized.ndim, resized.shape[-2]) == (dtype, rank, 13)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"new_grid": (3, 3), "old_grid": (4, 5)}, "17 rows"),
        ({"new_grid": (3, 3), "num_prefix_tokens": 0}, "old_grid=None"),
        ({"new_grid": (3, 0)}, r"new_grid=\(3, 0\)"),
        ({"new_grid": (3, 3), "table": np.ones((1, 17, 2), int)}, "int64"),
        ({"new_grid": 3}, "new_grid=3"),
        ({"new_grid": (3, 3), "method": "cubic"}, "'bicubic'"),
    ],
)
def test_resize_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        resize_pos_embed(**{"table": table_of((4, 4))} | arguments)


def test_sincos_equals_its_formula():
    rows, columns, size = 3, 5, 8
    got = sincos2d(np.arange(rows), np.arange(columns), size).reshape(rows, columns, size)
    for y in range(rows):
        for x in range(columns):
            angles = [10000.0 ** -(i / (size / 4 - 1)) for i in range(size // 4)]
            expected = [f(v * a) for v in (x, y) for f in (np.sin, np.cos) for a in angles]
            np.testing.assert_allclose(got[y, x], expected, atol=1e-6)
