"""int8 of a run is calibrated on what the run was trained on, and data that have changed since are told."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import make_tiny
from exporting.fake_format import FakeFormat, register
from photos import make_photos

from keras_vit import open_source
from keras_vit.data.source import fingerprint
from keras_vit.exporting.engines import accelerate as engines
from keras_vit.exporting.formats import FORMATS
from keras_vit.runs.finished_runs import calibration_photos, has_changed
from keras_vit.runs.load import RunFacts, load_model

STAND_INS = "parts of two photos of scikit-learn"
NAMES = ("disc", "stripes", "tiles")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """54 photos of three classes, 42 of which are trained on."""
    return make_photos(tmp_path_factory.mktemp("photos") / "set", per_class=18)


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    """The folder of a run on them."""
    folder = tmp_path_factory.mktemp("run")
    make_tiny(num_layers=1, classes=3).save(folder / "best.keras")
    said = {"arguments": {"data": str(photos)}, "seed": 3, "data": {"class_names": NAMES}}
    (folder / "config.json").write_text(json.dumps(said))
    return folder


def test_photos_are_those_of_the_training_set_as_the_run_divided_it(photos):
    found, line = calibration_photos(RunFacts(NAMES, str(photos), seed=3))
    source = open_source(photos, seed=3)
    assert list(found) == [row["path"] for row in source.rows("train")]
    assert not set(found) & {row["path"] for name in ("validation", "test") for row in source.rows(name)}
    assert line == "42 training images of set"


def test_of_many_images_80_are_taken_from_first_to_last():
    found, line = calibration_photos(RunFacts(data="digits", seed=1))
    images = open_source("digits", seed=1).split("train").images
    assert (len(found), line) == (80, "80 training images of digits")
    np.testing.assert_array_equal(found[0], images[0])
    np.testing.assert_array_equal(found[-1], images[-1])
    numbers = [int(np.flatnonzero((images == photo).all(axis=(1, 2, 3)))[0]) for photo in found]
    assert max(np.diff(numbers)) - min(np.diff(numbers)) == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, ""),
        ("no/such/place", ", as the run's data, no/such/place, cannot be read: data must be a folder of class folders"),
        ("few", ", as few has 12 to train on and it takes 32"),
    ],
)
def test_without_them_two_photos_stand_in_and_the_line_says_why(tmp_path, monkeypatch, data, reason):
    monkeypatch.chdir(tmp_path)
    make_photos(tmp_path / "few", per_class=6)
    found, line = calibration_photos(RunFacts(data=data))
    assert found is None
    assert line.startswith(STAND_INS + reason)
    assert "\n" not in line


@pytest.mark.parametrize("command", ["predict", "evaluate"])
@pytest.mark.parametrize("engine", ["openvino", "auto"])
def test_engine_of_int8_gets_them(run, trained, photos, monkeypatch, command, engine):
    seen = seen_by_engines(monkeypatch)
    code, lines, error = ask(run, command, trained, photos, "--engine", engine, "--precision", "int8")
    assert (code, error) == (1, ["keras-vit: error: enough seen"]), lines
    assert seen == [calibration_photos(RunFacts(NAMES, str(photos), 3))[0]]


@pytest.mark.parametrize(
    "options",
    [
        ("--engine", "openvino"),
        ("--engine", "onnxruntime", "--precision", "int8"),  # which is not calibrated
        ("--engine", "openvino", "--precision", "int8", "--images", "mine"),
    ],
)
def test_other_engines_and_photos_of_the_user_are_as_asked(run, trained, photos, monkeypatch, options):
    seen = seen_by_engines(monkeypatch)
    monkeypatch.chdir(trained)
    (trained / "mine").mkdir(exist_ok=True)
    assert ask(run, "evaluate", trained, photos, *options)[0] == 1
    assert [given and str(given) for given in seen] == ["mine" if "mine" in options else None]


@pytest.mark.parametrize(
    ("precision", "options", "line", "count"),
    [
        ("int8", (), "42 training images of set", 42),
        ("float32", (), None, None),
        ("int8", ("--images", "mine"), "the photos given", 33),
    ],
)
def test_export_of_int8_gets_them(run, trained, tmp_path, monkeypatch, precision, options, line, count):
    format = register(monkeypatch, "litert", FakeFormat(".tflite"))
    format.calibrates = ("int8",)
    monkeypatch.chdir(make_photos(tmp_path / "place" / "mine", per_class=11).parent)
    asked = ("--format", "litert", "--precision", precision, "--no-verify", *options)
    code, lines, error = run("export", trained, tmp_path / "x.tflite", *asked)
    assert (code, error) == (0, [])
    assert [said.split(maxsplit=2)[2] for said in lines if "calibrated" in said] == ([line] if line else [])
    if count:
        assert len(format.jobs[0].calibration_photos) == count - 16  # the others are compared


def test_formats_that_are_calibrated_are_those_of_the_pages():
    """docs/quantising.md names them."""
    assert {name for name, format in FORMATS.items() if format.calibrates} == {"litert", "openvino"}


@pytest.mark.parametrize(("taken", "said"), [("openvino", True), ("onnxruntime", False)])
def test_engine_that_was_taken_says_what_it_was_calibrated_on(run, trained, photos, monkeypatch, taken, said):
    model = load_model(trained / "best.keras")
    report = SimpleNamespace(left_out={}, line=lambda: f"{taken} is fastest")
    vars(model).update(engine=taken, precision="int8", report=report)
    monkeypatch.setattr(engines, "accelerate", lambda *_, **__: model)
    options = ("--engine", "auto", "--precision", "int8")
    line = "calibrated and compared on 42 training images of set"
    for command in ("predict", "evaluate"):
        code, lines, error = ask(run, command, trained, photos, *options)
        assert (code, error) == (0, [])
        assert lines[1 : 2 + said] == [line] * said + [f"engine {taken} is fastest"]
    found = json.loads("\n".join(ask(run, "evaluate", trained, photos, *options, "--json")[1]))
    told = {name: found.get(name) for name in ("engine", "precision", "calibrated_on", "data_changed")}
    which = "42 training images of set" if said else None
    assert told == {"engine": taken, "precision": "int8", "calibrated_on": which, "data_changed": None}


# Data that are others now


@pytest.fixture
def known(tmp_path):
    """The folder of 54 photos, and facts of a run that knows them."""
    folder = make_photos(tmp_path / "set", per_class=18)
    return folder, RunFacts(NAMES, str(folder), 3, fingerprint(open_source(folder, seed=3)))


def test_data_that_are_the_same_are_taken_also_elsewhere(known):
    folder, facts = known
    assert not has_changed(facts, open_source(folder, seed=3))
    assert has_changed(facts, open_source(folder, seed=4))  # other images are tested then
    moved = str(folder.rename(folder.parent / "moved"))
    assert calibration_photos(dataclasses.replace(facts, data=moved))[1] == "42 training images of moved"


def test_data_that_have_changed_are_not(known):
    """Divided anew, images that were tested may be among those to train on."""
    folder, facts = known
    (folder / "disc" / "0.jpg").rename(folder / "disc" / "new.jpg")
    assert has_changed(facts, open_source(folder, seed=3))
    found, words = calibration_photos(facts)
    assert (found, words) == (None, f"{STAND_INS}, as the run's data, {folder}, have changed since")


def test_of_a_run_on_part_of_the_images_it_is_that_part(known):
    folder, facts = known
    part = open_source(folder, seed=3).subset(36, seed=5)
    facts = dataclasses.replace(facts, data_hash=fingerprint(part), subset=part.facts["subset"])
    assert not has_changed(facts, open_source(folder, seed=3))
    assert calibration_photos(facts)[0] == [row["path"] for row in part.rows("train")]
    for other in ({**facts.subset, "seed": 6}, {"train_images": 99}, {"train_images": "x"}, {"colour": 1}):
        stranger = dataclasses.replace(facts, subset=other)
        assert has_changed(stranger, open_source(folder, seed=3))
        assert calibration_photos(dataclasses.replace(stranger, data_hash=None))[0] != calibration_photos(facts)[0]


@pytest.mark.parametrize("changes", [False, True])
def test_evaluation_tells_of_it(run, known, trained, tmp_path, changes):
    folder, facts = known
    again = shutil.copytree(trained, tmp_path / "run")
    said = {"arguments": {"data": str(folder)}, "seed": 3, "data_hash": facts.data_hash, "data": {"class_names": NAMES}}
    (again / "config.json").write_text(json.dumps(said))
    if changes:
        (folder / "tiles" / "3.jpg").unlink()
    line = "the run's data have changed or are divided otherwise: some of these images may have been trained on"
    code, lines, error = run("evaluate", again)
    assert (code, error, line in lines) == (0, [], changes)
    told = json.loads("\n".join(run("evaluate", again, "--json")[1]))
    assert told.get("data_changed", False) is changes
    assert (line in run("evaluate", again, "--data", folder)[1]) is changes  # its own data, though they are named


def seen_by_engines(monkeypatch):
    """What engines are asked to compare on; then they fail."""
    seen = []

    def select_photos(given, *of_model):
        seen.append(given)
        raise ValueError("enough seen")

    monkeypatch.setattr(engines, "select_photos", select_photos)
    return seen


def ask(run, command, trained, photos, *options):
    asked = {"predict": (photos / "disc" / "0.jpg", "--model", trained), "evaluate": (trained,)}
    return run(command, *asked[command], *options)
