"""The files of two runs, compared: what one that was stopped and went on must have in common with one that was not."""

import json
import os
import re

import keras

from keras_vit.runs.run_files import metric_columns
from keras_vit.tasks import find_task

COLUMNS = metric_columns(find_task())
TIMES = {"seconds", "training_seconds", "images_per_second"}


def figures(path):
    """`metrics.csv` without its last column, the seconds."""
    return [line.rpartition(",")[0] for line in (path / "metrics.csv").read_text().splitlines()]


def weights_of(path):
    return [weight.tobytes() for weight in keras.models.load_model(path, compile=False).get_weights()]


def report_of(path):
    """The report without times and the place of the run."""
    text = (path / "report.html").read_text().replace(str(path), "RUN")
    return re.sub(r"\d+:\d\d:\d\d", "TIME", text)


def assert_same_run(out, other):
    assert figures(out) == figures(other)
    for name in ("best.keras", "last.keras"):
        assert weights_of(out / name) == weights_of(other / name)
    results = [json.loads((path / "result.json").read_text()) for path in (out, other)]
    first, second = ({name: value for name, value in each.items() if name not in TIMES} for each in results)
    assert first == second
    assert {path.name for path in out.iterdir()} == {path.name for path in other.iterdir()}
    assert report_of(out) == report_of(other)


def tree(folder):
    """All that is below a folder, by path: where a link leads to, or the bytes of a file; and when it was changed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (content, path.lstat().st_mtime_ns)
    return found
