"""`segment_like`: against its definition in NumPy, on photos whose parts differ in colour, and what it refuses."""

import dataclasses

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import dense
from keras_vit.images.numpy_pipeline import preprocess

COLORS = np.array([(230, 40, 30), (30, 60, 220), (40, 200, 60)], "uint8")


def photo_of(labels, seed=0):
    noise = np.random.default_rng(seed).integers(0, 25, (*labels.shape, 3))
    return (COLORS[labels] + noise).clip(0, 255).astype("uint8")


@pytest.fixture(scope="module")
def encoder():
    keras.utils.set_random_seed(7)
    config = keras_vit.ViTConfig(8, 32, num_layers=2, num_heads=2, mlp_dim=64)
    return keras_vit.build(config, include_top=False, input_shape=(32, 32, 3))


@pytest.fixture(scope="module")
def example():
    labels = np.zeros((48, 80), int)
    labels[:, 30:] = 1
    labels[30:, 50:] = 2
    return photo_of(labels), labels


def test_classes_are_those_of_patches_that_look_alike(encoder, example, tmp_path):
    wanted = np.full((70, 50), 2)
    wanted[:40] = 1
    wanted[:20, :25] = 0
    found = keras_vit.segment_like(encoder, *example, photo_of(wanted, 1), short_side=128, class_names=("a", "b", "c"))
    assert found.classes.dtype == np.int32
    assert (found.classes == wanted).mean() > 0.9
    assert found.class_names == ("a", "b", "c")
    assert found.scores is None
    Image.fromarray(example[0]).save(tmp_path / "photo.png")
    Image.fromarray(example[1].astype("uint8")).save(tmp_path / "mask.png")
    files = tmp_path / "photo.png", tmp_path / "mask.png"
    (again,) = keras_vit.segment_like(encoder, *files, [photo_of(wanted, 1)], short_side=128)
    np.testing.assert_array_equal(again.classes, found.classes)
    halves = [photo_of(np.full((40, 40), k)) for k in range(3)], [np.full((40, 40), k) for k in range(3)]
    several = keras_vit.segment_like(encoder, *halves, photo_of(wanted, 1), short_side=128)
    assert (several.classes == wanted).mean() > 0.75  # of whole photos of one colour, without an edge


def test_scores_are_the_definition(encoder, example):
    """Features of both photos, the three best cosines of labelled patches, a softmax, and a resize."""
    labels = example[1].copy()
    labels[:, :12] = 255
    other = photo_of(np.tile([0, 1, 2], (40, 20))[:, :56], 3)
    found = keras_vit.segment_like(
        encoder, example[0], labels, other, short_side=32, top=3, temperature=0.1, scores=True
    )

    def maps_of(pixels, size):
        record = dataclasses.replace(encoder.preprocessing, image_size=size, resize="squash")
        free = keras_vit.model.copies.with_input_shape(encoder, (None, None, 3))
        return keras_vit.features(free, preprocess(pixels, record)[None].astype("float32"), blocks=(2,))[2][0]

    known, asked = maps_of(example[0], (32, 56)), maps_of(other, (32, 48))
    shares = np.zeros((4, 7, 3))
    for row, column in np.ndindex(4, 7):
        at = np.arange(48) * 4 // 48 == row, np.arange(80) * 7 // 80 == column
        part = labels[np.ix_(*at)]
        shares[row, column] = [(part == k).sum() for k in range(3)]
    known, shares = known.reshape(-1, 32), shares.reshape(-1, 3)
    keep = shares.sum(axis=1) > 0
    known, shares = known[keep], shares[keep] / shares[keep].sum(axis=1, keepdims=True)
    assert keep.sum() < 28
    lengths = np.linalg.norm(known, axis=1), np.linalg.norm(asked, axis=-1)
    cosines = asked @ known.T / lengths[0] / lengths[1][..., None]
    best = np.argsort(-cosines, axis=-1)[..., :3]
    powers = np.exp(np.take_along_axis(cosines, best, -1) / 0.1)
    wanted = np.einsum("hwt,hwtk->hwk", powers / powers.sum(axis=-1, keepdims=True), shares[best])
    np.testing.assert_allclose(found.scores, dense.resize(wanted[None].astype("float32"), (40, 56))[0], atol=2e-5)
    np.testing.assert_allclose(found.scores.sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mask": np.zeros((48, 79), int)}, "48 x 80"),
        ({"mask": np.zeros((48, 80), "float32")}, "float32"),
        ({"mask": np.full((48, 80), -1)}, "least value -1"),
        ({"mask": np.where(np.arange(80) < 40, 0, 255) * np.ones((48, 1), int)}, "write 1 for 255"),
        ({"mask": np.full((48, 80), 255)}, "two classes"),
        ({"photo": [np.zeros((48, 80, 3), "uint8")] * 2}, "2 photos"),
        ({"top": 99}, "`top`"),
        ({"top": 0}, "`top`"),
        ({"temperature": 0.0}, "`temperature`"),
        ({"short_side": 0}, "`short_side`"),
        ({"class_names": ("a", "b")}, "2 names of 3 classes"),
    ],
)
def test_what_has_no_answer_is_refused(encoder, example, changed, words):
    photo, mask = example
    given = {"photo": photo, "mask": mask, "photos": photo, "short_side": 32} | changed
    with pytest.raises(ValueError, match=words):
        keras_vit.segment_like(encoder, **given)
