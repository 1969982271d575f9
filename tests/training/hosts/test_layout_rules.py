"""Which weights are cut and along which axis, from paths and shapes: against what the papers say, typed by hand."""

import re

import pytest

from keras_vit.training.hosts import layout_maps
from keras_vit.training.hosts.layout_maps import (
    check_covered,
    check_heads,
    check_shared,
    output_pattern,
    pattern_of,
    sharding_rules,
)

SHAPES = {  # of H/14 with 21,843 classes, at 224 pixels
    "patch_embedding/projection/kernel": (14, 14, 3, 1280),
    "position_embedding/table": (1, 257, 1280),
    "block_00/attention/query/kernel": (1280, 1280),
    "block_00/attention/query/bias": (1280,),
    "block_00/attention/out/kernel": (1280, 1280),
    "block_00/attention/out/bias": (1280,),
    "block_07/attention/key/kernel": (1280, 1280),
    "block_07/mlp/dense_1/kernel": (1280, 5120),
    "block_07/mlp/dense_1/bias": (5120,),
    "block_07/mlp/dense_2/kernel": (5120, 1280),
    "block_07/norm_1/gamma": (1280,),
    "block_08/mlp/gate/kernel": (1280, 5120),  # of a gated block
    "block_08/mlp/gate/bias": (5120,),
    "block_08/mlp/up/kernel": (1280, 5120),
    "block_08/mlp/down/kernel": (5120, 1280),
    "head/kernel": (1280, 21843),
}

LAYERS = ("patch_embedding", "block_00", "block_01")


def specs(*arguments, **more):
    """`{path: spec}` of the weights that are cut."""
    found = sharding_rules(SHAPES, *arguments, **more)
    return {path: spec for path in SHAPES for pattern, spec in found.items() if re.fullmatch(pattern, path)}


def test_fsdp_cuts_every_large_weight_along_its_largest_divisible_axis():
    assert specs(8, "data", "fsdp") == {
        "block_00/attention/query/kernel": (None, "data"),
        "block_00/attention/out/kernel": (None, "data"),
        "block_07/attention/key/kernel": (None, "data"),
        "block_07/mlp/dense_1/kernel": (None, "data"),
        "block_07/mlp/dense_2/kernel": ("data", None),
        "block_08/mlp/gate/kernel": (None, "data"),
        "block_08/mlp/up/kernel": (None, "data"),
        "block_08/mlp/down/kernel": ("data", None),
        "head/kernel": ("data", None),  # 21,843 is no multiple of 8
    }


def test_tensor_parallelism_cuts_heads_and_width_as_megatron():
    assert specs(8, "model", "tensor") == {
        "block_00/attention/query/kernel": (None, "model"),
        "block_00/attention/query/bias": ("model",),
        "block_00/attention/out/kernel": ("model", None),
        "block_07/attention/key/kernel": (None, "model"),
        "block_07/mlp/dense_1/kernel": (None, "model"),
        "block_07/mlp/dense_1/bias": ("model",),
        "block_07/mlp/dense_2/kernel": ("model", None),
        "block_08/mlp/gate/kernel": (None, "model"),
        "block_08/mlp/gate/bias": ("model",),
        "block_08/mlp/up/kernel": (None, "model"),
        "block_08/mlp/down/kernel": ("model", None),
        "head/kernel": ("model", None),
    }


def test_a_limit_of_size_is_exact_and_copies_are_not_cut():
    assert specs(8, "data", "replicated") == {}
    shapes = {"a/kernel": (1000, 1000), "b/kernel": (1000, 1001)}  # 4,000,000 bytes, and a little more
    assert list(sharding_rules(shapes, 2, "data", "fsdp")) == [pattern_of("b/kernel")]


def test_devices_that_divide_no_axis_are_refused_with_the_nearest_number():
    with pytest.raises(ValueError, match=r"(?s)512 devices.*Nearest: 320"):
        sharding_rules(SHAPES, 512, "data", "fsdp")


@pytest.mark.parametrize("scope", ["", "outer/scope/"])
def test_a_pattern_is_for_every_block_in_any_scope(scope):
    pattern = pattern_of("block_00/attention/query/kernel")
    assert re.fullmatch(pattern, f"{scope}block_31/attention/query/kernel")
    assert not re.fullmatch(pattern, f"{scope}block_31/attention/query/kernel_momentum")
    assert not re.fullmatch(pattern, "sgd/block_31_attention_query_kernel_momentum")
    assert re.fullmatch(output_pattern(LAYERS), f"{scope}block_07/output")
    assert not re.fullmatch(output_pattern(LAYERS), f"{scope}block_07/attention/output")


def test_heads_that_cannot_be_shared_are_refused_with_what_can():
    check_heads(16, 5120, 8)
    with pytest.raises(ValueError, match="1, 2, 4, 8, 16 devices"):
        check_heads(16, 5120, 3)


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ([r"block.*/kernel"], r"no pattern .*: head/kernel"),
        ([r".*/kernel", "head/.*"], r"two patterns .*: head/kernel by "),
        ([r".*/kernel", "heads/.*"], r"no weight.*: heads/"),
        (["*kernel"], r"'\*kernel'"),
    ],
)
def test_a_layout_that_leaves_out_doubles_or_misses_is_refused(patterns, said):
    with pytest.raises(ValueError, match=said):
        check_covered(SHAPES, patterns)


@pytest.mark.parametrize("kind", ["fsdp", "tensor"])
def test_our_own_layouts_are_covered(kind):
    check_covered(SHAPES, [*sharding_rules(SHAPES, 8, "data", kind), output_pattern(LAYERS)])
    assert layout_maps.LARGE == 4e6


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"head/kernel": (None, "data")}, r"head/kernel \(12, 7\): 7 "),
        ({".*kernel": ("data", None, None)}, "2 axes, .* 3"),
        ({".*": (None, "data")}, r"head/bias \(7,\) has 1 axes, .* 2"),
        ({"head/kernel": ("data", "data")}, "two axes"),
        ({"head/kernel": ("model", None)}, "no axis 'model'"),
    ],
)
def test_layouts_that_no_devices_can_have_are_named(spec, said):
    with pytest.raises(ValueError, match=said):
        check_shared({"head/kernel": (12, 7), "head/bias": (7,)}, spec, {"data": 4})


def test_layouts_that_devices_can_have_pass():
    shapes = {"a/kernel": (12, 7), "a/bias": (7,), "b": ()}
    check_shared(shapes, {"a/kernel": ("data", None), "x": ("data",)}, {"data": 4})
    check_shared(shapes, {"a/kernel": ("data", "model")}, {"data": 4, "model": 7})
