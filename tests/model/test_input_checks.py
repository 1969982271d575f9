"""What `fit`, `evaluate` and `predict` say of pixels that were not scaled, and of batches that JAX cannot share."""

import warnings

import keras
import numpy as np
import pytest
from conftest import images, make_tiny

import keras_vit
from keras_vit.model import input_checks

OF_KERAS = pytest.mark.filterwarnings("ignore:Your input ran out of data", "ignore:`shuffle=True` was passed")
SAYS = "values from 0 to 255"


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x) // 4

    def __getitem__(self, index):
        return self.x[index * 4 : index * 4 + 4], self.y[index * 4 : index * 4 + 4]


def dataset(x, y):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)


def generator(x, y):
    yield from ((x[start : start + 4], y[start : start + 4]) for start in range(0, len(x), 4))


@pytest.fixture(scope="module")
def model():
    model = make_tiny(num_layers=1)
    model.compile(keras.optimizers.SGD(1e-6), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.fixture(scope="module")
def pixels():
    pixels = np.random.default_rng(0).uniform(0, 255, (8, 20, 28, 3)).astype("float32")
    pixels[0, 0, 0, :2] = 0, 255
    return pixels


KINDS = {"dataset": dataset, "PyDataset": Batches, "generator": generator}


@OF_KERAS
@pytest.mark.parametrize("kind", KINDS)
def test_data_of_unscaled_pixels_is_warned_of_once_a_call(model, pixels, kind):
    labels = np.arange(8) % 7
    for method in (model.fit, model.evaluate, model.predict):
        with pytest.warns(UserWarning, match=SAYS) as record:
            method(KINDS[kind](pixels, labels), verbose=0)
        assert len([warning for warning in record if SAYS in str(warning.message)]) == 1
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*not scaled")
            method(KINDS[kind](keras_vit.preprocess_input(pixels), labels), verbose=0)


def test_arrays_of_unscaled_pixels_are_warned_of(model, pixels):
    for call in (lambda: model.fit(pixels, np.zeros(8), verbose=0), lambda: model.predict(x=pixels, verbose=0)):
        with pytest.warns(UserWarning, match=SAYS):
            call()


def as_pixels(x):
    return 127.5 * (x + 1)


def as_imagenet(x):
    return ((x + 1) / 2 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]


def with_nan(x):
    return np.where(np.arange(x.size).reshape(x.shape) == 7, np.nan, x)


WRONG = {
    "not scaled": as_pixels,
    "scaled to 0 to 1": lambda x: (x + 1) / 2,
    "scaled by another": as_imagenet,
    "NaN": with_nan,
}
FULL = images(2, 20, 28, 3)
FULL[0, 0, :2] = [[-1], [1]]  # black and white, as photos have them
DOORS = {
    "call": lambda model, x: model(x),
    "predict": lambda model, x: model.predict(x, verbose=0),
    "predict_on_batch": lambda model, x: model.predict_on_batch(x),
    "a model around": lambda model, x: keras.Sequential([model, keras.layers.Dense(2)])(x),
    "features": lambda model, x: keras_vit.features(model, x, blocks=(1,)),
    "attention_maps": lambda model, x: keras_vit.attention_maps(model, x),
    "class_relevance": lambda model, x: keras_vit.class_relevance(model, x),
    "logit_lens": lambda model, x: keras_vit.analysis.logit_lens(model, x, blocks=(1,)),
    "analysis of a model around": lambda model, x: keras_vit.attention_maps(
        keras.Sequential([keras.Input((20, 28, 3)), model]), x
    ),
    "predict of a model around": lambda model, x: around(model).predict(x, verbose=0),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_says_how_images_were_scaled_wrongly(door):
    model = make_tiny(num_layers=1)
    for said, wrong in WRONG.items():
        model.has_checked_images = model.has_warned_of_images = False
        x = wrong(FULL).astype("float32")
        if said == "NaN" and "keras_vit" in DOORS[door].__code__.co_names:
            with pytest.raises(ValueError, match=said):
                DOORS[door](model, x)
            continue
        with pytest.warns(UserWarning, match=said) as record:
            DOORS[door](model, x)
        assert len([each for each in record if said in str(each.message)]) == 1
    model.has_checked_images = model.has_warned_of_images = False
    for fine in (FULL, 0 * FULL, 0 * FULL + 0.5):
        DOORS[door](model, fine)


def around(model, **options):
    model = keras.Sequential([keras.Input((20, 28, 3)), model, keras.layers.Dense(2)])
    model.compile("sgd", "mse", **options)
    return model


def test_training_and_evaluating_a_model_around_one_is_looked_at_and_changed_by_nothing(tmp_path, recwarn):
    tf = pytest.importorskip("tensorflow")
    y = np.zeros((len(FULL), 2), "float32")
    for method in ("fit", "evaluate", "train_on_batch"):
        inner = make_tiny(num_layers=1)
        model = around(inner)
        getattr(model, method)(FULL, y)
        assert not recwarn.list
        with pytest.warns(UserWarning, match="not scaled"):
            getattr(model, method)(as_pixels(FULL), y)
    want, inner.has_warned_of_images = model.predict(FULL, verbose=0), False
    compiled = around(inner, jit_compile=True)  # XLA has no place for such a look
    compiled.layers[-1].set_weights(model.layers[-1].get_weights())
    np.testing.assert_allclose(compiled.predict(FULL, verbose=0), want, atol=1e-5)
    scaled = keras.Sequential([keras.Input((20, 28, 3)), keras.layers.Rescaling(1 / 127.5, -1), inner])
    scaled.predict(as_pixels(FULL), verbose=0)
    model.export(tmp_path / "served", verbose=False)
    functions = tf.saved_model.load(tmp_path / "served").signatures["serving_default"].graph.as_graph_def().library
    assert not [node for each in functions.function for node in each.node_def if "PyFunc" in node.op]
    assert not recwarn.list


def test_scale_is_that_of_the_weights(recwarn):
    """ImageNet's mean and deviation, as DeiT's files have it, and none at all."""
    model = make_tiny(num_layers=1)
    own = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    model.preprocessing = keras_vit.Preprocessing(**own)
    model.predict(as_imagenet(FULL).astype("float32"), verbose=0)
    assert not recwarn.list
    for said, x in {"scaled to -1 to 1": FULL, "scaled to 0 to 1": (FULL + 1) / 2}.items():
        with pytest.warns(UserWarning, match=said):
            model.predict(x, verbose=0)
    model.preprocessing = keras_vit.Preprocessing(mean=[0.0] * 3, std=[1.0] * 3)
    model.predict((FULL + 1) / 2, verbose=0)
    model.preprocessing = None  # as in a clone
    model.predict((FULL + 1) / 2, verbose=0)
    with pytest.warns(UserWarning, match="not scaled"):
        model.predict(as_pixels(FULL), verbose=0)


def test_layers_in_front_decide_the_scale_themselves():
    x = keras.layers.Rescaling(1 / 127.5, -1)(keras.Input((20, 28, 3)))
    model = keras_vit.build(make_tiny().config, input_tensor=x, classes=7)
    model.predict(as_pixels(FULL), verbose=0)
    with pytest.warns(UserWarning, match="NaN"):
        model.predict(with_nan(FULL), verbose=0)


SHAPES = {
    "channels first": (lambda x: np.moveaxis(x, -1, 1), "moveaxis"),
    "grey": (lambda x: x[..., :1], "preprocessing"),
    "one image": (lambda x: x[0], r"image\[None\]"),
    "another size": (lambda x: x[:, :16], "preprocessing"),
    "no image": (lambda x: x[:0], "at least one"),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_shapes_are_refused_before_and_after_the_first_batch_alike(kind):
    change, advice = SHAPES[kind]
    model, wrong = make_tiny(num_layers=1), change(FULL)
    said = []
    for _ in range(2):
        for give in (lambda: wrong, lambda: dataset(wrong, wrong) if len(wrong) else wrong):
            with pytest.raises(ValueError, match=advice) as error:
                model.predict(give(), verbose=0)
            said.append(str(error.value))
        for given in (wrong, keras.ops.convert_to_tensor(wrong)):
            with pytest.raises(ValueError, match=advice) as error:
                model(given)
            said.append(str(error.value))
        model.predict(FULL, verbose=0)
    assert said[:4] == said[4:]
    assert all("Received: shape" in each and "(None, 20, 28, 3)" in each for each in said)
    with pytest.raises(ValueError, match=advice):
        keras_vit.attention_maps(model, wrong)


@pytest.mark.parametrize("layers", [[], [keras.Input((20, 28, 3))]])
def test_a_model_around_one_answers_no_other_size_once_it_was_traced(layers):
    """Keras traces `predict` anew with the sizes left open, in which positions would be resized without a word."""
    tf = pytest.importorskip("tensorflow")
    model = keras.Sequential([*layers, make_tiny(num_layers=1), keras.layers.Dense(2)])
    wanted = model.predict(FULL, verbose=0)
    for wrong in (FULL[:, :16], FULL[..., :1]):
        with pytest.raises(Exception, match="images must be a batch of the "):
            model.predict(wrong, verbose=0)
    np.testing.assert_allclose(model.predict(FULL, verbose=0), wanted, atol=1e-6)  # another graph sums otherwise
    unknown = tf.function(model.layers[0], input_signature=[tf.TensorSpec(None)])
    with pytest.raises(ValueError, match=r"unknown rank(.|\n)*set_shape"):
        unknown.get_concrete_function()


def test_images_that_patches_do_not_tile_and_lists_of_images_are_refused():
    model = make_tiny(num_layers=1, input_shape=(None, None, 3))
    for answer in (model, model.predict):
        with pytest.raises(ValueError, match=r"Nearest: \(20, 28, 3\)"):
            answer(FULL[:, :19])
        with pytest.raises(ValueError, match=r"numpy\.stack"):
            answer(list(FULL))
    with pytest.raises(TypeError, match="int16"):
        model.predict(FULL.astype("int16"), verbose=0)


@OF_KERAS
def test_data_without_images_are_refused(model):
    data = dataset(FULL, np.zeros(2))
    for method, given in (
        *((method, data.take(0)) for method in (model.predict, model.evaluate, model.fit)),
        (model.predict, data.filter(lambda images, label: False)),  # which nobody knows before
    ):
        with pytest.raises(ValueError, match="at least one image"):
            method(given, verbose=0)
    with pytest.raises(TypeError, match="x=None"):
        model.predict(None)


def test_later_calls_say_what_no_photo_can_be_once():
    model = make_tiny(num_layers=1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for x in (FULL, np.abs(FULL), as_imagenet(FULL), FULL):  # one bright photo may be never negative
            model(x.astype("float32"))
        assert not said
        for change in (as_pixels, as_pixels, with_nan):
            model(change(FULL).astype("float32"))
    assert len(said) == 1
    assert "not scaled" in str(said[0].message)


@OF_KERAS
@pytest.mark.parametrize("kind", KINDS)
def test_data_that_is_looked_at_loses_no_batch_and_keeps_its_order(model, kind):
    x = images(8, 20, 28, 3)
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(model.predict(KINDS[kind](x, np.zeros(8)), verbose=0), expected, atol=1e-6)


def test_shuffled_data_is_shuffled_as_without_the_look(model):
    """A look before `fit` would use up the first of the orders."""
    import tensorflow as tf

    seen = []
    for look in (lambda data: data, lambda data: input_checks.check_first_batch(model, data)):
        data = tf.data.Dataset.range(8).map(lambda i: tf.fill((20, 28, 3), tf.cast(i, "float32") / 8 - 0.5))
        data = look(data.shuffle(8, seed=1, reshuffle_each_iteration=True).batch(4))
        seen.append([[batch.numpy()[:, 0, 0, 0].tolist() for batch in data] for _ in range(2)])
    assert seen[0] == seen[1]
    assert seen[0][0] != seen[0][1]


def test_array_that_devices_cannot_share_is_refused_at_once(model, monkeypatch):
    monkeypatch.setattr(input_checks, "num_batch_shards", lambda: 2)
    monkeypatch.setattr("keras_vit.model.image_model.check_first_batch", lambda *_: pytest.fail("began"))
    x = images(21, 20, 28, 3)
    with pytest.raises(ValueError, match="21 images in batches of 8, on 2 devices"):
        model.fit(x, np.zeros(21), 8)


def uneven_batches():
    """What two devices on JAX say, for each method, of a generator whose last batch has 5 images."""
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
    try:
        model = make_tiny(num_layers=1)
        model.compile("sgd", "mse")
        said = []
        for method in (model.fit, model.evaluate):
            with pytest.raises(ValueError, match="multiple") as error:
                method(((images(n, 20, 28, 3), np.zeros((n, 7))) for n in (8, 5)), verbose=0)
            said.append(str(error.value))
        return said
    finally:
        keras.distribution.set_distribution(None)


@pytest.mark.elsewhere("jax", "uneven_batches")
def test_batches_that_devices_cannot_share_on_jax_are_refused_in_our_words(found):
    assert len(found) == 2
    assert all("multiple of 2" in said for said in found)


@pytest.mark.parametrize("policy", ["bfloat16", "float16"])
def test_weights_in_half_precision_are_not_trained(policy):
    """They would stay where they are, and the accuracy at chance; but a head in float32 on them may learn."""
    keras.config.set_dtype_policy(policy)
    model = make_tiny(num_layers=1)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    x, y = images(4, 20, 28, 3), np.zeros(4, int)
    with pytest.raises(ValueError, match=f"mixed_{policy}"):
        model.fit(x, y, verbose=0)
    with pytest.raises(ValueError, match=policy):
        model.train_on_batch(x, y)
    model.evaluate(x, y, verbose=0)
    keras_vit.freeze(model, "head")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    model.fit(x, y, verbose=0)


def test_weights_in_half_precision_are_not_pre_trained():
    keras.config.set_dtype_policy("bfloat16")
    masked = keras_vit.MaskedPatchPrediction(make_tiny(num_layers=1), "pixels")
    masked.compile("sgd")
    with pytest.raises(ValueError, match="bfloat16"):
        masked.fit(images(4, 20, 28, 3), verbose=0)
