"""Features are what the head reads; they are kept under a name that any change of what decides them changes."""

import dataclasses

import keras
import numpy as np
import pytest
from conftest import make_tiny, numpy, randomise, tiny_config
from photos import make_photos

import keras_vit
from keras_vit.cache import cache_dir
from keras_vit.data import open_source
from keras_vit.evaluation import image_features
from keras_vit.evaluation.feature_cache import features_fingerprint
from keras_vit.model.precision import in_precision
from keras_vit.weights.download.cache import verify_cache


def pixels(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 20, 28, 3), "uint8"), np.arange(count) % 3


@pytest.fixture
def source():
    return open_source({"train": pixels(13), "test": pixels(7, 1)})


def count_passes(monkeypatch):
    """A list that gets an item each time features are computed."""
    from keras_vit.evaluation import feature_cache

    passes, plain = [], feature_cache.predict_batches
    monkeypatch.setattr(feature_cache, "predict_batches", lambda *given: passes.append(1) or plain(*given))
    return passes


@pytest.mark.parametrize("representation", [None, 9])
def test_features_times_the_head_are_the_logits(source, representation):
    model = randomise(
        keras_vit.build(tiny_config(representation_size=representation), input_shape=(20, 28, 3), classes=7)
    )
    images, labels = source.split("test").images, source.split("test").labels
    found = image_features(model, source, "test", batch_size=3, cache=None)
    head = model.get_layer("head")
    logits = found.features @ numpy(head.kernel) + numpy(head.bias)
    np.testing.assert_allclose(logits, numpy(model(model.preprocessing(images))), rtol=1e-4, atol=1e-4)  # float32
    assert found.features.shape == (7, representation or 12)
    assert (found.labels == labels).all()


def test_model_without_a_head_has_the_same_features(source):
    model = make_tiny()
    bare = keras_vit.build(tiny_config(), input_shape=(20, 28, 3), include_top=False)
    for ours, theirs in zip(bare.layers, model.layers, strict=False):
        ours.set_weights(theirs.get_weights())
    found, expected = (image_features(each, source, "test", cache=None).features for each in (bare, model))
    np.testing.assert_allclose(found, expected, atol=1e-6)  # the same sums in a graph of its own


def features_here():
    """For `elsewhere`."""
    source = open_source({"train": pixels(13), "test": pixels(7, 1)})
    return image_features(make_tiny(), source, "train", batch_size=5, cache=None).features.tolist()


@pytest.mark.elsewhere("jax", "features_here")
def test_features_are_the_same_on_another_backend(found):
    np.testing.assert_allclose(found, features_here(), atol=1e-5)  # float32 sums in another order


@pytest.mark.parametrize("kind", ["int8", "lora", "mixed_float16", "reloaded"])
def test_every_kind_of_model_has_finite_features_near_those_of_the_plain_one(source, kind, tmp_path):
    model = make_tiny()
    expected = image_features(model, source, "train", cache=None).features
    if kind == "int8":
        other = in_precision(model, "int8")
    elif kind == "lora":
        keras_vit.add_lora(model, 2)
        other = model
    elif kind == "reloaded":
        model.save(tmp_path / "m.keras")
        other = keras.saving.load_model(tmp_path / "m.keras")
    else:
        keras.config.set_dtype_policy(kind)
        other = make_tiny()
    found = image_features(other, source, "train", cache=None).features
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol={"int8": 0.5, "mixed_float16": 0.05}.get(kind, 1e-6))


def test_second_call_reads_what_the_first_has_kept(source, monkeypatch):
    passes, model = count_passes(monkeypatch), make_tiny()
    first, again = (image_features(model, source, "test") for _ in range(2))
    assert len(passes) == 1
    assert (first.features == again.features).all()
    assert (first.labels == again.labels).all()
    assert verify_cache() == []  # which is about checkpoints


def test_no_cache_writes_nothing(source, monkeypatch):
    passes, model = count_passes(monkeypatch), make_tiny()
    for _ in range(2):
        image_features(model, source, "test", cache=None)
    assert len(passes) == 2
    assert not cache_dir("features").exists()


