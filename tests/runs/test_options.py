"""The options of a run: one record, whose fields are the keywords of `finetune`; wrong ones are named."""

import dataclasses
import inspect
import math
import typing

import numpy as np
import pytest
from conftest import tiny_config

import keras_vit
from keras_vit.runs.finetune import finetune
from keras_vit.runs.options import FLAGS, FinetuneChanges, FinetuneOptions, changed, parse_trainable

FIELDS = [field.name for field in dataclasses.fields(FinetuneOptions)]


def test_every_field_is_a_keyword_of_finetune_with_its_default_and_is_documented():
    parameters = inspect.signature(keras_vit.finetune).parameters
    assert list(parameters) == ["data", "out", "options", "say", *FIELDS]
    for field in dataclasses.fields(FinetuneOptions):
        assert parameters[field.name].default == field.default, field.name
        assert parameters[field.name].annotation == field.type, field.name
        assert f"\n        {field.name}: " in FinetuneOptions.__doc__, field.name


def test_type_of_the_keywords_has_the_fields_of_the_record():
    """`finetune(**changes)` is checked by type checkers through it; tests/typed_uses.py shows that it is."""
    fields = {field.name: field.type for field in dataclasses.fields(FinetuneOptions)}
    assert FinetuneChanges.__annotations__ == fields
    assert FinetuneChanges.__required_keys__ == set()
    assert typing.get_type_hints(finetune)["changes"] == typing.Unpack[FinetuneChanges]


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"steps": 0}, ValueError, "`steps` must be at least 1"),
        ({"epochs": -1}, ValueError, "`epochs` must be at least 1"),
        ({"epochs": 1.5}, TypeError, "`epochs` must be an int"),
        ({"batch_size": "8"}, TypeError, "`batch_size` must be an int"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be at least 1"),
        ({"accumulation_steps": 0}, ValueError, "`accumulation_steps` must be at least 1"),
        ({"lora_rank": 0}, ValueError, "`lora_rank` must be at least 1"),
        ({"learning_rate": math.nan}, ValueError, "`learning_rate` must be above 0 and finite"),
        ({"learning_rate": 0.0}, ValueError, "`learning_rate` must be above 0 and finite"),
        ({"learning_rate": "fast"}, TypeError, "`learning_rate` must be a number"),
        ({"layer_decay": math.nan}, ValueError, r"`layer_decay` must be in \(0, 1\]"),
        ({"layer_decay": 1.5}, ValueError, r"`layer_decay` must be in \(0, 1\]"),
        ({"ema_momentum": math.nan}, ValueError, r"`ema_momentum` is a share, so it must be in \[0, 1\)"),
        ({"ema_momentum": 1}, ValueError, r"`ema_momentum` is a share, so it must be in \[0, 1\)"),
        ({"seed": -1}, ValueError, r"`seed` must be in \[0, 2\*\*31\)"),
        ({"seed": 1.0}, TypeError, "`seed` must be an int"),
        ({"image_size": "224"}, TypeError, "`image_size` must be an int"),
        ({"image_size": 0}, ValueError, "`image_size` must be at least 1"),
        ({"image_size": (64, 64, 3)}, ValueError, r"`image_size` must be one side, or \(H, W\)"),
        ({"start_image_size": 1.5}, TypeError, "`start_image_size` must be an int"),
        ({"start_image_size": (8,)}, ValueError, r"`start_image_size` must be one side, or \(H, W\)"),
        ({"start_image_size": 32, "image_size": 32}, ValueError, r"must be below .*\n.*=32, 32 at the end"),
        ({"start_image_size": 16, "image_size": (32, 8)}, ValueError, r"must be below .*\n.*=16, \(32, 8\) at the end"),
        ({"patch_dropout_rate": 1}, ValueError, "`patch_dropout_rate` is a probability of dropping"),
        ({"patch_dropout_rate": "half"}, TypeError, "`patch_dropout_rate` must be a number"),
        ({"recipe": "digit"}, ValueError, "Did you mean .*'digits'"),
        ({"recipe": "foo"}, ValueError, "Some of them: 'paper-"),
        ({"recipe": 3}, TypeError, "`recipe` must be a name or a `Recipe`"),
        ({"augmentation": "strong"}, ValueError, "`augmentation` must be one of"),
        ({"augmentation": 2}, TypeError, "an augmentation must be a name"),
        ({"model": "B/17"}, ValueError, r"`model` must be 'small', a variant .*\n.*'B/17'. Did you mean .*'B/16'"),
        ({"model": "smal"}, ValueError, "Did you mean 'small'"),
        ({"model": 16}, TypeError, "`model` must be 'small', a variant"),
        ({"weights": 16}, TypeError, "`weights` must be None, a name or a path"),
        ({"steps": 3, "epochs": 3}, ValueError, "say the same thing, so pass one"),
        ({"batch_size": 30, "accumulation_steps": 4}, ValueError, "must divide `batch_size`"),
        ({"trainable": "head", "layer_decay": 0.75}, ValueError, "`layer_decay` needs blocks that learn"),
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
    with pytest.raises(TypeError, match=r"`options` must be a `FinetuneOptions`.*\n.*\*\*\{"):
        changed({"epochs": 3}, {})


@pytest.mark.parametrize("name", ["run", "last.keras"])
def test_run_or_keras_file_is_told_what_takes_it(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.keras").touch()
    (tmp_path / "last.keras").touch()
    for wrong in (name, tmp_path / name):
        with pytest.raises(ValueError, match=r"(?s)`model` must .*a saved model.*keras.saving.load_model"):
            FinetuneOptions(model=wrong)
        with pytest.raises(ValueError, match=r"(?s)`weights` must .*whole model.*keras.saving.load_model"):
            FinetuneOptions(weights=wrong)


def test_keywords_change_the_fields_of_a_record():
    options = changed(FinetuneOptions(seed=3, epochs=2), {"epochs": 5})
    assert (options.seed, options.epochs) == (3, 5)
    assert changed(None, {}).facts() == FinetuneOptions().facts()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("policy", "Did you mean 'precision'"),
        ("dtype", "Did you mean 'precision'"),
        ("batchsize", "Did you mean 'batch_size'"),
        ("zzz", "Its fields are model, weights, recipe, "),
    ],
)
def test_unknown_keyword_is_refused_with_the_nearest_one(tmp_path, name, hint):
    with pytest.raises(TypeError, match=rf"must be fields of `FinetuneOptions`.\nReceived: '{name}'. {hint}"):
        keras_vit.finetune("digits", tmp_path / "run", **{name: 1})
    assert not (tmp_path / "run").exists()


def test_facts_are_short_texts_and_numbers_and_of_others_the_type(tmp_path):
    facts = FinetuneOptions(model=tiny_config(), weights=tmp_path, image_size=24).facts()
    assert list(facts) == FIELDS == list(FLAGS)
    assert (facts["model"], facts["weights"], facts["image_size"]) == ("ViTConfig", tmp_path, 24)


@pytest.mark.parametrize(
    ("text", "expected"), [("all", ("all", None)), ("head", ("head", None)), ("last_blocks:3", ("last_blocks", 3))]
)
def test_trainable_is_read_as_freeze_takes_it(text, expected):
    assert parse_trainable(text) == expected


@pytest.mark.parametrize("text", ["", "head:2", "last_blocks:0", "last_blocks:x", None])
def test_other_words_for_trainable_are_refused(text):
    with pytest.raises(ValueError, match="last_blocks:k"):
        parse_trainable(text)


def test_near_word_for_trainable_is_named():
    with pytest.raises(ValueError, match=r"'heads'. Did you mean 'head'\?"):
        parse_trainable("heads")
