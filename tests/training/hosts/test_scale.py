"""What `benchmarks/scale.py` counts: against the compiled step, the arrays of 8 devices, and numbers by hand."""

import json

import pytest
from collectives import BATCH, CLASSES, KINDS, LARGE, SIDE, SIZES
from matrix import run_script

import keras_vit
from benchmarks import scale

CONFIG = keras_vit.ViTConfig(**SIZES)
TOLERANCE = 0.02  # what is left out: norms and losses, a few numbers each, and queries of the last block


@pytest.fixture(scope="module")
def compiled():
    pytest.importorskip("jax")
    return json.loads(run_script(["collectives.py"], timeout=800, devices=8).splitlines()[-1])


def estimate(kind):
    shapes = scale.layout_shapes(CONFIG, classes=CLASSES, input_shape=(SIDE, SIDE, 3))
    copies = KINDS[kind][0]
    group = 8 // copies if kind == "tensor" else None
    return scale.estimate(CONFIG, shapes, kind, 8, batch=BATCH // copies, image_size=SIDE, large=LARGE, group=group)


def ring(kind, size, group):
    """Bytes that a device sends for a result of so many."""
    each = (group - 1) / group
    return {"all-reduce": 2 * each * size, "reduce-scatter": each * size * group}.get(kind, each * size)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_is_that_of_the_compiled_step(compiled, kind):
    sent = sum(ring(name, size, group) for name, size, group, _ in compiled[kind]["collectives"])
    assert estimate(kind).sent == pytest.approx(sent, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_those_of_the_live_arrays(compiled, kind):
    found = estimate(kind)
    assert compiled[kind]["weights"] == [found.weights] * 8
    assert compiled[kind]["moments"] == [found.slots] * 8


def test_sizes_of_a_published_model_are_those_of_its_parameters():
    shapes = scale.shapes_of("B/16")
    assert sum(map(scale.numbers, shapes.values())) == 86_567_656
    config, copies = keras_vit.VARIANTS["B/16"], {"batch": 8}
    alone, many = (scale.estimate(config, shapes, "data", devices, **copies) for devices in (1, 1024))
    assert (alone.weights, alone.slots, alone.sent) == (4 * 86_567_656, 4 * 86_567_656, 0)
    assert many.sent == pytest.approx(2 * 4 * 86_567_656 * 1023 / 1024)
    cut = 12 * 2 * 768 * 3072  # the kernels of the MLPs; others are below 4 MB
    parts = scale.estimate(config, shapes, "fsdp", 1024, **copies)
    assert parts.weights == pytest.approx(4 * (86_567_656 - cut * 1023 / 1024))


# GFLOP of the forward pass of one image, as XLA counts the compiled one: `cost_analysis` of JAX 0.10.
@pytest.mark.parametrize(("name", "compiled"), [("S/32", 2.15), ("R26+S/32", 6.83)])
def test_work_is_that_of_the_compiled_forward_pass(name, compiled):
    found = scale.estimate(keras_vit.VARIANTS[name], scale.shapes_of(name), "data", 1, device=scale.Device(1e9))
    assert found.seconds / 8 / 3 == pytest.approx(compiled, rel=0.01)  # which counts norms and sums, too


def test_the_resnet_of_a_hybrid_keeps_what_its_convolutions_put_out():
    """R+Ti/16, by hand."""
    kept = scale.kept_by_stem(scale.shapes_of("R+Ti/16"), 224)
    shapes = keras_vit.VARIANTS["R+Ti/16"].resnet_stages
    assert kept == 5 * by_hand(shapes, keras_vit.VARIANTS["R+Ti/16"].resnet_width)
    assert scale.kept_by_stem(scale.shapes_of("B/16"), 224) == 0


def by_hand(stages, width):
    """Numbers that the convolutions put out at 224 pixels."""
    total = 112**2 * width
    for stage, units in enumerate(stages, start=1):
        side, filters = 56 // 2 ** (stage - 1), width * 2 ** (stage - 1)
        before = side if stage == 1 else 2 * side  # of the first unit's first convolution
        total += before**2 * filters + side**2 * (filters + 4 * filters + 4 * filters)
        total += (units - 1) * side**2 * (filters + filters + 4 * filters)
    return total


def test_a_step_takes_as_long_as_the_slower_of_computing_and_sending():
    shapes = scale.shapes_of("B/16")
    for device in (scale.Device(1e12, 1e15), scale.Device(1e18, 1e9)):
        found = scale.estimate(keras_vit.VARIANTS["B/16"], shapes, "data", 8, device=device)
        work = 3 * 8 * keras_vit.flops("B/16").total / device.flops
        assert found.seconds == pytest.approx(max(work, found.sent / device.bandwidth))


def test_a_table_leaves_out_what_cannot_be_shared():
    found = scale.table(["H/14"], (8, 512))
    assert ("H/14", "fsdp", 8) in found
    assert ("H/14", "fsdp", 512) not in found
    assert ("H/14", "tensor", 512) in found
