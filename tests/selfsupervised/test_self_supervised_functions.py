"""Functions of training without labels, against float64 of the authors' formulas, with gradients.

Each case of golden/selfsupervised has inputs in float32, and value and gradients as the authors' code has them in
float64 (DINOv2, DINOv3, LeJEPA, MAE, SimMIM, I-JEPA; torch 2.13.0).
"""

import json
import math

import keras
import numpy as np
import pytest
from conftest import GOLDEN, numpy

import keras_vit
from keras_vit import selfsupervised

FOLDER = GOLDEN / "selfsupervised"
CASES = json.loads((FOLDER / "functions.json").read_text())
ARRAYS = dict(np.load(FOLDER / "functions.npz"))
NEAR = 1e-5  # of the largest number of an array, in float32; the worst case measured is 1.3e-6


def of(name, kind):
    start = f"{name}/{kind}_"
    return {key.removeprefix(start): array for key, array in ARRAYS.items() if key.startswith(start)}


def difference(found, wanted):
    found = np.asarray(keras.ops.convert_to_numpy(found), "float64")
    return float(np.abs(found - wanted).max() / np.abs(wanted).max()) if found.shape == wanted.shape else math.inf


def by_tensorflow(function, arrays):
    import tensorflow as tf

    tensors = [tf.constant(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        value = function(*tensors)
    return value, tape.gradient(value, tensors)


def faults(gradients, changed=None):
    """Values and gradients that differ, by case."""
    found = {}
    for name, case in CASES.items():
        function, given, wanted = getattr(selfsupervised, case["call"]), of(name, "in"), of(name, "grad")
        options = case["options"] | (changed or {}).get(name, {})

        def value_of(*arrays, call=function, given=given, names=tuple(wanted), options=options):
            return call(**given | dict(zip(names, arrays, strict=True)), **options)

        value, grads = gradients(value_of, [given[key] for key in wanted]) if wanted else (value_of(), [])
        pairs = {"value": (value, of(name, "out")["value"])}
        pairs |= {key: (grad, wanted[key]) for key, grad in zip(wanted, grads, strict=True)}
        found |= {f"{name} {key}": off for key, pair in pairs.items() if not (off := difference(*pair)) <= NEAR}
    return found


def test_functions_and_their_gradients_are_the_authors():
    assert len(CASES) == 32
    assert faults(by_tensorflow) == {}


def faults_on_jax():
    import jax

    def gradients(function, arrays):
        return jax.jit(jax.value_and_grad(function, argnums=tuple(range(len(arrays)))))(*arrays)

    return faults(gradients)


@pytest.mark.elsewhere("jax", "faults_on_jax")
def test_functions_and_their_gradients_are_the_same_compiled_on_jax(found):
    assert found == {}


def faults_on_torch():
    import torch

    def gradients(function, arrays):
        tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
        value = function(*tensors)
        value.backward()
        return value.detach(), [tensor.grad for tensor in tensors]

    return faults(gradients)


@pytest.mark.elsewhere("torch", "faults_on_torch")
def test_functions_and_their_gradients_are_the_same_on_torch(found):
    assert found == {}


@pytest.mark.parametrize(
    ("case", "option", "value"),
    [
        ("sinkhorn", "iterations", 2),
        ("dino_skip", "skip_same_view", False),
        ("lejepa_global", "centers", "all"),
        ("lejepa_global", "num_global", 3),
        ("sigreg", "points", 16),
        ("mae_loss", "normalize", False),
        ("gram_keep", "per_image", False),
        ("gram_keep", "negatives", "drop_teacher"),
        ("gram_drop", "negatives", "drop_teacher"),
        ("feature_cosine_smooth_l1", "cosine_share", 0.8),
        ("koleo_duplicates", "epsilon", 1e-7),
    ],
)
def test_each_option_changes_a_number(case, option, value):
    assert faults(by_tensorflow, {case: {option: value}})


def test_schedules_are_the_authors():
    steps, warmup, cosine, line = 24, 6, selfsupervised.cosine_values, selfsupervised.linear_cosine_values
    found = {
        "dinov2_rate": cosine(2e-3, 1e-6, steps, warmup, 0),
        "dinov2_weight_decay": cosine(0.04, 0.4, steps),
        "dinov2_momentum": cosine(0.992, 1, steps),
        "dinov3_gram_weight": line(0, 0.5, 2, warmup, steps, steps - warmup - 3),
        "dinov3_rate": line(0, 5e-5, 1e-6, warmup, steps),
    }
    for name, values in found.items():
        np.testing.assert_allclose(values, of("schedules", "out")[name], rtol=1e-12, atol=1e-18, err_msg=name)
    assert cosine(1, 0, 3, 3).tolist() == [0, 0.5, 1]


def test_average_and_standardizer_are_the_authors():
    given = of("ema", "in")
    teacher = [given["teacher"]]
    for student, momentum, wanted in zip(
        given["students"], given["momenta"], of("ema", "out")["teachers"], strict=True
    ):
        teacher = selfsupervised.moving_average(teacher, [student], float(momentum))
        assert difference(teacher[0], wanted) < 1e-6
    features, wanted = of("phi_s", "in")["features"], of("phi_s", "out")
    found = selfsupervised.standardizer(features)
    np.testing.assert_allclose(found.mean, wanted["mean"], rtol=1e-12)
    assert found.scale == pytest.approx(float(wanted["scale"]), rel=1e-12)
    whitened = found(features)
    np.testing.assert_allclose(whitened.var(axis=0), np.ones(12), rtol=1e-5)
    np.testing.assert_allclose(found.inverse(whitened), features, atol=1e-5)
    for size in (5, 12, 13, 24):  # of which 12 and 24 have a Hadamard matrix
        drawn = np.random.default_rng(size).exponential(size=(99, size)) ** 3
        assert np.ptp(selfsupervised.standardizer(drawn)(drawn).var(axis=0)) < 1e-10
    centred = selfsupervised.standardizer(features, "mean")(features)
    np.testing.assert_allclose(centred, features - features.mean(axis=0), atol=1e-5)


def test_laws_of_the_losses():
    draw = np.random.default_rng(0)
    uniform, targets = np.zeros((2, 3, 7), "float32"), draw.dirichlet(np.ones(7), (2, 3))
    assert float(selfsupervised.class_loss(uniform, uniform[:0], targets)) == pytest.approx(math.log(7), rel=1e-6)
    logits = draw.normal(size=(6, 5)).astype("float32")
    padded = selfsupervised.sinkhorn_knopp(np.pad(logits, ((0, 3), (0, 0))), 0.1, weights=[1] * 6 + [0] * 3)
    np.testing.assert_allclose(padded[:6], selfsupervised.sinkhorn_knopp(logits, 0.1), rtol=1e-5)
    assert not numpy(padded[6:]).any()
    np.testing.assert_allclose(numpy(padded).sum(axis=1)[:6], 1, rtol=1e-6)
    mask = np.zeros((4, 5), bool)
    mask[1, [0, 3]] = mask[2, 4] = True
    student, teacher = draw.normal(size=(3, 7)).astype("float32"), draw.dirichlet(np.ones(7), 3)
    logs = student / 0.1 - np.log(np.exp(student / 0.1).sum(axis=1, keepdims=True))
    first, second, third = -(teacher * logs).sum(axis=1)
    wanted = ((first + second) / 2 + third) / 4
    more = [np.pad(each, ((0, 2), (0, 0))) for each in (student, teacher)]
    for given in ((student, teacher), more):
        assert float(selfsupervised.ibot_loss(*given, mask)) == pytest.approx(wanted, rel=1e-5)
    assert float(selfsupervised.ibot_loss(student[:0], teacher[:0], mask[:1])) == 0
    points = np.zeros((50, 4), "float32")
    assert float(selfsupervised.sigreg(points, np.eye(4))) / 50 == pytest.approx(0.41, abs=0.01)
    gaussian = draw.normal(size=(40, 256, 16)).astype("float32")
    assert float(selfsupervised.sigreg(gaussian, draw.normal(size=(16, 64)))) == pytest.approx(1.06, abs=0.1)
    alike = np.tile(draw.normal(size=(1, 9)), (40, 1))
    assert selfsupervised.spread(alike) == pytest.approx(0, abs=1e-7)
    assert selfsupervised.rank_me(alike) == pytest.approx(1, abs=1e-3)
    apart = draw.normal(size=(4000, 9))
    assert selfsupervised.spread(apart) == pytest.approx(1, abs=0.02)
    assert selfsupervised.rank_me(apart) == pytest.approx(9, abs=0.05)


def test_random_masks_keep_the_smallest_noise():
    noise = np.random.default_rng(1).random((3, 14)).astype("float32")
    kept, mask, restore = map(numpy, selfsupervised.random_masking(noise, 0.75))
    order = np.argsort(noise, axis=1)
    np.testing.assert_array_equal(kept, order[:, :3])
    np.testing.assert_array_equal(np.take_along_axis(order, restore, 1), np.tile(np.arange(14), (3, 1)))
    np.testing.assert_array_equal(mask, noise > np.sort(noise, axis=1)[:, 2:3])


def test_block_masks_have_the_authors_spread():
    """On a grid of 16, 14.9 % of all patches are masked, and aims are met up to a few patches."""
    masks = np.stack([selfsupervised.block_masks(seed, 32, (16, 16)) for seed in range(20)])
    assert masks.dtype == bool
    assert masks.mean() == pytest.approx(0.149, abs=0.001)
    counts = np.sort(masks.sum(axis=2), axis=1)
    assert (counts[:, :16] == 0).all()
    edges = np.floor(np.linspace(0.1, 0.5, 17) * 256)
    assert (counts[:, 16:] <= edges[1:]).all()
    assert (counts[:, 16:] >= edges[:-1] - 3).all()
    assert not (masks[0] == masks[1]).all()
    np.testing.assert_array_equal(masks[3], selfsupervised.block_masks(3, 32, (16, 16)))
    assert selfsupervised.block_masks(0, 2, (1, 1)).sum() == 0  # where no rectangle is smaller than the grid


def test_head_is_the_authors_with_its_gradients(tmp_path):
    weights = of("dino_head", "head")
    head = keras_vit.layers.DINOHead(11, hidden_size=9, bottleneck_size=4)
    x, target = of("dino_head", "in")["x"], of("dino_head", "in")["target"]
    head.build(x.shape)
    assert [weight.shape for weight in head.get_weights()] == [array.shape for array in weights.values()]
    head.set_weights([*weights.values()])

    def loss(x):
        return selfsupervised.dino_loss(head(x)[None], target[None])

    import tensorflow as tf

    with tf.GradientTape() as tape:
        value = loss(x)
    gradients = tape.gradient(value, [weight.value for weight in head.trainable_weights])
    assert difference(head(x), of("dino_head", "out")["value"]) < NEAR
    assert difference(value, of("dino_head", "out")["loss"]) < NEAR
    for name, gradient in zip(weights, gradients, strict=True):
        assert difference(gradient, of("dino_head", "grad")[name]) < NEAR, name
    plain = keras_vit.layers.DINOHead(5, 8, 4, num_layers=1, weight_norm=False)
    plain.build((None, 3))
    assert [weight.shape for weight in plain.weights] == [(3, 4), (4,), (4, 5)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: selfsupervised.koleo_loss(np.ones((1, 4))), "another one as its neighbour"),
        (lambda: selfsupervised.softmax_centered(np.ones((2, 3)), np.ones(4), 0.1), "`center`"),
        (lambda: selfsupervised.softmax_centered(np.ones((2, 3)), np.ones(3), 0.0), "`temperature`"),
        (lambda: selfsupervised.sinkhorn_knopp(np.ones((2, 3)), 0.1, 0), "`iterations`"),
        (lambda: selfsupervised.dino_loss(np.ones((2, 3, 4)), np.ones((2, 3, 5))), "`student`"),
        (lambda: selfsupervised.dino_loss(np.ones((1, 3, 4)), np.ones((1, 3, 4)), skip_same_view=True), "views"),
        (lambda: selfsupervised.ibot_loss(np.ones((2, 3)), np.ones((3, 3)), np.ones((1, 4))), "`teacher`"),
        (lambda: selfsupervised.sigreg(np.ones((4, 3)), np.ones((2, 5))), "`directions`"),
        (lambda: selfsupervised.lejepa_loss(np.ones((2, 4, 3)), np.ones((3, 5)), 3), "`num_global`"),
        (lambda: selfsupervised.lejepa_loss(np.ones((2, 4, 3)), np.ones((3, 5)), 2, 1.5), "`weight`"),
        (
            lambda: selfsupervised.mae_loss(np.ones((1, 4, 27)), np.ones((1, 6, 7, 3)), np.ones((1, 4)), 3),
            "`patch_size`",
        ),
        (
            lambda: selfsupervised.mae_loss(np.ones((1, 4, 9)), np.ones((1, 6, 6, 3)), np.ones((1, 4)), 3),
            "`predictions`",
        ),
        (lambda: selfsupervised.gram_loss(np.ones((1, 4, 2)), np.ones((1, 5, 2))), "`student`"),
        (lambda: selfsupervised.gram_loss(np.ones((1, 4, 2)), np.ones((1, 4, 2)), negatives="none"), "`negatives`"),
        (lambda: selfsupervised.feature_loss(np.ones((2, 3)), np.ones((2, 3)), "l2"), "`kind`"),
        (lambda: selfsupervised.random_masking(np.ones((1, 3)), 0.9), "`ratio`"),
        (lambda: selfsupervised.block_masks(0, 2, (4, 4), ratios=(0.5, 0.1)), "`ratios`"),
        (lambda: selfsupervised.moving_average([np.ones(2)], [np.ones(3)], 0.9), "`student`"),
        (lambda: selfsupervised.moving_average([np.ones(2)], [np.ones(2)], 1.1), "`momentum`"),
        (lambda: selfsupervised.cosine_values(1, 0, 3, 4), "longer than its steps"),
        (lambda: selfsupervised.rank_me([[1.0, np.nan], [1, 2]]), "finite"),
        (lambda: selfsupervised.standardizer(np.ones((4, 3))), "differ"),
        (lambda: keras_vit.layers.DINOHead(1), "`prototypes`"),
    ],
)
def test_what_has_no_answer_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
