"""Classification as a task: its table of confusion, and what of it a run folder stores."""

import csv
import json
import re

import numpy as np
import pytest
from conftest import ROOT

from keras_vit import open_source, tasks
from keras_vit.evaluation import measure
from keras_vit.tasks import TASKS, find_task
from keras_vit.tasks.classification import write_confusion


def test_confusion_table_has_names_and_counts(tmp_path):
    write_confusion(measure(np.eye(2)[[0, 1, 1]], [0, 0, 1], ('a, "b"', "ä")), tmp_path / "confusion_matrix.csv")
    with open(tmp_path / "confusion_matrix.csv", newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header[1:] == ['a, "b"', "ä"]
    assert rows == [['a, "b"', "1", "1"], ["ä", "0", "1"]]


def test_confusion_of_more_classes_than_columns_is_a_list_of_its_cells(tmp_path):
    names = [f"={number}" for number in range(1001)]
    write_confusion(measure(np.eye(1001)[[7, 1000, 7]], [3, 1000, 3], names), tmp_path / "confusion_matrix.csv")
    text = (tmp_path / "confusion_matrix.csv").read_text().splitlines()
    assert text == ["true,predicted,images", "'=3,'=7,2", "'=1000,'=1000,1"]


def test_name_of_a_class_makes_no_formula_and_no_line(tmp_path):
    names = ("=cmd|' /C calc'!A0", "@SUM(A1)", "\tx", "-1", "a\nb")
    write_confusion(measure(np.eye(5), range(5), names), tmp_path / "confusion_matrix.csv")
    with open(tmp_path / "confusion_matrix.csv", newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header[1:] == ["'=cmd|' /C calc'!A0", "'@SUM(A1)", r"'\tx", "'-1", r"a\nb"]
    assert [row[0] for row in rows] == header[1:]


def test_tasks_are_stored_and_found_again():
    for name in TASKS:
        task = find_task(name)
        assert find_task(task.facts()) == task == find_task(task)
        assert (task.name, str(task)) == (name, name)
    assert find_task(None) == find_task("classification") == tasks.Classification()


@pytest.mark.parametrize(
    ("what", "rule"),
    [
        ("clasification", r"one of(?s:.*)classification"),
        ({"name": "classification", "depth": 1}, "depth"),
        (3, "name"),
        ({}, "name"),
    ],
)
def test_task_that_is_none_is_refused(what, rule):
    with pytest.raises(ValueError, match=rf"task(?s:.*){rule}"):
        find_task(what)


def test_weights_of_classes_are_read_by_name(tmp_path):
    source = open_source({"train": (np.zeros((6, 8, 8, 3), "uint8"), [0, 1, 0, 0, 0, 2])})
    balanced = find_task({"name": "classification", "class_weights": "balanced"})._weights(source)
    assert balanced == [0.5, 2.0, 2.0]  # as scikit-learn: images / (classes * images of the class)
    words = find_task({"name": "classification", "class_weights": "balanced"}).loss_in_words(source)
    assert words == "weighted by class, from 0.5 (0) to 2 (1)"
    assert not tasks.Classification().loss_in_words(source)
    for weight, words in ((1, ""), (2, "weighted by 2 in every class")):
        assert tasks.Classification(class_weights=dict.fromkeys("012", weight)).loss_in_words(source) == words
    file = tmp_path / "weights.csv"
    file.write_text("Class, Weight\n2, 3\n0,1.5\n1,0.25\n")
    task = tasks.Classification(class_weights=file)
    assert task == find_task(json.loads(json.dumps(task.facts())))
    assert task._weights(source) == [1.5, 0.25, 3.0]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ("balancd", "Did you mean 'balanced'"),
        ("class,weigth\na,1\n", "first line is 'class,weigth'"),
        ("class,weight\na,1\na,2\n", "'a' is given twice"),
        ("class,weight\na,one\n", "'one'"),
        ("class,weight\na\n", "row 'a' has not two columns"),
        ("\n", "first line is ''"),
        ({"0": 1.0, "1": 0.0, "2": 1.0}, "above 0"),
        ({"0": 1.0, "1": 2.0}, "none for '2'"),
        ({"0": 1.0, "1": 2.0, "2": 1.0, "three": 1.0}, "'three', which is no class"),
    ],
)
def test_weights_that_are_not_one_for_each_class_are_refused(tmp_path, weights, words):
    if "\n" in weights:
        (tmp_path / "weights.csv").write_text(weights)
        weights = tmp_path / "weights.csv"
    with pytest.raises(ValueError, match=rf"`class_weights(?s:.*){words}"):
        tasks.Classification(class_weights=weights).check_source(
            open_source({"train": (np.zeros((3, 8, 8, 3), "uint8"), [0, 1, 2])})
        )


def test_probabilities_of_large_scores_are_finite(tiny):
    """float32's exponential ends at 88."""
    answer = find_task().answer(tiny, np.array([1000, 999, 0], "float32"), ("a", "b", "c"), 3)
    assert [each["class"] for each in answer] == ["a", "b", "c"]
    found = [each["probability"] for each in answer]
    np.testing.assert_allclose(found, [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1)), 0], rtol=1e-6)


def test_runs_name_no_task_and_nothing_of_one():
    """But for the argument of `load_dataset`, a field of a weights record, and options of commands and of encoders."""
    words = re.compile(rf"\bclass(es)?\b|label|accuracy|\b({'|'.join(TASKS)})\b", re.IGNORECASE)
    allowed = re.compile(r'^\s*class \w+|labels=run_plan|\.classes\)$|`--classes |stochastic depth|"class"|kNN|knn')
    lines = [
        line for path in sorted((ROOT / "keras_vit" / "runs").glob("*.py")) for line in path.read_text().split("\n")
    ]
    assert [line for line in lines if words.search(line) and not allowed.search(line)] == []
