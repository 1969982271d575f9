import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy

import keras_vit
from keras_vit import MaskedPatchPrediction
from keras_vit.training.masked_patches import TARGETS, color_classes, patches_of

SIZE = (20, 28, 3)  # in patches of 4: a grid of 5 x 7
IMAGENET = keras_vit.Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), image_size=None)
PLAIN = keras_vit.Preprocessing(image_size=None)
KINDS = {
    "token": {},
    "whole last block": {"last_block_outputs": "all"},
    "gap": {"pooling": "gap"},
    "map": {"pooling": "map"},
    "headless": {"pooling": "none", "include_top": False, "classes": None},
    "distilled": {"distilled": True},
    "no positions": {"position_embedding": "none", "pooling": "gap"},
    "sincos": {"position_embedding": "sincos2d"},
    "relative": {"position_embedding": "relative"},
    "positions in blocks": {"position_embedding": "learned2d", "position_injection": "blocks_shared"},
    "axial": {"attention": "axial", "pooling": "gap"},
    "hybrid": {"resnet_stages": (1,), "resnet_width_factor": 0.5, "patch_size": 1},
    "any size": {"input_shape": (None, None, 3)},
    "rematerialised": {"rematerialize": True},
}


def make(target="mean_color", model=None, compiled=True, **arguments):
    made = MaskedPatchPrediction(model or make_tiny(), target, **{"seed": 1} | arguments)
    if compiled:
        made.compile(keras.optimizers.SGD(0.1), run_eagerly=True)  # tracing takes longer than a few steps
    return made


def pixels(*shape, seed=6):
    return np.random.default_rng(seed).integers(0, 256, shape, "uint8")


def classes_by_numpy(pixels, side, cells):
    """Patch by patch and part by part, each pixel by the share of it that lies in the part."""
    first, width = np.arange(side), side / cells
    ends = [(part * width, (part + 1) * width) for part in range(cells)]
    shares = [np.clip(np.minimum(first + 1, end) - np.maximum(first, start), 0, 1) for start, end in ends]
    found = []
    for image in pixels.astype("float64"):
        for y in range(0, image.shape[0], side):
            for x in range(0, image.shape[1], side):
                patch = image[y : y + side, x : x + side]
                for rows in shares:
                    for columns in shares:
                        mean = np.einsum("y,x,yxc->c", rows, columns, patch) / width**2
                        red, green, blue = np.floor(mean / 32).astype(int)
                        found.append(64 * red + 8 * green + blue)
    return np.reshape(found, (len(pixels), -1, cells * cells))


