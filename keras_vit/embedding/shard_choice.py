"""Which of several jobs this one is: as a command says, or as SLURM, Kubernetes and launchers tell by variables."""

import os
import re
from collections.abc import Mapping

from keras_vit.checks import ArgumentError

_INDEX = ("JOB_COMPLETION_INDEX", "RANK")  # of Kubernetes' indexed jobs, and of launchers
_COUNT = ("NUM_SHARDS", "WORLD_SIZE")
_NO_GAPS = " An array of SLURM must have no gaps, as --array=0-7."


def shard_of(text: str | None, environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """`(i, n)`, the number of this job from 0 on, and how many there are; `(0, 1)` of one alone.

    Args:
        text: as `"2/8"`; `None` asks the variables.
        environment: by default that of the process.

    Raises:
        ValueError: for what are no such numbers.
    """
    if text is not None:
        found = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
        return _checked(found[1] if found else "", found[2] if found else "", f"--shard {text}")
    known = os.environ if environment is None else environment
    if "SLURM_ARRAY_TASK_ID" in known:
        return _of_slurm(known)
    index = next((name for name in _INDEX if name in known), None)
    count = next((name for name in _COUNT if name in known), None)
    if index is None:
        return 0, 1
    if count is None:
        raise ArgumentError(
            f"the number of a job needs how many there are, {' or '.join(_COUNT)}.\n"
            f"Received: {index}={known[index]} alone. Set NUM_SHARDS, or pass --shard 0/1 for a job of its own.",
            parameters=("shard",),
        )
    return _checked(known[index], known[count], f"{index}={known[index]}, {count}={known[count]}")


def _of_slurm(known: Mapping[str, str]) -> tuple[int, int]:
    """Of an array as `--array=0-7` or `--array=1-15:2`; one whose numbers leave gaps is told."""
    names = ["SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP", "SLURM_ARRAY_TASK_COUNT"]
    given = [known.get(name, {"SLURM_ARRAY_TASK_STEP": "1"}.get(name, "")) for name in names]
    said = ", ".join(f"{name}={value}" for name, value in zip(names, given, strict=True))
    if not all(value.isascii() and value.isdecimal() for value in given) or int(given[2]) < 1:
        raise _error(said, _NO_GAPS)
    number, first, step, count = map(int, given)
    return _checked(str((number - first) // step), str(count), said, _NO_GAPS)


def _checked(index: str, count: str, said: str, hint: str = "") -> tuple[int, int]:
    numbers = [int(text) if text.isascii() and text.isdecimal() else -1 for text in (index, count)]
    if not 0 <= numbers[0] < numbers[1]:
        raise _error(said, hint)
    return numbers[0], numbers[1]


def _error(said: str, hint: str) -> Exception:
    return ArgumentError(
        "the number of a job counts from 0 and is below how many there are, as --shard 0/8 to --shard 7/8.\n"
        f"Received: {said}.{hint}",
        parameters=("shard",),
    )
