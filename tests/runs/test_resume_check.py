"""A run that was stopped goes on to the numbers of one that was not, or is refused (RELIABILITY T6, T9-T11)."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT
from run_files import assert_same_run
from stopped_runs import killed_run, run

import keras_vit
from keras_vit.runs import resume_check
from keras_vit.runs.resume_check import UnfinishedRun, resume_fingerprint


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return run(folder / "run")[0]


def test_run_killed_in_its_second_epoch_goes_on_to_the_same_numbers(undisturbed, tmp_path):
    out = tmp_path / "run"
    killed_run(out, step=9)  # the third of the second epoch
    assert json.loads((out / "failure.json").read_text())["status"] == "failed"
    (out / ".keras_vit-abcdefgh.part.keras").touch()  # what a real kill would have left
    (out / ".keras_vit-export-abcdefgh").mkdir()
    with pytest.raises(ValueError, match=r"options\.seed: 0 before, 1 now"):
        run(out, seed=1)
    with pytest.raises(ValueError, match=r"`out`(?s:.*)unfinished run"):
        run(out, resume="never")
    _, said = run(out, resume="must")
    assert any(line.startswith("goes on from step 8, ") for line in said)
    assert_same_run(out, undisturbed.out)


def test_finished_run_is_refused_whatever_is_asked_and_sweeps_what_a_kill_left(undisturbed):
    assert not (undisturbed.out / "checkpoints").exists()
    left = undisturbed.out / "checkpoints" / "step-0000000018-epoch-000003"
    left.mkdir(parents=True)
    for name in ("process-00000.safetensors", "manifest.json"):
        (left / name).touch()
    for resume in ("auto", "never"):
        with pytest.raises(ValueError, match="`out`"):
            run(undisturbed.out, resume=resume)
    assert not (undisturbed.out / "checkpoints").exists()
    with pytest.raises(ValueError, match=r"learning rate falls up to .* another `out`(?s:.*)finished run of 3 epochs"):
        run(undisturbed.out, epochs=4)
    for other, words in (({"epochs": 2}, "--epochs: .* 2 now"), ({"seed": 1, "epochs": 4}, "--seed: 0 before, 1 now")):
        with pytest.raises(
            ValueError, match=rf"finished run, which differs in:(?s:.*){words}(?s:.*)another folder"
        ) as error:
            run(undisturbed.out, **other)
        assert ("make the run longer" in str(error.value)) == (other["epochs"] > 3)
    with pytest.raises(ValueError, match=r'`resume="must"`(?s:.*)finished'):
        run(undisturbed.out, resume="must")


# Of 60 images, batches of 10 make whole epochs, and of 9 epochs of 7 and 6 steps.
@pytest.mark.parametrize(
    ("batch_size", "warmup", "begun"),
    [(10, {"warmup_steps": 0}, 12), pytest.param(9, {}, 13, marks=pytest.mark.nightly)],
)
def test_finished_run_of_a_constant_rate_is_made_longer_also_after_a_kill(tmp_path, batch_size, warmup, begun):
    rate = {"schedule": "linear", "learning_rate": 1e-3, "final_learning_rate": 1e-3}
    warmup = {"warmup_fraction": None} | warmup if warmup else {}  # a share of all steps, by default
    recipe = dataclasses.replace(keras_vit.find_recipe("digits"), **rate, **warmup)
    constant = {"recipe": recipe, "checkpoint_every": None, "batch_size": batch_size}  # with dropout
    run(tmp_path / "run", epochs=2, **constant)
    plan = json.loads((tmp_path / "run" / "config.json").read_text())["plan"]
    killed_run(tmp_path / "run", step=15, **constant)
    assert not (tmp_path / "run" / "result.json").exists()
    _, said = run(tmp_path / "run", **constant)
    assert any(line.startswith(f"goes on from step {begun}, ") for line in said)
    longer = json.loads((tmp_path / "run" / "config.json").read_text())["plan"]
    steps = 180 // batch_size
    assert longer == plan | {"steps": steps, "epochs": 3, "steps_per_epoch": steps - begun}
    if batch_size == 10:
        assert_same_run(tmp_path / "run", run(tmp_path / "undisturbed", **constant)[0].out)


def test_run_without_gain_ends_early_also_after_a_kill(tmp_path):
    options = {"stop_early": 1, "epochs": 9, "learning_rate": 1e-12, "class_weights": {"0": 1, "1": 2.5, "2": 0.5}}
    out = killed_run(tmp_path / "run", step=9, **options)
    with pytest.raises(ValueError, match=r"task\.class_weights|options\.task"):
        run(out, **options | {"class_weights": "balanced"})
    result, _ = run(out, **options)
    values = np.genfromtxt(out / "metrics.csv", delimiter=",", names=True)["val_accuracy"]
    gains = np.maximum.accumulate(values)[1:] > np.maximum.accumulate(values)[:-1]
    assert 2 <= len(values) < 9
    assert gains.tolist() == [True] * (len(values) - 2) + [False]  # of all but the last
    assert result.facts["stopped"] == f"after epoch {len(values)} of 9: no gain of accuracy in 1 epoch"


def test_run_must_have_something_to_go_on_from(tmp_path):
    with pytest.raises(ValueError, match='`resume="must"`'):
        run(tmp_path / "run", resume="must")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("value", "differs"), [(None, False), (3, True)])
def test_option_that_a_run_was_begun_without_is_a_difference_unless_it_has_its_default(value, differs):
    begun = {"arguments": {"seed": 0}, "versions": {}, "data": {}}
    now = {**begun, "arguments": {"seed": 0, "stop_early": value}}
    before, after = resume_fingerprint(begun), resume_fingerprint(now, UnfinishedRun(begun))
    assert (before != after) == differs


def test_best_model_of_an_epoch_that_does_not_come_again_is_a_fault(monkeypatch):
    monkeypatch.setattr(resume_check, "archive_fault", lambda file: None)
    monkeypatch.setattr(resume_check, "read_stamp", lambda file: ("mark", 2))
    state = {"best_epoch": 1, "mark": "mark"}
    assert [bool(resume_check._fault_of_best(ROOT, state, now)) for now in (1, 2, 3)] == [False, True, True]


def command(out, *options):
    small = "--data digits --batch-size 128 --epochs 4 --checkpoint-every 3 --ema 0.9"
    return [sys.executable, "-m", "keras_vit", "finetune", *small.split(), "--out", str(out), *options]


def started(out):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(out), cwd=ROOT, env=environment, **streams)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_command_that_was_stopped_and_given_again_ends_as_if_it_had_not(tmp_path, stop):
    """Killed at a random time of its training, or asked to leave, which it does with a checkpoint."""
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "run"
    with started(undisturbed) as process:
        _, error = process.communicate(timeout=600)
    assert process.returncode == 0, error
    with started(out) as process:
        assert any(line.startswith("epoch 2/") for line in process.stdout)
        time.sleep(np.random.default_rng(int(stop)).uniform(0, 0.5))
        process.send_signal(stop)
        _, error = process.communicate(timeout=300)
    assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[stop], error
    with started(out) as process:
        output, error = process.communicate(timeout=600)
    assert process.returncode == 0, error
    assert "goes on from step " in output
    assert_same_run(out, undisturbed)
