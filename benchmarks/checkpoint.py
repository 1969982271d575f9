"""What a checkpoint costs: time, bytes and how long training waits, against `tf.train.Checkpoint` and Orbax.

    python benchmarks/checkpoint.py [--variant B/16] [--rounds 5] [--folder FOLDER] [--only ours tensorflow ...]

The state is a variant with AdamW: weights, two moments, counters. On TensorFlow it is saved by `Checkpoints`' own
writer and by `tf.train.Checkpoint`, at once and in its asynchronous form, each in a manager that keeps two; on JAX,
in a process of its own, by the same writer and by Orbax' `StandardCheckpointer`, which writes in the background.
KERAS_VIT_ORBAX_PYTHON names an interpreter that has orbax-checkpoint. In a round each saves once, one after the other
in alternating order, while the others sleep. `waits` is how long the call holds training up, `whole` until the
checkpoint is complete. Ours syncs the disk and has checksums; `tf.train.Checkpoint` and Orbax say nothing of a sync,
so after each save, outside of the clock, the disk is synced for all.
"""

import argparse
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ON = {"ours": "tensorflow", "tensorflow": "tensorflow", "tensorflow-async": "tensorflow"}
ON |= {"ours-jax": "jax", "orbax": "jax"}


def main():
    arguments = parse()
    if arguments.worker:
        return work(arguments.worker, arguments.variant, Path(arguments.folder))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        workers = {name: Worker(name, arguments, Path(folder) / name) for name in arguments.only}
        figures = {name: [] for name in workers}
        for number in range(arguments.rounds + 1):  # the first makes buffers and graphs, and is left out
            for name in list(workers)[:: 1 if number % 2 else -1]:
                figures[name].append(workers[name].save())
                os.sync()
        report({name: rows[1:] for name, rows in figures.items()})
        for worker in workers.values():
            worker.stop()
    return None


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="B/16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="on the disk to be measured; by default that of temporary files")
    parser.add_argument("--only", nargs="+", choices=ON, default=list(ON))
    parser.add_argument("--orbax-python", default=os.environ.get("KERAS_VIT_ORBAX_PYTHON", sys.executable))
    parser.add_argument("--worker", choices=ON, help=argparse.SUPPRESS)
    return parser.parse_args()


def report(figures):
    print(f"{'':17} {'waits':>8} {'whole':>8} {'GB':>8}   seconds, median of {len(next(iter(figures.values())))}")
    for name, rows in figures.items():
        waits, whole, size = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{name:17} {waits:8.3f} {whole:8.3f} {size / 1e9:8.3f}", flush=True)


class Worker:
    """A process that saves for every line it is sent."""

    def __init__(self, name, arguments, folder):
        folder.mkdir()
        python = arguments.orbax_python if name == "orbax" else sys.executable
        command = [python, __file__, "--worker", name, "--variant", arguments.variant, "--folder", str(folder)]
        environment = os.environ | {"KERAS_BACKEND": ON[name], "TF_CPP_MIN_LOG_LEVEL": "3"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{name} did not start")

    def save(self):
        """Seconds that training waits, seconds until all is there, and bytes."""
        self.process.stdin.write("save\n")
        self.process.stdin.flush()
        return tuple(map(float, self.process.stdout.readline().split()))

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def work(name, variant, folder):
    model = trained(variant)
    begin = {"ours": ours, "ours-jax": ours, "orbax": orbax}.get(name, tensorflow)(name, model, folder)
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        began = time.perf_counter()
        finish = begin(number)
        waits = time.perf_counter() - began
        finish()
        whole = time.perf_counter() - began
        print(waits, whole, newest_size(folder), flush=True)


def trained(variant):
    """A model whose optimizer has its moments."""
    import keras_vit

    model = keras_vit.build(variant, input_shape=(224, 224, 3), classes=1000)
    model.compile(keras_vit.AdamW(0.001), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def newest_size(folder):
    """Bytes of what was saved last: of all, over how many there are."""
    places = [path for path in folder.iterdir() if path.name.startswith(("step-", "orbax-"))]
    if not places:
        files = [path for path in folder.iterdir() if path.name.startswith("ckpt-")]
        return sum(path.stat().st_size for path in files) / max(len({path.stem for path in files}), 1)
    return sum(path.stat().st_size for place in places for path in place.rglob("*") if path.is_file()) / len(places)


def ours(name, model, folder):
    from keras_vit.resuming.folder import CheckpointFolder
    from keras_vit.resuming.variables import pieces_of
    from keras_vit.resuming.writing import Writer

    writer = Writer(CheckpointFolder(folder))

    def begin(number):
        groups = pieces_of("model", model.variables), pieces_of("optimizer", model.optimizer.variables)
        writer.start(itertools.chain.from_iterable(groups), {"step": number, "epoch": 0}, "0")
        return writer.wait

    return begin


def tensorflow(name, model, folder):
    import tensorflow as tf

    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=name == "tensorflow-async")
    variables = [variable.value for variable in [*model.variables, *model.optimizer.variables]]
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(variables=variables), str(folder), max_to_keep=2)

    def begin(number):
        manager.save(number, options=options)
        return manager.sync if hasattr(manager, "sync") else manager.checkpoint.sync

    return begin


def orbax(name, model, folder):
    import orbax.checkpoint

    checkpointer = orbax.checkpoint.StandardCheckpointer()

    def begin(number):
        shutil.rmtree(folder / f"orbax-{number - 2}", ignore_errors=True)
        variables = [*model.variables, *model.optimizer.variables]
        checkpointer.save(folder / f"orbax-{number}", {f"{place:05d}": v.value for place, v in enumerate(variables)})
        return checkpointer.wait_until_finished

    return begin


if __name__ == "__main__":
    main()
