import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, tiny_config

import keras_vit
from keras_vit.model.freezing import freeze
from keras_vit.model.lora import add_lora

BLOCK = 4 * (12 * 12 + 12) + (12 * 17 + 17) + (17 * 12 + 12) + 4 * 12  # attention, MLP, two LayerNorms
BEHIND = 2 * 12  # encoder_norm
HEAD = 12 * 7 + 7


def count(weights):
    return sum(int(np.prod(weight.shape)) for weight in weights)


def changed_by_fit(model):
    before = {weight.path: numpy(weight).copy() for weight in model.weights}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.AdamW(0.01, weight_decay=0.1), loss, run_eagerly=True
    )  # one step: tracing takes longer
    model.train_on_batch(images(4, 20, 28, 3), np.arange(4))
    return {weight.path for weight in model.weights if not np.array_equal(numpy(weight), before[weight.path])}


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        (("head",), ("head",)),
        (("last_blocks", 1), ("block_01", "encoder_norm", "pre_logits", "head")),
        (("last_blocks", 2), ("block_00", "block_01", "encoder_norm", "pre_logits", "head")),
    ],
)
def test_only_what_learns_changes_even_with_weight_decay(arguments, layers):
    model = make_tiny(representation_size=6)
    freeze(model, *arguments)
    assert changed_by_fit(model) == {w.path for w in model.weights if w.path.startswith(layers)}


def test_attention_pooling_learns_with_the_last_blocks():
    model = make_tiny(pooling="map")
    freeze(model, "last_blocks", 1)
    assert {w.path.split("/")[0] for w in model.trainable_weights} == {"block_01", "encoder_norm", "pooling", "head"}


def test_both_heads_of_a_distilled_model_are_its_probe():
    model = keras_vit.build(tiny_config(distilled=True), input_shape=(20, 28, 3), classes=7)
    freeze(model, "head")
    assert count(model.trainable_weights) == 2 * HEAD


def test_trainable_parameters_follow_the_formula_and_all_undoes_freezing(tiny):
    for arguments, expected in [
        (("last_blocks", 1), BLOCK + BEHIND + HEAD),
        (("last_blocks", 2), 2 * BLOCK + BEHIND + HEAD),
        (("head",), HEAD),
    ]:
        freeze(tiny, *arguments)
        assert count(tiny.trainable_weights) == expected
    freeze(tiny, "all")
    assert len(tiny.trainable_weights) == len(tiny.weights)


def test_freezing_is_saved_and_survives_another_shape(tmp_path, tiny):
    freeze(tiny, "last_blocks", 1)
    tiny.save(tmp_path / "model.keras")
    expected = [w.path for w in tiny.trainable_weights]
    for copy in (keras.saving.load_model(tmp_path / "model.keras"), keras_vit.with_input_shape(tiny, (32, 16, 3))):
        assert [w.path for w in copy.trainable_weights] == expected


@pytest.fixture(scope="module")
def untouched():
    """A model for what is refused: that it stays as it is, is part of each claim."""
    return make_tiny()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"trainable": "heads"}, ValueError, "Did you mean 'head'"),
        ({"trainable": "last_blocks"}, TypeError, "`blocks` must be an int"),
        ({"trainable": "last_blocks", "blocks": 0}, ValueError, "`blocks` must be at least 1"),
        ({"trainable": "last_blocks", "blocks": 3}, ValueError, "Received: blocks=3, 'vit' with 2 blocks"),
        ({"trainable": "head", "blocks": 1}, ValueError, "`blocks` counts what"),
    ],
)
def test_freezing_refuses(untouched, arguments, error, message):
    with pytest.raises(error, match=message):
        freeze(untouched, **arguments)
    assert len(untouched.trainable_weights) == len(untouched.weights)


def test_a_probe_needs_a_head():
    with pytest.raises(ValueError, match="needs a head"):
        freeze(keras_vit.build(tiny_config(), include_top=False, input_shape=(20, 28, 3)), "head")


def test_freezing_needs_a_model_of_ours():
    with pytest.raises(TypeError, match="must be a VisionTransformer"):
        freeze(keras.Sequential([keras.layers.Dense(3)]))


def test_freezing_leaves_lora_alone(tiny):
    add_lora(tiny, 2)
    with pytest.raises(ValueError, match="LoRA has frozen the kernels"):
        freeze(tiny, "all")
