"""Checks of arguments, each with the message that a user reads: the rule, what was received, the nearest choice.

A check of one value takes the argument's name and the value, and returns the value. `validate` reads the checks of a
record's fields off their annotations, as `patch_size: PositiveInt`.
"""

import argparse
import dataclasses
import difflib
import functools
import hashlib
import importlib
import inspect
import math
import operator
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, KeysView, Mapping, Set
from pathlib import Path
from typing import Annotated, Any, TypeVar

from keras_vit.synonyms import find_hub_weights, find_resnets, find_variant, find_variants_of_size, lookup

STRATEGIES = ("auto", "one", "mirrored", "tpu")  # for the devices of one machine
TRAINING_PRECISIONS = ("auto", "float32", "tensorfloat32", "mixed_bfloat16", "mixed_float16")
_SEVERAL_HOSTS = (
    "Keras 3 does not train under MultiWorkerMirroredStrategy; for several hosts set KERAS_BACKEND=jax and use "
    "`keras.distribution`."
)
_OTHER_STRATEGIES = dict.fromkeys(
    ("multi_worker", "multiworker", "multi_worker_mirrored", "multiworkermirroredstrategy"), _SEVERAL_HOSTS
)
_first_use: dict[str, int] = {}  # the process in which models were used first
_MIN_PREFIX = 3  # letters of a prefix or suffix that may stand for a name
_NAMED = re.compile(r"`(\w+)`|(?<![\w.])(\w+)=(?!=)")  # an argument in a message
_Callable = TypeVar("_Callable", bound=Callable)
_Error = TypeVar("_Error", bound=Exception)


class ArgumentError(ValueError):
    """A wrong value of an argument.

    Attributes:
        parameters: names of the arguments; by default all that stand in the message in backticks, or as size=3. A
            command line puts its options in their place.
    """

    def __init__(self, message: str, parameters: Iterable[str] | None = None) -> None:
        super().__init__(message)
        found = (word or before for word, before in _NAMED.findall(message)) if parameters is None else parameters
        self.parameters = tuple(dict.fromkeys(found))


def with_parameters(error: _Error, *parameters: str) -> _Error:
    """An exception of another class, with the attribute of `ArgumentError`."""
    vars(error)["parameters"] = parameters
    return error


def check_int(name: str, value: Any, least: float) -> int:
    """`value` as an int; raises unless it is an integer, Python's or NumPy's (but no bool), of at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise with_parameters(
            TypeError(f"`{name}` must be an int.\nReceived: {name}={value!r} of type {type(value).__name__}."), name
        )
    if number < least:
        raise ArgumentError(f"`{name}` must be at least {least}.\nReceived: {name}={number}.")
    return number


def cores() -> list[int]:
    """Numbers of the processor's cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def check_threads(threads: Any) -> int:
    """`threads` as an int; raises for more than there are cores, which only wait for each other."""
    threads = check_positive_int("threads", threads)
    if threads > len(cores()):
        raise ArgumentError(
            f"`threads` must not be more than the cores that there are, {len(cores())}.\nReceived: threads={threads}."
        )
    return threads


def check_positive_int(name: str, value: Any) -> int:
    """`value` as an int; raises unless it is an integer (but no bool) above zero."""
    return check_int(name, value, least=1)


def parse_sides(text: str, others: str = "") -> int | tuple[int, int]:
    """An image size of a command line: a side as `224`, or `224x320`, which is (H, W); raises for anything else.

    Args:
        text: as it was written.
        others: what a size may be besides, for the error.
    """
    found = re.fullmatch(r"(\d+)(?:x(\d+))?", text, re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f"a size is as 224 or 224x320 (height, width){others}, not {text!r}")
    return int(found[1]) if found[2] is None else (int(found[1]), int(found[2]))


def as_sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """(H, W) of a side or of both."""
    return size if isinstance(size, tuple) else (size, size)


def check_sides(name: str, size: Any) -> int | tuple[int, ...]:
    """`size`, a side in pixels or (H, W), in ints; raises for anything else."""
    if not isinstance(size, (tuple, list)):
        return check_positive_int(name, size)
    if len(size) != 2:
        raise ArgumentError(f"`{name}` must be one side, or (H, W).\nReceived: {name}={size!r}.")
    return tuple(check_positive_int(name, side) for side in size)


def check_flag(name: str, value: Any) -> bool:
    """`value`; raises unless it is True or False: a word such as "no" would count as true."""
    if not isinstance(value, bool):
        raise with_parameters(TypeError(f"`{name}` must be True or False.\nReceived: {name}={value!r}."), name)
    return value


