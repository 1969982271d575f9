"""The files of a run by name, and whether a run wrote what stands there: only that is ever replaced or removed.

Keras is not needed, so that a command can answer before it is imported.
"""

import os
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

from keras_vit.checks import ArgumentError
from keras_vit.files import FileKindError, is_partial_file, json_object, open_regular, read_head, read_json_object
from keras_vit.pages.html import BEGINNING, PICTURE
from keras_vit.renamed import current_arguments
from keras_vit.tasks import Task, find_task

BEST, LAST = "best.keras", "last.keras"
CONFIG, RESULT, FAILURE, METRICS = "config.json", "result.json", "failure.json", "metrics.csv"
CURVES = "curves.png"
REPORT, BAD_IMAGES = "report.html", "bad_images.txt"
CHECKPOINTS, TENSORBOARD = "checkpoints", "tensorboard"  # folders; the first is there until the run is finished
FINISHED = {"status": "finished"}  # in `result.json` once all files of the run are there
MOST_BYTES = 1 << 26  # of a file of figures or of what was asked for; 21,843 names take 1 MB

_RECORDS = ("versions", "arguments", "data", "plan")  # of a configuration, which are read before all is compared
_SIGNATURE = "keras_vit run {} epoch {}"  # comment of a model's archive, over which Keras passes
_SIGNED = re.compile(rb"keras_vit run (\w+) epoch (\d+)\Z")
# How the files of a run begin. The card has a mark of its own; one without it is kept.
_BEGINNINGS = {
    CONFIG: rb'\{\n  "versions": \{\n    "keras_vit": "',
    RESULT: rb'\{\n  "(test|best)_\w+": ',
    FAILURE: rb'\{\n  "status": "',
    METRICS: rb"epoch,step,loss,(\w+,)*learning_rate,gradient_norm,seconds",
    REPORT: re.escape(BEGINNING.encode()),
    CURVES: PICTURE,
}
_FIRST = b"epoch,step,loss,"  # of the figures


def metric_columns(task: Task) -> tuple[str, ...]:
    """The columns of `metrics.csv`."""
    validated = (f"val_{name}" for name in task.metrics)
    own = ("loss", *task.metrics, "val_loss", *validated)
    return ("epoch", "step", *own, "learning_rate", "gradient_norm", "seconds")


def check_replaceable(folder: Path, config: dict[str, Any]) -> None:
    """Raises a `ValueError` unless all that a run would replace in its folder is of a run; reads only.

    The configuration is read and compared elsewhere, and so are the models.
    """
    names = [name for name in _BEGINNINGS if name != CONFIG and os.path.lexists(folder / name)]
    own_files = {name: was_written_here(folder / name) for name in names}
    own = find_task(config.get("task")).files.items()
    own_files |= {
        name: was_written_here(folder / name, beginning) for name, beginning in own if os.path.lexists(folder / name)
    }
    if os.path.lexists(folder / BAD_IMAGES):
        own_files[BAD_IMAGES] = (folder / BAD_IMAGES).is_file() and bool(config.get("data", {}).get("bad_images"))
    if os.path.lexists(folder / TENSORBOARD):
        own_files[TENSORBOARD] = (folder / TENSORBOARD).is_dir()
    for path in (folder / name for name, is_own in own_files.items() if not is_own):
        raise foreign_file_error(path)


def foreign_file_error(path: Path) -> Exception:
    """The error for something else by the name of a file of a run."""
    return ArgumentError(
        "a run replaces only files in `out` that a run has written.\n"
        f"Received: {str(path)!r}, which is {_kind(path)}. Move it away, or choose another folder."
    )


def is_begun(folder: Path) -> bool:
    """Whether a run has written its configuration here."""
    return was_written_here(folder / CONFIG)


