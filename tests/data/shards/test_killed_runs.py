"""A run on tars that is killed three times within an epoch, and goes on with other processes, is that on the folder."""

import time

import pytest
from photos import make_photos
from run_files import figures, finished, newest, outputs_of, start_processes, weights_of

from keras_vit.data.shards.packing import pack

pytest.importorskip("jax")
STEPS = 40
TWO_DEVICES = "--xla_force_host_platform_device_count=2"


def started(data, out, processes):
    """Two devices share every batch: of one process, or of two that have one each."""
    words = f"finetune --data {data} --model small --image-size 32 --batch-size 8 --steps {STEPS}".split()
    words += ["--checkpoint-every", "2", "--layout", "replicated", "--out", out]
    return start_processes(["-m", "keras_vit", *words], processes, XLA_FLAGS="" if processes == 2 else TWO_DEVICES)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_run_on_tars_killed_three_times_in_an_epoch_is_that_on_the_folder(tmp_path):
    photos = make_photos(tmp_path / "photos", 100)  # 240 to train on, 30 steps an epoch
    pack(photos, tmp_path / "shards", shard_bytes=100_000)
    whole, out = tmp_path / "whole", tmp_path / "run"
    finished(started(photos, whole, 1))
    for kill, count in enumerate((1, 2, 1)):
        before, processes = newest(out), started(tmp_path / "shards", out, count)
        while newest(out) <= before and processes[0].poll() is None:
            time.sleep(0.02)
        processes[-1].kill()
        said = outputs_of(processes)[0]
        assert processes[0].returncode != 0
        assert ("goes on from step" in said) == (kill > 0), said[-3000:]
        assert newest(out) < f"step-{30:010}"
    assert "goes on from step" in finished(started(tmp_path / "shards", out, 2))
    assert figures(out) == figures(whole)
    for name in ("best.keras", "last.keras"):
        assert weights_of(out / name) == weights_of(whole / name)
