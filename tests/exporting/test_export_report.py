"""What an export says of itself: numbers, tables in Markdown, and JSON."""

import dataclasses
import json
from pathlib import Path

import pytest

from keras_vit.exporting.engines.engine import EngineReport
from keras_vit.exporting.report import Drift, ExportReport
from keras_vit.files import disk_size

DRIFTS = (
    Drift("logits", 0.25, 0.0625, 1.5, 0.5, 0.125),
    Drift("features", 0.5, 0.03125, 2.5, 0.5, 0.125),
)
FULL = ExportReport(Path("a/b.onnx"), "onnx", "float16", 1_234_567, "onnxruntime 9.9", 16, DRIFTS, 0.9375, 0.0123, 0.02)
BARE = ExportReport(Path("a/b.onnx"), "onnx", "float32", 12)


def test_largest_difference_is_that_of_all_outputs():
    assert (FULL.max_difference, FULL.mean_difference) == (0.5, 0.0625)
    assert (BARE.max_difference, BARE.mean_difference) == (None, None)


def test_nan_is_the_largest_difference_wherever_it_stands():
    nan = Drift("scores", float("nan"), float("nan"), 1.0, 1.0, 1.0)
    for drifts in ((*DRIFTS, nan), (nan, *DRIFTS)):
        report = ExportReport(Path("x"), "onnx", "float32", 1, "r", 1, drifts)
        assert str(report.max_difference) == str(report.mean_difference) == "nan"


@pytest.mark.parametrize("nan_or_more", [0.51, float("nan")])
def test_both_bounds_must_hold(nan_or_more):
    bounds = {"deviation": 1.0, "bound": 0.5, "mean_bound": 0.5}
    assert Drift("logits", 0.5, 0.5, **bounds).within
    assert not Drift("logits", nan_or_more, 0.1, **bounds).within
    assert not Drift("logits", 0.1, nan_or_more, **bounds).within


def test_tables_are_markdown():
    assert FULL.table().splitlines() == [
        "| export | a/b.onnx |",
        "| --- | --- |",
        "| format | onnx, float16 |",
        "| size | 1.23 MB |",
        "| opened by | onnxruntime 9.9 |",
        "| photos compared | 16 |",
        "| same best class | 93.8% |",
        "| one image | 12.3 ms, in Keras 20.0 ms |",
        "",
        "| output | largest difference | bound | mean difference | deviation of the model's |",
        "| --- | --- | --- | --- | --- |",
        "| logits | 0.25 | 0.5 | 0.062 | 1.5 |",
        "| features | 0.5 | 0.5 | 0.031 | 2.5 |",
    ]


def test_printed_report_is_what_the_command_prints():
    report = dataclasses.replace(FULL, opening="onnxruntime.InferenceSession(" + "'a/b.onnx', " * 8 + ")")
    lines = str(report).splitlines()
    assert lines[:3] == ["exported to a/b.onnx", "  format           onnx, float16", "  size             1.23 MB"]
    assert lines[-3:] == [
        "output    largest difference  bound  mean difference  deviation",
        "logits                  0.25    0.5            0.062        1.5",
        "features                 0.5    0.5            0.031        2.5",
    ]
    assert "  same best class  93.8%" in lines
    assert max(map(len, lines)) < 80
    assert str(BARE).splitlines()[-1] == "  verified  no"


def test_printed_report_of_an_engine_fits_and_has_all_times():
    times, reasons = {"openvino": 0.0123, "model": 0.045}, {"onnxruntime": "it is not installed, " * 8}
    report = EngineReport("openvino", "bfloat16", 2, "openvino 9", 16, DRIFTS, 1.0, 8, times, reasons, "2026-11-27")
    lines = str(report).splitlines()
    assert max(map(len, lines)) < 80
    assert lines[:6] == [
        "openvino in bfloat16, in batches of 8",
        "  software         openvino 9",
        "  threads          2",
        "  openvino         12.3 ms an image",
        "  model            45 ms an image",
        "  onnxruntime      left out: it is not installed, it is not installed, it is",
    ]
    assert {"  measured on      2026-11-27", "  same best class  100.0%"} <= set(lines)
    assert lines[-2:] == str(FULL).splitlines()[-2:]


def test_table_of_a_file_that_was_not_verified_says_so():
    report = dataclasses.replace(BARE, path=Path("a|b\nc.onnx"), opening='open("b.onnx")')
    lines = report.table().splitlines()
    assert lines[0] == "| export | a\\|b c.onnx |"
    assert '| open it by | open("b.onnx") |' in lines
    assert lines[-1] == "| verified | no |"


@pytest.mark.parametrize("report", [FULL, BARE])
def test_summary_is_json_and_holds_every_number(report, tmp_path):
    report.write(tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["path"] == "a/b.onnx"
    assert (found["bytes"], found["runtime"], found["seconds"]) == (report.bytes, report.runtime, report.seconds)
    assert [Drift(**drift) for drift in found["drift"]] == list(report.drift)
    report.write(str(tmp_path / "report.md"))  # as any other name
    assert (tmp_path / "report.md").read_text() == report.table() + "\n"


def test_size_is_that_of_all_files_below(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(bytes(7))
    (tmp_path / "a" / "b" / "two").write_bytes(bytes(11))
    assert (disk_size(tmp_path), disk_size(tmp_path / "a" / "one")) == (18, 7)


@pytest.mark.parametrize("name", ["report.json", "report.md"])
def test_report_replaces_a_report_and_nothing_else(tmp_path, name):
    for report in (FULL, BARE):
        report.write(tmp_path / name)
    assert "float32" in (tmp_path / name).read_text()
    (tmp_path / name).write_text("notes of a user")
    with pytest.raises(FileExistsError, match=name):
        FULL.write(tmp_path / name)
    assert (tmp_path / name).read_text() == "notes of a user"
