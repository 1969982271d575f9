"""Runs of several processes, and the files of a run that was stopped and went on, compared with one that was not."""

import json
import os
import re
import socket
import subprocess
import sys

import keras
from conftest import ROOT

from keras_vit.runs.run_files import metric_columns
from keras_vit.tasks import find_task

COLUMNS = metric_columns(find_task())
TIMES = {"seconds", "training_seconds", "images_per_second"}


def start_processes(arguments, count, **environment):
    """Python with these arguments as so many processes, which find each other, on JAX."""
    shared = {"PYTHONPATH": f"{ROOT}:{ROOT}/tests", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "jax"}
    environment = os.environ | shared | environment
    if count > 1:
        environment["KERAS_DISTRIBUTION_JOB_ADDRESSES"] = f"127.0.0.1:{free_port()}"
        environment["KERAS_DISTRIBUTION_NUM_PROCESSES"] = str(count)
    command = [sys.executable, *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    return [
        subprocess.Popen(command, env=environment | {"KERAS_DISTRIBUTION_PROCESS_ID": str(index)}, **streams)
        for index in range(count)
    ]


def outputs_of(processes, timeout=1800):
    """What each printed, once all have ended."""
    try:
        return [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def finished(processes, timeout=1800):
    """What the first printed, once all have ended well."""
    outputs = outputs_of(processes, timeout)
    failed = [text for process, text in zip(processes, outputs, strict=True) if process.returncode]
    assert not failed, failed[0][-3000:]
    return outputs[0]


def newest(out):
    """The name of the newest checkpoint."""
    return max((path.name for path in (out / "checkpoints").glob("step-*") if path.is_dir()), default="")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
