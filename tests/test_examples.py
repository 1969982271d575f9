"""The examples run as a user runs them; their last line is one JSON object."""

import json
import os
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import time

import pytest
from conftest import ROOT

import keras_vit
from keras_vit.runs.preparation import SMALL_MODELS


def run_example(name, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, ROOT / "examples" / name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def run_here(monkeypatch, capsys):
    """Runs an example in this process, as `python` does."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for processes that it starts
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        printed = capsys.readouterr().out
        return printed, json.loads(printed.splitlines()[-1])

    return run


@pytest.mark.docs
def test_transfer_digits_runs_and_reloads_what_it_saved(run_here):
    arguments = ("--pretrain-epochs", 1, "--pretrain-copies", 1, "--finetune-epochs", 1, "--finetune-copies", 4)
    arguments += ("--layers", 2)
    printed, result = run_here("transfer_digits.py", *arguments)
    assert "position embedding resized from (4, 4) to (8, 8)" in printed
    assert len(re.findall(r"(?m)^(?:pre-training|fine-tuning|from scratch) .* epoch 1/1 .* left in all$", printed)) == 3
    assert max(map(len, printed.splitlines()[:-1])) < 80  # all but the JSON
    assert "\r" not in printed
    assert f"  accuracy     {result['transfer_accuracy']:.4f} on 596 test images" in printed
    assert set(result) == {"transfer_accuracy", "scratch_accuracy", "reload_difference", "seconds"}
    assert result["reload_difference"] < 1e-5  # the process that reloads it compiles by XLA, and this one does not
    assert result["transfer_accuracy"] > 0.3  # of five classes, after 75 steps: six deviations above chance


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_transfer_digits_profits_from_the_pretraining():
    results = [run_example("transfer_digits.py", "--seed", seed)[1] for seed in range(5)]
    gains = [result["transfer_accuracy"] - result["scratch_accuracy"] for result in results]
    assert statistics.mean(result["transfer_accuracy"] for result in results) >= 0.95
    assert statistics.mean(gains) >= 0.02
    assert min(gains) >= 0.01


@pytest.mark.docs
def test_less_work_measures_each_training_once(run_here, tmp_path):
    arguments = ("--out", tmp_path, "--size", 8, "--start", 4, "--epochs", 2, "--seeds", 0, "--only", "both")
    printed, result = run_here("less_work.py", *arguments)
    assert set(result) == {"both"}
    assert 0 <= result["both"]["accuracies"][0] <= 1
    assert result["both"]["seconds"][0] > 0
    config = SMALL_MODELS["tiny"].config  # 4 patches, of which 2 stay, and before that 1, which stays
    kept = [keras_vit.flops(config, (4, 4 * patches), channels=1, classes=10) for patches in (1, 2)]
    every = keras_vit.flops(config, 8, channels=1, classes=10)
    computed = kept[0].total + kept[1].total - kept[1].embedding + every.embedding
    assert result["both"]["flops"] == pytest.approx(computed / (2 * every.total))
    assert run_here("less_work.py", *arguments) == (printed, result)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_look_inside_draws_every_figure_and_finds_what_counts(tmp_path):
    printed, result = run_example("look_inside.py", "--out", tmp_path)
    drawn = (tmp_path / "whole" / "look_page.png").is_file()
    assert drawn == (shutil.which("chromium") is not None) == ("No Chromium" not in printed)
    for kind in ("digits", "photos"):
        assert len(list((tmp_path / kind).glob("*.png"))) == 9
        assert all(half > 0 for _, half in (result[kind][removed] for removed in ("most", "random", "least")))
    for difference in ("most - random", "most - least"):  # of the crops they are not apart on every processor
        mean, half = result["digits"][difference]
        assert mean > half


@pytest.mark.slow
def test_masked_patches_runs_in_small():
    arguments = ("--epochs", 3, "--labels", 20, "--steps", 10, "--rates", 0.001, "--target", "pixels")
    result = run_example("masked_patches.py", *arguments)[1]
    before, after = result["pretraining"]["loss"]
    assert after < 0.5 * before
    assert set(result["20"]) == {"pretrained", "scratch"}


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_masked_patches_makes_few_labels_worth_more():
    result = run_example("masked_patches.py")[1]
    for labels in ("50", "200"):
        assert result[labels]["pretrained"] > result[labels]["scratch"] + 0.05


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_paper_on_digits_writes_tables_and_pictures_and_shows_what_is_plain(tmp_path):
    studies = ("data size", "masked patches")
    result = run_example("paper_on_digits.py", "--out", tmp_path / "studies", "--seeds", 2, "--only", *studies)[1]
    names = {"data_size.png", "masked_patches.png", "results.json", "studies.csv", "tables.md"}
    assert {path.name for path in (tmp_path / "studies").iterdir()} == names
    found = result["data size"]
    assert min(found["ResNet | 50"]) > max(found["ViT | 50"])  # an image model's bias counts where images are few
    assert min(found["ViT | 1257"]) > max(found["ViT | 50"])
    assert min(result["masked patches"]["pre-trained"]) > max(result["masked patches"]["from scratch"])
    rows = [line for line in (tmp_path / "studies" / "tables.md").read_text().splitlines() if "|" in line]
    assert len(rows) == 2 * 2 + 12 + 2


@pytest.mark.slow
def test_two_processes_over_loopback_train_as_one():
    pytest.importorskip("jax")
    result = run_example("train_two_hosts.py")[1]
    assert result["difference"] < 1e-6
    assert result["part"] == [result["whole"][0], result["whole"][1] // 4]  # of 4 devices


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_search_by_two_processes_goes_on_with_the_trial_of_a_killed_one(tmp_path):
    pytest.importorskip("optuna")
    said = ("--data", "digits", "--out", tmp_path, "--trials", 4, "--epochs", 3, "--train-images", 200)
    command = [sys.executable, ROOT / "examples" / "search_rates.py", *map(str, said)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    killed, other = (subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for _ in range(2))
    while not list(tmp_path.glob("trial-0001/checkpoints/step-*")):
        time.sleep(0.1)
    killed.kill()
    killed.wait()
    assert other.wait() == 0
    (line,) = subprocess.check_output(command, env=environment, text=True).splitlines()  # all trials are made
    best = json.loads(line)
    assert best["complete"] + best["pruned"] == 4
    runs = [json.loads(path.read_text()) for path in tmp_path.glob("trial-*/result.json")]
    assert len(runs) == 4
    assert best["validation_accuracy"] == max(run["best_validation_accuracy"] for run in runs if "stopped" not in run)
