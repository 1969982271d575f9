"""What is asked of a benchmark, and who can be asked: runners, peers, tasks. Facts and checks, without Keras."""

import dataclasses
import itertools
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from keras_vit.checks import check_choice, check_int, check_positive_int, check_threads, did_you_mean
from keras_vit.config.records import ACTIVATIONS
from keras_vit.config.variants import VARIANTS, check_image_size

TASKS = ("inference", "train", "build", "load")
FRESH = ("build", "load")  # tasks that a process does once
PRECISIONS = ("float32", "bfloat16", "int8")
OPTIMIZERS = ("adamw", "sgd")
BACKENDS = ("tensorflow", "jax", "torch")
DEVICES = ("cpu", "gpu")
CLASSES = 1000
PEERS_PYTHON, HUB_PYTHON = "KERAS_VIT_PEERS_PYTHON", "KERAS_VIT_HUB_PYTHON"  # variables that name an interpreter
_FOLDER = Path(__file__).parent / "peers"


@dataclasses.dataclass(frozen=True)
class Peer:
    """Software that computes the same model.

    Attributes:
        file: what its process runs.
        needs: what must be installed in its interpreter.
        tasks: that it has.
        layout: of the weights that it reads, besides the official one.
        precisions: that it has, of `PRECISIONS`.
        variable: of the environment, which names its interpreter; `None` for this one.
    """

    file: Path
    needs: str
    tasks: tuple[str, ...] = TASKS
    layout: str | None = None
    precisions: tuple[str, ...] = PRECISIONS[:2]
    variable: str | None = PEERS_PYTHON

    @property
    def python(self) -> str:
        """The interpreter of its process."""
        return (self.variable and os.environ.get(self.variable)) or sys.executable


