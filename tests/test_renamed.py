"""Every old name of `renamed.py` warns once and does what the new one does; saved configs take both in silence."""

import dataclasses
import importlib
import warnings

import keras
import numpy as np
import pytest
from conftest import GOLDEN

import keras_vit
from keras_vit import layers
from keras_vit.config import position_tables, records
from keras_vit.renamed import ARGUMENTS, EXPORT_OPTIONS, NAMES, VALUES, current_arguments

CONFIG = keras_vit.ViTConfig(8, 24, num_layers=2, num_heads=3, mlp_dim=20, class_tokens=2)
SIZES = {"hidden_size": 24, "num_heads": 3, "mlp_dim": 20}
BLOCK = lambda **given: layers.TransformerBlock(**SIZES, **given)  # noqa: E731
POOL = lambda **given: layers.TokenPooling("token", 2, **given)  # noqa: E731
# what takes an argument under its new name, and a value: new name: ((maker, value), ...)
TAKERS = {
    "norm_position": ((CONFIG.replace, "post"), (BLOCK, "post")),
    "normalize_embedding": ((CONFIG.replace, True),),
    "pool_prefix_tokens": ((CONFIG.replace, True),),
    "class_token_reduction": ((CONFIG.replace, "concatenated"), (POOL, "concatenated"), (records.Pooling, "mean")),
    "class_token_indices": ((CONFIG.replace, (1,)), (POOL, (0, 1)), (records.Pooling, (1,))),
    "last_block_outputs": ((CONFIG.replace, "all"), (records.Pooling, "all")),
    "use_attention_bias": ((BLOCK, True),),
    "return_indices": ((lambda **given: layers.PatchDropout(0.5, **given), True),),
}
# functions that refuse an argument by its new name, and a value: new name: (function, value)
FUNCTIONS = {
    "num_neighbors": (lambda **given: keras_vit.probe(None, None, "linear", **given), 3),
    "format": (lambda **given: keras_vit.convert_checkpoint(GOLDEN / "token.npz", "x.npz", **given), "line"),
}
ATTRIBUTES = {"positioned_tokens", "pooled_tokens", "pooled_indices", "num_pooled_tokens"}  # no arguments
OF_A_BLOCK = {"optional_inputs", "extra_outputs"}
# arguments of a call
CALLS = {"feature_map": np.zeros((1, 8, 8, 3), "float32"), "patch_indices": np.array([[1, 3]])}
OF_A_RUN = ("print_fn", "on_epoch_end")
OLD = {new: old for old, new in ARGUMENTS.items()}


def test_every_old_name_is_tested():
    assert set(TAKERS) | set(FUNCTIONS) | ATTRIBUTES | OF_A_BLOCK | set(OF_A_RUN) | set(CALLS) == set(
        ARGUMENTS.values()
    )
    assert all(hasattr(keras_vit, new) for new in NAMES.values())
    assert set(VALUES) <= set(ARGUMENTS.values())


@pytest.mark.parametrize(("new", "taker", "value"), [(new, *row) for new, rows in TAKERS.items() for row in rows])
def test_old_argument_warns_once_and_is_the_new_one(new, taker, value):
    expected, old = taker(**{new: value}), OLD[new]
    with pytest.warns(DeprecationWarning, match=f"`{old}`.*`{new}`") as caught:
        found = taker(**{old: value})
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert getattr(found, new) == getattr(expected, new) == value
    with pytest.warns(DeprecationWarning, match=f"`{old}`.*`{new}`"):
        assert getattr(found, old) == old_spelling({new: value})[old]
    with pytest.raises(TypeError, match=f"both `{old}` and `{new}`|`{new}`"):
        taker(**{old: value, new: value})


@pytest.mark.parametrize("new", CALLS)
def test_old_argument_of_a_call_warns_and_is_the_new_one(new):
    layer = layers.RotaryPositions(8, num_heads=3, patch_size=4)
    given = {name: value for name, value in CALLS.items() if name != new}
    expected = layer(**given, **{new: CALLS[new]}, training=True)
    with pytest.warns(DeprecationWarning, match=f"`{OLD[new]}`.*`{new}`") as caught:
        found = layer(**given, **{OLD[new]: CALLS[new]}, training=True)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("new", FUNCTIONS)
def test_old_argument_of_a_function_warns_and_is_the_new_one(new):
    function, value = FUNCTIONS[new]
    with (
        pytest.warns(DeprecationWarning, match=f"`{OLD[new]}`.*`{new}`") as caught,
        pytest.raises(ValueError, match=f"(?s)`{new}`.*{value}"),
    ):
        function(**{OLD[new]: value})
    assert caught[0].filename == __file__