def is_finished(folder: Path) -> bool:
    """Whether a run has come to its end here; one of an earlier version says it by having no checkpoints."""
    if not was_written_here(folder / RESULT):
        return False
    stored = read_json_object(folder / RESULT, MOST_BYTES) or {}
    if not os.path.lexists(folder / CHECKPOINTS):
        return True
    plan = (read_json_object(folder / CONFIG, MOST_BYTES) or {}).get("plan")
    made, planned = stored.get("steps"), plan.get("steps") if isinstance(plan, dict) else None
    if isinstance(made, int) and isinstance(planned, int) and made < planned and "stopped" not in stored:
        return False  # killed as it was made longer
    return stored.get("status") == FINISHED["status"]


def check_empty(path: Path) -> None:
    """Raises unless a path is free for a new run, or has what a run leaves that was killed as it began."""
    if os.path.lexists(path) and not path.is_dir():
        what = "a file" if path.exists() else "a link that leads nowhere"
        raise ArgumentError(f"`out` must be a folder.\nReceived: {str(path)!r}, which is {what}. Choose another name.")
    if path.exists() and not all(map(_is_nothing, path.iterdir())):
        raise ArgumentError(
            "`out` must be new or empty, or hold an unfinished run, so that nothing is lost.\n"
            f"Received: {str(path)!r}, which is {_describe_folder(path)}. Choose another folder."
        )


def _describe_folder(path: Path) -> str:
    """What a folder is in which no run may begin, in a few words."""
    if is_finished(path):
        return "a finished run"
    if (path / CHECKPOINTS).is_symlink() and not (path / CHECKPOINTS).exists():  # of a disk that was not mounted
        return "one whose checkpoints are a link that leads nowhere"
    return "not empty and no unfinished run"


def _is_nothing(path: Path) -> bool:
    """Whether this is what a run leaves that was killed as it began, or a folder for its checkpoints elsewhere."""
    if path.name == CHECKPOINTS:
        return path.is_dir() and not any(path.iterdir())
    return is_partial_file(path) and path.is_file()


def read_config(file: Path) -> dict[str, Any]:
    """What a run was asked for.

    Raises:
        ValueError: if it cannot be read, or holds something else where a record belongs.
    """
    stored = json_object(file, MOST_BYTES)
    for name in _RECORDS:
        if not isinstance(stored.get(name), dict):
            what = f"`{name}` is {type(stored[name]).__name__}" if name in stored else f"no `{name}`"
            raise ValueError(f"a configuration must have records where a run writes some.\nReceived: {what}")
    return stored | {"model": current_arguments(stored["model"])}


def stamp(file: str | os.PathLike, mark: str, epoch: int) -> None:
    """Writes into a `.keras` archive of which run and epoch it is; Keras loads it as before."""
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = _SIGNATURE.format(mark, epoch).encode()


def read_stamp(file: Path) -> tuple[str, int] | None:
    """The mark and the epoch that `stamp` wrote; `None` of any other file, as of one that is cut short."""
    try:
        with open_regular(file) as opened, zipfile.ZipFile(opened) as archive:
            found = _SIGNED.match(archive.comment)
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return None
    return found and (found[1].decode(), int(found[2]))


def archive_fault(file: Path) -> str | None:
    """What is wrong with a `.keras` archive whose checksums are read, or `None`."""
    try:
        with open_regular(file) as opened, zipfile.ZipFile(opened) as archive:
            damaged = archive.testzip()
    except FileNotFoundError:
        return "which is not there"
    except FileKindError as error:
        return f"which is {error.reason}"
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError):
        return "which is cut short or something else"
    return damaged and f"which is damaged in {damaged!r}"


def was_written_here(path: Path, beginning: bytes | None = None) -> bool:
    """Whether a file with the name of one of a run begins as a run writes it."""
    head = read_head(path)
    if path.name == METRICS and head is not None and b"\n" not in head and not head.startswith(_FIRST):
        return _FIRST.startswith(head)  # of a run that was killed in its first row
    return head is not None and re.match(beginning or _BEGINNINGS[path.name], head, re.DOTALL) is not None


def _kind(path: Path) -> str:
    """What stands at a path, in a few words."""
    if not path.exists():
        return "a link that leads nowhere"
    return "a file of something else" if path.is_file() else "a folder" if path.is_dir() else "no regular file"
