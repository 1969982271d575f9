"""Runs of strangers and damaged ones: every fault is one short error that names the file (N13 and C1)."""

import copy
import itertools
import json
import os
import re
import shutil
import zipfile

import keras
import numpy as np
import pytest
from conftest import make_tiny

import keras_vit
from keras_vit import cli
from keras_vit.runs.load import RunFacts, check_reloads, load_model, read_facts

CONFIG = {
    "arguments": {"data": "photos"},
    "seed": 3,
    "data": {"class_names": [f"class {number}" for number in range(7)]},
}
PLACES = [("arguments",), ("arguments", "data"), ("seed",), ("data",), ("data", "class_names"), ("data_hash",)]
PLACES.append(("data", "subset"))
MISSING = object()
VALUES = [MISSING, None, [], {}, 0, -1, 1.5, "", "\x1b[2J\n", True, 10**400, [[1]], [None], [7], {"a": {}}, "x" * 9000]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run: a model of 7 classes, and what is said of it."""
    folder = tmp_path_factory.mktemp("run")
    make_tiny().save(folder / "best.keras")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def run(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "run")


@pytest.fixture
def predict(capfd, tmp_path):
    """The error lines of `keras-vit predict` with a model that must be refused."""

    photo = tmp_path / "photo.jpg"
    photo.write_bytes(b"no photo, which is not reached")

    def predict(model):
        assert cli.main(["predict", str(photo), "--model", str(model)]) == 1
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) == 1
        assert len(lines[0]) < 700
        assert lines[0].isprintable()
        return lines[0]

    return predict


def broken(place, value):
    config = copy.deepcopy(CONFIG)
    *outer, name = place
    parent = config
    for each in outer:
        parent = parent[each]
    if value is MISSING:
        parent.pop(name, None)
    else:
        parent[name] = value
    return config


def read_or_words(path):
    try:
        return read_facts(path), None
    except ValueError as error:
        return None, str(error)


def test_facts_are_read(folder):
    assert read_facts(folder / "config.json") == RunFacts(tuple(CONFIG["data"]["class_names"]), "photos", 3)


def test_every_broken_configuration_is_read_or_one_short_error(tmp_path):
    path, refused = tmp_path / "config.json", set()
    for place, value in itertools.product(PLACES, VALUES):
        path.write_text(json.dumps(broken(place, value)))
        facts, words = read_or_words(path)
        if words is None:
            assert all(isinstance(name, str) for name in facts.class_names)
            assert 0 <= facts.seed < 2**31
            assert facts.data is None or isinstance(facts.data, str)
            assert facts.data_hash is None or isinstance(facts.data_hash, str)
            assert facts.subset is None or isinstance(facts.subset, dict)
        else:
            refused.add(place)
            assert re.search(r"config.json(?s:.*)`(?s:.*)Received: .*config.json: ", words)
            assert len(words) < 400
            assert all(line.isprintable() for line in words.split("\n"))
    assert refused == {place for place in PLACES if place not in (("arguments", "data"), ("data_hash",))}


@pytest.mark.parametrize("text", ["", "[]", "null", "7", '{"a":', '{"a": ' + "9" * 5000 + "}", "[" * 100_000, "\udcff"])
def test_configuration_that_is_no_object_is_one_short_error(tmp_path, text):
    (tmp_path / "config.json").write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(ValueError, match=r"Received: .*config.json: ") as found:
        read_facts(tmp_path / "config.json")
    assert len(str(found.value)) < 400


def test_configuration_of_other_software_beside_a_file_tells_nothing(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    assert read_facts(tmp_path / "config.json", is_run=False) == RunFacts()
    with pytest.raises(ValueError, match=r"`data`(?s:.*)no data"):
        read_facts(tmp_path / "config.json")


@pytest.mark.parametrize("value", [None, [], "x", 7])
def test_broken_run_is_one_line(predict, run, value):
    (run / "config.json").write_text(json.dumps({"data": value}))
    assert re.search(r"config.json.*`data`.*config.json: data is", predict(run))


def test_names_of_other_classes_are_refused(predict, run):
    (run / "config.json").write_text(json.dumps({"data": {"class_names": ["a", "b"]}}))
    assert "config.json with 2 names, and " in predict(run)


@pytest.mark.parametrize("name", ["best.keras", "config.json"])
@pytest.mark.parametrize("target", ["pipe", "/dev/zero"])
def test_run_opens_regular_files_only(predict, run, name, target):  # N13
    os.mkfifo(run / "pipe")
    (run / name).unlink()
    (run / name).symlink_to(run / target)
    assert re.search(rf"{name}[,:] .*(pipe|device)", predict(run))


def test_model_that_is_cut_short_is_called_so(predict, run):
    data = (run / "best.keras").read_bytes()
    for size in (0, 100, len(data) // 2, len(data) - 1):
        (run / "best.keras").write_bytes(data[:size])
        line = predict(run)
        assert "best.keras, cut short" in line
        assert "not found" not in line


def test_model_that_is_refused_does_not_show_its_configuration(tmp_path):
    model = keras.Sequential([keras.Input((4,)), *[keras.layers.Dense(4) for _ in range(30)]])
    model.add(keras.layers.Lambda(lambda x: x * 2))
    model.save(tmp_path / "lambda.keras")
    with pytest.raises(ValueError, match=r"Received: .*lambda.keras: .*[Ll]ambda") as found:
        load_model(tmp_path / "lambda.keras")
    assert len(str(found.value)) < 500


def test_model_of_an_unknown_class_does_not_show_its_configuration(predict, run):
    rewrite_config(run / "best.keras", b"VisionTransformer", b"Unknown")
    line = predict(run)
    assert "'Unknown'" in line
    assert "hidden_size" not in line


def test_model_that_claims_more_weights_than_its_file_holds_is_refused_before_they_are_made(predict, tmp_path):
    """Of this width the first kernel alone would take 3.7 TB."""
    model = keras_vit.build(keras_vit.ViTConfig(4, 148, 1, 1, 149), input_shape=(8, 8, 3), classes=3)
    model.save(tmp_path / "wide.keras")
    rewrite_config(tmp_path / "wide.keras", b"148", b"960000")
    words = r"must be whole.*layers of [\d,]{15,} numbers, and [\d,]{6,9} bytes of weights\. Copy"
    assert re.search(words, predict(tmp_path / "wide.keras"))


@pytest.mark.parametrize("optimizer", ["adam", keras_vit.AdamW(use_ema=True)], ids=["keras", "ours"])
def test_model_that_was_compiled_and_trained_is_loaded(tmp_path, optimizer):
    model = make_tiny()
    model.compile(optimizer, "mse")
    model.fit(np.zeros((2, 20, 28, 3)), np.zeros((2, 7)), verbose=0)
    model.save(tmp_path / "trained.keras")
    loaded = load_model(tmp_path / "trained.keras")
    for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_layers_that_do_not_fit_together_leave_nothing_to_be_made(predict, run):
    width = f'"hidden_size": {make_tiny().config.hidden_size}'.encode()
    rewrite_config(run / "best.keras", width, b'"hidden_size": 960000')
    assert "must be whole" in predict(run)
    with keras.StatelessScope():
        pass  # leaving it makes Keras initialize_variables all that waits


def rewrite_config(file, old, new):
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert old in members["config.json"]
    members["config.json"] = members["config.json"].replace(old, new)
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def test_model_that_could_not_be_loaded_again_is_told_before_it_is_trained(tmp_path):
    model = make_tiny()
    check_reloads(model)
    doubled = keras.layers.Lambda(lambda x: 2 * x)(model.output)
    own = keras_vit.VisionTransformer(model.input, doubled, config=model.config, preprocessing=model.preprocessing)
    with pytest.raises(ValueError, match=r"`model`(?s:.*)Lambda(?s:.*)register_keras_serializable"):
        check_reloads(own)
