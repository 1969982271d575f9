"""The arguments of an export, checked before a model is loaded: a wrong value must not cost a download."""

import dataclasses
import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError, check_choice, check_process, did_you_mean, with_parameters
from keras_vit.exporting.formats import FORMATS, PRECISIONS, Format, Options
from keras_vit.exporting.staging import check_absent, check_served
from keras_vit.files import expand_path


class Request(NamedTuple):
    """The arguments of an export that are right for some model.

    Attributes:
        format: of the file.
        path: of the file, or of the folder of versions.
        name: of the served model.
        options: of the format.
    """

    format: Format
    path: Path
    name: str
    options: Options


def check_request(
    path: FilePath,
    format: str | None = None,
    precision: str = "float32",
    overwrite: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Request:
    """The checked arguments; raises also if a package is missing. Arguments and errors are those of `export`."""
    request = check_arguments(path, format, precision, overwrite, options)
    check_backend()
    request.format.check_packages(precision)
    return request


def check_arguments(
    path: FilePath,
    format: str | None = None,
    precision: str = "float32",
    overwrite: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Request:
    """As `check_request`, without Keras and the packages, so that a command refuses these at once."""
    if format is None:
        suffix = Path(path).suffix if isinstance(path, (str, os.PathLike)) else ""
        format = _formats_by_extension().get(suffix, "saved_model")
    check_choice("format", format, FORMATS)
    found = FORMATS[format]
    check_choice("precision", precision, PRECISIONS)
    if precision not in found.precisions:
        raise ArgumentError(
            f"`precision` must be one that the format has: {', '.join(found.precisions)}.\n"
            f'Received: precision="{precision}", format="{format}".'
        )
    place = _check_path(path, found)
    if found.extension:
        check_absent(place, found.is_own_file if overwrite else None)
    checked = check_options(found, options)
    name = os.path.basename(os.path.abspath(place)).removesuffix(found.extension)
    return Request(found, place, checked.name or re.sub(r"[^A-Za-z0-9_.-]+", "_", name) or "model", checked)


def check_options(format: Format, options: Mapping[str, Any] | None) -> Options:
    """The record of a format's options; `None` stands for a default.

    Raises:
        TypeError: for options that are no mapping, or a value of the wrong type.
        ValueError: for a name that is no option, a wrong value, or an option of another format that is not its default.
    """
    if options is not None and not isinstance(options, Mapping):
        raise with_parameters(
            TypeError(f'`options` must be a dict, as {{"name": "birds"}}.\nReceived: options={options!r}.'), "options"
        )
    given = {name: value for name, value in (options or {}).items() if value is not None}
    known, others = _defaults(format), [other for other in FORMATS.values() if other is not format]
    for name in given.keys() - known:
        owner = next((other for other in others if name in _defaults(other)), None)
        if owner is None:
            raise ArgumentError(
                f"`options` of {format.title} are {', '.join(known)}.\n"
                f"Received: options={{{name!r}: {given[name]!r}}}.{did_you_mean(name, known)}"
            )
        owner.Options(**{name: given[name]})
        if given[name] != _defaults(owner)[name]:
            raise ArgumentError(
                f"`{name}` is of {owner.title}; files of other formats have none.\n"
                f'Received: {name}={given[name]!r}, format="{format.name}". Leave it out.'
            )
    return format.Options(**{name: value for name, value in given.items() if name in known})


def _defaults(format: Format) -> dict[str, Any]:
    """The options of a format, and their defaults."""
    return {field.name: field.default for field in dataclasses.fields(format.Options)}


def _formats_by_extension() -> dict[str, str]:
    return {format.extension: name for name, format in FORMATS.items() if format.extension}


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


def _check_path(path: FilePath, format: Format) -> Path:
    """The path of the file, or of the folder of versions; raises if something else is there."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"`path` must be that of a file or folder.\nReceived: path={path!r}.")
    if not os.fspath(path):
        raise ValueError(
            "`path` must be that of a file or folder; the folder of the process is `.`.\nReceived: path=''."
        )
    path = expand_path(path)
    extension, formats = format.extension, _formats_by_extension()
    if not extension:
        if near := difflib.get_close_matches(path.suffix.lower(), formats, n=1, cutoff=0.8):
            raise ArgumentError(
                "a SavedModel goes to a folder, and this name is that of a file.\n"
                f'Received: {str(path)!r}. For a file pass format="{formats[near[0]]}"; name the folder otherwise.'
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
