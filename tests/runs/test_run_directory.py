"""The folder of a run: nothing of the user's is lost, no file is half there, no damaged model is written."""

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from conftest import make_tiny
from run_files import COLUMNS

from keras_vit.runs.run_directory import RunDirectory, check_free, json_ready


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run", COLUMNS)


def test_folder_that_holds_anything_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="new or empty"):
        RunDirectory(tmp_path, COLUMNS)
    with pytest.raises(ValueError, match="a file"):
        RunDirectory(tmp_path / "notes.txt", COLUMNS)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["notes.txt"]


def test_folder_that_may_be_written_is_tried_without_a_trace(tmp_path):
    check_free(tmp_path / "new" / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("new", [True, False])
def test_folder_that_cannot_be_written_is_refused_with_the_reason(tmp_path, monkeypatch, new):
    tried = []

    def refuse(dir):  # root may write everywhere, so that no rights would do here
        tried.append(dir)
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r"`out`(?s:.*)Permission denied"):
        check_free(tmp_path / "new" / "run" if new else tmp_path)
    assert tried == [tmp_path]


def test_folder_that_the_system_does_not_allow_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`out`(?s:.*)too long"):
        check_free(tmp_path / ("a" * 300))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"`out`(?s:.*)notes.txt'"):
        check_free(tmp_path / "notes.txt" / "run")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match="link"):
        check_free(tmp_path / "link")
    with pytest.raises(ValueError, match="link'"):
        check_free(tmp_path / "link" / "run")


def test_model_with_a_value_that_is_not_finite_is_never_written(run):
    model = make_tiny()
    assert run.save_model(model, "last.keras")
    before = (run.path / "last.keras").read_bytes()
    model.get_layer("head").bias.assign(np.array([0, 0, np.nan, 0, 0, 0, 0]))
    assert not run.save_model(model, "last.keras")
    assert (run.path / "last.keras").read_bytes() == before


def test_save_that_fails_keeps_the_model_of_before_and_leaves_no_part(run, monkeypatch):
    model = make_tiny()
    run.save_model(model, "best.keras")
    before = (run.path / "best.keras").read_bytes()

    def fail(path):
        Path(path).write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(model, "save", fail)
    with pytest.raises(OSError, match="no space"):
        run.save_model(model, "best.keras")
    assert (run.path / "best.keras").read_bytes() == before
    assert [path.name for path in run.path.iterdir()] == ["best.keras"]


def test_rows_come_back_as_they_were_written(run):
    row = dict.fromkeys(COLUMNS, 0.1) | {"epoch": 1, "step": 45, "val_loss": None}
    run.write_row(row)
    run.write_row(row | {"epoch": 2})
    assert run.rows() == [row, row | {"epoch": 2}]


def test_tensorboard_has_every_figure_at_its_epoch(run):
    from tensorflow.compat.v1 import Event
    from tensorflow.data import TFRecordDataset

    run.write_row(dict.fromkeys(COLUMNS) | {"epoch": 1, "step": 9, "loss": 0.5})
    run.write_row(dict.fromkeys(COLUMNS) | {"epoch": 2, "step": 18, "loss": 0.25})
    files = list(map(str, (run.path / "tensorboard").iterdir()))
    events = [Event.FromString(record.numpy()) for record in TFRecordDataset(files)]
    values = [(event.step, value) for event in events for value in event.summary.value]
    found = {(step, value.tag): np.frombuffer(value.tensor.tensor_content, "float32")[0] for step, value in values}
    assert found == {(1, "loss"): 0.5, (1, "step"): 9, (2, "loss"): 0.25, (2, "step"): 18}
    assert {value.metadata.plugin_data.plugin_name for _, value in values if value.HasField("metadata")} == {"scalars"}


def test_json_has_only_what_json_knows(run):
    run.write_json("x.json", {"a": np.float32(0.5), "b": float("nan"), "c": (1, np.int64(2)), "d": run.path, 3: True})
    text = (run.path / "x.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": 0.5,
        "b": None,
        "c": [1, 2],
        "d": str(run.path),
        "3": True,
    }
    assert json_ready({"x": [None]}) == {"x": [None]}


def test_name_of_a_file_that_is_no_text_can_be_written(run):
    name = "photo\udcff.jpg"  # as Python gives a name with a byte that is no letter
    run.write_text("names.txt", name)
    run.write_json("names.json", {"name": name})
    assert (run.path / "names.txt").read_text() == r"photo\udcff.jpg"
    assert json.loads((run.path / "names.json").read_text()) == {"name": name}


def test_names_from_outside_make_no_line(run):  # D17
    forged = "a.jpg\tgood\nb\u2028c\x1b[2J.jpg"
    run.write_lines("bad.txt", [(forged, "truncated JPEG"), ("\udcff.jpg", "empty file")])
    lines = (run.path / "bad.txt").read_text("utf-8").splitlines()
    assert lines == [r"a.jpg\tgood\nb\u2028c\x1b[2J.jpg" + "\ttruncated JPEG", "\\udcff.jpg\tempty file"]


GOOD_ROW = "1,45,0.5,,,,0.1,,2"
BROKEN_METRICS = {
    "other columns": ("a,b\n1,2\n", "the columns epoch, step"),
    "nothing": ("", "the columns"),
    "too many cells": (f"{GOOD_ROW},7\n", "line 2 has 10 cells"),
    "cut short": (f"{GOOD_ROW}\n1,45,0.\n", "line 3 has 3 cells"),
    "no number": (f"{GOOD_ROW}\n2,x,,,,,,,1\n", "line 3: step 'x'"),
    "no epoch": (",45,,,,,,,1\n", "line 2: epoch ''"),
    "long cell": (f'"{"9" * 140_000}"\n', "line 2: "),
    "many digits": ("9" * 5000 + ",45,,,,,,,1\n", "line 2: epoch '9999"),
    "bytes": ("\udcff,45,,,,,,,1\n", "UTF-8"),
}


@pytest.mark.parametrize("name", BROKEN_METRICS)
def test_broken_figures_are_told_with_file_and_line(run, name):
    text, words = BROKEN_METRICS[name]
    head = "" if name in ("other columns", "nothing") else ",".join(COLUMNS) + "\n"
    (run.path / "metrics.csv").write_text(head + text, "utf-8", "surrogateescape")
    with pytest.raises(ValueError, match=rf"(?s)metrics.csv.*{words}") as caught:
        run.rows()
    assert len(str(caught.value)) < 500


def test_figures_in_a_pipe_are_refused(run):  # N13
    os.mkfifo(run.path / "metrics.csv")
    with pytest.raises(ValueError, match=r"metrics.csv.*a pipe, not a regular file"):
        run.rows()
