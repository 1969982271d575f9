"""From a recipe to compile() and fit(): the arithmetic, the checks, and exactly so many steps."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, tiny_config

import keras_vit
from keras_vit.config.recipes import RECIPES
from keras_vit.training.plan import plan

FLOWERS = 1_020


def fresh(**arguments):
    """A tiny model as a builder gives it, its head new."""
    return keras_vit.build(tiny_config(), **{"input_shape": (20, 28, 3), "classes": 7} | arguments)


def changed(name, **fields):
    """A recipe with other fields."""
    return dataclasses.replace(RECIPES[name], **fields)


# -- steps, rates, warm-up


def test_plan_of_the_published_size_is_the_recipe():
    for recipe in RECIPES.values():
        made = plan(recipe, num_images=recipe.train_images or 50_000)
        assert made.steps == (recipe.published_steps or made.steps)
        assert made.warmup_steps == recipe.warmup_steps or recipe.warmup_fraction
        assert (made.batch_size, made.learning_rate) == (recipe.batch_size, recipe.learning_rate)
        assert (made.final_learning_rate, made.accumulation_steps) == (
            recipe.final_learning_rate,
            recipe.accumulation_steps,
        )
        assert recipe.warmup_fraction or not made.changes()


@pytest.mark.parametrize(
    ("arguments", "rate"),
    [({}, 0.03 / 4), ({"scale_rate": "none"}, 0.03), ({"learning_rate": 0.01}, 0.01)],
)
def test_plan_scales_the_rate_with_the_batch_unless_told_and_says_so(arguments, rate):
    made = plan("augreg-finetune", num_images=FLOWERS, batch_size=128, **arguments)
    assert made.learning_rate == rate
    changes = ["batch_size: 128 instead of 512", f"learning_rate: {rate} instead of 0.03"]
    assert list(made.changes()) == changes[: 1 + (rate != 0.03)]


def test_plan_scales_the_last_rate_of_a_line_as_well_so_that_it_falls():
    made = plan("paper-pretrain-jft300m-B/16", num_images=10**6, batch_size=16)
    assert (made.learning_rate, made.final_learning_rate) == (8e-4 / 256, 1e-5 / 256)


@pytest.mark.parametrize(
    ("recipe", "arguments", "steps"),
    [
        ("augreg-finetune", {}, 500),  # as many with any batch
        ("augreg-finetune", {"batch_size": 32}, 500),
        ("augreg-finetune", {"steps": 40}, 40),
        ("augreg-finetune", {"epochs": 10, "batch_size": 100}, 102),  # 10 * 1,020 // 100
        ("digits", {}, 60 * FLOWERS // 32),
        ("digits", {"batch_size": 64}, 60 * FLOWERS // 64),
        ("digits", {"batch_size": 2**20}, 1),
    ],
)
def test_plan_makes_as_many_steps_as_the_rule_says(recipe, arguments, steps):
    assert plan(recipe, num_images=FLOWERS, **arguments).steps == steps


@pytest.mark.parametrize(
    ("recipe", "arguments", "warmup"),
    [
        ("official-finetune-cifar10", {"steps": 500}, 50),  # as the official README's short runs
        ("official-finetune-cifar10", {"steps": 1_000}, 100),
        ("official-finetune-cifar10", {"steps": 9_000}, 500),
        ("official-finetune-cifar10", {"steps": 100_000}, 500),
        ("augreg-finetune", {"steps": 100}, 20),  # a fifth, as in the recipe
        ("augreg-finetune", {"steps": 1}, 0),
        ("augreg-finetune", {"steps": 12, "warmup_steps": 3}, 3),
        ("digits", {}, 191),  # a tenth of 1,912
        ("paper-pretrain-imagenet2012", {"batch_size": 64}, 509),  # 10,000 / 93,835 of 4,781
        ("paper-pretrain-imagenet2012", {"num_images": 1_281_167 * 99 // 100}, 10_000),  # a part is held out
    ],
)
def test_plan_shortens_the_warmup_with_the_run(recipe, arguments, warmup):
    assert plan(recipe, **{"num_images": FLOWERS} | arguments).warmup_steps == warmup


@pytest.mark.parametrize(("batch_size", "micro_batches"), [(512, 8), (1024, 16), (500, 10), (64, 1), (67, 67), (1, 1)])
def test_plan_cuts_a_batch_into_micro_batches_no_larger_than_the_recipes(batch_size, micro_batches):
    made = plan("official-finetune-cifar10", num_images=50_000, batch_size=batch_size)
    assert made.accumulation_steps == micro_batches
    assert batch_size % micro_batches == 0
    assert batch_size // micro_batches <= 64


@pytest.mark.parametrize("steps", [1, 2, 61, 97, 500, 1_913])
@pytest.mark.parametrize("num_images", [3, 200, 50_000])
def test_epochs_of_fit_hold_all_steps_and_the_last_one_is_not_empty(steps, num_images):
    made = plan("augreg-finetune", num_images=num_images, steps=steps, batch_size=32)
    before_the_last = (made.epochs - 1) * made.steps_per_epoch
    assert before_the_last < steps <= before_the_last + made.steps_per_epoch
    assert made.epochs <= 100


def test_epochs_of_fit_are_the_recipes_where_it_counts_them():
    made = plan("digits", num_images=1_437)
    assert (made.epochs, made.steps_per_epoch, made.steps) == (60, 45, 2_694)


# -- schedules and losses that no published recipe has


def test_plan_makes_a_reciprocal_square_root_and_shortens_its_cooldown():
    recipe = changed("augreg-finetune", schedule="rsqrt", timescale=100, cooldown_steps=50)
    assert plan(recipe, num_images=FLOWERS).schedule().get_config()["cooldown_steps"] == 50
    assert plan(recipe, num_images=FLOWERS, steps=40).schedule().get_config()["cooldown_steps"] == 4


def test_softmax_with_label_smoothing_needs_one_hot_labels():
    made = plan(changed("augreg-finetune", label_smoothing=0.1), num_images=FLOWERS)
    with pytest.raises(ValueError, match='labels="one_hot"'):
        made.loss("int")
    logits, labels = np.array([[0.3, -1.2, 0.5]]), np.array([[0.0, 1.0, 0.0]])
    log_p = logits - np.log(np.exp(logits).sum())
    expected = -(log_p * (0.9 * labels + 0.1 / 3)).sum()
    assert float(made.loss("one_hot")(labels, logits)) == pytest.approx(expected, rel=1e-6)


# -- the model


def test_prepare_gives_a_bias_and_refuses_a_trained_head_unless_told():
    made = plan(changed("digits", head_bias=-10.0), num_images=FLOWERS)
    model = make_tiny()
    trained = numpy(model.get_layer("head").kernel).copy()
    with pytest.raises(ValueError, match='head="reset"'):
        made.prepare(model)
    made.prepare(model, head="keep")
    np.testing.assert_array_equal(numpy(model.get_layer("head").kernel), trained)
    for _ in range(2):  # once it is lost there is no more to lose
        made.prepare(model, head="reset")
        np.testing.assert_array_equal(numpy(model(images(2, 20, 28, 3))), np.full((2, 7), -10.0, "float32"))
        assert model.load_report == ("new head", "set aside head (12, 7)")


def test_prepare_starts_both_heads_of_a_distilled_model():
    model = keras_vit.build(tiny_config(distilled=True), input_shape=(20, 28, 3), classes=7)
    plan(changed("digits", head_bias=-10.0), num_images=FLOWERS).prepare(model)
    assert {float(numpy(model.get_layer(name).bias)[0]) for name in ("head", "head_distillation")} == {-10.0}


def test_plan_checks_the_model_it_is_given_and_leaves_it_alone():
    model = make_tiny()
    before = [numpy(weight).copy() for weight in model.weights]
    plan("augreg-finetune", model, num_images=FLOWERS)
    assert all(np.array_equal(numpy(weight), old) for weight, old in zip(model.weights, before, strict=True))


@pytest.mark.parametrize(
    ("recipe", "arguments", "words"),
    [
        ("augreg-finetune", {"dropout_rate": 0.1}, "dropout_rate=0.1"),
        ("augreg-finetune", {"representation_size": 12}, "representation_size=12"),
        ("augreg-pretrain-imagenet21k-30ep-none-wd0.1-do0.1", {}, "stochastic_depth_rate=0.1"),
        ("big_vision-vit_s16_i1k-90ep", {"representation_size": 12}, "sincos2d"),
        ("digits", {"classifier_activation": "softmax"}, "logits"),
        ("digits", {"include_top": False, "classes": None}, "head"),
    ],
)
def test_plan_refuses_a_model_that_is_not_as_the_recipe_trains_it(recipe, arguments, words):
    with pytest.raises(ValueError, match=words):
        plan(recipe, fresh(**arguments), num_images=FLOWERS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_images": 0}, "num_images=0"),
        ({"num_images": -1}, "num_images=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 10, "epochs": 2}, "epochs=2"),
        ({"warmup_steps": 500}, "warmup_steps=500"),
        ({"learning_rate": -0.1}, "learning_rate=-0.1"),
        ({"accumulation_steps": 3}, "accumulation_steps=3"),
        ({"layer_decay": 1.5}, "layer_decay=1.5"),
        ({"layer_decay": 0.0}, "layer_decay=0.0"),
        ({"scale_rate": "sqrt"}, "scale_rate=.sqrt"),
    ],
)
def test_plan_refuses_numbers_that_cannot_be(arguments, words):
    with pytest.raises(ValueError, match=words):
        plan("augreg-finetune", **{"num_images": FLOWERS} | arguments)


def test_plan_refuses_a_rate_below_the_last_one_and_other_models():
    with pytest.raises(ValueError, match="learning_rate=1e-06"):
        plan("paper-pretrain-jft300m-B/16", num_images=FLOWERS, learning_rate=1e-6)
    with pytest.raises(TypeError, match="VisionTransformer"):
        plan("digits", keras.Sequential(), num_images=FLOWERS)


# -- fit


def fit_of_a_plan(steps=13):
    """Optimizer's steps, evaluations, epochs, steps of an epoch; and the first epoch's loss."""
    model = keras_vit.build(tiny_config(num_layers=1), input_shape=(8, 8, 3), classes=5)
    made = plan("augreg-finetune", model, num_images=20, batch_size=4, steps=steps, accumulation_steps=2)
    made.prepare(model)
    model.compile(**made.compile_arguments())

    def batches():
        rng = np.random.default_rng(0)
        while True:
            yield rng.uniform(-1, 1, (4, 8, 8, 3)).astype("float32"), np.arange(4) % 5

    validation = (np.zeros((3, 8, 8, 3), "float32"), np.arange(3))
    history = model.fit(batches(), validation_data=validation, verbose=0, **made.fit_arguments()).history
    counts = [int(model.optimizer.iterations), len(history["val_accuracy"]), made.epochs, made.steps_per_epoch]
    return counts, history["loss"][0]


def assert_fits_as_planned(counts, loss):
    assert counts == [13, 3, 3, 5]  # 5 + 5 + 3
    assert loss < np.log(5) * 1.01  # of a zero-initialised head at first: log K


def test_fit_makes_exactly_the_steps_of_the_plan_and_evaluates_after_each_epoch():
    assert_fits_as_planned(*fit_of_a_plan())


@pytest.mark.elsewhere("jax", "fit_of_a_plan")
def test_fit_makes_exactly_the_steps_of_the_plan_on_jax(found):
    assert_fits_as_planned(*found)


def test_plan_goes_into_json_with_its_recipe():
    made = plan("paper-finetune-vtab", num_images=1_000, batch_size=64)
    assert json.loads(json.dumps(dataclasses.asdict(made)))["recipe"]["name"] == "paper-finetune-vtab"


def test_printed_plan_is_what_a_person_reads():
    made = plan("augreg-finetune", num_images=2_000, batch_size=64, layer_decay=0.75, accumulation_steps=4)
    assert str(made).splitlines() == [
        "augreg-finetune for 2,000 images",
        "  steps          500 of 64 images, in 16 epochs",
        "  micro-batches  4 of 16 images in each step",
        "  learning rate  0.00375 after 100 steps, falls by a cosine to 0",
        "  layer decay    0.75",
        "  optimizer      SGD, momentum 0.9, gradients clipped to a norm of 1",
        "  loss           softmax",
        "  augmentation   inception",
        "  changed        batch size: 64 instead of 512",
        "                 learning rate: 0.00375 instead of 0.03",
        "                 layer decay: 0.75",
    ]
    assert repr(made).startswith("Plan(recipe=Recipe(name='augreg-finetune'")


@pytest.mark.parametrize("name", ["paper-pretrain-jft300m-H/14", *sorted(RECIPES)[::20]])
def test_printed_plan_fits_and_has_every_change(name):
    made = plan(name, num_images=1_300, batch_size=48)
    lines = str(made).splitlines()
    assert max(map(len, lines)) < 80
    for change in made.changes():
        assert change.replace("_", " ") in {line.removeprefix("  changed").strip() for line in lines}
        assert "e+" not in change  # 1.03564e+06 steps
