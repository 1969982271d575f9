"""Every recipe's schedule, loss, initial head and decay, against NumPy in float64."""

import collections
import dataclasses
import functools
import json

import keras
import numpy as np
import pytest
from conftest import numpy, randomise, tiny_config

import keras_vit
from keras_vit.config.recipes import RECIPES
from keras_vit.training.plan import plan

CLASSES = 7
# What a plan does not read; recipes that differ in nothing else have one plan.
NOT_OF_A_PLAN = {"name": "x", "source": "x", "citations": (), "models": (), "image_size": None}
NOT_OF_A_PLAN |= {"augmentation": "none", "learning_rate_grid": ()}


def published_plan(recipe):
    return plan(recipe, num_images=recipe.train_images or 50_000)


def recipes_by_plan():
    """{plan: its recipes}; of a plan's recipe stands there what makes the plan."""
    found = collections.defaultdict(list)
    for recipe in RECIPES.values():
        made = published_plan(recipe)
        found[dataclasses.replace(made, recipe=dataclasses.replace(recipe, **NOT_OF_A_PLAN))].append(recipe)
    return dict(found)


PLANS = recipes_by_plan()
every_plan = pytest.mark.parametrize("made", PLANS, ids=[recipes[0].name for recipes in PLANS.values()])


def in_json(made, recipe):
    """All that the tests below look at."""
    labels = ("int", "one_hot")
    losses = [keras.losses.serialize(made.loss(kind)) for kind in labels]
    schedule = keras.optimizers.schedules.serialize(made.schedule())
    optimizer = keras.optimizers.serialize(made.optimizer())
    del optimizer["config"]["name"]
    return json.dumps([losses, schedule, optimizer, recipe.head_bias, recipe.model_arguments(tiny_config())])


def test_every_recipe_has_one_of_the_plans_and_all_that_is_tested_of_it():
    assert {recipe.name for recipes in PLANS.values() for recipe in recipes} == set(RECIPES)
    for made, recipes in PLANS.items():
        wanted = in_json(made, made.recipe)
        for recipe in recipes:
            assert in_json(published_plan(recipe), recipe) == wanted, recipe.name


def rate(made, step):
    """SPEC: progress from the end of the warm-up, a cosine or a line, times the warm-up."""
    recipe, base = made.recipe, made.learning_rate
    progress = np.clip((step - made.warmup_steps) / (made.steps - made.warmup_steps), 0, 1)
    if recipe.schedule == "cosine":
        decayed = base * 0.5 * (1 + np.cos(np.pi * progress))
    else:
        decayed = 1e-5 + (base - 1e-5) * (1 - progress)
    return decayed * min(1, step / made.warmup_steps)


