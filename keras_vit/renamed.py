"""Names of version 0.6 and before that still work with a `DeprecationWarning`, and the names in their place.

Saved configs take both spellings without a warning. A test walks the tables.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)

NAMES: dict[str, str] = {  # public names of the package
    "nearest": "nearest_neighbors",
    "Neighbours": "Neighbors",
    "StopRun": "StopTraining",
}
ARGUMENTS: dict[str, str] = {  # of public functions, layers, builders and `ViTConfig`; attributes too
    "dialect": "format",
    "branch_norm": "norm_position",
    "unit_length": "normalize_embedding",
    "map_prefix": "pool_prefix_tokens",
    "summary": "class_token_reduction",
    "summary_tokens": "class_token_indices",
    "last_block": "last_block_outputs",
    "placed_tokens": "positioned_tokens",
    "read_tokens": "pooled_tokens",
    "read_places": "pooled_indices",
    "num_read_tokens": "num_pooled_tokens",
    "neighbours": "num_neighbors",
    "say": "print_fn",
    "on_epoch": "on_epoch_end",
    "takes_bias": "use_attention_bias",
    "tells_places": "return_indices",
    "asks": "optional_inputs",
    "tells": "extra_outputs",
    "places": "patch_indices",
    "cut_map": "feature_map",
}
ATTRIBUTES: dict[str, str] = {
    "weights_report": "load_report",
    "weights_facts": "provenance",
    "takes_bytes": "accepts_uint8",
}  # of models, in configs old
VALUES: dict[str, dict[Any, Any]] = {  # new name of an argument: {old value: new value}
    "norm_position": {"before": "pre", "behind": "post"},
}
EXPORT_OPTIONS = (  # arguments of `export` in 0.6, which are keys of its `options` now
    *("image_size", "activation", "name", "print_fn", "opset", "batch_size"),
    *("top_k", "max_bytes", "max_pixels", "max_batch", "jit_compile", "card"),
)


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
        elif stacklevel is not None and now is not value:
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


def accepts_options(function: _Function) -> _Function:
    """A function whose `EXPORT_OPTIONS` are taken as arguments too, and handed on in `options`."""

    @functools.wraps(function)
    def with_old_arguments(*args: Any, options: Any = None, **kwargs: Any) -> Any:
        for name in [name for name in kwargs if name in EXPORT_OPTIONS]:
            warn_renamed(name, f'options={{"{name}": ...}}')
            if name in (options or {}):
                raise TypeError(f"an argument is given once.\nReceived: both `{name}` and an option of that name.")
            options = {**(options or {}), name: kwargs.pop(name)}
        return function(*args, options=options, **kwargs)

    return with_old_arguments  # type: ignore[return-value]


def old_function(function: Callable[..., Any], old: str, new: str) -> Callable[..., Any]:
    """A function by its old name, for an attribute of an object whose class is not of this package."""

    def renamed(*args: Any, **kwargs: Any) -> Any:
        warn_renamed(old, new)
        return function(*args, **kwargs)

    return renamed


def by_old_name(self: Any, name: str) -> Any:
    """`__getattr__` of classes with renamed attributes: the attribute of an old name, with its old value."""
    new = ATTRIBUTES.get(name, ARGUMENTS.get(name))
    if new is None or not hasattr(self, new):
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
    warn_renamed(name, new)
    value = getattr(self, new)
    return next((old for old, now in VALUES.get(new, {}).items() if now == value), value)


def accepts_old_names(cls: _Class) -> _Class:
    """Decorates a class whose constructor takes the old names of its arguments, and which has the old attributes.

    These are no properties, since Keras reads all of a layer's when it saves one.
    """
    init = vars(cls).get("__init__", object.__init__)
    parameters = inspect.signature(init).parameters
    if old := {name: new for name, new in ARGUMENTS.items() if new in parameters and name not in parameters}:

        @functools.wraps(init)
        def with_old_names(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **current_arguments(kwargs, old, stacklevel=2))

        vars(with_old_names)["__signature__"] = inspect.signature(init)  # which Keras reads
        setattr(cls, "__init__", with_old_names)  # noqa: B010
    if not hasattr(cls, "__getattr__"):
        setattr(cls, "__getattr__", by_old_name)  # noqa: B010
    return cls
