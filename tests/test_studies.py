"""The paper's ablations as configurations: each row once, with everything else as it was."""

import dataclasses

import pytest
from conftest import tiny_config

from keras_vit.config import studies


def test_position_study_has_each_row_of_table_8_and_changes_nothing_else():
    base = tiny_config(dropout_rate=0.1)
    rows = studies.position_study(base)
    assert len(rows) == 8
    assert max(studies.TABLE_8, key=studies.TABLE_8.get) == ("learned", "blocks_shared")
    for (kind, where), config in rows.items():
        assert (config.position_embedding, config.position_injection) == (kind, where)
        assert dataclasses.replace(config, position_embedding="learned", position_injection="stem") == base


def test_head_study_compares_the_class_token_with_the_mean():
    configs = studies.head_study(tiny_config(representation_size=9))
    assert [config.has_class_token for config in configs.values()] == [True, False]
    assert all(config.representation_size is None for config in configs.values())


@pytest.mark.parametrize(
    ("dimension", "field", "sizes"),
    [
        ("depth", "num_layers", [2, 4, 8, 16, 32, 64]),
        ("width", "hidden_size", [256, 512, 1024, 2048, 4096, 8192]),
        ("mlp", "mlp_dim", [512, 1024, 2048, 4096, 8192, 16384]),
        ("patch", "patch_size", [128, 64, 32, 16, 8, 4]),
    ],
)
def test_shape_study_scales_one_dimension(dimension, field, sizes):
    configs = studies.shape_study(dimension)
    assert [getattr(config, field) for config in configs.values()] == sizes
    for factor, config in configs.items():
        assert dataclasses.replace(config, **{field: getattr(studies.SHAPE_BASE, field)}) == studies.SHAPE_BASE
        assert (config == studies.SHAPE_BASE) == (factor == 1)


def test_shape_study_scales_all_at_once():
    config = studies.shape_study("all", [2])[2]
    sizes = (config.num_layers, config.hidden_size, config.mlp_dim, config.patch_size, config.num_heads)
    assert sizes == (16, 2048, 4096, 16, 16)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("heads",), "`dimension`"),
        (("depth", [0.3]), "0.3 of num_layers=8"),
        (("depth", [0]), "whole number"),
        (("patch", [-1]), "whole number"),
        (("patch", [64]), "64 of patch_size=32"),
    ],
)
def test_shape_study_refuses_what_is_no_model(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        studies.shape_study(*arguments)
