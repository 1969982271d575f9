"""Stages of images that grow: sizes and epochs by arXiv:2104.00298, algorithm 1; nonsense is refused."""

import itertools

import pytest

from keras_vit.config.progressive_resizing import ResolutionStage, check_start_size, growing_stages, relative_cost

CASES = [
    ((128, 128), (224, 224), 8, 16),
    ((128, 128), (384, 384), 350, 16),
    ((96, 64), (224, 64), 5, 32),
    ((14, 14), (378, 224), 7, 14),
    ((192, 192), (224, 224), 11, 16),
    ((4, 8), (8, 8), 2, 4),
    ((8, 8), (40, 40), 3, 8),
]


def test_stages_of_a_training_at_224_are_the_four_of_the_paper_rule():
    sizes = {1: 128, 3: 160, 5: 192, 7: 224}
    expected = tuple(ResolutionStage(epoch, (side, side)) for epoch, side in sizes.items())
    assert growing_stages((128, 128), (224, 224), 8, 16) == expected


def sizes_of_epochs(stages, epochs):
    """The size of every epoch, from 1."""
    return [next(s.image_size for s in reversed(stages) if s.epoch <= epoch) for epoch in range(1, epochs + 1)]


@pytest.mark.parametrize(("start", "final", "epochs", "unit"), CASES)
def test_epochs_have_the_sizes_of_the_line_in_stages_of_equal_length(start, final, epochs, unit):
    stages = growing_stages(start, final, epochs, unit)
    count = min(4, epochs)
    places = [epoch * count // epochs for epoch in range(epochs)]  # of four parts, that in which an epoch is
    lengths = [places.count(place) for place in range(count)]
    assert max(lengths) - min(lengths) <= 1
    expected = []
    for place in places:
        line = [first + (last - first) * place / (count - 1) for first, last in zip(start, final, strict=True)]
        expected.append(tuple(int(side / unit + 1e-9) * unit for side in line))
    assert sizes_of_epochs(stages, epochs) == expected
    assert (expected[0], expected[-1]) == (start, final)
    assert all(one.image_size != other.image_size for one, other in itertools.pairwise(stages))


@pytest.mark.parametrize(("start", "final", "epochs", "unit"), CASES)
def test_work_is_the_sum_over_steps(start, final, epochs, unit):
    stages, steps_per_epoch = growing_stages(start, final, epochs, unit), 3
    pixels = [height * width for height, width in sizes_of_epochs(stages, epochs) for _ in range(steps_per_epoch)]
    for steps in (0, 1, 3, 4, 3 * epochs - 2, 3 * epochs):
        assert relative_cost(stages, steps_per_epoch, steps) == pytest.approx(sum(pixels[:steps]) / pixels[-1])


def test_work_of_one_size_is_the_number_of_steps():
    assert relative_cost((ResolutionStage(1, (24, 32)),), 5, 13) == 13


@pytest.mark.parametrize("start", [(224, 224), (240, 240), (128, 240)])
def test_start_that_is_not_below_the_end_is_refused(start):
    with pytest.raises(ValueError, match=r"`start_image_size`.*\n.*start_image_size=.* 224 at"):
        check_start_size(start, (224, 224))


def test_one_side_may_stay():
    check_start_size((128, 224), (224, 224))


def test_one_epoch_is_too_short_to_grow_in():
    with pytest.raises(ValueError, match="epochs=1, start_image_size=128"):
        growing_stages((128, 128), (224, 224), 1, 16)
