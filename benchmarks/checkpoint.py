"""What a checkpoint costs: time, bytes and how long training waits, against `tf.train.Checkpoint` and Orbax.

    python -m benchmarks.checkpoint [--variant B/16] [--rounds 5] [--folder FOLDER] [--only ours tensorflow ...]

The state is a variant with AdamW: weights, two moments, counters. On TensorFlow it is saved by `Checkpoints`' own
writer and by `tf.train.Checkpoint`, at once and in its asynchronous form, each in a manager that keeps two; on JAX,
in a process of its own, by the same writer and by Orbax' `StandardCheckpointer`, which writes in the background.
KERAS_VIT_ORBAX_PYTHON names an interpreter that has orbax-checkpoint. In a round each saves once, one after the other
in alternating order, while the others sleep. `waits` is how long the call holds training up, `first` the same of the
first two saves together, which may make graphs. `step` is by how much the step that follows at once takes longer than
one before: it changes all weights and moments in their places, while some may be views that must stay, and the other
core writes. `whole` is until the checkpoint is complete, with that step. Ours syncs the disk and has checksums;
`tf.train.Checkpoint` and Orbax say nothing of a sync, so after each save, outside of the clock, the disk is synced for
all.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ON = {"ours": "tensorflow", "tensorflow": "tensorflow", "tensorflow-async": "tensorflow"}
ON |= {"ours-jax": "jax", "orbax": "jax"}
MADE_FIRST = 2  # saves that make buffers and graphs, and are in no median


def main():
    arguments = parse()
    if arguments.worker:
        return work(arguments.worker, arguments.variant, Path(arguments.folder))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        workers = {name: Worker(name, arguments, Path(folder) / name) for name in arguments.only}
        figures: dict[str, list[tuple[float, ...]]] = {name: [] for name in workers}
        for number in range(arguments.rounds + MADE_FIRST):
            for name in list(workers)[:: 1 if number % 2 else -1]:
                figures[name].append(workers[name].save())
                os.sync()
        report(figures)
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
    rounds = len(next(iter(figures.values()))) - MADE_FIRST
    columns = ("waits", "first", "step", "whole", "GB")
    print(f"{'':17}" + "".join(f" {column:>8}" for column in columns) + f"   seconds, median of {rounds}")
    for name, rows in figures.items():
        first = sum(row[0] for row in rows[:MADE_FIRST])
        waits, step, whole, size = (statistics.median(column) for column in zip(*rows[MADE_FIRST:], strict=True))
        print(f"{name:17} {waits:8.4f} {first:8.3f} {step:8.3f} {whole:8.3f} {size / 1e9:8.3f}", flush=True)


class Worker:
    """A process that saves for every line it is sent."""

    def __init__(self, name, arguments, folder):
        folder.mkdir()
        python = arguments.orbax_python if name == "orbax" else sys.executable
        command = [python, __file__, "--worker", name, "--variant", arguments.variant, "--folder", str(folder)]
        environment = os.environ | {"KERAS_BACKEND": ON[name], "TF_CPP_MIN_LOG_LEVEL": "3"}
        pipe = subprocess.PIPE
        self.process: Any = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        if self.answer() != "ready\n":
            raise RuntimeError(f"{name} did not start")

    def save(self):
        """Seconds that training waits, that the next step takes longer, and until all is there; and bytes."""
        self.process.stdin.write("save\n")
        self.process.stdin.flush()
        return tuple(map(float, self.answer().split()))

    def answer(self):
        return self.process.stdout.readline()

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def work(name, variant, folder):
    model = trained(variant)
    begin = {"ours": own, "ours-jax": own, "orbax": orbax}.get(name, tensorflow)(name, model, folder)
    step = stepping(model)
    step()
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        alone = min(step() for _ in range(3))
        began = time.perf_counter()
        finish = begin(number)
        waits = time.perf_counter() - began
        later = step() - alone
        finish()
        whole = time.perf_counter() - began
        print(waits, later, whole, newest_size(folder), flush=True)


def trained(variant):
    """A model whose optimizer has its moments."""
    import keras_vit

    model = keras_vit.build(variant, input_shape=(224, 224, 3), classes=1000)
    model.compile(keras_vit.AdamW(0.001), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def stepping(model):
    """A function that changes all floating-point variables, in their places where it can, and gives the seconds."""
    import keras

    variables = [each for each in [*model.variables, *model.optimizer.variables] if "float" in each.dtype]
    change = {"tensorflow": changing_tensorflow, "jax": changing_jax}[keras.backend.backend()](variables)

    def step():
        began = time.perf_counter()
        change()
        return time.perf_counter() - began

    return step


def changing_tensorflow(variables):
    import tensorflow as tf

    @tf.function
    def change():
        for variable in variables:
            variable.value.assign_add(tf.fill(variable.shape, 1e-6))

    return change


def changing_jax(variables):
    import jax

    add = jax.jit(lambda values: [value + 1e-6 for value in values], donate_argnums=0)

    def change():
        for variable, value in zip(variables, jax.block_until_ready(add([v.value for v in variables])), strict=True):
            variable.assign(value)

    return change


def newest_size(folder):
    """Bytes of what was saved last: of all, over how many there are."""
    places = [path for path in folder.iterdir() if path.name.startswith(("step-", "orbax-"))]
    if not places:
        files = [path for path in folder.iterdir() if path.name.startswith("ckpt-")]
        return sum(path.stat().st_size for path in files) / max(len({path.stem for path in files}), 1)
    return sum(path.stat().st_size for place in places for path in place.rglob("*") if path.is_file()) / len(places)


def own(name, model, folder):
    from keras_vit.training.resuming.async_writer import AsyncWriter
    from keras_vit.training.resuming.checkpoint_folder import CheckpointFolder
    from keras_vit.training.resuming.variables import StateReader

    reader, writer = StateReader(), AsyncWriter(CheckpointFolder(folder))

    def begin(number):
        groups = {"model": model.variables, "optimizer": model.optimizer.variables}
        pieces = (piece for name, variables in groups.items() for piece in reader.shards_of(name, variables))
        writer.start(pieces, {"step": number, "epoch": 0}, "0")
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
