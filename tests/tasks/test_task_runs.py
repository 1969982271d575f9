"""A run of every task whose targets are rows of numbers, from a table to report, resumption, answers and exports."""

import csv
import json

import keras
import numpy as np
import pytest
from conftest import numpy, tiny_config
from shape_tables import SHAPES, write_labels, write_numbers
from sklearn import metrics
from stopped_runs import Died, Dying

import keras_vit
import keras_vit.runs.finetune as module
from keras_vit.config.heads import UNITS
from keras_vit.data import load_dataset, open_source
from keras_vit.tasks import TASKS, find_task

WRITERS = {"multi-label": write_labels, "regression": write_numbers}
FIRST = {"multi-label": "average_precision", "regression": "r2"}
OPTIONS = {"image_size": (24, 28), "batch_size": 16, "epochs": 3, "recipe": "small", "ema_momentum": 0.5}
OWN_FILES = {"multi-label": set(), "regression": {"predicted.png"}}
FILES = {"config.json", "result.json", "metrics.csv", "tensorboard", "curves.png", "report.html", "README.md"}


def run_of(table, out, task, **changes):
    said = []
    options = OPTIONS | {"model": tiny_config(num_layers=1, dropout_rate=0.1), "checkpoint_every": 2} | changes
    return module.finetune(table, out, task=task, print_fn=said.append, **options), said


@pytest.fixture(scope="module", params=WRITERS)
def finished(request, tmp_path_factory):
    """Name of the task, table, result and lines of a run."""
    folder = tmp_path_factory.mktemp("set")
    table = WRITERS[request.param](folder / "pictures")
    return request.param, table, *run_of(table, folder / "run", request.param)


def test_every_other_task_has_a_run():
    assert set(WRITERS) == set(TASKS) - {
        "classification",
        "contrastive",
        "depth",
        "segmentation",
    }  # with files of their own


def test_run_has_its_files_and_the_numbers_of_its_best_model(finished):
    task, table, result, said = finished
    assert {path.name for path in result.out.iterdir()} == FILES | {"best.keras", "last.keras"} | OWN_FILES[task]
    facts = json.loads((result.out / "result.json").read_text())
    assert next(iter(facts)) == f"test_{FIRST[task]}"
    crop = json.loads((result.out / "config.json").read_text())["augmentation"]["crop"]
    assert crop == {"multi-label": "inception", "regression": "none"}[task]  # a crop changes sizes, which are numbers
    model = keras.models.load_model(result.out / "best.keras", compile=False)
    again = find_task(facts["task"]).evaluate(model, table, "test")
    assert {**again.summary(), "seconds": 0} == {**result.evaluation.summary(), "seconds": 0}
    rows = np.genfromtxt(result.out / "metrics.csv", delimiter=",", names=True)
    assert facts[f"best_validation_{FIRST[task]}"] == rows[f"val_{FIRST[task]}"].max()
    assert any(line.startswith(f"data      {table.name}: ") for line in said)


def test_numbers_of_a_run_are_those_of_scikit_learn(finished):
    task, table, result, _ = finished
    source = open_source(str(table), targets=find_task(task).targets())
    batches = load_dataset(source, "test", batch_size=5, preprocessing=result.model.preprocessing)
    outputs = np.concatenate([numpy(result.model(images)) for images, _ in batches]).astype("float64")
    true = source.split("test").labels
    facts = json.loads((result.out / "result.json").read_text())
    if task == "regression":
        units, trained_on = result.model.get_layer(UNITS), source.split("train").labels.astype("float64")
        np.testing.assert_allclose([units.offset, units.scale], [trained_on.mean(0), trained_on.std(0)], rtol=1e-6)
        assert facts["test_r2"] == pytest.approx(metrics.r2_score(true, outputs), abs=1e-5)
        found = [each["mean_absolute_error"] for each in facts["per_number"]]
        assert found == pytest.approx(metrics.mean_absolute_error(true, outputs, multioutput="raw_values"), rel=1e-4)
        return
    scores = 1 / (1 + np.exp(-outputs))
    assert facts["test_average_precision"] == pytest.approx(metrics.average_precision_score(true, scores))
    answers = scores >= facts["task"]["threshold"]
    assert facts["micro_f1"] == pytest.approx(metrics.f1_score(true, answers, average="micro", zero_division=0))
    assert facts["macro_f1"] == pytest.approx(metrics.f1_score(true, answers, average="macro", zero_division=0))


def test_killed_run_goes_on_to_the_same_numbers(finished, tmp_path, monkeypatch):
    task, table, result, _ = finished
    monkeypatch.setattr(module, "StepFacts", Dying)
    monkeypatch.setattr(Dying, "at", 5)  # the second of the second epoch
    with pytest.raises(Died):
        run_of(table, tmp_path / "run", task)
    monkeypatch.setattr(Dying, "at", None)
    other = {"multi-label": {"threshold": 0.25}, "regression": {"loss": "mae"}}[task]
    with pytest.raises(ValueError, match="|".join(other)):
        run_of(table, tmp_path / "run", find_task({"name": task, **other}))
    again, said = run_of(table, tmp_path / "run", task, resume="must")
    assert any(line.startswith("goes on from step 3, ") for line in said)  # the end of an epoch
    for name in ("best.keras", "last.keras"):
        weights, others = (keras.models.load_model(each.out / name).weights for each in (result, again))
        assert all((numpy(one) == numpy(other)).all() for one, other in zip(weights, others, strict=True))
    assert {**again.evaluation.summary(), "seconds": 0} == {**result.evaluation.summary(), "seconds": 0}
    assert again.facts["seconds"] > again.facts["training_seconds"]  # both of all processes


