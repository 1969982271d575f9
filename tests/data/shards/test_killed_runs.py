"""A run on tars that is killed three times within an epoch, and goes on with other processes, is that on the folder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from photos import make_photos
from run_files import figures, weights_of

from keras_vit.data.shards.packing import pack

pytest.importorskip("jax")
STEPS = 40
TWO_DEVICES = "--xla_force_host_platform_device_count=2"


def started(data, out, processes):
    """Two devices share every batch: of one process, or of two that have one each."""
    words = f"finetune --data {data} --model small --image-size 32 --batch-size 8 --steps {STEPS}".split()
    words += ["--checkpoint-every", "2", "--layout", "replicated", "--out", str(out)]
    launcher = ["launch", "--processes", "2"] if processes == 2 else []
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "jax"}
    environment["XLA_FLAGS"] = "" if processes == 2 else TWO_DEVICES
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(
        [sys.executable, "-m", "keras_vit", *launcher, *words], cwd=ROOT, env=environment, **streams
    )


def newest(out):
    return max((path.name for path in (out / "checkpoints").glob("step-*") if path.is_dir()), default="")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_run_on_tars_killed_three_times_in_an_epoch_is_that_on_the_folder(tmp_path):
    photos = make_photos(tmp_path / "photos", 100)  # 240 to train on, 30 steps an epoch
    pack(photos, tmp_path / "shards", shard_bytes=100_000)
    whole, out = tmp_path / "whole", tmp_path / "run"
    process = started(photos, whole, 1)
    said, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, said[-3000:]
    for kill, processes in enumerate((1, 2, 1)):
        before, process = newest(out), started(tmp_path / "shards", out, processes)
        while newest(out) <= before and process.poll() is None:
            time.sleep(0.02)
        children = (
            Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split() if processes == 2 else []
        )
        os.kill(int(children[-1]) if children else process.pid, signal.SIGKILL)
        said, _ = process.communicate(timeout=300)
        assert process.returncode != 0
        assert ("goes on from step" in said) == (kill > 0), said[-3000:]
        assert newest(out) < f"step-{30:010}"
    process = started(tmp_path / "shards", out, 2)
    said, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, said[-3000:]
    assert "goes on from step" in said
    assert figures(out) == figures(whole)
    for name in ("best.keras", "last.keras"):
        assert weights_of(out / name) == weights_of(whole / name)
