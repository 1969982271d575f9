"""The comparison itself: a runtime that is off by a known amount is found to be, and so is every other fault."""

import numpy as np
import pytest
from conftest import make_tiny
from exporting.fake_format import fake_runtime, traced
from exporting.served import make_job
from pictures import picture

from keras_vit.exporting import budget, verification
from keras_vit.exporting.report import ExportError
from keras_vit.exporting.verification import BATCHES, image_size, verify

PHOTOS = [picture(33 + n, 47 - n, seed=n) for n in range(11)]


@pytest.fixture(autouse=True)
def one_reference(monkeypatch):
    """A model is traced once for all comparisons with it."""
    monkeypatch.setattr(verification, "Reference", traced)


@pytest.fixture(scope="module")
def spec():
    return make_job(make_tiny(num_layers=1))


def verified(spec, spoil=lambda answers, pixels: answers, photos=None):
    """The verification of a spoiled runtime, and its drifts by output."""
    found = verify(spec.model, fake_runtime(spec, spoil, photos), PHOTOS, spec)
    return found, {drift.output: drift for drift in found.drift}


def shifted(name, by):
    return lambda answers, pixels: {**answers, name: answers[name] + np.float32(by)}


def test_right_file_passes_with_no_difference_to_speak_of(spec):
    found, drift = verified(spec)
    assert (found.passed, found.images, found.top1_agreement) == (True, 11, 1.0)
    assert list(drift) == ["logits", "features", "scores"]
    assert max(one.max_difference for one in found.drift) < 2e-6  # batches of another size round otherwise
    assert 0 < found.seconds < np.inf
    assert 0 < found.keras_seconds < np.inf


def test_batches_have_several_sizes_and_hold_every_photo_once(spec):
    sizes = []
    verified(spec, lambda answers, pixels: sizes.append(len(pixels)) or answers)
    assert sizes[:4] == [*BATCHES[:3], 3]
    assert sum(sizes[:4]) == 11
    assert set(sizes[4:]) == {1}  # for the time


def test_slow_model_is_timed_as_it_is_compared(spec, monkeypatch):
    monkeypatch.setattr(budget, "_WORK", 1.0)
    order = []
    runtime = fake_runtime(spec, lambda answers, pixels: order.append(len(pixels)) or answers)
    monkeypatch.setattr(verification, "_check_finite", lambda answers, model: order.append("reference"))
    found = verify(spec.model, runtime, PHOTOS[:1], spec)
    assert order == [1, "reference"]  # TensorFlow keeps its memory, so it comes behind
    assert min(found.seconds, found.keras_seconds) > 0


@pytest.mark.parametrize("name", ["logits", "features", "scores"])
def test_known_difference_is_the_drift(spec, name):
    found, drift = verified(spec, shifted(name, 0.125))
    assert drift[name].max_difference == pytest.approx(0.125, abs=3e-6)
    assert drift[name].mean_difference == pytest.approx(0.125, abs=3e-6)
    assert not found.passed
    assert [one.output for one in found.drift if not one.within] == [name]


def test_one_wrong_number_among_all_is_found(spec):
    def spoil(answers, pixels):
        logits = answers["logits"].copy()
        logits[-1, 3] += 0.01 * (len(pixels) == 5)
        return {**answers, "logits": logits}

    found, drift = verified(spec, spoil)
    assert drift["logits"].max_difference == pytest.approx(0.01, abs=3e-6)
    assert drift["logits"].mean_difference == pytest.approx(0.01 / 77, abs=1e-6)
    assert not found.passed


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_number_that_is_none_is_found(spec, value):
    def spoil(answers, pixels):
        features = answers["features"].copy()
        features[0, 0] = value
        return {**answers, "features": features}

    found, drift = verified(spec, spoil)
    assert not drift["features"].within
    assert not found.passed


SPOILT = {
    "rows of a batch in another order": lambda answers, pixels: {k: rows[::-1] for k, rows in answers.items()},
    "the first row for all": lambda answers, pixels: {
        k: np.repeat(rows[:1], len(rows), 0) for k, rows in answers.items()
    },
    "one row only": lambda answers, pixels: {k: rows[:1] for k, rows in answers.items()},
    "transposed": lambda answers, pixels: {k: rows.T for k, rows in answers.items()},
    "another rank": lambda answers, pixels: {k: rows[..., None] for k, rows in answers.items()},
    "a number": lambda answers, pixels: {k: 0.0 for k in answers},
    "one class less": lambda answers, pixels: {k: rows[:, 1:] for k, rows in answers.items()},
    "classes in another order": lambda answers, pixels: {k: rows[:, ::-1] for k, rows in answers.items()},
    "nothing": lambda answers, pixels: {},
}


