"""`keras-vit finetune|evaluate|predict|recipes`: what they print, and what they say of a bad file (rows B7, B8, C1)."""

import csv
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from conftest import ROOT, assert_one_line
from fault_server import child_environment

from keras_vit import cli
from keras_vit.cli.training import _new_run
from keras_vit.config.recipes import RECIPES
from keras_vit.runs.options import FLAGS, FinetuneOptions
from keras_vit.tasks import TASKS
from keras_vit.weights.download import cache_dir


@pytest.fixture
def trained(finished, few_photos):
    return finished.out, few_photos


def test_runs_without_a_name_that_start_at_once_have_one_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = threading.Barrier(8)

    def begin(number):
        start.wait(20)
        with _new_run("digits", "small") as folder:
            (folder / f"{number}.txt").touch()

    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(begin, range(8)))
    assert [len(list(folder.iterdir())) for folder in (tmp_path / "runs").iterdir()] == [1] * 24


# Every recipe, and one of them


def test_recipes_are_listed_and_one_is_told_with_its_sources(run, monkeypatch):
    code, lines, error = run("recipes")
    assert (code, error) == (0, [])
    assert [line.split()[0] for line in lines] == list(RECIPES)
    monkeypatch.setattr("keras_vit.cli.training.terminal_width", lambda: 80)
    _, narrow, _ = run("recipes")
    assert max(map(len, narrow)) < 80 < max(map(len, lines))
    assert " ".join(narrow).split() == " ".join(lines).split()
    code, output, _ = run("recipes", "digits")
    assert "\n".join(output) == str(RECIPES["digits"])


def test_unknown_recipe_is_one_line(run):
    code, _, error = run("recipes", "digit")
    assert code == 1
    assert_one_line(error, "'digit'.*digits")


# Finetune: its options are those of the record


def test_every_option_of_a_run_is_a_flag_with_the_same_default(monkeypatch):
    """What is given, and nothing else, differs from the record's defaults when it comes to `finetune`."""
    given, values = {}, {"int": "3", "float": "0.5", "parse_sides": "64x96"}
    words = {"model": "B/16", "recipe": "digits", "augmentation": "flip", "trainable": "head"}
    words |= {"weights": "x.npz", "layout": "fsdp", "task": [*TASKS][-1]}
    monkeypatch.setattr("keras_vit.runs.finetune.finetune", lambda data, out, options: given.update(vars(options)))
    assert cli.main(["finetune", "--out", "run"]) == 0
    assert given == {option.name: option.default for option in dataclasses.fields(FinetuneOptions)}
    for option in dataclasses.fields(FinetuneOptions):
        if option.name == "task" and len(TASKS) == 1:
            continue
        parser = option.metadata["parser"]
        value = parser.get("choices", [words.get(option.name)])[-1] or values[parser["type"].__name__]
        assert cli.main(["finetune", "--out", "run", FLAGS[option.name], value]) == 0
        assert given.pop(option.name) == parser.get("type", str)(value) != option.default, option.name
        others = [other for other in dataclasses.fields(FinetuneOptions) if other is not option]
        assert given == {other.name: other.default for other in others}


# Finetune: one process from start to end


def test_finetune_trains_and_says_so_and_keeps_the_error_stream_for_errors(tmp_path):
    options = "--data digits --train-images 192 --epochs 1 --batch-size 64 --trainable last_blocks:1 --ema 0.5"
    command = [sys.executable, "-m", "keras_vit", "finetune", *options.split(), "--out", str(tmp_path / "run")]
    environment = child_environment(cache_dir())
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "loading TensorFlow ..."
    assert lines[1] == f"Fine-tuning into {tmp_path / 'run'}"
    assert lines[2] == "data      digits: 10 classes; train 192, validation 179, test 179 images"
    (row,) = (number for number, line in enumerate(lines) if line.startswith("epoch 1/1  "))
    assert lines[row - 1].split() == ["loss", "accuracy", "val_loss", "val_accuracy", "images/s", "left"]
    assert len(lines[row - 1]) >= len(lines[row])
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    (measured,) = (line for line in lines if line.startswith("  test accuracy "))
    assert measured.split()[2:] == f"{result['test_accuracy']:.4f} on 179 images, epoch 1".split()
    assert lines[-1] == f"  keras-vit predict PHOTO --model {tmp_path / 'run'}"
    assert all(len(line) < 80 or str(tmp_path) in line for line in lines)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["command"][1:3] == ["finetune", "--data"]


