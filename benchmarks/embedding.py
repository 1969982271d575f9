"""`python -m benchmarks.embedding`: processor time and memory of embedding photos, by engine and by kind of file.

JPEGs of 320 x 256 become features of Ti/16 at 64 pixels, by a file of ONNX and one thread in each worker. Each row is a
command from start to end, with all processes that it starts, the Java machine of Spark and the services of Ray too.
Ray Data and Spark run the examples of `examples/scale`. One that is not installed is left out.
"""

import argparse
import ctypes
import importlib.metadata
import importlib.util
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure import BenchmarkError
from benchmarks.results import FOLDER, ROOT, append_to, commit, machine, now

FIELDS = (
    *("date", "commit", "machine", "avx512_bf16", "amx", "engine", "workers", "format", "photos", "rounds"),
    *("seconds", "processor_s", "memory", "versions"),
)
_PACKAGES = {"Ray Data": "ray", "Spark": "pyspark"}
_SCALE = ROOT / "examples" / "scale"
_SUBREAPER = 36  # of Linux's prctl: orphans of a command become children of this process, which waits for them
_EVERY, _PATIENCE = 0.2, 60  # seconds between looks at the memory, and of services that outlive their command
_VERSIONS = ("onnxruntime", "pillow", "pyarrow")


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each case, and adds it to `embedding.csv` in a folder."""
    parser = argparse.ArgumentParser("python -m benchmarks.embedding", description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=FOLDER, metavar="FOLDER")
    asked = parser.parse_args(arguments)
    asked.results.mkdir(parents=True, exist_ok=True)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="keras_vit-") as name:
        folder = Path(name)
        places = written(folder, asked.photos)
        cases = commands(folder, places)
        taken: dict[tuple[str, int, str], list[tuple[float, float, int]]] = {case: [] for case in cases}
        for number in range(asked.rounds):
            for place, case in enumerate(list(cases)[:: -1 if number % 2 else 1]):
                taken[case].append(measured(cases[case], folder / f"out-{number}-{place}"))
        for (engine, workers, form), each in taken.items():
            seconds, processor, memory = (statistics.median(values) for values in zip(*each, strict=True))
            row = {**machine(), "commit": commit(), "date": now(), "engine": engine, "workers": workers, "format": form}
            row |= {"photos": asked.photos, "rounds": asked.rounds, "seconds": seconds, "processor_s": processor}
            row |= {"memory": int(memory), "versions": versions(engine)}
            print(f"{engine}, {workers}, {form}: {asked.photos / processor:.0f} a second, {memory / 2**30:.2f} GiB")
            append_to(asked.results / "embedding.csv", FIELDS, row)


def written(folder: Path, count: int) -> dict[str, Path]:
    """Photos in every kind of file, by its name, and the model and the list that commands take, in `folder`."""
    code = (
        "import sys, pathlib, keras_vit\n"
        "from benchmarks.shards import write\n"
        "from keras_vit.exporting.engines.accelerate import write_engine\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "write(folder, int(sys.argv[2]))\n"
        "model = keras_vit.ViTTi16(weights=None, classes=10, input_shape=(64, 64, 3))\n"
        "write_engine(model, folder / 'model.onnx')\n"
    )  # in a process of its own, so that what is measured starts from one without TensorFlow
    subprocess.run([sys.executable, "-c", code, folder, str(count)], env=environment(), check=True)
    photos = sorted(map(str, (folder / "photos").iterdir()))
    (folder / "photos.txt").write_text("\n".join(photos))
    return {"folder": folder / "photos"} | {name: folder / name for name in ("tar", "tfrecord", "parquet")}


def commands(folder: Path, places: dict[str, Path]) -> dict[tuple[str, int, str], list[str]]:
    """What is typed without the folder for the vectors, by engine, workers and kind of file."""
    model = str(folder / "model.onnx")
    command = [sys.executable, "-m", "keras_vit", "embed", "--model", model, "--part", "1000", "--processes"]
    found = {("keras-vit embed", 1, name): [*command, "1", str(place), "--out"] for name, place in places.items()}
    found |= {("keras-vit embed", 2, "folder"): [*command, "2", str(places["folder"]), "--out"]}
    for (engine, package), script in zip(_PACKAGES.items(), ("ray_data.py", "spark.py"), strict=True):
        if importlib.util.find_spec(package):
            command = [sys.executable, str(_SCALE / script), str(folder / "photos.txt"), model]
            found[engine, 2, "folder"] = command
        else:
            print(f"{engine} left out: run `pip install {package}`")
    return found


def environment() -> dict[str, str]:
    """That of a command: two workers for Ray and Spark, and a small store of objects."""
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    more = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    more |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": "--master local[2,4] pyspark-shell"}
    more |= {"SPARK_LOCAL_IP": "127.0.0.1", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **more, "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "100000000"}


def measured(command: list[str], out: Path) -> tuple[float, float, int]:
    """Seconds, seconds of processor time and the most bytes of memory (PSS) of a command with all that it started.

    Raises:
        BenchmarkError: for another exit code than 0.
    """
    before, began, peak, status = usage(), time.perf_counter(), 0, None
    with tempfile.TemporaryFile("w+") as output:
        options: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen([*command, str(out)], env=environment(), **options)
        seconds = 0.0
        while True:
            try:
                number, code = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if number == process.pid:
                status, seconds = os.waitstatus_to_exitcode(code), time.perf_counter() - began
            if number == 0:
                peak = max(peak, memory())
                time.sleep(_EVERY)
            if status is not None and time.perf_counter() - began > seconds + _PATIENCE:
                for each in psutil.Process().children(recursive=True):
                    each.send_signal(signal.SIGTERM)
        process.returncode = status
        if status != 0:
            output.seek(0)
            raise BenchmarkError(f"a command ended with {status}.\nReceived: {command}\n{output.read()[-2000:]}")
    return seconds, usage() - before, peak


def usage() -> float:
    """Seconds of processor time of all processes that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def memory() -> int:
    """Bytes of all processes below this one; what they share counts once."""
    found = 0
    for process in psutil.Process().children(recursive=True):
        try:
            found += process.memory_full_info().pss
        except psutil.Error:  # which has just ended
            continue
    return found


def versions(engine: str) -> str:
    """Of the packages that count."""
    names = [*_VERSIONS, *filter(None, [_PACKAGES.get(engine)])]
    return "; ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


if __name__ == "__main__":
    main()
