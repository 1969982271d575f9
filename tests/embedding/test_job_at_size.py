"""20,000 photos by two processes: as cheap as a script by hand, in 1 GiB, and with every row whoever was killed."""

import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from conftest import ROOT
from killed_jobs import kill_and_go_on, parts_of, start
from PIL import Image

import keras_vit
from keras_vit.embedding.part_files import read_vectors
from keras_vit.exporting.engines.accelerate import write_engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
COUNT, ORIGINALS, KILLS = 20_000, 1_000, 10
PLAIN = Path(__file__).with_name("plain_script.py")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """JPEGs of 320 x 256 with some noise, 20 names each."""
    folder = tmp_path_factory.mktemp("size") / "photos"
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        place = folder / f"{number % 50}" / f"{number:05d}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        if number < ORIGINALS:
            coarse = Image.fromarray(rng.integers(0, 256, (16, 20, 3), dtype="uint8")).resize((320, 256), Image.BICUBIC)
            pixels = np.asarray(coarse).astype("int16") + rng.integers(-14, 15, (256, 320, 1), dtype="int16")
            Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(place, quality=85)
        else:
            original = number % ORIGINALS
            os.link(folder / f"{original % 50}" / f"{original:05d}.jpg", place)
    return folder


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    path = tmp_path_factory.mktemp("engine") / "engine.onnx"
    write_engine(keras_vit.ViTTi16(weights=None, classes=10, input_shape=(64, 64, 3)), path)
    return path


def measured(processes):
    """Processor seconds of processes that were started, and the peak of their memory in bytes (PSS)."""
    before, peak = resource.getrusage(resource.RUSAGE_CHILDREN), 0
    while any(process.poll() is None for process in processes):
        peak = max(peak, sum(map(memory, processes)))
        time.sleep(0.5)
    assert all(process.wait() == 0 for process in processes)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peak


def memory(process):
    found = 0
    try:
        for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
            found += one.memory_full_info().pss
    except psutil.Error:  # which has just ended
        pass
    return found


def test_a_job_is_cheap_and_small_and_killed_ten_times_it_has_the_same_bytes(photos, engine, tmp_path):
    command = ("embed", photos, "--model", engine, "--processes", 2)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    (tmp_path / "plain").mkdir()
    by_hand = [sys.executable, PLAIN, photos, engine, tmp_path / "plain"]
    plain, _ = measured([subprocess.Popen([*by_hand, str(number), "2"], env=environment) for number in range(2)])
    with start(*command, "--out", tmp_path / "vectors") as process:
        ours, peak = measured([process])
        print(process.stdout.read())
    print(f"by hand {plain:.1f} s of processor time, by the job {ours:.1f}, {peak / 2**30:.2f} GiB")
    assert plain / ours > 0.9
    assert peak < 2**30
    parts = list(read_vectors(tmp_path / "vectors"))
    names = [name for part in parts for name in part.photos]
    assert len(names) == len(set(names)) == COUNT
    chance = random.Random(0)
    victims = [chance.choice(("worker", "job")) for _ in range(KILLS)]
    kill_and_go_on(command, tmp_path / "killed", victims, chance)
    assert parts_of(tmp_path / "killed") == parts_of(tmp_path / "vectors")
