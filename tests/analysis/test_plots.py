"""The pictures of a run are drawn for few and many classes, short and long runs, and any name."""

import itertools

import numpy as np
import pytest
from matplotlib.axes import Axes
from run_files import COLUMNS

from keras_vit.analysis.plots import draw_confusion, draw_curves, draw_predicted

Image = pytest.importorskip("PIL.Image")


@pytest.mark.parametrize("classes", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (37, 121)), 21843])
def test_confusion_matrix_is_drawn_for_any_number_of_classes(tmp_path, classes):
    names = ["$ä_b$ " + "x" * min(index, 200) for index in range(classes)]
    draw_confusion(np.arange(classes), np.arange(classes), names, tmp_path / "c.png")
    with Image.open(tmp_path / "c.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert max(pixels.shape) < 2000
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 10


def test_rows_of_the_confusion_matrix_are_parts_of_the_true_class(tmp_path, monkeypatch):
    drawn, imshow = [], Axes.imshow

    def kept(axis, parts, **arguments):
        drawn.append(parts)
        return imshow(axis, parts, **arguments)

    monkeypatch.setattr(Axes, "imshow", kept)
    draw_confusion(labels := np.repeat([0, 1], [4, 5]), labels | np.array([0, 1, 1, 1, *[1] * 5]), ("a", "b"))
    np.testing.assert_array_equal(drawn[0], [[0.25, 0.75], [0, 1]])


def test_cells_above_a_thousand_classes_are_of_several(monkeypatch):
    """Of 2,500 classes three are in a row, and the last row is of one: its only example was taken for class 4."""
    drawn, imshow = [], Axes.imshow
    monkeypatch.setattr(Axes, "imshow", lambda axis, parts, **more: drawn.append(parts) or imshow(axis, parts, **more))
    labels, predictions = np.array([0, 1, 2, 2, 2499]), np.array([2, 1, 2499, 0, 4])
    axis = draw_confusion(labels, predictions, list(map(str, range(2500)))).axes[0]
    assert drawn[0].shape == (834, 834)
    assert {tuple(map(int, place)): drawn[0][tuple(place)] for place in np.argwhere(drawn[0])} == {
        (0, 0): 0.75,
        (0, 833): 0.25,
        (833, 1): 1,
    }
    assert "3 to a cell" in axis.get_xlabel()
    assert axis.get_xlim() == (-0.5, 2501.5)


def test_class_whose_letters_the_font_lacks_is_drawn_as_its_number(tmp_path, monkeypatch):
    drawn, set_ticks = [], Axes.set_xticks

    def note(axis, places, names, **more):
        drawn.append(names)
        return set_ticks(axis, places, names, **more)

    monkeypatch.setattr(Axes, "set_xticks", note)
    for _ in range(2):  # a second time as well, which no cache of the font may spoil
        draw_confusion(np.arange(4), np.arange(4), ["cat", "\u732b", "$\xe9$", "\udcff"], tmp_path / "c.png")
        assert drawn.pop() == ["cat", "class 1", "\\$\xe9\\$", "class 3"]


def test_long_name_is_shortened_in_its_middle():
    names = [f"a_very_long_name_of_a_class_{number:04}" for number in (16, 17)]
    figure = draw_confusion(np.array([0, 1]), np.array([0, 1]), names)
    drawn = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert drawn == ["a_very_long…a_class_0016", "a_very_long…a_class_0017"]


def test_picture_replaces_only_one_of_this_package(tmp_path):
    for _ in range(2):
        draw_curves([dict.fromkeys(COLUMNS, 1.0)], tmp_path / "c.png")
    Image.new("RGB", (3, 2)).save(tmp_path / "c.png")
    before = (tmp_path / "c.png").read_bytes()
    with pytest.raises(FileExistsError, match=r"only one that keras_vit has drawn.\n.*c\.png, which"):
        draw_curves([dict.fromkeys(COLUMNS, 1.0)], tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes() == before


@pytest.mark.parametrize("epochs", [1, 5])
def test_curves_are_drawn_from_the_first_epoch_on_and_without_validation(tmp_path, epochs):
    rows = [dict.fromkeys(COLUMNS, 0.5) | {"epoch": epoch + 1, "val_loss": None} for epoch in range(epochs)]
    draw_curves([row | {"val_accuracy": None} for row in rows], tmp_path / "c.png")
    with Image.open(tmp_path / "c.png") as picture:
        assert picture.size == (1100, 704)


@pytest.mark.parametrize("ends", [(11_000_000, 12_700_000), (-912_345, 912_345), (-0.00012345, 0.0002), (0, 300)])
def test_numbers_below_predicted_answers_do_not_touch(ends):
    numbers = np.linspace(*ends, 9)[:, None].repeat(4, axis=1)
    figure = draw_predicted(numbers, numbers, list("abcd"))
    figure.draw_without_rendering()
    assert [axis.get_visible() for axis in figure.axes] == [True] * 4 + [False] * 2
    for axis in figure.axes[:4]:
        low, high = axis.get_xlim()
        shown = [
            label for at, label in zip(axis.get_xticks(), axis.get_xticklabels(), strict=True) if low <= at <= high
        ]
        boxes = [label.get_window_extent() for label in shown]
        assert len(boxes) >= 2
        assert all(right.x0 - left.x1 > 5 for left, right in itertools.pairwise(boxes))
