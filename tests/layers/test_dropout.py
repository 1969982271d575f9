"""Masks belong to the image: part of a batch draws its rows of what the whole batch draws."""

import keras
import numpy as np
import pytest
from conftest import images, numpy
from keras import ops

from keras_vit.layers.configurable import flatten_layers
from keras_vit.layers.dropout import Dropout, current_place, images_of_batch, uniform
from keras_vit.layers.encoder import TransformerBlock
from keras_vit.layers.tokens import PatchDropout

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="other backends see whole batches")
SEED = [11, 3]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(7, 3), (5, 4, 2), (6, 1, 1), (9, 13)])
def test_part_draws_its_rows_of_the_whole(dtype, shape):
    generator = keras.random.SeedGenerator(0)
    generator.state.assign(SEED)
    whole = numpy(ops.cast(uniform(shape, generator, dtype), "float32"))
    for first, count in ((0, 2), (2, 3), (4, 1)):
        generator.state.assign(SEED)
        with images_of_batch(first, count):
            part = uniform((count, *shape[1:]), generator, dtype)
        np.testing.assert_array_equal(numpy(ops.cast(part, "float32")), whole[first : first + count])
        assert list(numpy(generator.state)) == [11, 4]


@pytest.mark.parametrize(
    "layer",
    [
        Dropout(0.4, seed=3),
        Dropout(0.4, noise_shape=(None, 1, 1), seed=3),
        PatchDropout(0.5, seed=3),
        TransformerBlock(6, 2, 7, 0.3, 0.2, 0.4),
        TransformerBlock(6, 2, 7, 0.3, 0.2, 0.4, rematerialize=True),
    ],
    ids=["units", "branches", "patches", "block", "block twice"],
)
def test_parts_of_a_batch_leave_out_what_the_whole_does(layer):
    """Two micro-batches of 3 and 2 images, one step: the seeds move on once."""
    tokens = images(5, 4, 6)
    layer(tokens[:1])
    seeds = [part.seed_generator.state for part in flatten_layers(layer) if hasattr(part, "seed_generator")]
    starts = [numpy(seed).copy() for seed in seeds]
    whole = numpy(layer(tokens, training=True))
    ends = [numpy(seed).copy() for seed in seeds]
    for seed, start in zip(seeds, starts, strict=True):
        seed.assign(start)
    parts = []
    for first, count, moves_on in ((0, 3, 0), (3, 2, 1)):
        with images_of_batch(first, count, ops.convert_to_tensor(moves_on)):
            parts.append(numpy(layer(tokens[first : first + count], training=True)))
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-5, atol=1e-5)  # float32, other sums
    assert np.abs(whole - numpy(layer(tokens))[:, : whole.shape[1]]).max() > 0.1
    for seed, end in zip(seeds, ends, strict=True):
        np.testing.assert_array_equal(numpy(seed), end)


def test_place_ends_with_its_block_also_after_an_error():
    with images_of_batch(0, 1):
        assert current_place().count == 1
        with pytest.raises(RuntimeError), images_of_batch(0, 2):
            raise RuntimeError
        assert current_place().count == 1
    assert current_place() is None


def test_layer_is_saved_under_its_own_name_and_is_keras_layer_on_whole_batches():
    layer = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(Dropout(0.4, seed=3)))
    assert type(layer) is Dropout
    x = images(3, 5)
    np.testing.assert_array_equal(
        numpy(layer(x, training=True)), numpy(keras.layers.Dropout(0.4, seed=3)(x, training=True))
    )
