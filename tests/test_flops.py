"""FLOPs by formula: against the traced model on JAX, timm's counts, the paper's table 6, and numbers by hand."""

import dataclasses
import math

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, tiny_config

import keras_vit
from keras_vit import Flops, flops, training_exaflops
from keras_vit.config.flops import resnet
from keras_vit.config.variants import RESNETS, VARIANTS
from keras_vit.config.vit import ViTConfig

# timm's results files, 1e9 multiply-adds at 224 and at 384 pixels with every token; typed from there.
TIMM = {
    "Ti/16": (1.26, 4.70),
    "S/16": (4.61, 15.52),
    "S/32": (1.15, 3.45),
    "B/8": (78.22, None),
    "B/16": (17.58, 55.54),
    "B/32": (4.41, 13.06),
    "L/16": (61.60, 191.2),
    "L/32": (15.39, 45.31),
    "H/14": (167.4, None),
    "g/14": (267.2, None),
    "R+Ti/16": (0.44, 1.34),
    "R26+S/32": (3.56, 10.43),
    "R26+B/32": (6.81, None),
    "R50+B/16": (21.66, 67.43),
    "R50+L/32": (19.58, 57.43),
}
# arXiv:2010.11929, table 6: epochs of JFT and exaFLOPs; typed from there.
TABLE_6 = [
    ("B/32", 7, 55),
    ("B/16", 7, 224),
    ("L/32", 7, 196),
    ("L/16", 7, 783),
    ("L/16", 14, 1567),
    ("H/14", 14, 4262),
]
TABLE_6 += [("R50+B/32", 7, 106), ("R50+B/16", 7, 274), ("R50+L/32", 7, 246)]
TABLE_6 += [("R50+L/16", 7, 859), ("R50+L/16", 14, 1668)]
TABLE_6 += [("R50x1", 7, 50), ("R50x2", 7, 199), ("R101x1", 7, 96), ("R152x1", 7, 141)]
TABLE_6 += [("R152x2", 7, 563), ("R152x2", 14, 1126), ("R200x3", 14, 3306)]
# The paper's table 6 alone has these: ResNet and transformer of two published variants.
PAPER_ONLY = {
    "R50+B/32": dataclasses.replace(VARIANTS["R50+B/16"], resnet_stages=(3, 4, 6, 3)),
    "R50+L/16": dataclasses.replace(VARIANTS["R50+L/32"], resnet_stages=(3, 4, 9)),
}
GAP = tiny_config(pooling="gap", num_layers=3)


def every_token(name):
    return dataclasses.replace(VARIANTS[name], last_block_outputs="all")


# Against the traced model

HYBRID = {"patch_size": 1, "resnet_stages": (1, 2), "resnet_width_factor": 0.5}
# Fields of a config, and H, W, C and K.
CASES = {
    "pooled": ({}, (20, 28, 3, 7)),
    "every token": ({"last_block_outputs": "all"}, (20, 28, 3, 7)),
    "no head": ({}, (12, 44, 5, 0)),
    "one block": ({"num_layers": 1}, (20, 28, 3, 7)),
    "mean": ({"pooling": "gap", "class_token": True}, (20, 28, 3, 7)),
    "attention pooling": ({"pooling": "map", "class_token": True}, (20, 28, 3, 7)),
    "all tokens": ({"pooling": "none", "representation_size": 11}, (20, 28, 1, 7)),
    "representation": ({"representation_size": 11}, (20, 28, 3, 7)),
    "distilled": ({"distilled": True}, (20, 28, 3, 7)),
    "distilled, every token": ({"distilled": True, "last_block_outputs": "all"}, (20, 28, 3, 0)),
    "positions of sines": ({"position_embedding": "sincos2d"}, (20, 28, 3, 7)),
    "patch dropout": ({"patch_dropout_rate": 0.5, "rematerialize": True}, (20, 28, 3, 7)),
    "positions in 2-D": ({"position_embedding": "learned2d", "position_injection": "blocks"}, (20, 28, 3, 7)),
    "relative positions": ({"position_embedding": "relative"}, (20, 28, 3, 7)),
    "merged tokens": ({"merged_tokens": 6, "num_layers": 4}, (20, 28, 3, 7)),
    "merged tokens, mean": ({"merged_tokens": 30, "pooling": "gap", "distilled": False}, (20, 28, 3, 7)),
    "axial": ({"attention": "axial", "pooling": "gap"}, (20, 28, 3, 7)),
    "hybrid": (HYBRID, (24, 56, 3, 7)),
    "hybrid of a root": (HYBRID | {"patch_size": 3, "resnet_stages": ()}, (24, 60, 1, 7)),
}

