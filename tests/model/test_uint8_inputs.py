"""uint8 images are pixels: a model scales them on its device, and all numbers are those of floats, to the last bit."""

import contextlib
import functools
from unittest import mock

import keras
import numpy as np
import pytest
from conftest import make_tiny, numpy, tiny_config

import keras_vit
from keras_vit.data import load_dataset
from keras_vit.data.augmentation import Augmentation
from keras_vit.images.preprocessing import Preprocessing, preprocess_input, scale_uint8
from keras_vit.model.input_checks import as_uint8

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
BICUBIC = Preprocessing(image_size=(20, 28), resize="crop", crop_fraction=0.9, interpolation="bicubic", **IMAGENET)
LEVELS = np.arange(256, dtype="uint8").repeat(3).reshape(2, 8, 16, 3)
SHAPE = (20, 28, 3)


def photos(count, *shape):
    return np.random.default_rng(1).integers(0, 256, (count, *(shape or (31, 41, 3))), dtype="uint8")


def compiled(function):
    """A function of a tensor as this backend's graphs compute it, and as XLA does."""
    if keras.backend.backend() == "jax":
        import jax

        return [jax.jit(function)]
    import tensorflow as tf

    return [tf.function(function), tf.function(function, jit_compile=True)]


def values_off():
    """How many of all levels another value comes from than from NumPy, by published and 40 random scalings."""
    rng, off = np.random.default_rng(0), 0
    scalings = [IMAGENET, {"mean": (0.5,) * 3, "std": (0.5,) * 3}, {"mean": (0.0,) * 3, "std": (1.0,) * 3}]
    scalings += [{"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}]
    scalings += [{"mean": tuple(rng.uniform(-1, 1, 3)), "std": tuple(rng.uniform(0.01, 2, 3))} for _ in range(40)]
    for scaling in scalings:
        record = Preprocessing(**scaling)
        expected = preprocess_input(LEVELS, record)
        functions = compiled(lambda pixels, record=record: scale_uint8(pixels, record))
        for function in functions if scaling is IMAGENET else functions[:1]:  # XLA once, which takes its time
            off += int((numpy(function(keras.ops.convert_to_tensor(LEVELS))) != expected).sum())
    return off


def test_every_level_becomes_what_numpy_makes_of_it():
    assert values_off() == 0


@pytest.mark.elsewhere("jax", "values_off")
def test_every_level_becomes_what_numpy_makes_of_it_on_jax(found):
    assert found == 0


def tiny(policy="float32"):
    keras.config.set_dtype_policy(policy)
    model = make_tiny(num_layers=1)
    keras.config.set_dtype_policy("float32")
    model.preprocessing = BICUBIC
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def numbers_of_a_run(model, as_bytes):
    """All numbers of training, evaluation and prediction from one data set, and the dtypes that Keras was given."""
    seen = []

    def watching(method):
        @functools.wraps(method)  # for its signature
        def call(self, x=None, *args, **kwargs):
            seen.append((x.element_spec[0].dtype.name, kwargs["validation_data"].element_spec[0].dtype.name))
            return method(self, x, *args, **kwargs)

        return call

    data = {"train": (photos(12), np.arange(12) % 7), "test": (photos(6), np.arange(6) % 7)}
    train = load_dataset(data, batch_size=4, preprocessing=BICUBIC, training=True, augmentation="flip")
    test = load_dataset(data, "test", batch_size=4, preprocessing=BICUBIC)
    if not as_bytes:
        del train.as_uint8, test.as_uint8
    keras.utils.set_random_seed(7)
    with mock.patch.object(keras.Model, "fit", watching(keras.Model.fit)):
        fitted = model.fit(train, steps_per_epoch=3, epochs=2, validation_data=test, shuffle=False, verbose=0)
    found = [fitted.history["loss"], fitted.history["val_loss"], model.evaluate(test, verbose=0)]
    found += [model.predict(test, verbose=0), *map(numpy, model.weights)]
    return [np.asarray(each, "float64").ravel().tolist() for each in found], seen[0]


def bytes_beside_floats(cases=("two devices",)):
    """Whether both runs agree to the last bit, and what was queued."""
    found = {}
    for case in cases:
        with contextlib.ExitStack() as stack:
            if case == "two devices" and keras.backend.backend() == "jax":
                keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
                stack.callback(keras.distribution.set_distribution, None)
            elif case == "two devices":
                import tensorflow as tf

                stack.enter_context(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope())
            runs = [numbers_of_a_run(tiny("float32" if " " in case else case), as_bytes) for as_bytes in (True, False)]
        found[case] = [runs[0][0] == runs[1][0], *(list(seen) for _, seen in runs)]
    return found


QUEUED = [True, ["uint8"] * 2, ["float32"] * 2]


def test_training_on_bytes_gives_the_bits_of_floats():
    assert bytes_beside_floats(["mixed_bfloat16"]) == {"mixed_bfloat16": QUEUED}


PLACES = [
    pytest.param(kind, marks=pytest.mark.elsewhere(kind, "bytes_beside_floats")) for kind in ("jax", "two devices")
]


@pytest.mark.parametrize("place", PLACES)
def test_training_on_bytes_gives_the_bits_of_floats_on_devices(found, place):
    assert found == {"two devices": QUEUED}


def test_pixels_are_scaled_and_other_integers_refused():
    model, pixels = tiny(), photos(3, *SHAPE)
    expected = numpy(model(preprocess_input(pixels, BICUBIC)))
    for answer in (model, model.predict_on_batch, lambda x: model.predict(x, verbose=0)):
        np.testing.assert_allclose(numpy(answer(pixels)), expected, atol=1e-6)  # of eager and of graph
        with pytest.raises(TypeError, match="int32"):
            answer(pixels.astype("int32"))
    with pytest.raises(ValueError, match="model's size"):
        model(pixels[:, :16])
    with pytest.warns(UserWarning, match="not scaled"):  # floats are looked at as ever
        tiny()(pixels.astype("float32"))


def test_pixels_are_refused_where_others_or_nobody_may_scale_them():
    own = keras_vit.build(tiny_config(num_layers=1), input_tensor=keras.layers.Rescaling(1 / 255)(keras.Input(SHAPE)))
    unknown = make_tiny(num_layers=1)
    unknown.preprocessing = None
    for model in (own, unknown):
        with pytest.raises(TypeError, match="uint8"):
            model(photos(2, *SHAPE))


@pytest.mark.parametrize(
    ("record", "augmentation", "whole"),
    [
        (BICUBIC, None, True),
        (BICUBIC, "flip", True),
        (BICUBIC, Augmentation(crop="none", cutmix_alpha=1.0, erasing_probability=0.5), True),
        (BICUBIC, Augmentation(crop="none", affine=(0.1, 0, 0)), False),
        (BICUBIC, "augreg-light1", True),  # RandAugment has whole levels
        (BICUBIC, "augreg-medium1", False),  # MixUp does not
        (BICUBIC, "inception", False),  # bilinear
        (BICUBIC, Augmentation(whole_levels=True), True),
        (Preprocessing(image_size=(20, 28)), None, False),  # Google's rule has fractions
        (Preprocessing(image_size=(31, 41)), None, True),  # the size that they have
        (Preprocessing(image_size=None, resize="none"), None, True),
        (Preprocessing(image_size=(20, 28), resize="crop", interpolation="area", rounding="big_vision"), None, True),
        (Preprocessing(image_size=(20, 28), resize="crop", antialias=True), None, False),
    ],
    ids=str,
)
def test_whole_levels_are_queued_in_a_quarter_of_the_bytes(record, augmentation, whole):
    arguments = {"training": augmentation is not None, "augmentation": augmentation, "labels": "one_hot", "seed": 3}
    data = load_dataset((photos(4), [0, 1, 0, 1]), batch_size=4, preprocessing=record, **arguments)
    floats, labels = next(iter(data))
    assert floats.dtype == "float32"
    assert hasattr(data, "as_uint8") == whole
    if whole:
        pixels, same = next(iter(data.as_uint8()))
        assert (pixels.dtype, 4 * pixels.numpy().nbytes) == ("uint8", floats.numpy().nbytes)
        np.testing.assert_array_equal(preprocess_input(pixels.numpy(), record), floats)
        np.testing.assert_array_equal(same, labels)


def test_bytes_are_left_alone_where_the_model_scales_otherwise():
    data = load_dataset((photos(4), [0, 1, 0, 1]), batch_size=2, preprocessing=BICUBIC)
    model = tiny()
    assert as_uint8(model, data).element_spec[0].dtype == "uint8"
    assert as_uint8(keras.Model(model.input, model.output), data) is data
    model.preprocessing = Preprocessing(image_size=(20, 28))
    assert as_uint8(model, data) is data


def test_levels_that_are_rounded_are_near_and_mixup_is_refused():
    images = [
        next(iter(load_dataset((photos(4), [0, 1, 0, 1]), batch_size=4, preprocessing=BICUBIC, training=True, **said)))
        for said in ({"augmentation": "inception"}, {"augmentation": Augmentation(whole_levels=True)})
    ]
    apart = np.abs(images[0][0].numpy() - images[1][0].numpy()) * 255 * min(BICUBIC.std)
    assert 0.1 < apart.max() < 0.51  # grey levels
    with pytest.raises(ValueError, match=r"mixup_alpha=0\.2"):
        Augmentation(whole_levels=True, mixup_alpha=0.2)


def test_old_names_warn():
    model, data = tiny(), load_dataset((photos(4), [0, 1, 0, 1]), batch_size=2, preprocessing=BICUBIC)
    with pytest.warns(DeprecationWarning, match="accepts_uint8"):
        assert model.takes_bytes
    with pytest.warns(DeprecationWarning, match="as_uint8"):
        assert data.in_bytes().element_spec[0].dtype == "uint8"
