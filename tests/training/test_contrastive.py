"""The losses of CLIP and SigLIP and their gradients are those of NumPy in float64, on one device and on two."""

import functools

import keras
import numpy as np
import pytest
from conftest import numpy
from mirrored import on

import keras_vit
from keras_vit.checks import ArgumentError
from keras_vit.training.contrastive import contrast, mean_recall, pair_ranks, recall, sigmoid_loss, softmax_loss

pytestmark = pytest.mark.filterwarnings("ignore:.*(scaled|range|preprocessing):UserWarning")  # images are normal
PAIRS, SIZE = 5, 7


def rows(seed):
    found = np.random.default_rng(seed).normal(size=(PAIRS, SIZE))
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def by_hand(kind, images, texts, scale, bias=0.0):
    """The mean over pairs, as both papers write it."""
    logits = scale * images @ texts.T + bias
    if kind == "sigmoid":
        signs = 2 * np.eye(len(images)) - 1
        return np.log1p(np.exp(-signs * logits)).sum() / len(images)
    both = (logits, logits.T)
    return np.mean([np.mean(np.log(np.exp(each).sum(axis=1)) - np.diag(each)) for each in both])


def loss_of(kind, images, texts, scale, bias):
    found = sigmoid_loss(images, texts, scale, bias) if kind == "sigmoid" else softmax_loss(images, texts, scale)
    return keras.ops.mean(found)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_loss_is_the_paper_s(kind):
    """Also cut into two devices' shares, and with a row that takes no part."""
    images, texts, scale, bias = rows(0), rows(1), 3.0, -1.5
    expected = by_hand(kind, images, texts, scale, bias)
    assert float(loss_of(kind, images, texts, scale, bias)) == pytest.approx(expected, rel=1e-6)
    extra = {"bias": bias} if kind == "sigmoid" else {}
    assert contrast(images, texts, scale, **extra) == pytest.approx(expected, rel=1e-12)
    function = sigmoid_loss if kind == "sigmoid" else softmax_loss
    parts = [
        function((images[part], images), (texts[part], texts), scale, first=part.start, **extra)
        for part in (slice(0, 2), slice(2, PAIRS))
    ]
    assert float(np.concatenate([numpy(part) for part in parts]).mean()) == pytest.approx(expected, rel=1e-6)
    there = np.arange(PAIRS) < PAIRS - 1
    found = numpy(function(images, texts, scale, there=there, **extra))[:-1].mean()
    assert found == pytest.approx(by_hand(kind, images[:-1], texts[:-1], scale, bias), rel=1e-6)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_gradients_are_those_of_differences(kind):
    import tensorflow as tf

    if keras.backend.backend() != "tensorflow":
        pytest.skip("gradients by TensorFlow's tape")
    values = [rows(0), rows(1), np.array(3.0), np.array(-1.5)]
    tensors = [tf.Variable(value, dtype="float64") for value in values]
    with tf.GradientTape() as tape:
        loss = loss_of(kind, *tensors)
    found = tape.gradient(loss, tensors, unconnected_gradients="zero")
    for number, value in enumerate(values):
        for place in [(0, 0), (3, 2)] if value.ndim else [()]:
            step = np.zeros_like(value)
            step[place] = 1e-6
            ends = [
                by_hand(kind, *(v + sign * step if i == number else v for i, v in enumerate(values)))
                for sign in (1, -1)
            ]
            assert float(found[number].numpy()[place]) == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-7)


def towers(kind="softmax", lora=False, similarity=(None, None), **options):
    """Both towers, with weights that are the same on any devices; with `lora` their blocks have factors."""
    keras.utils.set_random_seed(1)
    config = keras_vit.ViTConfig(8, 16, num_layers=1, num_heads=2, mlp_dim=24)
    image = keras_vit.build(config, input_shape=(16, 16, 3), include_top=False)
    words = keras_vit.TextConfig(40, 8, 16, num_layers=1, num_heads=2, mlp_dim=24, projection_size=16)
    text = keras_vit.build_text(words)
    text.logit_scale, text.logit_bias = similarity
    if lora:
        image, text = keras_vit.add_lora(image, 2), keras_vit.add_lora(text, 2)
    model = keras_vit.ContrastiveModel(image, text, kind, **options)
    rng = np.random.default_rng(3)
    for weight in (*image.weights, *model.text.weights):
        weight.assign(rng.normal(0, 0.3, weight.shape))
    model.compile(keras.optimizers.SGD(0.05))
    return model


