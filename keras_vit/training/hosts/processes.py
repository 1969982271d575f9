"""Several processes that train together: whether this is one of them, and their connection.

The engine is `jax.distributed`, by `keras.distribution.initialize`. It reads what SLURM, Open MPI 4, Kubernetes and TPU
pods set; elsewhere the three variables `KERAS_DISTRIBUTION_*`.
"""

import contextlib
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from keras_vit.checks import ArgumentError

KERAS = "KERAS_DISTRIBUTION_"
ADDRESS, COUNT, INDEX = (f"{KERAS}{name}" for name in ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID"))
_JAX_ADDRESS = "JAX_COORDINATOR_ADDRESS"
_COUNTS = (COUNT, "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")  # variables that hold the number of processes
_REPORT_AFTER = 5.0  # seconds of waiting
_LEAVING = 5.0  # seconds in which the others fail too, if all do
_STEP = "SLURM_STEP_NODELIST"  # srun's; a script of sbatch is one process, whatever SLURM_NTASKS says
_POD = ("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX")  # together, in a pod of an indexed Job or a JobSet


def launched_by() -> str | None:
    """What in the environment says that this is one of several processes, as `"SLURM_NTASKS=4"`, or `None`."""
    for name in _COUNTS:
        if _is_several(name) and (name != "SLURM_NTASKS" or _STEP in os.environ):
            return f"{name}={os.environ[name]}"
    for name in (ADDRESS, _JAX_ADDRESS, "MEGASCALE_COORDINATOR_ADDRESS"):
        if os.environ.get(name):
            return f"{name}={os.environ[name]}"
    if "," in os.environ.get("TPU_WORKER_HOSTNAMES", ""):
        return "several hosts in TPU_WORKER_HOSTNAMES"
    if all(name in os.environ for name in _POD):
        return f"{_POD[1]}={os.environ[_POD[1]]}"
    return "libtpu" if importlib.util.find_spec("libtpu") else None  # a pod's hosts are known to its metadata server


def _is_several(name: str) -> bool:
    """Whether a variable holds a number above 1, or a word that `connect` will refuse."""
    text = os.environ.get(name) or "1"
    return not text.isdecimal() or int(text) > 1


def connect(say: Callable[[str], Any] = print) -> None:
    """Connects this process with the others, if there are others; once, and before JAX computes anything.

    Args:
        say: called with a line if it takes long, since JAX then ends the process in words of its own.

    Raises:
        ValueError: where there are others and the environment does not say where.
    """
    import jax
    import keras

    sign = launched_by()
    if sign is None or jax.distributed.is_initialized():
        return
    # Its handler of SIGTERM would replace that of `Checkpoints`: a process would go on until it is killed.
    jax.config.update("jax_enable_preemption_service", False)
    line = f"waits for the other processes ({sign}); if one does not join within 300 s, JAX aborts all"
    waiting = threading.Timer(_REPORT_AFTER, say, (line,))
    waiting.start()
    try:
        keras.distribution.initialize()
    except (ValueError, RuntimeError, TypeError, LookupError) as error:
        raise ValueError(
            "the processes that train together must find each other.\n"
            f"Received: {sign}, of which JAX says: {error} Set {ADDRESS}=host:port of the first process, with a free "
            f"port, {COUNT} and {INDEX}, as for Open MPI 5, and connect before anything is computed."
        ) from error
    finally:
        waiting.cancel()


def check_alone() -> None:
    """Says of a process that will train by itself that it is one of several.

    Raises:
        ValueError: if Keras' own variables say so, which have no other use.

    Warns:
        UserWarning: if a launcher's do.
    """
    sign = launched_by()
    if sign is None or sign == "libtpu":
        return
    rule = "processes that are started together train together with `layout` only."
    advice = 'Pass "replicated", "fsdp" or "tensor:k".'
    if sign.startswith(KERAS):
        raise ArgumentError(f"{rule}\nReceived: {sign}, layout='none'. {advice}")
    warnings.warn(f"{rule} {sign} says that this is one of several. {advice}", stacklevel=3)


def exit_without_waiting(code: int) -> None:
    """Ends this process, which has failed, if it is one of several and the others go on.

    JAX lets none of them exit before all do, and these wait for this one: it aborts all after 300 s, as measured with
    JAX 0.10. Where all fail together this returns.
    """
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return
    leaving = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    leaving.start()
    leaving.join(_LEAVING)
    if leaving.is_alive():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, full or none
                stream.flush()
        os._exit(code)


def is_first() -> bool:
    """Whether this process writes what is written once; on JAX, after `connect`."""
    import jax

    return jax.process_index() == 0