def test_command_line_evaluates_and_predicts(finished, run, tmp_path):
    task, table, result, _ = finished
    code, lines, _ = run("evaluate", result.out, "--split", "validation", "--page", tmp_path / "page")
    assert code == 0
    assert lines[1].startswith("validation mean average precision" if task == "multi-label" else "validation R2")
    page = (tmp_path / "page" / "index.html").read_text()
    assert all(name in page for name in result.evaluation.class_names)
    (tmp_path / "real.json").write_text("[]")
    code, _, error = run("evaluate", result.out, "--real", tmp_path / "real.json")
    assert code != 0
    assert f"Received: --real for a run of {task}" in error[0]
    photo = table.parent / ("shapes1.png" if task == "multi-label" else "disc1.png")
    out = tmp_path / "answers.csv"
    assert run("predict", photo, photo.parent / "gone.png", "--model", result.out, "--out", out)[0] == 0
    with out.open(newline="") as file:
        (row, gone) = csv.DictReader(file)
    assert (row.pop("path"), row.pop("status"), gone["status"]) == (str(photo), "ok", "no such file")
    code, _, error = run("predict", photo, "--model", result.out, "--top", "all", "--out", out, "--overwrite")
    if task == "multi-label":
        with out.open(newline="") as file:
            (every,) = csv.DictReader(file)
        assert {name: every.pop(name) for name in row} == row  # labels above their thresholds, and their scores
        limits = zip(result.evaluation.class_names, result.task.threshold, strict=True)
        above = {name for name, limit in limits if float(every[name]) >= limit}
        assert (code, above) == (0, set(row["labels"].split(";")) - {""})
    else:
        assert (code, "--top" in error[0]) == (1, True)
    code, lines, _ = run("predict", photo, "--model", result.out, "--json")
    (answer,) = json.loads("\n".join(lines))
    names = [next(iter(item.values())) for item in answer["predictions"]]
    assert set(names) <= set(SHAPES) if task == "multi-label" else names == ["radius", "brightness"]


def test_report_and_card_show_each_target(finished):
    task, _, result, _ = finished
    report, card = ((result.out / name).read_text() for name in ("report.html", "README.md"))
    for name in result.evaluation.class_names:
        assert f"<td>{name}</td>" in report
        assert name in card
    assert ("predicted numbers over true ones" in report) == (task == "regression")
    assert ("Largest errors" if task == "regression" else "Photos with a wrong or missing label") in report
    assert "accuracy" not in report.partition("<pre>")[0]


BY_NIGHT = ("saved", "model.tflite", "model.xml")  # by default one format of numbers and one of integers


@pytest.mark.parametrize(
    "name", ["model.onnx", "int8.tflite", *(pytest.param(name, marks=pytest.mark.nightly) for name in BY_NIGHT)]
)
def test_export_answers_as_the_model(finished, name, tmp_path):
    """In int8 also with columns of which one is 20 times as large as the other."""
    task, table, result, _ = finished
    options = {"precision": "int8", "images": table.parent} if "int8" in name else {}
    report = keras_vit.export(result.model, tmp_path / name, labels=result.evaluation.class_names, **options)
    assert next(drift.output for drift in report.drift) == {"multi-label": "logits", "regression": "numbers"}[task]
    assert all(drift.within for drift in report.drift)


def test_served_model_answers_in_units_or_with_sigmoids(finished, tmp_path):
    import tensorflow as tf

    task, table, result, _ = finished
    keras_vit.export(result.model, tmp_path / "served", verify=False)
    served = tf.saved_model.load(str(tmp_path / "served" / "1")).signatures["serving_default"]
    photo = next(table.parent.glob("*.png"))
    answer = served(image_bytes=tf.constant([photo.read_bytes(), b"no photo"]))
    pixels = keras_vit.read_image(photo)
    wanted = numpy(result.model(result.model.preprocessing(pixels)[None]))[0]
    if task == "multi-label":
        np.testing.assert_allclose(answer["scores"][0], 1 / (1 + np.exp(-wanted)), atol=1e-5)
        assert set(answer["labels"][0].numpy().astype(str)) == set(SHAPES)
    else:
        np.testing.assert_allclose(answer["numbers"][0], wanted, rtol=1e-5)
        assert np.isnan(answer["numbers"][1]).all()
    assert answer["status"].numpy()[0] == b"ok"
    assert answer["status"].numpy()[1] != b"ok"


def test_data_of_another_kind_or_with_unknown_targets_are_refused(finished, tmp_path):
    task, table, result, _ = finished
    text = table.read_text().splitlines()
    if task == "multi-label":
        text[4] = text[4].partition(",")[0] + ",disc;lion"
    else:
        text = [line.replace("radius", "width") for line in text]
    other = tmp_path / "other.csv"
    other.write_text("\n".join(text))
    with pytest.raises(ValueError, match=r"line 5 of .*other.csv.*'lion'|other.csv.*'width'"):
        result.task.evaluate(result.model, other, names=result.evaluation.class_names)
