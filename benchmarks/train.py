"""How long a training step takes and how much memory, against timm and keras-hub, on the same threads.

    python benchmarks/train.py [--variant B/16] [--batch-size 8] [--rounds 20] [--dtypes float32 bfloat16]
        [--only ours timm ...] [--peers-python PYTHON] [--hub-python PYTHON]

Every competitor is a process in its own environment: KERAS_VIT_PEERS_PYTHON has torch and timm,
KERAS_VIT_HUB_PYTHON keras-hub. All do the same: softmax cross-entropy over 1,000 classes, gradients clipped at
norm 1, SGD with momentum 0.9, nothing dropped. They take steps in turn, one at a time while the others sleep,
in alternating order, so that a drifting machine touches all alike; a ratio is the median over rounds. Run it on a
machine that does nothing else: torch's threads wait for each other by spinning, and a third busy thread on two
cores makes its step ten times slower, not ours. Memory is the largest the process ever was (VmHWM). bfloat16 is
Keras' `mixed_bfloat16` and torch's autocast. TensorFlow's oneDNN kernels are on, as by default from AVX-512 on.
`--only ours-xla` is ours compiled by XLA, as on a GPU.
"""

import argparse
import importlib.machinery
import os
import statistics
import subprocess
import sys
import time
import types

CLASSES, RATE, MOMENTUM, CLIP_NORM = 1000, 0.01, 0.9, 1.0
PAUSE = 0.05  # seconds, for the threads of the step before to fall asleep
# hidden size, layers, heads, MLP width, patch size; of the variants that all three have
SIZES = {
    "Ti/16": (192, 12, 3, 768, 16),
    "S/16": (384, 12, 6, 1536, 16),
    "B/16": (768, 12, 12, 3072, 16),
    "B/32": (768, 12, 12, 3072, 32),
    "L/16": (1024, 24, 16, 4096, 16),
}


def main():
    arguments = parse()
    if arguments.worker:
        return work(arguments)
    for dtype in arguments.dtypes:
        workers = {name: Worker(name, dtype, arguments) for name in arguments.only}
        try:
            seconds = measure(workers, arguments.rounds)
            report(dtype, seconds, {name: worker.memory() for name, worker in workers.items()})
        finally:
            for worker in workers.values():
                worker.stop()
    return None


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", choices=SIZES, default="B/16")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    usual = [name for name in COMPETITORS if name != "ours-xla"]
    parser.add_argument("--only", nargs="+", choices=COMPETITORS, default=usual)
    parser.add_argument("--peers-python", default=os.environ.get("KERAS_VIT_PEERS_PYTHON", sys.executable))
    parser.add_argument("--hub-python", default=os.environ.get("KERAS_VIT_HUB_PYTHON", sys.executable))
    parser.add_argument("--worker", choices=COMPETITORS, help=argparse.SUPPRESS)
    return parser.parse_args()