def check_text(name: str, value: Any) -> str:
    """`value`; raises unless it is a string."""
    if not isinstance(value, str):
        raise with_parameters(TypeError(f"`{name}` must be a string.\nReceived: {name}={value!r}."), name)
    return value


def check_order(name: str, names: Any) -> None:
    """Raises for names of classes that have no order, as those of a set, whose order follows hashes; and for a text."""
    if isinstance(names, (str, Set, Mapping)) and not isinstance(names, KeysView):
        raise with_parameters(
            TypeError(
                f"`{name}` must be a list of names in the order of the outputs, and a set or a dict has none.\n"
                f"Received: {name}={names!r:.80}. If they are sorted by name, pass `sorted(...)` of them."
            ),
            name,
        )


def check_choice(name: str, value: Any, choices: Collection[Any], synonyms: Mapping[str, str] | None = None) -> Any:
    """`value`; raises unless it is one of the words in `choices`: the error names the nearest one.

    Args:
        name: of the argument.
        value: of it.
        choices: the words that it may be.
        synonyms: what other packages call a choice, in small letters, and the sentence that says which it is here.
    """
    if not isinstance(value, Hashable) or value not in choices:
        other = (synonyms or {}).get(str(value).lower())
        hint = f" {other}" if other else did_you_mean(value, choices)
        raise ArgumentError(
            f"`{name}` must be one of {', '.join(map(repr, choices))}.\nReceived: {name}={value!r}.{hint}"
        )
    return value


def one_of(choices: Collection[Any], synonyms: Mapping[str, str] | None = None) -> Callable[[str, Any], Any]:
    """`check_choice` of these words, for an annotation."""
    return functools.partial(check_choice, choices=tuple(choices), synonyms=synonyms)


def did_you_mean(value: Any, choices: Collection[str], cutoff: float = 0.5) -> str:
    """`' Did you mean ...?'` for those of `choices` that other software calls so, or the nearest ones, or `''`.

    Args:
        value: what was given.
        choices: what it may be.
        cutoff: least likeness of the nearest, from 0 to 1, as `difflib` counts.
    """
    if (variant := find_variant(str(value))) in choices:
        weights = find_hub_weights(str(value))
        return f" Did you mean {variant!r}?" + (f" Weights of that name are {weights!r}." if weights else "")
    ways = (lookup, find_resnets, find_variants_of_size, functools.partial(_nearest, cutoff=cutoff))
    nearest = next(filter(None, (way(str(value), choices) for way in ways)), [])
    return f" Did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""


def _nearest(value: str, choices: Collection[str], cutoff: float) -> list[str]:
    """The nearest of `choices`, or those that begin or end so."""
    lower, value = {choice.lower(): choice for choice in choices}, value.lower()
    nearest = difflib.get_close_matches(value, lower, n=3, cutoff=cutoff)
    if len(value) >= _MIN_PREFIX:
        nearest = nearest or [choice for choice in lower if choice.startswith(value) or choice.endswith(value)][:3]
    return [lower[choice] for choice in nearest]


def with_hints(function: _Callable, hint: Callable[[str], str] | None = None) -> _Callable:
    """Decorates a function without `**kwargs`, so that the error for a wrong name has the right one.

    Args:
        function: which keeps its signature.
        hint: makes a sentence about a name, with a space before it; by default the nearest arguments.
    """
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        for name in named:
            if name not in known:
                near = did_you_mean(name, known) if hint is None else hint(name)
                raise TypeError(
                    f"the arguments must be of {', '.join(known)}.\nReceived: {name}={named[name]!r}.{near}"
                )
        return function(*arguments, **named)

    return checked  # type: ignore[return-value]


