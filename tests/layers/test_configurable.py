"""The layers inside a layer, found without Keras' private list of them."""

import keras

from keras_vit.layers.configurable import flatten_layers


def test_parts_of_parts_are_found_once_each(tiny):
    block = tiny.get_layer("block_00")
    parts = flatten_layers(block)
    assert parts[0] is block
    assert {id(block.mlp), id(block.mlp.dense_1), id(block.attention.query)} <= set(map(id, parts))
    assert len(set(map(id, parts))) == len(parts)
    assert flatten_layers(block, include_self=False) == parts[1:]
    assert block.mlp.dense_1 in flatten_layers(tiny)


class Holder(keras.layers.Layer):
    """Holds layers in every way that an attribute can."""

    def __init__(self):
        super().__init__()
        self.listed = [keras.layers.Dense(2), [keras.layers.Dense(3)]]
        self.named = {"one": (keras.layers.Dense(4), keras.layers.Dense(5)), "number": 6}
        self.shared = self.listed[0]
        self.wrapped = keras.layers.TimeDistributed(keras.layers.Dense(7))

    def call(self, x):
        return x


def test_what_keras_lists_is_found_in_every_kind_of_attribute():
    inner = keras.Sequential([Holder()])
    outer = keras.Sequential([keras.layers.Rescaling(2.0), inner])
    for layer in (Holder(), inner, outer, keras.layers.MultiHeadAttention(2, 3)):
        found = flatten_layers(layer)
        assert len(found) == len(set(map(id, found)))
        assert set(map(id, found)) == set(map(id, layer._flatten_layers()))
    dense = [layer.units for layer in flatten_layers(outer) if isinstance(layer, keras.layers.Dense)]
    assert sorted(dense) == [2, 3, 4, 5, 7]


def test_model_among_layers_does_not_lead_to_the_model_around_it(tiny):
    inputs = keras.Input((20, 28, 3))
    outer = keras.Model(inputs, keras.layers.Dense(2)(tiny(inputs)))
    assert outer not in flatten_layers(tiny)
    assert tiny in flatten_layers(outer)
