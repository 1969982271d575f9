"""What a run decides by itself where nothing was asked for."""

import types

import numpy as np
import pytest
from conftest import make_tiny, tiny_config

from keras_vit.config.recipes import find_recipe
from keras_vit.data import open_source
from keras_vit.runs.options import FinetuneOptions
from keras_vit.runs.preparation import _make_plan, _usual_batch, prepare


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
    monkeypatch.setattr("keras_vit.runs.preparation.agreed", lambda ours: max(ours, next(of_others)))
    said = []
    plan = _make_plan(options, source, make_tiny(), find_recipe("digits"), 1, said.append)
    assert (plan.batch_size, plan.accumulation_steps) == (32, parts)
    assert len(said) == 1


def test_train_images_leave_so_many_to_train_on():
    source = open_source((np.zeros((20, 8, 8, 1), "uint8"), np.arange(20) % 2))
    found = prepare(source, FinetuneOptions(model=tiny_config(num_layers=1), image_size=8, train_images=7), print)
    assert found.source.sizes == {"train": 7, "validation": 2, "test": 2}
    assert found.source.rows("train") == source.subset(7).rows("train")