def pairs(count):
    rng = np.random.default_rng(5)
    return {
        "images": rng.normal(size=(count, 16, 16, 3)).astype("float32"),
        "ids": rng.integers(1, 40, (count, 8)).astype("int32"),
    }


def on_two_devices(cases=(("sigmoid", False), ("softmax", True))):
    """Losses and the largest difference of a weight, of one device and of two."""
    found = {}
    for kind, lora in cases:
        models = [towers(kind, lora), on(2, towers, kind, lora)]
        losses = [
            model.fit(pairs(13), batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"] for model in models
        ]
        apart = max(np.abs(numpy(a) - numpy(b)).max() for a, b in zip(*(m.weights for m in models), strict=True))
        found[f"{kind}, {lora}"] = (losses, float(apart))
    return found


def whole_on_two_devices():
    return on_two_devices([("softmax", False)])


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strategies are TensorFlow's")
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(2, marks=pytest.mark.elsewhere("two devices", "on_two_devices")),
        pytest.param(1, marks=[pytest.mark.nightly, pytest.mark.elsewhere("two devices", "whole_on_two_devices")]),
    ],
)
def test_two_devices_contrast_the_batch_of_both(found, number):
    assert len(found) == number
    for losses, apart in found.values():
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
        assert apart < 1e-5


def test_pairs_are_learned_and_the_scale_stays_below_100():
    model = towers()
    model.compile(keras.optimizers.Adam(0.01))
    data = pairs(8)
    losses = model.fit(data, batch_size=8, epochs=60, verbose=0).history["loss"]
    assert losses[-1] < 0.1 < losses[0]
    found = {name: numpy(each) for name, each in model(data).items()}
    assert recall(found["images"], found["texts"], (1,)) == {"image_to_text_1": 1.0, "text_to_image_1": 1.0}
    model.logit_scale.assign(9.0)
    model.fit(data, batch_size=8, verbose=0)
    assert float(numpy(model.logit_scale)) <= np.log(100) + 1e-6


@pytest.mark.parametrize(("loss", "scale", "bias"), [("softmax", np.log(1 / 0.07), None), ("sigmoid", np.log(10), -10)])
def test_scale_and_bias_begin_as_the_papers_say(loss, scale, bias):
    """arXiv:2103.00020, section 2.5; arXiv:2303.15343, section 3.2."""
    model = towers(loss)
    assert float(numpy(model.logit_scale)) == pytest.approx(scale)
    assert bias is None or float(numpy(model.logit_bias)) == bias


@pytest.mark.parametrize(("loss", "kind"), [(None, "sigmoid"), ("softmax", "softmax"), ("sigmoid", "sigmoid")])
def test_bias_of_the_weights_is_kept(loss, kind, tmp_path):
    """The loss is that of the towers by default. Softmax does not depend on a bias, and keeps it."""
    both = towers(loss, similarity=(1.9, -3.3))
    assert (both.kind, towers(None).kind) == (kind, "softmax")
    assert both.scale_and_bias() == pytest.approx((1.9, -3.3))
    assert any("logit_bias -3.3" in line for line in both.load_report) == (kind == "softmax")
    assert both.loss_in_words().startswith(f"{kind}, logit scale 1.9, logit bias -3.3")
    embedded = both.embed_pairs([pairs(4)])
    expected = by_hand(kind, embedded.images, embedded.texts, np.exp(1.9), -3.3 * (kind == "sigmoid"))
    assert both.loss_of(embedded) == pytest.approx(expected, rel=1e-6)
    both.fit(pairs(8), batch_size=4, verbose=0)
    assert (both.scale_and_bias()[1] == pytest.approx(-3.3, abs=1e-6)) == (kind == "softmax")
    both.save(tmp_path / "x.keras")
    loaded = keras.saving.load_model(tmp_path / "x.keras")
    assert (loaded.kind, loaded.scale_and_bias()) == (kind, both.scale_and_bias())
    old = {name: value for name, value in both.get_config().items() if name != "logit_bias"}
    assert (keras_vit.ContrastiveModel.from_config(old).scale_and_bias()[1] is None) == (kind == "softmax")


