"""The search for similar images and the benchmark of what is served run as a user runs them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, make_tiny
from PIL import Image

sys.path.insert(0, str(ROOT / "examples"))

import similar_images


def run(script, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(ROOT / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=580)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.docs
def test_photo_that_was_turned_is_nearest_to_itself_and_a_broken_one_is_left_out(tmp_path, monkeypatch, capsys):
    make_tiny(num_layers=1).save(tmp_path / "best.keras")
    photos = tmp_path / "photos"
    photos.mkdir()
    rng, turned = np.random.default_rng(1), Image.Exif()
    turned[0x112] = 6  # to be shown a quarter turn clockwise
    pictures = [Image.fromarray(rng.integers(0, 256, (20, 28, 3), "uint8")) for _ in range(4)]
    for number, picture in enumerate(pictures):
        picture.save(photos / f"{number}.png")
    pictures[0].rotate(90, expand=True).save(photos / "phone.png", exif=turned)
    (photos / "z.jpg").write_bytes(b"no photo")
    arguments = ["--images", photos, "--model", tmp_path, "--queries", 1, "--neighbours", 2]
    monkeypatch.setattr(sys, "argv", ["", *map(str, arguments), "--out", str(tmp_path / "sheet.png")])
    similar_images.main()
    printed = capsys.readouterr().out.splitlines()
    assert "left out: z.jpg: not a JPEG or PNG" in printed
    assert printed[-2].startswith("0.png: phone.png 1.000, ")
    assert json.loads(printed[-1])["gallery"] == 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_similar_digits_are_found_more_often_than_by_lot(tmp_path):
    printed = run("examples/similar_images.py", "--epochs", 1, "--neighbours", 3, "--out", tmp_path / "sheet.png")
    result = json.loads(printed.splitlines()[-1])
    assert (result["queries"], result["gallery"]) == (179, 1439)
    assert result["precision"] > 4 * result["chance"]  # ten classes, one epoch
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.height > sheet.width > 300  # eight rows of four


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_benchmark_of_serving_measures_every_path(precision):
    size = ("--variant", "Ti/16", "--image-size", 32, "--rounds", 2, "--batch-sizes", 1)
    printed = run("benchmarks/serve.py", *size, "--precision", precision)
    rows = [line.split("  ")[0] for line in printed.splitlines()]
    for path in ("SavedModel", "SavedModel, session", "tf.function", "predict_on_batch", "onnx"):
        assert path in rows
    assert "over the fastest in-process path" in printed
