"""What a model is trained for, one file each: `finetune`, `evaluate`, `predict` and `export` ask the task of a run.

`Task` says what a task must have. A new task is a module here and a row of `TASKS`. No module here imports Keras before
a method needs it, so that a command line knows the options of every task at once.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from keras_vit.checks import ArgumentError, did_you_mean
from keras_vit.tasks.task import Task

TASKS = {  # a class in the module of that name, with `_` for `-`
    "classification": "Classification",
    "multi-label": "MultiLabel",
    "contrastive": "Contrastive",
    "depth": "Depth",
    "regression": "Regression",
    "segmentation": "Segmentation",
}
DEFAULT = "classification"  # of a run that names none, and of every run before version 0.7


def find_task(what: Any = None) -> Task:
    """The task that is named.

    Args:
        what: a `Task`; a name of `TASKS`; what a run folder stores, as `{"name": "regression", "loss": "mae"}`; or
            `None` for that of a run that names none.

    Raises:
        ValueError: for a name, an option or a value that cannot be.
        TypeError: for anything else.
    """
    if isinstance(what, Task):
        return what
    stored = dict(what) if isinstance(what, Mapping) else {"name": DEFAULT if what is None else what}
    name = stored.pop("name", None)
    if isinstance(what, (list, tuple)) or not isinstance(name, str):
        raise ArgumentError(f"`task` must be a name or a `Task`.\nReceived: an object of type {type(what).__name__}.")
    if name not in TASKS:
        raise ArgumentError(
            f"`task` must be one of {', '.join(TASKS)}.\nReceived: {name!r}.{did_you_mean(name, TASKS)}"
        )
    kind = _kind(name)
    known = {option.name for option in kind.options()}
    if unknown := sorted(set(stored) - known):
        having = " or ".join(task for task in TASKS if unknown[0] in {each.name for each in _kind(task).options()})
        raise ArgumentError(
            f"the task {name} has no option `{unknown[0]}`.\nReceived: `{unknown[0]}`"
            + (f", which is an option of the task {having}." if having else f".{did_you_mean(unknown[0], known)}"),
            parameters=("task", unknown[0]),
        )
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()})


def all_options() -> dict[str, Any]:
    """The options of all tasks by name, as fields of records."""
    return {option.name: option for name in TASKS for option in _kind(name).options()}


def task_of_model(model: Any) -> Task:
    """The task of a model without a run, by the kind of its head; that of a model without one is the default."""
    if hasattr(model, "scale_and_bias"):  # both towers, as a contrastive run saves them
        return find_task("contrastive")
    head = getattr(getattr(model, "output_spec", None), "head", None)
    names = (name for name in TASKS if head is not None and _kind(name).head == head.name)
    return find_task(next(names, None))


def _kind(name: str) -> type[Task]:
    return getattr(importlib.import_module(f"keras_vit.tasks.{name.replace('-', '_')}"), TASKS[name])


def __getattr__(name: str) -> Any:
    """The record of a task by its class, as `keras_vit.tasks.Classification`."""
    for task, kind in TASKS.items():
        if kind == name:
            return _kind(task)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
