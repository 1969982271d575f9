"""What is asked of a benchmark, and who can be asked: runners, peers, tasks. Facts and checks, without Keras."""

import dataclasses
import itertools
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from keras_vit.checks import check_choice, check_int, check_positive_int, check_threads, did_you_mean
from keras_vit.config.variants import VARIANTS, check_image_size
from keras_vit.config.vit import ACTIVATIONS
from keras_vit.exporting.formats import ENGINES

TASKS = ("inference", "train", "build", "load")
FRESH = ("build", "load")  # of which a process does one
PRECISIONS = ("float32", "bfloat16", "int8")
_FLOATS = PRECISIONS[:2]
OPTIMIZERS = ("adamw", "sgd")
BACKENDS = ("tensorflow", "jax", "torch")
DEVICES = ("cpu", "gpu")
CLASSES = 1000
PEERS_PYTHON, HUB_PYTHON = "KERAS_VIT_PEERS_PYTHON", "KERAS_VIT_HUB_PYTHON"
_FOLDER = Path(__file__).parent / "peers"


@dataclasses.dataclass(frozen=True)
class Peer:
    """Software that computes the same model.

    Attributes:
        file: what its process runs.
        python: field of `Benchmark` that names its interpreter; `None` for this one.
        tasks: that it has.
        needs: what must be installed in its interpreter.
        layout: of the weights that it reads, beside the official one.
        precisions: that it has, of `PRECISIONS`.
    """

    file: Path
    python: str | None
    tasks: tuple[str, ...]
    needs: str
    layout: str | None = None
    precisions: tuple[str, ...] = _FLOATS


