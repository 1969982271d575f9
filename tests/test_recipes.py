"""The recipes, against the numbers of their tables typed again."""

import dataclasses
import json

import pytest
from conftest import ROOT, run_python

from keras_vit.config.recipes import RECIPES, Recipe, find_recipe
from keras_vit.config.variants import VARIANTS
from keras_vit.data.augmentation import AUGMENTATIONS

NUMBERS = {
    *("batch_size", "learning_rate", "warmup_steps", "warmup_fraction", "steps", "epochs", "final_learning_rate"),
    *("weight_decay", "momentum", "beta_1", "beta_2", "clip_norm", "label_smoothing", "head_bias", "dropout_rate"),
    *("stochastic_depth_rate", "accumulation_steps", "ema_momentum", "image_size", "learning_rate_grid"),
    *("train_images", "timescale", "cooldown_steps"),
}


def fields(name, *names):
    return tuple(getattr(find_recipe(name), field) for field in names)


def named(prefix):
    return [name for name in RECIPES if name.startswith(prefix)]


# arXiv:2010.11929, table 3: epochs, base rate, schedule, weight decay, dropout, gradient clipping
TABLE_3 = {
    "jft300m-B/16": (7, 8e-4, "linear", 0.1, 0.0, None),
    "jft300m-B/32": (7, 8e-4, "linear", 0.1, 0.0, None),
    "jft300m-L/32": (7, 6e-4, "linear", 0.1, 0.0, None),
    "jft300m-L/16-7ep": (7, 4e-4, "linear", 0.1, 0.0, None),
    "jft300m-L/16-14ep": (14, 4e-4, "linear", 0.1, 0.0, None),
    "jft300m-H/14": (14, 3e-4, "linear", 0.1, 0.0, None),
    "jft300m-R50x1": (7, 1e-3, "linear", 0.1, 0.0, None),
    "jft300m-R50x2": (7, 1e-3, "linear", 0.1, 0.0, None),
    "jft300m-R101x1": (7, 8e-4, "linear", 0.1, 0.0, None),
    "jft300m-R152x1": (7, 6e-4, "linear", 0.1, 0.0, None),
    "jft300m-R152x2": (7, 6e-4, "linear", 0.1, 0.0, None),
    "jft300m-R50+B/16": (7, 8e-4, "linear", 0.1, 0.0, None),
    "jft300m-R50+B/32": (7, 8e-4, "linear", 0.1, 0.0, None),
    "jft300m-R50+L/32": (7, 2e-4, "linear", 0.1, 0.0, None),
    "jft300m-R50+L/16-7ep": (7, 4e-4, "linear", 0.1, 0.0, None),
    "jft300m-R50+L/16-14ep": (14, 4e-4, "linear", 0.1, 0.0, None),
    "imagenet21k-B/16": (90, 1e-3, "linear", 0.03, 0.1, None),
    "imagenet21k-B/32": (90, 1e-3, "linear", 0.03, 0.1, None),
    "imagenet21k-L/16-30ep": (30, 1e-3, "linear", 0.03, 0.1, None),
    "imagenet21k-L/16-90ep": (90, 1e-3, "linear", 0.03, 0.1, None),
    "imagenet21k-L/32-30ep": (30, 1e-3, "linear", 0.03, 0.1, None),
    "imagenet21k-L/32-90ep": (90, 1e-3, "linear", 0.03, 0.1, None),
    "imagenet2012": (300, 3e-3, "cosine", 0.3, 0.1, 1.0),
}


@pytest.mark.parametrize("name", named("paper-pretrain-"))
def test_paper_pretraining_shares_what_the_caption_of_table_3_says(name):
    common = fields(name, "optimizer", "batch_size", "warmup_steps", "image_size", "beta_1", "beta_2")
    assert common == ("adamw", 4096, 10_000, 224, 0.9, 0.999)
    assert fields(name, "loss", "head_bias", "label_smoothing") == ("sigmoid", -10.0, 1e-4)
    recipe = find_recipe(name)
    assert recipe.final_learning_rate == (1e-5 if recipe.schedule == "linear" else 0)


# Steps of the published runs: 303 million images of JFT, 12.4 million of ImageNet-21k, 1,281,167 of ImageNet.
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("jft300m-B/16", 517_822),
        ("jft300m-H/14", 1_035_644),
        ("imagenet21k-B/16", 272_460),
        ("imagenet2012", 93_835),
    ],
)
def test_paper_pretraining_takes_as_many_steps_as_published(name, steps):
    assert find_recipe(f"paper-pretrain-{name}").published_steps == steps


