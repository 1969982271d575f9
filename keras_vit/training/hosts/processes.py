"""Several processes that train together: whether this is one of them, and their connection.

The engine is `jax.distributed`, by `keras.distribution.initialize`. It asks SLURM, Open MPI 4, Kubernetes and TPU pods
for what it needs; elsewhere the three variables `KERAS_DISTRIBUTION_*` say it.
"""

import contextlib
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from keras_vit.checks import ArgumentError
from keras_vit.training.hosts.meeting import check_address, check_place, meet

KERAS = "KERAS_DISTRIBUTION_"
ADDRESS, COUNT, INDEX = (f"{KERAS}{name}" for name in ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID"))
_JAX_ADDRESS = "JAX_COORDINATOR_ADDRESS"
_COUNTS = (COUNT, "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")  # variables that hold the number of processes
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


def connect(
    facts: Mapping[str, Any] | None = None,
    unlike: Callable[[Mapping, Mapping, int], str | None] = lambda *_: None,
    say: Callable[[str], Any] = print,
) -> None:
    """Connects this process with the others, if there are others; once, and before JAX computes anything.

    Args:
        facts: what this process was asked for, ready for JSON; `None` asks for no agreement.
        unlike: as `meeting.meet` takes it.
        say: called with a line if it takes long.

    Raises:
        ValueError: where there are others and they cannot be found, or were asked for something else.
    """
    import jax
    import keras

    sign = launched_by()
    if sign is None or jax.distributed.is_initialized():
        return
    _meet(facts or {}, unlike, say)
    # Its handler of SIGTERM would take the place of ours: a process would go on, and the launcher have to kill it.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        keras.distribution.initialize()
    except (ValueError, RuntimeError, TypeError, LookupError) as error:
        raise ValueError(
            "the processes that train together must find each other.\n"
            f"Received: {sign}, of which JAX says: {error} Set {ADDRESS}=host:port of the first process, {COUNT} and "
            f"{INDEX}, as for Open MPI 5, and connect before anything is computed."
        ) from error


def _meet(facts: Mapping[str, Any], unlike: Callable, say: Callable) -> None:
    """Checks what the variables say; where they say all, waits for the others."""
    name = ADDRESS if os.environ.get(ADDRESS) else _JAX_ADDRESS
    address, count, index = (os.environ.get(each, "") for each in (name, COUNT, INDEX))
    place = check_address(name, address) if address else None
    numbers = check_place((COUNT, INDEX), count, index) if count and index else None
    if place and numbers:
        meet(*place, *numbers, facts, unlike, say)


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
        raise ArgumentError(f"{rule}\nReceived: {sign}, layout='none'. {advice}", parameters=("layout",))
    warnings.warn(f"{rule} {sign} says that this is one of several. {advice}", stacklevel=3)


def leave_others(code: int) -> None:
    """Ends this process, which has failed, if it is one of several and the others go on.

    JAX lets none of them exit before all do, and these wait for this one: it would be 300 s until a launcher sees that
    it has failed. Where all fail together this returns.
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