@every_plan
def test_schedule_equals_numpy_at_fixed_steps(made):
    steps = [0, 1, made.warmup_steps // 2, made.warmup_steps, made.steps // 2, made.steps - 3, made.steps]
    ours = numpy(made.schedule()(np.array(steps)))
    # 1e-6 is a few roundings of float32; 1e-17 what float64 leaves where 1 + cos cancels.
    np.testing.assert_allclose(ours, [rate(made, step) for step in steps], rtol=1e-6, atol=1e-17)


def cross_entropy(recipe, logits, one_hot):
    if recipe.loss == "softmax":
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return -(one_hot * log_p).sum(-1).mean()
    on, off = 1 - recipe.label_smoothing, recipe.label_smoothing
    target = np.where(one_hot == 1, on, off)
    p = 1 / (1 + np.exp(-logits))
    return -(target * np.log(p) + (1 - target) * np.log1p(-p)).sum(-1).mean()


LOGITS, LABELS = np.random.default_rng(1).normal(0, 3, (5, CLASSES)), np.array([6, 0, 3, 3, 1])
ONE_HOT = np.eye(CLASSES)[LABELS]


@functools.cache
def loss_of(loss):
    """By a loss in JSON, for many recipes have the same."""
    loss = keras.losses.deserialize(json.loads(loss))
    sparse = "Sparse" in type(loss).__name__ or getattr(loss, "labels", None) == "int"
    return float(loss(LABELS if sparse else ONE_HOT, LOGITS.astype("float32")))


@every_plan
def test_loss_equals_numpy(made):
    for labels in ("int", "one_hot"):
        ours = loss_of(json.dumps(keras.losses.serialize(made.loss(labels))))
        # The logits are rounded to float32, which moves a loss of about 5 by some 1e-7 of it.
        assert ours == pytest.approx(cross_entropy(made.recipe, LOGITS, ONE_HOT), rel=2e-6)


@functools.cache
def fresh(arguments):
    config = tiny_config(num_layers=1, **dict(arguments))
    return keras_vit.build(config, input_shape=(8, 12, 3), classes=CLASSES)


def model_for(recipe):
    """A tiny model as the recipe wants it; recipes that want the same share one."""
    return fresh(tuple(recipe.model_arguments(tiny_config()).items()))


@every_plan
def test_first_loss_is_that_of_a_head_of_zeros_and_its_bias(made):
    recipe, model = made.recipe, model_for(made.recipe)
    head = model.get_layer("head")
    made.prepare(model)
    logits = np.random.default_rng(2).normal(0, 1, (3, 12)) @ numpy(head.kernel) + numpy(head.bias)
    np.testing.assert_array_equal(logits, np.full((3, CLASSES), np.float32(recipe.head_bias)))
    one_hot = np.eye(CLASSES)[[0, 3, 6]]
    bias = np.full((3, CLASSES), recipe.head_bias)
    ours = made.loss("one_hot")(one_hot, logits.astype("float32"))
    assert float(ours) == pytest.approx(cross_entropy(recipe, bias, one_hot), rel=2e-6)


@functools.cache
def decaying_model():
    return randomise(fresh((("representation_size", 5),)))


def after_a_step_without_gradients(optimizer, step):
    """Weights by path, before and after."""
    model = decaying_model()
    variables, values = model.trainable_variables, [numpy(variable) for variable in model.trainable_variables]
    before = {variable.path: value.astype("float64") for variable, value in zip(variables, values, strict=True)}
    optimizer.build(variables)
    optimizer.iterations.assign(step)
    optimizer.apply([keras.ops.zeros_like(variable) for variable in variables])
    after = {variable.path: numpy(variable) for variable in variables}
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return before, after


# With the kernels of q, k, v and out, whose names a mask could miss, and weights that no mask may hit.
KERNELS = {
    *("patch_embedding/projection/kernel", "pre_logits/kernel", "head/kernel"),
    *(f"block_00/attention/{name}/kernel" for name in ("query", "key", "value", "out")),
    *("block_00/mlp/dense_1/kernel", "block_00/mlp/dense_2/kernel"),
}


# One plan by default of those that only other numbers of steps tell apart.
BY_DECAY = {(made.recipe.optimizer, made.recipe.weight_decay, made.recipe.schedule): made for made in PLANS}


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(made, marks=() if made in BY_DECAY.values() else pytest.mark.nightly, id=recipes[0].name)
        for made, recipes in PLANS.items()
    ],
)
def test_decay_takes_its_share_of_kernels_and_nothing_of_other_weights(made):
    """A step without gradients is the decay alone: kernel * (1 - rate * decay)."""
    step = made.warmup_steps + 1
    before, after = after_a_step_without_gradients(made.optimizer(), step)
    assert before.keys() > KERNELS
    for path, old in before.items():
        factor = 1 - rate(made, step) * made.recipe.weight_decay if path in KERNELS else 1
        # 3e-7 of a weight: float32 rounds twice. The smallest decay of any recipe is 2e-5 of it.
        np.testing.assert_allclose(after[path], old * factor, rtol=3e-7, atol=0, err_msg=path)
