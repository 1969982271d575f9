import math

import keras
import pytest
from conftest import tiny_config

import keras_vit
from keras_vit.config.variants import VARIANTS, variant
from keras_vit.config.vit import ViTConfig

# The official code's own test asserts these for 224 pixels and 1,000 classes (models_test.py); g/14 and G/14
# follow from the formula below. A deliberate second copy of the sizes.
PUBLISHED_PARAMETERS = {
    "Ti/16": 5_717_416,
    "S/32": 22_878_952,
    "S/16": 22_050_664,
    "B/32": 88_224_232,
    "B/16": 86_567_656,
    "B/8": 86_576_872,
    "L/32": 306_535_400,
    "L/16": 304_326_632,
    "H/14": 632_045_800,
    "g/14": 1_012_611_432,
    "G/14": 1_844_440_680,
    "R+Ti/16": 6_337_704,
    "R26+S/32": 36_431_912,
    "R26+B/32": 101_383_976,
    "R50+B/16": 98_659_112,
    "R50+L/32": 328_994_856,
}
# The same source, without class token.
PUBLISHED_GAP_PARAMETERS = {"S/16": 22_049_896, "S/32": 22_878_184, "B/16": 86_566_120, "B/32": 88_222_696}


TESTING = ViTConfig(16, 10, 1, 2, 10)
COUNTS = [
    *((name, {"pooling": "gap"}, count) for name, count in PUBLISHED_GAP_PARAMETERS.items()),
    (TESTING, {}, 21_390),  # `testing` of the official code
    (TESTING, {"pooling": "none", "class_token": False}, 21_370),  # `testing-unpooled`
    ("B/16", {"input_shape": (384, 384, 3)}, 86_859_496),
    ("H/14", {"input_shape": (378, 378, 3)}, 632_651_240),
    ("R50+L/32", {"input_shape": (384, 384, 3)}, 329_092_136),
    ("B/16", {"include_top": False}, 85_798_656),  # backbones of other libraries
    ("B/16", {"include_top": False, "input_shape": (384, 384, 3)}, 86_090_496),
    ("L/32", {"include_top": False}, 305_510_400),
    ("H/14", {"include_top": False}, 630_764_800),
]


@pytest.mark.parametrize(("config", "arguments", "expected"), COUNTS)
def test_model_has_the_published_number_of_parameters(config, arguments, expected):
    """Counted without making any: a model built in a stateless scope has shapes only."""
    with keras.StatelessScope(initialize_variables=False):
        assert keras_vit.build(config, **arguments).count_params() == expected


@pytest.mark.parametrize("name", VARIANTS)
def test_stride_is_what_the_paper_calls_the_variant(name):
    stride = 32 if name == "R+Ti/16" else int(name.split("/")[1])  # R+Ti/16 is really /32
    assert VARIANTS[name].stride == stride


@pytest.mark.parametrize("name", VARIANTS)
def test_heads_are_64_wide_except_in_the_giants(name):
    wide = {"H/14": 80, "g/14": 88, "G/14": 104}
    assert VARIANTS[name].hidden_size // VARIANTS[name].num_heads == wide.get(name, 64)


def test_dropout_is_that_of_the_official_configs():
    assert {name for name, v in VARIANTS.items() if v.dropout_rate == 0.1} == {"L/16", "H/14", "R50+B/16", "R50+L/32"}


def test_unknown_variant_lists_the_nearest():
    with pytest.raises(ValueError, match=r"'B_16'.*'B/16'"):
        variant("B_16")


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"patch_size": 0}, ValueError, "`patch_size`"),
        ({"patch_size": True}, TypeError, "`patch_size`"),
        ({"hidden_size": 12.0}, TypeError, "`hidden_size`"),
        ({"num_heads": 5}, ValueError, "`hidden_size`.* multiple of `num_heads`"),
        ({"pooling": "avg"}, ValueError, "`pooling`.* 'token', 'gap', 'token_gap', 'map', 'attentive', 'none'"),
        ({"pooling": "gpa"}, ValueError, "Did you mean 'gap'"),
        ({"class_token": False}, ValueError, '`pooling="gap"`'),
        ({"class_token": "yes"}, TypeError, "`class_token`"),
        ({"dropout_rate": 1.0}, ValueError, r"`dropout_rate`.* \[0, 1\)"),
        ({"attention_dropout_rate": math.nan}, ValueError, "`attention_dropout_rate`"),
        ({"stochastic_depth_rate": "0.1"}, TypeError, "`stochastic_depth_rate`"),
        ({"patch_dropout_rate": 1.0}, ValueError, r"`patch_dropout_rate`.* \[0, 1\)"),
        ({"rematerialize": 1}, TypeError, "`rematerialize`"),
        ({"activation": "relu"}, ValueError, "`activation`.* 'gelu_tanh', 'gelu'"),
        ({"position_embedding": "sincos2d", "hidden_size": 6}, ValueError, "multiple of 4"),
        ({"representation_size": 0}, ValueError, "`representation_size`"),
        ({"resnet_stages": 3}, TypeError, "`resnet_stages`"),
        ({"resnet_stages": (2, 0)}, ValueError, "`resnet_stages`"),
        ({"resnet_stages": (), "resnet_width_factor": 0.25}, ValueError, "32 groups"),
    ],
)
def test_config_refuses(fields, error, message):
    with pytest.raises(error, match=message):
        tiny_config(**fields)


def test_config_survives_json_lists():
    config = tiny_config(resnet_stages=(1, 2), resnet_width_factor=0.5)
    assert ViTConfig(**config.as_dict() | {"resnet_stages": [1, 2]}) == config