PEERS = {
    "timm": Peer(_FOLDER / "timm_peer.py", "peers_python", TASKS, "torch timm safetensors", "timm"),
    "timm-compiled": Peer(
        _FOLDER / "timm_peer.py", "peers_python", ("inference", "train"), "torch timm safetensors", "timm"
    ),
    "transformers": Peer(
        _FOLDER / "transformers_peer.py", "peers_python", TASKS, "torch transformers safetensors", "huggingface"
    ),
    "keras-hub": Peer(_FOLDER / "keras_hub_peer.py", "hub_python", TASKS, "keras keras-hub"),
    "onnxruntime": Peer(
        _FOLDER / "exported_peer.py",
        "peers_python",
        ("inference",),
        "torch timm safetensors onnx onnxscript onnxruntime",
        "timm",
        ("float32", "int8"),
    ),
    "openvino": Peer(
        _FOLDER / "exported_peer.py",
        "peers_python",
        ("inference",),
        "torch timm safetensors openvino nncf",
        "timm",
        PRECISIONS,
    ),
    "flax": Peer(_FOLDER / "flax_peer.py", "peers_python", TASKS, "jax flax optax"),
    "np.load": Peer(_FOLDER / "own.py", None, ("load",), "keras tensorflow"),
}
RUNNERS = {"model": TASKS, "xla": ("inference", "train")}
RUNNERS |= {name: ("inference",) for name in ENGINES if name not in RUNNERS}
_ON_CPU = ("openvino", "onnxruntime", "auto")  # of ours
OWN_FILE = _FOLDER / "own.py"
_CHOICES: dict[str, Iterable[str]] = {
    **{"precisions": PRECISIONS, "tasks": TASKS, "peers": PEERS, "runners": RUNNERS, "optimizer": OPTIMIZERS},
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
    """Everything that is asked.

    Args:
        models: names of variants without a ResNet, as `"B/16"`.
        image_sizes: sides of square images in pixels.
        batches: images of a call.
        precisions: of `PRECISIONS`.
        tasks: of `TASKS`.
        threads: cores that each process stays on, and threads that it computes with.
        peers: of `PEERS`.
        runners: of `RUNNERS`; by default `model` and, where answers are timed on TensorFlow and a CPU, `auto`.
        rounds: how often each runner is timed.
        warmup: calls before that are not timed.
        optimizer: of training.
        activation: of every MLP, here and in the peers.
        backend: of Keras, here and in keras-hub.
        device: where everything is computed.
        matrix_peak: side of a matrix whose product is timed too, for the share of that speed; 0 for none.
        peers_python: interpreter of the peers; by default that of the environment variable, else this one.
        hub_python: of keras-hub, likewise.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range, an unknown word, or words that do not go together.
    """

    models: tuple[str, ...] = ("B/16",)
    image_sizes: tuple[int, ...] = (224,)
    batches: tuple[int, ...] = (1, 8)
    precisions: tuple[str, ...] = ("float32",)
    tasks: tuple[str, ...] = ("inference",)
    threads: int = 1
    peers: tuple[str, ...] = ()
    runners: tuple[str, ...] | None = None
    rounds: int = 20
    warmup: int = 2
    optimizer: str = "adamw"
    activation: str = "gelu_tanh"
    backend: str = "tensorflow"
    device: str = "cpu"
    matrix_peak: int = 0
    peers_python: str | None = None
    hub_python: str | None = None

    def __post_init__(self):
        for name in ("models", "image_sizes", "batches", "precisions", "tasks"):
            if not getattr(self, name):
                raise ValueError(f"`{name}` must name something to measure.\nReceived: {name}=().")
        for name in self.models:
            _check_model(name, self.image_sizes)
        for name in ("image_sizes", "batches"):
            for value in getattr(self, name):
                check_positive_int(name, value)
        for name, choices in _CHOICES.items():
            given = getattr(self, name) or ()
            for word in (given,) if isinstance(given, str) else given:
                check_choice(name, word, tuple(choices))
        for name, least in (("rounds", 1), ("warmup", 1), ("matrix_peak", 0), ("threads", 1)):
            check_int(name, getattr(self, name), least)
        check_threads(self.threads)
        if "train" in self.tasks and "int8" in self.precisions:
            raise ValueError(
                f"a training is in float32 or bfloat16.\nReceived: tasks={','.join(self.tasks)!r}, "
                f"precisions={','.join(self.precisions)!r}. Measure int8 by itself, with --task inference."
            )
        self._check_runners()
        for name in self.peers:
            if not shutil.which(self.python_of(name)):
                field = PEERS[name].python
                raise ValueError(f"`{field}` must be an interpreter.\nReceived: {field}={self.python_of(name)!r}.")

    def _check_runners(self):
        for name in self.runners or ():
            if name in ENGINES and name not in ("xla",) and self.backend != "tensorflow":
                raise ValueError(
                    "engines open a model of Keras on TensorFlow.\nReceived: "
                    f"runners={name!r}, backend={self.backend!r}. Pass --runners model."
                )
            if name in _ON_CPU and self.device == "gpu":
                raise ValueError(
                    "openvino and onnxruntime compute on the processor, and auto may take them.\nReceived: "
                    f"runners={name!r}, device={self.device!r}. Pass --runners model, xla, tensorflow or torch."
                )
        for task in self.tasks:
            if not self.own_runners(task):
                raise ValueError(
                    f"every task needs a runner of ours that has it.\nReceived: tasks={task!r}, "
                    f"runners={','.join(self.runners or ())!r}. Add model."
                )

    def own_runners(self, task: str) -> list[str]:
        """Ours that are measured for a task."""
        engines = ("auto",) if self.backend == "tensorflow" and self.device == "cpu" else ()
        asked = ("model", *engines) if self.runners is None else self.runners
        return [name for name in dict.fromkeys(asked) if task in RUNNERS[name]]

    def cases(self) -> Iterator[Case]:
        """What is measured, one after the other; building and loading in float32 and once for all batches."""
        found = itertools.product(self.models, self.image_sizes, self.tasks, self.precisions, self.batches)
        once = {
            Case(model, side, 1, "float32", task)
            if task in ("build", "load")
            else Case(model, side, batch, dtype, task)
            for model, side, task, dtype, batch in found
        }
        order = ("models", "image_sizes", "tasks", "precisions", "batches")
        places = [getattr(self, name) for name in order]

        def place(case):
            words = (case.model, case.image_size, case.task, case.precision, case.batch)
            return [values.index(word) if word in values else -1 for values, word in zip(places, words, strict=True)]

        yield from sorted(once, key=place)

    def python_of(self, peer: str) -> str:
        """The interpreter of a peer."""
        if (field := PEERS[peer].python) is None:
            return sys.executable
        variable = {"peers_python": PEERS_PYTHON, "hub_python": HUB_PYTHON}[field]
        return getattr(self, field) or os.environ.get(variable) or sys.executable


def _check_model(name, image_sizes):
    plain = [variant for variant, config in VARIANTS.items() if config.resnet_stages is None]
    if name not in plain:
        raise ValueError(
            f"a benchmark is of a variant without a ResNet, which every peer has: {', '.join(plain)}.\n"
            f"Received: {name!r}.{did_you_mean(name, plain)}"
        )
    for side in image_sizes:
        check_image_size(side, VARIANTS[name])
