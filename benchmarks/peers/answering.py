"""The process of one runner: it does what each line on its input says, and answers with a line of JSON.

The first argument is the job as JSON. The lines are `start`, `check FILE`, `step` and `memory`. Between lines the
process sleeps. What libraries print goes to the error stream.
"""

import contextlib
import importlib.metadata
import json
import os
import sys
import time

_MOST_LETTERS = 300  # of an error


class LeftOutError(Exception):
    """This runner cannot do what is asked, for a reason that is no fault."""


class Runner:
    """One way to compute a model. Each part is timed by itself.

    Attributes:
        job: what `benchmarks.workers.worker_of` makes.
        packages: names of distributions whose versions are reported.
        builds_apart: whether values are loaded into a model that was built before; else loading builds it.
    """

    packages: tuple[str, ...] = ()
    builds_apart = True

    def __init__(self, job):
        self.job = job

    def bring_packages(self):
        """Imports everything, and sets threads."""

    def build(self):
        """A model with values of its own."""
        raise NotImplementedError

    def load(self, model):
        """The model with the values of the file; another object if need be."""
        raise NotImplementedError

    def from_file(self):
        """From the file to a model."""
        return self.load(self.build())

    def inference(self, model):
        """A function without arguments: images as NumPy to logits `(B, K)` as NumPy, float32."""
        raise NotImplementedError

    def train(self, model):
        """A function without arguments that takes one step and gives its loss."""
        raise NotImplementedError

    def facts(self):
        """What else a row should know, by the name of its field."""
        return {}

    def batch(self):
        """Images `(B, H, W, 3)` float32 in [-1, 1], and labels `(B,)` int64."""
        import numpy as np

        count, files = self.job["batch"], self.job["files"]
        return np.load(files["images"])[:count], np.load(files["labels"])[:count]


class Session:
    """What is done for each line."""

    def __init__(self, runner):
        self.runner, self.task = runner, runner.job["task"]
        self.call = None

    def start(self):
        """Imports, builds and loads, in seconds each; then the model is ready to be called."""
        imported = timed(self.runner.bring_packages)[1]
        found = {"import_s": imported, "import_memory": peak_memory(), "versions": versions(self.runner.packages)}
        if self.task == "load":
            return found | {"load_s": timed(self.runner.from_file)[1]}
        if self.task == "build" or self.runner.builds_apart:
            model, found["build_s"] = timed(self.runner.build)
            if self.task == "build":
                return found
            model, found["load_s"] = timed(lambda: self.runner.load(model))
        else:
            model, found["load_s"] = timed(self.runner.from_file)
        self.call = getattr(self.runner, self.task)(model)
        return found

    def check(self, file):
        """The first call, which may compile: its loss, or its logits into a file."""
        import numpy as np

        found, seconds = timed(self.call)
        if self.task == "train":
            return {"first_s": seconds, "loss": found}
        np.save(file, np.asarray(found, "float32"))
        return {"first_s": seconds}

    def step(self):
        """One call, which is timed."""
        start = time.process_time()
        found, seconds = timed(self.call)
        return {
            "seconds": seconds,
            "processor_s": time.process_time() - start,
            "loss": found if self.task == "train" else None,
        }

    def memory(self):
        """The most bytes that this process ever had resident."""
        return {"peak_memory": peak_memory(), **self.runner.facts()}


def serve(runners):
    """Answers until the input ends; `runners` are classes by name, of which the job names one."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not get between
    job = json.loads(sys.argv[1])
    stay_on(job["cores"])
    session = Session(runners[job["runner"]](job))
    for line in sys.stdin:
        print(json.dumps(answer(session, line.split(maxsplit=1))), file=answers, flush=True)


def answer(session, words):
    try:
        return getattr(session, words[0])(*map(str.strip, words[1:]))
    except LeftOutError as reason:
        return {"left_out": str(reason)}
    except ImportError as error:
        return {"left_out": f"not installed: {error}", "missing": True}
    except Exception as error:  # the others are measured all the same
        import traceback

        traceback.print_exc()
        first = (str(error).splitlines() or [""])[0]
        return {"left_out": f"failed: {type(error).__name__}: {first[:_MOST_LETTERS]}"}


def stay_on(cores):
    """This process and its threads run on these cores only, where the system supports it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def timed(function):
    """What a function gives, and its seconds."""
    start = time.perf_counter()
    found = function()
    return found, time.perf_counter() - start


def peak_memory():
    """Bytes: the most that this process ever had resident; `None` where the system does not say."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")), None)
    return None


def versions(packages):
    found = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