@pytest.mark.parametrize("fault", SPOILT)
def test_fault_is_found(spec, fault):
    found, _ = verified(spec, SPOILT[fault])
    assert not found.passed
    assert not any(one.within for one in found.drift)


@pytest.mark.parametrize("name", ["logits", "features", "scores"])
def test_missing_output_is_found(spec, name):
    found, drift = verified(spec, lambda answers, pixels: {k: rows for k, rows in answers.items() if k != name})
    assert [one.output for one in found.drift if not one.within] == [name]
    assert drift[name].max_difference == np.inf
    assert found.top1_agreement == (0.0 if name == "scores" else 1.0)


def test_softmax_over_the_batch_is_found(spec):
    def spoil(answers, pixels):
        powers = np.exp(answers["logits"])
        return {**answers, "scores": powers / powers.sum(axis=0)}

    assert not verified(spec, spoil)[1]["scores"].within


def test_agreement_is_the_share_of_the_same_best_class(spec):
    def spoil(answers, pixels):
        scores = answers["scores"].copy()
        scores[0] = 1 - scores[0]  # of the first of each batch the worst class is the best
        return {**answers, "scores": scores}

    assert verified(spec, spoil)[0].top1_agreement == pytest.approx(7 / 11)


def test_runtime_that_fails_is_told_with_its_words(spec):
    def fail(answers, pixels):
        if len(pixels) == 5:
            raise RuntimeError("batch is fixed to 1")
        return answers

    with pytest.raises(ExportError, match="5 photos: RuntimeError: batch is fixed"):
        verified(spec, fail)


@pytest.mark.parametrize("error", [MemoryError, ImportError, KeyboardInterrupt])
def test_fault_of_the_machine_comes_through(spec, error):
    def fail(answers, pixels):
        raise error

    with pytest.raises(error):
        verified(spec, fail)


# Bounds


def test_mean_difference_of_numbers_is_that_of_the_worst_one():
    wanted, found = np.zeros((3, 2)), np.array([[0.0, 1.0]] * 3)
    means = {name: verification._drift(name, wanted, found, (2, 2)).mean_difference for name in ("numbers", "logits")}
    assert means == {"numbers": 1.0, "logits": 0.5}


def test_bounds_of_float32_are_those_of_the_promise(spec):
    _, drift = verified(spec)
    for one in drift.values():
        assert 1e-4 > one.bound == one.mean_bound >= 1e-5  # of numbers below 10
    assert drift["scores"].bound == drift["logits"].bound / 2
    large = make_tiny(num_layers=1)
    large.get_layer("head").kernel.assign(large.get_layer("head").kernel * 100)
    _, drift = verified(make_job(large))
    assert drift["logits"].bound > 1e-5 * drift["logits"].deviation > 1e-4


@pytest.mark.parametrize(
    ("precision", "most", "mean"), [("bfloat16", 0.25, 0.05), ("float16", 0.05, 0.01), ("int8", 1.0, 0.1)]
)
def test_bounds_of_other_precisions_are_shares_of_the_deviation(precision, most, mean):
    spec = make_job(make_tiny(num_layers=1), precision=precision)
    _, drift = verified(spec)
    for name in ("logits", "features"):
        assert drift[name].bound == pytest.approx(most * drift[name].deviation)
        assert drift[name].mean_bound == pytest.approx(mean * drift[name].deviation)
    deviation = drift["logits"].deviation
    assert verified(spec, shifted("logits", 0.9 * mean * deviation))[0].passed
    assert not verified(spec, shifted("logits", 1.1 * mean * deviation))[0].passed


def test_head_of_zeros_has_room_for_the_rounding_of_its_scores():
    model = make_tiny(num_layers=1)
    model.get_layer("head").set_weights([np.zeros((12, 7)), np.zeros(7)])
    spec = make_job(model, precision="float16")
    assert verified(spec, shifted("scores", 1e-6))[0].passed
    assert not verified(spec, shifted("scores", 1e-3))[0].passed


