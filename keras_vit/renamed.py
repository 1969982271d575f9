"""Names of version 0.6 and before that still work with a `DeprecationWarning`, and the names in their place.

Saved configs take both spellings without a warning. A test walks the tables.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

NAMES: dict[str, str] = {}  # public names of the package
ARGUMENTS: dict[str, str] = {}  # of public functions, layers, builders and `ViTConfig`
VALUES: dict[str, dict[Any, Any]] = {}  # new name of an argument: {old value: new value}


def warn_renamed(old: str, new: str, stacklevel: int = 2) -> None:
    """Warns the caller's caller that a name will be gone in the version after the next."""
    warnings.warn(f"`{old}` is called `{new}` now; the old name goes in 0.8.", DeprecationWarning, stacklevel + 1)


def current_arguments(
    given: Mapping[str, Any], known: Mapping[str, str] = ARGUMENTS, stacklevel: int | None = None
) -> dict[str, Any]:
    """Arguments under their current names and with their current values.

    Args:
        given: arguments by their old or current names.
        known: old names and the current ones.
        stacklevel: of the warning, as `warnings.warn` counts from the caller; `None` warns of nothing, as for what a
            file says.

    Raises:
        TypeError: for both names of one argument.
    """
    current: dict[str, Any] = {}
    for name, value in given.items():
        new = known.get(name, name)
        if new != name and new in given:
            raise TypeError(f"an argument is given once.\nReceived: both `{name}` and `{new}`, its current name.")
        now = VALUES.get(new, {}).get(value, value) if isinstance(value, str) else value
        if stacklevel is not None and new != name:
            warn_renamed(name, new, stacklevel + 1)
        elif stacklevel is not None and now != value:
            warn_renamed(f"{name}={value!r}", f"{name}={now!r}", stacklevel + 1)
        current[new] = now
    return current


def accepts_old_arguments(function: _Function) -> _Function:
    """A function that takes the old names of its arguments too, and of those that it hands on by `**`."""
    parameters = inspect.signature(function).parameters
    hands_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    old = {name: new for name, new in ARGUMENTS.items() if new in parameters or (hands_on and name not in parameters)}

    @functools.wraps(function)
    def with_old_names(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **current_arguments(kwargs, old, stacklevel=2))

    return with_old_names  # type: ignore[return-value]


def old_attribute(old: str, new: str) -> Any:
    """A property of a class for an attribute's old name."""

    def read(self: Any) -> Any:
        warn_renamed(old, new)
        return getattr(self, new)

    return property(read, doc=f"`{new}`, by its name of version 0.6.")
