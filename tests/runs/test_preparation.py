"""What a run decides by itself where nothing was asked for."""

import types

import numpy as np
import pytest
from conftest import make_tiny, tiny_config

import keras_vit
from keras_vit.config.recipes import find_recipe
from keras_vit.data import open_source
from keras_vit.runs.messages import plan_lines
from keras_vit.runs.options import FinetuneOptions
from keras_vit.runs.preparation import SMALL_MODELS, _make_plan, _usual_batch, prepare, small_model


@pytest.mark.parametrize(
    ("recipe", "images", "devices", "batch_size"),
    [(512, 100_000, 1, 512), (512, 23, 1, 16), (32, 6, 1, 4), (512, 23, 3, 15), (32, 1, 2, 2)],
)
def test_batch_of_a_small_set_is_the_largest_power_of_two_in_it(recipe, images, devices, batch_size):
    assert _usual_batch(recipe, images, devices) == batch_size


@pytest.mark.parametrize(("asked", "parts"), [([0, 4], 4), ([2], 2)], ids=["new", "goes on"])
def test_micro_batches_are_the_most_that_any_process_needs_or_those_of_before(monkeypatch, asked, parts):
    """Free memory differs between hosts, and of a run that goes on the first process alone knows the parts."""
    of_others = iter(asked)
    source = types.SimpleNamespace(sizes={"train": 64})
    options = FinetuneOptions(epochs=1)
    monkeypatch.setattr("keras_vit.runs.preparation.all_reduce_max", lambda ours: max(ours, next(of_others)))
    said = []
    plan = _make_plan(options, source, make_tiny(), find_recipe("digits"), 1, said.append)
    assert (plan.batch_size, plan.accumulation_steps) == (32, parts)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("steps", "words"), [(1, "1 step of 1 image in 1 epoch,"), (4, "4 steps of 1 image in 2 epochs,")]
)
def test_one_step_image_and_epoch_are_no_plurals(steps, words):
    planned = keras_vit.plan("digits", num_images=2, batch_size=1, steps=steps)
    lines = [*plan_lines(make_tiny(num_layers=1), 5, planned, ())]
    assert words in " ".join(lines)


def test_train_images_leave_so_many_to_train_on():
    source = open_source((np.zeros((20, 8, 8, 1), "uint8"), np.arange(20) % 2))
    found = prepare(source, FinetuneOptions(model=tiny_config(num_layers=1), image_size=8, train_images=7), print)
    assert found.source.sizes == {"train": 7, "validation": 2, "test": 2}
    assert found.source.rows("train") == source.subset(7).rows("train")


def test_small_models_are_below_a_million_parameters():
    for small in SMALL_MODELS.values():
        shape = (small.image_size, small.image_size, 3)
        assert keras_vit.build(small.config, input_shape=shape, classes=10).count_params() < 1_000_000


@pytest.mark.parametrize(("height", "width", "kind"), [(40, 8, "tiny"), (8, 41, "photos"), (41, 8, "photos")])
def test_longest_side_decides_which_one_it_is(height, width, kind):
    pair = (np.zeros((9, height, width, 1), "uint8"), np.arange(9) % 3)
    assert small_model(open_source({"train": pair, "test": pair})) is SMALL_MODELS[kind]


def test_data_of_train_alone_say_what_to_do():
    source = open_source({"train": (np.zeros((9, 8, 8, 1), "uint8"), np.arange(9) % 3)})
    with pytest.raises(ValueError, match=r"{'train': 9}\. Add a test set; or pass the arrays of train alone"):
        prepare(source, FinetuneOptions(model=tiny_config(num_layers=1), image_size=8), print)
    with pytest.raises(ValueError, match=r"the split 'test'(?s:.*) measure all of them, pass split=.train"):
        source.split("test")