LOWERED = ("Ti/16", "R+Ti/16", "B/16", "R50+B/16", "R50x1")  # whose every operation XLA counts: one of each width


def case(name):
    """The arguments of `build` or `build_resnet`, config first; most variants with two blocks, as all but the last are
    alike."""
    if name in RESNETS or name in LOWERED:
        return VARIANTS.get(name) or RESNETS[name], {}
    if name in VARIANTS:
        return VARIANTS[name].replace(num_layers=2), {}
    fields, (*shape, classes) = CASES[name]
    top = {"classes": classes} if classes else {"include_top": False}
    return tiny_config(**fields), {"input_shape": tuple(shape), **top}


def traced():
    """`{case: [FLOPs of products and convolutions, and all that XLA counts]}`, of models without values, on JAX."""
    import jax

    from keras_vit.keras_private import drop_uninitialized_variables

    def like(variables):
        return [jax.ShapeDtypeStruct(tuple(v.shape), v.dtype) for v in variables]

    found = {}
    for name in [*CASES, *VARIANTS, *RESNETS]:
        config, arguments = case(name)
        build = keras_vit.build_resnet if name in RESNETS else keras_vit.build
        with keras.StatelessScope(initialize_variables=False):
            model = build(config, **arguments)
        image = jax.ShapeDtypeStruct((1, *model.input_shape[1:]), "float32")
        step = jax.jit(lambda *given, model=model: model.stateless_call(*given, training=False)[0])
        trace = step.trace(like(model.trainable_variables), like(model.non_trainable_variables), image)
        found[name] = [products(trace.jaxpr)]
        if name in LOWERED:
            found[name].append(trace.lower().cost_analysis()["flops"])
        drop_uninitialized_variables()
    return found


