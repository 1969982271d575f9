"""`python -m benchmarks.photos`: `keras-vit predict` of large photos and a script with timm, from start to end.

Each round starts a new process of each, in turn, after one round that is not timed. Both read the same random weights.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import BenchmarkError, in_turn, ratio
from benchmarks.request import PEERS, Benchmark
from benchmarks.results import FOLDER, ROOT, append_to, commit, machine, now
from benchmarks.workers import environment
from keras_vit.checks import check_threads, cores

FIELDS = (
    *("date", "commit", "machine", "avx512_bf16", "amx", "runner", "model", "photos", "threads", "rounds", "seconds"),
    *("processor_s", "timm_seconds", "timm_processor_s", "ratio", "processor_ratio", "difference", "versions"),
)
RUNNERS = ("predict", "predict --exact", "predict, official file")
_BOUND = 0.02  # of the difference of a probability, over the largest; seen are 0.001 and less
_SIZE = (3000, 4000)  # H, W of a photo
_SCRIPT = Path(__file__).parent / "peers" / "timm_photos.py"
_TELL = "import importlib.metadata as found; print('; '.join(f'{name} {found.version(name)}' for name in (%s)))"


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each runner of each number of photos, and adds it to `photos.csv` in a folder."""
    parser = argparse.ArgumentParser("python -m benchmarks.photos", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="B/16")
    parser.add_argument("--photos", type=int, nargs="+", default=[1, 16], help="of a command")
    parser.add_argument("--threads", type=int, default=1, help="cores that each process stays on")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=FOLDER, metavar="FOLDER")
    asked = parser.parse_args(arguments)
    asked.results.mkdir(parents=True, exist_ok=True)
    os.sched_setaffinity(0, cores()[: check_threads(asked.threads)])
    with tempfile.TemporaryDirectory(prefix="keras_vit-") as folder:
        write_weights(Path(folder), asked.model)
        photos = write_photos(Path(folder), max(asked.photos))
        about = {**machine(), "commit": commit(), "model": asked.model, "threads": asked.threads}
        for count in asked.photos:
            for row in measured(commands(Path(folder), photos[:count]), asked.rounds):
                row = {**about, "date": now(), "photos": count, "rounds": asked.rounds, **row}
                times = ", ".join(f"{row[name]:.2f} s for {row[f'timm_{name}']:.2f}" for name in FIELDS[10:12])
                print(count, row["runner"], f"{row['ratio']:.3f} of timm's time,", times, flush=True)
                append_to(asked.results / "photos.csv", FIELDS, row)


def commands(folder: Path, photos: list[str]) -> dict[str, list[str]]:
    """What is typed, by runner; each prints JSON."""
    command = [sys.executable, "-m", "keras_vit", "predict", *photos, "--json", "--model"]
    timm = [PEERS["timm"].python, str(_SCRIPT), str(folder / "timm"), *photos]
    models = (["timm"], ["timm", "--exact"], ["official.npz"])
    found = {name: [*command, str(folder / model), *more] for name, (model, *more) in zip(RUNNERS, models, strict=True)}
    return found | {"timm": timm}


def measured(asked: dict[str, list[str]], rounds: int) -> list[dict[str, Any]]:
    """A row for each own runner: median seconds and processor time, and the largest difference of a probability.

    Raises:
        BenchmarkError: if a command fails, or the answers differ from timm's for the same model.
    """
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in asked}
    answers: dict[str, Any] = {}
    for number, name in enumerate(in_turn(list(asked), rounds + 1)):
        *times, answer = timed(asked[name], own=name != "timm")
        answers[name] = json.loads(answer)
        if number >= len(asked):
            taken[name].append((times[0], times[1]))
    rows = []
    for name in RUNNERS:
        row: dict[str, Any] = {"runner": name, "difference": None, "versions": versions(asked["timm"][0])}
        pairs = zip(*taken[name], strict=True), zip(*taken["timm"], strict=True)
        for field, own, other in zip(("seconds", "processor_s"), *pairs, strict=True):
            row |= {field: statistics.median(own), f"timm_{field}": statistics.median(other)}
            row["ratio" if field == "seconds" else "processor_ratio"] = ratio(own, other)
        if "official" not in name:  # whose photos are prepared by another rule
            row["difference"] = difference(answers[name], answers["timm"])
            if row["difference"] > _BOUND:
                raise BenchmarkError(f"{name} must answer as timm.\nReceived: a difference of {row['difference']:.2g}.")
        rows.append(row)
    return rows