def assert_stopped(run, code, expected, lines, error_lines):
    assert code == expected
    assert_one_line(error_lines, "(interrupted|terminated)$")
    assert any("stopped; " in line for line in lines)
    assert any(line.startswith("the same command goes on") and str(run) in line for line in lines)
    assert {"last.keras", "best.keras", "failure.json"} <= {path.name for path in run.iterdir()}


@pytest.mark.slow
def test_ctrl_c_is_one_line_and_keeps_the_last_model(tmp_path):  # C1; `test_cli_process` has signals to processes
    command = [sys.executable, "-m", "keras_vit", "finetune", "--batch-size", "256", "--out", str(tmp_path / "run")]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=child_environment(cache_dir()), **streams) as process:
        try:
            assert any(line.startswith("epoch  1/") for line in process.stdout)
            process.send_signal(signal.SIGINT)
            output, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert_stopped(tmp_path / "run", process.returncode, 130, output.splitlines(), error.splitlines())


class Signalling:
    """An output that sends this process a signal once a line begins so."""

    def __init__(self, stream, signal_sent, beginning):
        self.stream, self.signal_sent, self.beginning = stream, signal_sent, beginning

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text):
        self.stream.write(text)
        if text.startswith(self.beginning):
            self.beginning = "no second time"
            os.kill(os.getpid(), self.signal_sent)


@pytest.mark.parametrize(
    ("signal_sent", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.nightly)]
)
def test_signal_to_this_process_is_one_line_and_keeps_the_last_model(run, tmp_path, monkeypatch, signal_sent, code):
    """As in a process of its own, but for the start of TensorFlow (C1)."""
    monkeypatch.setattr(sys, "stdout", Signalling(sys.stdout, signal_sent, "epoch  1/"))
    few = ("--batch-size", 50, "--train-images", 100)
    found, lines, error = run("finetune", *few, "--out", tmp_path / "run")
    assert_stopped(tmp_path / "run", found, code, lines, error)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--data no/such/place/here", "no/such/place/here"),
        ("--recipe digit", "digits"),
        ("--batch-size 0", "--batch-size"),
        ("--batch-size 30 --accumulate 4", "--accumulate"),
        ("--model B/17", "B/16"),
        ("--trainable tail", "--trainable"),
        ("--trainable head --layer-decay .75", "`--layer-decay`.*--trainable 'head', --layer-decay 0.75"),
        ("--image-size 384x500 --model B/16", "--image-size .384, 500.,.* .384, 496."),
        ("--image-size 225 --model B/16", "`--image-size`.* --image-size 225,.* 224"),
        ("--recipe foo", "`--recipe`.*'foo'.* 'paper-"),
        (f"--data {ROOT / 'setup.cfg'}", "folder.*setup.cfg.*, a file"),
        ("--data photo.jpg", "folder.*photo.jpg"),
        ("--weights last.keras", "`--weights`.*`keras-vit evaluate`, `predict` and `export`"),
        (f"--model {ROOT}", "`--model`.*load_model.*`keras-vit evaluate`, `predict` and `export`"),
    ],
)
def test_wrong_request_is_one_line_and_leaves_no_folder(run, tmp_path, options, words):
    code, _, error = run("finetune", *options.split(), "--out", tmp_path / "run")
    assert code == 1
    assert_one_line(error, words)
    assert not (tmp_path / "run").exists()


def test_size_of_another_spelling_is_wrong_usage(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["finetune", "--image-size", "384y", "--out", str(tmp_path / "run")])
    assert "'384y'" in capsys.readouterr().err