_TORCH, _TIMM = _FOLDER / "torch_peers.py", "torch timm safetensors"
PEERS = {
    "timm": Peer(_TORCH, _TIMM, layout="timm"),
    "timm-compiled": Peer(_TORCH, _TIMM, ("inference", "train"), "timm"),
    "transformers": Peer(_TORCH, "torch transformers safetensors", layout="huggingface"),
    "onnxruntime": Peer(
        _TORCH, f"{_TIMM} onnx onnxscript onnxruntime", ("inference",), "timm", precisions=("float32", "int8")
    ),
    "openvino": Peer(_TORCH, f"{_TIMM} openvino nncf", ("inference",), "timm", precisions=PRECISIONS),
    "keras-hub": Peer(_FOLDER / "keras_hub_peer.py", "keras keras-hub", variable=HUB_PYTHON),
    "flax": Peer(_FOLDER / "flax_peer.py", "jax flax optax"),
    "np.load": Peer(_FOLDER / "own.py", "keras tensorflow", ("load",), variable=None),
}
RUNNERS = {"model": TASKS, "xla": ("inference", "train")}
RUNNERS |= dict.fromkeys(("auto", "tensorflow", "openvino", "onnxruntime"), ("inference",))  # of `accelerate`
_ON_CPU = ("auto", "openvino", "onnxruntime")  # of this package
OWN_FILE = _FOLDER / "own.py"
_CHOICES: dict[str, Iterable[str]] = {
    **{"precision": PRECISIONS, "task": TASKS, "against": PEERS, "runners": RUNNERS, "optimizer": OPTIMIZERS},
    **{"activation": ACTIVATIONS, "backend": BACKENDS, "device": DEVICES},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """What is measured at once: the same work for every runner."""

    model: str
    image_size: int
    batch: int
    precision: str
    task: str


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Everything that is asked; the fields are the options of the command line.

    Args:
        model: names of variants without a ResNet, as `"B/16"`.
        image_size: sides of square images in pixels.
        batch: images of a call.
        precision: of `PRECISIONS`.
        task: of `TASKS`.
        against: of `PEERS`.
        runners: of `RUNNERS`; by default `model` and, for inference on TensorFlow and a CPU, `auto`.
        threads: cores that each process stays on, and threads that it computes with.
        rounds: how often each runner is timed.
        optimizer: of training.
        activation: of every MLP, here and in the peers.
        backend: of Keras, here and in keras-hub.
        device: where everything is computed.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range, an unknown word, or words that do not go together.
    """

    model: tuple[str, ...] = ("B/16",)
    image_size: tuple[int, ...] = (224,)
    batch: tuple[int, ...] = (1, 8)
    precision: tuple[str, ...] = ("float32",)
    task: tuple[str, ...] = ("inference",)
    against: tuple[str, ...] = ()
    runners: tuple[str, ...] | None = None
    threads: int = 1
    rounds: int = 20
    optimizer: str = "adamw"
    activation: str = "gelu_tanh"
    backend: str = "tensorflow"
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("model", "image_size", "batch", "precision", "task"):
            if not getattr(self, name):
                raise ValueError(f"`{name}` must name something to measure.\nReceived: {name}=().")
        for name in self.model:
            _check_model(name, self.image_size)
        for value in self.batch:
            check_positive_int("batch", value)
        for name, choices in _CHOICES.items():
            given = getattr(self, name) or ()
            for word in (given,) if isinstance(given, str) else given:
                check_choice(name, word, tuple(choices))
        check_int("rounds", self.rounds, 1)
        check_threads(self.threads)
        if "train" in self.task and "int8" in self.precision:
            raise ValueError(
                f"a training is in float32 or bfloat16.\nReceived: task={','.join(self.task)}, "
                f"precision={','.join(self.precision)}. Measure int8 by itself, with --task inference."
            )
        self._check_runners()
        for name in self.against:
            peer = PEERS[name]
            if not shutil.which(peer.python):
                raise ValueError(f"`{peer.variable}` must be an interpreter.\nReceived: {peer.python!r}.")

    def _check_runners(self) -> None:
        for name in self.runners or ():
            if name not in ("model", "xla") and self.backend != "tensorflow":
                raise ValueError(
                    "engines open a model of Keras on TensorFlow.\nReceived: "
                    f"runners={name!r}, backend={self.backend!r}. Pass --runners model."
                )
            if name in _ON_CPU and self.device == "gpu":
                raise ValueError(
                    "openvino and onnxruntime compute on the processor, and auto may take them.\nReceived: "
                    f"runners={name!r}, device={self.device!r}. Pass --runners model, xla or tensorflow."
                )
        for task in self.task:
            if not self.own_runners(task):
                raise ValueError(
                    f"every task needs a runner of this package that has it.\nReceived: task={task!r}, "
                    f"runners={','.join(self.runners or ())!r}. Add model."
                )

    def own_runners(self, task: str) -> list[str]:
        """Ours that are measured for a task."""
        engines = ("auto",) if self.backend == "tensorflow" and self.device == "cpu" else ()
        asked = ("model", *engines) if self.runners is None else self.runners
        return [name for name in dict.fromkeys(asked) if task in RUNNERS[name]]

    def cases(self) -> Iterator[Case]:
        """What is measured, one after the other; building and loading in float32 and once for all batches."""
        found = itertools.product(self.model, self.image_size, self.task, self.precision, self.batch)
        yield from dict.fromkeys(
            Case(model, side, 1, "float32", task) if task in FRESH else Case(model, side, batch, precision, task)
            for model, side, task, precision, batch in found
        )


def _check_model(name: str, image_sizes: Iterable[int]) -> None:
    plain = [variant for variant, config in VARIANTS.items() if config.resnet_stages is None]
    if name not in plain:
        raise ValueError(
            f"a benchmark is of a variant without a ResNet, which every peer has: {', '.join(plain)}.\n"
            f"Received: {name!r}.{did_you_mean(name, plain)}"
        )
    for side in image_sizes:
        check_image_size(check_positive_int("image_size", side), VARIANTS[name])
