"""What a format is: facts, a record of options, and five methods; `export` does all else. Without Keras."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

from keras_vit.annotations import Pair
from keras_vit.checks import ArgumentError, one_of, validate, with_parameters
from keras_vit.exporting.report import Runtime
from keras_vit.exporting.spec import ExportSpec

PRECISIONS = ("float32", "bfloat16", "float16", "int8")
ACTIVATIONS = ("softmax", "sigmoid")  # from logits to scores


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of every format, checked. A format with more has a subclass; `export` says what each is."""

    image_size: Pair | str | None = None
    activation: Annotated[str, one_of(ACTIVATIONS)] | None = None
    name: str | None = None
    print_fn: Callable[[str], Any] | None = None

    def __post_init__(self) -> None:
        validate(self)
        size, name = self.image_size, self.name
        if size not in (None, "any") and not (isinstance(size, (tuple, list)) and len(size) == 2):
            raise with_parameters(
                TypeError(f'`image_size` must be (H, W), "any" or None.\nReceived: image_size={size!r}.'),
                "image_size",
            )
        if name is None:
            return
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*", name):
            raise ArgumentError(
                "`name` stands in addresses, so it must be of letters, digits, `_`, `.` and `-`, and not of `.` alone."
                f"\nReceived: name={name!r}."
            )

    def of_spec(self, any_size: bool) -> dict[str, Any]:
        """The fields of an `ExportSpec` that are options of this format alone.

        Args:
            any_size: whether each call may choose the size of its images.
        """
        return {}


class Format:
    """A format of files. A subclass has the facts, and those of the five methods that do something.

    Attributes:
        name: of the format.
        title: of the format in a sentence.
        extension: of its files; empty for a folder with a version for each export.
        precisions: that a file may have.
        calibrates: precisions that are calibrated on photos.
        folds: precisions in which `write` passes its spec to `folded_spec`.
        Options: the record of its options.
    """

    name: str
    title: str
    extension = ""
    precisions: tuple[str, ...] = PRECISIONS
    calibrates: tuple[str, ...] = ()
    folds: tuple[str, ...] = ()
    Options: ClassVar[type[Options]] = Options

    def check_packages(self, precision: str) -> None:
        """Raises `ImportError` if a package is missing that writes or opens a file of this precision."""

    def write(self, spec: ExportSpec, place: Path) -> None:
        """Writes the file or the folder `place`, which does not exist.

        Raises:
            ValueError: for a model that the format cannot hold.
            ExportError: if the converter does not take the model.
            ImportError: as `check_packages`.
        """
        raise NotImplementedError

    def open_runtime(self, place: Path) -> Runtime:
        """Opens what `write` wrote in the software that will serve it.

        Raises:
            ExportError: if it does not take the file.
            ImportError: as `check_packages`.
        """
        raise NotImplementedError

    def is_own_file(self, file: Path) -> bool:
        """Whether a file, or one of its data, carries the mark of `write`; only such a file is replaced."""
        return False

    def load_snippet(self, name: str) -> str | None:
        """The line of Python that opens the file `name` in the precision that it was compared in, if one is needed."""
        return None
