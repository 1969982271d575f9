"""WiSE-FT and Tip-Adapter, against their equations by hand."""

import types

import numpy as np
import pytest
from conftest import numpy

import keras_vit
from keras_vit.checks import ArgumentError


def test_weights_between_two_models():
    models = [keras_vit.ViTTi16(num_layers=1, input_shape=(16, 16, 3), classes=3) for _ in range(2)]
    for seed, model in enumerate(models):
        rng = np.random.default_rng(seed)
        model.set_weights([rng.normal(size=w.shape) for w in model.weights])
    mixed = keras_vit.wise_ft(*models, alpha=0.25)
    for one, other, between in zip(*(model.weights for model in (*models, mixed)), strict=True):
        np.testing.assert_allclose(numpy(between), 0.75 * numpy(one) + 0.25 * numpy(other), rtol=1e-6, atol=1e-7)
    assert isinstance(mixed, keras_vit.VisionTransformer)
    named = types.SimpleNamespace(class_names=("dog", "Red_car")), types.SimpleNamespace(class_names=("red car", "dog"))
    with pytest.raises(ArgumentError, match="same order"):
        keras_vit.wise_ft(*named)
    other = types.SimpleNamespace(class_names=("dog", "eel"))
    with pytest.raises(ArgumentError, match=r"(?s)of the same names.*eel"):
        keras_vit.wise_ft(named[0], other)
    change = {"num_heads": 6, "layer_norm_epsilon": 1e-3, "dropout_rate": 0.1}
    differing = keras_vit.ViTTi16(num_layers=1, input_shape=(16, 16, 3), classes=3, **change)
    with pytest.raises(ArgumentError, match=r"Received: layer_norm_epsilon=1e-06 and 0.001, num_heads=3 and 6\."):
        keras_vit.wise_ft(models[0], differing)
    for alpha in (-0.1, 1.5):
        with pytest.raises(ArgumentError, match="`alpha`"):
            keras_vit.wise_ft(*models, alpha=alpha)
    with pytest.raises(ArgumentError, match="head/bias"):
        keras_vit.wise_ft(models[0], keras_vit.ViTTi16(num_layers=1, input_shape=(16, 16, 3), classes=4))
    with pytest.raises(ArgumentError, match=r"(?s)`finetuned` must be finite.*kernel"):
        keras_vit.wise_ft({"kernel": np.zeros(2)}, {"kernel": [np.nan, 0]})
    for pair, argument in ((("a", models[0]), "zero_shot"), ((models[0], None), "finetuned")):
        with pytest.raises(TypeError, match=f"`{argument}` must be a Keras model, or arrays by name"):
            keras_vit.wise_ft(*pair)


def test_cache_of_labelled_photos():
    rng = np.random.default_rng(0)
    photos, keys, texts = rng.normal(size=(4, 5)), rng.normal(size=(6, 5)), rng.normal(size=(3, 5))
    labels = np.array([0, 1, 2, 0, 1, 1])
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (photos, keys, texts)]
    expected = np.zeros((4, 3))
    for i, photo in enumerate(unit[0]):
        for k in range(3):
            expected[i, k] = 100 * photo @ unit[2][k]
            expected[i, k] += sum(2 * np.exp(-3 * (1 - photo @ key)) for key in unit[1][labels == k])
    found = keras_vit.tip_adapter(7 * photos, keys, labels, texts, alpha=2, beta=3)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    right = {"embeddings": photos, "keys": keys, "labels": labels, "class_embeddings": texts}
    for wrong in ({"labels": [0]}, {"labels": np.full(6, 3)}, {"keys": keys[:, :4]}, {"labels": np.zeros(6)}):
        with pytest.raises(ArgumentError):
            keras_vit.tip_adapter(**right | wrong)
    for wrong in ({"keys": 0 * keys}, {"embeddings": np.nan * photos}, {"beta": -1}, {"alpha": np.nan}):
        with pytest.raises(ArgumentError, match=f"`{next(iter(wrong))}` must be"):
            keras_vit.tip_adapter(**right | wrong)
