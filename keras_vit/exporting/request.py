"""The arguments of an export, checked before a model is loaded: a wrong value must not cost a download.

Keras is imported only for what the module of a format knows, so that a command refuses the rest at once.
"""

import difflib
import os
import re
from pathlib import Path
from typing import Any

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError, check_choice, check_flag, check_positive_int, check_process
from keras_vit.exporting.formats import (
    ACTIVATIONS,
    FORMATS,
    MAX_BATCH,
    MAX_BYTES,
    MAX_PIXELS,
    OPSET,
    PRECISIONS,
    Format,
    find_format,
)
from keras_vit.exporting.staging import check_absent, check_served
from keras_vit.files import expand_path

_BYTES = range(2**10, 2**31)  # allowed range: a comparison needs some, and graphs count in int32


def check_request(
    path: FilePath,
    format: str | None = None,
    precision: str = "float32",
    *,
    top_k: int = 5,
    activation: str = "softmax",
    name: str | None = None,
    opset: int = OPSET,
    max_bytes: int = MAX_BYTES,
    max_pixels: int = MAX_PIXELS,
    max_batch: int = MAX_BATCH,
    jit_compile: bool = False,
    batch_size: int | str | None = None,
    overwrite: bool = False,
) -> tuple[Format, Path, str, dict[str, Any]]:
    """Raises for arguments that are wrong for every model; arguments and errors are those of `export`.

    Returns:
        The format's module, the path, the name of the served model, and the numbers by name, as plain ints.
    """
    limits = {"max_bytes": max_bytes, "max_pixels": max_pixels, "max_batch": max_batch, "opset": opset}
    format, place, name, numbers = check_arguments(
        path,
        format,
        precision,
        activation=activation,
        name=name,
        jit_compile=jit_compile,
        batch_size=batch_size,
        overwrite=overwrite,
        top_k=top_k,
        **limits,
    )
    writer = _check_format(format, precision)
    check_backend()
    if FORMATS[format] and overwrite:
        check_absent(place, writer.is_own_file)
    writer.check_packages(precision, numbers["opset"])
    return writer, place, name, numbers


def check_arguments(
    path: FilePath,
    format: str | None,
    precision: str,
    *,
    activation: str,
    name: str | None,
    jit_compile: bool,
    batch_size: int | str | None,
    overwrite: bool,
    **numbers: int,
) -> tuple[str, Path, str, dict[str, Any]]:
    """Raises for arguments of `check_request` that are wrong for every format, without Keras.

    Returns:
        The format, and path, name and numbers as of `check_request`.
    """
    format = choose_format(path, format)
    check_choice("format", format, FORMATS)
    check_choice("precision", precision, PRECISIONS)
    place = _check_path(path, format)
    if FORMATS[format] and not overwrite:
        check_absent(place, None)
    numbers = _check_numbers(**numbers)
    _check_choices(activation, jit_compile, format)
    _check_batch_size(batch_size, format)
    return format, place, _served_name(place, format, name), numbers


def choose_format(path: FilePath, format: str | None) -> str:
    """The given format, or that of the extension of `path`."""
    suffix = Path(path).suffix if isinstance(path, (str, os.PathLike)) else ""
    return _formats_by_extension().get(suffix, "saved_model") if format is None else format


def _formats_by_extension() -> dict[str, str]:
    return {extension: name for name, extension in FORMATS.items() if extension}


def _check_batch_size(batch_size: int | str | None, format: str) -> None:
    if batch_size is None:
        return
    if format != "litert":
        raise ArgumentError(
            "`batch_size` is of LiteRT; files of other formats take any number of images in a call.\n"
            f'Received: batch_size={batch_size!r}, format="{format}".',
            parameters=("batch_size", "format"),
        )
    if batch_size != "any":
        check_positive_int("batch_size", batch_size)


def check_backend() -> None:
    """Raises unless Keras runs on TensorFlow, which writes files and engines, in the process that imported it."""
    import keras

    check_process()
    if keras.config.backend() != "tensorflow":
        raise RuntimeError(
            "files are written and engines made through TensorFlow, so Keras must run on it.\n"
            f"Received: the backend {keras.config.backend()!r}. Save the model as .keras, and load it in a process "
            "with KERAS_BACKEND=tensorflow."
        )


def _check_format(format: str, precision: str) -> Format:
    writer = find_format(format)
    if precision not in writer.PRECISIONS:
        raise ArgumentError(
            f"`precision` must be one that the format has: {', '.join(writer.PRECISIONS)}.\n"
            f'Received: precision="{precision}", format="{format}".',
            parameters=("precision", "format"),
        )
    return writer


def _check_path(path: FilePath, format: str) -> Path:
    """The path of the file, or of the folder of versions; raises if something else is there."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"`path` must be that of a file or folder.\nReceived: path={path!r}.")
    if not os.fspath(path):
        raise ValueError(
            "`path` must be that of a file or folder; the folder of the process is `.`.\nReceived: path=''."
        )
    path = expand_path(path)
    extension, formats = FORMATS[format], _formats_by_extension()
    if not extension:
        if near := difflib.get_close_matches(path.suffix.lower(), formats, n=1, cutoff=0.8):
            raise ArgumentError(
                "a SavedModel goes to a folder, and this name is that of a file.\n"
                f'Received: {str(path)!r}. For a file pass format="{formats[near[0]]}"; name the folder otherwise.',
                parameters=("format",),
            )
        if path.exists() and not path.is_dir():
            raise FileExistsError(
                f"a SavedModel goes to a folder, in which it becomes a version.\nReceived: {path}, a file."
            )
        check_served(path)
        return path
    if path.suffix != extension:
        raise ValueError(f"the path must end in {extension}, as runtimes expect.\nReceived: {str(path)!r}.")
    return path


def _check_numbers(**given: int) -> dict[str, int]:
    numbers = {name: check_positive_int(name, value) for name, value in given.items()}
    if numbers["max_bytes"] not in _BYTES:
        raise ArgumentError(
            f"`max_bytes` must be {_BYTES[0]} to {_BYTES[-1]}.\nReceived: max_bytes={numbers['max_bytes']}.",
            parameters=("max_bytes",),
        )
    return numbers


def _check_choices(activation: str, jit_compile: bool, format: str) -> None:
    check_choice("activation", activation, ACTIVATIONS)
    check_flag("jit_compile", jit_compile)
    if jit_compile and format != "saved_model":
        raise ArgumentError(
            "XLA compiles SavedModels; other runtimes compile on their own.\n"
            f'Received: jit_compile=True, format="{format}".',
            parameters=("format",),
        )


def _served_name(path: Path, format: str, given: str | None) -> str:
    """The name of a served model, which is part of URLs; by default that of the file or the folder."""
    if given is None:
        given = os.path.basename(os.path.abspath(path)).removesuffix(FORMATS[format])
        given = re.sub(r"[^A-Za-z0-9_.-]+", "_", given) or "model"
    if not isinstance(given, str) or not re.fullmatch(r"[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*", given):
        raise ValueError(
            "`name` stands in addresses, so it must be of letters, digits, `_`, `.` and `-`, and not of `.` alone.\n"
            f"Received: name={given!r}."
        )
    return given