def test_missing_weights_are_the_error_of_fetching(run, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    code, _, error = run("finetune", "--model", "Ti/16", "--out", tmp_path / "run")
    assert code == 1
    assert "offline" in error[0].lower()
    assert not (tmp_path / "run").exists()


# Evaluate


def test_evaluate_finds_what_the_run_found(run, trained):
    code, lines, error = run("evaluate", trained[0], "--json")
    assert (code, error) == (0, [])
    told, expected = json.loads("\n".join(lines)), json.loads((trained[0] / "result.json").read_text())
    assert told["accuracy"] == expected["test_accuracy"]
    assert told["count"] == expected["test_images"] == 3
    _, lines, _ = run("evaluate", trained[0] / "best.keras", "--data", trained[1], "--split", "train")
    assert re.match(r"secret place has no.* Seed 0 .* 24 of 30 images.*--split train\+validation\+test", lines[1])
    assert re.match(r"train accuracy \d\.\d{4} on 24 images of secret place", lines[2])
    assert [line.split()[:2] for line in lines[-3:]] == [["disc", "8"], ["stripes", "8"], ["tiles", "8"]]


def test_evaluate_of_all_photos_or_of_the_runs_own_split_says_nothing_of_a_division(run, trained):
    code, lines, _ = run("evaluate", trained[0], "--data", trained[1], "--split", "train+validation+test")
    assert code == 0
    assert re.match(r"train\+validation\+test accuracy \d\.\d{4} on 30 images of secret place", lines[1])
    assert re.match(r"test accuracy \d\.\d{4} on 3 images of secret place", run("evaluate", trained[0])[1][1])


def test_evaluate_measures_all_of_a_folder_without_splits_that_is_not_the_runs(run, trained, tmp_path):
    others = shutil.copytree(trained[1], tmp_path / "others")
    _, lines, _ = run("evaluate", trained[0], "--data", others)  # the run's data, in another place
    assert re.match(r"test accuracy \d\.\d{4} on 3 images of others", lines[2])
    (others / "disc" / "0.jpg").unlink()
    _, lines, _ = run("evaluate", trained[0], "--data", others)
    assert lines[1] == "others has no splits, so all 29 images are measured"
    assert re.match(r"overall accuracy \d\.\d{4} on 29 images of others", lines[2])
    _, lines, _ = run("evaluate", trained[0], "--data", others, "--split", "test", "--json")
    assert json.loads("\n".join(lines))["count"] == 3


def test_evaluate_divides_the_images_as_the_run_did(run, trained, tmp_path, monkeypatch):
    """By the seed in its `config.json`, unless another is asked for."""
    folder = tmp_path / "run"
    folder.mkdir()
    config = json.loads((trained[0] / "config.json").read_text())
    config["seed"] = 5
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(trained[0] / "best.keras", folder)
    asked = []

    def opened(data, **arguments):
        asked.append(arguments["seed"])
        raise ValueError("enough.")

    monkeypatch.setattr("keras_vit.api.open_source", opened)
    for given in ((), ("--seed", 9)):
        assert run("evaluate", folder, *given)[0] == 1
    assert asked == [5, 9]


def test_misspelt_split_is_told_before_anything_is_loaded(run, tmp_path):
    code, lines, error = run("evaluate", tmp_path / "nowhere", "--split", "tset")
    assert (code, lines) == (1, [])
    assert_one_line(error, "`--split`.*'train', 'validation', 'test'.* 'tset'.*'test'")


def test_evaluate_on_other_classes_is_one_line(run, trained):
    code, _, error = run("evaluate", trained[0], "--data", "digits")
    assert code == 1
    assert_one_line(error, "10 classes.*with 3")


@pytest.mark.parametrize("name", ["model.h5", "model.weights.h5", "model.npz"])
def test_files_that_can_run_programs_are_refused(run, tmp_path, name):  # N12
    (tmp_path / name).write_bytes(b"\x89HDF\r\n\x1a\n")
    code, _, error = run("evaluate", tmp_path / name, "--data", "digits")
    assert code == 1
    assert_one_line(error, "(stranger's program|HDF5 file)")


def test_keras_file_with_python_code_is_refused(run, tmp_path):  # N12
    model = keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x * 2)])
    model.save(tmp_path / "lambda.keras")
    code, _, error = run("evaluate", tmp_path / "lambda.keras", "--data", "digits")
    assert code == 1
    assert_one_line(error, "[Ll]ambda|unsafe")


# Predict


def test_predict_names_the_classes_of_the_run_and_their_probabilities_sum_to_one(run, trained):
    out, folder = trained
    image = folder / "disc" / "0.jpg"
    code, lines, error = run("predict", image, image, "--model", out, "--top", "3", "--json")
    assert (code, error) == (0, [])
    first, second = json.loads("\n".join(lines))
    assert first == second
    assert {item["class"] for item in first["predictions"]} == {"disc", "stripes", "tiles"}
    chances = [item["probability"] for item in first["predictions"]]
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) == pytest.approx(1, abs=1e-6)


