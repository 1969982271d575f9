"""How long building takes and how much memory, against keras-hub's ViTBackbone, each in a process of its own.

    python benchmarks/build.py [--rounds 5] [--peer-python PYTHON]

Processes alternate (ours, peer, ours, ...), so that a drifting machine touches both alike; the ratio is the
median over pairs. `--peer-python` names an interpreter that has keras-hub, if this one does not.
Memory is the peak resident set above what the imports took, over the bytes of the weights.
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
import json, resource, sys, time
import numpy, tensorflow, keras
{imports}
keras.Variable(0.0); keras.ops.matmul(keras.ops.ones((2, 2)), keras.ops.ones((2, 2)))
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
start_rss, start = rss(), time.perf_counter()
model = {build}
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
size = sum(w.numpy().nbytes if w.shape == () else int(numpy.prod(w.shape)) * 4 for w in model.weights)
print(json.dumps({{"seconds": seconds, "memory": (peak - start_rss) / size, "weights": size}}))
"""
OURS = {
    "B/16": "keras_vit.ViTB16()",
    "L/16": "keras_vit.ViTL16()",
    "H/14": "keras_vit.ViTH14()",
    "B/16 from a file": "keras_vit.ViTB16(weights={file!r})",
}
BACKBONE = (
    "keras_hub.models.ViTBackbone(image_shape=(224, 224, 3), patch_size={p}, num_layers={layers}, num_heads={heads},"
    " hidden_dim={d}, mlp_dim={m})"
)
PEER = {
    "B/16": BACKBONE.format(p=16, layers=12, heads=12, d=768, m=3072),
    "L/16": BACKBONE.format(p=16, layers=24, heads=16, d=1024, m=4096),
    "H/14": BACKBONE.format(p=14, layers=32, heads=16, d=1280, m=5120),
}


def measure(python, imports, build):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    code = MEASURE.format(imports=imports, build=build)
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"the measured process failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-python", default=sys.executable)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "B_16.npz")
        write = f"import keras_vit; keras_vit.save_checkpoint(keras_vit.ViTB16(), {file!r})"
        subprocess.run([sys.executable, "-c", write], check=True, stderr=subprocess.DEVNULL)
        print(f"{'':18}{'ours':>9}{'peer':>9}{'ratio':>8}   memory over weights: ours, peer", flush=True)
        for name, build in OURS.items():
            ours, peers = [], []
            for _ in range(arguments.rounds):
                ours.append(measure(sys.executable, "import keras_vit", build.format(file=file)))
                if name in PEER:
                    peers.append(measure(arguments.peer_python, "import keras_hub", PEER[name]))
            report(name, ours, peers)


def report(name, ours, peers):
    def median(runs, key):
        return statistics.median(run[key] for run in runs)

    line = f"{name:18}{median(ours, 'seconds'):8.2f}s"
    if peers:
        ratio = statistics.median(a["seconds"] / b["seconds"] for a, b in zip(ours, peers, strict=True))
        line += f"{median(peers, 'seconds'):8.2f}s{ratio:8.2f}"
    else:
        line += " " * 17
    line += f"   {median(ours, 'memory'):.2f}" + (f", {median(peers, 'memory'):.2f}" if peers else "")
    print(line, flush=True)


if __name__ == "__main__":
    main()
