"""What a model puts out is declared, and no loss or metric of probabilities meets logits, or the other way round."""

import types

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, randomise

import keras_vit
from keras_vit import Distiller
from keras_vit.config.heads import HEAD_KINDS, WITH_HEAD, WITHOUT_HEAD, OutputSpec
from keras_vit.images.preprocessing import class_labels
from keras_vit.model.copies import with_dtype
from keras_vit.model.outputs import LogitsError, match_names, names_of_outputs, output_spec, with_units

LOSSES, METRICS = keras.losses, keras.metrics


NO_TOP = {"include_top": False, "classes": None}
IDS = [number for number, _ in class_labels(1000)]
WORDS = [f"word {number}" for number in range(1000)]


@pytest.mark.parametrize(
    ("known", "found", "names"),
    [
        (None, None, "0 1 2"),
        (None, "b a c", "b a c"),
        ("a b c", None, "a b c"),
        ("a b c", "a b c", "a b c"),
        ("a b c", "0 1 2", "a b c"),  # of arrays without names
        ("LABEL_0 LABEL_1 LABEL_2", "b a c", "b a c"),
        ("a b c", "b a c", None),
        ("a b c", "a b d", None),
        ("a b c", "a b", None),
        ("0 1 2", "1 0 2", None),
        (WORDS, IDS, IDS),
        (WORDS, [IDS[1], IDS[0], *IDS[2:]], None),
        ("n00000001_x n00000002_y", "n00000001 n00000002", "n00000001 n00000002"),
        ("n00000002_x n00000001_y", "n00000001 n00000002", None),
        ("a b", "n00000001 n00000002", None),
    ],
)
def test_class_names_of_model_and_data_are_compared(known, found, names):
    known, found, names = (each.split() if isinstance(each, str) else each for each in (known, found, names))
    known = known and tuple(name.replace("_", " " if name.startswith("n") else "_") for name in known)
    spec = OutputSpec(HEAD_KINDS["classes"], (None, len(known or found or "abc")))
    model = types.SimpleNamespace(name="m", class_names=known, output_spec=spec)
    if names is not None:
        assert match_names(model, found) == tuple(names)
        return
    with pytest.raises(ValueError, match="the data must have the classes"):
        match_names(model, found)
    if sorted(found) == sorted(known):
        with pytest.raises(ValueError, match="`class_names` must be in the order of the model's outputs"):
            match_names(model, found, found)
    elif len(found) == len(known):
        assert match_names(model, found, found) == tuple(found)  # a translation, as the caller knows
        with pytest.warns(UserWarning, match="`class_names` has 'x' for several outputs"):
            match_names(model, ["x"] * len(known), ["x"] * len(known))


ENDS = {
    "one head": ({}, "classes", "logits", (None, 7), "linear"),
    "softmax": ({"classifier_activation": "softmax"}, "classes", "scores", (None, 7), "softmax"),
    "head on all tokens": ({"pooling": "none"}, "classes", "logits", (None, 36, 7), "linear"),
    "two heads": ({"distilled": True}, "classes", "logits", (None, 7), "linear"),
    "two, softmax": (
        {"distilled": True, "classifier_activation": "softmax"},
        *("classes", "scores", (None, 7), "softmax"),
    ),
    "pooled": (NO_TOP, "pooled", "embedding", (None, 12), None),
    "two pooled": ({"distilled": True, **NO_TOP}, "pooled", "embedding", (None, 12), None),
    "projected": ({"projection_size": 5, **NO_TOP}, "projected", "embedding", (None, 5), None),
    "tokens": ({"pooling": "none", **NO_TOP}, "tokens", "tokens", (None, 36, 12), None),
}


@pytest.mark.parametrize("end", ENDS)
def test_output_is_declared(end):
    arguments, head, kind, shape, activation = ENDS[end]
    model = make_tiny(num_layers=1, **arguments)
    spec = model.output_spec
    assert spec == OutputSpec(HEAD_KINDS[head], shape, activation)
    assert (spec.kind, spec.size, spec.one_row, spec.classifies) == (
        kind,
        shape[-1],
        len(shape) == 2,
        head in WITH_HEAD,
    )
    assert output_spec(keras.Model(model.input, model.output)) == spec  # found by its layers
    axes = spec.head.axes.replace("K", "T K") if "all tokens" in end else spec.head.axes
    assert len(axes.split()) == len(shape)
    half = keras_vit.model.copies.with_dtype(model, "bfloat16")
    assert half.output.dtype == ("float32" if spec.head.precision == "float32" or end == "two pooled" else "bfloat16")