def test_damaged_features_are_made_anew(source, monkeypatch, tmp_path):
    passes, model = count_passes(monkeypatch), make_tiny()
    expected = image_features(model, source, "test", cache=tmp_path)
    (file,) = tmp_path.glob("*/features.npy")
    np.save(file, np.zeros((7, 12), "float32"))
    with pytest.warns(UserWarning, match=f"{file.parent} is of no use and is made anew: the digest of features"):
        again = image_features(model, source, "test", cache=tmp_path)
    assert len(passes) == 2
    assert (again.features == expected.features).all()
    assert (np.load(file) == expected.features).all()


def test_features_that_cannot_be_kept_are_not_lost(source, tmp_path):
    (tmp_path / "taken").touch()
    model = make_tiny()
    for folder, words in (("taken", "File exists"), ("taken/folder", "Not a directory")):
        with pytest.warns(UserWarning, match=f"not kept in .*{folder}: {words}"):
            found = image_features(model, source, "test", cache=tmp_path / folder)
        assert (found.features == image_features(model, source, "test").features).all()


def test_fingerprint_is_that_of_the_same_model_in_another_file(source, tmp_path):
    model = make_tiny()
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    keras.layers.Dense(3)  # names count up
    assert features_fingerprint(again, source.split("test")) == features_fingerprint(model, source.split("test"))


def test_fingerprint_differs_with_all_that_decides_the_features(source):
    split, model = source.split("test"), make_tiny()
    found = {"model": features_fingerprint(model, split), "split": features_fingerprint(model, source.split("train"))}
    record = model.preprocessing
    model.preprocessing = dataclasses.replace(record, interpolation="bicubic")
    found["preprocessing"] = features_fingerprint(model, split)
    model.preprocessing = record
    kernel = model.get_layer("block_01").weights[3]
    values = np.array(numpy(kernel))
    values.flat[-1] = np.nextafter(values.flat[-1], 9)
    kernel.assign(values)
    found["one bit of a weight"] = features_fingerprint(model, split)
    found["size"] = features_fingerprint(keras_vit.with_input_shape(make_tiny(), (28, 20, 3)), split)
    found["precision"] = features_fingerprint(in_precision(make_tiny(), "bfloat16"), split)
    found["int8"] = features_fingerprint(in_precision(make_tiny(), "int8"), split)
    found["activation"] = features_fingerprint(
        randomise(keras_vit.build(tiny_config(activation="gelu"), input_shape=(20, 28, 3), classes=7)), split
    )
    labels = (split.labels + 1) % 3
    found["labels"] = features_fingerprint(make_tiny(), dataclasses.replace(split, labels=labels))
    assert len(set(found.values())) == len(found)


def test_fingerprint_of_files_is_of_what_is_in_them_and_not_of_their_place(tmp_path):
    model, folder = make_tiny(), make_photos(tmp_path / "photos", per_class=4)
    before = features_fingerprint(model, open_source(folder).split("train"))
    moved = folder.rename(tmp_path / "moved")
    assert features_fingerprint(model, open_source(moved).split("train")) == before
    path = open_source(moved).split("train").paths[0]
    with open(path, "ab") as file:
        file.write(b"\0")  # behind the end of a JPEG, where decoders do not look
    split = open_source(moved).split("train")
    others = [dataclasses.replace(split, **{name: getattr(split, name) + 1}) for name in ("labels", "orientations")]
    assert len({before, *(features_fingerprint(model, each) for each in (split, *others))}) == 4


def test_features_that_are_not_finite_are_refused_and_not_kept(source, tmp_path):
    model = make_tiny()
    model.get_layer("encoder_norm").gamma.assign(np.full(12, np.nan))
    with pytest.raises(ValueError, match="finite"):
        image_features(model, source, "test", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_model_whose_tokens_are_not_pooled_is_refused(source):
    model = keras_vit.build(tiny_config(pooling="none"), input_shape=(20, 28, 3), include_top=False)
    with pytest.raises(ValueError, match=r'pooling="none"'):
        image_features(model, source, "test", cache=None)


def test_what_is_no_vision_transformer_is_refused(source):
    with pytest.raises(TypeError, match="VisionTransformer"):
        image_features(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), source, "test", cache=None)
