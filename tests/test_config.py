"""`ViTConfig` as records: what each of them checks, and that all of it is read, given and kept by the fields' names."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from conftest import make_tiny, numpy, tiny_config

import keras_vit
from keras_vit.config.parts import INPUT, block_parts, pooling_parts
from keras_vit.config.records import Tokens
from keras_vit.config.vit import RECORD_OF, RECORDS, ViTConfig
from keras_vit.layers import BLOCKS
from keras_vit.model.layer_access import dense_parts, norm_readers, token_layers

SOME = {
    "patch_size": 8,
    "num_layers": 5,
    "distilled": True,
    "position_embedding": "sincos2d",
    "last_block_outputs": "all",
}


def test_every_field_stands_in_one_record():
    names = [field.name for record in RECORDS.values() for field in dataclasses.fields(record)]
    assert sorted(names) == sorted(RECORD_OF)
    assert len(set(names)) == len(names)


def test_fields_are_read_given_and_replaced_by_name():
    config = tiny_config(**SOME)
    assert {name: getattr(config, name) for name in SOME} == SOME
    assert config.tokens == Tokens(distilled=True)
    assert config.replace(distilled=False) == dataclasses.replace(config, distilled=False)
    assert config.replace(distilled=False).tokens == Tokens()
    assert config == tiny_config(**SOME | {"distilled": False}, tokens=Tokens()).replace(distilled=True)


@pytest.mark.parametrize(
    "again",
    [
        copy.deepcopy,
        lambda config: pickle.loads(pickle.dumps(config)),
        lambda config: ViTConfig(**config.as_dict()),
        lambda config: ViTConfig(**dataclasses.asdict(config)),
        lambda config: eval(repr(config)),
    ],
)
def test_a_config_is_made_again_from_what_it_says(again):
    config = tiny_config(**SOME)
    assert again(config) == config
    assert hash(again(config)) == hash(config)


def test_a_config_is_frozen():
    for change in (lambda c: setattr(c, "pooling", "gap"), lambda c: setattr(c.pool, "pooling", "gap")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change(tiny_config())
    with pytest.raises(AttributeError, match="no attribute 'poling'"):
        _ = tiny_config().poling


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"poling": "gap"}, "poling='gap'.*'pooling'"), ({"tokens": {"distiled": True}}, "distiled")],
)
def test_unknown_fields_are_refused(fields, said):
    with pytest.raises(TypeError, match=f"(?s){said}"):
        tiny_config(**fields)


@pytest.mark.parametrize(
    ("fields", "prefix", "read"),
    [
        ({}, ("class",), ("class",)),
        ({"distilled": True}, ("class", "distillation"), ("class", "distillation")),
        ({"pooling": "gap"}, (), ()),
        ({"pooling": "map", "class_token": True}, ("class",), ()),
        ({"pooling": "none", "class_token": False}, (), ()),
    ],
)
def test_prefix_tokens_have_names_and_the_config_says_which_are_read(fields, prefix, read):
    config = tiny_config(**fields)
    assert config.prefix_tokens == prefix
    assert config.pooled_tokens == read
    assert config.num_prefix_tokens == len(prefix)


@pytest.mark.parametrize(
    ("fields", "declared"),
    [
        ({}, {f"block_{i:02}/{part.path}" for i in range(2) for part in block_parts(12, 17)}),
        (
            {"attention": "axial", "pooling": "map"},
            {f"block_{i:02}/{half}/{p.path}" for i in range(2) for half in ("row", "column") for p in block_parts(1, 1)}
            | {f"pooling/{part.path}" for part in pooling_parts(12, 17)},
        ),
        ({"merged_tokens": 3}, {f"block_{i:02}/{part.path}" for i in range(2) for part in block_parts(12, 17)}),
    ],
)
def test_every_dense_kernel_of_blocks_and_pooling_is_declared(fields, declared):
    model = make_tiny(**fields)
    found = dense_parts(model)
    assert {each.path for each in found} == declared
    kernels = {w.path.removesuffix("/kernel") for w in model.weights if w.name == "kernel"}
    assert kernels - declared == {"patch_embedding/projection", "head"}
    for each in found:
        assert tuple(each.dense.kernel.shape) == (each.part.inputs, each.part.outputs)
        assert each.dense.use_bias == each.part.bias


def test_what_is_behind_a_norm_reads_it():
    """A change of a norm's gain moves what the declared readers put out, and a kernel made up for it undoes that."""
    model, x = make_tiny(pooling="map"), np.random.default_rng(0).uniform(-1, 1, (2, 20, 28, 3)).astype("float32")
    before = numpy(model(x))
    readers = norm_readers(model)
    assert len(readers) == 2 * 2 + 2  # two in a block; the pooling's own, and the encoder's, which keys and values read
    for norm, denses in readers:
        norm.gamma.assign(norm.gamma * 2)
        norm.beta.assign(norm.beta * 2)
        for dense in denses:
            dense.kernel.assign(dense.kernel / 2)
    np.testing.assert_allclose(numpy(model(x)), before, atol=1e-5)
    assert [each.part.path for each in dense_parts(model) if each.part.norm == INPUT] == [
        "attention/key",
        "attention/value",
    ]


