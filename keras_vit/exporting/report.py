"""The report of an export: its difference from the model, size and speed."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.files import atomic_write, expand_path, read_head
from keras_vit.pages.formatting import columns, format_titled, markdown_table, printable


class ExportError(RuntimeError):
    """A file or an engine does not compute what the model computes, or its runtime does not take it."""


@dataclasses.dataclass(frozen=True)
class Runtime:
    """An exported file, opened in the software that will serve it.

    Attributes:
        name: of the software, with its version.
        run: from uint8 `(B, H, W, C)` at the model's size to a dict of float32 arrays, as `pixel_module` returns it.
        answer: from the same to what a client gets in one call, to be timed; by default `run`.
        photos: from a list of B files as bytes to the same dict and `status`, for a format that takes files.
        prepares: whether `run` and `answer` apply the whole preprocessing, which may crop even pixels of the model's
            size; otherwise they only scale.
    """

    name: str
    run: Callable[[np.ndarray], dict[str, np.ndarray]]
    answer: Callable[[np.ndarray], dict[str, np.ndarray]] | None = None
    photos: Callable[[list[bytes]], dict[str, np.ndarray]] | None = None
    prepares: bool = False


@dataclasses.dataclass(frozen=True)
class Drift:
    """How far one output of a file is from the model's.

    Attributes:
        output: its name.
        max_difference: the largest absolute difference of a number.
        mean_difference: the mean one.
        deviation: standard deviation of the model's numbers, to compare with.
        bound: the limit of `max_difference`.
        mean_bound: the limit of `mean_difference`.
    """

    output: str
    max_difference: float
    mean_difference: float
    deviation: float
    bound: float
    mean_bound: float

    @property
    def within(self) -> bool:
        """Whether both bounds hold."""
        return self.max_difference <= self.bound and self.mean_difference <= self.mean_bound


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """The result of `export`: size, speed, and the difference of the file's outputs from the model's.

    Example:
        >>> report = keras_vit.export(model, "shapes.onnx")
        >>> report.format, report.precision
        ('onnx', 'float32')
        >>> max(drift.max_difference for drift in report.drift) < 1e-5
        True

    Attributes:
        path: of the file or the folder.
        format: of the file.
        precision: of the file.
        bytes: size of all that was written.
        runtime: the software that opened it; `None` without verification, as the fields below.
        images: number of real photos that were compared; int8 of LiteRT and OpenVINO is calibrated on others.
        drift: a `Drift` for each output.
        top1_agreement: share of the photos, or of the pixels of a model of these, whose best class is the model's, in
            [0, 1]; `None` without classes.
        seconds: of one image in the file's runtime, the median of several.
        keras_seconds: the same of the Keras model as a `tf.function`.
        opening: the line of Python that opens the file in the precision that it was compared in; `None` where the
            runtime has no other.
        folded: what is folded into the kernels of the file, as the gain of LayerNorms; `None` where the format folds
            nothing.
        calibrated_on: the photos of int8, where it needs some; else `None`.
        compared_on: what `images` counts: `"photos"`, or `"texts"` of a text tower.
        tokenizer: path of the tokenizer's file of a text tower, for `keras_vit.tokenizer`; else `None`.
    """

    path: Path
    format: str
    precision: str
    bytes: int
    runtime: str | None = None
    images: int = 0
    drift: tuple[Drift, ...] = ()
    top1_agreement: float | None = None
    seconds: float | None = None
    keras_seconds: float | None = None
    opening: str | None = None
    folded: str | None = None
    calibrated_on: str | None = None
    compared_on: str = "photos"
    tokenizer: str | None = None

    @property
    def max_difference(self) -> float | None:
        """The largest difference over all outputs."""
        return float(np.max([drift.max_difference for drift in self.drift])) if self.drift else None

    @property
    def mean_difference(self) -> float | None:
        """The largest mean difference of an output."""
        return float(np.max([drift.mean_difference for drift in self.drift])) if self.drift else None

    def summary(self) -> dict:
        """All fields, ready for JSON."""
        return {**dataclasses.asdict(self), "path": str(self.path)}

    def facts(self) -> list[tuple[str, str]]:
        """All fields but the drift, as pairs of a name and a text."""
        rows = [("format", f"{self.format}, {self.precision}"), ("size", f"{self.bytes / 1e6:,.2f} MB")]
        rows += [("open it by", self.opening)] if self.opening else []
        rows += [("make ids by", f'keras_vit.tokenizer("{self.tokenizer}")')] if self.tokenizer else []
        rows += [("folded into kernels", self.folded)] if self.folded else []
        rows += [("calibrated on", self.calibrated_on)] if self.calibrated_on else []
        if self.runtime is None or self.seconds is None or self.keras_seconds is None:
            return [*rows, ("verified", "no")]
        rows += [("opened by", self.runtime), (f"{self.compared_on} compared", str(self.images))]
        if self.top1_agreement is not None:
            rows.append(("same best class", f"{self.top1_agreement:.1%}"))
        one = "one text" if self.compared_on == "texts" else "one image"
        return [*rows, (one, f"{self.seconds * 1e3:.1f} ms, in Keras {self.keras_seconds * 1e3:.1f} ms")]

    def __str__(self) -> str:
        """The report in 80 columns, as `keras-vit export` prints it."""
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The lines of the same."""
        yield from format_titled(f"exported to {self.path}", self.facts())
        if self.drift:
            yield ""
            yield from columns(drift_rows(self.drift))

    def table(self) -> str:
        """The report as tables in Markdown."""
        facts = markdown_table(("export", str(self.path)), self.facts())
        return f"{facts}\n\n{drift_table(self.drift)}" if self.drift else facts

    def write(self, path: FilePath) -> None:
        """Writes the tables, or, to a name that ends in `.json`, the summary.

        Args:
            path: of the new file.

        Raises:
            FileExistsError: if something else than a report is there.
        """
        path = expand_path(path)
        check_report(path)
        text = json.dumps(self.summary(), indent=2) if path.suffix == ".json" else self.table()
        with atomic_write(path) as part:
            Path(part).write_text(text + "\n", encoding="utf-8")


def check_report(path: FilePath) -> None:
    """Raises a `FileExistsError` if something else than the report of an export is at `path`."""
    if os.path.lexists(path) and not (read_head(path) or b"").startswith((b'{\n  "path": "', b"| export |")):
        raise FileExistsError(
            "a report replaces only a report of an export.\n"
            f"Received: {printable(path)}, which is something else. Move it away, or pass another path."
        )


def drift_table(drifts: Sequence[Drift]) -> str:
    """The drift of each output as a table in Markdown."""
    head, *rows = drift_rows(drifts)
    return markdown_table((*head[:-1], "deviation of the model's"), rows)


def drift_rows(drifts: Sequence[Drift]) -> list[tuple[str, ...]]:
    """The drift of each output as rows of texts; the first row is the header."""
    return [("output", "largest difference", "bound", "mean difference", "deviation")] + [
        (d.output, *(f"{value:.2g}" for value in (d.max_difference, d.bound, d.mean_difference, d.deviation)))
        for d in drifts
    ]