def difference(own: list[dict], expected: list[dict]) -> float:
    """The largest difference of the best probabilities, over the largest of that photo."""
    shares = []
    for pair in zip(own, expected, strict=True):
        one, other = (np.array([best["probability"] for best in each["predictions"]]) for each in pair)
        shares.append(abs(one - other).max() / other.max())
    return float(max(shares))


def timed(command: list[str], own: bool) -> tuple[float, float, str]:
    """Seconds from start to end, seconds of processor time, and the output.

    Raises:
        BenchmarkError: for another exit code than 0.
    """
    found = environment(Benchmark(), "float32", own)
    for name in [name for name in found if name.endswith("_THREADS")]:  # what libraries choose by themselves
        found.pop(name)
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as words:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=words, env=found, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        for file in (output, words):
            file.seek(0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise BenchmarkError(f"{command[2]} must end well.\nReceived: {words.read()[-500:]}")
        return seconds, usage.ru_utime + usage.ru_stime, output.read()


def write_weights(folder: Path, name: str) -> None:
    """Random weights of one model, `timm` for both and `official.npz` for this package."""
    import warnings

    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    model, rng = keras_vit.build(name, activation="gelu"), np.random.default_rng(0)
    for weight in model.weights:
        weight.assign_add(rng.normal(0, 0.05 if weight.path.startswith("head") else 0.02, weight.shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a GELU that the official code does not have
        keras_vit.save_checkpoint(model, folder / "official.npz")
    crop = keras_vit.Preprocessing(resize="crop", crop_fraction=0.9, interpolation="bicubic", antialias=True)
    model.preprocessing = crop
    keras_vit.save_checkpoint(model, folder / "timm", "timm")


def write_photos(folder: Path, count: int) -> list[str]:
    """Paths of JPEGs of 12 Mpx, each of other parts of the two photos that scikit-learn brings along."""
    from PIL import Image

    paths = [str(folder / f"{number}.jpg") for number in range(count)]
    for number, path in enumerate(paths):
        Image.fromarray(large_photo(number)).save(path, quality=92)
    return paths


def large_photo(number: int, size: tuple[int, int] = _SIZE) -> np.ndarray:
    """uint8 `(H, W, 3)`: a part of a photo, enlarged, with the noise of a sensor and sharp letters."""
    from PIL import Image, ImageDraw, ImageFont
    from sklearn.datasets import load_sample_images

    rng, (height, width) = np.random.default_rng(number), size
    photo = load_sample_images().images[number % 2]
    y, x = (rng.integers(0, have - want + 1) for have, want in zip(photo.shape, (375, 500), strict=False))
    image = Image.fromarray(photo[y : y + 375, x : x + 500]).resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for line in range(6):
        font = ImageFont.load_default(int(rng.integers(height // 100, height // 20)))
        place = (int(rng.integers(0, width // 2)), height * line // 6)
        draw.text(place, "The quick brown fox jumps", tuple(map(int, rng.integers(0, 256, 3))), font)
    noise = rng.normal(0, 6, (height, width, 1)).astype("float32")
    return np.clip(np.asarray(image) + noise, 0, 255).astype("uint8")


def versions(python: str) -> str:
    """Of what both processes import."""
    found = []
    names = {sys.executable: "'keras', 'tensorflow-cpu', 'keras-vit-zoo'", python: "'torch', 'timm', 'pillow'"}
    for interpreter, asked in names.items():
        command = [interpreter, "-c", _TELL % asked]
        found.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    return "; ".join(found)


if __name__ == "__main__":
    main()