# arXiv:2010.11929, table 4: steps, grid; warm-up of the code
TABLE_4 = {
    "imagenet2012": (20_000, (0.003, 0.01, 0.03, 0.06), 500),
    "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03), 500),
    "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03), 500),
    "oxford_iiit_pet": (500, (0.001, 0.003, 0.01, 0.03), 100),
    "oxford_flowers102": (500, (0.001, 0.003, 0.01, 0.03), 100),
    "vtab": (2_500, (), 200),
    "imagenet2012-512px": (20_000, (0.003, 0.01, 0.03, 0.06), 500),
    "imagenet2012-518px": (20_000, (0.003, 0.01, 0.03, 0.06), 500),
}


# google-research/vision_transformer, vit_jax/configs: rate, steps, warm-up, crop, dropout
OFFICIAL = {
    "official-finetune-cifar10": (0.03, 10_000, 500, 384, None),
    "official-finetune-cifar10-B/16": (0.01, 10_000, 500, 384, None),
    "official-finetune-cifar100": (0.03, 10_000, 500, 384, None),
    "official-finetune-imagenet2012": (0.03, 20_000, 500, 384, None),
    "augreg-finetune": (0.03, 500, 100, 384, 0),
}

# big_vision, configs/transfer.py: rate, crop, steps, warm-up
BIG_VISION = {
    "imagenet2012": (0.03, "inception", 20_000, 500),
    "cifar10": (0.003, "resmall_crop", 10_000, 500),
    "cifar100": (0.01, "resmall_crop", 10_000, 500),
    "oxford_iiit_pet": (0.003, "inception", 500, 100),
    "oxford_flowers102": (0.003, "inception", 500, 100),
}

# By the start of the name: which fields a table has, and its rows.
TABLES = {
    "paper-pretrain-": ("epochs learning_rate schedule weight_decay dropout_rate clip_norm", TABLE_3),
    "paper-finetune-": ("steps learning_rate_grid warmup_steps", TABLE_4),
    "": ("learning_rate steps warmup_steps image_size dropout_rate", OFFICIAL),
    "big_vision-transfer-": ("learning_rate augmentation steps warmup_steps", BIG_VISION),
}
ROWS = [(start, name) for start, (_, rows) in TABLES.items() for name in rows]


@pytest.mark.parametrize(("start", "name"), ROWS, ids=["".join(row) for row in ROWS])
def test_recipe_is_its_row_of_the_table(start, name):
    columns, rows = TABLES[start]
    assert fields(start + name, *columns.split()) == rows[name]


@pytest.mark.parametrize("start", ["paper-pretrain-", "paper-finetune-", "big_vision-transfer-"])
def test_every_row_of_a_table_is_a_recipe_and_there_is_no_other(start):
    assert set(named(start)) == {start + name for name in TABLES[start][1]}


@pytest.mark.parametrize("name", named("paper-finetune-") + named("official-") + ["augreg-finetune"])
def test_finetuning_shares_optimizer_batch_clipping_and_head(name):
    row = fields(
        name, "optimizer", "momentum", "batch_size", "schedule", "weight_decay", "clip_norm", "loss", "head_bias"
    )
    assert row == ("sgd", 0.9, 512, "cosine", 0, 1.0, "softmax", 0)
    assert fields(name, "accumulator_dtype", "accumulation_steps") == ("bfloat16", 8)


def test_paper_finetuning_averages_and_enlarges_where_table_2_does():
    sizes = {name: fields(name, "image_size", "ema_momentum", "models") for name in named("paper-finetune-")}
    assert sizes.pop("paper-finetune-imagenet2012-512px") == (512, 0.9999, ("L/16",))
    assert sizes.pop("paper-finetune-imagenet2012-518px") == (518, 0.9999, ("H/14",))
    assert set(sizes.values()) == {(384, None, ())}


# arXiv:2106.10270; tests/data/augmentation/test_augmentation.py has their strengths
LEVELS = ("none", "light1", "light2", "medium1", "medium2", "strong1", "strong2")


@pytest.mark.parametrize(("data", "epochs"), [("imagenet2012", 300), ("imagenet21k", 30), ("imagenet21k", 300)])
def test_augreg_pretraining_has_28_configurations_for_each_data_set_and_length(data, epochs):
    recipes = [RECIPES[name] for name in named(f"augreg-pretrain-{data}-{epochs}ep-")]
    seen = {(r.augmentation, r.weight_decay, r.dropout_rate, r.stochastic_depth_rate) for r in recipes}
    decays, rates = (0.03, 0.1), (0.0, 0.1)
    assert seen == {(f"augreg-{level}", decay, rate, rate) for level in LEVELS for decay in decays for rate in rates}
    assert len(recipes) == 28
    shared = {(r.epochs, r.batch_size, r.learning_rate, r.schedule, r.warmup_steps, r.clip_norm) for r in recipes}
    assert shared == {(epochs, 4096, 1e-3, "cosine", 10_000, 1.0)}
    assert {r.head_bias for r in recipes} == {-10.0 if data == "imagenet21k" else -6.9}


