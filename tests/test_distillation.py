import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, randomise, tiny_config

import keras_vit

RNG = np.random.default_rng(4)
TEACHER, STUDENT = RNG.normal(size=(2, 5, 7)).astype("float32")


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.fixture
def student():
    return make_tiny(distilled=True)


@pytest.fixture(scope="module")
def pair():
    """A student and a teacher for tests that train neither."""
    return make_tiny(distilled=True), teacher()


def teacher(**fields):
    config = tiny_config(pooling="gap", dropout_rate=0.5, **fields)  # which a teacher that answers must not use
    return randomise(keras_vit.build(config, input_shape=(20, 28, 3), classes=7), seed=8)


def test_logits_are_the_average_of_two_heads_on_two_tokens(student):
    tokens = keras.Model(student.input, student.get_layer("encoder_norm").output)
    x = images(2, 20, 28, 3)
    first, second = np.moveaxis(numpy(tokens(x)), 1, 0)  # of the last block only what the heads read
    heads = [student.get_layer(name) for name in ("head", "head_distillation")]
    expected = np.mean(
        [t @ numpy(h.kernel) + numpy(h.bias) for t, h in zip((first, second), heads, strict=True)], axis=0
    )
    np.testing.assert_allclose(numpy(student(x)), expected, atol=1e-5)


def test_last_block_short_cut_gives_what_the_whole_block_gives(student):
    whole = keras_vit.build(tiny_config(distilled=True, last_block_outputs="all"), input_shape=(20, 28, 3), classes=7)
    whole.set_weights(student.get_weights())
    x = images(2, 20, 28, 3)
    np.testing.assert_allclose(numpy(whole(x)), numpy(student(x)), atol=1e-5)


def test_the_distillation_token_stands_between_class_token_and_patches(student):
    block = student.get_layer("block_00")
    tokens = numpy(keras.Model(student.input, block.input)(images(1, 20, 28, 3)))[0]
    table = numpy(student.get_layer("position_embedding").table)[0]
    for row, name in enumerate(("class_token", "distillation_token")):
        expected = numpy(student.get_layer(name).token)[0, 0] + table[row]
        np.testing.assert_allclose(tokens[row], expected, atol=1e-6)
    assert len(tokens) == 2 + 5 * 7


def test_distilled_model_is_saved_resized_and_activated(student, tmp_path):
    student.save(tmp_path / "x.keras")
    x = images(2, 20, 28, 3)
    np.testing.assert_array_equal(numpy(keras.saving.load_model(tmp_path / "x.keras")(x)), numpy(student(x)))
    assert keras_vit.with_input_shape(student, (32, 12, 3))(images(1, 32, 12, 3)).shape == (1, 7)
    softened = make_tiny(distilled=True, classifier_activation="softmax")
    np.testing.assert_allclose(numpy(softened(x)), softmax(numpy(student(x))), atol=1e-6)
    representation = make_tiny(distilled=True, include_top=False, classes=None)
    assert representation.output_shape == (None, 12)


@pytest.mark.parametrize("fields", [{"pooling": "gap"}, {"class_token": False}, {"representation_size": 9}])
def test_config_refuses_what_distillation_has_no_meaning_with(fields):
    with pytest.raises(ValueError, match=r"distilled|class token"):
        tiny_config(distilled=True, **fields)


def test_losses_are_their_formulas_also_when_rebuilt():
    """The cross-entropy with the teacher's choice, and the softened divergence times the squared temperature."""
    hard = -np.log(softmax(STUDENT)[np.arange(5), TEACHER.argmax(-1)])
    p, q = softmax(TEACHER / 2.5), softmax(STUDENT / 2.5)
    soft = 2.5**2 * (p * np.log(p / q)).sum(-1)
    for kind, expected in (("hard", hard), ("soft", soft)):
        loss = keras_vit.DistillationLoss(kind, temperature=2.5, reduction="none")
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
        for each in (loss, again):
            np.testing.assert_allclose(numpy(each(TEACHER, STUDENT)), expected, atol=1e-5)


@pytest.mark.parametrize(("kind", "weight"), [("hard", 0.5), ("soft", 0.1)])
def test_distiller_reports_the_weighted_sum_of_both_losses(student, pair, kind, weight):
    x, y, strength = images(4, 20, 28, 3), np.array([0, 3, 3, 6]), np.array([1.0, 2.0, 0.5, 0.0], "float32")
    master = pair[1]
    heads = keras.Model(student.input, [student.get_layer(n).output for n in ("head", "head_distillation")])
    by_labels, by_teacher = (numpy(z) for z in heads(x))
    labels = -np.log(softmax(by_labels)[np.arange(4), y])
    second = numpy(keras_vit.DistillationLoss(kind, reduction="none")(numpy(master(x)), by_teacher))
    expected = np.mean(((1 - weight) * labels + weight * second) * strength)
    distiller = keras_vit.Distiller(student, master, kind, weight)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    distiller.compile("sgd", loss, metrics=["accuracy"], run_eagerly=True)
    history = distiller.fit(x, y, sample_weight=strength, batch_size=4, verbose=0)
    np.testing.assert_allclose(history.history["loss"][0], expected, rtol=1e-4)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_distiller_trains_the_student_and_not_the_teacher(jit_compile):
    x, y = images(4, 20, 28, 3), np.array([0, 3, 3, 6])
    student, master = make_tiny(distilled=True, num_layers=1), teacher(num_layers=1)
    before, of_teacher = student.get_weights(), master.get_weights()
    distiller = keras_vit.Distiller(student, master)
    distiller.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=jit_compile,
    )
    distiller.fit(x, y, verbose=0)
    for old, weight in zip(before, student.weights, strict=True):
        if not weight.path.endswith("key/bias"):  # adds the same to every score of a row, which softmax takes off
            assert np.abs(old - numpy(weight)).max() > 0, weight.path
    for old, new in zip(of_teacher, master.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    if jit_compile:
        return  # what follows trains nothing, and XLA would compile each
    scores = distiller.evaluate(x, y, verbose=0, return_dict=True)
    assert scores["accuracy"] == np.mean(numpy(student(x)).argmax(-1) == y)
    np.testing.assert_allclose(distiller.predict(x, verbose=0), numpy(student(x)), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_shape": (20, 28, 1)}, "20, 28, 1"),
        ({"input_shape": (20, 24, 3)}, "20, 24, 3"),
        ({"classifier_activation": "softmax"}, "activation"),
        ({"classifier_activation": "softmax", "distilled": True}, "activation"),
    ],
)
def test_distiller_refuses_a_teacher_that_cannot_be_asked(pair, arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.Distiller(pair[0], make_tiny(**arguments))


def test_distiller_takes_a_teacher_of_any_size_and_not_the_student_itself(student):
    keras_vit.Distiller(student, make_tiny(input_shape=(None, None, 3)))
    with pytest.raises(ValueError, match="two models"):
        keras_vit.Distiller(student, student)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"student": {}}, "two heads"),
        ({"student": {"distilled": True, "classifier_activation": "softmax"}}, "logits"),
        ({"student": {"distilled": True, "classes": 5}}, "classes"),
        ({"weight": 1.5}, "weight=1.5"),
        ({"temperature": 0}, "`temperature`"),
        ({"kind": "medium"}, "medium"),
    ],
)
def test_distiller_refuses(pair, arguments, message):
    arguments = dict(arguments)
    student = make_tiny(**arguments.pop("student")) if "student" in arguments else pair[0]
    with pytest.raises(ValueError, match=message):
        keras_vit.Distiller(student, pair[1], **arguments)
