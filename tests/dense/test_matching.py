"""The loss of queries against a float64 program: every assignment is tried, and gradients are differences of losses."""

import itertools

import keras
import numpy as np
import pytest
from conftest import numpy
from test_dense_functions import by_tensorflow

from keras_vit import dense

NEAR = 2e-5  # of the loss in float32, and twelve times that of gradients by differences
SIZE, CLASSES, QUERIES = (9, 14), 3, 5


def photos(queries=QUERIES, seed=0):
    """Class logits, mask logits of another size, and labels: one photo lacks a class, and rows do not count."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, (2, *SIZE))
    labels[0][labels[0] == 1] = 2
    labels[1, :3] = 255
    return rng.normal(size=(2, queries, CLASSES + 1)), 2 * rng.normal(size=(2, 4, 5, queries)), labels


def line(length, there):
    """The weights `(length, there)` of a half-pixel bilinear resize along one axis."""
    found = np.zeros((length, there))
    for place in range(length):
        at = min(max((place + 0.5) * there / length - 0.5, 0), there - 1)
        first = int(at)
        found[place, first] += 1 - (at - first)
        found[place, min(first + 1, there - 1)] += at - first
    return found


ROWS, COLUMNS = line(SIZE[0], 4), line(SIZE[1], 5)


def softmax(logits):
    found = np.exp(logits - logits.max(-1, keepdims=True))
    return found / found.sum(-1, keepdims=True)


def terms(logits, truth):
    """Mean binary cross-entropy and one less Dice of one mask."""
    chances = 1 / (1 + np.exp(-logits))
    bce = -(truth * np.log(chances) + (1 - truth) * np.log(1 - chances)).mean()
    return bce, 1 - (2 * (chances * truth).sum() + 1) / (chances.sum() + truth.sum() + 1)


def loss_of(classes, masks, labels, weights=(2.0, 5.0, 5.0), none=0.1, shared=None, points=None):
    """The loss; `shared` are the pixels of the matching of each photo, `points` gives those of a mask."""
    of_class, weight_sum, of_masks, count = 0.0, 0.0, [], 0
    for photo, label in enumerate(labels):
        flat = label.reshape(-1)
        values = np.einsum("yh,xw,hwq->yxq", ROWS, COLUMNS, masks[photo]).reshape(flat.size, -1)
        if (flat == 255).all():
            continue
        there = [k for k in range(CLASSES) if (flat == k).any()]
        seen = np.arange(flat.size) if shared is None else shared[photo]
        seen = seen[flat[seen] != 255]
        chances = softmax(classes[photo])

        def cost(query, k, values=values, flat=flat, seen=seen, chances=chances):
            bce, dice = terms(values[seen, query], (flat[seen] == k).astype(float))
            return -weights[0] * chances[query, k] + weights[1] * bce + weights[2] * dice

        number = min(len(there), masks.shape[-1])
        ways = (
            dict(zip(some, queries, strict=True))
            for some in itertools.combinations(there, number)
            for queries in itertools.permutations(range(masks.shape[-1]), number)
        )
        best = min(ways, key=lambda way: sum(cost(query, k) for k, query in way.items()))
        truth = np.full(masks.shape[-1], CLASSES)
        for k, query in best.items():
            truth[query], count = k, count + 1
            places = np.arange(flat.size) if points is None else points(photo, k, values[:, query])
            places = places[flat[places] != 255]
            bce, dice = terms(values[places, query], (flat[places] == k).astype(float))
            of_masks.append(weights[1] * bce + weights[2] * dice)
        for query, k in enumerate(truth):
            own = none if k == CLASSES else 1.0
            of_class, weight_sum = of_class - own * np.log(chances[query, k]), weight_sum + own
    return weights[0] * of_class / weight_sum + sum(of_masks) / max(count, 1)


def differences(function, array, step=1e-5):
    """The gradient of a function of a float64 array."""
    found = np.empty_like(array)
    for place in np.ndindex(*array.shape):
        up, down = array.copy(), array.copy()
        up[place], down[place] = up[place] + step, down[place] - step
        found[place] = (function(up) - function(down)) / (2 * step)
    return found


def faults(gradient):
    """Losses and gradients that differ, by name."""
    found, (classes, masks, labels) = {}, photos()
    calls = {
        "classes": (classes, lambda x: (x, masks.astype("float32"), labels), lambda x: loss_of(x, masks, labels)),
        "masks": (masks, lambda x: (classes.astype("float32"), x, labels), lambda x: loss_of(classes, x, labels)),
    }
    for name, (first, given, wanted) in calls.items():
        loss, slopes = gradient(
            lambda x, given=given: dense.mask_classification_loss(*given(x)), first.astype("float32")
        )
        own = differences(wanted, first)
        if not abs(float(loss) - wanted(first)) <= NEAR * wanted(first):
            found[f"loss by {name}"] = [float(loss), wanted(first)]
        if not np.abs(numpy(slopes) - own).max() <= 12 * NEAR * np.abs(own).max():
            found[f"gradient by {name}"] = [str(numpy(slopes))[:200], str(own)[:200]]
    return found


def faults_on_jax():
    import jax

    return faults(lambda function, first: jax.jit(jax.value_and_grad(function))(first))


def test_loss_and_gradients_are_those_of_the_best_of_all_assignments():
    assert faults(by_tensorflow) == {}


@pytest.mark.parametrize(("queries", "weights", "none"), [(2, (2, 5, 5), 0.7), (5, (1, 0.5, 3), 1), (5, (3, 0, 1), 0)])
def test_weights_count_and_classes_are_left_over_where_queries_are_few(queries, weights, none):
    classes, masks, labels = photos(queries, seed=3)
    names = ("class_weight", "mask_weight", "dice_weight")
    given = [each.astype("float32") for each in (classes, masks)]
    options = dict(zip(names, weights, strict=True)) | {"none_weight": none}
    found = float(dense.mask_classification_loss(*given, labels, **options))
    assert found == pytest.approx(loss_of(classes, masks, labels, weights, none), rel=NEAR)


@pytest.mark.elsewhere("jax", "faults_on_jax")
def test_loss_compiled_by_xla_is_the_same_on_jax(found):
    assert found == {}


def test_points_are_shared_by_the_matching_and_drawn_for_each_mask_near_its_edge():
    classes, masks, labels = photos()
    count, number, seed = SIZE[0] * SIZE[1], 40, 7

    def drawn(rows, points, place):
        values = numpy(keras.random.uniform((rows, points), seed=seed + place))
        return (values * np.float32(count)).astype(int)

    shared, candidates, others = drawn(2, number, 0), drawn(2 * CLASSES, 3 * number, 1), drawn(2 * CLASSES, 10, 2)

    def points(photo, k, values):
        row = photo * CLASSES + k
        nearest = np.argsort(np.abs(values[candidates[row]]), kind="stable")[: number - 10]
        return np.concatenate([candidates[row][nearest], others[row]])

    wanted = loss_of(classes, masks, labels, shared=shared, points=points)
    given = [each.astype("float32") for each in (classes, masks)]
    found = float(dense.mask_classification_loss(*given, labels, num_points=number, seed=seed))
    assert found == pytest.approx(wanted, rel=NEAR)
    assert abs(wanted - loss_of(classes, masks, labels)) > 1e-2


def test_what_does_not_count_has_no_loss_and_no_gradient():
    classes, masks, labels = photos()
    given = classes.astype("float32"), masks.astype("float32")
    nothing = np.full_like(labels, 255)
    loss, slopes = by_tensorflow(lambda x: dense.mask_classification_loss(given[0], x, nothing), given[1])
    assert (float(loss), np.abs(numpy(slopes)).max()) == (0, 0)
    half = labels.copy()
    half[1] = 255
    one = [each[:1] for each in (*given, labels)]
    assert float(dense.mask_classification_loss(*given, half)) == pytest.approx(
        float(dense.mask_classification_loss(*one)), rel=1e-6
    )
    one_row = np.where(np.arange(SIZE[0])[:, None] > 2, labels, 255)  # rows 0 to 2 read the first two of the masks
    far = given[1].copy()
    far[:, 0] += 9.0  # which rows above 2 read, and those below 4 of the mask
    wanted = loss_of(classes, far.astype("float64"), one_row)
    assert float(dense.mask_classification_loss(given[0], far, one_row)) == pytest.approx(wanted, rel=NEAR)


def test_the_same_masks_have_the_terms_of_the_functions_of_masks():
    """Of one class whose query is known: `mask_cross_entropy` and `mask_dice`, which `given` holds to EoMT's."""
    _, masks, _ = photos()
    labels = np.zeros((2, *SIZE), "int32")
    labels[:, 4:] = 255
    labels[:, 2] = 1
    classes = np.zeros((2, QUERIES, 3), "float32")
    masks = masks.astype("float32")
    whole = numpy(dense.resize(masks, SIZE))[:, :4]
    cost = np.zeros((2, QUERIES, 2))
    for photo, query, k in np.ndindex(*cost.shape):
        pair = whole[photo][None, ..., query], (labels[photo, :4] == k)[None].astype("float32")
        cost[photo, query, k] = 5 * float(dense.mask_cross_entropy(*pair)) + 5 * float(dense.mask_dice(*pair))
    matched = numpy(dense.hungarian_matching(cost, np.ones((2, 2), bool)))
    wanted = 2 * np.log(3) + np.mean([cost[photo, matched[photo, k], k] for photo in range(2) for k in range(2)])
    found = float(dense.mask_classification_loss(classes, masks, labels))
    assert found == pytest.approx(wanted, rel=NEAR)


