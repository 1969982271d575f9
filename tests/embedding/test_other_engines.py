"""The examples of `examples/scale`: a killed worker, a killed job and a broken photo leave every row once."""

import os
import re
import shlex
import subprocess
import sys
import time

import numpy as np
import psutil
import pyarrow.parquet
import pytest
from conftest import ROOT, randomise, tiny_config
from killed_jobs import WAIT
from PIL import Image

import keras_vit
from keras_vit.embedding.part_files import read_vectors
from keras_vit.exporting.engines.accelerate import write_engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
FOLDER = ROOT / "examples" / "scale"
COUNT, PART = 8_000, 1_000
BROKEN = {5: "empty file", 2_500: "truncated JPEG", 7_999: "no such file"}  # by row
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_SUBMIT_ARGS": "--master local[2,4] pyspark-shell",  # two workers, four tries of a task
    "SPARK_LOCAL_IP": "127.0.0.1",
    "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "100000000",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    path = tmp_path_factory.mktemp("engine") / "engine.onnx"
    write_engine(randomise(keras_vit.build(tiny_config(num_layers=1), input_shape=(20, 28, 3), classes=7)), path)
    return path


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Paths of photos, most of which are one of four by several names; three are broken."""
    folder, rng = tmp_path_factory.mktemp("scale") / "photos", np.random.default_rng(0)
    folder.mkdir()
    found = [folder / f"{number:05d}.jpg" for number in range(COUNT)]
    for number, place in enumerate(found):
        if number < 4:
            coarse = Image.fromarray(rng.integers(0, 256, (16, 20, 3), dtype="uint8"))
            coarse.resize((320, 256)).save(place, quality=85)
        elif number not in BROKEN:
            os.link(found[number % 4], place)
    found[5].write_bytes(b"")
    found[2_500].write_bytes(found[0].read_bytes()[:3000])
    return [str(place) for place in found]


def wait_for(true, process):
    """Waits until something holds, while a process goes on."""
    until = time.monotonic() + 300
    while not true():
        assert process.poll() is None, process.stdout.read()[-3000:]
        assert time.monotonic() < until
        time.sleep(0.05)


def workers_of(process, is_worker):
    """The processes below one, that is the job, for which `is_worker` holds."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        try:
            if is_worker(each):
                found.append(each)
        except psutil.Error:  # which has just ended
            pass
    return found


def of_ray(process):
    return "(WriteParts)" in " ".join(process.cmdline())


def of_spark(process):
    """Whether it is forked from the daemon that Spark starts."""
    return all("pyspark.daemon" in each.cmdline() for each in (process, process.parent()))


@pytest.mark.parametrize(
    ("package", "script", "is_worker"), [("ray", "ray_data.py", of_ray), ("pyspark", "spark.py", of_spark)]
)
def test_every_row_is_there_once_after_a_killed_worker_and_a_killed_job(
    package, script, is_worker, names, engine, tmp_path
):
    pytest.importorskip(package, reason=f"{package} is not installed")
    (tmp_path / "photos.txt").write_text("\n".join(names))
    out = tmp_path / "vectors"
    command = [sys.executable, FOLDER / script, tmp_path / "photos.txt", engine.name, out]

    def started():
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, env=ENVIRONMENT, cwd=engine.parent, **options)

    def parts():
        return sorted(path.name for path in out.glob("part-*.parquet"))

    process = started()
    wait_for(lambda: parts() and workers_of(process, is_worker), process)
    workers_of(process, is_worker)[0].kill()
    seen = len(parts())
    wait_for(lambda: len(parts()) > seen + 2, process)  # it goes on with another worker, whose part may be the third
    below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    for each in psutil.wait_procs(below, timeout=WAIT)[1]:
        each.kill()
    before = {name: (out / name).stat().st_mtime_ns for name in parts()}
    assert 0 < len(before) < COUNT // PART
    process = started()
    said = process.communicate(timeout=600)[0]
    assert process.returncode == 0, said[-3000:]
    assert f"8,000 rows, {len(BROKEN)} of them of broken photos" in said
    assert len(parts()) == COUNT // PART
    assert before.items() <= {name: (out / name).stat().st_mtime_ns for name in parts()}.items()
    table = pyarrow.parquet.read_table([out / name for name in parts()])
    assert table["photo"].to_pylist() == names
    assert {row: status for row, status in enumerate(table["status"].to_pylist()) if status != "ok"} == BROKEN
    vectors = np.stack(table["features"].to_numpy())
    np.testing.assert_allclose(vectors[:8], keras_vit.Embedder(engine)(names[:8])["features"], atol=1e-6)


def commands_on_path(folder):
    """An environment in which `keras-vit` is the command of this checkout."""
    folder.mkdir()
    (folder / "keras-vit").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m keras_vit "$@"\n')
    (folder / "keras-vit").chmod(0o755)
    return {**ENVIRONMENT, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def assert_all_rows(names, out):
    parts = list(read_vectors(out))
    assert [name for part in parts for name in part.photos] == [name.rpartition("/")[2] for name in names[:-1]]
    assert len((out / "broken_photos.csv").read_text().splitlines()) == len(BROKEN)  # one of them is in no folder


def test_slurm_array_computes_every_row_once(names, engine, tmp_path):
    """`bash` in place of SLURM, with the variables that it sets for each number of the array."""
    script = FOLDER / "slurm_array.sh"
    first, last = map(int, re.search(r"^#SBATCH --array=(\d+)-(\d+)$", script.read_text(), re.MULTILINE).groups())
    out, folder = tmp_path / "vectors", os.path.dirname(names[0])
    ends = {"MIN": first, "MAX": last, "COUNT": last - first + 1, "STEP": 1}
    environment = {**commands_on_path(tmp_path / "bin"), "PHOTOS": folder, "MODEL": str(engine), "OUT": str(out)}
    environment |= {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in ends.items()}
    for number in range(first, last + 1):
        subprocess.run(["bash", script], env={**environment, "SLURM_ARRAY_TASK_ID": str(number)}, check=True)
    assert_all_rows(names, out)


def test_kubernetes_job_computes_every_row_once(names, engine, tmp_path):
    """The command of the manifest, with the volume in a folder and the variable that an indexed job sets."""
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((FOLDER / "indexed_job.yaml").read_text())["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert job["completionMode"] == "Indexed"
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # without it Kubernetes refuses backoffLimitPerIndex
    environment = commands_on_path(tmp_path / "bin") | {each["name"]: each["value"] for each in container["env"]}
    assert environment["NUM_SHARDS"] == str(job["completions"])
    os.symlink(os.path.dirname(names[0]), tmp_path / "photos")
    os.link(engine, tmp_path / "model.onnx")
    command = [word.replace("/data", str(tmp_path)) for word in container["command"]]
    for number in range(job["completions"]):
        environment["JOB_COMPLETION_INDEX"] = str(number)
        subprocess.run(command, env=environment, check=True)
    assert_all_rows(names, tmp_path / "vectors")
