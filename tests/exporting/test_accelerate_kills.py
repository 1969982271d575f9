"""Processes that call `keras_vit.accelerate` at once, some of which are killed at random moments: all answers right."""

import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT, images, make_tiny, numpy
from pictures import picture

import keras_vit
from keras_vit.cache import cache_dir

pytestmark = pytest.mark.slow

CODE = "from exporting.test_accelerate_kills import calls; print('ready', flush=True); calls()"
ROUNDS = 5


def calls():
    """Three calls for each of two models."""
    model, x = make_tiny(num_layers=1), images(2, 20, 28, 3)
    for turn in range(6):
        model.layers[-1].bias.assign(np.full(7, turn % 2))
        engine = keras_vit.accelerate(model, "openvino", images=[picture(33, 47)])
        assert np.abs(engine(x) - numpy(model(x, training=False))).max() < 1e-5


def child():
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-c", CODE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_killed_and_concurrent_processes_leave_right_answers():
    moments = random.Random(7)
    for _ in range(ROUNDS):
        with child() as killed, child() as other:
            assert killed.stdout.readline() == other.stdout.readline() == "ready\n"
            time.sleep(moments.uniform(0.1, 4))
            killed.kill()
            _, error = other.communicate(timeout=280)
            assert other.returncode == 0, error[-2000:]
    calls()
    names = sorted(path.name for path in cache_dir("engines").iterdir())
    assert len(names) == 4, names  # two networks and two reports, and nothing of those that were killed
