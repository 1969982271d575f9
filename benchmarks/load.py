"""How long a checkpoint takes to get into a model, against `np.load` and assigning, and how much memory it takes.

    python benchmarks/load.py [--rounds 5] [--huge]

Every measurement is a process of its own; they alternate (ours, baseline, ours, ...), so that a drifting machine
touches both alike, and the ratio is the median over pairs. The file is in the page cache, as after a download.
Memory is the peak resident set above what the imports took, over the bytes of the file. `--huge` adds H/14, which
needs 2.5 GB of disk and 4 GB of memory.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MEASURE = """
import json, resource, time
import numpy as np, tensorflow, keras, keras_vit
from keras_vit.weights.load import weight_paths
from keras_vit.weights.dialects.official import official_name
keras.Variable(0.0); keras.ops.matmul(keras.ops.ones((2, 2)), keras.ops.ones((2, 2)))
def assign(model, file):
    with np.load(file) as arrays:
        for path, variable in weight_paths(model).items():
            variable.assign(arrays[official_name(path, "official")].reshape(variable.shape))
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
file = {file!r}
{prepare}
before, start = rss(), time.perf_counter()
{run}
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({{"seconds": seconds, "memory": peak - before}}))
"""
# What is compared: prepare, run ours, run the baseline.
CASES = {
    "build from the file": (
        "",
        "model = keras_vit.ViT{name}(weights=file)",
        "model = keras_vit.ViT{name}(); assign(model, file)",
    ),
    "load into a model": (
        "model = keras_vit.ViT{name}()",
        "keras_vit.load_checkpoint(model, file)",
        "assign(model, file)",
    ),
    "read only": (
        "from keras_vit.weights.reader import scan",
        "arrays = scan(file).read()",
        "arrays = dict(np.load(file))",
    ),
}


def measure(file, prepare, run):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    code = MEASURE.format(file=str(file), prepare=prepare, run=run)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"the measured process failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(name, file, rounds):
    for title, case in CASES.items():
        prepare, ours, baseline = (code.format(name=name) for code in case)
        pairs = [(measure(file, prepare, ours), measure(file, prepare, baseline)) for _ in range(rounds)]
        seconds = [statistics.median(pair[side]["seconds"] for pair in pairs) for side in (0, 1)]
        ratio = statistics.median(mine["seconds"] / theirs["seconds"] for mine, theirs in pairs)
        memory = statistics.median(mine["memory"] for mine, _ in pairs) / file.stat().st_size
        print(f"{name} {title:22}{seconds[0]:8.3f}s{seconds[1]:9.3f}s{ratio:8.2f}{memory:11.2f}", flush=True)


def write(name, file):
    code = f"import keras_vit; keras_vit.save_checkpoint(keras_vit.ViT{name}(), {str(file)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--huge", action="store_true", help="measure the memory of H/14 too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "B_16.npz"
        write("B16", file)
        print(f"{'':27}{'ours':>8}{'np.load':>10}{'ratio':>8}   memory / file", flush=True)
        compare("B16", file, arguments.rounds)
        if arguments.huge:
            file = Path(folder) / "H_14.npz"
            write("H14", file)
            run = measure(file, "", "model = keras_vit.ViTH14(weights=file)")
            print(f"H14 build from the file {run['seconds']:11.3f}s{run['memory'] / file.stat().st_size:28.2f}")


if __name__ == "__main__":
    main()
