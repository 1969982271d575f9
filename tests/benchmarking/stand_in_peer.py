"""A peer that costs nothing, written to the protocol alone: it needs NumPy and neither keras_vit nor a framework.

The number of a runner's name is its milliseconds a call; `wrong` in it computes something else, `absent` is not
installed, `crash` ends when it is asked to begin. As `prepare` it writes what ours would write.
"""

import json
import os
import re
import sys
import time

import numpy as np

job = json.loads(sys.argv[1])
name, files, train = job["runner"], job["files"], job["task"] == "train"
seconds = int((re.findall(r"\d+", name) or [1])[0]) / 1000
wrong = 0.01 if "wrong" in name else 0.0


def start():
    if "absent" in name:
        return {"left_out": "not installed: No module named 'nothing'", "missing": True}
    if "crash" in name:
        os._exit(3)
    found = {"import_s": 0.25, "import_memory": 1000, "versions": {"stand-in": "1.0"}}
    if job["task"] in ("build", "load"):
        return found | {f"{job['task']}_s": seconds}
    return found | {"build_s": 0.5, "load_s": 0.125}


def prepare():
    rng = np.random.default_rng(0)
    np.save(files["labels"], rng.integers(0, 7, job["batch"]))
    np.save(files["images"], np.zeros((job["batch"], 1)))
    np.save(files["logits"], rng.normal(0, 1, (job["batch"], 7)).astype("float32"))
    for layout in job["layouts"]:
        assert os.path.basename(files[layout]).startswith(layout)
    return {}


def loss():
    """Of the wanted logits, in other words than `cross_entropy`: softmax, then its logarithm."""
    logits = np.load(files["logits"])[: job["batch"]]
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.load(files["labels"])[: job["batch"]]
    return float(-np.log([row[label] for row, label in zip(scores, labels, strict=True)]).mean()) + wrong


def check(file):
    if name == "prepare":
        return prepare()
    if train:
        return {"first_s": 1.0, "loss": loss()}
    np.save(file, np.load(files["logits"])[: job["batch"]] + wrong * np.eye(job["batch"], 7, dtype="float32"))
    return {"first_s": 1.0}


def step():
    begun = time.monotonic()
    time.sleep(seconds)
    with open(os.environ["STAND_IN_LOG"], "a") as log:
        cores = sorted(os.sched_getaffinity(0)) == job["cores"]
        log.write(json.dumps([name, begun, time.monotonic(), os.environ["OMP_NUM_THREADS"], cores]) + "\n")
    return {"seconds": seconds + 1e-4 * int(time.monotonic_ns() % 7), "loss": 1.0 if train else None}


os.sched_setaffinity(0, job["cores"])
for line in sys.stdin:
    word, *rest = line.split()
    answer = {"start": start, "check": check, "step": step, "memory": lambda: {"peak_memory": 5000}}[word](*rest)
    print(json.dumps(answer), flush=True)