def test_locked_image_tower_stays_as_it_is(tmp_path):
    model = towers(lock_image=True)
    before = [numpy(weight).copy() for weight in model.image.weights]
    model.fit(pairs(8), batch_size=4, verbose=0)
    for weight, value in zip(model.image.weights, before, strict=True):
        np.testing.assert_array_equal(numpy(weight), value)
    model.save(tmp_path / "x.keras")
    loaded = keras.saving.load_model(tmp_path / "x.keras")
    for name, value in model(pairs(2)).items():
        np.testing.assert_array_equal(numpy(loaded(pairs(2))[name]), numpy(value))
    assert not loaded.image.trainable


def test_recall_counts_each_way():
    images = np.eye(3)
    texts = np.array([[1, 0, 0], [0.9, 0.5, 0], [0, 0, 1]])
    found = recall(images, texts, (1, 2))
    assert found == {"image_to_text_1": 1.0, "image_to_text_2": 1.0, "text_to_image_1": 2 / 3, "text_to_image_2": 1.0}
    assert recall(np.ones((4, 2)), np.ones((4, 2)), (1,))["image_to_text_1"] == 0.0  # of equals it counts last
    assert recall(np.ones((4, 2)), np.ones((4, 2)), (1,), [[0, 0, 0, 1], [5, 6, 7, 7]])["text_to_image_1"] == 0.25
    rows = np.eye(3)
    for wrong in (np.nan, np.inf, 0):
        with pytest.raises(ArgumentError, match=r"`texts` must be finite[^\n]*\n.*first row 1 of length"):
            recall(rows, np.where(np.arange(3)[:, None] == 1, wrong, rows))
    given = ({"most": 1}, {"most": (1.5,)}, {"most": (0,)}, {"alike": [[1, 2]]}, {"texts": rows + 1j})
    for wrong in given:
        with pytest.raises((TypeError, ArgumentError), match=f"`{next(iter(wrong))}` must be"):
            recall(**{"images": rows, "texts": rows} | wrong)


def test_texts_of_equal_ids_are_not_found_by_each_other():
    """Of 12 captions that are cut to the same ids, each photo is as near to each; so its own is the last one."""
    model, data = towers(), pairs(12)
    data["ids"][:] = data["ids"][0]
    alike = model.embed_pairs([data]).alike[1]
    assert set(alike) == {0}
    data["captions"] = np.stack([np.zeros(12), np.arange(12) % 11], axis=1).astype("int32")  # two are equal
    found = model.evaluate(data, batch_size=5, return_dict=True)["recall"]
    parts = [data | {name: rows[:11] for name, rows in data.items()}]
    assert mean_recall(pair_ranks(*model.embed_pairs(parts))) == pytest.approx((0 + (1 + 5 + 10) / 11) / 6)
    assert (0 + 16 / 12) / 6 <= found <= (0 + (2 + 6 + 11) / 12) / 6


def test_wrong_towers_are_refused():
    image = keras_vit.ViTTi16(num_layers=1, input_shape=(16, 16, 3), include_top=False)
    text = keras_vit.build_text(keras_vit.TextConfig(40, 8, 16, num_layers=1, num_heads=2, mlp_dim=24))
    with pytest.raises(ValueError, match=r"same size(?s:.*)`projection_size`"):
        keras_vit.ContrastiveModel(image, text)
    with pytest.raises(TypeError, match="text tower"):
        keras_vit.ContrastiveModel(image, image)
    with pytest.raises(ValueError, match="`loss` must be one of"):
        keras_vit.ContrastiveModel(image, text, "triplet")
    for scale in (np.nan, -np.inf, 100):
        with pytest.raises(ArgumentError, match="`logit_scale`"):
            keras_vit.ContrastiveModel(image, text, logit_scale=scale)
    model, data = towers(logit_scale=np.float32(2)), pairs(4)
    for ids in (data["ids"] - 41, data["ids"] + 0.7, data["ids"] + 600, data["ids"].astype(str)):
        for method in (model.fit, model.evaluate, model.predict):
            with pytest.raises(ArgumentError, match="ids"):
                method(data | {"ids": ids})
    fewer = {"images": data["images"], "ids": data["ids"][:3]}
    for method in (model.fit, model.predict, functools.partial(model.evaluate, batch_size=3)):
        with pytest.raises(ArgumentError, match="4 images and 3 rows of ids"):
            method(fewer)
        with pytest.raises(ArgumentError, match="at least one text and one id"):
            method(data | {"ids": data["ids"][:, :0]})
    with pytest.raises(ArgumentError, match="`batch_size` must be at least 2"):
        model.fit(data, batch_size=1)
    with pytest.raises(ValueError, match="Pass an optimizer alone"):
        towers().compile("sgd", loss="mse")