def test_a_field_that_a_kind_of_block_does_not_know_is_refused(monkeypatch):
    monkeypatch.setattr(BLOCKS["axial"], "arguments", classmethod(lambda cls: ("hidden_size", "num_heads", "mlp_dim")))
    with pytest.raises(ValueError, match=r"'axial'[\s\S]*activation='gelu'"):
        keras_vit.build(tiny_config(attention="axial", pooling="gap", activation="gelu"), input_shape=(20, 28, 3))


def test_layers_of_tokens_are_those_between_patches_and_head():
    names = [layer.name for layer in token_layers(make_tiny(distilled=True)) if layer.weights]
    assert names[:3] == ["patch_embedding", "distillation_token", "class_token"]
    assert names[3:] == ["position_embedding", "block_00", "block_01", "encoder_norm"]


@pytest.mark.parametrize(("fields", "said"), [({"drop_path_rate": 0.1}, "stochastic_depth_rate"), ({}, "patch_size")])
def test_words_of_others_and_missing_sizes_are_told_whatever_else_is_given(fields, said):
    with pytest.raises(TypeError, match=said):
        ViTConfig(**fields)


def test_activation_and_epsilon_that_are_left_out_are_the_papers_and_stay_open():
    config = ViTConfig(8, 24, 2, 3, 20)
    assert (config.activation, config.layer_norm_epsilon) == ("gelu_tanh", 1e-6)
    written = ViTConfig(8, 24, 2, 3, 20, activation="gelu_tanh", layer_norm_epsilon=1e-6)
    assert config == written == ViTConfig(**config.as_dict()) == config.replace(activation=None)
    assert hash(config) == hash(written)
    assert repr(config) == repr(written)
    both = ("activation", "layer_norm_epsilon")
    for same in (config, config.replace(pooling="gap"), dataclasses.replace(config, pooling="gap"), copy.copy(config)):
        assert same.blocks.unspecified == both
    assert config.replace(activation="gelu_tanh").blocks.unspecified == both[1:]
    assert written.replace(activation=None).blocks.unspecified == both[:1]
    assert pickle.loads(pickle.dumps(config)).blocks.unspecified == both
    for said in (written, ViTConfig(**config.as_dict()), dataclasses.replace(written, pooling="gap")):
        assert said.blocks.unspecified == ()


def test_number_of_layers_that_a_file_says_cannot_fill_the_memory():
    with pytest.raises(ValueError, match=r"`num_layers` must be at most 1,000\.\nReceived: num_layers=1,000,000,000\."):
        keras_vit.ViTConfig(8, 12, 10**9, 3, 17)