@pytest.mark.parametrize("head_kind", WITH_HEAD)
def test_declared_output_stays_with_the_model(head_kind, tmp_path):
    model = make_tiny(num_layers=1)
    model.head_kind = head_kind
    spec = OutputSpec(HEAD_KINDS[head_kind], (None, 7), "linear")
    assert (spec.kind, spec.exclusive) == ("numbers" if head_kind == "numbers" else "logits", head_kind == "classes")
    model.save(tmp_path / "model.keras")
    keras_vit.add_lora(model, rank=2)
    copies = [
        model,
        keras.models.load_model(tmp_path / "model.keras"),
        keras_vit.with_input_shape(make_like(model), (24, 24, 3)),
        keras_vit.merge_tokens(make_like(model), 1),
        keras_vit.naflex(make_like(model)),
    ]
    assert [copy.output_spec for copy in copies] == [spec] * len(copies)
    assert ("head_kind" in model.get_config()) == (head_kind != "classes")


def make_like(model):
    found = make_tiny(num_layers=1)
    found.head_kind = model.head_kind
    return found


def test_kinds_of_heads_are_rows():
    assert {kind.output for kind in HEAD_KINDS.values()} == {
        "logits",
        "numbers",
        "embedding",
        "tokens",
        "map",
        "queries",
    }
    assert sorted(WITH_HEAD + WITHOUT_HEAD) == sorted(HEAD_KINDS)
    model = make_tiny(num_layers=1)
    with pytest.raises(ValueError, match=r"head_kind[^$]*'words'"):
        keras_vit.VisionTransformer(model.input, model.output, head_kind="words")


@pytest.fixture(scope="module")
def logits():
    return make_tiny(num_layers=1)


@pytest.fixture(scope="module")
def probabilities():
    return make_tiny(num_layers=1, classifier_activation="softmax")


READ_PROBABILITIES = [
    *("dice", "tversky"),
    keras.losses.Dice(),
    *("sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy", "kl_divergence"),
    LOSSES.sparse_categorical_crossentropy,
    LOSSES.SparseCategoricalCrossentropy(),
    LOSSES.CategoricalFocalCrossentropy(),
    LOSSES.KLDivergence(),
    ["categorical_crossentropy"],
]
READ_LOGITS = [LOSSES.SparseCategoricalCrossentropy(from_logits=True), LOSSES.BinaryCrossentropy(from_logits=True)]
READ_BOTH = ["mse", None, LOSSES.MeanAbsoluteError(), lambda y, predicted: predicted]
METRICS_OF_PROBABILITIES = [
    *("crossentropy", "auc", "AUC", "precision", "binary_accuracy"),
    METRICS.AUC(),
    METRICS.Precision(),
    METRICS.BinaryAccuracy(),
    METRICS.PrecisionAtRecall(0.5),
    METRICS.SparseCategoricalCrossentropy(),
    METRICS.F1Score(threshold=0.5),
]
METRICS_OF_LOGITS = [METRICS.AUC(from_logits=True), METRICS.SparseCategoricalCrossentropy(from_logits=True)]
METRICS_OF_BOTH = [
    *("accuracy", "sparse_categorical_accuracy"),
    METRICS.TopKCategoricalAccuracy(),
    METRICS.BinaryAccuracy(threshold=0.0),
    METRICS.Precision(thresholds=0.0),
    METRICS.Precision(top_k=1),
    METRICS.F1Score(),
]


def test_losses_are_refused_where_they_misread(logits, probabilities):
    for loss in READ_PROBABILITIES:
        with pytest.raises(LogitsError, match="answers logits"):
            logits.compile("sgd", loss)
        probabilities.compile("sgd", loss)
    for loss in READ_LOGITS:
        with pytest.raises(LogitsError, match="answers probabilities"):
            probabilities.compile("sgd", loss)
        logits.compile("sgd", loss)
    for loss in READ_BOTH:
        logits.compile("sgd", loss)
        probabilities.compile("sgd", loss)