@pytest.mark.parametrize("record", [PLAIN, IMAGENET], ids=["plain", "imagenet"])
def test_class_of_a_color_is_its_three_highest_bits_of_red_times_64_green_times_8_and_blue(record):
    greys = np.repeat(np.arange(256, dtype="uint8"), 3).reshape(256, 1, 1, 3)
    classes = numpy(color_classes(record(np.tile(greys, (1, 6, 6, 1))), record, 6, 1))
    np.testing.assert_array_equal(classes[:, 0, 0], (np.arange(256) // 32) * (64 + 8 + 1))
    colors = np.uint8([(255, 0, 0), (0, 255, 0), (0, 0, 255), (31, 32, 223)])[:, None, None]
    classes = numpy(color_classes(record(np.tile(colors, (1, 4, 8, 1))), record, 4, 1))
    np.testing.assert_array_equal(classes[..., 0], np.repeat([[448], [56], [7], [14]], 2, axis=1))


@pytest.mark.parametrize(("side", "cells"), [(4, 1), (7, 1), (4, 4), (8, 4), (14, 4), (6, 4), (5, 4)])
@pytest.mark.parametrize("record", [PLAIN, IMAGENET], ids=["plain", "imagenet"])
def test_color_classes_are_those_that_numpy_finds(side, cells, record):
    x = pixels(2, 3 * side, 2 * side, 3)
    expected = classes_by_numpy(x, side, cells)
    np.testing.assert_array_equal(numpy(color_classes(record(x), record, side, cells)), expected)


def test_grey_images_have_eight_classes():
    record = PLAIN.with_channels(1)
    classes = numpy(color_classes(record(pixels(1, 8, 4, 1)), record, 1, 1))
    np.testing.assert_array_equal(classes.ravel(), pixels(1, 8, 4, 1).ravel() // 32)


def test_patches_are_cut_in_reading_order():
    x = images(2, 6, 9, 2)
    patches = numpy(patches_of(x, 3))
    assert patches.shape == (2, 6, 3, 3, 2)
    np.testing.assert_array_equal(patches[1, 4], x[1, 3:6, 3:6])


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_read_off_every_patch_token_of_the_model(kind):
    """With nothing hidden behind another token, they are one dense layer on what `features` finds."""
    model = make_tiny(**KINDS[kind])
    masked = make(model=model, compiled=False, mask_share=0.0, random_share=0.0)
    dense = masked.get_layer("prediction")
    dense.set_weights([np.random.default_rng(1).normal(size=w.shape) for w in dense.get_weights()])
    x = images(2, *SIZE)
    tokens = keras_vit.features(model, x, [2], spatial=False)[2]
    expected = tokens @ numpy(dense.kernel) + numpy(dense.bias)
    for training in (False, True):
        answer = masked(x, training=training)
        np.testing.assert_allclose(numpy(answer["predictions"]), expected, atol=1e-4)  # of numbers of about 4
        assert set(numpy(answer["hidden"]).sum(axis=1)) <= {17, 18}


def test_what_is_hidden_behind_the_mask_is_not_seen():
    masked = make(compiled=False, rate=1.0, mask_share=1.0, random_share=0.0)
    dense = masked.get_layer("prediction")
    dense.kernel.assign(np.random.default_rng(1).normal(size=dense.kernel.shape))
    one, two = numpy(masked(images(2, *SIZE))["predictions"])
    np.testing.assert_allclose(one, two, atol=1e-5)  # batched matrix products
    assert np.ptp(one, axis=0).max() > 0.1  # patches still know where they are


@pytest.mark.parametrize("target", ["mean_color", "downsized"])
def test_first_loss_is_the_logarithm_of_the_number_of_colors(target):
    loss = make(target).evaluate(images(4, *SIZE), verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(loss, np.log(512), rtol=1e-6)


def test_first_loss_of_pixels_is_the_mean_square_of_those_that_are_hidden():
    x, masked = images(4, *SIZE), make("pixels")
    hidden = numpy(masked(x)["hidden"])
    expected = np.square(numpy(patches_of(x, 4)))[hidden].mean()  # as many are hidden in each image
    np.testing.assert_allclose(masked.evaluate(x, verbose=0), expected, rtol=1e-5)


def answer(target, hidden, seed=3):
    """Some answer to 4 images, and what it should have been."""
    x, rng = images(4, *SIZE), np.random.default_rng(seed)
    shape = {"mean_color": (512,), "downsized": (16, 512), "pixels": (4, 4, 3)}[target]
    predictions = rng.normal(size=(4, 35, *shape)).astype("float32")
    masked = make(target)
    return masked, x, {"predictions": predictions, "hidden": hidden}


def loss_by_numpy(target, x, predictions):
    """Of each patch, `(B, N)`."""
    if target == "pixels":
        return np.square(predictions - numpy(patches_of(x, 4))).mean(axis=(2, 3, 4))
    cells = 1 if target == "mean_color" else 4
    whole = np.clip(np.round((x + 1) * 127.5, 3), 0, 255)
    classes = classes_by_numpy(whole, 4, cells)
    logits = predictions.reshape(4, 35, cells**2, 512).astype("float64")
    log = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(log, classes[..., None], axis=-1)[..., 0].mean(axis=-1)


@pytest.mark.parametrize("target", TARGETS)
def test_loss_is_the_mean_over_hidden_patches_and_then_over_weighted_images(target):
    hidden = np.random.default_rng(2).uniform(size=(4, 35)) < [[0.2], [0.5], [0.5], [0.8]]
    masked, x, given = answer(target, hidden)
    losses = loss_by_numpy(target, x, given["predictions"])
    expected = np.array([row[seen].mean() for row, seen in zip(losses, hidden, strict=True)])
    np.testing.assert_allclose(numpy(masked.compute_loss(x, None, given)), expected.mean(), rtol=1e-4)
    weights = np.array([1, 0, 0.5, 2], "float32")
    loss = numpy(masked.compute_loss(x, None, given, weights))
    np.testing.assert_allclose(loss, (expected * weights).mean(), rtol=1e-4)


def test_accuracy_is_that_of_hidden_patches():
    hidden = np.random.default_rng(2).uniform(size=(4, 35)) < 0.5
    masked, x, given = answer("mean_color", hidden)
    right = numpy(color_classes(x, masked.model.preprocessing, 4, 1))[..., 0]
    known = np.random.default_rng(3).uniform(size=(4, 35)) < 0.7
    given["predictions"] = np.eye(512, dtype="float32")[np.where(known, right, (right + 1) % 512)]
    found = masked.compute_metrics(x, None, given)["accuracy"]
    np.testing.assert_allclose(numpy(found), known[hidden].mean(), rtol=1e-6)


@pytest.mark.parametrize("kind", ["token", "map", "distilled", "hybrid", "rematerialised"])
def test_what_is_on_the_way_to_the_predictions_learns_and_heads_stay(kind):
    model = make_tiny(**KINDS[kind])
    masked = make(model=model, compiled=False)
    masked.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1), run_eagerly=True)
    before = {weight.path: numpy(weight).copy() for weight in model.weights}
    masked.fit(images(4, *SIZE), epochs=2, verbose=0)  # two steps: the first moves the zeros of the dense layer only
    ends = ("pooling", "head", "pre_logits")
    for weight in model.trainable_weights:
        moved = np.abs(numpy(weight) - before[weight.path]).max() > 0
        assert moved != weight.path.startswith(ends), weight.path


@pytest.mark.parametrize("target", ["mean_color", *(pytest.param(t, marks=pytest.mark.slow) for t in TARGETS[1:])])
def test_loss_falls_on_images_whose_patches_tell_of_each_other(target):
    colors = np.random.default_rng(0).integers(0, 4, (64, 1, 1, 3)) * 64 + 32
    x = PLAIN(np.tile(np.uint8(colors), (1, 8, 12, 1)))
    model = make_tiny(input_shape=(8, 12, 3), hidden_size=24)
    masked = make(target, model, compiled=False)
    masked.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    before = masked.evaluate(x, verbose=0, return_dict=True)
    masked.fit(x, epochs=12, batch_size=16, verbose=0)
    after = masked.evaluate(x, verbose=0, return_dict=True)
    assert after["loss"] < 0.6 * before["loss"]


def test_evaluation_is_the_same_every_time_and_for_any_batches():
    masked, x = make(), images(7, *SIZE)
    masked.fit(x, verbose=0)
    one, again, small = (masked.evaluate(x, batch_size=size, verbose=0) for size in (7, 7, 2))
    assert one == again
    np.testing.assert_allclose(small, one, rtol=1e-5)


def test_labels_are_ignored_and_validation_is_shown():
    x, masked, other = images(4, *SIZE), make(), make()
    plain = masked.fit(x, verbose=0, shuffle=False).history
    labelled = other.fit(x, np.arange(4), verbose=0, shuffle=False, validation_data=(x, np.arange(4))).history
    assert labelled["loss"] == plain["loss"]
    assert {"val_loss", "val_accuracy"} <= set(labelled)


def test_pixels_that_were_not_scaled_are_told():
    with pytest.warns(UserWarning, match="not scaled"):
        make().fit(np.float32(pixels(2, *SIZE)), verbose=0)
    with pytest.raises(TypeError, match="floats"):
        make()(pixels(2, *SIZE))


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_micro_batches_take_the_step_of_the_whole_batch(jit_compile):
    found = []
    for parts in (1, 3):
        masked = make("pixels", make_tiny(num_layers=1), compiled=False)
        masked.compile(keras.optimizers.SGD(0.1), jit_compile=jit_compile, accumulation_steps=parts)
        loss = masked.fit(images(6, *SIZE), epochs=2, shuffle=False, verbose=0).history["loss"]
        found.append(np.concatenate([loss, *(numpy(w).ravel() for w in masked.trainable_weights)]))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)  # sums in another order


def told_here():
    """Losses on this backend: as training begins and goes on, and by micro-batches, where all is hidden alike."""
    x, shown = images(6, *SIZE), []
    for parts in (1, 3):
        masked = make(model=make_tiny(num_layers=1), compiled=False, rate=1.0, mask_share=1.0, random_share=0.0)
        masked.corruption.mask_token.assign(np.linspace(-1, 1, 12).reshape(1, 1, 12))  # backends draw differently
        compiled = keras.backend.backend() == "jax"  # which would compile each operation by itself
        masked.compile(keras.optimizers.Adam(0.01), accumulation_steps=parts, jit_compile=compiled)
        shown.append(masked.fit(x, epochs=4, shuffle=False, verbose=0).history["loss"])
    return shown


@pytest.mark.elsewhere("jax", "told_here")
def test_jax_learns_as_tensorflow_does(found):
    for here, there in zip(told_here(), found, strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-5)  # float32 after four steps
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert found[0][-1] < found[0][0] == pytest.approx(np.log(512), rel=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_trains_with_predictions_in_float32(policy):
    keras.config.set_dtype_policy(policy)
    masked = make()
    assert keras.backend.standardize_dtype(masked(images(2, *SIZE))["predictions"].dtype) == "float32"
    loss = masked.fit(images(4, *SIZE), epochs=2, verbose=0).history["loss"]
    assert loss[1] < loss[0] == pytest.approx(np.log(512), rel=1e-6)


def test_saved_pretraining_goes_on_where_it_stopped(tmp_path):
    x = images(4, *SIZE)
    masked = make("downsized", make_tiny(num_layers=1), compiled=False, rate=0.4)
    masked.compile(keras.optimizers.Adam(0.01), accumulation_steps=2, run_eagerly=True)
    masked.fit(x, verbose=0)
    masked.save(tmp_path / "masked.keras")
    again = keras.saving.load_model(tmp_path / "masked.keras")
    assert (again.target, again.corruption.rate, again.accumulation_steps) == ("downsized", 0.4, 2)
    np.testing.assert_allclose(numpy(again.model(x)), numpy(masked.model(x)), atol=1e-6)
    # A file has no state of seeds, as Keras' dropout has none in it either.
    again.corruption.seed_generator.state.assign(numpy(masked.corruption.seed_generator.state))
    first, second = (each.fit(x, epochs=2, shuffle=False, verbose=0).history["loss"] for each in (masked, again))
    np.testing.assert_allclose(first, second, rtol=1e-5)


def test_checkpoints_resume_to_the_numbers_of_a_run_that_was_not_stopped(tmp_path):
    def losses(epochs, *callbacks):
        masked = make()
        history = masked.fit(images(4, *SIZE), epochs=epochs, shuffle=False, verbose=0, callbacks=[*callbacks]).history
        return history["loss"]

    started = losses(1, keras_vit.Checkpoints(tmp_path / "run", every_steps=1))
    resumed = losses(3, keras_vit.Checkpoints(tmp_path / "run", every_steps=1))
    assert started + resumed == losses(3)


def test_pretrained_file_starts_a_classifier(tmp_path):
    masked = make()
    masked.fit(images(4, *SIZE), verbose=0)
    keras_vit.save_checkpoint(masked.model, tmp_path / "pretrained.npz")
    model = keras_vit.build(masked.model.config, weights=tmp_path / "pretrained.npz", classes=5, input_shape=SIZE)
    x = images(2, *SIZE, seed=9)
    tokens = [keras_vit.features(each, x, [2])[2] for each in (masked.model, model)]
    np.testing.assert_allclose(*tokens, atol=1e-5)
    assert not np.any(numpy(model(x)))  # the head is new


@pytest.mark.parametrize(
    ("model", "arguments", "error", "message"),
    [
        ({}, {"target": "mean_colour"}, ValueError, "'mean_color'"),
        ({}, {"rate": 0.0}, ValueError, "rate=0.0"),
        ({"patch_dropout_rate": 0.5}, {}, ValueError, "patch dropout"),
        ({"patch_size": 2}, {"target": "downsized"}, ValueError, "2 x 2"),
        ({"input_shape": (20, 28, 4)}, {}, ValueError, "4 channels"),
        ({"input_shape": (4, 4, 3)}, {}, ValueError, "two patches"),
    ],
)
def test_what_cannot_be_told_is_refused(model, arguments, error, message):
    with pytest.raises(error, match=message):
        MaskedPatchPrediction(make_tiny(**model), **arguments)


def test_other_models_are_refused():
    inputs = keras.Input(SIZE)
    around = keras_vit.build(make_tiny().config, input_tensor=keras.layers.RandomFlip()(inputs), classes=7)
    with pytest.raises(ValueError, match="as they are"):
        MaskedPatchPrediction(around)
    with pytest.raises(TypeError, match="VisionTransformer"):
        MaskedPatchPrediction(keras.Model(inputs, inputs))


@pytest.mark.parametrize("arguments", [{"loss": "mse"}, {"metrics": ["accuracy"]}])
def test_loss_and_metrics_of_your_own_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        make(compiled=False).compile("sgd", **arguments)


def test_absolute_errors_of_squares_are_simmims():
    """The given function's loss, on the mask that was drawn: ceil(0.6 n) squares of 2 x 2 patches, in every image."""
    model = make_tiny(input_shape=(24, 16, 3))  # a grid of 6 x 4, so 6 squares
    made = make("pixels", model, rate=4 / 6, mask_share=1.0, random_share=0.0, loss="mae", square=2)
    made.get_layer("prediction").kernel.assign(np.random.default_rng(0).normal(0, 0.1, (12, 48)))
    x = images(5, 24, 16, 3)
    found = made(x, training=True)
    hidden, predictions = numpy(found["hidden"]), numpy(found["predictions"])
    squares = hidden.reshape(5, 3, 2, 2, 2).transpose(0, 1, 3, 2, 4).reshape(5, 6, 4)
    assert (squares.all(-1) == squares.any(-1)).all()
    assert (squares.all(-1).sum(-1) == 4).all()
    assert len({row.tobytes() for row in hidden}) > 1
    want = keras_vit.selfsupervised.simmim_loss(predictions.reshape(5, 24, -1), x, hidden, 4)
    np.testing.assert_allclose(float(made.compute_loss(x, None, found)), float(want), rtol=1e-6)
    again = MaskedPatchPrediction.from_config(made.get_config())
    assert (again.pixel_loss, again.square, again.corruption.squares) == ("mae", 2, (6, 4, 2))
    for wrong, words in (
        ({"square": 4}, "divides both"),
        ({"square": 0}, "square"),
        ({"loss": "huber"}, "loss"),
        ({"square": 2, "model": make_tiny(input_shape=(None, None, 3))}, "fixed size"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            make("pixels", **{"model": model} | wrong)