def test_several_predictions_add_up_and_a_loss_is_made_again_from_its_config():
    first, second = photos(), photos(seed=1)
    loss = dense.MaskClassification(none_weight=0.3, masked_steps=9)
    pairs = [tuple(each.astype("float32") for each in given[:2]) for given in (first, second)]
    apart = sum(float(dense.mask_classification_loss(*pair, first[2], none_weight=0.3)) for pair in pairs)
    assert float(loss.call(first[2], pairs)) == pytest.approx(apart, rel=1e-5)
    again = dense.MaskClassification.from_config(loss.get_config())
    assert again.get_config() == loss.get_config()


def test_matching_leaves_out_absent_classes_and_takes_what_is_not_finite_for_the_highest_cost():
    cost = np.array([[[1.0, np.nan, 0], [0, 5, 9], [np.inf, 7, 9]]])
    found = numpy(dense.hungarian_matching(cost, [[True, True, False]]))
    assert found.tolist() == [[0, 1, -1]]
    assert numpy(dense.hungarian_matching(cost[:, :1], [[True, False, True]])).tolist() == [[-1, -1, 0]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask_logits": np.zeros((2, 4, 5, 4), "float32")}, "must be of the same queries"),
        ({"labels": np.full((2, *SIZE), 7)}, "the label 7"),
        ({"num_points": 0}, "num_points"),
    ],
)
def test_wrong_arguments_are_refused(changes, words):
    given = dict(zip(("class_logits", "mask_logits", "labels"), photos(), strict=True))
    with pytest.raises(ValueError, match=words):
        dense.mask_classification_loss(**given | changes)


def test_a_label_of_a_tensor_that_is_no_class_gives_no_number():
    classes, masks, labels = photos()
    assert np.isnan(float(dense.mask_classification_loss(classes, masks, keras.ops.convert_to_tensor(labels + 1))))
    with pytest.raises(TypeError, match="none_weight"):
        dense.MaskClassification(none_weight="much")