@pytest.mark.parametrize("new", OF_A_RUN)
def test_old_argument_of_a_run_warns(new, tmp_path):
    with (
        pytest.warns(DeprecationWarning, match=f"`{OLD[new]}`.*`{new}`") as caught,
        pytest.raises(ValueError, match="nowhere"),
    ):
        keras_vit.finetune("nowhere", tmp_path / "run", **{OLD[new]: lambda _: None})
    assert caught[0].filename == __file__


@pytest.mark.parametrize("old", NAMES)
def test_old_public_name_warns_and_is_the_new_one(old):
    with pytest.warns(DeprecationWarning, match=f"`{old}`.*`{NAMES[old]}`"):
        assert getattr(keras_vit, old) is getattr(keras_vit, NAMES[old])


@pytest.mark.parametrize("name", sorted(ATTRIBUTES | OF_A_BLOCK))
def test_old_attribute_warns_and_is_the_new_one(name):
    owner = BLOCK(rotary_layout="half") if name in OF_A_BLOCK else CONFIG
    with pytest.warns(DeprecationWarning, match=f"`{OLD[name]}`.*`{name}`"):
        assert getattr(owner, OLD[name]) == getattr(owner, name)


@pytest.mark.parametrize(("new", "old", "value"), [(new, *pair) for new, v in VALUES.items() for pair in v.items()])
def test_old_value_warns_and_is_the_new_one(new, old, value):
    for taker, _ in TAKERS[new]:
        with pytest.warns(DeprecationWarning, match=f"{old!r}.*{value!r}"):
            found = taker(**{new: old})
        assert getattr(found, new) == value


@pytest.mark.parametrize("name", EXPORT_OPTIONS)
def test_old_argument_of_export_warns_and_is_an_option(name):
    given = {name: None}
    with (
        pytest.warns(DeprecationWarning, match=f"`{name}`.*options") as caught,
        pytest.raises(TypeError, match="model"),
    ):
        keras_vit.export(None, "nowhere/x", **given)
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="options"), pytest.raises(TypeError, match=f"both `{name}`"):
        keras_vit.export(None, "x", options=given, **given)


def old_spelling(arguments):
    """Arguments as an earlier version wrote them."""
    values = {new: {now: was for was, now in table.items()} for new, table in VALUES.items()}
    return {
        OLD.get(name, name): values.get(name, {}).get(value, value) if isinstance(value, str) else value
        for name, value in arguments.items()
    }


def test_what_files_say_is_taken_in_both_spellings_in_silence():
    config = CONFIG.replace(norm_position="post", class_token_indices=(1,), last_block_outputs="all")
    was = old_spelling(config.as_dict())
    assert {"branch_norm", "summary", "last_block"} <= set(was)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert keras_vit.ViTConfig(**current_arguments(was)) == config
        for layer in (BLOCK(norm_position="post", name="a"), POOL(class_token_indices=(0, 1), name="b")):
            again = type(layer).from_config(old_spelling(layer.get_config()))
            assert again.get_config() == layer.get_config()
        model = keras_vit.build(config, input_shape=(16, 16, 3), classes=3)
        facts = model.get_config()
        facts["config"] = old_spelling(facts["config"])
        for layer in facts["layers"]:
            layer["config"] = old_spelling(layer["config"])
        again = keras_vit.VisionTransformer.from_config(facts)
    assert again.config == config
    assert [w.path for w in again.weights] == [w.path for w in model.weights]


def test_builders_take_the_old_names_of_fields():
    for make in (keras_vit.ViTTi16, lambda **given: keras_vit.build(CONFIG, **given)):
        with pytest.warns(DeprecationWarning, match="last_block_outputs") as caught:
            model = make(last_block="all", input_shape=(16, 16, 3), classes=2)
        assert len(caught) == 1
        assert model.config.last_block_outputs == "all"
    with pytest.warns(DeprecationWarning, match="norm_position"):
        assert dataclasses.replace(CONFIG, branch_norm="behind").norm_position == "post"
    keras.backend.clear_session()


@pytest.mark.parametrize("name", ["posembed", "relative_tables"])
def test_old_modules_of_position_tables_are_there(name):
    assert importlib.import_module(f"keras_vit.config.{name}") is position_tables
    with pytest.warns(DeprecationWarning, match="position_tables"):
        assert getattr(keras_vit.config, name).RESIZE_METHODS is position_tables.RESIZE_METHODS
