"""What a model sees, drawn: each figure in both themes, for square and rectangular grids, with what belongs on it."""

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from keras_vit.analysis import overlay, plots

Image = pytest.importorskip("PIL.Image")
RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, (80, 112, 3), dtype="uint8")
GREY = RNG.integers(0, 256, (32, 32), dtype="uint8")
FIGURES = {
    "filters": lambda **more: plots.draw_filters(RNG.normal(size=(28, 4, 4, 3)), np.full(28, 0.03), **more),
    "grey filters": lambda **more: plots.draw_filters(RNG.normal(size=(5, 4, 4, 1)), **more),
    "positions": lambda **more: plots.draw_position_similarity(RNG.uniform(-1, 1, (3, 5, 3, 5)), **more),
    "distance": lambda **more: plots.draw_attention_distance(RNG.uniform(0, 90, (12, 6)), **more),
    "overlays": lambda **more: plots.draw_overlays([PHOTO, GREY], [RNG.random((5, 7)), np.eye(4)], ["a", "$b"], **more),
    "maps": lambda **more: plots.draw_maps(RNG.random((8, 5, 7)), list("abcdefgh"), "attention", PHOTO, **more),
    "colours": lambda **more: plots.draw_colours([PHOTO, GREY], RNG.random((2, 5, 7, 3)), **more),
    "blocks": lambda **more: plots.draw_similarity_of_blocks(RNG.random((12, 6)), **more),
}


@pytest.mark.parametrize(
    ("name", "theme"),
    [  # each figure once; the product is nightly
        pytest.param(name, theme, marks=() if (row + column) % 2 == 0 else pytest.mark.nightly)
        for row, name in enumerate(FIGURES)
        for column, theme in enumerate(("light", "dark"))
    ],
)
def test_figure_is_drawn_on_paper_of_its_theme(tmp_path, name, theme):
    before = dict(matplotlib.rcParams)
    figure = FIGURES[name](path=tmp_path / "f.png", theme=theme)
    assert dict(matplotlib.rcParams) == before
    with Image.open(tmp_path / "f.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    paper = np.rint(np.multiply(to_rgb(figure.get_facecolor()), 255))
    np.testing.assert_array_equal(pixels[1, 1], paper)
    assert (paper.mean() > 128) == (theme == "light")
    assert min(pixels.shape[:2]) > 150
    assert max(pixels.shape) < 2000
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 10
    inks = [np.mean(to_rgb(text.get_color())) for axis in figure.axes for text in (axis.title, axis.xaxis.label)]
    assert all((ink < 0.5) == (theme == "light") for ink in inks)


def test_axes_say_what_they_measure():
    axis = FIGURES["distance"]().axes[0]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("block", "mean attention distance (pixels)")
    assert FIGURES["positions"]().axes[-1].get_ylabel() == "cosine similarity"
    assert FIGURES["maps"]().axes[-1].get_xlabel() == "attention"
    assert FIGURES["blocks"]().axes[-1].get_ylabel() == "linear CKA"


def test_every_head_is_a_dot_at_its_distance():
    distances = RNG.uniform(0, 90, (4, 3))
    axis = plots.draw_attention_distance(distances, furthest=130).axes[0]
    drawn = np.concatenate([dots.get_offsets() for dots in axis.collections])
    expected = [(block + 1, distance) for block, row in enumerate(distances) for distance in row]
    np.testing.assert_allclose(sorted(map(tuple, drawn)), sorted(expected))
    assert axis.get_ylim() == (0, 130)


def test_each_patch_has_its_similarities_in_its_place():
    similarity = RNG.uniform(-1, 1, (2, 3, 2, 3))
    image = plots.draw_position_similarity(similarity).axes[0].images[0]
    cells = np.ma.filled(image.get_array(), np.nan)
    assert cells.shape == (2 * 3 - 1, 3 * 4 - 1)
    for row, column in np.ndindex(2, 3):
        np.testing.assert_array_equal(cells[3 * row :, 4 * column :][:2, :3], similarity[row, column])
    assert np.isnan(cells).sum() == cells.size - similarity.size
    assert image.get_clim() == (-1, 1)


def test_overlay_shows_a_map_that_is_nearly_even():
    """As relevance in a model that takes the mean, where each patch has its own part."""
    weights = np.random.default_rng(1).random((5, 7))
    near = overlay(PHOTO, 1 + weights * 1e-3)
    assert np.abs(near.astype(int) - overlay(PHOTO, weights)).max() <= 3


def test_overlay_keeps_the_photo_where_the_map_is_highest_and_darkens_the_rest():
    weights = np.zeros((5, 7))
    weights[:, 5:] = 3.0
    white = np.full((80, 112, 3), 255, "uint8")
    laid = overlay(white, weights)
    assert laid.shape == white.shape
    assert laid[:, -8:].min() > 240
    assert laid[:, :32].max() < 10
    for even in (np.zeros((5, 7)), np.full((5, 7), 0.3), 0.3 + 1e-9 * np.eye(5, 7), [[1.0]]):
        np.testing.assert_array_equal(overlay(PHOTO, even), PHOTO)
    np.testing.assert_array_equal(overlay(white[..., 0], weights), laid)


def test_maps_without_a_difference_have_one_scale():
    figure = plots.draw_maps([np.zeros((4, 6))] * 3, list("abc"), "x")
    assert {axis.images[0].get_clim() for axis in figure.axes if axis.images} == {(0, 1)}
    for wrong in ([np.full((4, 6), np.nan)], [np.eye(3), np.full((3, 3), np.inf)]):
        with pytest.raises(ValueError, match="finite"):
            plots.draw_maps(wrong, list("ab")[: len(wrong)], "x")
    with pytest.raises(ValueError, match="map"):
        overlay(PHOTO, np.full((4, 6), np.nan))


def test_titles_that_cannot_be_drawn_are_numbers_and_lines_are_one():
    figure = plots.draw_overlays([PHOTO, PHOTO], [np.eye(3)] * 2, ["\u732b", "a\nb"])
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["number 0", "", "a b", ""]


@pytest.mark.parametrize("photo", [PHOTO.astype(int) + 300, PHOTO / 255, PHOTO[..., :2], PHOTO[None]])
def test_what_is_no_photo_is_named(photo):
    with pytest.raises(ValueError, match="photo"):
        overlay(photo, np.ones((2, 2)))


def test_unknown_theme_is_named():
    with pytest.raises(ValueError, match="`theme`"):
        plots.draw_similarity_of_blocks(np.eye(3), theme="sepia")
