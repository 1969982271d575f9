"""Class relevance: gradients against finite differences, and the rule against its definition."""

import numpy as np
import pytest
from conftest import make_tiny, numpy, randomise, tiny_config
from keras import ops
from kinds import KINDS, SHAPE, model_of, photos

import keras_vit
from keras_vit import kernels
from keras_vit.analysis.relevance import weights_and_gradients


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
def test_gradients_are_those_of_finite_differences(kind):
    model = model_of(kind)
    images = photos(model)
    classes = np.array([2, 5])
    seen, gradients, _ = weights_and_gradients(model, images, classes)
    assert len(seen) == len(gradients) == 2 + kind.startswith("map")
    rng, step = np.random.default_rng(1), 2e-3
    for place, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape).astype("float32") / np.sqrt(gradient[0].size)

        def score(sign, place=place, direction=direction):
            calls = iter(range(len(seen)))
            add = lambda layer, w: w + sign * step * direction if next(calls) == place else w  # noqa: E731
            with kernels.intercept_attention(add):
                outputs = numpy(model(images, training=False)).astype("float64")
            return outputs[[0, 1], classes].sum()

        expected = (score(1) - score(-1)) / (2 * step)
        assert abs((gradient * direction).sum() - expected) < 2e-3 * max(np.abs(gradient).sum() * 0.05, 1e-2)


def test_relevance_is_the_rule_written_out(tiny):
    images = photos(tiny)
    seen, gradients, _ = weights_and_gradients(tiny, images, np.array([3, 0]))
    found = keras_vit.class_relevance(tiny, images, [3, 0], batch_size=1)
    for image in range(2):
        joint = np.eye(36)
        for (_, weights), gradient in zip(seen, gradients, strict=True):
            weighted = np.mean([np.maximum(w * g, 0) for w, g in zip(weights[image], gradient[image], strict=True)], 0)
            joint = joint + weighted.astype("float64") @ joint
        np.testing.assert_allclose(found[image], joint[0, 1:].reshape(5, 7), rtol=1e-4, atol=1e-9)


def test_relevance_of_a_segmenter_is_that_of_the_pixels_of_the_class():
    """Scores of the class are summed over its pixels, or over all where it has none, and their patches are read."""
    encoder = randomise(keras_vit.build(tiny_config(pooling="none"), input_shape=SHAPE, include_top=False))
    model = keras_vit.segmenter(encoder, "linear", classes=5)
    for weight in model.head.trainable_weights:
        weight.assign(np.random.default_rng(3).normal(0, 0.5, weight.shape))
    images = photos(model)
    logits = numpy(model(images, training=False)).astype("float64")
    best = logits.argmax(axis=-1)
    most = [np.bincount(image.ravel()).argmax() for image in best]
    np.testing.assert_array_equal(
        keras_vit.class_relevance(model, images), keras_vit.class_relevance(model, images, most)
    )
    absent = next(each for each in range(5) if not (best[1] == each).any())
    classes = [most[0], absent]
    seen, gradients, pixels = weights_and_gradients(model, images, np.array(classes))
    np.testing.assert_array_equal(pixels, [best[0] == most[0], np.ones_like(best[1])])
    step = 1e-3
    for place, gradient in enumerate(gradients):
        direction = np.sign(gradient)

        def score(sign, place=place, direction=direction):
            calls = iter(range(len(seen)))
            add = lambda layer, w: w + sign * step * direction if next(calls) == place else w  # noqa: E731
            with kernels.intercept_attention(add):
                changed = numpy(model(images, training=False)).astype("float64")
            return sum(image[read][:, each].sum() for image, read, each in zip(changed, pixels, classes, strict=True))

        assert (score(1) - score(-1)) / (2 * step) == pytest.approx(np.abs(gradient).sum(), rel=2e-3)
    found = keras_vit.class_relevance(model, images, classes)
    for image in range(2):
        joint = np.eye(36)
        for (_, weights), gradient in zip(seen, gradients, strict=True):
            weighted = np.mean([np.maximum(w * g, 0) for w, g in zip(weights[image], gradient[image], strict=True)], 0)
            joint = joint + weighted.astype("float64") @ joint
        share = pixels[image].reshape(5, 4, 7, 4).mean(axis=(1, 3)).ravel()
        rows = share / share.sum() @ joint[1:, 1:]
        np.testing.assert_allclose(found[image], rows.reshape(5, 7), rtol=1e-4, atol=1e-9)


def test_class_without_gradient_leaves_the_identity():
    """A head of zeros has no gradient: nothing but the identity is left, of which a class token has no patch."""
    tiny = make_tiny()
    tiny.get_layer("head").kernel.assign(np.zeros((12, 7)))
    np.testing.assert_array_equal(keras_vit.class_relevance(tiny, photos(tiny)), np.zeros((2, 5, 7)))
    mean = model_of("gap")
    mean.get_layer("head").kernel.assign(np.zeros((12, 7)))
    np.testing.assert_allclose(keras_vit.class_relevance(mean, photos(mean)), np.full((2, 5, 7), 1 / 35))


def test_classes_are_the_highest_unless_given(tiny):
    images = photos(tiny)
    best = numpy(ops.argmax(tiny(images), axis=-1))
    np.testing.assert_array_equal(
        keras_vit.class_relevance(tiny, images), keras_vit.class_relevance(tiny, images, best)
    )
    other = keras_vit.class_relevance(tiny, images, (best + 1) % 7)
    assert np.abs(other - keras_vit.class_relevance(tiny, images)).max() > 1e-6


@pytest.mark.parametrize("classes", [[0], [0, 7], [-1, 0], [0.0, 1.0], 3])
def test_wrong_classes_are_named(tiny, classes):
    with pytest.raises(ValueError, match=r"\[0, 7\)"):
        keras_vit.class_relevance(tiny, photos(tiny), classes)


def test_model_without_classes_is_refused():
    model = model_of("none")
    with pytest.raises(ValueError, match=r"\(B, K\)"):
        keras_vit.class_relevance(model, photos(model))
