"""The options of a run: one record, whose fields are the keywords of `finetune`; wrong ones are named."""

import dataclasses
import inspect
import math
import typing

import numpy as np
import pytest
from conftest import tiny_config

import keras_vit
from keras_vit.runs import options
from keras_vit.runs.finetune import finetune
from keras_vit.runs.options import TASK_OPTIONS, FinetuneChanges, FinetuneOptions, changed, parse_trainable
from keras_vit.tasks import find_task

FIELDS = [field.name for field in options.options_of(FinetuneOptions) if field.name not in TASK_OPTIONS]


def test_every_field_is_a_keyword_of_finetune_with_its_default_and_is_documented():
    parameters, hints = inspect.signature(keras_vit.finetune).parameters, typing.get_type_hints(FinetuneOptions)
    assert list(parameters) == ["data", "out", "options", "print_fn", "on_epoch_end", *FIELDS, *TASK_OPTIONS]
    for field in dataclasses.fields(FinetuneOptions):
        assert parameters[field.name].default == field.default, field.name
        assert parameters[field.name].annotation == hints[field.name], field.name
        assert f"\n        {field.name}: " in FinetuneOptions.__doc__, field.name


def test_type_of_the_keywords_has_the_fields_of_the_record():
    """`finetune(**changes)` is checked by type checkers through it; tests/typed_uses.py shows that it is."""
    parameters = inspect.signature(keras_vit.finetune).parameters
    fields = {name: parameters[name].annotation for name in (*FIELDS, *TASK_OPTIONS)}
    assert FinetuneChanges.__annotations__ == fields
    assert FinetuneChanges.__required_keys__ == set()
    assert typing.get_type_hints(finetune)["changes"] == typing.Unpack[FinetuneChanges]


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        *(({name: 0}, ValueError, f"`{name}`") for name in ("steps", "batch_size", "accumulation_steps", "lora_rank")),
        ({"epochs": -1}, ValueError, "`epochs`"),
        ({"epochs": 1.5}, TypeError, "`epochs`"),
        ({"batch_size": "8"}, TypeError, "`batch_size`"),
        ({"learning_rate": math.nan}, ValueError, "`learning_rate`"),
        ({"learning_rate": 0.0}, ValueError, "`learning_rate`"),
        ({"learning_rate": "fast"}, TypeError, "`learning_rate`"),
        ({"layer_decay": math.nan}, ValueError, "`layer_decay`"),
        ({"layer_decay": 1.5}, ValueError, "`layer_decay`"),
        ({"ema_momentum": math.nan}, ValueError, "`ema_momentum`"),
        ({"ema_momentum": 1}, ValueError, "`ema_momentum`"),
        ({"seed": -1}, ValueError, "`seed`"),
        ({"seed": 1.0}, TypeError, "`seed`"),
        ({"image_size": "224"}, TypeError, "`image_size`"),
        ({"image_size": 0}, ValueError, "`image_size`"),
        ({"image_size": (64, 64, 3)}, ValueError, "`image_size`"),
        ({"start_image_size": 1.5}, TypeError, "`start_image_size`"),
        ({"start_image_size": (8,)}, ValueError, "`start_image_size`"),
        ({"start_image_size": 32, "image_size": 32}, ValueError, "below(?s:.*)=32, 32"),
        ({"start_image_size": 16, "image_size": (32, 8)}, ValueError, r"below(?s:.*)=16, \(32, 8\)"),
        ({"patch_dropout_rate": 1}, ValueError, "`patch_dropout_rate`"),
        ({"patch_dropout_rate": "half"}, TypeError, "`patch_dropout_rate`"),
        ({"recipe": "digit"}, ValueError, "Did you mean .*'digits'"),
        ({"recipe": "foo"}, ValueError, "Some of them: 'paper-"),
        ({"recipe": 3}, TypeError, "`recipe`"),
        ({"augmentation": "strong"}, ValueError, "`augmentation`"),
        ({"augmentation": 2}, TypeError, "augmentation"),
        ({"model": "B/17"}, ValueError, "'B/17'. Did you mean .*'B/16'"),
        ({"model": "smal"}, ValueError, "Did you mean 'small'"),
        ({"model": 16}, TypeError, "`model`"),
        ({"weights": 16}, TypeError, "`weights`"),
        ({"precision": "float64"}, ValueError, "precision"),
        ({"strategy": "many"}, ValueError, "strategy"),
        ({"trainable": "last_blocks"}, ValueError, "last_blocks:k"),
        ({"lora_rank": 2, "trainable": "head"}, ValueError, "lora_rank=2, trainable='head'"),
        ({"steps": 3, "epochs": 3}, ValueError, "steps=3, epochs=3"),
        ({"batch_size": 30, "accumulation_steps": 4}, ValueError, "accumulation_steps=4, batch_size=30"),
        ({"trainable": "head", "layer_decay": 0.75}, ValueError, "trainable='head', layer_decay=0.75"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_as_the_record_is_made(fields, error, words):
    with pytest.raises(error, match=words):
        FinetuneOptions(**fields)


def test_head_may_be_given_a_decay_of_one():
    assert FinetuneOptions(trainable="head", layer_decay=1.0).layer_decay == 1


def test_integers_become_ints_and_sides_a_tuple():
    options = FinetuneOptions(batch_size=np.int64(8), seed=np.int64(3), image_size=[np.int64(24), 32])
    assert (options.batch_size, type(options.batch_size), type(options.seed)) == (8, int, int)
    assert (options.image_size, type(options.image_size[0])) == ((24, 32), int)


def test_dict_is_no_record():
    with pytest.raises(TypeError, match="`FinetuneOptions`"):
        changed({"epochs": 3}, {})


@pytest.mark.parametrize("name", ["run", "last.keras"])
def test_run_or_keras_file_is_told_what_takes_it(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.keras").touch()
    (tmp_path / "last.keras").touch()
    for wrong in (name, tmp_path / name):
        with pytest.raises(ValueError, match=r"`model`(?s:.*)keras.saving.load_model"):
            FinetuneOptions(model=wrong)
        with pytest.raises(ValueError, match=r"`weights`(?s:.*)keras.saving.load_model"):
            FinetuneOptions(weights=wrong)


def test_model_is_small_only_without_weights(tmp_path):
    assert (
        FinetuneOptions().start == FinetuneOptions(weights=None).start == FinetuneOptions().facts()["model"] == "small"
    )
    assert changed(FinetuneOptions(), {"weights": tmp_path}).start is None
    assert FinetuneOptions(model="small", weights=tmp_path).start == "small"


def test_keywords_change_the_fields_of_a_record():
    options = changed(FinetuneOptions(seed=3, epochs=2), {"epochs": 5})
    assert (options.seed, options.epochs) == (3, 5)
    assert changed(None, {}).facts() == FinetuneOptions().facts()
    named = changed(None, {"task": "regression", "loss": "mae", "columns": "a,b"}).task
    assert named == find_task({"name": "regression", "loss": "mae", "columns": ("a", "b")})
    assert changed(FinetuneOptions(task=named), {"loss": "mse", "seed": 1}).task.columns == ("a", "b")
    with pytest.raises(ValueError, match=r"classification(?s:.*)which is an option of the task multi-label"):
        changed(None, {"positive_weight": 2.0})
    with pytest.raises(TypeError, match=r"threshold=0.5.*The task has it"):
        FinetuneOptions(threshold=0.5)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("policy", "Did you mean 'precision'"),
        ("dtype", "Did you mean 'precision'"),
        ("batchsize", "Did you mean 'batch_size'"),
        ("zzz", "fields are model, weights, recipe, "),
    ],
)
def test_unknown_keyword_is_refused_with_the_nearest_one(tmp_path, name, hint):
    with pytest.raises(TypeError, match=f"{name}=1.*{hint}"):
        keras_vit.finetune("digits", tmp_path / "run", **{name: 1})
    assert not (tmp_path / "run").exists()


def test_facts_are_short_texts_and_numbers_and_of_others_the_type(tmp_path):
    facts = FinetuneOptions(model=tiny_config(), weights=tmp_path, image_size=24).facts()
    assert set(facts) == {*FIELDS} - {"task"}  # of the default task, folders say nothing
    assert (facts["model"], facts["weights"], facts["image_size"]) == ("ViTConfig", tmp_path, 24)


@pytest.mark.parametrize(
    ("text", "expected"), [("all", ("all", None)), ("head", ("head", None)), ("last_blocks:3", ("last_blocks", 3))]
)
def test_trainable_is_read_as_freeze_takes_it(text, expected):
    assert parse_trainable(text) == expected


@pytest.mark.parametrize("text", ["", "head:2", "last_blocks:0", "last_blocks:x", None, "heads"])
def test_other_words_for_trainable_are_refused(text):
    with pytest.raises(ValueError, match=r"'heads'. Did you mean 'head'" if text == "heads" else "last_blocks:k"):
        parse_trainable(text)