def test_many_photos_are_answered_by_a_graph_as_few_are_without_one(run, trained):
    """Other kernels there, whose sums have another order: some 1e-7."""
    out, folder = trained
    images = [folder / "disc" / f"{number}.jpg" for number in range(3)]
    few, many = (
        json.loads("\n".join(run("predict", *given, "--model", out, "--json")[1])) for given in (images, images * 2)
    )
    assert many[:3] == many[3:]
    for one, other in zip(few, many, strict=False):
        assert [best["class"] for best in one["predictions"]] == [best["class"] for best in other["predictions"]]
        chances = ([best["probability"] for best in answer["predictions"]] for answer in (one, other))
        np.testing.assert_allclose(*chances, atol=1e-5)


def test_bad_image_is_named_and_the_others_are_answered(run, trained, tmp_path, monkeypatch):  # B7
    out, folder = trained
    monkeypatch.setattr("keras_vit.images.pillow_formats.missing_package", {"HEIC": "pillow-heif"}.get)
    (tmp_path / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0heicmif1")
    (tmp_path / "note.jpg").write_text("no picture")
    good = folder / "tiles" / "3.jpg"
    data = good.read_bytes()
    (tmp_path / "bad.jpg").write_bytes(data[:2] + b"\xff\xdb\0\x03\0" + data[2:])  # of which libjpeg has a line to say
    bad = [tmp_path / name for name in ("note.jpg", "bad.jpg", "gone.png", "phone.heic")]
    code, lines, error = run("predict", *bad, good, "--model", out)
    assert code == 1
    assert lines[:2] == [f"loading {out} ...", str(good)]
    assert len(lines) == 5  # with three classes
    assert_one_line(
        error, r"note\.jpg: not an image: text.*bad\.jpg: damaged.*gone\.png: no such file.*needs pillow-heif"
    )


def test_table_of_a_folder_has_a_row_for_each_photo_and_is_never_overwritten_in_silence(run, trained, tmp_path):
    out, folder = trained
    photos = shutil.copytree(folder, tmp_path / "photos")
    bad = photos / "disc" / "0.jpg"
    bad.write_bytes(bad.read_bytes()[:200])
    table = tmp_path / "predictions.csv"
    given = ("predict", photos, "--model", out, "--out", table, "--batch-size", 8, "--top", 2)
    code, lines, error = run(*given)
    assert (code, lines[-1]) == (0, f"wrote {table}: 30 photos")
    assert error == ["keras-vit: warning: 1 photo could not be read: the column status says why"]
    with table.open(newline="") as file:
        rows = {row.pop("path"): row for row in csv.DictReader(file)}
    assert list(rows) == sorted(map(str, photos.rglob("*.jpg")))
    assert list(rows[str(bad)]) == ["status", "label", "probability", "label_2", "probability_2"]
    assert rows.pop(str(bad)) == dict.fromkeys(("label", "probability", "label_2", "probability_2"), "") | {
        "status": "truncated JPEG"
    }
    assert {row["status"] for row in rows.values()} == {"ok"}
    alone = photos / "tiles" / "3.jpg"
    (answer,) = json.loads("\n".join(run("predict", alone, "--model", out, "--json")[1]))
    best, second = answer["predictions"][:2]
    assert [rows[str(alone)][name] for name in ("label", "label_2")] == [best["class"], second["class"]]
    assert float(rows[str(alone)]["probability"]) == pytest.approx(best["probability"], abs=1e-5)
    before = table.read_bytes()
    assert_one_line(run(*given)[2], "`--out` must be a new file.*--overwrite")
    assert table.read_bytes() == before
    code, lines, _ = run(*given, "--overwrite", "--json")
    assert (code, json.loads("\n".join(lines))["unread"], table.read_bytes()) == (0, 1, before)


def test_model_that_is_not_there_is_one_line(run, tmp_path):
    code, _, error = run("predict", "x.jpg", "--model", tmp_path / "nowhere")
    assert code == 1
    assert_one_line(error, "nothing is there")


def test_misspelt_variant_is_told_the_nearest_where_one_is_taken(run):
    for command in ("predict x.jpg --model B-16", "evaluate B-16 --data digits"):
        assert_one_line(run(*command.split())[2], "'B/16'.* B-16")


def test_weights_that_are_a_whole_model_are_told_what_takes_them(run, trained):
    for weights in (trained[0], trained[0] / "best.keras"):
        code, _, error = run("predict", "x.jpg", "--model", "B/16", "--weights", weights)
        assert code == 1
        assert_one_line(error, "`--weights`.*--weights .*`predict`")