def test_augreg_name_says_its_configuration():
    row = fields("augreg-pretrain-imagenet21k-300ep-medium1-wd0.1-do0.1", "augmentation", "weight_decay", "epochs")
    assert row == ("augreg-medium1", 0.1, 300)


# arXiv:2106.10270, table 4: rates; (steps, warm-up)
@pytest.mark.parametrize(
    ("data", "grid", "lengths"),
    [
        ("imagenet2012", (0.01, 0.03), {(20_000, 500)}),
        ("oxford_iiit_pet", (0.001, 0.003, 0.01), {(500, 100), (2_500, 200)}),
        ("kitti", (0.001, 0.003, 0.01), {(500, 100), (2_500, 200)}),
        ("cifar100", (0.001, 0.003, 0.01), {(2_500, 200), (10_000, 500)}),
        ("resisc45", (0.001, 0.003, 0.01), {(2_500, 200), (10_000, 500)}),
        ("vtab", (0.001, 0.003, 0.01, 0.03), {(500, 100), (2_500, 200)}),
    ],
)
def test_augreg_transfer_is_table_4(data, grid, lengths):
    recipes = [RECIPES[name] for name in named(f"augreg-transfer-{data}-")]
    assert {recipe.learning_rate_grid for recipe in recipes} == {grid}
    tried = {(recipe.steps, recipe.warmup_steps, recipe.image_size) for recipe in recipes}
    assert tried == {(*length, size) for length in lengths for size in (224, 384)}


@pytest.mark.parametrize("epochs", [90, 150, 300])
def test_better_plain_vit_is_its_configuration(epochs):
    recipe = find_recipe(f"big_vision-vit_s16_i1k-{epochs}ep")
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate, recipe.warmup_steps) == (epochs, 1024, 1e-3, 10_000)
    assert (recipe.loss, recipe.head_bias, recipe.clip_norm, recipe.accumulator_dtype) == ("softmax", 0, 1, "bfloat16")
    assert recipe.learning_rate * recipe.weight_decay == pytest.approx(1e-4)  # big_vision's absolute decay
    wanted = {"pooling": "gap", "position_embedding": "sincos2d", "representation_size": 384}
    assert recipe.model_arguments(VARIANTS["S/16"]) == wanted


# big_vision, configs/vit_i1k.py and vit_i21k.py
@pytest.mark.parametrize(
    ("data", "bias", "levels"),
    [
        ("i1k", -6.9, "Ti/16 light1, S/32 medium1, S/16 medium2, B/32 medium2, B/16 medium2, L/16 medium2"),
        ("i21k", -10, "Ti/16 none, S/32 none, S/16 light1, B/32 light2, B/16 light2, L/16 medium2"),
    ],
)
def test_big_vision_pretraining_is_its_configuration(data, bias, levels):
    recipes = [RECIPES[name] for name in named(f"big_vision-vit_{data}-")]
    expected = [tuple(pair.split()) for pair in levels.split(", ")]
    assert [(r.models[0], r.augmentation.removeprefix("augreg-")) for r in recipes] == expected
    assert {(r.epochs, r.batch_size, r.loss, r.head_bias) for r in recipes} == {(300, 4096, "sigmoid", bias)}


def test_clip_is_table_18_and_open_clip():
    found = find_recipe("clip")
    assert (found.batch_size, found.epochs, found.warmup_steps, found.train_images) == (32768, 32, 2000, 400_000_000)
    rates = (found.learning_rate, found.weight_decay, found.beta_1, found.beta_2, found.clip_norm, found.schedule)
    assert rates == (5e-4, 0.2, 0.9, 0.98, None, "cosine")


def test_linear_segmentation_is_the_configuration_of_dinov3():
    found = find_recipe("dinov3-linear-ade20k")
    assert (found.optimizer, found.batch_size, found.steps, found.warmup_steps) == ("adamw", 16, 40_000, 1500)
    assert (found.learning_rate, found.weight_decay, found.schedule) == (1e-3, 1e-3, "cosine")