# Files


def photos_runtime(spec, spoil):
    """Of files: the right answers, spoiled."""
    import tensorflow as tf

    reference = traced(spec.model, spec.activation, False)

    def answer(files):
        pixels = [tf.io.decode_png(file).numpy() for file in files]
        rows = [reference.run_prepared(np.asarray(spec.model.preprocessing(one[None]))) for one in pixels]
        found = {name: np.concatenate([row[name] for row in rows]) for name in ("scores", "features")}
        return spoil({**found, "status": np.array([b"ok"] * len(files), object)}, pixels)

    return answer


def test_files_are_compared_one_by_one_with_the_preprocessing_outside(spec):
    seen = []
    photos = photos_runtime(spec, lambda answers, pixels: seen.extend(pixels) or answers)
    found, drift = verified(spec, photos=photos)
    assert found.passed
    assert [name for name in drift if "files" in name] == ["features of files", "scores of files"]
    for one, photo in zip(seen, PHOTOS, strict=True):
        np.testing.assert_array_equal(one, photo)


@pytest.mark.parametrize("name", ["scores", "features"])
def test_wrong_answer_to_files_is_found(spec, name):
    _, drift = verified(spec, photos=photos_runtime(spec, shifted(name, 0.125)))
    assert drift[f"{name} of files"].max_difference == pytest.approx(0.125, abs=3e-6)
    assert [one for one in drift if not drift[one].within] == [f"{name} of files"]


def test_one_file_that_is_refused_fails_all(spec):
    def refuse(answers, pixels):
        answers["status"][4] = b"damaged"
        return answers

    found, drift = verified(spec, photos=photos_runtime(spec, refuse))
    assert not found.passed
    assert drift["scores of files"].max_difference == np.inf


@pytest.mark.parametrize(("limits", "size"), [({"max_bytes": 700}, (9, 12)), ({"max_pixels": 600}, (17, 24))])
def test_photos_are_halved_until_they_are_within_the_limits(spec, limits, size):
    spec, sizes = make_job(spec.model, **limits), []
    photos = photos_runtime(spec, lambda answers, pixels: sizes.extend(one.shape[:2] for one in pixels) or answers)
    assert verified(spec, photos=photos)[0].passed
    assert sizes[0] == size  # of 33 x 47
    assert len(sizes) == len(PHOTOS)


def test_no_call_has_more_photos_than_the_limit(spec):
    spec, sizes = make_job(spec.model, max_batch=3), []
    photos = photos_runtime(spec, lambda answers, files: sizes.append(len(files)) or answers)
    found, _ = verified(spec, lambda answers, pixels: sizes.append(len(pixels)) or answers, photos=photos)
    assert found.passed
    assert found.images == len(PHOTOS)
    assert max(sizes) == 3


def test_limits_that_no_photo_fits_leave_files_out(spec):
    spec = make_job(spec.model, max_bytes=9)
    found, drift = verified(spec, photos=photos_runtime(spec, lambda answers, pixels: answers))
    assert found.passed
    assert list(drift) == ["logits", "features", "scores"]


# Sizes


@pytest.mark.parametrize(
    ("shape", "fields", "size"),
    [
        ((20, 28, 3), {}, (20, 28)),
        ((None, None, 3), {}, (56, 60)),
        ((None, None, 3), {"patch_size": 16}, (224, 240)),
        ((None, None, 3), {"patch_size": 32}, (224, 256)),
        ((20, None, 3), {}, (20, 60)),
    ],
)
def test_size_to_compare_at_is_the_models_or_one_that_patches_tile(shape, fields, size):
    assert image_size(make_tiny(input_shape=shape, num_layers=1, **fields)) == size


def test_file_whose_size_is_fixed_is_found_where_it_should_be_any():
    model = make_tiny(num_layers=1, input_shape=(None, None, 3))
    spec, first = make_job(model), []

    def spoil(answers, pixels):
        first.append(pixels.shape[1:3])
        if pixels.shape[1:3] != first[0]:
            raise ValueError("got another size than expected")
        return answers

    with pytest.raises(ExportError, match="another size"):
        verified(spec, spoil)
    assert verified(spec)[0].images == 11


def test_one_photo_is_enough(spec):
    assert verify(spec.model, fake_runtime(spec), PHOTOS[:1], spec).passed