def products(jaxpr):
    """FLOPs of all matrix products and convolutions in a traced function, and in what it calls."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [getattr(value, "jaxpr", value) for value in equation.params.values()]
        total += sum(products(value) for value in inner if hasattr(value, "eqns"))
        sizes = [variable.aval.shape for variable in (*equation.outvars, *equation.invars)]
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += 2 * math.prod(sizes[0]) * math.prod(sizes[1][axis] for axis in contracted)
        elif equation.primitive.name == "conv_general_dilated":
            total += 2 * math.prod(sizes[0]) * math.prod(sizes[2][:-1])  # a kernel is (height, width, in, out)
    return total


@pytest.mark.elsewhere("jax", "traced")
@pytest.mark.parametrize("name", [*CASES, *VARIANTS, *RESNETS])
def test_flops_are_those_of_the_traced_products_and_convolutions(found, name):
    config, arguments = case(name)
    shape = arguments.get("input_shape", (224, 224, 3))
    classes = arguments.get("classes", 0 if "include_top" in arguments else 1000)
    assert flops(config, shape[:2], classes=classes, channels=shape[2]).total == found[name][0]


@pytest.mark.elsewhere("jax", "traced")
@pytest.mark.parametrize("name", LOWERED)
def test_what_is_left_out_is_little(found, name):
    """XLA counts norms, softmax, GELU and sums too, and leaves out taps on padding. JAX 0.10 came to 0.15-1.42 %; only
    Ti/16 and R+Ti/16, whose tokens are narrow, are above 1. ResNets standardise every kernel: 1.76-2.98 %."""
    more = found[name][1] / flops(name).total - 1
    assert 0.001 < more < (0.03 if name in RESNETS else 0.016 if "Ti" in name else 0.01)


# Against others


@pytest.mark.parametrize("name", sorted(VARIANTS.keys() - {"G/14"}))  # which timm has not
def test_variant_has_the_multiply_adds_that_timm_counts(name):
    """Within what timm counts besides, norms most of all: 0.6 % of a transformer, 2.8 % of a hybrid."""
    for size, expected in zip((224, 384), TIMM[name], strict=True):
        if expected is not None:
            found = flops(every_token(name), size).multiply_adds / 1e9
            assert found == pytest.approx(expected, rel=0.03 if "+" in name else 0.01)


def test_stem_of_a_hybrid_has_the_multiply_adds_of_a_resnet():
    """torchvision counts 4.09e9 for ResNet-50 at 224 pixels, of which the classifier has 2,048 * 1,000."""
    found = flops("R50+L/32").stem / 2 + 2048 * 1000
    assert found / 1e9 == pytest.approx(4.09, abs=0.005)  # as it is printed


@pytest.mark.parametrize(("name", "epochs", "expected"), TABLE_6)
def test_training_takes_the_exaflops_of_the_papers_table_6(name, epochs, expected):
    """7 epochs of R50+L/16 are 51.5 % of 14 in the table, so one of the two is printed wrong; ours are half.

    Ours are above the paper's by as much for all ResNets.
    """
    ratio = training_exaflops(PAPER_ONLY.get(name, name), 303_000_000 * epochs) / expected
    if name in RESNETS:
        assert 1.02 < ratio < 1.05, ratio
    else:
        assert ratio == pytest.approx(1, abs=0.03 if expected == 859 else 0.02 if "+" in name else 0.025)


# By hand


def test_parts_are_those_by_hand():
    """20 x 28 pixels in patches of 4: 35 patches and a class token, D 12, M 17; the last block computes one token."""
    found = flops(tiny_config(), (20, 28), classes=7)
    blocks = {
        "projections": 36 * 4 * 12**2 + (36 * 2 + 1 * 2) * 12**2,
        "products": 2 * 36 * 36 * 12 + 2 * 1 * 36 * 12,
        "mlp": (36 + 1) * 2 * 12 * 17,
    }
    parts = {"stem": 0, "embedding": 35 * 4 * 4 * 3 * 12, **blocks, "pooling": 0, "head": 12 * 7}
    assert dataclasses.asdict(found) == {name: 2 * multiply_adds for name, multiply_adds in parts.items()}
    assert found.total == 2 * sum(parts.values())
    assert found.multiply_adds == sum(parts.values())


def test_resnet_pads_odd_sides():
    """45 x 27 pixels, of which a stride keeps 23 x 14, then 12 x 7 and 6 x 4, as `ResNetRoot` and `ResNetUnit` do."""
    root = 23 * 14 * 7 * 7 * 3 * 32
    first = 12 * 7 * (32 * 32 + 9 * 32 * 32 + 32 * 128 + 32 * 128)
    second = 12 * 7 * 128 * 64 + 6 * 4 * (9 * 64 * 64 + 64 * 256 + 128 * 256)
    third = 6 * 4 * (256 * 64 + 9 * 64 * 64 + 64 * 256)
    assert resnet((45, 27, 3), (1, 2), 32) == (2 * (root + first + second + third), (6, 4, 256))
    layers = [keras_vit.layers.ResNetRoot(32), keras_vit.layers.ResNetUnit(64, strides=2, projection=True)]
    assert [layer.compute_output_shape((None, 45, 27, 3))[1:3] for layer in layers] == [(12, 7), (23, 14)]


def test_twice_the_side_costs_four_times_as_much_and_products_sixteen_times():
    small, large = (flops(GAP, size, classes=0) for size in ((20, 28), (40, 56)))
    assert large.products == 16 * small.products > 0
    assert large.total - large.products == 4 * (small.total - small.products)


def test_heads_and_rates_change_nothing():
    same = tiny_config(num_heads=6, dropout_rate=0.1, patch_dropout_rate=0.4, position_embedding="none")
    assert flops(same, (20, 28)) == flops(tiny_config(), (20, 28))


def test_height_and_width_can_be_exchanged():
    config = ViTConfig(1, 12, 2, 3, 17, resnet_stages=(1, 2, 1))
    assert flops(config, (48, 80)) == flops(config, (80, 48)) != flops(config, (64, 64))


def test_a_config_has_the_size_and_the_classes_that_it_is_built_with():
    model = make_tiny(input_shape=None, classes=None)
    assert flops(model.config) == flops(model) == flops(model, (224, 224))
    odd = tiny_config(patch_size=9)  # which does not tile 224 pixels
    assert flops(odd) == flops(odd, 216)


def test_records_add_up():
    one = flops("S/16")
    assert one + one == Flops(*(2 * part for part in dataclasses.astuple(one)))
    assert (one + Flops()).total == one.total


def test_record_reads_as_a_line():
    expected = "40.64 GFLOP: stem 7.87, embedding 0.31, projections 10.69, products 1.31, mlp 20.46, head 0.00"
    assert str(flops("R50+B/16")) == expected


def test_training_counts_every_token_three_times():
    tokens = flops(every_token("S/32"), 384, classes=0).total
    assert training_exaflops("S/32", 1e9, 384, classes=0) == pytest.approx(3 * tokens / 1e9)
    assert training_exaflops(make_tiny(), 5) == training_exaflops(tiny_config(), 5, (20, 28), classes=7)
    assert tokens > flops("S/32", 384, classes=0).total


# Of built models


@pytest.mark.parametrize(
    "arguments", [{}, {"include_top": False}, {"input_shape": (28, 20, 5)}, {"pooling": "map"}, {"distilled": True}]
)
def test_model_is_counted_by_its_config_shape_and_head(arguments):
    model = make_tiny(**{"input_shape": (20, 28, 3)} | arguments)
    *sides, channels = model.input_shape[1:]
    classes = 7 if arguments.get("include_top", True) else 0
    assert flops(model) == flops(model.config, tuple(sides), classes=classes, channels=channels)


def test_model_of_unknown_size_is_counted_at_a_given_one(tiny):
    any_size = keras_vit.with_input_shape(tiny, (None, None, 3))
    with pytest.raises(ValueError, match=r"image_size=None, sides \(None, None\)"):
        flops(any_size)
    assert flops(any_size, (20, 28)) == flops(tiny)
    assert flops(tiny, (40, 28)) == flops(keras_vit.with_input_shape(tiny, (40, 28, 3)))


def test_model_behind_a_resizing_is_counted_at_the_size_that_arrives():
    photos = keras.Input((50, 70, 3))
    model = keras_vit.build(tiny_config(), input_tensor=keras.layers.Resizing(20, 28)(photos), classes=7)
    assert flops(model) == flops(make_tiny())


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")  # of Keras, on its own dropout
def test_lora_and_int8_are_counted_as_the_model_without_them(tiny):
    before = flops(tiny)
    tiny.predict(images(1, 20, 28, 3), verbose=0)  # nothing depends on nodes that a call leaves
    keras_vit.add_lora(tiny, 2)
    assert flops(tiny) == before
    keras_vit.merge_lora(tiny)
    tiny.quantize("int8")
    assert flops(tiny) == before


def test_reloaded_model_is_counted_as_before(tiny, tmp_path):
    tiny.save(tmp_path / "tiny.keras")
    assert flops(keras.saving.load_model(tmp_path / "tiny.keras")) == flops(tiny)


# What is refused

UNTILED = r"multiple of `patch_size`.*\n.*image_size={}, .* {}\."


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("B/17",), ValueError, r"'B/17'.* 'B/16'"),
        ((16,), TypeError, r"`model`.*\n.* 16"),
        (("B/16", 225), ValueError, UNTILED.format(225, 224)),
        (("B/16", (224, 250)), ValueError, UNTILED.format(r"\(224, 250\)", r"\(224, 256\)")),
        (("R50+L/32", 240), ValueError, "16|32 pixels"),
        (("B/16", 0), ValueError, "`image_size`"),
        (("B/16", 224.0), TypeError, "`image_size`"),
        (("B/16", (224, 224, 3)), ValueError, r"`image_size`.* \(H, W\)"),
        (("B/16", (None, 224)), ValueError, "known"),
        ((tiny_config(pooling="none", distilled=True),), ValueError, "classes=0"),
    ],
)
def test_what_cannot_be_counted_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        flops(*arguments)


@pytest.mark.parametrize(
    ("said", "error"), [({"classes": -1}, ValueError), ({"channels": 0}, ValueError), ({"classes": 1.5}, TypeError)]
)
def test_classes_and_channels_are_checked(said, error):
    with pytest.raises(error, match=f"`{next(iter(said))}`"):
        flops("B/16", **said)


def test_built_model_has_classes_of_its_own(tiny):
    with pytest.raises(ValueError, match="classes=10"):
        flops(tiny, classes=10)


def test_model_that_does_not_know_its_config_is_refused(tiny):
    for stranger in (keras.models.clone_model(tiny), keras.Sequential([tiny])):
        with pytest.raises(TypeError, match="config"):
            flops(stranger)


@pytest.mark.parametrize("images", [0, -1, math.nan, math.inf])
def test_training_needs_images(images):
    with pytest.raises(ValueError, match="`images`"):
        training_exaflops("B/16", images)


def test_multiply_adds_are_exact_numbers():
    found = dataclasses.astuple(flops("G/14", np.int64(224)))
    assert all(type(part) is int for part in found)
