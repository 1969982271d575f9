"""Processes that answer lines: one for each runner, pinned to its cores, asleep while another is timed."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.request import CLASSES, OWN_FILE, PEERS, Benchmark, Case
from keras_vit.checks import cores
from keras_vit.config.variants import VARIANTS

PAUSE = 0.05  # seconds, for the threads of the step before to fall asleep: torch's wait for each other by spinning
TRAINING = {"learning_rate": 1e-3, "momentum": 0.9, "weight_decay": 0.1, "clip_norm": 1.0}
_THREADS = (  # variables that libraries read
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
)
_SIZES = ("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim")  # of a variant, for peers
_ENDING = 30  # seconds that a process has to end by itself


class WorkerError(RuntimeError):
    """A process ended without an answer."""


class Worker:
    """A runner's process.

    Attributes:
        name: of the runner.
        facts: what it has answered so far, by name; `left_out` is the reason why it is not timed.
    """

    def __init__(self, name: str, python: str, file: Path, job: dict, environment: dict) -> None:
        """Starts the process; `start` has it bring its packages and its model."""
        self.name = name
        self.facts: dict[str, Any] = {}
        self.process: Any = subprocess.Popen(
            [python, str(file), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("KERAS_VIT_BENCHMARK_LOG") else subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    @property
    def left_out(self) -> str | None:
        """Why it is not timed."""
        return self.facts.get("left_out")

    def ask(self, line: str) -> dict:
        """The answer to a line, which joins the facts.

        Raises:
            WorkerError: if the process has ended.
        """
        try:
            print(line, file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise WorkerError(
                f"the process of {self.name} ended without an answer, with code {self.process.wait()}; "
                "KERAS_VIT_BENCHMARK_LOG=1 shows its own words"
            )
        found = json.loads(answer)
        self.facts |= {name: value for name, value in found.items() if name not in ("seconds", "loss")}
        return found

    def try_to(self, line: str) -> dict:
        """As `ask`; a process that ends is left out, with that as the reason."""
        try:
            return self.ask(line)
        except WorkerError as error:
            self.facts["left_out"] = f"failed: {error}"
            return self.facts

    def step(self) -> float:
        """Seconds of one call, once the others sleep."""
        time.sleep(PAUSE)
        found = self.ask("step")
        if "seconds" not in found:
            raise WorkerError(f"{self.name} {self.left_out}")
        return found["seconds"]

    def stop(self) -> None:
        """Ends the process."""
        try:
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait(_ENDING)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


def worker_of(runner: str, asked: Benchmark, case: Case, files: dict, **values: object) -> Worker:
    """The process of a runner: a peer's name, or `ours-` and the name of a runner of this package.

    Args:
        runner: its name in the results.
        asked: the whole benchmark.
        case: what it will do.
        files: paths by what they hold.
        **values: other values of the job.
    """
    peer = PEERS.get(runner)
    python, file = (sys.executable, OWN_FILE) if peer is None else (peer.python, peer.file)
    job = {
        **dataclasses.asdict(case),
        **TRAINING,
        "runner": runner,
        "sizes": {name: getattr(VARIANTS[case.model], name) for name in _SIZES},
        "classes": CLASSES,
        "files": files,
        "threads": asked.threads,
        "cores": cores()[: asked.threads],
        "optimizer": asked.optimizer,
        "activation": asked.activation,
        "device": asked.device,
        **values,
    }
    return Worker(runner, python, file, job, environment(asked, case.precision, own=file == OWN_FILE))


def environment(asked: Benchmark, precision: str, own: bool) -> dict[str, str]:
    """The variables of a process: threads, backend, device, and for own runners the path of this package."""
    found = {
        "TF_ENABLE_ONEDNN_OPTS": "1",  # as by default from AVX-512 on
        **os.environ,
        **dict.fromkeys(_THREADS, str(asked.threads)),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_BACKEND": asked.backend,
        "HF_HUB_OFFLINE": "1",
    }
    found.pop("PYTHONSAFEPATH", None)  # the files of a process are in one folder
    if asked.device == "cpu":
        found |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    else:  # which all processes share
        found |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        if precision == "float32":  # and no TensorFloat-32, which libraries take for it by default
            found |= {"NVIDIA_TF32_OVERRIDE": "0", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    if own:
        places = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]
        found["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    return found
