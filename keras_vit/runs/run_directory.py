"""The folder of one run: what was asked for, figures of every epoch, and the best and the last model.

A file is there whole or not at all, but for the figures, which grow by a row with each epoch. No model with a value
that is not finite is ever written.
"""

import csv
import io
import json
import os
import random
import secrets
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError
from keras_vit.files import FileKindError, atomic_write, read_regular
from keras_vit.pages.formatting import printable
from keras_vit.runs.run_files import METRICS, MOST_BYTES, TENSORBOARD, check_empty, stamp

_ALWAYS = ("epoch", "step", "seconds")  # columns that have a number in each row
# Names of files may hold bytes that are no letters: they are written as JSON and Python spell them, `\\udcff`.
_ENCODING, _ERRORS = "utf-8", "backslashreplace"


class RunDirectory:
    """Writes the files of a run.

    Args:
        path: of a folder that does not exist yet, or is empty, unless the run goes on.
        columns: of `metrics.csv`.
        resumed: whether an unfinished run is in it.

    Attributes:
        mark: by which the models of this run are known, also after it was stopped.

    Raises:
        ValueError: if something is in it, it is no folder, or nothing can be written there.
    """

    def __init__(self, path: FilePath, columns: Sequence[str], resumed: bool = False) -> None:
        self.path, self.columns = Path(path), tuple(columns)
        self.mark = secrets.token_hex(8)
        self._events: Any = None  # TensorBoard's writer, once there is a row
        if not resumed:
            check_free(self.path)
        self.path.mkdir(parents=True, exist_ok=True)

    def write_json(self, name: str, facts: Any) -> None:
        """Writes `facts`; numbers that are not finite become null, as JSON has no others."""
        text = json.dumps(json_ready(facts), indent=2, ensure_ascii=False, allow_nan=False)
        self.write_text(name, text + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Writes a text in UTF-8."""
        with atomic_write(self.path / name) as part:
            Path(part).write_text(text, _ENCODING, _ERRORS)

    def write_lines(self, name: str, rows: Iterable[Iterable[Any]]) -> None:
        """Writes a line for each row, its cells parted by tabs; no name of a file makes a line or a cell of its own."""
        self.write_text(name, "".join("\t".join(map(printable, row)) + "\n" for row in rows))

    def write_row(self, row: Mapping[str, Any]) -> None:
        """Adds one epoch to `metrics.csv` and to TensorBoard."""
        path = self.path / METRICS
        new = not path.exists()
        with open(path, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore")
            if new:
                writer.writeheader()
            writer.writerow(row)
        self._write_events(row)

    def metrics_text(self) -> str:
        """All of `metrics.csv`, as it is."""
        path = self.path / METRICS
        return path.read_bytes().decode(_ENCODING) if path.exists() else ""

    def set_metrics_text(self, text: str) -> None:
        """Makes `metrics.csv` what it was."""
        path = self.path / METRICS
        if not text:
            path.unlink(missing_ok=True)
            return
        with atomic_write(path) as part:
            Path(part).write_bytes(text.encode(_ENCODING))

    def save_model(self, model: keras.Model, name: str, epoch: int = 0) -> bool:
        """Saves a model unless it has a value that is not finite; returns whether it did.

        Of weights that are cut over processes, which all call this, a copy is saved without its optimizer. The file
        says of which run and `epoch`, from 1, it is; 0 is that of a run that was stopped.
        """
        model = local_copy(model)
        if not is_finite(model):
            return False
        with atomic_write(self.path / name, ".part.keras") as part:
            model.save(part)
            stamp(part, self.mark, epoch)
        return True

    def rows(self) -> list[dict]:
        """What `metrics.csv` holds, as numbers, `None` where nothing was measured.

        Raises:
            ValueError: if it holds anything else.
        """
        path = self.path / METRICS
        if not path.exists():
            return []
        try:
            reader = csv.reader(io.StringIO(read_regular(path, MOST_BYTES).decode(_ENCODING), newline=""))
            return _figures(reader, self.columns)
        except FileKindError as error:
            fault = error.reason
        except UnicodeDecodeError:
            fault = "which is no text in UTF-8"
        except csv.Error as error:
            fault = f"line {reader.line_num}: {error}"
        except ValueError as error:
            fault = str(error)
        raise ValueError(f"the figures of a run must be as the run wrote them.\nReceived: {path}, {fault}.")

    def _write_events(self, row: Mapping[str, Any]) -> None:
        """TensorBoard's format by TensorFlow alone, so that the package `tensorboard` is needed to look only."""
        import tensorflow as tf

        kind = tf.compat.v1.SummaryMetadata
        metadata = kind(plugin_data=kind.PluginData(plugin_name="scalars"), data_class=1)  # DATA_CLASS_SCALAR
        with tf.device("CPU"):
            if self._events is None:
                self._events = tf.summary.create_file_writer(str(self.path / TENSORBOARD))
            with self._events.as_default(step=int(row["epoch"])):
                for name, value in row.items():
                    if name != "epoch" and value is not None:
                        tf.summary.write(name, tf.constant(value, "float32"), metadata=metadata)
            self._events.flush()


def _figures(reader: Iterable[list[str]], columns: Sequence[str]) -> list[dict[str, float | None]]:
    """Rows of numbers, by column; a `ValueError` says what is wrong on which line."""
    lines = list(reader)
    if not lines or lines[0] != list(columns):
        raise ValueError(f"where the first line must name the columns {', '.join(columns)}")
    rows = []
    for number, cells in enumerate(lines[1:], 2):
        if len(cells) != len(columns):
            raise ValueError(f"where line {number} has {len(cells)} cells instead of {len(columns)}")
        row = dict(zip(columns, cells, strict=True))
        rows.append({name: _figure(number, name, text) for name, text in row.items()})
    return rows


def _figure(number: int, name: str, text: str) -> float | None:
    """A number, or `None` of an empty cell where there may be none."""
    if not text and name not in _ALWAYS:
        return None
    try:
        value = float(text)
    except ValueError:
        value = np.inf
    if np.isinf(value) or (name in _ALWAYS and np.isnan(value)):
        raise ValueError(f"line {number}: {name} {text[:40]!r}")
    return value


def check_free(path: FilePath) -> None:
    """Raises a `ValueError` unless a run may and can be written to this path; leaves nothing there."""
    check_writable(Path(path), is_new=True)


def check_writable(path: Path, is_new: bool = False) -> None:
    """Raises a `ValueError` unless something can be written to a folder, or made where it will be; leaves nothing.

    It is tried on the nearest folder that exists, by a file without a name, as rights alone do not tell.
    """
    try:
        if is_new:
            check_empty(path)
        nearest = next(folder for folder in (path, *path.absolute().parents) if os.path.lexists(folder))
        if not nearest.is_dir():
            raise ArgumentError(
                "`out` must be a folder in a folder.\n"
                f"Received: {str(path)!r}, where {str(nearest)!r} is none. Choose another name."
            )
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise ArgumentError(
            "`out` must be a folder that can be written to.\n"
            f"Received: {str(path)!r}, where nothing can be made: {error.strerror or error}. Choose another folder."
        ) from error


def local_copy(model: keras.Model) -> keras.Model:
    """The model, or where weights of it are cut over processes, a copy in this process alone, not compiled.

    All processes must call it.
    """
    if keras.backend.backend() != "jax" or all(is_local(weight) for weight in model.variables):
        return model
    values = [gathered(weight) for weight in model.weights]
    distribution, state = keras.distribution.distribution(), random.getstate()
    keras.distribution.set_distribution(None)
    try:
        copy = type(model).from_config(model.get_config())
        copy.set_weights(values)
    finally:
        keras.distribution.set_distribution(distribution)
        random.setstate(state)
    return copy


def is_local(variable: keras.Variable) -> bool:
    """Whether this process can read all of a variable, on JAX."""
    return variable.value.is_fully_addressable or variable.value.is_fully_replicated


def gathered(variable: keras.Variable) -> np.ndarray:
    """The value of a variable that may be cut over processes, all of which must ask for it."""
    from jax.experimental import multihost_utils

    if is_local(variable):
        return np.asarray(variable.value)
    return np.asarray(multihost_utils.process_allgather(variable.value, tiled=True))


def is_finite(model: keras.Model) -> bool:
    """Whether every weight of a model is finite."""
    return all(np.isfinite(keras.ops.convert_to_numpy(weight)).all() for weight in model.weights)


def json_ready(value: Any) -> Any:
    """`value` of what JSON has: numbers that are not finite become null, records and paths become text."""
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
