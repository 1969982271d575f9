"""The formats of `export`, and what the module of each must have; a type checker holds every one to it."""

from pathlib import Path
from typing import Protocol

from keras_vit.exporting import litert, onnx, openvino, saved_model
from keras_vit.exporting.report import Runtime
from keras_vit.exporting.task import ExportTask


class Writer(Protocol):
    """The module of a format.

    Attributes:
        EXTENSION: end of a file's name; empty for a format that is a folder with a version for each export.
        PRECISIONS: precisions that the format has.
        CALIBRATED: those of them that are calibrated on photos.
        FOLDED: those of them in which `write` hands its task to `folded_task`.
    """

    EXTENSION: str
    PRECISIONS: tuple[str, ...]
    CALIBRATED: tuple[str, ...]
    FOLDED: tuple[str, ...]

    def check_packages(self, precision: str, opset: int) -> None:
        """Raises `ImportError` if a package is missing that writes or opens a file of this precision and opset."""

    def write(self, task: ExportTask, place: Path) -> None:
        """Writes the file or the folder `place`, which does not exist."""

    def wrote(self, file: Path) -> bool:
        """Whether a file is one that `write` wrote, or one of its data, as its marks tell."""

    def open_runtime(self, place: Path) -> Runtime:
        """What `write` wrote, opened by the software that will serve it."""

    def opening(self, name: str) -> str | None:
        """The line of Python that opens the file `name` in the precision that it was compared in, if one is needed."""


WRITERS: dict[str, Writer] = {"saved_model": saved_model, "onnx": onnx, "litert": litert, "openvino": openvino}