@pytest.mark.parametrize("where", ["metrics", "weighted_metrics"])
def test_metrics_are_refused_where_they_misread(logits, probabilities, where):
    for metric in METRICS_OF_PROBABILITIES:
        with pytest.raises(LogitsError, match=r"metric .*(from_logits=True|0\.0)"):
            logits.compile("sgd", "mse", **{where: [metric]})
        probabilities.compile("sgd", "mse", **{where: [metric]})
    with pytest.raises(LogitsError, match=r"binary_accuracy.*0\.0"):
        logits.compile("sgd", "mse", **{where: ["binary_accuracy"]})
    for metric in METRICS_OF_LOGITS:
        with pytest.raises(LogitsError, match="from_logits"):
            probabilities.compile("sgd", "mse", **{where: [metric]})
        logits.compile("sgd", "mse", **{where: [metric]})
    for metric in METRICS_OF_BOTH:
        logits.compile("sgd", "mse", **{where: [metric]})


def test_accuracy_of_one_class_has_a_threshold():
    model = make_tiny(num_layers=1, classes=1)
    with pytest.raises(LogitsError, match=r"'accuracy'.*0\.0"):
        model.compile("sgd", "mse", metrics=["accuracy"])
    make_tiny(num_layers=1, classes=1, classifier_activation="sigmoid").compile("sgd", "mse", metrics=["accuracy"])


def test_model_without_a_head_may_have_any_loss():
    make_tiny(num_layers=1, include_top=False, classes=None).compile("sgd", "binary_crossentropy")


def test_student_answers_logits():
    student, teacher = make_tiny(num_layers=1, distilled=True), make_tiny(num_layers=1)
    with pytest.raises(LogitsError, match="answers logits"):
        Distiller(student, teacher).compile("sgd", "sparse_categorical_crossentropy")


def test_file_that_was_compiled_so_is_loaded_with_a_warning(tmp_path, monkeypatch):
    model = make_tiny(num_layers=1)
    with monkeypatch.context() as patch:
        patch.setattr("keras_vit.model.image_model.check_reads_outputs", lambda *_: None)
        model.compile("sgd", "sparse_categorical_crossentropy")
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="not compiled"):
        again = keras.models.load_model(tmp_path / "model.keras")
    x = images(2, 20, 28, 3)
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


def test_numbers_in_units_are_those_of_the_head_scaled_and_kept_by_copies(tmp_path):
    model = randomise(make_tiny(classes=2))
    scale, offset = [3.5, 1e-3], [-2000.0, 0.25]
    model.load_report = ("resized",)
    in_units = with_units(model, scale, offset)
    pixels = images(2, *model.input_shape[1:])
    wanted = numpy(model(pixels)) * np.float32(scale) + np.float32(offset)
    np.testing.assert_allclose(numpy(in_units(pixels)), wanted, rtol=1e-6)
    assert in_units.output_spec.kind == "numbers"
    assert in_units.load_report == ("resized",)
    assert in_units.accepts_uint8 == model.accepts_uint8
    in_units.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numpy(again(pixels)), numpy(in_units(pixels)))
    copy = keras_vit.with_input_shape(in_units, (48, 64, 3))
    assert copy.output_spec.kind == "numbers"
    assert copy.layers[-1].get_config() == in_units.layers[-1].get_config()
    half = with_dtype(in_units, "bfloat16")
    assert half.layers[-1].compute_dtype == "float32"
    with pytest.raises(ValueError, match="in which unit"):
        keras_vit.save_checkpoint(in_units, tmp_path / "model.npz")


def test_names_of_another_number_than_the_outputs_are_not_used_and_a_line_says_so():
    """As of a file of an earlier version."""
    model = make_tiny(classes=3)
    model = type(model).from_config(model.get_config() | {"class_names": ["only", "two"]})
    with pytest.warns(UserWarning, match="are 2 names for 3 outputs, and are not used"):
        assert names_of_outputs(model) == ("class 0", "class 1", "class 2")


@pytest.mark.parametrize(
    ("names", "error", "received"),
    [
        (("a", "b"), ValueError, "Received: 2. Pass"),
        (("a", "b", "c", "d"), ValueError, "Received: 4. Pass"),
        (("a", " ", "c"), ValueError, "Received: 3, among them ' '"),
        (range(3), TypeError, "Received: 3, among them 0"),
        (("a", None, "c"), TypeError, "among them None"),
        ({"a": 0, "b": 1, "c": 2}, TypeError, "must be a list of names in the order of the outputs"),
        ("abc", TypeError, "must be a list of names in the order of the outputs"),
    ],
)
def test_class_names_are_set_one_for_each_output_or_refused(names, error, received):
    model = make_tiny(classes=3)
    model.class_names = ["okapi", "gnu", "crane"]
    with pytest.raises(error, match=received):
        model.class_names = names
    assert model.class_names == ("okapi", "gnu", "crane")
    model.class_names = None
    assert model.class_names is None