def test_every_recipe_tells_where_every_number_is_from():
    for name, recipe in RECIPES.items():
        cited = {field for field, source in recipe.citations if source}
        used = {field for field, value, _ in recipe.facts() if field in NUMBERS}
        assert used <= cited, name
        assert {"optimizer", "schedule", "loss", "augmentation"} <= cited, name


def test_every_recipe_names_an_augmentation_and_is_found_and_returns_from_json():
    for name, recipe in RECIPES.items():
        assert recipe.augmentation in AUGMENTATIONS, name
        assert name == recipe.name
        assert find_recipe(recipe.name) is find_recipe(recipe) is recipe
        assert Recipe(**json.loads(json.dumps(dataclasses.asdict(recipe)))) == recipe, name


def test_recipes_without_a_paper_say_that_they_are_ours():
    for name in ("digits", "small"):
        sources = dict(RECIPES[name].citations)
        assert sources["learning_rate"] == sources["epochs"] == "not in a paper; ours"


def test_recipes_print_a_line_each_and_a_recipe_prints_its_sources():
    assert len(repr(RECIPES).splitlines()) == len(RECIPES)
    lines = str(RECIPES["augreg-finetune"]).splitlines()
    assert lines[0] == "augreg-finetune (finetune), google-research/vision_transformer, vit_jax/configs"
    assert any(line.split() == ["steps", "500", "vit_jax/configs/augreg.py"] for line in lines)


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'official-finetune-cifar10'"):
        find_recipe("ofical-finetune-cifar10")
    with pytest.raises(TypeError, match="`recipe`"):
        find_recipe(3)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"stage": "pretraining"}, ValueError, "`stage`"),
        ({"accumulator_dtype": "float16"}, ValueError, "`accumulator_dtype`"),
        ({"epochs": 3}, ValueError, "`steps` or `epochs`"),
        ({"steps": None}, ValueError, "`steps` or `epochs`"),
        ({"warmup_fraction": 0.1}, ValueError, "`warmup_steps` or `warmup_fraction`"),
        ({"warmup_steps": 500}, ValueError, "`warmup_steps` .*fewer"),
        ({"warmup_steps": -1}, ValueError, "`warmup_steps`"),
        ({"learning_rate": 0.0}, ValueError, "`learning_rate`"),
        ({"learning_rate": float("inf")}, ValueError, "`learning_rate`"),
        ({"clip_norm": -1.0}, ValueError, "`clip_norm`"),
        ({"momentum": 1.0}, ValueError, "`momentum`"),
        ({"momentum": None}, ValueError, "`momentum` belongs to sgd"),
        ({"momentum": "0.9"}, TypeError, "`momentum`"),
        ({"optimizer": "adamw"}, ValueError, "`beta_1` belongs to adamw"),
        ({"schedule": "rsqrt"}, ValueError, "`timescale` belongs to"),
        ({"schedule": "linear", "final_learning_rate": 1.0}, ValueError, "`final_learning_rate`"),
        ({"weight_decay": float("nan")}, ValueError, "`weight_decay`"),
        ({"model_fields": (("poolin", "gap"),)}, ValueError, "'pooling'"),
        ({"citations": (("learnin_rate", "x"),)}, ValueError, "'learning_rate'"),
        ({"name": 3}, TypeError, "`name`"),
        ({"augmentation": None}, TypeError, "`augmentation`"),
        ({"batch_size": 512.0}, TypeError, "`batch_size`"),
        ({"representation_layer": "none"}, TypeError, "`representation_layer`"),
    ],
)
def test_recipe_refuses_what_cannot_be_trained(changes, error, words):
    with pytest.raises(error, match=words):
        dataclasses.replace(RECIPES["augreg-finetune"], **changes)


def test_recipe_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECIPES["digits"].learning_rate = 1.0
    with pytest.raises(TypeError):
        RECIPES["digits"] = 1


def test_recipe_asks_a_builder_for_what_it_trains_and_leaves_the_rest():
    assert find_recipe("digits").model_arguments(VARIANTS["Ti/16"]) == {}
    wanted = {"dropout_rate": 0.1, "stochastic_depth_rate": 0.0, "representation_size": 768}
    assert find_recipe("paper-pretrain-imagenet21k-B/16").model_arguments(VARIANTS["B/16"]) == wanted
    assert isinstance(find_recipe("digits"), Recipe)


def test_recipes_need_no_keras():
    code = (
        "import sys, types\n"
        "sys.modules['keras_vit'] = package = types.ModuleType('keras_vit')\n"
        "package.__path__ = [sys.argv[1]]\n"
        "import keras_vit.config.recipes; print('keras' in sys.modules)"
    )
    assert run_python(code, ROOT / "keras_vit") == "False\n"
