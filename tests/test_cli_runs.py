"""`keras-vit finetune` given again, without a folder, or without anything; and what the model of a run knows."""

import json
import os
import shutil

import keras
import pytest
from conftest import assert_one_line
from photos import CLASSES
from run_files import tree

import keras_vit
from keras_vit import cli
from keras_vit.cli.training import _new_run
from keras_vit.runs.options import FinetuneOptions


@pytest.fixture
def begun_by_command(finished, tmp_path):
    """A finished run, as if it were of `keras-vit finetune --data photos --epochs 1`."""
    out = tmp_path / "run"
    shutil.copytree(finished.out, out)
    config = json.loads((out / "config.json").read_text())
    options = FinetuneOptions(epochs=1, precision="float32", image_size=(20, 24)).facts()
    config["arguments"] = {"data": os.path.abspath("photos"), "out": str(out), **options}
    (out / "config.json").write_text(json.dumps(config, indent=2))
    return out


def test_same_command_on_a_finished_run_says_its_result_and_changes_nothing(run, begun_by_command, monkeypatch):
    out, before = begun_by_command, tree(begun_by_command)
    same = ("finetune", "--data", "photos", "--epochs", 1, "--image-size", "20x24", "--out", out)
    result = json.loads((out / "result.json").read_text())
    monkeypatch.setenv("HOME", os.getcwd())
    for options in ((), ("--precision", "float32"), ("--resume", "must"), ("--data", "~/photos")):
        code, lines, error = run(*same, *options)
        assert (code, error) == (0, [])
        assert lines[0] == f"{out} has finished before, and nothing was changed"
        assert lines[3].split() == f"test accuracy {result['test_accuracy']:.4f} on 3 images, epoch 1".split()
        assert any(line.split() == ["report", str(out / "report.html")] for line in lines)
    for options, words in (
        (("--seed", 1), "--seed: 0 before, 1 now"),
        (("--data", "digits"), "--data: .*photos before, digits now"),
        (("--image-size", "24x20", "--batch-size", 8), r"--batch-size: its default before, 8 now; --image-size: \["),
        (("--resume", "never"), ""),
    ):
        code, _, error = run(*same, *options)
        assert code == 1
        assert_one_line(error, f"`--out`.*a finished run.*{words}")
    assert tree(out) == before


def test_finished_run_says_its_result_for_data_that_moved_as_a_whole(run, begun_by_command, few_photos, tmp_path):
    before, config = tree(begun_by_command), json.loads((begun_by_command / "config.json").read_text())
    moved = shutil.copytree(few_photos, tmp_path / "moved")
    same = ("finetune", "--data", moved, "--epochs", 1, "--image-size", "20x24", "--out", begun_by_command)
    assert config["arguments"]["data"] != str(moved)
    code, lines, error = run(*same)
    assert (code, error, lines[3].split()[:2]) == (0, [], ["test", "accuracy"])
    next(file for file in moved.rglob("*") if file.is_file()).unlink()
    assert_one_line(run(*same)[2], f"`--out`.*--data: {config['arguments']['data']} before, {moved} now, with other")
    assert tree(begun_by_command) == before


@pytest.mark.parametrize("damage", ["[]", '{\n  "test_accuracy": "x"}', '{\n  "test_accuracy": 1'])
def test_finished_run_whose_result_is_damaged_is_refused(run, begun_by_command, damage):
    (begun_by_command / "result.json").write_text(damage)
    same = ("--data", "photos", "--epochs", 1, "--image-size", "20x24", "--out", begun_by_command)
    assert_one_line(run("finetune", *same)[2], "`--out`")


def test_runs_of_one_second_have_folders_of_their_own_and_leave_none_that_is_empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with _new_run("photos/cats", "B/16") as first, _new_run("photos/cats", "B/16") as second:
        assert first != second
        assert first.is_dir()
        (second / "config.json").touch()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [second.name]
    (second / "config.json").unlink()
    second.rmdir()
    second.parent.rmdir()
    with pytest.raises(ZeroDivisionError), _new_run("photos", "small"):
        1 / 0  # noqa: B018  # as a run that is refused
    assert not list(tmp_path.iterdir())


def test_finetune_without_arguments_prints_its_usage(capsys):
    for arguments in (["finetune"], ["finetune", "--debug"]):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith("usage: keras-vit finetune")
        assert "--data digits" in said.splitlines()[-1]


def test_processes_that_train_together_must_be_told_the_folder(run, monkeypatch):
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", "2")
    assert_one_line(run("finetune", "--layout", "fsdp")[2], "`--out`.*NUM_PROCESSES=2")
    monkeypatch.setattr("keras_vit.runs.finetune.finetune", lambda data, out, options: None)
    assert run("finetune", "--layout", "fsdp", "--out", "run") == (0, [], [])  # before they meet none knows its number


def test_model_of_a_run_knows_its_classes_wherever_it_lies(run, finished, few_photos, tmp_path):
    out, folder = finished.out, few_photos
    shutil.copy(out / "best.keras", tmp_path / "mine.keras")
    model = keras.models.load_model(tmp_path / "mine.keras")
    assert model.class_names == keras_vit.with_input_shape(model, (40, 48, 3)).class_names == CLASSES
    code, lines, _ = run("predict", folder / "disc" / "0.jpg", "--model", tmp_path / "mine.keras", "--json")
    assert code == 0
    named = {item["class"] for item in json.loads("\n".join(lines))[0]["predictions"]}
    assert named == set(CLASSES)
