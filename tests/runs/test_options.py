"""The options of a run: one record, whose fields are the keywords of `finetune`; wrong ones are named."""

import dataclasses
import inspect

import pytest
from conftest import tiny_config

import keras_vit
from keras_vit.runs.options import FLAGS, FinetuneOptions, changed, parse_trainable

FIELDS = [field.name for field in dataclasses.fields(FinetuneOptions)]


def test_every_field_is_a_keyword_of_finetune_with_its_default_and_is_documented():
    parameters = inspect.signature(keras_vit.finetune).parameters
    assert list(parameters) == ["data", "out", "options", "say", *FIELDS]
    for field in dataclasses.fields(FinetuneOptions):
        assert parameters[field.name].default == field.default, field.name
        assert parameters[field.name].annotation == field.type, field.name
        assert f"\n        {field.name}: " in FinetuneOptions.__doc__, field.name


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
