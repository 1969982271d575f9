"""`keras-vit export`: what it takes, what it prints, and one line for whatever goes wrong (row C1)."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from conftest import ROOT, assert_one_line, make_tiny
from exporting.fake_format import FakeFormat, register
from fault_server import child_environment
from pictures import encoded, picture

from keras_vit import cli
from keras_vit.weights.download import cache_dir

NAMES = ["ash", "birch", "cedar", "douglas fir", "elm", "fig", "ginkgo"]


@pytest.fixture
def run(run):
    """Runs `export` in this process, and gives exit code, output lines and error lines."""
    return functools.partial(run, "export")


@pytest.fixture
def fake(monkeypatch):
    """A format that costs nothing in the place of ONNX."""
    return register(monkeypatch, "onnx", FakeFormat(".onnx"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("run")
    make_tiny(num_layers=1).save(folder / "best.keras")
    (folder / "config.json").write_text(json.dumps({"data": {"class_names": NAMES}}))
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(3):
        (folder / f"{number}.png").write_bytes(encoded(picture(33, 47, seed=number), "PNG"))
    return folder


# What is written and printed


def test_run_is_exported_with_the_names_of_its_classes(run, fake, trained, photos, tmp_path):
    code, lines, error = run(trained, tmp_path / "x.onnx", "--format", "onnx", "--images", photos)
    assert (code, error) == (0, [])
    steps = ["writing onnx in float32", "opening it in its own runtime"]
    assert lines[:3] == [f"loading {trained} ...", *steps]
    assert lines[3].startswith("comparing it with the model on 3 photos in ")
    assert lines[4] == f"exported to {tmp_path / 'x.onnx'}"
    assert ["photos", "compared", "3"] in [line.split() for line in lines]
    assert [line.split()[0] for line in lines[-3:]] == ["logits", "features", "scores"]
    assert max(map(len, lines[5:])) < 80
    assert json.loads((tmp_path / "x.onnx").read_text())["labels"] == NAMES


def test_large_model_is_said_to_take_a_while(run, fake, trained, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_vit.exporting.export._MANY", 1_000)
    _, lines, _ = run(trained, tmp_path / "x.onnx", "--format", "onnx", "--images", photos)
    count = keras.saving.load_model(trained / "best.keras").count_params()
    assert lines[1] == f"writing onnx in float32; {count:,} parameters may take a minute or more"


def test_options_reach_the_function(run, fake, trained, photos, tmp_path, monkeypatch):
    options = "--format onnx --precision float16 --image-size 28x36 --activation sigmoid --name my.trees "
    options += f"--opset 17 --images {photos}"
    assert run(trained / "best.keras", tmp_path / "x.onnx", *options.split())[::2] == (0, [])
    (task,) = fake.jobs
    assert (task.precision, task.image_size, task.activation) == ("float16", (28, 36), "sigmoid")
    assert (task.name, task.opset) == ("my.trees", 17)
    assert task.calibration_photos.shape == (3, 28, 36, 3)
    served = register(monkeypatch, "saved_model", FakeFormat(""))
    monkeypatch.setattr(served, "open_runtime", lambda place: pytest.fail("compares"))
    options = "--top 2 --max-bytes 99999 --max-pixels 9999 --max-batch 3 --no-verify"
    assert run(trained / "best.keras", tmp_path / "x", *options.split())[::2] == (0, [])
    (task,) = served.jobs
    assert (task.top_k, task.max_bytes, task.max_pixels, task.max_batch) == (2, 99999, 9999, 3)


def test_defaults_are_those_of_the_function(run, fake, trained, tmp_path):
    run(trained, tmp_path / "x.onnx", "--format", "onnx", "--no-verify")
    (task,) = fake.jobs
    assert (task.precision, task.image_size, task.top_k, task.opset) == ("float32", (20, 28), 5, 18)
    assert not task.jit_compile
    assert (task.max_bytes, task.max_pixels, task.name) == (8 * 2**20, 12 * 2**20, "x")


@pytest.mark.parametrize(("text", "size"), [("24", (24, 24)), ("any", (None, None))])
def test_size_may_be_one_side_or_any(run, fake, trained, photos, tmp_path, text, size):
    run(trained, tmp_path / "x.onnx", "--format", "onnx", "--no-verify", "--image-size", text, "--images", photos)
    assert fake.jobs[0].image_size == size


def test_labels_of_a_file_are_its_lines(run, fake, trained, photos, tmp_path):
    labels = [f"{name} ä" for name in NAMES]
    (tmp_path / "labels.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*labels, ""]).encode())
    command = (trained, tmp_path / "x.onnx", "--format", "onnx", "--no-verify", "--labels", tmp_path / "labels.txt")
    assert run(*command)[0] == 0
    assert list(fake.jobs[0].labels) == labels


def test_json_is_for_programs_and_report_for_people(run, fake, trained, photos, tmp_path):
    to = ("--format", "onnx", "--images", photos, "--json")
    code, lines, error = run(trained, tmp_path / "x.onnx", *to, "--report", tmp_path / "report.md")
    assert (code, error) == (0, [])
    summary = json.loads("\n".join(lines))
    assert (summary["format"], summary["images"], summary["path"]) == ("onnx", 3, str(tmp_path / "x.onnx"))
    assert (tmp_path / "report.md").read_text().startswith(f"| export | {tmp_path / 'x.onnx'} |\n")
    _, lines, _ = run(trained, tmp_path / "y.onnx", *to, "--report", tmp_path / "report.json")
    assert (tmp_path / "report.json").read_text() == "\n".join(lines) + "\n"


def test_overwrite_replaces(run, fake, trained, tmp_path):
    file = tmp_path / "x.onnx"
    command = (trained, file, "--format", "onnx", "--no-verify")
    assert run(*command, "--name", "first")[0] == 0
    code, _, error = run(*command)
    assert (code, json.loads(file.read_text())["name"]) == (1, "first")
    assert_one_line(error, ".*x.onnx.*--overwrite")
    assert (run(*command, "--overwrite")[0], json.loads(file.read_text())["name"]) == (0, "x")
    file.write_text("precious")
    code, _, error = run(*command, "--overwrite")
    assert (code, file.read_text()) == (1, "precious")
    assert_one_line(error, ".*only a file that an export.*x.onnx, which is something else")


# What is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--format", "coreml"), "--format.*'coreml'"),
        (("--precision", "fp16"), "--precision.*'fp16'"),
        (("--image-size", "20x28x3"), "224x320.*'20x28x3'"),
        (("--image-size", "-5"), "--image-size"),
        (("--top", "many"), "--top.*'many'"),
        (("--form", "onnx"), "unrecognized arguments"),
        (("--labels", ""), "empty"),
    ],
)
def test_wrong_usage_is_code_2(capsys, tmp_path, options, words):
    with pytest.raises(SystemExit) as caught:
        cli.main(["export", "B/16", str(tmp_path / "x"), *options])
    assert caught.value.code == 2
    assert re.search(words, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("onnx --top 0", "`--top`"),
        ("onnx --max-bytes 0", "`--max-bytes`"),
        ("onnx --image-size 21x28", r"`--image-size`.* \(21, 28\).* \(20, 28\)"),
        ("onnx --images no/such/place", "`--images`.*no/such/place"),
        ("onnx --labels no/such/file", "'no/such/file'"),
        ("onnx --report no/such/report.md", "the report.* folder"),
        ("onnx --report .", "the report.* file"),
        ("onnx --weights imagenet21k", "`--weights`"),
    ],
)
def test_wrong_request_is_one_line_and_leaves_nothing(run, fake, trained, tmp_path, options, words):
    code, lines, error = run(trained, tmp_path / "new" / "x.onnx", "--format", *options.split())
    assert code == 1
    assert lines in ([], [f"loading {trained} ..."])
    assert_one_line(error, words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--format onnx --precision bfloat16", "`--precision`.*bfloat16"),
        ("--format onnx --max-batch 0", "`--max-batch`"),
        ("--format onnx --max-batch 3", "`--max-batch`.* SavedModel"),
        ("--format litert --opset 17", "`--opset`.* ONNX"),
        ("--format onnx --opset 0", "`--opset`"),
        ("--format onnx --opset 19", "`--opset`.* 13 to 18"),
        ("--format onnx --classes cat,dog", "(text tower|both towers)"),
        ("--format onnx --name a%b", "`name`"),
        ("--format onnx --jit-compile", "`--jit-compile`.* SavedModel"),
        ("--format litert", ".tflite"),
        ("--format onnx", "onnx is missing"),
        ("--format saved_model", "SavedModel.* folder"),
        ("--batch-size 2", "`--batch-size`.*LiteRT"),
        ("--format onnx --batch-size any", "`--batch-size`.*LiteRT"),
    ],
)
def test_wrong_request_is_refused_before_the_model_is_loaded(run, fake, trained, tmp_path, monkeypatch, options, words):
    def missing(precision):
        raise ImportError("onnx is missing")

    def load(*_, **__):
        raise AssertionError("loaded")

    fake.check_packages = missing
    monkeypatch.setattr("keras.models.load_model", load)
    monkeypatch.setattr("keras_vit.builders.build", load)
    (tmp_path / "file").write_text("precious")
    place = tmp_path / ("x.tflite" if "--opset 17" in options else "x.onnx" if options else "file")
    for model in (trained, "B/16"):
        code, lines, error = run(model, place, *options.split())
        assert (code, lines) == (1, [f"loading {model} ..."] if "missing" in words else [])  # Keras must be imported
        assert_one_line(error, words)


def test_what_does_not_fit_the_outputs_of_a_run_is_refused_before_keras_is_imported(run, trained, tmp_path, capfd):
    numbers, few = tmp_path / "run", tmp_path / "few.txt"
    shutil.copytree(trained, numbers)
    stored = {"data": {"class_names": ["age"]}, "task": {"name": "regression"}}
    (numbers / "config.json").write_text(json.dumps(stored))
    few.write_text("ash\nbirch\n")
    for model, options, words in (
        (trained, ("--labels", few), "`--labels`.* 7 names.* 2"),
        (numbers, ("--labels", few), "`--labels`.* 1 names.* 2"),
        (numbers, ("--activation", "sigmoid"), "`--activation`.*regression"),
    ):
        code, lines, error = run(model, tmp_path / "x.onnx", *options)
        assert (code, lines) == (1, [])
        assert_one_line(error, words)
    assert cli.main(["push", str(numbers), "me/mine"]) == 1
    assert "loading" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("given", "near"),
    [("B/61", "'B/16'"), ("vitb/16", "'B/16'"), ("ViT-B16", "'B/16'"), ("X/99", "`keras-vit models`")],
)
def test_unknown_variant_gets_near_names(run, tmp_path, given, near):
    code, _, error = run(given, tmp_path / "x")
    assert code == 1
    assert_one_line(error, f"{near}.* {given}")


def test_labels_that_are_no_text_are_one_line(run, fake, trained, tmp_path):
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    code, _, error = run(trained, tmp_path / "x.onnx", "--format", "onnx", "--labels", tmp_path / "binary.txt")
    assert code == 1
    assert_one_line(error, "`--labels` .*UTF-8.*binary")


def test_file_that_is_not_the_model_is_one_line(run, fake, trained, photos, tmp_path):
    fake.spoil = lambda answers, pixels: {**answers, "logits": np.full_like(answers["logits"], np.nan)}
    code, lines, error = run(trained, tmp_path / "x.onnx", "--format", "onnx", "--images", photos)
    assert (code, lines[0], len(lines), list(tmp_path.iterdir())) == (1, f"loading {trained} ...", 4, [])
    assert_one_line(error, "logits differ by up to nan")


@pytest.mark.parametrize(("name", "words"), [("gone", "nothing is there"), ("", "best.keras")])
def test_model_that_is_not_there_is_one_line(run, tmp_path, name, words):
    code, _, error = run(tmp_path / name, tmp_path / "x")
    assert code == 1
    assert_one_line(error, words)


def test_interruption_is_one_line_and_leaves_nothing(run, fake, trained, tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    fake.fault = interrupt
    code, lines, error = run(trained, tmp_path / "new" / "x.onnx", "--format", "onnx")
    assert (code, lines[0], list(tmp_path.iterdir())) == (130, f"loading {trained} ...", [])
    assert_one_line(error, "interrupted$")


# One process from start to end


def test_process_says_what_it_found_and_nothing_else(trained, photos, tmp_path):
    command = [sys.executable, "-m", "keras_vit", "export", trained, tmp_path / "trees", "--images", photos]
    environment = child_environment(cache_dir())
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    done = subprocess.run([*map(str, command)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [lines[0], lines[4]] == [f"loading {trained} ...", f"exported to {tmp_path / 'trees' / '1'}"]
    assert max(map(len, lines[5:])) < 80
    assert [line.split("  ")[0] for line in lines[-2:]] == ["features of files", "scores of files"]
    assert (tmp_path / "trees" / "1" / "saved_model.pb").is_file()


def test_labels_in_a_pipe_are_one_line(capsys, tmp_path):  # N13
    os.mkfifo(tmp_path / "names.txt")
    labels = ["--labels", str(tmp_path / "names.txt")]
    assert cli.main(["export", "Ti/16", str(tmp_path / "out"), *labels]) == 1
    assert_one_line(capsys.readouterr().err.splitlines(), "`--labels`.* a pipe")