def check_number(name: str, value: Any) -> float:
    """`value`; raises unless it is an int or a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise with_parameters(TypeError(f"`{name}` must be a number.\nReceived: {name}={value!r}."), name)
    return value


def check_positive(name: str, value: Any) -> float:
    """`value`; raises unless it is a finite number above zero."""
    check_number(name, value)
    if not (value > 0 and math.isfinite(value)):
        raise ArgumentError(f"`{name}` must be above 0 and finite.\nReceived: {name}={value}.")
    return value


def check_nonnegative(name: str, value: Any) -> float:
    """`value`; raises unless it is a finite number of at least zero."""
    check_number(name, value)
    if not (value >= 0 and math.isfinite(value)):
        raise ArgumentError(f"`{name}` must be at least 0 and finite.\nReceived: {name}={value}.")
    return value


def check_fraction(name: str, value: Any) -> float:
    """`value`; raises unless it is a number in [0, 1)."""
    check_number(name, value)
    if not 0 <= value < 1:
        raise ArgumentError(f"`{name}` must be in [0, 1).\nReceived: {name}={value}.")
    return value


def check_share(name: str, value: Any) -> float:
    """`value`; raises unless it is a number in (0, 1]."""
    if not 0 < check_number(name, value) <= 1:
        raise ArgumentError(f"`{name}` must be in (0, 1].\nReceived: {name}={value}.")
    return value


def check_steps(name: str, value: Any) -> int:
    """`value` as an int; raises unless it is a number of steps: an integer of at least zero."""
    return check_int(name, value, least=0)


def check_seed(name: str, value: Any) -> int:
    """`value` as an int; raises unless it is an integer (but no bool) in [0, 2**31)."""
    if not 0 <= (seed := check_int(name, value, -math.inf)) < 2**31:
        raise ArgumentError(f"`{name}` must be in [0, 2**31).\nReceived: {name}={seed}.")
    return seed


PositiveInt = Annotated[int, check_positive_int]
Count = Annotated[int, check_steps]  # of at least zero
Number = Annotated[float, check_number]
Positive = Annotated[float, check_positive]
NonNegative = Annotated[float, check_nonnegative]
Fraction = Annotated[float, check_fraction]  # in [0, 1)
Share = Annotated[float, check_share]  # in (0, 1]
Sides = Annotated[int | tuple[int, int], check_sides]


def validate(record: Any) -> None:
    """Checks the fields of a frozen record by their annotations, and stores what the checks return.

    A flag is annotated `bool`, any other checked field `Annotated[type, check]`. `None` is not checked where the
    annotation allows it.
    """
    for name, (check, optional) in _field_checks(type(record)).items():  # type: ignore[arg-type]
        value = getattr(record, name)
        if value is not None or not optional:
            object.__setattr__(record, name, check(name, value))


@functools.cache
def _field_checks(kind: type) -> dict[str, tuple[Callable[[str, Any], Any], bool]]:
    """Checks of the fields of a record by name, each with whether the field may be `None`."""
    hints, found = typing.get_type_hints(kind, include_extras=True), {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        parts = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
        for part in parts:
            check = check_flag if part is bool else next(iter(getattr(part, "__metadata__", ())), None)
            if check is not None:
                found[field.name] = (check, types.NoneType in parts)
    return found


def record_process() -> int:
    """The process in which Keras' backend was used first; of the first call it is this one."""
    return _first_use.setdefault("process", os.getpid())


def check_process() -> None:
    """Raises in a process that was forked from one in which models, or what reads photos for them, were at work.

    A fork copies memory and no threads, and TensorFlow, JAX, ONNX Runtime and OpenVINO would wait for ever.
    """
    process = record_process()
    if process != os.getpid():
        raise RuntimeError(
            "a forked process must not use models or read photos, if the process before the fork did. It would wait "
            "for ever for threads that a fork does not copy.\n"
            f"Received: process {os.getpid()}, forked from {process}. Build or load the model in each worker, or start "
            'workers by "spawn": docs/processes.md shows both.'
        )


def install_hint(extra: str) -> str:
    """The command that installs an extra: from a checkout, as the README does, since no package index has us."""
    return f'pip install ".[{extra}]" in the checkout of keras_vit'


def check_installed(module: str, purpose: str, extra: str) -> None:
    """Raises an `ImportError` that names the extra to install, unless a module of it can be imported."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{module} must be installed, since {purpose}.\nReceived: {error}. Run {install_hint(extra)}."
        ) from error


def check_strategy_name(name: str) -> None:
    """Raises unless `name` is one of `STRATEGIES`; the error for another engine's name has the name here."""
    check_choice("strategy", name, STRATEGIES, _OTHER_STRATEGIES)


_PROCESSOR = Path("/proc/cpuinfo")


def processor_facts(text: str | None = None) -> dict[str, str]:
    """Names and values, those of the first core; empty where the system is not Linux.

    Args:
        text: as in /proc/cpuinfo; by default that of this machine.
    """
    if text is None:
        text = _PROCESSOR.read_text() if _PROCESSOR.exists() else ""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found


def processor_flags(text: str | None = None) -> frozenset[str]:
    """Linux' names of instructions, as `avx512_vnni`; empty elsewhere.

    Args:
        text: as in /proc/cpuinfo; by default that of this machine.
    """
    return frozenset(processor_facts(text).get("flags", "").split())


def cpu_fingerprint() -> str:
    """A name that is another one where code for this processor may not run, as in a home folder of several machines."""
    facts = processor_facts()
    return hashlib.sha256(repr([facts.get(name) for name in ("model name", "flags")]).encode()).hexdigest()[:16]