class Worker:
    """A competitor's process, which takes a step for every line it is sent."""

    def __init__(self, name, dtype, arguments):
        python = {"timm": arguments.peers_python, "keras-hub": arguments.hub_python}
        command = [python.get(name.removesuffix("-compiled"), sys.executable), __file__, "--worker", name]
        for option in ("variant", "image_size", "batch_size", "threads"):
            command += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
        environment = {
            "TF_ENABLE_ONEDNN_OPTS": "1",
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "KERAS_BACKEND": "tensorflow",
        }
        self.name = name
        self.process = subprocess.Popen(
            [*command, "--dtypes", dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.ask("warm up")

    def ask(self, line):
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.name} failed while asked to {line!r}; its own words stand above")
        return float(answer)

    def step(self):
        time.sleep(PAUSE)
        return self.ask("step")

    def memory(self):
        return self.ask("memory")

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def measure(workers, rounds):
    """Seconds of every step, in lists by competitor; forth and back, so that none always follows the same."""
    seconds = {name: [] for name in workers}
    for number in range(rounds):
        for name in list(workers)[:: -1 if number % 2 else 1]:
            seconds[name].append(workers[name].step())
    return seconds


def report(dtype, seconds, memory):
    first = next(iter(seconds))
    print(f"{dtype:16}{'seconds':>9}{'spread':>9}{first + ' over it':>18}{'GiB':>8}")
    for name, steps in seconds.items():
        quarters = statistics.quantiles(steps, n=4) if len(steps) > 1 else [steps[0]] * 3
        ratio = statistics.median(ours / theirs for ours, theirs in zip(seconds[first], steps, strict=True))
        spread = (quarters[2] - quarters[0]) / quarters[1]
        print(f"{name:16}{quarters[1]:9.3f}{spread:9.1%}{ratio:18.3f}{memory[name] / 2**30:8.2f}", flush=True)


def work(arguments):
    """Answers each line with a number, and says nothing else on the standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not get between
    step = None
    for line in map(str.strip, sys.stdin):
        if line == "memory":
            answer = peak_memory()
        else:
            if step is None:
                step = COMPETITORS[arguments.worker](arguments)
                for _ in range(2):  # tracing, compiling, and the first allocations
                    step()
            start = time.perf_counter()
            loss = step()
            answer = time.perf_counter() - start
            if not 0 < loss < 100:
                sys.exit(f"{arguments.worker}: the loss is {loss}, so nothing was trained")
        print(answer, file=answers, flush=True)


def peak_memory():
    """Bytes: the most that this process ever had resident."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def batch(arguments):
    import numpy as np

    rng = np.random.default_rng(0)
    side = arguments.image_size
    images = rng.uniform(-1, 1, (arguments.batch_size, side, side, 3)).astype("float32")
    return images, rng.integers(0, CLASSES, arguments.batch_size)


def prepare_keras(arguments):
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    if arguments.dtypes[0] == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")


def keras_step(model, optimizer, arguments, jit_compile=False):
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=None, jit_compile=jit_compile)  # keras-hub would count accuracy
    images, labels = batch(arguments)
    return lambda: float(model.train_on_batch(images, labels, return_dict=True)["loss"])


def ours(arguments, jit_compile=False):
    prepare_keras(arguments)
    import keras_vit
    from keras_vit.training.optimizers import SGD

    side = arguments.image_size
    model = keras_vit.build(arguments.variant, input_shape=(side, side, 3), classes=CLASSES)
    optimizer = SGD(RATE, momentum=MOMENTUM, global_clipnorm=CLIP_NORM)
    return keras_step(model, optimizer, arguments, jit_compile)


def ours_with_xla(arguments):
    return ours(arguments, jit_compile=True)


def keras_hub_step(arguments):
    prepare_keras(arguments)
    import keras
    import keras_hub

    hidden_size, layers, heads, mlp_dim, patch_size = SIZES[arguments.variant]
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(arguments.image_size, arguments.image_size, 3),
        patch_size=patch_size,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=hidden_size,
        mlp_dim=mlp_dim,
    )
    model = keras_hub.models.ViTImageClassifier(backbone, CLASSES)
    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM, global_clipnorm=CLIP_NORM)
    return keras_step(model, optimizer, arguments)


def timm_step(arguments, compiled=False):
    sys.meta_path.insert(0, StandIns())
    import contextlib

    import timm
    import torch

    torch.set_num_threads(arguments.threads)
    hidden_size, layers, heads, mlp_dim, patch_size = SIZES[arguments.variant]
    model = timm.models.vision_transformer.VisionTransformer(
        arguments.image_size,
        patch_size,
        num_classes=CLASSES,
        embed_dim=hidden_size,
        depth=layers,
        num_heads=heads,
        mlp_ratio=mlp_dim / hidden_size,
        act_layer=lambda: torch.nn.GELU(approximate="tanh"),  # as ours
    ).train()
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM)
    images, labels = batch(arguments)
    images, labels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)
    half = arguments.dtypes[0] == "bfloat16"

    def step():
        with torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext():
            loss = torch.nn.functional.cross_entropy(forward(images), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()  # here, as timm's own script, so that the next forward pass runs without gradients
        return loss.item()

    return step


def timm_compiled_step(arguments):
    return timm_step(arguments, compiled=True)


class StandIns:
    """Empty modules in place of torchvision, which timm imports and which has no build for a CPU-only torch."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = self.attribute
        return module

    def attribute(self, name):
        if name.startswith("__") or name == "InterpolationMode":
            raise AttributeError(name)
        return type(name, (), {})

    def exec_module(self, module):
        """Nothing to run."""


COMPETITORS = {
    "ours": ours,
    "ours-xla": ours_with_xla,
    "timm": timm_step,
    "timm-compiled": timm_compiled_step,
    "keras-hub": keras_hub_step,
}

if __name__ == "__main__":
    main()
