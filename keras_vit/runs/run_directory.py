"""The folder of one run: what was asked for, figures of every epoch, and the best and the last model.

A file is there whole or not at all, and no model with a value that is not finite is ever written.
"""

import csv
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.files import replacing
from keras_vit.training.averaging import AveragedWeights, steps_of
from keras_vit.version import __version__

COLUMNS = (
    *("epoch", "step", "loss", "accuracy", "val_loss", "val_accuracy"),
    *("learning_rate", "gradient_norm", "seconds"),
)
BEST, LAST = "best.keras", "last.keras"
CONFIG, RESULT, FAILURE, METRICS = "config.json", "result.json", "failure.json", "metrics.csv"
CURVES = "curves.png"
_TENSORBOARD = "tensorboard"


class RunDirectory:
    """Writes the files of a run.

    Args:
        path: of a folder that does not exist yet, or is empty.

    Raises:
        ValueError: if something is in it, it is no folder, or nothing can be written there.
    """

    def __init__(self, path):
        self.path = Path(path)
        self._events = None
        check_free(self.path)
        self.path.mkdir(parents=True, exist_ok=True)

    def write_json(self, name, facts):
        """Writes `facts`; numbers that are not finite become null, as JSON has no others."""
        text = json.dumps(plain(facts), indent=2, ensure_ascii=False, allow_nan=False)
        self.write_text(name, text + "\n")

    def write_text(self, name, text):
        """Writes a text in UTF-8."""
        with replacing(self.path / name) as part:
            Path(part).write_text(text, encoding="utf-8")

    def write_row(self, row):
        """Adds one epoch to `metrics.csv` and to TensorBoard."""
        path = self.path / METRICS
        new = not path.exists()
        with open(path, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
            if new:
                writer.writeheader()
            writer.writerow(row)
        self._write_events(row)

    def write_confusion(self, evaluation, name="confusion_matrix.csv"):
        """Writes the matrix with the names of the classes; rows are true ones, columns predicted ones."""
        names = evaluation.class_names
        rows = [["true \\ predicted", *names]]
        rows += [[name, *counts] for name, counts in zip(names, evaluation.confusion.tolist(), strict=True)]
        with replacing(self.path / name) as part, open(part, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)

    def save_model(self, model, name) -> bool:
        """Saves a model unless it has a value that is not finite; returns whether it did."""
        if not is_finite(model):
            return False
        with replacing(self.path / name, ".part.keras") as part:
            model.save(part)
        return True

    def rows(self) -> list[dict]:
        """What `metrics.csv` holds, as numbers, `None` where nothing was measured."""
        if not (self.path / METRICS).exists():
            return []
        with open(self.path / METRICS, newline="", encoding="utf-8") as file:
            return [{key: float(text) if text else None for key, text in row.items()} for row in csv.DictReader(file)]

    def _write_events(self, row):
        """TensorBoard's format by TensorFlow alone, so that the package `tensorboard` is needed to look only."""
        import tensorflow as tf

        kind = tf.compat.v1.SummaryMetadata
        metadata = kind(plugin_data=kind.PluginData(plugin_name="scalars"), data_class=1)  # DATA_CLASS_SCALAR
        with tf.device("CPU"):
            if self._events is None:
                self._events = tf.summary.create_file_writer(str(self.path / _TENSORBOARD))
            with self._events.as_default(step=int(row["epoch"])):
                for name, value in row.items():
                    if name != "epoch" and value is not None:
                        tf.summary.write(name, tf.constant(value, "float32"), metadata=metadata)
            self._events.flush()


class Recorder(keras.callbacks.Callback):
    """Writes a row for each epoch, and the model whenever it is the best one on the validation set.

    Of equal accuracies the lower loss is better. Without a validation set the latest model is taken for the best.
    List it behind `StepFacts`.

    Args:
        run: a `RunDirectory`.

    Attributes:
        best_epoch: number of the epoch, from 1, whose model is `best.keras`; `None` before the first.
    """

    def __init__(self, run):
        super().__init__()
        self.run = run
        self.best_epoch = None
        self._best = None
        self._average: Any = None
        self._began: Any = None

    @property
    def best_model(self) -> Path | None:
        """Path of the best model, if there is one yet."""
        return None if self.best_epoch is None else self.run.path / BEST

    def on_train_begin(self, logs=None):
        self._began = time.monotonic()
        self._average = AveragedWeights(self.model)

    def on_test_begin(self, logs=None):
        self._average.enter()

    def on_test_end(self, logs=None):
        self._average.leave()

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        row = {name: logs[name] for name in COLUMNS if name in logs}
        row |= {"epoch": epoch + 1, "step": steps_of(self.model.optimizer)}
        row["seconds"] = time.monotonic() - self._began
        self.run.write_row({name: row.get(name) for name in COLUMNS})
        score = (logs["val_accuracy"], -logs["val_loss"]) if "val_accuracy" in logs else (epoch, 0)
        if self._best is None or score > self._best:
            self._save_best(epoch, score)

    def _save_best(self, epoch, score):
        self._average.enter()
        try:
            saved = self.run.save_model(self.model, BEST)
        finally:
            self._average.leave()
        if saved:
            self._best, self.best_epoch = score, epoch + 1


def check_free(path):
    """Raises a `ValueError` unless a run may and can be written to this path; leaves nothing there."""
    path = Path(path)
    try:
        _check_empty(path)
        _check_writable(path)
    except OSError as error:
        raise ValueError(
            "`out` must be a folder that can be written to.\n"
            f"Received: {str(path)!r}, where nothing can be made: {error.strerror or error}. Choose another folder, "
            "or ask for the right to write there."
        ) from error


def _check_empty(path):
    if os.path.lexists(path) and not path.is_dir():
        what = "a file" if path.exists() else "a link that leads nowhere"
        raise ValueError(f"`out` must be a folder.\nReceived: {str(path)!r}, which is {what}. Choose another name.")
    if path.exists() and any(path.iterdir()):
        raise ValueError(
            "`out` must be new or empty, so that no earlier run is lost.\n"
            f"Received: {str(path)!r}, which is neither. Choose another folder, or remove this one."
        )


def _check_writable(path):
    """Tries it on the nearest folder that exists, by a file without a name, as rights alone do not tell."""
    nearest = next(folder for folder in (path, *path.absolute().parents) if os.path.lexists(folder))
    if not nearest.is_dir():
        raise ValueError(
            "`out` must be a folder in a folder.\n"
            f"Received: {str(path)!r}, where {str(nearest)!r} is none. Choose another name."
        )
    with tempfile.TemporaryFile(dir=nearest):
        pass


def is_finite(model) -> bool:
    """Whether every weight of a model is finite."""
    return all(np.isfinite(keras.ops.convert_to_numpy(weight)).all() for weight in model.weights)


def versions() -> dict:
    """Of all that the numbers depend on."""
    backend = keras.backend.backend()
    found = {"keras_vit": __version__, "keras": keras.__version__, "numpy": np.__version__}
    found |= {"python": platform.python_version(), "platform": platform.platform(), "backend": backend}
    for name in dict.fromkeys((backend, "tensorflow")):
        found[name] = __import__(name).__version__
    return found


def plain(value):
    """`value` of what JSON has: numbers that are not finite become null, records and paths become text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
