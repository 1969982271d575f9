"""What `benchmarks/scale.py` counts: against the compiled step, the arrays of 8 devices, and numbers by hand."""

import json
import sys

import pytest
from collectives import BATCH, CLASSES, KINDS, LARGE, SIDE, SIZES
from conftest import ROOT
from matrix import HERE, start

import keras_vit

sys.path.append(str(ROOT / "benchmarks"))
scale = pytest.importorskip("scale")
CONFIG = keras_vit.ViTConfig(**SIZES)
TOLERANCE = 0.02  # what is left out: norms and losses, a few numbers each, and queries of the last block


@pytest.fixture(scope="module")
def compiled():
    pytest.importorskip("jax")
    said = start(HERE / "collectives.py", 1, [], [], 800, devices=8)[0]
    return json.loads(said.splitlines()[-1])


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


def test_a_step_takes_as_long_as_the_slower_of_computing_and_sending():
    shapes = scale.shapes_of("B/16")
    for device in (scale.Device(1e12, 1e15), scale.Device(1e18, 1e9)):
        found = scale.estimate(keras_vit.VARIANTS["B/16"], shapes, "data", 8, device=device)
        work = 6 * 8 * 197 * 86_567_656 / device.flops
        assert found.seconds == pytest.approx(max(work, found.sent / device.bandwidth))


def test_a_table_leaves_out_what_cannot_be_shared():
    found = scale.table(["H/14"], (8, 512))
    assert ("H/14", "fsdp", 8) in found
    assert ("H/14", "fsdp", 512) not in found
    assert ("H/14", "tensor", 512) in found
    assert len(list(scale.rows(found))) == len(found) + 2
